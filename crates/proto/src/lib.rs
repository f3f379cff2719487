//! Encodes and decodes protocols: HTTP, the protocols of backends and stores, and the small languages of
//! header fields.
//!
//! The whole crate is sans-IO: it uses no sockets, files, clocks or configuration files. Bytes, times and
//! options come in as arguments; events, ranges and bytes come out. The engine drives it, the modules use its
//! small parsers, and the fuzz targets call the same functions with random bytes. No input from a network may
//! make it panic.
//!
//! | module | what it knows |
//! |---|---|
//! | [`method`], [`status`] | the closed tables of methods and status codes |
//! | [`request_head`] | one request head of any HTTP version, and the rules for it |
//! | [`http1`] | HTTP/1 text: request heads, message bodies, and the bytes of response heads |
//! | [`http2`] | HTTP/2 frames and connections |
//! | [`hpack`] | header blocks of HTTP/2 |
//! | [`url`] | request targets, normalised as lighttpd 1.4 does |
//! | [`header_block`] | response header fields in wire form |
//! | [`trailers`] | which trailers are passed on |
//! | [`range`], [`conditional`], [`etag`], [`date`], [`accept`] | RFC 9110's small languages |
//! | [`fastcgi`], [`scgi`], [`uwsgi`], [`ajp13`] | the protocols of application servers |
//! | [`resp`], [`memcached`] | the protocols of stores: Redis and memcached |
//! | [`ldap`] | LDAP binds and searches, for authentication |
//! | [`cgi`] | the heads of CGI replies, in any protocol that carries them |
//! | [`reply_head`] | the head that the decoders of backends' replies fill in |
//! | [`proxy_protocol`], [`forwarded`] | the client's address, as a proxy in front reports it |
//! | [`client_hello`] | what a TLS client asks for, before there is a key |
//! | [`recording`] | what the recorder keeps of requests, and how it is read |
//! | [`sock_diag`] | what Linux says of a socket of this machine |
//! | [`stored_page`] | stored answers of the page cache, as bytes |
//! | [`syntax`] | the small rules that many fields share |
//! | [`trace_context`], [`otlp`] | the trace that a request belongs to; spans for OpenTelemetry |
//! | [`escape`] | escaping for HTML, JSON, URLs and logs |

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
pub mod json;
pub mod ldap;
pub mod memcached;
pub mod method;
pub mod otlp;
pub mod proxy_protocol;
pub mod range;
mod reasons;
pub mod recording;
pub mod reply_head;
pub mod request_head;
pub mod resp;
pub mod scgi;
pub mod sock_diag;
pub mod status;
pub mod stored_page;
pub mod syntax;
pub mod trace_context;
pub mod trailers;
pub mod url;
pub mod uwsgi;
