//! A file system that hangs keeps no bytes of requests that are gone. A program of its own, because the test
//! measures the memory and uses the threads of the whole process.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::body::Spool;
use petrel_engine::limits;

/// How many clients come and go.
const CLIENTS: usize = 300;

/// How much memory a few of them may take at a time.
const KEPT_BYTES_MAX: usize = CLIENTS * limits::SPOOL_LARGE_BYTES_MAX / 4;

#[tokio::test(flavor = "local")]
async fn what_the_clients_that_have_gone_wanted_to_write_is_not_kept() {
    let directory = std::env::temp_dir();
    let (open, is_open) = mpsc::channel::<()>();
    let much = Origin::of_path(&directory).with_bytes(limits::DEVICE_BYTES_MAX);
    // This job uses the capacity of the file system, and does not end.
    let hangs = blocking::run(much, move || is_open.recv());
    while blocking::counts(Class::Write).running == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    let before = resident();
    let directories = [directory.clone()];
    let bytes = vec![1; limits::SPOOL_LARGE_BYTES_MAX];
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..CLIENTS {
        let mut spool = Spool::default();
        spool.push(&bytes, &directories, 0);
        spool.push(b"more", &directories, 0);
        assert!(spool.poll_written(&mut context).is_pending());
    }
    assert_eq!(blocking::counts(Class::Write).queued, CLIENTS);
    let kept = resident().saturating_sub(before);
    assert!(kept < KEPT_BYTES_MAX, "{kept} bytes of spools");

    let path = unwritten(&directory);
    for _ in 0..CLIENTS {
        let content = Bytes::copy_from_slice(&bytes);
        let mut write = Box::pin(blocking::write_file_atomically(&path, content, 0));
        let polled = poll_fn(|context| Poll::Ready(write.as_mut().poll(context)));
        assert!(polled.await.is_pending());
    }
    assert_eq!(blocking::counts(Class::Write).queued, 2 * CLIENTS);
    let kept = resident().saturating_sub(before);
    assert!(kept < KEPT_BYTES_MAX, "{kept} bytes of files");

    drop(open);
    hangs.await.expect("it ran").expect_err("nothing was sent");
    // This job waits behind all of them.
    let last = blocking::run(Origin::of_path(&directory), || ());
    last.await.expect("it ran");
    assert!(!path.exists(), "no request waited for it");
}

fn unwritten(directory: &Path) -> PathBuf {
    directory.join(format!("petrel-departed-{}", std::process::id()))
}

/// How many bytes of this process are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.expect("a number") * 1024
}
