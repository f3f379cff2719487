//! The bounds within which a configuration is read. Each is far above what people write; they keep
//! a broken generator or a hostile include from taking the machine down.

/// How deep blocks, arrays and includes may nest, all counted together.
pub(crate) const NESTING_MAX: usize = 64;

/// Bytes of one file.
pub(crate) const FILE_BYTES_MAX: usize = 16 << 20;

/// Bytes that one `include_shell` command may print.
pub(crate) const SHELL_OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Bytes of standard error of an `include_shell` command that a message repeats.
pub(crate) const SHELL_ERROR_BYTES_MAX: usize = 2048;

/// Files and command outputs of one configuration.
pub(crate) const SOURCES_MAX: usize = 20_000;

/// Bytes of all files and command outputs together.
pub(crate) const TOTAL_BYTES_MAX: usize = 64 << 20;

/// Bytes of values that expressions may copy: doubling a variable sixty times is a short file.
pub(crate) const COPIED_BYTES_MAX: usize = 256 << 20;

/// Errors that are kept and shown.
pub(crate) const ERRORS_MAX: usize = 20;

/// Names that one include pattern may match.
pub(crate) const GLOB_MATCHES_MAX: usize = 20_000;

/// Alternatives that the braces of one include pattern may expand to.
pub(crate) const GLOB_ALTERNATIVES_MAX: usize = 1_000;
