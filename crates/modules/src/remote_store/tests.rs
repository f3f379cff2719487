//! Fake servers that fail in all the ways servers fail. The scripts determine what becomes of the
//! connections.

mod lost;
mod mixed;
mod pooled;
mod real;
