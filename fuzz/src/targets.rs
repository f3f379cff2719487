// Every target: its module here, whose seeds are in `seeds/NAME/`, and the code that it is about, from the root of the
// work tree. `crates/proto/src/cgi` stands for `cgi.rs` and for everything in `cgi/`.
//
// The library makes its table and its tests of this file, and `cargo xtask fuzz` chooses targets by it.
targets! {
    ajp13: ["crates/proto/src/ajp13", "crates/proto/src/reply_head"],
    cgi_head: ["crates/proto/src/cgi", "crates/proto/src/reply_head"],
    client_hello: ["crates/proto/src/client_hello"],
    configuration: ["crates/config/src"],
    fastcgi: ["crates/proto/src/fastcgi", "crates/proto/src/cgi", "crates/proto/src/reply_head"],
    fields: [
        "crates/proto/src/accept",
        "crates/proto/src/conditional",
        "crates/proto/src/date",
        "crates/proto/src/escape",
        "crates/proto/src/etag",
        "crates/proto/src/trace_context",
    ],
    hpack: ["crates/proto/src/hpack"],
    http2_connection: ["crates/proto/src/http2", "crates/proto/src/hpack", "crates/proto/src/request_head"],
    http2_frames: ["crates/proto/src/http2"],
    http2_to_http1: [
        "crates/proto/src/http1",
        "crates/proto/src/http2",
        "crates/proto/src/request_head",
    ],
    ldap: ["crates/proto/src/ldap"],
    listen: ["crates/config/src/address", "crates/config/src/listen"],
    memcached: ["crates/proto/src/memcached", "crates/proto/src/crlf_line"],
    proxied: ["crates/proto/src/forwarded", "crates/proto/src/proxy_protocol"],
    range: ["crates/proto/src/range"],
    recorder: ["crates/proto/src/recording"],
    request_body: ["crates/proto/src/http1", "crates/proto/src/trailers"],
    request_head: [
        "crates/proto/src/http1",
        "crates/proto/src/request_head",
        "crates/proto/src/syntax",
    ],
    resp: ["crates/proto/src/resp", "crates/proto/src/crlf_line"],
    response: ["crates/proto/src/http1", "crates/proto/src/reply_head", "crates/proto/src/trailers"],
    scgi: ["crates/proto/src/scgi"],
    sock_diag: ["crates/proto/src/sock_diag"],
    stored_page: ["crates/proto/src/stored_page", "crates/proto/src/header_block"],
    template: ["crates/config/src/encode", "crates/config/src/template"],
    url: ["crates/proto/src/url"],
    uwsgi: ["crates/proto/src/uwsgi"],
}
