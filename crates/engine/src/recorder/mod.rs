//! The recorder: the last requests of each worker, the last errors, and the slowest requests of each host, in
//! memory that outlives the server process.
//!
//! The keeper makes the memory ([`SharedMemory`]). Each worker writes a record of every request that is over
//! into a region of its own: no allocation, no lock, no system call, no reading of a clock. `petrel why` gets
//! the descriptor of the memory and reads it ([`Recording`](petrel_proto::recording::Recording)); so does a child of the keeper without
//! privileges after a crash. The keeper itself reads none of it.
//!
//! Nothing here knows an exchange: `exchange/finished.rs` says what is recorded of one.

mod memory;
mod record;
mod ring;
mod source;
mod words;
mod writer;

pub use memory::{SharedMemory, layout_hash};
pub use petrel_sys::shared_memory::Words;
pub(crate) use record::{Finished, cut};
pub use source::FileSource;
pub use words::{percent_of, where_time_went};
pub(crate) use writer::Recorder;
pub use writer::RecorderSize;

#[cfg(test)]
mod tests;
