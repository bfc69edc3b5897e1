//! What the scenarios share: the bus under test, its protocols, and checks that say what was expected.

use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};
use t2_bus::prelude::*;
use tokio::time::{sleep, timeout, Instant};

pub const PREFIX: &str = "interop";

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Note(pub String);

impl PublishProtocol for Note {
    fn prefix() -> &'static str {
        PREFIX
    }
}

#[derive(Debug, Deserialize, Serialize)]
pub struct Ask(pub String);

#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Answer(pub String);

impl RequestProtocol for Ask {
    type Rsp = Answer;

    fn prefix() -> &'static str {
        PREFIX
    }
}

pub fn note(text: &str) -> Note {
    Note(text.into())
}

pub fn answer(text: &str) -> Answer {
    Answer(text.into())
}

pub async fn call(client: &Client, topic: &str, text: &str) -> BusResult<Answer> {
    client.request(topic, &Ask(text.into())).await
}

pub struct Bus(Connector);

impl Bus {
    pub fn at(address: &str) -> Option<Bus> {
        match address.split_once(':')? {
            ("tcp", host) => Some(Bus(Connector::new_tcp(host.into()))),
            ("unix", path) => Some(Bus(Connector::new_unix(PathBuf::from(path)))),
            _ => None,
        }
    }

    pub async fn connect(&self) -> Result<Client> {
        self.0.connect().await.context("connecting")
    }

    /// A topic (without the protocol's prefix) that no other run uses.
    pub fn topic(&self, rest: &str) -> String {
        format!("run{}/{rest}", std::process::id())
    }

    /// The same topic as it stands on the wire.
    pub fn wire_topic(&self, rest: &str) -> String {
        format!("{PREFIX}/{}", self.topic(rest))
    }
}

pub fn expect<T: Debug + PartialEq>(what: &str, got: T, wanted: T) -> Result<()> {
    ensure!(got == wanted, "{what}: got {got:?}, wanted {wanted:?}");
    Ok(())
}

/// The library wraps what the server refused once more, hence the words in front.
pub fn expect_refusal<T>(what: &str, got: BusResult<T>, wanted: &str) -> Result<()> {
    match got {
        Ok(_) => bail!("{what}: accepted, wanted {wanted:?}"),
        Err(error) => expect(what, error.to_string(), format!("Request failed: {wanted}")),
    }
}

pub async fn within<T>(seconds: u64, what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(Duration::from_secs(seconds), future)
        .await
        .with_context(|| format!("{what}: nothing after {seconds} s"))
}

pub async fn next<T>(what: &str, subscription: &mut Subscription<T>) -> Result<T> {
    within(5, what, subscription.recv()).await?.with_context(|| format!("{what}: the feed ended"))
}

pub async fn next_request(
    what: &str,
    requests: &mut RequestSubscription<Ask>,
) -> Result<(String, u32, Ask)> {
    within(5, what, requests.recv()).await?.with_context(|| format!("{what}: the feed ended"))
}

/// Leaving is asynchronous in this protocol (nothing waits for the Ack), so its effect is polled for.
pub async fn eventually<F, Fut>(what: &str, mut attempt: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error.context(what.to_owned())),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Reproducible bytes without structure (xorshift64*), so that compression gains nothing.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Reproducible text of the given length that compresses about as well as prose.
pub fn prose(length: usize) -> String {
    const WORDS: [&str; 16] = [
        "bus ",
        "message ",
        "topic ",
        "the ",
        "of ",
        "a ",
        "reply ",
        "answers ",
        "to ",
        "price ",
        "and ",
        "is ",
        "subscriber ",
        "order ",
        "in ",
        "each. ",
    ];
    let mut text = String::with_capacity(length + 16);
    for byte in noise(length) {
        if text.len() >= length {
            break;
        }
        text.push_str(WORDS[usize::from(byte >> 4)]);
    }
    text.truncate(length);
    text
}
