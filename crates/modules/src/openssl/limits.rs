//! Limits of TLS as it is configured.

/// Seconds after which a new secret makes tickets. Those of the one before it are taken for as long again.
pub(super) const TICKET_SECRET_S: u64 = 8 * 3600;
/// Secrets that are known at a time: as in lighttpd, and one that is to come.
pub(super) const TICKET_SECRETS_MAX: usize = 4;
/// The largest file of certificates, keys or revocation lists.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;
/// Certificates for challenges of ACME in a directory.
pub(super) const CHALLENGES_MAX: usize = 1000;
/// How many bytes of changed files the keeper hands to a server process at once.
pub(super) const CHANGE_BYTES_MAX: usize = 64 << 20;
