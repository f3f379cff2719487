//! The C library's asynchronous reads: aio_read(3) and its threads.
//!
//! The library has two ways to report the end of a read, and neither is usable here. With SIGEV_THREAD it
//! starts a thread for each. In glibc that thread blocks no signal, so a SIGTERM that all other threads block
//! would end the process; and if no thread can be started, the end is not reported at all. Signals belong to
//! the process and not to a queue, and get lost beyond RLIMIT_SIGPENDING. So each queue has one thread that
//! waits in aio_suspend(3), notes the reads that have ended, and sets an eventfd. It waits for the reads that
//! existed when it began to wait. A read that was begun later and ends first is noticed up to a millisecond
//! late.
//!
//! glibc does the reads of one descriptor one after the other, so each read gets its own descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::Duration;

use super::event::Event;
use super::{Buffer, Done, Read, ReadQueue, within_limits};

/// Reads by the C library. All queues of the process share its threads.
///
/// Dropping a queue with reads in flight does not wait: the thread of the queue stays until they have ended,
/// and then frees their memory.
pub struct PosixAio {
    shared: Arc<Shared>,
    capacity: usize,
    in_flight: usize,
}

impl PosixAio {
    /// A queue for up to `capacity` reads at a time; at most [`CAPACITY_MAX`](super::CAPACITY_MAX).
    ///
    /// # Errors
    /// Those of eventfd(2), and of starting a thread.
    pub fn new(capacity: u32) -> io::Result<PosixAio> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            event: Event::new()?,
        });
        let theirs = Arc::clone(&shared);
        thread::Builder::new()
            .name("posix-aio".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || reap(&theirs))?;
        Ok(PosixAio {
            shared,
            capacity: within_limits(capacity) as usize,
            in_flight: 0,
        })
    }
}

impl ReadQueue for PosixAio {
    fn submit(&mut self, mut read: Read) -> Result<(), (Read, io::Error)> {
        if let Err(error) = read.prepare(self.in_flight, self.capacity) {
            return Err((read, error));
        }
        let running = Running::start(read)?;
        self.in_flight += 1;
        self.shared.lock().running.push(running);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Nothing is gathered, so there is nothing to do.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    fn completed(&mut self, done: &mut Vec<Done>) {
        // Cleared before reading, so that a read that ends meanwhile sets it again.
        self.shared.event.clear();
        let ended = std::mem::take(&mut self.shared.lock().ended);
        self.in_flight -= ended.len();
        done.extend(ended);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for PosixAio {
    fn drop(&mut self) {
        self.shared.lock().abandoned = true;
        self.shared.changed.notify_one();
    }
}

/// Limits the C library to `threads` threads in the whole process. Only the first call counts, and it must
/// come before any read. Without it glibc has 20. Other C libraries start a thread for each descriptor that
/// is read.
pub fn set_posix_aio_threads(threads: u32) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(target_env = "gnu")]
        glibc::set_threads(threads);
        #[cfg(not(target_env = "gnu"))]
        let _ = threads;
    });
}

