//! Everything of the gateways that could grow, its limit and why that much.
//!
//! Limits an operator may want to change are options of a backend (`options.rs`); those here protect
//! against backends that have gone wrong.

/// Bytes of a reply's head, or of an interim one. Four times what browsers and proxies in front take,
/// because applications set many cookies.
pub const REPLY_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header fields of a reply's head.
pub const REPLY_FIELDS_MAX: usize = 256;

/// Interim responses (1xx) before the reply. A page has one 103, perhaps two; each costs the client
/// some bytes and us a send.
pub const INTERIM_HEADS_MAX: u32 = 16;

/// Bytes of what an application writes to its STDERR that get into the error log for one request.
/// What comes beyond is dropped and counted.
pub const STDERR_LOGGED_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes an application may write to its STDERR for one request at all. Beyond it has lost its mind,
/// and its connection is closed.
pub const STDERR_BYTES_MAX: u64 = 16 * 1024 * 1024;
