//! What the workers of a server have recorded of their requests, in memory that other programs read while the workers
//! write.
//!
//! [`layout`], [`region`], [`ring`] and [`record`] say what lies where; the engine writes it. [`Recording`] reads it:
//! whatever the memory holds, the result is records or an error.

pub mod layout;
mod read;
pub mod record;
pub mod region;
mod request_id;
pub mod ring;
mod stage;

pub use read::{KEPT, NowRecord, ReadError, Recording, Source, WorkerRecording};
pub use record::{Record, RecordFlag, RecordedWait};
pub use request_id::{NoRequestId, RequestId};
pub use stage::{Nanos, Stage, StageKind};
