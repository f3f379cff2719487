//! Limits of mod_openssl.

/// Seconds for which one secret makes tickets. Its tickets are accepted for as long again.
pub(super) const TICKET_SECRET_S: u64 = 8 * 3600;
/// Secrets that a process knows at a time: three, as in lighttpd, and one that becomes active later.
pub(super) const TICKET_SECRETS_MAX: usize = 4;
/// Bytes of a file with certificates, keys or revocation lists.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;
/// Certificates for ACME challenges that are read from one directory.
pub(super) const CHALLENGES_MAX: usize = 1000;
/// Bytes of changed files that the keeper hands to a server process at once.
pub(super) const CHANGE_BYTES_MAX: usize = 64 << 20;
