//! The codecs of `lighty.c`, as lighttpd 1.4.69 has them. Bytes in, bytes out.

pub(super) mod backslash;
pub(super) mod base64;
pub(super) mod quoted;
pub(super) mod tokens;
pub(super) mod url;
pub(super) mod xml;
