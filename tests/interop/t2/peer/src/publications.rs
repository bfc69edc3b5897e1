//! Publish and subscribe: matching, counting, copies, order, payloads.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use futures::future::join_all;
#[cfg(feature = "streams")]
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use t2_bus::prelude::*;

use crate::bus::*;

/// A publication arrives once, with its full topic, through `recv()` and, where there is one, the stream.
pub async fn publish(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let mut feed = reader.subscribe::<Note>(&bus.topic("publish")).await?;
    expect("first", writer.publish(&bus.topic("publish"), &note("one")).await?, 1)?;
    expect("second", writer.publish(&bus.topic("publish"), &note("two")).await?, 1)?;
    let topic = bus.wire_topic("publish");
    expect("recv", next("first", &mut feed).await?, (topic.clone(), note("one")))?;
    #[cfg(feature = "streams")]
    let second = within(5, "second", feed.next()).await?;
    #[cfg(not(feature = "streams"))]
    let second = Some(next("second", &mut feed).await?);
    expect("the next one", second, Some((topic, note("two"))))
}

/// Wildcards on either side, the surprising rows of the truth table (protocol page §5) included.
pub async fn wildcards(bus: &Bus) -> Result<()> {
    const PAIRS: &[(&str, &str, bool)] = &[
        ("a", "a", true),
        ("a", "a/b", false),
        ("*", "a", true),
        ("*", "a/b", false),
        ("a/*", "a/b", true),
        ("**", "a/b/a", true),
        ("a/**", "a", false),
        ("a/**", "a/b/a", true),
        ("**/a", "b/b/a", true),
        ("a/**/b", "a/b", false),
        ("a/**/b", "a/a/b", true),
        ("**/*", "a/b", false),
        ("**/*", "a/*", true),
        ("**/**", "a/b", false),
        ("a/b", "a/*", true),
        ("a/b", "*/b", true),
        ("a/b", "*", false),
        ("**", "*", true),
        ("**", "*/a", false),
        ("a", "a/**", true),
        ("a/b/a", "a/**", true),
        ("b", "a/**", false),
        ("a/b", "**/b", true),
        ("a", "**/*", true),
        ("a/**", "a/**", true),
        ("**/a", "**/b", false),
        ("a_1/2", "a_1/*", true),
    ];
    let writer = bus.connect().await?;
    for (index, (pattern, topic, matches)) in PAIRS.iter().enumerate() {
        // A fragment of its own keeps the pairs apart and takes no part in the matching.
        let own = |rest: &str| bus.topic(&format!("wild{index}/{rest}"));
        let reader = bus.connect().await?;
        let mut feed = reader.subscribe::<Note>(&own(pattern)).await?;
        let what = format!("{pattern} subscribed, {topic} published");
        let count = writer.publish(&own(topic), &note(topic)).await?;
        expect(&what, count, usize::from(*matches))?;
        if *matches {
            let received = next(&what, &mut feed).await?;
            expect(&what, received, (format!("{PREFIX}/{}", own(topic)), note(topic)))?;
        }
    }
    Ok(())
}

/// The count is of connections, zero included.
pub async fn recipients(bus: &Bus) -> Result<()> {
    let topic = bus.topic("recipients");
    let writer = bus.connect().await?;
    expect("nobody", writer.publish(&topic, &note("x")).await?, 0)?;
    let mut readers = Vec::new();
    for count in 1..=5 {
        let reader = bus.connect().await?;
        let feed = reader.subscribe::<Note>(&topic).await?;
        readers.push((reader, feed));
        expect("subscribed", writer.publish(&topic, &note(&count.to_string())).await?, count)?;
    }
    for (first, (_, feed)) in readers.iter_mut().enumerate() {
        for count in first + 1..=5 {
            expect("copy", next("copy", feed).await?.1, note(&count.to_string()))?;
        }
    }
    Ok(())
}

