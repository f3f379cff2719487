//! io_uring: requests and results in memory that is shared with the kernel.
//!
//! For files only. Bytes in the page cache are read while the request is submitted. For others the kernel
//! starts the disk read and continues when the pages have arrived; if the file system offers no such way
//! (FUSE, NFS, overlayfs), a kernel thread does the read.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use io_uring::{Probe, opcode, types};

use super::event::Event;
use super::in_flight::{InFlight, wait_for_end};
use super::{Done, Read, ReadQueue, within_limits};

/// A ring. It can only be used on the thread that made it.
pub struct IoUring {
    ring: io_uring::IoUring,
    event: Event,
    reads: InFlight,
    /// Entries that the kernel was not told about yet.
    gathered: usize,
    mode: &'static str,
    /// The kernel refuses calls of other threads with EEXIST (IORING_SETUP_SINGLE_ISSUER).
    not_send: PhantomData<*const ()>,
}

impl IoUring {
    /// A ring for up to `capacity` reads at a time; at most [`CAPACITY_MAX`](super::CAPACITY_MAX).
    ///
    /// # Errors
    /// EPERM: forbidden by seccomp or kernel.io_uring_disabled. ENOSYS: the kernel has no io_uring. ENOMEM:
    /// before Linux 5.12, RLIMIT_MEMLOCK is too low. EMFILE. `Unsupported`: the kernel is older than Linux
    /// 5.6.
    pub fn new(capacity: u32) -> io::Result<IoUring> {
        let capacity = within_limits(capacity);
        let (ring, mode) = build(capacity)?;
        check(&ring)?;
        // Wait on an eventfd and not on the ring itself: with IORING_SETUP_DEFER_TASKRUN, poll on the ring is
        // not woken when a read can continue, but an eventfd is.
        let event = Event::new()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // Limits the kernel threads for file systems that wait. The default is four for each processor, and a
        // read that waits for a thread keeps the disk idle. Linux before 5.15 does not have this.
        let _ = ring
            .submitter()
            .register_iowq_max_workers(&mut [capacity.min(KERNEL_THREADS_MAX), 0]);
        // As many as the completion queue holds, so that it cannot overflow.
        let entries = ring.params().sq_entries().min(ring.params().cq_entries());
        Ok(IoUring {
            ring,
            event,
            reads: InFlight::new(capacity.min(entries)),
            gathered: 0,
            mode,
            not_send: PhantomData,
        })
    }

    /// The newest flag of io_uring_setup(2) that the kernel supports: `DEFER_TASKRUN` (6.1), `COOP_TASKRUN`
    /// (5.19) or `no flags`.
    #[must_use]
    pub fn mode(&self) -> &'static str {
        self.mode
    }
}

impl ReadQueue for IoUring {
    fn submit(&mut self, mut read: Read) -> Result<(), (Read, io::Error)> {
        if let Err(error) = read.prepare(self.reads.len(), self.reads.capacity()) {
            return Err((read, error));
        }
        let length = u32::try_from(read.length).unwrap_or(u32::MAX);
        let descriptor = types::Fd(read.raw_descriptor());
        let memory = read.buffer.as_mut_ptr();
        let entry = opcode::Read::new(descriptor, memory, length).offset(read.offset);
        let number = match self.reads.put(read) {
            Ok(number) => number,
            Err(read) => return Err((read, io::ErrorKind::WouldBlock.into())),
        };
        let entry = entry.build().user_data(number.into());
        // SAFETY: the kernel writes at most `length` bytes to `memory`, which has that many (`prepare`). The
        // buffer is in `reads` and leaves it only when the kernel has reported the end of this read; moving
        // the buffer does not move its memory. If this ring is dropped before that, `reads` leaks the buffer.
        // The descriptor is open, because its owner is in `reads`, too.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // This cannot happen: there is an entry for each read in flight. The kernel was not told of this
            // read.
            let read = self.reads.give_back(number);
            let full = io::ErrorKind::WouldBlock.into();
            return read.map_or(Ok(()), |read| Err((read, full)));
        }
        self.gathered += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.gathered > 0 {
            match self.ring.submit() {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(count) => self.gathered = self.gathered.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn completed(&mut self, done: &mut Vec<Done>) {
        // Cleared before reading, so that an event that occurs meanwhile sets it again.
        self.event.clear();
        // With IORING_SETUP_DEFER_TASKRUN the kernel continues reads whose pages have arrived only when this
        // thread enters it. A flag in the shared memory says so.
        let submissions = self.ring.submission();
        let waits = submissions.taskrun() || submissions.cq_overflow();
        drop(submissions);
        if (waits || self.gathered > 0)
            && let Ok(count) = self.ring.submit()
        {
            self.gathered = self.gathered.saturating_sub(count);
        }
        for event in self.ring.completion() {
            done.extend(self.reads.take(event.user_data(), event.result().into()));
        }
    }

    fn in_flight(&self) -> usize {
        self.reads.len()
    }

    fn capacity(&self) -> usize {
        self.reads.capacity()
    }
}

impl Drop for IoUring {
    fn drop(&mut self) {
        wait_for_end(self);
    }
}

/// Creates a ring with the best mode that the kernel supports.
fn build(capacity: u32) -> io::Result<(io_uring::IoUring, &'static str)> {
    // Linux 6.1: the kernel works on the ring only when this thread enters it.
    let mut deferred = io_uring::IoUring::builder();
    deferred
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    // Linux 5.19: the kernel does not interrupt this thread.
    let mut cooperative = io_uring::IoUring::builder();
    cooperative.setup_coop_taskrun().setup_taskrun_flag();
    let plain = io_uring::IoUring::builder();
    let mut error = io::ErrorKind::Unsupported.into();
    let builders = [
        (deferred, "DEFER_TASKRUN"),
        (cooperative, "COOP_TASKRUN"),
        (plain, "no flags"),
    ];
    for (builder, mode) in builders {
        match builder.build(capacity) {
            // The kernel does not know a flag.
            Err(told) if told.raw_os_error() == Some(libc::EINVAL) => error = told,
            built => return built.map(|ring| (ring, mode)),
        }
    }
    Err(error)
}

/// Whether the ring supports what is needed here.
fn check(ring: &io_uring::IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    // Without NODROP, completions would be lost if their queue overflowed (which cannot happen here).
    if ring.params().is_feature_nodrop() && probe.is_supported(opcode::Read::CODE) {
        return Ok(());
    }
    Err(io::ErrorKind::Unsupported.into())
}

/// The kernel threads of one worker.
const KERNEL_THREADS_MAX: u32 = 64;
