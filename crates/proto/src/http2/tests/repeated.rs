//! Requests that repeat the head of the one before them.

use super::*;
use crate::request_head::BodyFraming;

/// POST, https, "/" by the static table, and the newest entry of the dynamic table.
const BY_TABLE: [u8; 4] = [0x83, 0x87, 0x84, 0xbe];

/// The same with an authority that becomes the newest entry.
fn with_authority(authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x87, 0x84, 0x41];
    literal(&mut block, authority);
    block
}

/// A server whose table has an authority.
fn server(authority: &str) -> Server {
    let mut server = Server::settled();
    server.takes(&frame(HEADERS, flag::ALL, 1, &with_authority(authority)));
    server
}

/// A request with this block, and the head that the server has read.
fn head<'s>(server: &'s mut Server, flags: u8, id: u32, block: &[u8]) -> &'s RequestHead {
    let told = server.told(&frame(HEADERS, flags, id, block));
    let begins = told
        .last()
        .is_some_and(|told| told.starts_with(&format!("request {id} POST /")));
    assert!(begins, "{told:?}");
    &server.head
}

fn is_kept(server: &Server) -> bool {
    server.connection.core.repeated_head.is_kept()
}

#[test]
fn a_head_that_comes_again_is_the_same() {
    let mut server = server("a.example");
    for id in [3, 5, 7, 9] {
        // What another request has left there is of no matter.
        server.head = RequestHead::new();
        let head = head(&mut server, flag::ALL, id, &BY_TABLE);
        assert_eq!((head.host(), head.target()), (&b"a.example"[..], &b"/"[..]));
        assert_eq!(head.framing(), BodyFraming::None);
        assert_eq!(head.field_count(), 1);
        assert_eq!(head.value_of("host"), Some(&b"a.example"[..]));
    }
    assert!(is_kept(&server));
}

#[test]
fn a_block_means_another_head_when_the_table_has_changed() {
    let mut server = server("a.example");
    for id in [3, 5, 7] {
        assert_eq!(
            head(&mut server, flag::ALL, id, &BY_TABLE).host(),
            b"a.example"
        );
    }
    for id in [9, 11, 13] {
        // Each of them adds an entry.
        head(&mut server, flag::ALL, id, &with_authority("b.example"));
    }
    assert_eq!(
        head(&mut server, flag::ALL, 15, &BY_TABLE).host(),
        b"b.example"
    );
    // An update of the size takes all entries out.
    let emptied = [&[0x20, 0x3f, 0xe1, 0x1f][..], &with_authority("c.example")].concat();
    head(&mut server, flag::ALL, 17, &emptied);
    assert_eq!(
        head(&mut server, flag::ALL, 19, &BY_TABLE).host(),
        b"c.example"
    );
}

#[test]
fn a_body_may_follow_a_head_that_came_without_one() {
    let mut server = server("a.example");
    for (id, flags, framing) in [
        (3, flag::ALL, BodyFraming::None),
        (5, flag::ALL, BodyFraming::None),
        (7, flag::END_HEADERS, BodyFraming::Chunked),
        (9, flag::END_HEADERS, BodyFraming::Chunked),
        (11, flag::END_HEADERS, BodyFraming::Chunked),
        (13, flag::ALL, BodyFraming::None),
    ] {
        assert_eq!(head(&mut server, flags, id, &BY_TABLE).framing(), framing);
    }
}

#[test]
fn a_head_that_comes_again_asks_for_its_priority_again() {
    let mut server = Server::settled();
    for id in [1, 3, 5, 7] {
        head(&mut server, flag::ALL, id, &post(&[("priority", "u=1, i")]));
        let priority = server.connection.priority(server.key(id));
        assert_eq!(priority, Some(Priority::new(1, true)));
    }
    assert!(is_kept(&server));
}

#[test]
fn what_is_tolerated_counts_for_heads_that_come_again() {
    let mut server = Server::settled();
    let block = block(&[(":authority", "A.example:443")]);
    let block = [&BY_TABLE[..3], &block].concat();
    for id in [1, 3, 5] {
        assert_eq!(
            head(&mut server, flag::ALL, id, &block).host(),
            b"a.example"
        );
    }
    server.head_options.default_port = 80;
    assert_eq!(
        head(&mut server, flag::ALL, 7, &block).host(),
        b"a.example:443"
    );
}

#[test]
fn a_head_that_is_malformed_is_refused_each_time() {
    let mut server = Server::settled();
    let block = post(&[("connection", "close")]);
    for id in [1, 3, 5] {
        let told = server.told(&frame(HEADERS, flag::ALL, id, &block));
        assert_eq!(told, [format!("error {id} Malformed")]);
    }
    assert!(!is_kept(&server));
}

#[test]
fn long_heads_are_not_kept_and_memory_is_given_back() {
    let mut server = Server::settled();
    for id in [1, 3, 5] {
        head(
            &mut server,
            flag::ALL,
            id,
            &post(&[("x-long", &"a".repeat(300))]),
        );
    }
    assert!(!is_kept(&server), "the block is long");
    let mut adds = with_authority("a.example");
    adds.push(0x40);
    literal(&mut adds, "x-long");
    literal(&mut adds, &"a".repeat(3000));
    head(&mut server, flag::ALL, 7, &adds);
    let short = [0x83, 0x87, 0x84, 0xbf, 0xbe];
    for id in [9, 11, 13] {
        head(&mut server, flag::ALL, id, &short);
    }
    assert!(!is_kept(&server), "the head is long");
    for id in [15, 17] {
        head(&mut server, flag::ALL, id, &[0x83, 0x87, 0x84, 0xbf]);
    }
    assert!(is_kept(&server));
    server.connection.shrink();
    assert!(!is_kept(&server));
}
