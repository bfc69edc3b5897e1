//! Connections and the life of the bus: leaving, idling, stopping.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use tokio::time::sleep;

use crate::bus::*;

/// A client that goes takes its subscriptions and claims along.
pub async fn disconnect(bus: &Bus) -> Result<()> {
    let (leaving, staying) = (bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("disconnect");
    let _feed = leaving.subscribe::<Note>(&topic).await?;
    let _requests = leaving.serve::<Ask>(&topic).await?;
    expect("before", staying.publish(&topic, &note("x")).await?, 1)?;
    leaving.stop().await.context("stopping the client")?;
    eventually("unsubscribed", || async {
        expect("after", staying.publish(&topic, &note("x")).await?, 0)
    })
    .await?;
    staying.serve::<Ask>(&topic).await.context("claiming what was left")?;
    Ok(())
}

/// 95 s without a word but keep-alives: past the idle limit of 90 s the connection still works.
pub async fn idle(bus: &Bus) -> Result<()> {
    let quiet = bus.connect().await?;
    let mut feed = quiet.subscribe::<Note>(&bus.topic("idle")).await?;
    sleep(Duration::from_secs(95)).await;
    let writer = bus.connect().await?;
    expect("still subscribed", writer.publish(&bus.topic("idle"), &note("awake")).await?, 1)?;
    // A run beside this one may have published to everybody.
    while next("idle", &mut feed).await?.1 != note("awake") {}
    expect("still writing", quiet.publish(&bus.topic("idle"), &note("me too")).await?, 1)
}

/// A Stop is acknowledged, and then every connection ends.
pub async fn stop(bus: &Bus) -> Result<()> {
    let (mut stopping, bystander) = (bus.connect().await?, bus.connect().await?);
    let mut feed = bystander.subscribe::<Note>(&bus.topic("stop")).await?;
    // The original loses the Ack when the library's first keep-alive comes right behind the Stop.
    sleep(Duration::from_millis(200)).await;
    stopping.stop_bus().await.context("stopping the bus")?;
    let ended = within(5, "the end", feed.recv()).await?;
    ensure!(ended.is_none(), "a message in place of the end");
    Ok(())
}

/// A bus that refuses to be stopped says why, and both it and the client that asked go on.
pub async fn stop_refused(bus: &Bus) -> Result<()> {
    let (mut stopping, bystander) = (bus.connect().await?, bus.connect().await?);
    let mut feed = bystander.subscribe::<Note>(&bus.topic("stop")).await?;
    let refused = stopping.stop_bus().await;
    expect_refusal("stopping", refused, "Request failed: this client may not stop the bus")?;
    expect("still here", stopping.publish(&bus.topic("stop"), &note("x")).await?, 1)?;
    expect("delivered", next("delivered", &mut feed).await?.1, note("x"))
}
