//! A global allocator that counts, for tests which promise that something allocates nothing.
//!
//! It hands every request on to the system's allocator and counts allocations (growing one is one
//! as well; giving back is none) for each thread by itself, so that a test can look at a server's
//! worker from another thread. Only with the feature `counting-allocator`, and only in programs
//! that name it as their `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The allocator. Name it as the program's `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

/// Threads that are told apart. Later ones share the last place.
pub const THREADS_MAX: usize = 64;

/// Allocations of each thread so far, in the order in which threads allocated first.
pub fn allocations() -> [u64; THREADS_MAX] {
    std::array::from_fn(|thread| COUNTS[thread].load(Ordering::SeqCst))
}

/// The calling thread's place in [`allocations`].
pub fn this_thread() -> usize {
    PLACE.with(|place| {
        if place.get() == NONE {
            place.set(THREADS.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX - 1));
        }
        place.get()
    })
}

/// Allocations between two counts by any thread but the calling one.
pub fn by_others(before: &[u64; THREADS_MAX], after: &[u64; THREADS_MAX]) -> u64 {
    let all = before.iter().zip(after).enumerate();
    all.filter(|(thread, _)| *thread != this_thread())
        .map(|(_, (before, after))| after - before)
        .sum()
}

/// Bytes that all threads have allocated and not given back.
pub fn bytes_in_use() -> i64 {
    BYTES.load(Ordering::SeqCst)
}

/// One more allocation of the calling thread, by which so many bytes more are in use.
fn count(bytes: i64) {
    BYTES.fetch_add(bytes, Ordering::SeqCst);
    COUNTS[this_thread()].fetch_add(1, Ordering::SeqCst);
}

fn length(layout: Layout) -> i64 {
    layout.size().cast_signed() as i64
}

static BYTES: AtomicI64 = AtomicI64::new(0);
static COUNTS: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];
static THREADS: AtomicUsize = AtomicUsize::new(0);
const NONE: usize = usize::MAX;

thread_local! {
    // Neither lazily made nor dropped: using it allocates nothing and works until a thread's end.
    static PLACE: Cell<usize> = const { Cell::new(NONE) };
}

// SAFETY: every call is handed on to `System` with the caller's own arguments, and what `System`
// answers is returned as it is, so its guarantees are ours. Counting touches atomics and a
// thread-local cell that needs neither allocation nor a destructor, so it never comes back here,
// and it cannot panic: the place is below `THREADS_MAX`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(length(layout));
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(length(layout));
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() as i64 - length(layout));
        // SAFETY: `pointer` came from `System` by one of the methods here, with this layout.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(length(layout), Ordering::SeqCst);
        // SAFETY: `pointer` came from `System` by one of the methods here, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
