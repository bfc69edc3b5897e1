//! One connection of the real client over any transport, with a closure as its service.

use anyhow::{Context, Result};
use futures::channel::mpsc::{unbounded, UnboundedReceiver, UnboundedSender};
use futures::prelude::*;
use futures::stream::{self, LocalBoxStream};
use std::pin::Pin;
use ya_sb_proto::codec::{GsbMessage, ProtocolError};
use ya_sb_proto::GsbAddr;
use ya_service_bus::connection::{self, CallRequestHandler, ClientInfo, ConnectionRef};
use ya_service_bus::{Error, ResponseChunk};

pub trait Duplex:
    Sink<GsbMessage, Error = ProtocolError> + Stream<Item = Result<GsbMessage, ProtocolError>>
{
}
impl<T> Duplex for T where
    T: Sink<GsbMessage, Error = ProtocolError> + Stream<Item = Result<GsbMessage, ProtocolError>>
{
}

type Wire = Pin<Box<dyn Duplex>>;
pub type Link = ConnectionRef<Wire, Service>;
pub type Replies = LocalBoxStream<'static, Result<ResponseChunk, Error>>;

pub struct Request {
    pub caller: String,
    pub address: String,
    pub data: Vec<u8>,
    pub no_reply: bool,
}

pub struct Event {
    pub caller: String,
    pub topic: String,
    pub data: Vec<u8>,
}

pub struct Service {
    answer: Box<dyn FnMut(Request) -> Replies>,
    events: UnboundedSender<Event>,
}

impl CallRequestHandler for Service {
    type Reply = Replies;

    fn do_call(
        &mut self,
        _id: String,
        caller: String,
        address: String,
        data: Vec<u8>,
        no_reply: bool,
    ) -> Replies {
        (self.answer)(Request {
            caller,
            address,
            data,
            no_reply,
        })
    }

    fn handle_event(&mut self, caller: String, topic: String, data: Vec<u8>) {
        // The receiver is gone once its scenario has ended.
        let _ = self.events.unbounded_send(Event {
            caller,
            topic,
            data,
        });
    }
}

async fn dial() -> Result<Wire> {
    let url = std::env::var("GSB_URL").context("GSB_URL is not set")?;
    Ok(match url.strip_prefix("tls://") {
        Some(rest) => {
            let (address, hash) = rest
                .split_once('#')
                .context("tls://host:port#certificate-hash")?;
            Box::pin(connection::tls(address, hash.parse().context("certificate hash")?).await?)
        }
        None => Box::pin(connection::transport(GsbAddr::default()).await?),
    })
}

pub async fn open(
    info: ClientInfo,
    answer: impl FnMut(Request) -> Replies + 'static,
) -> Result<(Link, UnboundedReceiver<Event>)> {
    let (events, received) = unbounded();
    let service = Service {
        answer: Box::new(answer),
        events,
    };
    Ok((
        connection::connect_with_handler(info, dial().await?, service),
        received,
    ))
}

pub async fn serve(answer: impl FnMut(Request) -> Replies + 'static) -> Result<Link> {
    Ok(open(ClientInfo::new("peer"), answer).await?.0)
}

pub async fn caller() -> Result<Link> {
    serve(|_| one(Err(Error::GsbFailure("a caller was called".into())))).await
}

pub async fn subscriber(topic: &str) -> Result<(Link, UnboundedReceiver<Event>)> {
    let (link, events) = open(ClientInfo::new("peer"), |_| stream::empty().boxed_local()).await?;
    link.subscribe(topic).await?;
    Ok((link, events))
}

pub fn one(reply: Result<Vec<u8>, Error>) -> Replies {
    stream::once(future::ready(reply.map(ResponseChunk::Full))).boxed_local()
}

pub fn echo(request: Request) -> Replies {
    one(Ok(request.data))
}
