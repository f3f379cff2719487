//! What is counted exactly: allocations, system calls, instructions, memory.
//!
//! One test runs after another, however many threads the harness has: each begins with [`alone`]. The server
//! of some tests is in this process, and all its allocations are counted.

mod allocations;
mod costs;
mod in_process;
mod memory;
mod notes_of_waits;
mod routes;
mod start;

use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::counting_allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Waits until no other test runs. None begins while the result lives.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
