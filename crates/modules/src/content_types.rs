//! Content types that have two names.

/// The other name of JavaScript: RFC 9239 replaces `application/javascript` by `text/javascript`.
pub(crate) fn other_name(content_type: &str) -> Option<&'static str> {
    const NAMES: [&str; 2] = ["application/javascript", "text/javascript"];
    let at = NAMES
        .iter()
        .position(|name| name.eq_ignore_ascii_case(content_type))?;
    Some(NAMES[1 - at])
}
