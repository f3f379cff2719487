//! Lua patterns with a limit on the work of one match.
//!
//! LuaJIT's own matcher backtracks in C, where no hook reaches it: `("a"):rep(30) .. "b"` against
//! `a?a?a?…` runs for minutes. This one does the same work step by step, counts, and stops. It is used
//! for subjects that are too long for the native one, see [`Pattern::native_subject_max`]; what either
//! finds is the same, including LuaJIT's peculiarities: a pattern ends at its first zero byte, faults
//! of a pattern count only when the match reaches them, `^` is literal in `gmatch`.
//!
//! Knows bytes only, nothing of Lua values; `strings.rs` is the bridge.

mod compile;
mod matcher;

pub use compile::Pattern;
pub use matcher::{Capture, Found, Stop};

/// Most captures of a pattern.
pub(crate) const CAPTURES_MAX: usize = 32;

/// Nesting of a match: captures, repetitions and options that are being tried.
pub(crate) const DEPTH_MAX: usize = 200;

/// Steps that one match over a subject of `subject_bytes` may take where the limit is `steps_max`:
/// work in proportion to a long subject is not what the limit is against, so four steps a byte are added.
#[must_use]
pub(crate) fn steps_for(steps_max: u64, subject_bytes: usize) -> u64 {
    steps_max.saturating_add(4 * subject_bytes as u64)
}

#[cfg(test)]
mod against_native;
