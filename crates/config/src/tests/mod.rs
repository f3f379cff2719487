//! Tests of the whole crate: the language, the messages, files on disk, and random input.

mod diagnostics;
mod files;
mod language;
mod robustness;
