//! The published T2 client, driven through named scenarios against a server that is already running.
//!
//!     t2-peer tcp:127.0.0.1:4242 SCENARIO...     one line per scenario, exit code 1 when any failed
//!     t2-peer --list                             every scenario with what it needs
//!     t2-peer tcp:127.0.0.1:4242 answer|ask|more NAME one side of a call between systems
//!
//! Each run puts its own process number into its topics, so any number of runs may share one server.

mod bridge;
mod bus;
mod publications;
mod requests;
mod server;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Result};
use futures::future::LocalBoxFuture;
use futures::FutureExt;

use bus::Bus;

/// What a scenario asks of the server beyond ordinary traffic.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    Nothing,
    /// Half a minute or more of patience.
    Time,
    /// A server that survives what ends the original one.
    Polybus,
    /// A server of its own, because the scenario stops it or finds that it must not.
    OwnServer,
}

type Run = for<'a> fn(&'a Bus) -> LocalBoxFuture<'a, Result<()>>;

macro_rules! scenarios {
    ($($room:ident: $($name:ident $needs:ident),+;)+) => {
        const SCENARIOS: &[(&str, Needs, Run)] = &[
            $($((stringify!($name), Needs::$needs, |bus| $room::$name(bus).boxed_local())),+),+
        ];
    };
}

scenarios! {
    publications:
        publish Nothing, wildcards Nothing, recipients Nothing, one_copy Nothing, own_messages Nothing,
        unsubscribe Nothing, typed_prefix Nothing, invalid_topic Nothing, order Nothing, order_in_bulk Polybus,
        noise_payload Nothing, text_payload Nothing, kill_topics Polybus, deep_wildcards Polybus;
    requests:
        request Nothing, exclusive Nothing, no_service Nothing, request_ids Nothing,
        answer_after_unserve Nothing, concurrent Polybus, large_request Nothing,
        request_timeout Time, vanished_server Polybus;
    server:
        disconnect Nothing, idle Time, stop OwnServer, stop_refused OwnServer;
}

const PATIENCE: Duration = Duration::from_secs(20);
const LONG_PATIENCE: Duration = Duration::from_secs(120);

async fn run(bus: &Bus, name: &str) -> Result<()> {
    let Some((_, needs, scenario)) = SCENARIOS.iter().find(|(known, ..)| *known == name) else {
        bail!("no such scenario");
    };
    let patience = if *needs == Needs::Time { LONG_PATIENCE } else { PATIENCE };
    // The client library panics on answers it did not expect; that is a finding, not the end of the run.
    match tokio::time::timeout(patience, AssertUnwindSafe(scenario(bus)).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(anyhow!("panicked, see above")),
        Err(_) => Err(anyhow!("not done after {patience:?}")),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--list"] {
        for (name, needs, _) in SCENARIOS {
            let needs = match needs {
                Needs::Nothing => "nothing",
                Needs::Time => "time",
                Needs::Polybus => "polybus",
                Needs::OwnServer => "own-server",
            };
            println!("{name} {needs}");
        }
        return ExitCode::SUCCESS;
    }
    let Some(bus) = arguments.first().and_then(|address| Bus::at(address)) else {
        eprintln!("usage: t2-peer (tcp:HOST:PORT | unix:PATH) SCENARIO... | --list");
        return ExitCode::from(2);
    };
    let role = match (arguments.get(1).map(String::as_str), arguments.get(2)) {
        (Some("answer"), Some(name)) => Some(bridge::answer(&bus, name).await),
        (Some("ask"), Some(name)) => Some(bridge::ask(&bus, name).await),
        (Some("more"), Some(name)) => Some(bridge::more(&bus, name).await),
        _ => None,
    };
    if let Some(outcome) = role {
        return outcome.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for name in &arguments[1..] {
        let start = Instant::now();
        match run(&bus, name).await {
            Ok(()) => println!("ok {name} {} ms", start.elapsed().as_millis()),
            Err(error) => {
                println!("FAIL {name}: {error:#}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
