//! Bytes to messages and back: HTTP/1, URLs, ranges, dates, ETags, conditions.
//!
//! Everything here is sans-IO. Nothing in this crate sees a socket, a file, a clock or a
//! configuration file: bytes, times and options come in as arguments; events, ranges and bytes
//! come out. The engine drives it; the modules use its small parsers; the fuzz targets call the
//! same functions with random bytes. Nothing that arrives from a network may make it panic.
//!
//! | module | what it knows |
//! |---|---|
//! | [`method`], [`status`] | the closed tables of methods and status codes |
//! | [`request_head`] | one request head, however it came, and the rules it obeys |
//! | [`http1`] | HTTP/1 text: request heads, message bodies, and the bytes of response heads |
//! | [`http2`] | HTTP/2 frames |
//! | [`hpack`] | header blocks of HTTP/2 |
//! | [`url`] | request targets, normalised as lighttpd 1.4 does |
//! | [`header_block`] | response header fields in wire form |
//! | [`trailers`] | which trailers go on to the other side |
//! | [`range`], [`conditional`], [`etag`], [`date`], [`accept`] | RFC 9110's small languages |
//! | [`fastcgi`], [`scgi`], [`uwsgi`], [`ajp13`] | the protocols of application servers |
//! | [`resp`], [`memcached`] | the protocols of stores: Redis and memcached |
//! | [`ldap`] | binds and searches, for log-ins |
//! | [`cgi`] | the heads of CGI replies, whatever carries them |
//! | [`reply_head`] | what decoders of backends' replies fill in |
//! | [`proxy_protocol`], [`forwarded`] | whom a proxy in front has got a request from |
//! | [`client_hello`] | what a TLS client asks for, before there is a key |
//! | [`syntax`] | the small rules that many fields share |
//! | [`escape`] | text made safe for HTML, JSON, URLs and logs |

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod accept;
pub mod ajp13;
pub mod cgi;
pub mod client_hello;
pub mod conditional;
mod crlf_line;
pub mod date;
pub mod escape;
pub mod etag;
pub mod fastcgi;
pub mod forwarded;
pub mod header_block;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod ldap;
pub mod memcached;
pub mod method;
pub mod proxy_protocol;
pub mod range;
mod reasons;
pub mod reply_head;
pub mod request_head;
pub mod resp;
pub mod scgi;
pub mod status;
pub mod syntax;
pub mod trailers;
pub mod url;
pub mod uwsgi;
