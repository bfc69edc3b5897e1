//! Scenarios on single connections (`ya_service_bus::connection`): caller and service are two
//! connections of this process.

use crate::link::{caller, echo, one, open, serve, subscriber};
use crate::{unique, Helper};
use anyhow::{bail, ensure, Context, Result};
use futures::channel::mpsc::unbounded;
use futures::future::try_join_all;
use futures::prelude::*;
use futures::stream;
use std::time::Duration;
use ya_service_bus::connection::ClientInfo;
use ya_service_bus::{Error, ResponseChunk};

fn expect_unknown(reply: Result<Vec<u8>, Error>) -> Result<()> {
    match reply {
        Err(Error::GsbBadRequest(text)) if text == "endpoint address not found" => Ok(()),
        other => bail!("expected code 400 for an unknown address, got {other:?}"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}

pub async fn calls() -> Result<()> {
    let name = unique("echo");
    let service = serve(echo).await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    for length in [0, 1, 127, 128, 256, 16_383, 16_384, 70_000] {
        let sent = pattern(length);
        ensure!(
            caller.call("me", &name, sent.clone(), false).await? == sent,
            "{length} bytes came back changed"
        );
    }
    ensure!(
        service.call("me", &name, b"self".to_vec(), false).await? == b"self",
        "a connection cannot call itself"
    );

    let who = unique("who");
    let service = serve(|r| one(Ok(format!("{}>{}", r.caller, r.address).into_bytes()))).await?;
    service.bind(&who).await?;
    let reply = caller.call("Zoë", &who, vec![], false).await?;
    ensure!(
        reply == format!("Zoë>{who}").into_bytes(),
        "caller or address changed: {reply:?}"
    );
    Ok(())
}

pub async fn names() -> Result<()> {
    let name = unique("owned");
    let (first, second) = (
        serve(|_| one(Ok(b"first".to_vec()))).await?,
        serve(|_| one(Ok(b"second".to_vec()))).await?,
    );
    let caller = caller().await?;
    first.bind(&name).await?;
    for owner in [&second, &first] {
        let again = owner.bind(&name).await;
        ensure!(
            matches!(again, Err(Error::GsbAlreadyRegistered(_))),
            "a taken name was registered again: {again:?}"
        );
    }
    let stolen = second.unbind(&name).await;
    ensure!(
        matches!(stolen, Err(Error::GsbBadRequest(_))),
        "a foreign name was unregistered: {stolen:?}"
    );
    ensure!(
        caller.call("me", &name, vec![], false).await? == b"first",
        "the owner changed"
    );
    first.unbind(&name).await?;
    expect_unknown(caller.call("me", &name, vec![], false).await)?;
    second.bind(&name).await?;
    ensure!(
        caller.call("me", &name, vec![], false).await? == b"second",
        "a freed name did not pass on"
    );
    Ok(())
}

pub async fn errors() -> Result<()> {
    let name = unique("faulty");
    let service = serve(|_| one(Err(Error::GsbFailure("out of paint".into())))).await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    match caller.call("me", &name, vec![], false).await {
        Err(Error::GsbFailure(text)) if text.contains("out of paint") => {}
        other => bail!("expected the service's own failure, got {other:?}"),
    }
    expect_unknown(caller.call("me", unique("nobody"), vec![], false).await)?;
    let chunks: Vec<_> = caller
        .call_streaming("me", unique("nobody"), vec![])
        .collect()
        .await;
    ensure!(
        matches!(&chunks[..], [Err(Error::GsbBadRequest(_))]),
        "a streaming call to nobody must end with one error"
    );
    Ok(())
}

pub async fn streaming() -> Result<()> {
    const PARTS: usize = 500;
    let name = unique("parts");
    let service = serve(|request| {
        let parts = (0..PARTS).map(move |i| {
            Ok(ResponseChunk::Part(
                [request.data.clone(), pattern(i)].concat(),
            ))
        });
        stream::iter(parts)
            .chain(one(Ok(b"end".to_vec())))
            .boxed_local()
    });
    let service = service.await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    let streams = (0..3u8).map(|tag| {
        let chunks = caller.call_streaming("me", &name, vec![tag]);
        async move {
            let chunks: Vec<ResponseChunk> = chunks.try_collect().await?;
            ensure!(
                chunks.len() == PARTS + 1,
                "{} chunks instead of {}",
                chunks.len(),
                PARTS + 1
            );
            for (i, chunk) in chunks.into_iter().enumerate() {
                ensure!(
                    chunk.is_full() == (i == PARTS),
                    "chunk {i} has the wrong kind"
                );
                let expected = if i == PARTS {
                    b"end".to_vec()
                } else {
                    [vec![tag], pattern(i)].concat()
                };
                ensure!(chunk.into_bytes() == expected, "chunk {i} differs");
            }
            Ok(())
        }
    });
    try_join_all(streams).await?;
    Ok(())
}

pub async fn prefixes() -> Result<()> {
    let root = unique("tree");
    let service = |label: &'static str| {
        serve(move |r| one(Ok(format!("{label}:{}", r.address).into_bytes())))
    };
    let (short, long, slash) = (
        service("short").await?,
        service("long").await?,
        service("slash").await?,
    );
    short.bind(&root).await?;
    long.bind(format!("{root}/a/b")).await?;
    slash.bind(format!("{root}/c/")).await?;
    let caller = caller().await?;
    for (suffix, owner) in [
        ("", "short"),
        ("/", "short"),
        ("/a", "short"),
        ("/a/bc", "short"),
        ("//x", "short"),
        ("/c", "short"),
        ("/c/x", "short"),
        ("/a/b", "long"),
        ("/a/b/", "long"),
        ("/a/b/c/d", "long"),
        ("/c/", "slash"),
        ("/c//x", "slash"),
    ] {
        let address = format!("{root}{suffix}");
        let reply = String::from_utf8(caller.call("me", &address, vec![], false).await?)?;
        ensure!(
            reply == format!("{owner}:{address}"),
            "{address} was answered {reply}, expected {owner}"
        );
    }
    expect_unknown(caller.call("me", format!("{root}x"), vec![], false).await)?;
    expect_unknown(caller.call("me", "", vec![], false).await)
}

pub async fn broadcast() -> Result<()> {
    let (topic, other) = (unique("news"), unique("news/local"));
    let publisher = caller().await?;
    let mut readers = try_join_all((0..4).map(|_| subscriber(&topic))).await?;
    let (_other, mut elsewhere) = subscriber(&other).await?;
    publisher.broadcast("me", unique("unheard"), vec![]).await?;
    for n in 0..50u8 {
        publisher
            .broadcast("me", &topic, vec![n; n as usize])
            .await?;
        for (_, events) in &mut readers {
            let event = events
                .next()
                .await
                .context("a subscriber's connection ended")?;
            ensure!(
                event.caller == "me" && event.topic == topic && event.data == vec![n; n as usize],
                "broadcast {n} came changed"
            );
        }
    }
    let (left, mut events) = readers.pop().context("no reader")?;
    left.unsubscribe(&topic).await?;
    let twice = left.unsubscribe(&topic).await;
    ensure!(
        matches!(twice, Err(Error::GsbBadRequest(_))),
        "unsubscribed twice: {twice:?}"
    );
    publisher.broadcast("me", &topic, b"last".to_vec()).await?;
    for (_, events) in &mut readers {
        ensure!(
            events
                .next()
                .await
                .context("a subscriber's connection ended")?
                .data
                == b"last",
            "wrong last broadcast"
        );
    }
    ensure!(
        events.try_recv().is_err() && elsewhere.try_recv().is_err(),
        "a broadcast reached somebody who did not ask for it"
    );
    Ok(())
}

pub async fn large() -> Result<()> {
    let name = unique("large");
    let service = serve(echo).await?;
    service.bind(&name).await?;
    let sent = pattern(16 << 20);
    ensure!(
        caller()
            .await?
            .call("me", &name, sent.clone(), false)
            .await?
            == sent,
        "16 MiB came back changed"
    );
    Ok(())
}

pub async fn concurrent() -> Result<()> {
    let name = unique("slow");
    // Nothing is answered before all have arrived, so a thousand calls really are open at once.
    let mut waiting = vec![];
    let service = serve(move |request| {
        let (answer, reply) = futures::channel::oneshot::channel();
        waiting.push((answer, request.data));
        if waiting.len() == 1000 {
            waiting
                .drain(..)
                .rev()
                .for_each(|(answer, data)| drop(answer.send(data)));
        }
        let reply = reply
            .map_err(|_| Error::Cancelled)
            .map_ok(ResponseChunk::Full);
        reply.into_stream().boxed_local()
    });
    let service = service.await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    let calls = (0..1000u32).map(|n| {
        let call = caller.call("me", &name, n.to_be_bytes().to_vec(), false);
        async move {
            ensure!(
                call.await? == n.to_be_bytes(),
                "call {n} got the reply of another"
            );
            Ok(())
        }
    });
    try_join_all(calls).await?;
    Ok(())
}

pub async fn push() -> Result<()> {
    let name = unique("inbox");
    let (pushed, mut inbox) = unbounded();
    let service = serve(move |request| {
        let _ = pushed.unbounded_send((request.no_reply, request.data.clone()));
        echo(request)
    });
    let service = service.await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    for n in 0..100u8 {
        caller.call("me", &name, vec![n], true).await?;
    }
    caller.call("me", unique("nobody"), vec![], true).await?;
    ensure!(
        caller.call("me", &name, b"call".to_vec(), false).await? == b"call",
        "no reply to a call after pushes"
    );
    for n in 0..100u8 {
        ensure!(
            inbox.next().await == Some((true, vec![n])),
            "push {n} did not arrive in order"
        );
    }
    ensure!(
        inbox.next().await == Some((false, b"call".to_vec())),
        "the call came as a push"
    );
    Ok(())
}

pub async fn takeover() -> Result<()> {
    let name = unique("moving");
    let info = ClientInfo::new("peer");
    let (old, _) = open(info.clone(), |_| one(Ok(b"old".to_vec()))).await?;
    old.bind(&name).await?;
    let (new, _) = open(info, |_| one(Ok(b"new".to_vec()))).await?;
    new.bind(&name)
        .await
        .context("the name of the older connection of the same instance is still held")?;
    ensure!(
        caller().await?.call("me", &name, vec![], false).await? == b"new",
        "the older connection still answers"
    );
    ensure!(
        old.bind(unique("late")).await.is_err(),
        "the older connection is still served"
    );
    Ok(())
}

/// Meaningful on a router whose idle limit is shorter than the wait.
pub async fn idle() -> Result<()> {
    let name = unique("quiet");
    let service = serve(echo).await?;
    service.bind(&name).await?;
    let caller = caller().await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    ensure!(
        service.connected() && caller.connected(),
        "an idle client that answers pings was closed"
    );
    ensure!(
        caller.call("me", &name, b"x".to_vec(), false).await? == b"x",
        "an idle service is lost"
    );
    Ok(())
}

/// The service of `service_drop`: takes calls and never ends them. A first part tells the caller
/// that its call has arrived.
pub async fn hang(name: &str) -> Result<()> {
    let service = serve(|_| {
        let taken = stream::once(future::ready(Ok(ResponseChunk::Part(b"taken".to_vec()))));
        taken.chain(stream::pending()).boxed_local()
    });
    let service = service.await?;
    service.bind(name).await?;
    future::pending().await
}

pub async fn service_drop() -> Result<()> {
    let name = unique("hanging");
    let helper = Helper::start("hang", &name)?;
    let caller = caller().await?;
    let mut chunks = loop {
        let mut chunks = caller.call_streaming("me", &name, vec![]);
        match chunks.next().await {
            Some(Ok(_)) => break chunks,
            Some(Err(Error::GsbBadRequest(_))) => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            _ => bail!("the call did not reach the service"),
        }
    };
    let second = caller.call_streaming("me", &name, vec![]);
    let mut second = Box::pin(second);
    ensure!(
        matches!(second.next().await, Some(Ok(_))),
        "the second call did not reach the service"
    );
    drop(helper);
    for end in [chunks.next().await, second.next().await] {
        match end {
            Some(Err(Error::GsbFailure(_))) => {}
            Some(Err(other)) => bail!("expected a service failure, got {other:?}"),
            _ => bail!("expected a service failure, the call went on"),
        }
    }
    expect_unknown(caller.call("me", &name, vec![], false).await)
}

/// ya-sb-router cancels some of these calls (protocol page §9).
pub async fn many_callers() -> Result<()> {
    const CALLS: u32 = 50;
    let name = unique("popular");
    let service = serve(echo).await?;
    service.bind(&name).await?;
    let callers = try_join_all((0..64).map(|_| caller())).await?;
    let payload = pattern(16 << 10);
    let calls = callers
        .iter()
        .flat_map(|caller| (0..CALLS).map(|_| caller.call("me", &name, payload.clone(), false)));
    for reply in try_join_all(calls).await? {
        ensure!(reply == payload, "a reply came changed");
    }
    Ok(())
}

/// ya-sb-router loses some of these broadcasts (protocol page §10).
pub async fn broadcast_burst() -> Result<()> {
    const COUNT: u32 = 2000;
    let topic = unique("burst");
    let mut readers = try_join_all((0..8).map(|_| subscriber(&topic))).await?;
    let publisher = caller().await?;
    try_join_all((0..COUNT).map(|n| publisher.broadcast("me", &topic, n.to_be_bytes().to_vec())))
        .await?;
    for (_, events) in &mut readers {
        for n in 0..COUNT {
            let event = events
                .next()
                .await
                .context("a subscriber's connection ended")?;
            ensure!(
                event.data == n.to_be_bytes(),
                "broadcast {n} is missing or out of order"
            );
        }
    }
    Ok(())
}
