//! The recorder: the last requests, in memory that outlives the server process.

mod memory;

pub use memory::{SharedMemory, layout_hash};
pub use petrel_sys::shared_memory::Words;
