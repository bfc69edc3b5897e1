//! One side of a call whose other side is of another system; the test that started us plays that one.

use std::sync::OnceLock;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use t2_bus::prelude::*;

use crate::bus::Bus;

/// The protocol's prefix, and so the first part of every topic here.
static PREFIX: OnceLock<String> = OnceLock::new();

#[derive(Debug, Deserialize, Serialize)]
struct Echo(String);

impl RequestProtocol for Echo {
    type Rsp = String;

    fn prefix() -> &'static str {
        PREFIX.get().map_or("", String::as_str)
    }
}

/// Answers requests to `NAME/echo` with their text, until it is ended.
pub async fn answer(bus: &Bus, name: &str) -> Result<()> {
    PREFIX.get_or_init(|| name.into());
    let client = bus.connect().await?;
    let mut requests = client.serve::<Echo>("echo").await?;
    println!("ready");
    while let Some((_, id, Echo(text))) = requests.recv().await {
        client.respond::<Echo>(id, &text).await?;
    }
    Ok(())
}

/// Asks a service that answers, one that fails and one that is not there; prints how each request ended.
pub async fn ask(bus: &Bus, name: &str) -> Result<()> {
    PREFIX.get_or_init(|| name.into());
    let mut client = bus.connect().await?;
    // So long that its CBOR is not UTF-8: it crosses wires that carry JSON as the bytes it is.
    let text = "x".repeat(130);
    for topic in ["echo", "fail"] {
        match client.request(topic, &Echo(text.clone())).await {
            Ok(answer) => println!("Ok {}", answer == text),
            Err(error) => println!("{error:?}"),
        }
    }
    // Outside of the prefix, below which a service of another system may answer every name.
    match client.request_bytes(&format!("{name}_nobody/echo"), vec![]).await {
        Ok(_) => println!("Ok"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Requests with payloads that are large and no text, then one that its service does not live to answer; prints how
/// each request ended.
pub async fn more(bus: &Bus, name: &str) -> Result<()> {
    PREFIX.get_or_init(|| name.into());
    let mut client = bus.connect().await?;
    // Over half a mebibyte, of a length whose CBOR is not UTF-8: it crosses wires that carry JSON as it is.
    let text = "x".repeat(512 * 1024 + 128);
    println!("calling");
    match client.request("echo", &Echo(text.clone())).await {
        Ok(answer) => println!("Ok {}", answer == text),
        Err(error) => println!("{error:?}"),
    }
    // In bytes of its own, which no compression makes smaller.
    let mut seed: u32 = 1;
    let noise: Vec<u8> = (0..200_000)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .collect();
    for bytes in [b"\xff\xfe\x00binary\x80".to_vec(), noise] {
        println!("calling");
        match client.request_bytes(&format!("{name}/echo"), bytes.clone()).await {
            Ok(answer) => println!("Ok {}", answer == bytes),
            Err(error) => println!("{error:?}"),
        }
    }
    println!("calling");
    match client.request("hold", &Echo("x".repeat(130))).await {
        Ok(answer) => println!("Ok {answer}"),
        Err(error) => println!("{error:?}"),
    }
    Ok(())
}
