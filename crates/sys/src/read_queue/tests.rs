//! What all queues have in common, and reads that fail or do not end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::in_flight::WAIT_MAX;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// All queues that this system supports.
fn queues(capacity: u32) -> Vec<Box<dyn ReadQueue>> {
    let mut queues: Vec<Box<dyn ReadQueue>> =
        vec![Box::new(PosixAio::new(capacity).expect("a thread"))];
    match IoUring::new(capacity) {
        Ok(queue) => queues.push(Box::new(queue)),
        Err(error) => skip("tests of io_uring", &error),
    }
    match KernelAio::new(capacity) {
        Ok(queue) => queues.push(Box::new(queue)),
        Err(error) => skip("tests of kernel AIO", &error),
    }
    queues
}

/// Writes to stdout directly, because the test harness captures `println!`.
fn skip(test: &str, why: &std::io::Error) {
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {why}");
}

/// A file without a name that is readable and writable.
fn scratch(content: &[u8]) -> File {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("petrel-read-queue-{}-{number}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let mut file = options.open(&path).expect("a writable directory");
    std::fs::remove_file(&path).expect("it was made");
    file.write_all(content).expect("there is room");
    file
}

/// Bytes that differ from their neighbours, in pages that differ from each other.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|place| u8::try_from((place * 7 + place / 251) % 255 + 1).unwrap())
        .collect()
}

/// Removes the file from the page cache.
fn evict(file: &File) {
    file.sync_all().expect("it is written");
    // SAFETY: advice about an open file; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn read(token: u64, file: &Arc<File>, offset: u64, length: usize) -> Read {
    let file: Arc<dyn AsFd + Send + Sync> = file.clone();
    Read {
        token,
        file,
        offset,
        buffer: Buffer::new(length).expect("there is memory"),
        length,
    }
}

/// Waits until no read is in flight.
fn finish(queue: &mut dyn ReadQueue) -> Vec<Done> {
    let mut done = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    queue.flush().expect("begun");
    while queue.in_flight() > 0 {
        assert!(Instant::now() < deadline, "{} remain", queue.in_flight());
        // The time is longer than the test, so the descriptor has to become readable.
        event::wait(queue.descriptor(), PATIENCE);
        queue.completed(&mut done);
    }
    done
}

