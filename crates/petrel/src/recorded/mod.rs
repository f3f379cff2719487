//! What the recorder has kept, in words and in the formats of other programs.
//!
//! `petrel why` shows it, and children of the keeper write it to the log and to files.

pub(crate) mod chrome;
pub(crate) mod lines;
pub(crate) mod otlp;
