//! Look-ups and reads while the queue of the disk threads is full. A program of its own, because the threads
//! belong to the whole process: each test uses another class of them.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel_engine::blocking::{self, Class, Threads};
use petrel_engine::body::Spool;
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::file_cache::{
    Asker, Contents, FileCache, FileKind, LookResult, StatCache, Symlinks,
};
use petrel_engine::limits;
use petrel_engine::proto::status::Status;
use rustix::fs::{Advice, fadvise};

mod queue;

use queue::fill_queue;

/// Look-ups use threads of two classes, so these tests run one after the other.
static LOOK_UPS: Mutex<()> = Mutex::new(());

fn configure() {
    blocking::configure(Threads {
        stat: 64,
        read: 64,
        write: 1,
        ..blocking::THREADS
    });
}

fn cache() -> FileCache {
    let contents = Contents::new(100, Arc::default());
    FileCache::new(StatCache::Simple, Arc::new(contents))
}

/// A directory on a disk, unless the whole tree is in memory.
fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Removes the file from the page cache.
fn forget_pages(path: &Path) {
    let file = File::open(path).expect("it is there");
    file.sync_all().expect("there is room");
    fadvise(&file, 0, None, Advice::DontNeed).expect("it is a file");
}

#[test]
fn a_look_up_that_finds_the_queue_full_is_503_and_the_next_one_is_not() {
    let _turn = LOOK_UPS.lock().expect("the other test is over");
    configure();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("no thread has panicked with it");
    fill_queue(Class::Stat, &gate);

    let cache = cache();
    let path = std::env::temp_dir().join(format!("petrel-unknown-{}", std::process::id()));
    let path = path.as_os_str().as_bytes();
    // No process has looked up this name, so the kernel's caches do not have it.
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
    assert_eq!(
        cause_of_failure(errno).code.status(),
        Status::SERVICE_UNAVAILABLE
    );

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
    panic!("the look-up was not made in a minute");
}

#[test]
fn a_look_up_that_finds_no_room_for_its_first_read_is_503() {
    let _turn = LOOK_UPS.lock().expect("the other test is over");
    configure();
    let path = directory().join(format!("petrel-first-{}", std::process::id()));
    fs::write(&path, b"to be read").expect("there is room");
    forget_pages(&path);
    let gate = Arc::new(Mutex::new(()));
    let _closed = gate.lock().expect("no thread has panicked with it");
    fill_queue(Class::First, &gate);

    let (cache, name) = (cache(), path.as_os_str().as_bytes());
    let looked = cache.lookup(name, Symlinks::Follow, 1, Asker::default(), || None);
    // A file in memory needs no thread.
    let LookResult::Cold(mut waiting) = looked else {
        return;
    };
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..6000 {
        if let Poll::Ready(found) = cache.poll_cold(&mut waiting, 1, &mut context) {
            fs::remove_file(&path).expect("it is there");
            let FileKind::Failed(errno) = found[0].entry.kind() else {
                panic!("{:?}", found[0].entry.kind());
            };
            return assert_eq!(
                cause_of_failure(errno).code.status(),
                Status::SERVICE_UNAVAILABLE
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the look-up was not made in a minute");
}

#[test]
fn a_spool_that_finds_the_queue_full_is_read_when_there_is_room() {
    configure();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().expect("a timer");
    let mut spool = Spool::default();
    let bytes = vec![7; limits::SPOOL_LARGE_BYTES_MAX];
    spool.push(&bytes, &[directory()], 0);
    spool.push(b"more", &[directory()], 0);
    let written = poll_fn(|context| spool.poll_written(context));
    runtime.block_on(written).expect("there is room");
    assert!(spool.is_on_disk());
    forget_pages(&file_without_name());
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("no thread has panicked with it");
    fill_queue(Class::Read, &gate);

    let mut read = pin!(poll_fn(|context| {
        let read = spool.poll_read(0, 10, context)?;
        read.map(|bytes| io::Result::Ok(bytes.to_vec()))
    }));
    let pauses = Duration::from_millis(200);
    let early = runtime.block_on(async { tokio::time::timeout(pauses, &mut read).await });
    drop(closed);
    let read = match early {
        // A file in memory needs no thread.
        Ok(read) => read,
        Err(_) => runtime.block_on(read),
    };
    assert_eq!(read.expect("no error"), [7; 10]);
}

/// The file of the spool, found by its descriptor.
fn file_without_name() -> PathBuf {
    let is_it = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        target.starts_with(directory()) && target.to_string_lossy().ends_with("(deleted)")
    };
    let all = fs::read_dir("/proc/self/fd").expect("there is /proc");
    let mut paths = all.flatten().map(|entry| entry.path());
    paths.find(is_it).expect("the spool has it open")
}
