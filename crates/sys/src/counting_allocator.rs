//! A global allocator that counts, for tests that check that code does not allocate.
//!
//! It passes every request to the system's allocator. It counts allocations for each thread separately, so
//! that a test can observe a worker from another thread; growing one counts, freeing does not. It counts only
//! in programs that make it their `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The allocator. Make it the program's `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

/// How many threads are counted separately. Later threads share the last counter.
pub const THREADS_MAX: usize = 64;

/// How many allocations each thread has made, in the order of their first allocation.
pub fn allocations() -> [u64; THREADS_MAX] {
    std::array::from_fn(|thread| COUNTS[thread].load(Ordering::SeqCst))
}

/// The index of the calling thread in [`allocations`].
pub fn this_thread() -> usize {
    PLACE.with(|place| {
        if place.get() == NONE {
            place.set(THREADS.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX - 1));
        }
        place.get()
    })
}

/// How many allocations all threads but the calling one made between two counts.
pub fn by_others(before: &[u64; THREADS_MAX], after: &[u64; THREADS_MAX]) -> u64 {
    let all = before.iter().zip(after).enumerate();
    all.filter(|(thread, _)| *thread != this_thread())
        .map(|(_, (before, after))| after - before)
        .sum()
}

/// How many bytes all threads have allocated and not freed.
pub fn bytes_in_use() -> i64 {
    BYTES.load(Ordering::SeqCst)
}

/// Counts an allocation of the calling thread that adds `bytes` bytes.
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
    // A const initialiser and no destructor: access allocates nothing and works until the thread ends.
    static PLACE: Cell<usize> = const { Cell::new(NONE) };
}

// SAFETY: every call is passed to `System` with the caller's own arguments, and its result is returned
// unchanged, so its guarantees hold. Counting touches atomics and a thread-local cell that needs neither an
// allocation nor a destructor, so it never calls the allocator, and it cannot panic: the index is below
// `THREADS_MAX`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(length(layout));
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`, which are the same for `System`.
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
