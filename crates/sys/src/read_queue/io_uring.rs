//! io_uring: submission and completion by memory shared with the kernel.
//!
//! Files only. What is in the page cache is read while it is submitted; for the rest the kernel begins reading
//! and goes on when the pages are there, or hands the read to threads of its own if the file system (FUSE,
//! NFS, overlayfs) offers no other way.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use io_uring::{Probe, opcode, types};

use super::event::Event;
use super::in_flight::{InFlight, wait_for_end};
use super::{Done, Read, ReadQueue, within_limits};

/// A ring, to be used on the thread that made it.
pub struct IoUring {
    ring: io_uring::IoUring,
    event: Event,
    reads: InFlight,
    /// Entries that the kernel has not been told about.
    gathered: usize,
    mode: &'static str,
    /// The kernel answers other threads by EEXIST (IORING_SETUP_SINGLE_ISSUER).
    not_send: PhantomData<*const ()>,
}

impl IoUring {
    /// A ring for up to `capacity` reads at a time, at most [`CAPACITY_MAX`](super::CAPACITY_MAX).
    ///
    /// # Errors
    /// EPERM: forbidden by seccomp or kernel.io_uring_disabled. ENOSYS: not in this kernel. ENOMEM: before
    /// Linux 5.12, RLIMIT_MEMLOCK is too low. EMFILE. `Unsupported`: older than Linux 5.6.
    pub fn new(capacity: u32) -> io::Result<IoUring> {
        let capacity = within_limits(capacity);
        let (ring, mode) = build(capacity)?;
        check(&ring)?;
        // Not the ring itself: with IORING_SETUP_DEFER_TASKRUN those who poll it are not woken when a read can
        // go on, but an eventfd is set.
        let event = Event::new()?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        // Kernel threads for file systems that wait. The default is four a processor; a read that waits for
        // one is a read that does not wait for the disk. Not there before 5.15.
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

    /// What of the newer flags of io_uring_setup(2) the kernel has: `DEFER_TASKRUN` (6.1), `COOP_TASKRUN`
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
        // SAFETY: the kernel writes at most `length` bytes to `memory`, which has as many (`prepare`). The
        // buffer is in `reads` and comes out of it only when the kernel has reported the end of this read;
        // moving it does not move its memory. If this ring is dropped before, `reads` leaks it. The
        // descriptor is open: its owner is in `reads`, too.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // Cannot be: there is an entry for each read in flight. The kernel knows nothing of it.
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
        // Cleared first: what happens meanwhile sets it again.
        self.event.clear();
        // With IORING_SETUP_DEFER_TASKRUN the kernel goes on with reads whose pages have come only when it is
        // entered. A flag in the shared memory says so.
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

/// The best that the kernel has.
fn build(capacity: u32) -> io::Result<(io_uring::IoUring, &'static str)> {
    // Linux 6.1: nothing of the ring happens but when this thread enters the kernel for it.
    let mut deferred = io_uring::IoUring::builder();
    deferred
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    // Linux 5.19: no interrupts of what this thread is doing.
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
            // A flag that it does not know.
            Err(told) if told.raw_os_error() == Some(libc::EINVAL) => error = told,
            built => return built.map(|ring| (ring, mode)),
        }
    }
    Err(error)
}

/// Whether the ring does what is needed here.
fn check(ring: &io_uring::IoUring) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    // Without the first, completions are lost when the queue of them overflows (which it does not).
    if ring.params().is_feature_nodrop() && probe.is_supported(opcode::Read::CODE) {
        return Ok(());
    }
    Err(io::ErrorKind::Unsupported.into())
}

/// Of one worker.
const KERNEL_THREADS_MAX: u32 = 64;
