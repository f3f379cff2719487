//! Servers that do what servers do when things go wrong. Their scripts say what becomes of connections.

mod lost;
mod mixed;
mod pooled;
mod real;
