//! Fills the queue of the disk threads, for tests in programs of their own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel_engine::blocking::{self, Class, NotDone, Origin};
use petrel_engine::limits;

/// Starts jobs that end when the gate opens: as many as one file system may run, and as many more as may wait
/// for it. Two file systems fill the queue this way, and occupy all threads that there may be.
pub fn fill_queue(class: Class, gate: &Arc<Mutex<()>>) {
    let begin = |device| {
        let gate = Arc::clone(gate);
        let origin = Origin {
            device,
            is_remote: true,
            ..Origin::default()
        };
        blocking::start(class, origin, move || drop(gate.lock()))
    };
    let devices = [u64::MAX, u64::MAX - 1];
    for device in devices {
        for _ in 0..limits::REMOTE_DEVICE_JOBS_MAX {
            begin(device).expect("nothing waits yet");
        }
    }
    let all = devices.len() * limits::REMOTE_DEVICE_JOBS_MAX;
    let ends = Instant::now() + Duration::from_secs(60);
    while blocking::counts(class).running < all {
        assert!(Instant::now() < ends, "the threads do not start");
        std::thread::yield_now();
    }
    for device in devices {
        while begin(device).is_ok() {}
    }
    assert_eq!(begin(0), Err(NotDone::QueueFull));
}
