//! Kernel AIO: io_setup(2), io_submit(2), io_getevents(2), and an eventfd that counts reads that have ended.
//!
//! It is asynchronous for files that were opened with O_DIRECT. All reads are submitted with RWF_NOWAIT,
//! because io_submit would otherwise wait for the disk itself: during a whole read through the page cache,
//! and sometimes for one past it (a full queue of the device, a lock). With the flag such a read ends with
//! `WouldBlock`, and a thread that may wait has to do it. Bytes in the page cache are read while the request
//! is submitted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use super::event::Event;
use super::in_flight::{InFlight, wait_for_end};
use super::{Done, Read, ReadQueue, within_limits};

/// A context of kernel AIO.
pub struct KernelAio {
    context: Context,
    event: Event,
    reads: InFlight,
    /// Reads that io_submit was not given yet.
    gathered: Vec<libc::iocb>,
    /// The numbers of reads that could not be begun, with the negated errno.
    failed: Vec<(u64, i64)>,
}

impl KernelAio {
    /// A context for up to `capacity` reads at a time; at most [`CAPACITY_MAX`](super::CAPACITY_MAX).
    ///
    /// # Errors
    /// EAGAIN: more than the system allows (fs.aio-max-nr). ENOSYS: the kernel has no AIO. EPERM: forbidden
    /// by seccomp. EMFILE, ENOMEM.
    pub fn new(capacity: u32) -> io::Result<KernelAio> {
        let capacity = within_limits(capacity);
        Ok(KernelAio {
            context: Context::new(capacity)?,
            event: Event::new()?,
            reads: InFlight::new(capacity),
            gathered: Vec::new(),
            failed: Vec::new(),
        })
    }

    /// Passes the gathered reads from index `begin` on to the kernel. Returns how many it took.
    fn submit_from(&mut self, begin: usize) -> io::Result<usize> {
        let blocks = self.gathered.get_mut(begin..).unwrap_or_default();
        let mut blocks: Vec<*mut libc::iocb> = blocks.iter_mut().map(ptr::from_mut).collect();
        let count = libc::c_long::try_from(blocks.len()).unwrap_or(libc::c_long::MAX);
        // SAFETY: `blocks` has `count` pointers to control blocks. The kernel copies the blocks and writes to
        // their `aio_key` before it returns, and not later. They point to memory of buffers, each at least
        // `aio_nbytes` long (`prepare`). The buffers are in `reads` until the kernel has reported the end of
        // their reads, and are leaked if this is dropped before that. The descriptors are open: their owners
        // are in `reads`, and the eventfd belongs to this queue. After the call the kernel holds its own
        // references to the files.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context.id,
                count,
                blocks.as_mut_ptr(),
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }
}

impl ReadQueue for KernelAio {
    fn submit(&mut self, mut read: Read) -> Result<(), (Read, io::Error)> {
        if let Err(error) = read.prepare(self.reads.len(), self.reads.capacity()) {
            return Err((read, error));
        }
        let mut block = empty_block();
        block.aio_lio_opcode = READ;
        block.aio_rw_flags = libc::RWF_NOWAIT;
        block.aio_flags = WITH_EVENTFD;
        block.aio_resfd = self.event.as_raw_fd().cast_unsigned();
        block.aio_fildes = read.raw_descriptor().cast_unsigned();
        block.aio_buf = read.buffer.as_mut_ptr().expose_provenance() as u64;
        block.aio_nbytes = read.length as u64;
        block.aio_offset = read.offset.cast_signed();
        match self.reads.put(read) {
            Ok(number) => block.aio_data = number.into(),
            Err(read) => return Err((read, io::ErrorKind::WouldBlock.into())),
        }
        self.gathered.push(block);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut begun = 0;
        while let Some(first) = self.gathered.get(begun) {
            let number = first.aio_data;
            match self.submit_from(begun) {
                Ok(0) => break,
                Ok(count) => begun += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The error is that of the first block: io_submit stops before a block that it cannot take.
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.failed.push((number, -i64::from(errno)));
                    self.event.set();
                    begun += 1;
                }
            }
        }
        self.gathered.drain(..begun.min(self.gathered.len()));
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn completed(&mut self, done: &mut Vec<Done>) {
        // Cleared before reading, so that a read that ends meanwhile sets it again.
        self.event.clear();
        for (number, result) in self.failed.drain(..) {
            done.extend(self.reads.take(number, result));
        }
        let mut events = [NO_EVENT; EVENTS_AT_ONCE];
        loop {
            let events = self.context.events(&mut events);
            for event in events {
                done.extend(self.reads.take(event.data, event.result));
            }
            if events.len() < EVENTS_AT_ONCE {
                break;
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.reads.len()
    }

    fn capacity(&self) -> usize {
        self.reads.capacity()
    }
}

impl Drop for KernelAio {
    fn drop(&mut self) {
        // The kernel was not told of these reads.
        for block in self.gathered.drain(..) {
            let number = u32::try_from(block.aio_data).unwrap_or(u32::MAX);
            drop(self.reads.give_back(number));
        }
        wait_for_end(self);
        // io_destroy(2) waits without a limit until all reads have ended. If some have not, the context stays
        // with the kernel, which destroys it with the process, and `reads` leaks their memory.
        if self.reads.len() == 0 {
            self.context.destroy();
        }
    }
}

/// The kernel's context, known by its number.
struct Context {
    id: libc::c_ulong,
}

impl Context {
    fn new(capacity: u32) -> io::Result<Context> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of the new context to `id`, which lives through the call.
        match unsafe { libc::syscall(libc::SYS_io_setup, capacity, &raw mut id) } {
            0 => Ok(Context { id }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The reads that have ended, at most as many as `events` has room for.
    fn events<'a>(&self, events: &'a mut [AioEvent]) -> &'a [AioEvent] {
        let room = libc::c_long::try_from(events.len()).unwrap_or(0);
        let none: *const libc::timespec = ptr::null();
        // SAFETY: there is room for that many events, in the kernel's layout. The call does not wait and
        // keeps no pointer. For a context that does not exist it returns an error.
        let count = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                0 as libc::c_long,
                room,
                events.as_mut_ptr(),
                none,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        events.get(..count).unwrap_or_default()
    }

    fn destroy(&mut self) {
        // SAFETY: takes a number. No read is under way, so the call neither waits nor interrupts one.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AioEvent {
    /// The `aio_data` of the control block.
    data: u64,
    block: u64,
    /// A count of bytes, or a negated errno.
    result: i64,
    result2: i64,
}

const NO_EVENT: AioEvent = AioEvent {
    data: 0,
    block: 0,
    result: 0,
    result2: 0,
};

fn empty_block() -> libc::iocb {
    // SAFETY: all fields are numbers, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// IOCB_CMD_PREAD of linux/aio_abi.h.
const READ: u16 = 0;
/// IOCB_FLAG_RESFD of linux/aio_abi.h.
const WITH_EVENTFD: u32 = 1;
const EVENTS_AT_ONCE: usize = 64;
