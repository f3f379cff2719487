//! A conversation that arrives in pieces tells the same.

use super::*;

/// A client that does all that clients do.
fn conversation() -> Vec<u8> {
    let padded = [&[4, 0, 0, 0, 0, 15], &post(&[("a", "b")])[..], &[0; 4]].concat();
    let (first, rest) = padded.split_at(20);
    let part = [&[0, 0, 0, 0, 15], &first[6..]].concat();
    [
        PREFACE.to_vec(),
        frame(
            SETTINGS,
            0,
            0,
            &[setting(4, 100_000), setting(3, 7)].concat(),
        ),
        frame(SETTINGS, flag::ACK, 0, b""),
        get(1),
        frame(
            HEADERS,
            flag::ALL | flag::PADDED | flag::PRIORITY,
            3,
            &padded,
        ),
        frame(HEADERS, flag::END | flag::PRIORITY, 5, &part),
        frame(CONTINUATION, 0, 5, b""),
        frame(CONTINUATION, flag::END_HEADERS, 5, &rest[..rest.len() - 4]),
        upload(7, &[("content-length", "10"), ("priority", "u=1, i")]),
        data(7, 0, b"hel"),
        frame(0x77, 3, 9, b"what is this"),
        frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x07u=7"),
        frame(DATA, flag::PADDED, 7, b"\x05lo wo\0\0\0\0\0"),
        ping(),
        window(7, 100),
        data(7, flag::END, b"rl"),
        window(0, 1000),
        upload(9, &[]),
        data(9, 0, b""),
        frame(DATA, flag::PADDED, 9, b"\x00"),
        reset(9, ErrorCode::Cancel),
        upload(11, &[]),
        frame(HEADERS, flag::ALL, 11, &block(&[("sum", "1")])),
        frame(HEADERS, flag::ALL, 13, &block(&[(":path", "/")])),
        upload(15, &[("content-length", "0")]),
        data(15, 0, b"too long"),
        data(15, flag::END, b"more"),
        frame(GO_AWAY, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
        data(1, 0, b"half-closed"),
        data(9, 0, b"closed"),
        ping(),
    ]
    .concat()
}

fn told(pieces: &[&[u8]]) -> (Story, Option<Http2Error>, Vec<Sent>) {
    let mut server = Server::new(Http2Options::default());
    let mut error = None;
    for piece in pieces {
        if let Err(found) = server.receive(piece) {
            error = Some(found);
            break;
        }
    }
    (std::mem::take(&mut server.story), error, server.sent())
}

#[test]
fn a_conversation_in_pieces_tells_the_same() {
    let input = conversation();
    let whole = told(&[&input]);
    assert_eq!(whole.0.len(), 15, "{:?}", whole.0);
    assert_eq!(whole.1, Some(ConnectionError::ClosedStream.into()));
    for cut in 0..=input.len() {
        let (first, second) = input.split_at(cut);
        assert_eq!(told(&[first, second]), whole, "cut at {cut}");
    }
    for length in 1..20 {
        let pieces: Vec<_> = input.chunks(length).collect();
        assert_eq!(told(&pieces), whole, "pieces of {length}");
    }
}
