//! Queues that fail, fill up or never answer, and the real ones.

use std::fs;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use petrel_sys::read_queue::{IoUring, KernelAio, PosixAio};

use super::*;
use crate::testing::Site;

const PATIENCE: Duration = Duration::from_secs(60);

/// A file on a disk, and a worker that has looked it up.
struct Scene {
    site: Site,
    file: Rc<FileEntry>,
    content: Vec<u8>,
    path: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Scene {
        // Not the directory for temporary files, which may be in memory.
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let directory = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => PathBuf::from(target),
            None => directory,
        };
        fs::create_dir_all(&directory).expect("a directory for what is built");
        let directory = directory.canonicalize().expect("it exists");
        let path = directory.join(format!("petrel-{name}-{}", std::process::id()));
        let content: Vec<u8> = (0..3_000_000_u32)
            .map(|place| u8::try_from((place * 7 + place / 251) % 255 + 1).expect("a byte"))
            .collect();
        fs::write(&path, &content).expect("there is room");
        fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("written");
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        let file = fs::File::open(&path).expect("it was just written");
        let file = FileEntry::from_file(file, path.as_os_str().as_encoded_bytes());
        let file = file.expect("a regular file");
        Scene {
            site,
            file,
            content,
            path,
        }
    }

    fn reader(&self, queue: impl ReadQueue + 'static) -> QueueReader {
        let readers = self.site.worker().readers();
        let backend = NetworkBackend::PosixAio;
        let started = QueueReader::start(backend, queue, PreparedRead::plain, readers);
        started.expect("it can be waited for")
    }

    /// Whether the file is on a disk, so that queues are used for it.
    fn is_on_disk(&self) -> bool {
        self.file.storage() == Storage::Disk
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A queue whose reads end with an error or never end.
struct Fake {
    errno: Option<i32>,
    capacity: usize,
    /// How many further calls of flush fail.
    failures: u32,
    reads: Vec<Read>,
    descriptor: PipeReader,
    writer: PipeWriter,
}

impl Fake {
    fn new(errno: Option<i32>, capacity: usize) -> Fake {
        let (descriptor, writer) = pipe().expect("a pipe");
        Fake {
            errno,
            capacity,
            failures: 0,
            reads: Vec::new(),
            descriptor,
            writer,
        }
    }
}

impl ReadQueue for Fake {
    fn submit(&mut self, read: Read) -> Result<(), (Read, io::Error)> {
        self.reads.push(read);
        let _ = self.writer.write(b"x");
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.failures.checked_sub(1) {
            Some(left) => {
                self.failures = left;
                Err(io::ErrorKind::OutOfMemory.into())
            }
            None => Ok(()),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn completed(&mut self, done: &mut Vec<Done>) {
        let Some(errno) = self.errno.filter(|_| self.failures == 0) else {
            return;
        };
        done.extend(self.reads.drain(..).map(|read| Done {
            token: read.token,
            buffer: read.buffer,
            result: Err(io::Error::from_raw_os_error(errno)),
        }));
    }

    fn in_flight(&self) -> usize {
        self.reads.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}

async fn patiently<T>(future: impl Future<Output = T>) -> T {
    let limited = tokio::time::timeout(PATIENCE, future);
    limited.await.expect("it ends")
}

#[tokio::test(flavor = "local")]
async fn errors_of_the_disk_are_told() {
    let scene = Scene::new("eio");
    let reader = scene.reader(Fake::new(Some(5), 8));
    if scene.is_on_disk() {
        let read = patiently(reader.read(&scene.file, 0, 1000, 1)).await;
        assert_eq!(read.err().and_then(|error| error.raw_os_error()), Some(5));
    }
}

#[tokio::test(flavor = "local")]
async fn what_the_queue_cannot_do_threads_do() {
    let scene = Scene::new("declined");
    let (would_block, invalid) = (11, 22);
    for errno in [would_block, invalid] {
        let reader = scene.reader(Fake::new(Some(errno), 8));
        for offset in [0, 5000, 1_000_000] {
            let chunk = patiently(reader.read(&scene.file, offset, 1000, 1)).await;
            let chunk = chunk.expect("it is read");
            let begin = offset as usize;
            assert_eq!(chunk.offset, offset);
            assert!(chunk.bytes == scene.content[begin..begin + 1000]);
        }
        let is_known = scene.is_on_disk() && errno == invalid;
        assert_eq!(reader.0.refused.borrow().len(), usize::from(is_known));
    }
}

#[tokio::test(flavor = "local")]
async fn what_cannot_be_begun_is_tried_again() {
    let scene = Scene::new("again");
    let mut queue = Fake::new(Some(5), 8);
    queue.failures = 3;
    let reader = scene.reader(queue);
    if scene.is_on_disk() {
        let first = reader.read(&scene.file, 0, 1000, 1);
        while !reader.0.is_failing.get() {
            tokio::task::yield_now().await;
        }
        // Threads do the reads that come meanwhile.
        let second = patiently(reader.read(&scene.file, 0, 1000, 2)).await;
        assert_eq!(second.expect("it is read").bytes.len(), 1000);
        let first = patiently(first).await;
        assert_eq!(first.err().and_then(|error| error.raw_os_error()), Some(5));
        patiently(async {
            while reader.0.is_failing.get() {
                tokio::time::sleep(RETRY).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_full_queue_is_passed_by() {
    let scene = Scene::new("full");
    let reader = scene.reader(Fake::new(None, 2));
    let mut hanging: Vec<_> = (1..=2)
        .map(|client| reader.read(&scene.file, 0, 1000, client))
        .collect();
    for read in &mut hanging {
        let short = tokio::time::timeout(Duration::from_millis(20), read);
        if scene.is_on_disk() {
            short.await.err().expect("it hangs");
        }
    }
    let chunk = patiently(reader.read(&scene.file, 0, 1000, 3)).await;
    assert!(chunk.expect("it is read").bytes == scene.content[..1000]);
}

#[tokio::test(flavor = "local")]
async fn what_is_under_way_and_what_waits_is_counted() {
    let scene = Scene::new("counted");
    if !scene.is_on_disk() {
        return;
    }
    let reader = scene.reader(Fake::new(None, 1000));
    let origin = scene.file.origin(0, 0);
    // These are more reads than one file system gets at a time. Other tests may use such a queue meanwhile.
    let reads: Vec<_> = (0..100)
        .map(|client| reader.read(&scene.file, 0, 1000, client))
        .collect();
    let load = || {
        let all = reader.0.accounts.queue_loads();
        let load = all.into_iter().find(|load| load.device == origin.device);
        load.unwrap_or_default()
    };
    let counts = || reader.0.accounts.queue_counts(NetworkBackend::PosixAio);
    patiently(async {
        while load().running == 0 || counts().running == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(load().waiting > 0 && counts().queued > 0);
    assert!(load().running + load().waiting >= 100);
    drop(reads);
}

#[tokio::test(flavor = "local")]
async fn when_memory_has_become_short_little_is_read() {
    let scene = Scene::new("short-of-memory");
    if !scene.is_on_disk() {
        return;
    }
    for reader in readers(&scene) {
        let read = reader.read(&scene.file, 5, 1_000_000, 1);
        // The test takes all memory after the read was queued.
        let all = reader.0.accounts.share(limits::READ_MEMORY_BYTES_MAX);
        let chunk = patiently(read).await.expect("it is read");
        drop(all);
        let least = limits::CHUNK_BYTES_MIN;
        assert_eq!((chunk.offset, chunk.bytes.len()), (5, least));
        assert!(chunk.bytes == scene.content[5..5 + least]);
    }
}

#[tokio::test(flavor = "local")]
async fn who_has_gone_leaves_nothing_behind() {
    let scene = Scene::new("gone");
    let descriptor = scene.file.share_descriptor().expect("it is open");
    let held = Arc::strong_count(&descriptor);
    let reader = scene.reader(PosixAio::new(8).expect("a thread"));
    for client in 0..20 {
        // Some reads have begun, some wait, and some are dropped before anything has happened.
        let mut read = reader.read(&scene.file, 0, 100_000, client);
        if client % 3 > 0 {
            let short = Duration::from_micros(client * 50);
            let _ = tokio::time::timeout(short, &mut read).await;
        }
    }
    patiently(async {
        while Arc::strong_count(&descriptor) > held {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(reader.0.running.borrow().len(), 0);
    assert_eq!(reader.0.waiting.borrow().len(), 0);
}

/// A reader on a disk that hangs, with `count` reads of its file that have begun or wait.
async fn hanging(scene: &Scene, count: usize) -> (QueueReader, Vec<ChunkReading>) {
    let reader = scene.reader(Fake::new(None, 1000));
    let reads: Vec<_> = (0..count)
        .map(|client| reader.read(&scene.file, 0, 1000, client as u64))
        .collect();
    patiently(async {
        while reader.0.may_begin() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    (reader, reads)
}

#[tokio::test(flavor = "local")]
async fn who_has_gone_leaves_nothing_behind_a_disk_that_hangs() {
    let scene = Scene::new("gone-hanging");
    if !scene.is_on_disk() {
        return;
    }
    let descriptor = scene.file.share_descriptor().expect("it is open");
    let held = Arc::strong_count(&descriptor);
    let (reader, mut reads) = hanging(&scene, 200).await;
    let begun = reader.0.running.borrow().len();
    assert!((1..100).contains(&begun), "{begun}");
    // All but the last read are dropped.
    reads.drain(..199);
    patiently(async {
        while reader.0.waiting.borrow().len() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(reader.0.running.borrow().len(), begun);
    assert_eq!(reader.0.waiting.borrow().len(), 1);
    // Each read that has begun holds the descriptor twice, once in the queue.
    assert_eq!(Arc::strong_count(&descriptor), held + 2 * begun + 1);
}

#[tokio::test(flavor = "local")]
async fn one_file_system_takes_half_of_the_places_at_most() {
    const MOST: usize = limits::BLOCKING_DEVICE_QUEUE_MAX;
    let scene = Scene::new("places");
    if !scene.is_on_disk() {
        return;
    }
    let (reader, mut reads) = hanging(&scene, MOST).await;
    let more = reader.0.running.borrow().len();
    reads.extend((0..more).map(|_| reader.read(&scene.file, 0, 1000, 1)));
    assert_eq!(reader.0.waiting.borrow().len(), MOST);
    // Threads do this read.
    let chunk = patiently(reader.read(&scene.file, 0, 1000, 1)).await;
    assert!(chunk.expect("it is read").bytes == scene.content[..1000]);
    drop(reads);
    let origin = scene.file.origin(1, 1000);
    patiently(async {
        while !reader.0.takes(Storage::Disk, &origin) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// All queues that this system has.
fn readers(scene: &Scene) -> Vec<QueueReader> {
    let mut readers = vec![scene.reader(PosixAio::new(64).expect("a thread"))];
    readers.extend(IoUring::new(64).ok().map(|queue| scene.reader(queue)));
    readers.extend(KernelAio::new(64).ok().map(|queue| scene.reader(queue)));
    let direct = super::super::linux_aio_sendfile::start(scene.site.worker().readers());
    readers.extend(direct.ok());
    readers
}

#[tokio::test(flavor = "local")]
async fn many_clients_get_what_they_asked_for() {
    let scene = Scene::new("many");
    for reader in readers(&scene) {
        let reads: Vec<_> = (0..200_u64)
            .map(|client| {
                let offset = client * 14_321;
                (offset, reader.read(&scene.file, offset, 70_000, client))
            })
            .collect();
        for (offset, read) in reads {
            let chunk = patiently(read).await.expect("it is read");
            let begin = scene.content.len().min(offset as usize);
            let wanted = &scene.content[begin..scene.content.len().min(begin + 70_000)];
            assert_eq!((chunk.offset, chunk.bytes.len()), (offset, wanted.len()));
            assert!(chunk.bytes == wanted);
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_file_that_has_become_shorter_ends_where_it_ends() {
    let scene = Scene::new("short");
    let file = fs::OpenOptions::new().write(true).open(&scene.path);
    file.and_then(|file| file.set_len(100_001)).expect("ours");
    for reader in readers(&scene) {
        for (offset, left) in [(0, 100_001), (100_000, 1), (100_001, 0), (200_000, 0)] {
            let read = patiently(reader.read(&scene.file, offset, 250_000, 1)).await;
            assert_eq!(read.expect("it is read").bytes.len(), left);
        }
    }
}
