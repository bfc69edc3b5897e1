//! One side of a call whose other side is of another system; the test that started us plays that one.

use crate::link::{caller, one, serve};
use anyhow::Result;
use futures::future;
use ya_service_bus::Error;

/// Answers `NAME/echo` with what it got and `NAME/fail` with a failure, until it is ended.
pub async fn answer(name: &str) -> Result<()> {
    let service = serve(|request| {
        if request.address.ends_with("/fail") {
            one(Err(Error::GsbFailure("the till is empty".into())))
        } else {
            one(Ok(request.data))
        }
    });
    let service = service.await?;
    service.bind(name).await?;
    println!("ready");
    future::pending().await
}

/// Calls a service that answers, one that fails and one that is not there; prints how each call ended.
pub async fn ask(name: &str) -> Result<()> {
    let caller = caller().await?;
    let nobody = format!("{name}_nobody/echo");
    for address in [format!("{name}/echo"), format!("{name}/fail"), nobody] {
        let reply = caller.call("me", &address, br#""hello""#.to_vec(), false);
        match reply.await {
            Ok(data) => println!("OK {}", String::from_utf8_lossy(&data)),
            Err(Error::GsbFailure(text)) => println!("500 {text}"),
            Err(Error::GsbBadRequest(text)) => println!("400 {text}"),
            Err(other) => println!("? {other:?}"),
        }
    }
    Ok(())
}

/// Calls with payloads that are large, too large for some and no text, then one that its service does not live to
/// answer; prints how each call ended.
pub async fn more(name: &str) -> Result<()> {
    let caller = caller().await?;
    let text = |size: usize| format!("\"{}\"", "x".repeat(size - 2)).into_bytes();
    let bytes = b"\xff\xfe\x00binary\x80".to_vec();
    let calls = [
        ("echo", text(512 * 1024)),
        ("echo", bytes),
        ("echo", text(1_100_000)),
        ("hold", text(8)),
    ];
    for (method, payload) in calls {
        println!("calling");
        let address = format!("{name}/{method}");
        let reply = caller.call("me", &address, payload.clone(), false);
        match reply.await {
            Ok(data) => println!("OK {}", data == payload),
            Err(Error::GsbFailure(text)) => println!("500 {text}"),
            Err(Error::GsbBadRequest(text)) => println!("400 {text}"),
            Err(other) => println!("? {other:?}"),
        }
    }
    Ok(())
}
