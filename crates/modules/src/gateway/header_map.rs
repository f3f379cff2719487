//! Header fields changed on the way to a backend and back.

/// `proxy.header`, `proxy.forwarded`, `proxy.replace-http-host`.
#[derive(Debug, Default)]
pub struct HeaderMap {}

/// `proxy-core.rewrite-request` and `proxy-core.rewrite-response`.
#[derive(Debug, Default)]
pub struct Rewriting {}
