//! Tests of several modules together, without a socket. The allocator counts for those that say what is allocated.
#![forbid(unsafe_code)]

mod any_value;
mod causes;
mod dry_run;
mod gateway_allocations;
mod hello;

use petrel_sys::counting_allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
