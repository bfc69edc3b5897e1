//! Scenarios on the process-wide client (`ya_service_bus::typed` and `untyped`). It answers its own
//! names without the router, so every service here lives in a second process.

use crate::{unique, Helper};
use anyhow::{bail, ensure, Context, Result};
use futures::future::try_join_all;
use futures::prelude::*;
use futures::stream;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use ya_service_bus::{typed, untyped, Error, ResponseChunk, RpcMessage, RpcStreamMessage};

#[derive(Serialize, Deserialize)]
struct Echo(String);

impl RpcMessage for Echo {
    const ID: &'static str = "Echo";
    type Item = (String, String);
    type Error = String;
}

#[derive(Serialize, Deserialize)]
struct Divide(i64, i64);

impl RpcMessage for Divide {
    const ID: &'static str = "Divide";
    type Item = i64;
    type Error = String;
}

#[derive(Serialize, Deserialize)]
struct Count(u32);

impl RpcStreamMessage for Count {
    const ID: &'static str = "Count";
    type Item = u32;
    type Error = String;
}

#[derive(Serialize, Deserialize)]
struct Note(u32);

impl RpcMessage for Note {
    const ID: &'static str = "Note";
    type Item = ();
    type Error = ();
}

/// Everything that was pushed so far.
#[derive(Serialize, Deserialize)]
struct Notes;

impl RpcMessage for Notes {
    const ID: &'static str = "Notes";
    type Item = Vec<u32>;
    type Error = ();
}

pub async fn serve(name: &str) -> Result<()> {
    let notes = Rc::new(RefCell::new(vec![]));
    let kept = notes.clone();
    typed::bind_with_caller(name, |caller, Echo(text)| async move { Ok((caller, text)) });
    typed::bind(name, |Divide(a, b)| async move {
        a.checked_div(b)
            .ok_or_else(|| format!("{a} divided by zero"))
    });
    typed::bind_stream(name, |Count(n)| {
        stream::iter((0..n).map(Ok).chain([Err("counted out".to_string())])).boxed_local()
    });
    typed::bind(name, move |Note(n)| {
        kept.borrow_mut().push(n);
        future::ok(())
    });
    typed::bind(name, move |Notes| future::ok(notes.borrow().clone()));
    untyped::subscribe(
        &format!("{name}/raw"),
        |_: &str, _: &str, data: &[u8]| future::ok(data.to_vec()),
        |caller: &str, address: &str, data: &[u8]| {
            let heading = Ok(ResponseChunk::Part(
                format!("{caller}>{address}").into_bytes(),
            ));
            let body = Ok(ResponseChunk::Full(data.to_vec()));
            // The unary caller takes one chunk only.
            stream::iter(if address.ends_with("/parts") {
                vec![heading, body]
            } else {
                vec![body]
            })
        },
    );
    future::pending().await
}

/// Starts the service process and waits until its names are registered.
async fn partner(name: &str) -> Result<Helper> {
    let helper = Helper::start("serve", name)?;
    answers(name, Duration::from_secs(20)).await?;
    Ok(helper)
}

