//! Serve, request and respond: claims, ids, answers, time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use futures::future::join_all;
use t2_bus::prelude::*;
use tokio::task::JoinSet;

use crate::bus::*;

const UNKNOWN_REQUEST: &str = "Respond failed: Invalid request ID or requester disconnected";

/// Answers every request on `topic` with its text and "!", each in a task of its own.
async fn echo(bus: &Bus, topic: &str) -> Result<JoinSet<Result<()>>> {
    let client = Arc::new(bus.connect().await?);
    let mut requests = client.serve::<Ask>(topic).await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut answers = JoinSet::new();
        while let Some((_, id, Ask(text))) = requests.recv().await {
            let client = client.clone();
            answers.spawn(async move { client.respond::<Ask>(id, &Answer(text + "!")).await });
        }
        while let Some(done) = answers.join_next().await {
            done??;
        }
        Ok(())
    });
    Ok(tasks)
}

/// Typed and raw requests get the answer of the one that serves.
pub async fn request(bus: &Bus) -> Result<()> {
    let _serving = echo(bus, &bus.topic("request")).await?;
    let mut client = bus.connect().await?;
    let reply = call(&client, &bus.topic("request"), "typed").await?;
    expect("typed", reply, answer("typed!"))?;
    let question = t2_bus::transport::cbor_codec::ser(&Ask("raw".into()))?.to_vec();
    let bytes = client.request_bytes(&bus.wire_topic("request"), question).await?;
    let reply: Answer = t2_bus::transport::cbor_codec::deser(&bytes)?;
    expect("raw", reply, answer("raw!"))?;

    let own = bus.connect().await?;
    let topic = bus.topic("request/own");
    let mut requests = own.serve::<Ask>(&topic).await?;
    let (reply, answered) = tokio::join!(call(&own, &topic, "self"), async {
        let (asked, id, question) = next_request("own", &mut requests).await?;
        expect("own topic", asked, bus.wire_topic("request/own"))?;
        own.respond::<Ask>(id, &Answer(question.0 + "?")).await?;
        anyhow::Ok(())
    });
    answered?;
    expect("from itself", reply?, answer("self?"))
}

