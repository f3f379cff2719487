//! Lua patterns with a limit on the work of one match.
//!
//! LuaJIT's own matcher backtracks in C, where no hook can stop it: `("a"):rep(30) .. "b"` against `a?a?a?…`
//! runs for minutes. This matcher does the same work step by step, counts, and stops. It is used for subjects
//! that are too long for LuaJIT's matcher, see [`Pattern::native_subject_max`]. Both find the same, including
//! LuaJIT's peculiarities: a pattern ends at its first zero byte, errors in a pattern count only when the
//! match reaches them, and `^` is literal in `gmatch`.
//!
//! Works on bytes and knows nothing of Lua values; `strings.rs` connects it to Lua.

mod compile;
mod matcher;

pub use compile::Pattern;
pub use matcher::{Capture, Found, Stop};

/// The most captures of a pattern.
pub(crate) const CAPTURES_MAX: usize = 32;

/// The deepest nesting of a match: captures, repetitions and options that are being tried.
pub(crate) const DEPTH_MAX: usize = 200;

/// The steps that one match on a subject of `subject_bytes` may take with the limit `steps_max`. Four steps
/// per byte are added, because work proportional to a long subject is legitimate.
#[must_use]
pub(crate) fn steps_for(steps_max: u64, subject_bytes: usize) -> u64 {
    steps_max.saturating_add(4 * subject_bytes as u64)
}

#[cfg(test)]
mod against_native;
