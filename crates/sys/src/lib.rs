//! The few calls that need unsafe code, each behind a safe function with its proof.
//!
//! Every other crate but `petrel-lua` forbids unsafe code. Calls that rustix, nix or the standard library
//! offer as safe functions are not wrapped here.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod allocator;
pub mod child;
#[doc(hidden)]
pub mod counting_allocator;
pub mod page_cache;
pub mod pam;
pub mod pooled;
pub mod prefetch;
pub mod process;
pub mod ptrace;
pub mod read_queue;
pub mod readiness;
pub mod shared_memory;
pub mod socket;
pub mod spawn;