/// One owner per topic; a refused claim leaves it alone, and a dropped one frees the topic.
pub async fn exclusive(bus: &Bus) -> Result<()> {
    let (first, second, caller) =
        (bus.connect().await?, bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("exclusive");
    let mut owned = first.serve::<Ask>(&topic).await?;
    let refused = second.serve::<Ask>(&topic).await;
    expect_refusal("second claim", refused, "Claim topic failed: Already claimed")?;
    // The refused client has sent an Unsrv by now; its next Ack comes after that one's.
    second.publish(&topic, &note("sync")).await?;
    let (reply, served) = tokio::join!(call(&caller, &topic, "who"), async {
        let (_, id, _) = next_request("owner", &mut owned).await?;
        first.respond::<Ask>(id, &answer("first")).await.context("responding")
    });
    served?;
    expect("owner", reply?, answer("first"))?;

    let child = second.serve::<Ask>(&format!("{topic}/child")).await?;
    let subscribed = second.subscribe::<Note>(&topic).await?;
    expect("unrelated to claims", caller.publish(&topic, &note("x")).await?, 1)?;
    drop((owned, child, subscribed));
    eventually("freed", || async {
        bus.connect().await?.serve::<Ask>(&topic).await?;
        Ok(())
    })
    .await
}

/// Nobody there, a parent, a child, or a wildcard: an error at once, no silence.
pub async fn no_service(bus: &Bus) -> Result<()> {
    let (server, caller) = (bus.connect().await?, bus.connect().await?);
    let _requests = server.serve::<Ask>(&bus.topic("there/is")).await?;
    for topic in ["nobody", "there", "there/is/not", "there/*", "**"] {
        let wanted = format!("Service not found: {}", bus.wire_topic(topic));
        expect_refusal(topic, call(&caller, &bus.topic(topic), "?").await, &wanted)?;
    }
    Ok(())
}

/// An answer counts once, from the asked client only, and while somebody waits for it.
pub async fn request_ids(bus: &Bus) -> Result<()> {
    let (server, stranger, caller) =
        (bus.connect().await?, bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("ids");
    let mut requests = server.serve::<Ask>(&topic).await?;
    let unknown = server.respond::<Ask>(u32::MAX, &answer("x")).await;
    expect_refusal("unknown id", unknown, UNKNOWN_REQUEST)?;

    let (reply, checks) = tokio::join!(call(&caller, &topic, "?"), async {
        let (_, id, _) = next_request("asked", &mut requests).await?;
        let refused = stranger.respond::<Ask>(id, &answer("stranger")).await;
        expect_refusal("stranger", refused, UNKNOWN_REQUEST)?;
        server.respond::<Ask>(id, &answer("right")).await?;
        expect_refusal("twice", server.respond::<Ask>(id, &answer("twice")).await, UNKNOWN_REQUEST)
    });
    checks?;
    expect("reply", reply?, answer("right"))?;

    let presence = caller.subscribe::<Note>(&topic).await?;
    let asked = topic.clone();
    let pending = tokio::spawn(async move {
        let _presence = presence;
        call(&caller, &asked, "leaving").await
    });
    let (_, id, _) = next_request("last", &mut requests).await?;
    // Ending the task drops the client and closes its connection, which the server hears a little later.
    pending.abort();
    ensure!(pending.await.is_err(), "the abandoned request ended by itself");
    eventually("requester gone", || async {
        expect("presence", stranger.publish(&topic, &note("?")).await?, 0)
    })
    .await?;
    // The subscription's end is told before the connection's, which nobody else is told of: it follows at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    expect_refusal("requester gone", server.respond::<Ask>(id, &answer("x")).await, UNKNOWN_REQUEST)
}

/// Giving the claim up does not withdraw the right to answer what was asked before.
pub async fn answer_after_unserve(bus: &Bus) -> Result<()> {
    let (server, caller) = (bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("late");
    let mut requests = server.serve::<Ask>(&topic).await?;
    let (reply, checks) = tokio::join!(call(&caller, &topic, "?"), async {
        let (_, id, _) = next_request("asked", &mut requests).await?;
        drop(requests);
        // On one connection the order holds: once this is acknowledged, the Unsrv before it is done.
        server.publish(&topic, &note("sync")).await?;
        let refused = call(&bus.connect().await?, &topic, "again").await;
        expect_refusal("again", refused, &format!("Service not found: {PREFIX}/{topic}"))?;
        server.respond::<Ask>(id, &answer("late")).await.context("responding")
    });
    checks?;
    expect("reply", reply?, answer("late"))
}

/// 1,000 requests at once from four clients, each with its own answer (the original may lock up, as
/// with publications in bulk).
pub async fn concurrent(bus: &Bus) -> Result<()> {
    let topic = bus.topic("concurrent");
    let _serving = echo(bus, &topic).await?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(bus.connect().await?);
    }
    let calls = (0..1000).map(|n| {
        let (client, topic) = (&clients[n % 4], &topic);
        async move { call(client, topic, &n.to_string()).await }
    });
    let replies = within(15, "replies", join_all(calls)).await?;
    let mut seen = HashSet::new();
    for (n, reply) in replies.into_iter().enumerate() {
        expect("reply", reply?, answer(&format!("{n}!")))?;
        seen.insert(n);
    }
    expect("answered", seen.len(), 1000)
}

/// Large texts travel as requests and as answers.
pub async fn large_request(bus: &Bus) -> Result<()> {
    let topic = bus.topic("large");
    let _serving = echo(bus, &topic).await?;
    let text = prose(1 << 20);
    let reply = call(&bus.connect().await?, &topic, &text).await?;
    ensure!(reply.0 == text + "!", "the text came back changed ({} bytes)", reply.0.len());
    Ok(())
}

/// Without an answer the requester is told so after 30 s.
pub async fn request_timeout(bus: &Bus) -> Result<()> {
    let (server, caller) = (bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("silent");
    let mut requests = server.serve::<Ask>(&topic).await?;
    let start = Instant::now();
    let (reply, id) =
        tokio::join!(call(&caller, &topic, "?"), next_request("asked", &mut requests));
    let took = start.elapsed().as_secs_f64();
    expect("reply", reply, Err(BusError::RequestFailedTimeout))?;
    ensure!((29.5..33.0).contains(&took), "after {took:.1} s");
    let late = server.respond::<Ask>(id?.1, &answer("late")).await;
    expect_refusal("late", late, UNKNOWN_REQUEST)
}

/// When the serving client goes, its callers hear of it at once (the original leaves them waiting).
pub async fn vanished_server(bus: &Bus) -> Result<()> {
    let (server, caller) = (bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("vanished");
    let mut requests = server.serve::<Ask>(&topic).await?;
    let calls = join_all((0..3).map(|_| call(&caller, &topic, "?")));
    let (replies, gone) = tokio::join!(within(5, "told", calls), async {
        for _ in 0..3 {
            next_request("asked", &mut requests).await?;
        }
        server.stop().await.context("stopping")
    });
    gone?;
    for reply in replies? {
        expect("reply", reply, Err(BusError::RequestFailedTimeout))?;
    }
    let refused = call(&caller, &topic, "?").await;
    expect_refusal("afterwards", refused, &format!("Service not found: {PREFIX}/{topic}"))
}