async fn answers(name: &str, limit: Duration) -> Result<()> {
    let wait = async {
        loop {
            match typed::service(name).call(Notes).await {
                Ok(_) => {
                    return untyped::send(&format!("{name}/raw"), "me", b"")
                        .await
                        .is_ok()
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    ensure!(
        tokio::time::timeout(limit, wait)
            .await
            .with_context(|| format!("no service after {limit:?}"))?,
        "half a service"
    );
    Ok(())
}

pub async fn typed() -> Result<()> {
    let name = unique("typed");
    let _partner = partner(&name).await?;
    let service = typed::service(&name);
    for text in ["", "abc", "żółw 🐢"] {
        let reply = service.call(Echo(text.into())).await?;
        ensure!(
            reply == Ok(("local".into(), text.into())),
            "echo came back changed"
        );
    }
    let reply = service.call_as("Zoë", Echo("x".into())).await?;
    ensure!(
        reply == Ok(("Zoë".into(), "x".into())),
        "the caller's name came changed"
    );
    ensure!(service.call(Divide(42, 6)).await? == Ok(7), "42 / 6");
    Ok(())
}

pub async fn typed_streaming() -> Result<()> {
    let name = unique("typed-stream");
    let _partner = partner(&name).await?;
    let items: Vec<_> = typed::service(&name)
        .call_streaming(Count(1000))
        .try_collect()
        .await?;
    let expected: Vec<_> = (0..1000)
        .map(Ok)
        .chain([Err("counted out".to_string())])
        .collect();
    ensure!(
        items == expected,
        "{} items, not the thousand and the error at the end",
        items.len()
    );
    Ok(())
}

pub async fn typed_errors() -> Result<()> {
    let name = unique("typed-errors");
    let helper = partner(&name).await?;
    let refused = typed::service(&name).call(Divide(1, 0)).await?;
    ensure!(
        refused == Err("1 divided by zero".into()),
        "the service's own error came changed: {refused:?}"
    );
    let nobody = typed::service(unique("nobody")).call(Divide(1, 1)).await;
    ensure!(
        matches!(nobody, Err(Error::GsbBadRequest(_))),
        "expected code 400 for an unknown service, got {nobody:?}"
    );
    drop(helper);
    // The router may notice the end of the process a moment later; until then either answer holds.
    // ya-sb-router forgets a call that was on its way to a process as it ended, and never answers it;
    // `service_drop` holds polybus to an answer.
    for _ in 0..100 {
        let call = typed::service(&name).call(Divide(1, 1));
        let answer = match tokio::time::timeout(Duration::from_secs(5), call).await {
            Ok(answer) => answer,
            Err(_unanswered) => continue,
        };
        match answer {
            Err(Error::GsbBadRequest(_)) => return Ok(()),
            Err(Error::GsbFailure(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            other => bail!("a vanished service answered {other:?}"),
        }
    }
    bail!("the names of a vanished service are still registered")
}

pub async fn typed_push() -> Result<()> {
    let name = unique("typed-push");
    let _partner = partner(&name).await?;
    let service = typed::service(&name);
    for n in 0..100 {
        service.push(Note(n)).await?;
    }
    ensure!(
        service.call(Notes).await? == Ok((0..100).collect()),
        "pushes lost or out of order"
    );
    Ok(())
}

pub async fn untyped() -> Result<()> {
    let name = unique("untyped");
    let _partner = partner(&name).await?;
    let (raw, parts) = (format!("{name}/raw"), format!("{name}/raw/parts"));
    ensure!(
        untyped::send(&raw, "me", b"bytes").await? == b"bytes",
        "bytes came back changed"
    );
    untyped::push(&raw, "me", b"pushed").await?;
    let chunks: Vec<_> = untyped::call_stream(&parts, "me", b"body")
        .map_ok(|c| (c.is_full(), c.into_bytes()))
        .try_collect()
        .await?;
    let expected = [
        (false, format!("me>{parts}").into_bytes()),
        (true, b"body".to_vec()),
    ];
    ensure!(chunks == expected, "the streamed reply came changed");
    let nobody = untyped::send(&unique("nobody"), "me", b"").await;
    ensure!(
        matches!(nobody, Err(Error::GsbBadRequest(_))),
        "expected code 400 for an unknown address, got {nobody:?}"
    );
    Ok(())
}

pub async fn typed_large() -> Result<()> {
    let name = unique("typed-large");
    let _partner = partner(&name).await?;
    // Text: the client's encoding spends four bytes on each element of a list this long.
    let sent: String = (b'a'..=b'z')
        .cycle()
        .map(char::from)
        .take(16 << 20)
        .collect();
    let (_, got) = typed::service(&name)
        .call(Echo(sent.clone()))
        .await?
        .map_err(anyhow::Error::msg)?;
    ensure!(got == sent, "16 MiB came back changed");
    Ok(())
}

pub async fn typed_concurrent() -> Result<()> {
    let name = unique("typed-concurrent");
    let _partner = partner(&name).await?;
    let service = typed::service(&name);
    let calls = (0..1000i64).map(|n| {
        let call = service.call(Divide(n * 3, 3));
        async move {
            ensure!(call.await? == Ok(n), "call {n} got the reply of another");
            Ok(())
        }
    });
    try_join_all(calls).await?;
    Ok(())
}

/// Prints `connected`, and waits for a line on stdin that says the router was restarted. Both
/// processes must then find each other again without help.
pub async fn reconnect() -> Result<()> {
    let name = unique("returning");
    let _partner = partner(&name).await?;
    println!("connected");
    let mut line = String::new();
    BufReader::new(tokio::io::stdin())
        .read_line(&mut line)
        .await?;
    answers(&name, Duration::from_secs(15)).await?;
    let items: Vec<_> = typed::service(&name)
        .call_streaming(Count(3))
        .try_collect()
        .await?;
    ensure!(items.len() == 4, "the stream service did not return");
    Ok(())
}
