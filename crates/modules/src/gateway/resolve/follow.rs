//! The thread behind a [`super::Resolver`]: when each name is looked up again.

use std::io;
use std::time::Duration;

use petrel_engine::log::LogHandle;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time;

use super::lookup::{LookupAnswer, NameClient, NameServers};
use super::{Resolved, Watch};
use crate::gateway::options::HostAddress;

/// How often names are looked up.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The shortest time for which an answer is used, even if its TTL is shorter.
    pub(crate) ttl_min: Duration,
    /// The longest time. An administrator who lowers a TTL before a move should not have to wait for days.
    pub(crate) ttl_max: Duration,
    /// The pause after the first failure. It doubles with each failure in a row.
    pub(crate) retry_min: Duration,
    /// The longest pause after failures.
    pub(crate) retry_max: Duration,
    /// The time for one look-up with all its queries.
    pub(crate) lookup_max: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(3600),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(60),
            lookup_max: Duration::from_secs(15),
        }
    }
}

impl Pace {
    fn pause_after_answer(&self, ttl: Duration) -> Duration {
        ttl.clamp(self.ttl_min, self.ttl_max)
    }

    /// `failures` is at least 1.
    fn pause_after_failures(&self, failures: u32) -> Duration {
        let doubled = 1u32 << (failures - 1).min(16);
        self.retry_min.saturating_mul(doubled).min(self.retry_max)
    }
}

/// A runtime for one thread.
pub(super) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Follows every name that arrives, until the sender is dropped.
pub(super) async fn follow_all(
    mut watches: UnboundedReceiver<Watch>,
    servers: NameServers,
    pace: Pace,
    log: LogHandle,
) {
    let client = servers.client();
    while let Some(watch) = watches.recv().await {
        tokio::spawn(follow(watch, client.clone(), pace, log.clone()));
    }
}

/// Looks a name up again and again, until no worker uses its addresses any more.
async fn follow(watch: Watch, client: NameClient, pace: Pace, log: LogHandle) {
    let mut failures: u32 = 0;
    loop {
        let answer = look_up_in_time(&client, &watch.address, pace.lookup_max).await;
        let Some(resolved) = watch.resolved.upgrade() else {
            return;
        };
        let pause = match answer {
            Ok(answer) => {
                if failures > 0 {
                    let name = name(&watch.address);
                    log.error(format_args!(
                        "the name {name} of a backend can be resolved again"
                    ));
                }
                failures = 0;
                let pause = pace.pause_after_answer(answer.ttl);
                resolved.publish(answer.endpoints);
                pause
            }
            Err(reason) => {
                if failures == 0 {
                    tell_failure(&log, &watch.address, &reason, &resolved);
                }
                resolved.answered();
                failures = failures.saturating_add(1);
                pace.pause_after_failures(failures)
            }
        };
        drop(resolved);
        time::sleep(pause).await;
    }
}

/// Makes one look-up. An error is a sentence about what went wrong.
pub(super) async fn look_up_in_time(
    client: &NameClient,
    address: &HostAddress,
    limit: Duration,
) -> Result<LookupAnswer, String> {
    match time::timeout(limit, client.look_up(address)).await {
        Ok(answer) => answer,
        Err(_) => Err("no name server answered in time".to_owned()),
    }
}

fn tell_failure(log: &LogHandle, address: &HostAddress, reason: &str, resolved: &Resolved) {
    let consequence = if resolved.current().is_empty() {
        "requests to it are answered 503 until it can"
    } else {
        "its last addresses stay in use"
    };
    let name = name(address);
    log.error(format_args!(
        "the name {name} of a backend cannot be resolved: {reason}; {consequence}"
    ));
}

fn name(address: &HostAddress) -> &str {
    match address {
        HostAddress::Tcp(name, _) | HostAddress::Srv(name) => name,
        HostAddress::Unix(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_are_kept_within_limits() {
        let pace = Pace::default();
        let pauses = [0, 1, 30, 3600, 3601, 604_800].map(|seconds| {
            pace.pause_after_answer(Duration::from_secs(seconds))
                .as_secs()
        });
        assert_eq!(pauses, [1, 1, 30, 3600, 3600, 3600]);
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let pace = Pace::default();
        let pauses = [1, 2, 3, 6, 7, 8, 1000, u32::MAX]
            .map(|failures| pace.pause_after_failures(failures).as_secs());
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60, 60]);
    }
}