/// State that a queue and its thread share.
struct Shared {
    state: Mutex<State>,
    /// Signalled when a read was begun or the queue was dropped.
    changed: Condvar,
    /// Set when there is something in `ended`.
    event: Event,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    ended: Vec<Done>,
    abandoned: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there are reads and lists them. Returns `false` if there will be none.
    fn list(&self, blocks: &mut Vec<*const libc::aiocb>) -> bool {
        let mut state = self.lock();
        while state.running.is_empty() {
            if state.abandoned {
                return false;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        blocks.clear();
        blocks.extend(state.running.iter().map(Running::block));
        true
    }

    /// Moves the reads that have ended to `ended`.
    fn collect(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let before = state.ended.len();
        let ended = state.running.extract_if(.., |running| running.has_ended());
        state.ended.extend(ended.map(Running::end));
        if state.ended.len() > before {
            self.event.set();
        }
    }
}

/// The thread of a queue. Only this thread removes reads from `running`, so a read that it has listed stays
/// there until the thread has waited for it.
fn reap(shared: &Shared) {
    let mut blocks = Vec::new();
    while shared.list(&mut blocks) {
        suspend(&blocks);
        shared.collect();
    }
}

/// Waits until one of the reads has ended, for [`LIST_AGE_MAX`] at most.
fn suspend(blocks: &[*const libc::aiocb]) {
    let count = libc::c_int::try_from(blocks.len()).unwrap_or(libc::c_int::MAX);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::from(LIST_AGE_MAX.subsec_nanos().cast_signed()),
    };
    // SAFETY: `blocks` has `count` pointers to control blocks of reads that were begun. Each is in `running`,
    // and only the calling thread removes and frees it, after this call.
    unsafe { libc::aio_suspend(blocks.as_ptr(), count, &time) };
}

/// A read that was passed to the C library.
///
/// The library keeps the address of the control block. It writes to it and to the buffer from its own threads
/// until aio_error(3) has reported the end of the read. (It reports the end under the lock that the library
/// holds while it finishes a read.) So control block and buffer are behind a pointer, have no other owner,
/// and are leaked if this is dropped.
struct Running(NonNull<Operation>);

struct Operation {
    block: libc::aiocb,
    token: u64,
    buffer: Buffer,
    file: OwnedFd,
}

// SAFETY: what it points to belongs to it and to the C library, which any thread may use. Any thread may drop
// all of it.
unsafe impl Send for Running {}

impl Running {
    fn start(mut read: Read) -> Result<Running, (Read, io::Error)> {
        let file = match read.file.as_fd().try_clone_to_owned() {
            Ok(file) => file,
            Err(error) => return Err((read, error)),
        };
        let mut block = empty_block();
        block.aio_fildes = file.as_raw_fd();
        block.aio_buf = read.buffer.as_mut_ptr().cast();
        block.aio_nbytes = read.length;
        block.aio_offset = read.offset.cast_signed();
        block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
        let Read { token, buffer, .. } = read;
        let operation = Operation {
            block,
            token,
            buffer,
            file,
        };
        let place = NonNull::from(Box::leak(Box::new(operation)));
        // SAFETY: the control block is initialised. Like the buffer it stays at its address until the read
        // has ended: it is leaked here, and only `end` takes it back. The buffer has `aio_nbytes` bytes
        // (`prepare`), and the descriptor is open as long as the operation exists.
        let begun = unsafe { libc::aio_read(&raw mut (*place.as_ptr()).block) };
        if begun == 0 {
            return Ok(Running(place));
        }
        let error = io::Error::last_os_error();
        // SAFETY: it came from a `Box`, and the library did not take it.
        let operation = unsafe { Box::from_raw(place.as_ptr()) };
        read = Read {
            buffer: operation.buffer,
            ..read
        };
        Err((read, error))
    }

    fn block(&self) -> *const libc::aiocb {
        // SAFETY: makes a pointer to a field, and reads nothing.
        unsafe { &raw const (*self.0.as_ptr()).block }
    }

    fn has_ended(&self) -> bool {
        // SAFETY: the control block belongs to a read that was begun, and lives as long as `self`.
        unsafe { libc::aio_error(self.block()) != libc::EINPROGRESS }
    }

    /// Takes the memory back. Call it after [`has_ended`](Running::has_ended) returned true.
    fn end(self) -> Done {
        debug_assert!(self.has_ended());
        // SAFETY: it came from a `Box`. The read has ended, so the library does not use it any more. `self`
        // was the only pointer to it, and is consumed.
        let mut operation = unsafe { Box::from_raw(self.0.as_ptr()) };
        // SAFETY: the read has ended, and this is called once.
        let (error, count) = unsafe {
            let error = libc::aio_error(&operation.block);
            (error, libc::aio_return(&mut operation.block))
        };
        let result = match error {
            0 => i64::try_from(count).unwrap_or(0),
            errno if errno > 0 => -i64::from(errno),
            // The library does not know the read.
            _ => -i64::from(libc::EIO),
        };
        drop(operation.file);
        Done::new(operation.token, operation.buffer, result)
    }
}

fn empty_block() -> libc::aiocb {
    // SAFETY: all fields are numbers and pointers, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    /// `struct aioinit` of glibc's aio.h.
    #[repr(C)]
    struct Aioinit {
        aio_threads: c_int,
        aio_num: c_int,
        aio_locks: c_int,
        aio_usedba: c_int,
        aio_debug: c_int,
        aio_numusers: c_int,
        aio_idle_time: c_int,
        aio_reserved: c_int,
    }

    unsafe extern "C" {
        fn aio_init(settings: *const Aioinit);
    }

    pub(super) fn set_threads(threads: u32) {
        let threads = c_int::try_from(threads.clamp(1, super::THREADS_MAX)).unwrap_or(1);
        let settings = Aioinit {
            aio_threads: threads,
            // Room for requests that is allocated at first; the library allocates more when it needs it.
            aio_num: threads,
            aio_locks: 0,
            aio_usedba: 0,
            aio_debug: 0,
            aio_numusers: 0,
            // Seconds until an idle thread ends.
            aio_idle_time: 1,
            aio_reserved: 0,
        };
        // SAFETY: the library copies what it needs from a structure of its own layout.
        unsafe { aio_init(&settings) };
    }
}

/// How long the thread waits for the reads that it has listed, while others may have been begun.
const LIST_AGE_MAX: Duration = Duration::from_millis(1);
/// The thread makes only shallow calls.
const STACK_BYTES: usize = 64 * 1024;
/// The most threads of the C library.
const THREADS_MAX: u32 = 256;
