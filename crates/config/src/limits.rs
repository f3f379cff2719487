//! The limits for reading a configuration. All are far above what people write. They protect the machine from
//! a broken generator or a hostile include.

/// How deep blocks, arrays and includes may be nested, all counted together.
pub(crate) const NESTING_MAX: usize = 64;

/// Bytes of one file.
pub(crate) const FILE_BYTES_MAX: usize = 16 << 20;

/// Bytes that one `include_shell` command may print.
pub(crate) const SHELL_OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Bytes of an `include_shell` command's standard error that a message shows.
pub(crate) const SHELL_ERROR_BYTES_MAX: usize = 2048;

/// Files and command outputs of one configuration.
pub(crate) const SOURCES_MAX: usize = 20_000;

/// Bytes of all files and command outputs together.
pub(crate) const TOTAL_BYTES_MAX: usize = 64 << 20;

/// Bytes of values that expressions may copy: a short file can double a variable sixty times.
pub(crate) const COPIED_BYTES_MAX: usize = 256 << 20;

/// Errors that are stored and shown.
pub(crate) const ERRORS_MAX: usize = 20;

/// Names that one include pattern may match.
pub(crate) const GLOB_MATCHES_MAX: usize = 20_000;

/// Alternatives that the braces of one include pattern may expand to.
pub(crate) const GLOB_ALTERNATIVES_MAX: usize = 1_000;