/// Several matching subscriptions of one connection are one recipient and one copy.
pub async fn one_copy(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let mut feeds = Vec::new();
    for pattern in ["copy/a", "copy/*", "copy/**"] {
        feeds.push(reader.subscribe::<Note>(&bus.topic(pattern)).await?);
    }
    for text in ["one", "two", "end"] {
        expect("recipients", writer.publish(&bus.topic("copy/a"), &note(text)).await?, 1)?;
    }
    for feed in &mut feeds {
        // A second copy of "one" would show up here in place of "two".
        for text in ["one", "two", "end"] {
            expect("copy", next("copy", feed).await?.1, note(text))?;
        }
    }
    Ok(())
}

/// A publisher that subscribed gets its own messages.
pub async fn own_messages(bus: &Bus) -> Result<()> {
    let client = bus.connect().await?;
    let mut feed = client.subscribe::<Note>(&bus.topic("own/*")).await?;
    expect("recipients", client.publish(&bus.topic("own/a"), &note("mine")).await?, 1)?;
    expect("own", next("own", &mut feed).await?, (bus.wire_topic("own/a"), note("mine")))
}

/// A dropped subscription ends on the server as well, and only that one.
pub async fn unsubscribe(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let gone = reader.subscribe::<Note>(&bus.topic("leave/*")).await?;
    let mut kept = reader.subscribe::<Note>(&bus.topic("stay")).await?;
    expect("before", writer.publish(&bus.topic("leave/a"), &note("x")).await?, 1)?;
    drop(gone);
    eventually("after", || async {
        expect("left", writer.publish(&bus.topic("leave/a"), &note("x")).await?, 0)
    })
    .await?;
    expect("kept", writer.publish(&bus.topic("stay"), &note("still")).await?, 1)?;
    expect("kept", next("kept", &mut kept).await?.1, note("still"))
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
enum Quote {
    Price { pair: (String, String), bid: f64, ask: Option<f32>, depth: Vec<u64> },
    Halted,
}

impl PublishProtocol for Quote {
    fn prefix() -> &'static str {
        "interop_quote/v1"
    }
}

/// A typed protocol is a prefix: empty topics are the prefix itself, and raw readers see all of it.
pub async fn typed_prefix(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let topic = bus.topic("eth");
    let mut typed = reader.subscribe::<Quote>(&topic).await?;
    let mut raw = reader.subscribe_bytes(&format!("interop_quote/*/{topic}")).await?;
    let mut notes = reader.subscribe::<Note>(&topic).await?;
    let quote = Quote::Price {
        pair: ("eth".into(), "eur".into()),
        bid: 1.0e-300,
        ask: Some(f32::MAX),
        depth: vec![0, 23, 24, 255, 256, 65_536, u64::MAX],
    };
    for value in [&quote, &Quote::Halted] {
        expect("recipients", writer.publish(&topic, value).await?, 1)?;
        let (wire, got) = next("typed", &mut typed).await?;
        expect("typed", (wire.as_str(), &got), (&*format!("interop_quote/v1/{topic}"), value))?;
        let seen = next("raw", &mut raw).await?;
        let bytes: Vec<u8> = seen.payload.into();
        expect("raw", bytes, t2_bus::transport::cbor_codec::ser(value)?.to_vec())?;
    }
    expect("other protocol", writer.publish(&topic, &note("sentinel")).await?, 1)?;
    expect("other protocol", next("notes", &mut notes).await?.1, note("sentinel"))?;

    let mut root = reader.subscribe::<Quote>("").await?;
    ensure!(writer.publish("", &Quote::Halted).await? >= 1, "empty topic: nobody");
    expect("empty topic", next("root", &mut root).await?.0, "interop_quote/v1".into())
}

/// A topic outside the grammar is refused in the library's words and costs nothing else.
pub async fn invalid_topic(bus: &Bus) -> Result<()> {
    let client = bus.connect().await?;
    for topic in ["Capital", "a//b", "/a", "a/", "", "a-b", "a*", "***", "ä", "a\n"] {
        let wanted = format!("Invalid topic string: Invalid topic string: {topic}");
        expect_refusal(topic, client.publish_bytes(topic, vec![1]).await, &wanted)?;
    }
    expect("still there", client.publish(&bus.topic("valid"), &note("x")).await?, 0)
}

