//! What a connection takes while nothing happens on it.

use super::*;
use crate::hpack::write_literal;

#[test]
fn an_idle_connection_is_small() {
    // With what is behind pointers: control frames are sent, and there are no streams.
    let bytes = size_of::<Http2Connection>();
    assert!(bytes <= 1024, "{bytes}");
}

#[test]
fn memory_of_header_blocks_is_given_back() {
    let mut server = Server::settled();
    server.takes(&frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x09u=1"));
    let mut head = post(&[]);
    write_literal(&mut head, b"x-coded", &[b'a'; 100]);
    server.takes(&frame(HEADERS, flag::ALL, 9, &head));
    assert!(server.connection.core.decoder.text_capacity() > 0);
    server.connection.shrink();
    let core = &server.connection.core;
    assert_eq!(core.early_priorities.capacity(), 0);
    assert_eq!(core.decoder.text_capacity(), 0);
}

#[test]
fn memory_of_streams_is_given_back() {
    let mut server = Server::settled();
    let ids = (1..201).step_by(2);
    for id in ids.clone() {
        server.takes(&get(id));
        server.connection.mark_ready(server.key(id), 1);
    }
    server.connection.shrink();
    assert_eq!(server.connection.stream_count(), 100);
    for id in ids {
        assert_eq!(server.answer(id, 10), 10);
        server.release(id);
    }
    server.sent();
    server.connection.shrink();
    assert_eq!(server.connection.core.control.capacity(), 0);
    assert_eq!(
        server.told(&get(201)).pop(),
        Some("request 201 GET / end".to_owned())
    );
}
