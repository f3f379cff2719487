//! A queue of the disk threads that is full, for tests in programs of their own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel_engine::blocking::{self, Class, NotDone, Origin};
use petrel_engine::limits;

/// Jobs that end when the gate opens: as many as one file system may run, and behind them as many as may wait.
/// Two file systems fill the queue between them, and no thread that there may be has anything else to do.
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
