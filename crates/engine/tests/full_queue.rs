//! What becomes of a look-up when too many wait already. In a program of its own, because the threads are those
//! of the whole process.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use petrel_engine::blocking::{self, Threads};
use petrel_engine::cold_files::status_of_failure;
use petrel_engine::file_cache::{
    Asker, Contents, FileCache, FileKind, LookResult, StatCache, Symlinks,
};
use petrel_engine::proto::status::Status;

mod queue;

use queue::fill_queue;

#[test]
fn a_look_up_that_finds_the_queue_full_is_503_and_the_next_one_is_not() {
    blocking::configure(Threads {
        stat: 64,
        read: 1,
        write: 1,
    });
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("nobody else has it");
    fill_queue(&gate);

    let cache = FileCache::new(
        StatCache::Simple,
        Arc::new(Contents::new(100, Arc::default())),
    );
    let path = std::env::temp_dir().join(format!("petrel-nobody-{}", std::process::id()));
    let path = path.as_os_str().as_bytes();
    // The kernel knows nothing of a name that nobody has looked for.
    let look_up = || match cache.lookup(path, Symlinks::Follow, 1, Asker::default(), || None) {
        LookResult::Cold(waiting) => Ok(waiting),
        LookResult::Here(entry) => Err(entry.kind()),
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut refused = look_up().expect("the disk has to be asked");
    let Poll::Ready(found) = cache.poll_cold(&mut refused, 1, &mut context) else {
        panic!("a refusal is told at once");
    };
    let FileKind::Failed(errno) = found[0].entry.kind() else {
        panic!("{:?}", found[0].entry.kind());
    };
    assert_eq!(status_of_failure(errno), Status::SERVICE_UNAVAILABLE);

    drop(closed);
    for _ in 0..6000 {
        let kind = match look_up() {
            Err(kind) => Some(kind),
            Ok(mut waiting) => match cache.poll_cold(&mut waiting, 1, &mut context) {
                Poll::Ready(found) => Some(found[0].entry.kind()),
                Poll::Pending => None,
            },
        };
        match kind {
            // The queue is still full.
            Some(FileKind::Failed(_)) | None => {}
            Some(kind) => return assert_eq!(kind, FileKind::Missing),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("nobody looked in a minute");
}
