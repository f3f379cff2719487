//! What was counted of files: how they were looked up, by whom they were read, what waits for what.
//!
//! The names are made here, all of them `server.io.…`; the counts are kept by whoever counts. Nothing is
//! counted for a file that a worker has in memory. Called when somebody looks: mod_status and scripts.

use crate::blocking::{self, Class, Counts, DeviceLoad};
use crate::file_accounts::{FileAccounts, IoCounts, NetworkBackend};
use crate::mounts::DeviceNumber;
use crate::shared::Shared;
use crate::worker::Worker;

/// What all names begin with.
pub const PREFIX: &str = "server.io.";

/// All of them, in no order, as `worker` sees them: what others have read themselves may be a second old. File systems
/// are among them as long as there is work for them.
pub fn read(worker: &Worker) -> Vec<(String, u64)> {
    worker.publish_counts();
    let shared = worker.shared();
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

/// The count called `name`. `None`: there is none of that name, or it is a file system without work.
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

/// Of a thousand requests so many, at least, have not asked the disk: one can ask more than once.
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

/// What threads and queues have in common.
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

/// What threads and queues do for each file system.
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

/// lighttpd 1.5 counted `linux-aio-sendfile` as `linux-aio`.
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
            // An error: the other end has gone.
            assert!(has_looked.recv().is_err());
        });
        has_begun.await.expect("it has begun");
        assert_eq!(one(worker, device), Some(1));
        assert_eq!(one(worker, "server.io.device.4095:77.queued"), Some(0));
        drop(looked);
        running.await.expect("it ran");
        // The thread counts after it has told the result.
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
