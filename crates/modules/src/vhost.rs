//! What the modules that make paths of host names share.

/// Whether `host` can be a part of a path: no slash or NUL, and no label that is empty, so that
/// neither the whole nor a label of it is `.` or `..`.
///
/// `server.http-parseopts` with host-strict ensures more; this holds without it as well.
pub(crate) fn is_safe_host(host: &[u8]) -> bool {
    host.split(|byte| *byte == b'.')
        .all(|label| !label.is_empty())
        && !host.iter().any(|byte| matches!(byte, b'/' | b'\0'))
}