/// 10,000 publications arrive in the order they were sent, at an exact and at a wildcard reader.
async fn in_order(bus: &Bus, topic: &str, in_flight: usize) -> Result<()> {
    const COUNT: usize = 10_000;
    let (writer, exact, wild) = (bus.connect().await?, bus.connect().await?, bus.connect().await?);
    let mut exact_feed = exact.subscribe_bytes(&bus.wire_topic(topic)).await?;
    let mut wild_feed = wild.subscribe_bytes(&bus.wire_topic(&topic.replace("all", "*"))).await?;
    let topic = bus.wire_topic(topic);
    for first in (0..COUNT).step_by(in_flight) {
        let numbers = (first..first + in_flight).map(|n| n.to_string().into_bytes());
        let counts = join_all(numbers.map(|data| writer.publish_bytes(&topic, data))).await;
        for count in counts {
            expect("recipients", count?, 2)?;
        }
    }
    for feed in [&mut exact_feed, &mut wild_feed] {
        for n in 0..COUNT {
            let data: Vec<u8> = next("in order", feed).await?.payload.into();
            expect("in order", String::from_utf8(data)?, n.to_string())?;
        }
    }
    Ok(())
}

pub async fn order(bus: &Bus) -> Result<()> {
    in_order(bus, "order/all", 100).await
}

/// The library does not read while it cannot write, and neither does the original server: past what
/// the socket buffers hold they wait for each other.
pub async fn order_in_bulk(bus: &Bus) -> Result<()> {
    in_order(bus, "bulk/all", 2_500).await
}

/// 512,000 incompressible bytes: close to the most that fits one frame.
pub async fn noise_payload(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let mut feed = reader.subscribe_bytes(&bus.wire_topic("noise")).await?;
    let sent = noise(512_000);
    for _ in 0..2 {
        expect(
            "recipients",
            writer.publish_bytes(&bus.wire_topic("noise"), sent.clone()).await?,
            1,
        )?;
        let got: Vec<u8> = next("noise", &mut feed).await?.payload.into();
        ensure!(got == sent, "the noise came back changed ({} bytes)", got.len());
    }
    Ok(())
}

/// 1 MiB of text, which the library compresses.
pub async fn text_payload(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let mut feed = reader.subscribe::<Note>(&bus.topic("text")).await?;
    let sent = Note(prose(1 << 20));
    expect("recipients", writer.publish(&bus.topic("text"), &sent).await?, 1)?;
    let (_, got) = next("text", &mut feed).await?;
    ensure!(got == sent, "the text came back changed ({} bytes)", got.0.len());
    Ok(())
}

/// Publications that end the original server (protocol page §9) are ordinary ones.
pub async fn kill_topics(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let mut feed = reader.subscribe_bytes("bus/kill").await?;
    let data = t2_bus::transport::cbor_codec::ser(&note("to all"))?.to_vec();
    for topic in ["bus/kill", "bus/*", "*/*", "*/kill", "bus/**", "**/kill", "**"] {
        // Other runs may subscribe to something that these reach as well, so it is a proper note.
        ensure!(writer.publish_bytes(topic, data.clone()).await? >= 1, "{topic}: nobody");
        loop {
            // ... and send such topics themselves.
            if next(topic, &mut feed).await?.topic == topic {
                break;
            }
        }
    }
    expect("still there", bus.connect().await?.publish(&bus.topic("kill"), &note("x")).await?, 0)
}

/// Ten published `**` against a subscription of twenty fragments must not occupy the bus. They miss it
/// at the very end: a match would keep the receiving library busy, which searches like the original.
pub async fn deep_wildcards(bus: &Bus) -> Result<()> {
    let (reader, writer) = (bus.connect().await?, bus.connect().await?);
    let _feed = reader.subscribe::<Note>(&bus.topic(&["deep"; 20].join("/"))).await?;
    let start = Instant::now();
    let topic = bus.topic(&format!("{}/end", ["**"; 10].join("/")));
    expect("recipients", writer.publish(&topic, &note("x")).await?, 0)?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(1), "took {took:?}");
    Ok(())
}