/// Does one read, and repeats it if it would have to wait. A read that may not wait ends at the first page that is
/// not in memory, so one that comes back short is repeated, too.
fn read_one(queue: &mut dyn ReadQueue, mut next: Read) -> Done {
    let (file, offset, length) = (next.file.clone(), next.offset, next.length);
    let end = File::from(file.as_fd().try_clone_to_owned().unwrap());
    let end = end.metadata().unwrap().len();
    let whole = end.saturating_sub(offset).min(length as u64) as usize;
    loop {
        queue.submit(next).expect("begun");
        let done = finish(queue).pop().expect("one");
        let again = match &done.result {
            Ok(count) => *count < whole,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if !again {
            return done;
        }
        // Brings the pages into memory, as a read that may wait does.
        let file = File::from(file.as_fd().try_clone_to_owned().unwrap());
        let mut bytes = Buffer::new(length).unwrap();
        bytes.begin().unwrap();
        // SAFETY: the length is that of the buffer, which lives through the call.
        unsafe {
            libc::pread(
                file.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                length,
                offset.cast_signed(),
            )
        };
        next = Read {
            token: done.token,
            file: Arc::new(file),
            offset,
            buffer: done.buffer,
            length,
        };
    }
}

#[test]
fn all_lengths_and_offsets() {
    let content = pattern(3 * ALIGNMENT_BYTES + 123);
    let file = Arc::new(scratch(&content));
    let end = content.len() as u64;
    for mut queue in queues(4) {
        for cold in [false, true] {
            for offset in [0, 1, 4095, 4096, 5000, end - 1, end, end + 1, end + 50_000] {
                for length in [0, 1, 100, 4096, 5000, 20_000] {
                    if cold {
                        evict(&file);
                    }
                    let done = read_one(&mut *queue, read(7, &file, offset, length));
                    let begin = content.len().min(offset as usize);
                    let wanted = &content[begin..content.len().min(begin + length)];
                    assert_eq!(done.token, 7);
                    assert_eq!(done.result.unwrap(), wanted.len());
                    assert!(done.buffer.as_slice(usize::MAX) == wanted);
                }
            }
        }
    }
}

#[test]
fn past_the_page_cache() {
    let content = pattern(300_000);
    let file = scratch(&content);
    file.sync_all().unwrap();
    let direct = match open_direct(&file) {
        Ok(direct) => Arc::new(File::from(direct)),
        Err(error) => {
            assert!(is_refusal(&error), "{error}");
            return skip("past_the_page_cache", &error);
        }
    };
    for mut queue in queues(4) {
        for offset in [0, 1, 4096, 8191, 150_001, 299_999, 300_000, 400_000] {
            let range = DirectRange::around(offset, 100_000, 1 << 17).expect("it fits");
            let mut next = read(1, &direct, range.offset, range.length);
            next.buffer = Buffer::in_file(1 << 17).unwrap();
            let done = read_one(&mut *queue, next);
            let found = range.found(done.result.expect("it is read"));
            let begin = content.len().min(offset as usize);
            let wanted = &content[begin..content.len().min(begin + 100_000)];
            let bytes = done.buffer.as_ref().get(range.skip..).unwrap_or_default();
            assert_eq!(found, wanted.len(), "{range:?}");
            assert!(&bytes[..found] == wanted);
        }
        // Neither the offset nor the length is aligned.
        let done = read_one(&mut *queue, read(1, &direct, 1, 100));
        assert!(done.result.is_ok() || is_refusal(&done.result.unwrap_err()));
        assert!(done.buffer.filled() <= 100);
    }
}

#[test]
fn errors_come_with_the_read() {
    let directory = Arc::new(File::open("/").unwrap());
    let write_only = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let write_only = Arc::new(write_only);
    let file = Arc::new(scratch(b"good"));
    for mut queue in queues(8) {
        for token in [0, 10, 20] {
            queue.submit(read(token, &write_only, 0, 4)).unwrap();
            queue.submit(read(token + 1, &file, 0, 4)).unwrap();
        }
        queue.submit(read(30, &directory, 0, 4)).unwrap();
        let mut done = finish(&mut *queue);
        done.sort_by_key(|done| done.token);
        let tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
        assert_eq!(tokens, [0, 1, 10, 11, 20, 21, 30]);
        for done in done {
            match (done.token, done.result) {
                (1 | 11 | 21, result) => assert_eq!(result.unwrap(), 4),
                (30, result) => {
                    let error = result.unwrap_err();
                    // Kernel AIO fails before it finds out what kind of file it is.
                    let told = error.kind() == io::ErrorKind::IsADirectory;
                    assert!(told || is_refusal(&error), "{error}");
                }
                (_, result) => {
                    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
                    assert_eq!(done.buffer.filled(), 0);
                }
            }
        }
    }
}

#[test]
fn impossible_reads_are_given_back() {
    let file = Arc::new(scratch(b"bytes"));
    for mut queue in queues(4) {
        let mut long = read(3, &file, 0, 10);
        long.length = long.buffer.capacity() + 1;
        let far = read(4, &file, u64::MAX, 10);
        for impossible in [long, far] {
            let token = impossible.token;
            let (back, error) = queue.submit(impossible).unwrap_err();
            assert_eq!(back.token, token);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(
            read_one(&mut *queue, read(5, &file, 0, 10)).buffer.filled(),
            5
        );
    }
}

#[test]
fn a_full_queue_gives_back() {
    let file = Arc::new(scratch(b"bytes"));
    for mut queue in queues(4) {
        for round in 0..3 {
            let mut given_back = None;
            for token in 0..20 {
                if let Err((back, error)) = queue.submit(read(token, &file, 0, 5)) {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    assert_eq!(back.token, token);
                    given_back = Some(back);
                    break;
                }
            }
            let given_back = given_back.expect("it has a limit");
            assert_eq!(queue.in_flight(), queue.capacity());
            assert_eq!(finish(&mut *queue).len(), queue.capacity(), "{round}");
            assert_eq!(read_one(&mut *queue, given_back).buffer.as_ref(), b"bytes");
        }
    }
}

#[test]
fn hundreds_at_a_time() {
    let content = pattern(1 << 20);
    let file = Arc::new(scratch(&content));
    set_posix_aio_threads(32);
    for mut queue in queues(512) {
        evict(&file);
        // Otherwise kernel AIO would return WouldBlock.
        let mut all = vec![0; content.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        let place = |token: u64| token as usize * 1999;
        for token in 0..512 {
            let next = read(token, &file, place(token) as u64, 3000);
            queue.submit(next).unwrap();
        }
        let mut done = finish(&mut *queue);
        done.sort_by_key(|done| done.token);
        assert!(done.iter().map(|done| done.token).eq(0..512));
        for done in done {
            let place = place(done.token);
            assert_eq!(done.result.unwrap(), 3000);
            assert!(done.buffer.as_ref() == &content[place..place + 3000]);
        }
    }
}

#[test]
fn a_file_that_is_cut_meanwhile() {
    let content = pattern(1 << 20);
    for mut queue in queues(64) {
        let file = Arc::new(scratch(&content));
        evict(&file);
        for token in 0..64 {
            let next = read(token, &file, token * 16_384, 16_384);
            queue.submit(next).unwrap();
        }
        queue.flush().unwrap();
        file.set_len(0).unwrap();
        for done in finish(&mut *queue) {
            let begin = done.token as usize * 16_384;
            // The rest of the file, and nothing else.
            let filled = done.buffer.filled();
            assert!(done.buffer.as_ref() == &content[begin..begin + filled]);
        }
    }
}

#[test]
fn dropped_with_reads_in_flight() {
    for flushed in [false, true] {
        for mut queue in queues(32) {
            let file = Arc::new(scratch(&pattern(1 << 20)));
            evict(&file);
            for token in 0..32 {
                let next = read(token, &file, token * (1 << 15), 1 << 15);
                queue.submit(next).unwrap();
            }
            if flushed {
                queue.flush().unwrap();
            }
            let begin = Instant::now();
            drop(queue);
            if begin.elapsed() >= WAIT_MAX {
                // The disk was so slow that the memory stayed with the kernel.
                continue;
            }
            // The queue holds the file only as long as its reads take.
            let deadline = Instant::now() + PATIENCE;
            while Arc::strong_count(&file) > 1 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A ring can read pipes, too. A pipe without data stands for a disk that hangs.
#[test]
fn a_read_that_does_not_end() {
    let Ok(mut queue) = IoUring::new(4) else {
        return;
    };
    let (pipe, mut writer) = io::pipe().unwrap();
    let pipe = Arc::new(File::from(OwnedFd::from(pipe)));
    queue.submit(read(0, &pipe, 0, 10)).unwrap();
    queue.flush().unwrap();
    let begun = Instant::now();
    drop(queue);
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(Arc::strong_count(&pipe), 2, "it is leaked");
    writer.write_all(b"late").unwrap();
}

#[test]
fn edges_tell_of_every_read() {
    let Ok(mut queue) = IoUring::new(4) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let descriptor = queue.descriptor().try_clone_to_owned().unwrap();
        let readable = crate::readiness::readable(descriptor).unwrap();
        let (pipe, writer) = io::pipe().unwrap();
        let pipe = Arc::new(File::from(OwnedFd::from(pipe)));
        for round in 0..50 {
            queue.submit(read(round, &pipe, 0, 10)).unwrap();
            queue.flush().unwrap();
            let mut writer = writer.try_clone().unwrap();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(round % 3));
                writer.write_all(b"x").unwrap();
            });
            let mut done = Vec::new();
            while done.is_empty() {
                let guard = tokio::time::timeout(PATIENCE, readable.readable());
                guard.await.expect("it is told").unwrap().clear_ready();
                queue.completed(&mut done);
            }
            assert_eq!(done.pop().unwrap().token, round);
            thread.join().unwrap();
        }
    });
}

/// Installs a filter by which the system call fails with `errno` in the calling thread.
fn forbid(call: libc::c_long, errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let call = u32::try_from(call).unwrap();
    let errno = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    let mut filter = [
        // The number of the system call is the first field of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, errno),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which has the given length. It restricts this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let pointer = &raw const program;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, pointer), 0);
    }
}

#[test]
fn what_is_forbidden_is_told() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        let told = std::thread::spawn(move || {
            forbid(libc::SYS_io_uring_setup, errno);
            let ring = IoUring::new(4).err().expect("forbidden");
            forbid(libc::SYS_io_setup, errno);
            let context = KernelAio::new(4).err().expect("forbidden");
            [ring, context].map(|error| error.raw_os_error())
        });
        assert_eq!(told.join().unwrap(), [Some(errno); 2]);
    }
}

#[test]
fn capacities_have_limits() {
    for capacity in [0, 1, u32::MAX] {
        for queue in queues(capacity) {
            assert!((1..=CAPACITY_MAX as usize).contains(&queue.capacity()));
        }
    }
}
