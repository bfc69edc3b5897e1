//! The published Golem Service Bus client, one scenario per run, against the router at `GSB_URL`.
//!
//! `gsb-peer SCENARIO` prints `ok SCENARIO` and exits 0, or `failed SCENARIO: reason` and exits 1;
//! a scenario that hangs fails after `LIMIT`. `gsb-peer list` prints one line per scenario: its
//! group and its name. The group `raw` holds its own connections, so it also runs over TLS
//! (`tls://host:port#certificate-hash`); `bus` is the process-wide client, which knows TCP and Unix.
//! `gsb-peer answer NAME` and `gsb-peer ask NAME` are one side of a call between systems.

mod bridge;
mod bus;
mod link;
mod raw;

use anyhow::{bail, Context, Result};
use futures::future::{FutureExt, LocalBoxFuture};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Far beyond what any scenario needs on a busy two-core machine; only a hang reaches it.
const LIMIT: Duration = Duration::from_secs(60);

type Scenario = fn() -> LocalBoxFuture<'static, Result<()>>;

macro_rules! scenarios {
    ($($group:ident: $($name:ident)+;)+) => {
        const SCENARIOS: &[(&str, &str, Scenario)] =
            &[$($((stringify!($group), stringify!($name), || $group::$name().boxed_local())),+),+];
    };
}

scenarios! {
    raw: calls names errors streaming prefixes broadcast large concurrent push takeover idle
         service_drop many_callers broadcast_burst;
    bus: typed typed_streaming typed_errors typed_push untyped typed_large typed_concurrent
         reconnect;
}

/// Names are unique per run, so that runs can share a router.
fn unique(name: &str) -> String {
    format!("/peer/{}/{name}", std::process::id())
}

/// A second process of this program: the other party of a scenario. It ends with this value.
struct Helper(Child);

impl Helper {
    fn start(role: &str, name: &str) -> Result<Self> {
        let program = std::env::current_exe()?;
        let child = Command::new(program)
            .args([role, name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Ok(Helper(child.context("cannot start a second process")?))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn run(scenario: &str, name: Option<&str>) -> Result<()> {
    match (scenario, name) {
        ("serve", Some(name)) => return bus::serve(name).await,
        ("hang", Some(name)) => return raw::hang(name).await,
        ("answer", Some(name)) => return bridge::answer(name).await,
        ("ask", Some(name)) => return bridge::ask(name).await,
        ("more", Some(name)) => return bridge::more(name).await,
        _ => {}
    }
    let Some((_, _, start)) = SCENARIOS.iter().find(|(_, name, _)| *name == scenario) else {
        bail!("no such scenario")
    };
    tokio::time::timeout(LIMIT, start())
        .await
        .with_context(|| format!("no end within {LIMIT:?}"))?
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(scenario) = arguments.first() else {
        eprintln!("usage: gsb-peer list | SCENARIO");
        return ExitCode::from(2);
    };
    if scenario == "list" {
        SCENARIOS
            .iter()
            .for_each(|(group, name, _)| println!("{group} {name}"));
        return ExitCode::SUCCESS;
    }
    match actix::System::new().block_on(run(scenario, arguments.get(1).map(String::as_str))) {
        Ok(()) => {
            println!("ok {scenario}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("failed {scenario}: {reason:#}");
            ExitCode::FAILURE
        }
    }
}
