//! The counters `server.io.…`: how files were looked up, which backend has read them, and which jobs wait.
//!
//! This file makes the names; other files have the counts. A file that a worker has in memory is not counted.
//! mod_status and scripts call this.

use crate::blocking::{self, Class, Counts, DeviceLoad};
use crate::file_accounts::{FileAccounts, IoCounts, NetworkBackend};
use crate::mounts::DeviceNumber;
use crate::shared::Shared;
use crate::worker::Worker;

/// The prefix of all names.
pub const PREFIX: &str = "server.io.";

/// All counters, in no order, as `worker` sees them. What other workers have read themselves may be a second
/// old. A file system is listed while it has work.
pub fn read(worker: &Worker) -> Vec<(String, u64)> {
    worker.publish_counts();
    read_shared(worker.shared())
}

/// All counters, as workers have published them in the last second.
pub fn read_shared(shared: &Shared) -> Vec<(String, u64)> {
    let accounts = shared.accounts();
    let mut all = Vec::new();
    let mut add = |name: std::fmt::Arguments<'_>, count: u64| {
        all.push((format!("{PREFIX}{name}"), count));
    };
    of_look_ups(shared, &mut add);
    for backend in NetworkBackend::ALL {
        let counts = accounts.io_counts(backend);
        for name in std::iter::once(backend.name()).chain(short_name(backend)) {
            of_backend(name, counts, &mut add);
            if backend.reads_by_queue() {
                of_work(name, accounts.queue_counts(backend), &mut add);
            }
        }
    }
    for class in Class::ALL {
        of_class(class, &mut add);
    }
    for load in device_loads(accounts) {
        let device = DeviceNumber(load.device);
        add(
            format_args!("device.{device}.in-flight"),
            load.running as u64,
        );
        add(format_args!("device.{device}.queued"), load.waiting as u64);
    }
    add(
        format_args!("memory-bytes"),
        accounts.memory_in_use() as u64,
    );
    all
}

/// The file systems that have jobs now, with their numbers as in mountinfo: `8:1`.
pub fn devices(shared: &Shared) -> Vec<(String, DeviceLoad)> {
    let loads = device_loads(shared.accounts()).into_iter();
    loads
        .map(|load| (DeviceNumber(load.device).to_string(), load))
        .collect()
}

/// The counter `name`. `None`: there is no such counter, or it belongs to a file system without work.
pub fn one(worker: &Worker, name: &str) -> Option<u64> {
    let mut all = read(worker).into_iter();
    all.find_map(|(known, count)| (known == name).then_some(count))
}

type Add<'a> = &'a mut dyn FnMut(std::fmt::Arguments<'_>, u64);

fn of_look_ups(shared: &Shared, add: Add<'_>) {
    let found = shared.contents().look_ups();
    add(format_args!("lookup.cached"), found.cached);
    add(format_args!("lookup.disk"), found.disk);
    add(
        format_args!("lookup.hot-per-mille"),
        per_mille_hot(shared.requests(), found.disk),
    );
}

/// How many of a thousand requests, at least, did not read from the disk. A request can read several times,
/// so this is a lower bound.
fn per_mille_hot(requests: u64, asked: u64) -> u64 {
    let hot = u128::from(requests.saturating_sub(asked)) * 1000;
    let per_mille = hot.checked_div(requests.into()).unwrap_or(1000);
    u64::try_from(per_mille).unwrap_or(1000)
}

fn of_backend(name: &str, counts: IoCounts, add: Add<'_>) {
    add(format_args!("{name}.async-read"), counts.async_reads);
    add(format_args!("{name}.sync-read"), counts.sync_reads);
    add(format_args!("{name}.async-bytes"), counts.async_bytes);
    add(format_args!("{name}.sync-bytes"), counts.sync_bytes);
}

fn of_class(class: Class, add: Add<'_>) {
    let name = class.name();
    let counts = blocking::counts(class);
    of_work(name, counts, add);
    for (what, count) in [
        ("refused", counts.refused),
        ("stuck", counts.stuck as u64),
        ("threads", counts.threads as u64),
    ] {
        add(format_args!("{name}.{what}"), count);
    }
}

/// Counters that threads and queues have in common.
fn of_work(name: &str, counts: Counts, add: Add<'_>) {
    for (what, count) in [
        ("jobs", counts.jobs),
        ("queued", counts.queued as u64),
        ("running", counts.running as u64),
        ("wait-us", counts.wait_us),
        ("wait-us-mean", counts.wait_us_mean()),
        ("wait-us-max", counts.wait_us_max),
        ("run-us", counts.run_us),
        ("run-us-mean", counts.run_us_mean()),
        ("run-us-max", counts.run_us_max),
    ] {
        add(format_args!("{name}.{what}"), count);
    }
}

/// The jobs of threads and queues on each file system, added up.
fn device_loads(accounts: &FileAccounts) -> Vec<DeviceLoad> {
    let mut all = blocking::device_loads();
    for load in accounts.queue_loads() {
        match all.iter_mut().find(|known| known.device == load.device) {
            Some(known) => {
                known.running += load.running;
                known.waiting += load.waiting;
            }
            None => all.push(load),
        }
    }
    all
}

/// lighttpd 1.5 used the name `linux-aio` for `linux-aio-sendfile`.
fn short_name(backend: NetworkBackend) -> Option<&'static str> {
    (backend.name() == "linux-aio-sendfile").then_some("linux-aio")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::{Origin, run_for};
    use crate::testing::Site;

    #[tokio::test(flavor = "local")]
    async fn a_job_is_seen_while_it_runs_and_afterwards() {
        let site = Site::new("", &[]);
        let worker = site.worker();
        let jobs = || one(worker, "server.io.read.jobs").expect("it is there");
        let device = "server.io.device.4095:77.in-flight";
        let before = jobs();
        assert_eq!(one(worker, device), None);
        let origin = Origin {
            device: 4095 << 32 | 77,
            ..Origin::default()
        };
        let (looked, has_looked) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let running = run_for(Class::Read, origin, move || {
            begun.send(()).expect("it is waited for");
            // `recv` fails when the other end is dropped.
            assert!(has_looked.recv().is_err());
        });
        has_begun.await.expect("it has begun");
        assert_eq!(one(worker, device), Some(1));
        assert_eq!(one(worker, "server.io.device.4095:77.queued"), Some(0));
        drop(looked);
        running.await.expect("it ran");
        // The thread counts the job after it has sent the result.
        for _ in 0..12_000 {
            if jobs() > before && one(worker, device).is_none() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("{:?}", read(worker));
    }

    #[test]
    fn every_name_is_there_once() {
        let site = Site::new("", &[]);
        let all = read(site.worker()).into_iter();
        let mut names: Vec<String> = all.map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in [
            "auto.async-read",
            "gthread-aio.sync-bytes",
            "stat.wait-us-max",
            "lookup.disk",
            "io_uring.run-us-mean",
            "linux-aio.queued",
        ] {
            assert!(names.contains(&format!("{PREFIX}{name}")), "{name}");
        }
    }

    #[test]
    fn the_share_of_hot_requests_is_a_lower_bound() {
        assert_eq!(per_mille_hot(0, 0), 1000);
        assert_eq!(per_mille_hot(1000, 3), 997);
        assert_eq!(per_mille_hot(10, 20), 0);
        assert_eq!(per_mille_hot(u64::MAX, 0), 1000);
    }
}
