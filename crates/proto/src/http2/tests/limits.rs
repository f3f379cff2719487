//! Each limit: at it, nothing happens; one beyond, the connection ends with its reason.

use super::*;
use crate::hpack::{HpackEncoder, Indexing};

fn limited(limits: Http2Limits) -> Server {
    let options = Http2Options {
        limits,
        ..Http2Options::default()
    };
    Server::settled_with(options, b"")
}

/// Sends `input` as often as it is borne, and once more.
fn borne(server: &mut Server, times: u32, input: &[u8], reason: ConnectionError) {
    for _ in 0..times {
        server.takes(input);
    }
    ends(server, input, reason);
}

fn ends(server: &mut Server, input: &[u8], reason: ConnectionError) {
    assert_eq!(server.fails(input, reason.code()), reason.into());
}

const DEFAULT: fn() -> Http2Limits = Http2Limits::default;

#[test]
fn pings_are_counted_by_period() {
    let limits = Http2Limits {
        pings_max: 10,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    for _ in 0..5 {
        server.takes(&ping().repeat(10));
        assert_eq!(server.sent().len(), 10);
        server.now_s += PERIOD_S;
    }
    borne(&mut server, 10, &ping(), ConnectionError::PingFlood);
}

#[test]
fn pings_that_come_with_data_are_no_flood() {
    let limits = Http2Limits {
        pings_max: 10,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    server.takes(&get(1));
    server.answer(1, 0);
    for _ in 0..50 {
        let key = server.key(1);
        let out = &mut server.out;
        let more = AfterFrame::More;
        let written = server.connection.write_data_header(key, 1200, more, out);
        assert_eq!(written, Written::Yes);
        out.extend_from_slice(&[b'x'; 1200]);
        server.takes(&ping());
    }
    // One came with the request.
    borne(&mut server, 11, &ping(), ConnectionError::PingFlood);
}

#[test]
fn resets_of_streams_that_are_being_answered_are_counted_by_period() {
    let limits = Http2Limits {
        answered_resets_max: 10,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    let mut received = Ok(());
    for id in (1..63).step_by(2) {
        assert_eq!(received, Ok(()));
        if id == 21 {
            server.now_s += PERIOD_S;
        }
        server.takes(&[get(id), window(0, 1)].concat());
        let key = server.key(id);
        let (more, out) = (AfterFrame::More, &mut server.out);
        let head = (server.connection).write_head(key, Status::OK, &[], None, more, out);
        assert_eq!(head, Written::Yes);
        received = server.receive(&reset(id, ErrorCode::Cancel));
        server.release(id);
        if id == 41 {
            break;
        }
    }
    assert_eq!(received, Err(ConnectionError::RapidReset.into()));
}

#[test]
fn settings_are_counted_by_period() {
    let limits = Http2Limits {
        settings_max: 3,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    server.now_s += PERIOD_S;
    let empty = frame(SETTINGS, 0, 0, b"");
    borne(&mut server, 3, &empty, ConnectionError::SettingsFlood);
}

#[test]
fn frames_without_anything_are_counted() {
    let limits = Http2Limits {
        empty_frames_max: 5,
        ..DEFAULT()
    };
    for empty in [data(1, 0, b""), frame(DATA, flag::PADDED, 1, b"\x02\0\0")] {
        let mut server = limited(limits);
        server.takes(&upload(1, &[]));
        server.takes(&data(1, 0, b"filled").repeat(100));
        borne(&mut server, 6, &empty, ConnectionError::EmptyFrames);
    }
    let mut server = limited(limits);
    server.takes(&frame(HEADERS, 0, 1, b""));
    let empty = frame(CONTINUATION, 0, 1, b"");
    borne(&mut server, 4, &empty, ConnectionError::EmptyFrames);
}

#[test]
fn short_frames_of_a_body_are_counted_and_those_of_tunnels_are_not() {
    let limits = Http2Limits {
        small_frames_max: 20,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    server.takes(&upload(1, &[]));
    let short = data(1, flag::NONE, b"four");
    let long = data(1, flag::NONE, b"five!");
    for _ in 0..30 {
        server.takes(&long);
    }
    borne(&mut server, 20, &short, ConnectionError::SmallFrames);
}

#[test]
fn a_reason_of_the_owner_ends_the_connection_and_a_ping_is_answered_once() {
    let mut server = Server::settled();
    server.connection.ping();
    server.connection.ping();
    let sent = server.sent();
    assert_eq!((sent.len(), sent[0].kind), (1, PING));
    let pong = frame(PING, flag::ACK, 0, &sent[0].payload);
    assert_eq!(server.told(&pong), ["pong"]);
    server.takes(&pong);
    assert!(!server.connection.is_in_block());
    server.takes(&frame(HEADERS, 0, 1, b"")[..]);
    assert!(server.connection.is_in_block());
    server.connection.give_up(ConnectionError::BlockTooSlow);
    assert_eq!(server.sent().len(), 1);
}

#[test]
fn frames_that_change_nothing_are_counted() {
    let limits = Http2Limits {
        idle_frames_max: 20,
        ..DEFAULT()
    };
    for idle in [
        frame(PRIORITY, 0, 9, &[0; 5]),
        frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x09u=1"),
        frame(0x42, 0, 0, b"x"),
        frame(PING, flag::ACK, 0, &[0; 8]),
        frame(SETTINGS, flag::ACK, 0, b""),
        frame(PRIORITY, 0, 9, &[0; 4]),
        reset(1, ErrorCode::Cancel),
    ] {
        let mut server = limited(limits);
        server.takes(&get(1));
        server.answer(1, 1);
        server.release(1);
        borne(&mut server, 22, &idle, ConnectionError::IdleFrames);
    }
}

#[test]
fn resets_are_weighed_against_completed_streams() {
    let limits = Http2Limits {
        resets_max: 10,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    let mut ids = (1..).step_by(2);
    let rapid = |server: &mut Server, id| {
        server.takes(&get(id));
        let received = server.receive(&reset(id, ErrorCode::Cancel));
        server.release(id);
        received
    };
    for _ in 0..100 {
        let id = ids.next().unwrap_or_default();
        assert_eq!(rapid(&mut server, id), Ok(()));
        let id = ids.next().unwrap_or_default();
        server.takes(&get(id));
        server.answer(id, 1);
        server.release(id);
        // A reset behind the beginning of the answer is usual.
        let id = ids.next().unwrap_or_default();
        server.takes(&get(id));
        server.answer(id, 100_000);
        server.takes(&[reset(id, ErrorCode::Cancel), window(0, 65_535)].concat());
        server.release(id);
    }
    for id in ids.by_ref().take(10) {
        assert_eq!(rapid(&mut server, id), Ok(()));
    }
    let refused = rapid(&mut server, ids.next().unwrap_or_default());
    assert_eq!(refused, Err(ConnectionError::RapidReset.into()));
}

#[test]
fn resets_are_counted_by_period_and_not_forgiven_for_ever() {
    let limits = Http2Limits {
        resets_max: 10,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    let mut ids = (1..).step_by(2);
    let mut begin = |server: &mut Server| {
        let id = ids.next().unwrap_or_default();
        server.takes(&get(id));
        id
    };
    for _ in 0..2 * RESETS_EARNED_MAX {
        let id = begin(&mut server);
        let key = server.key(id);
        let (end, out) = (AfterFrame::EndOfStream, &mut server.out);
        let head = (server.connection).write_head(key, Status::OK, &[], None, end, out);
        assert_eq!(head, Written::Yes);
        server.release(id);
        server.sent();
    }
    let mut resets = |server: &mut Server, count: u32| -> Result<(), Http2Error> {
        for _ in 0..count {
            let id = begin(server);
            server.receive(&reset(id, ErrorCode::Cancel))?;
            server.release(id);
        }
        Ok(())
    };
    assert_eq!(resets(&mut server, RESETS_EARNED_MAX + 10), Ok(()));
    server.now_s += PERIOD_S;
    assert_eq!(resets(&mut server, 10), Ok(()));
    server.now_s += PERIOD_S;
    assert_eq!(resets(&mut server, 10), Ok(()));
    let refused = resets(&mut server, 1);
    assert_eq!(refused, Err(ConnectionError::RapidReset.into()));
}

#[test]
fn resets_that_the_client_has_this_side_send_count_as_well() {
    let limits = Http2Limits {
        resets_max: 10,
        ..DEFAULT()
    };
    // By a mistake of each kind, and by heads that are answered with a status.
    for mistake in [0, 1, 2, 3] {
        let mut server = limited(limits);
        let input = |id: u32| match mistake {
            0 => [get(id), window(id, 0)].concat(),
            1 => frame(HEADERS, flag::ALL, id, &block(&[(":path", "")])),
            2 => frame(HEADERS, flag::ALL, id, &post(&[("host", "b.example")])),
            _ => [get(id), data(id, 0, b"x")].concat(),
        };
        for id in (1..21).step_by(2) {
            server.takes(&input(id));
        }
        ends(&mut server, &input(21), ConnectionError::RapidReset);
    }
}

#[test]
fn a_stream_counts_until_it_is_released() {
    let limits = Http2Limits {
        streams_max: 5,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    for id in (1..11).step_by(2) {
        server.takes(&[get(id), reset(id, ErrorCode::Cancel)].concat());
    }
    // The backends still work.
    server.loses(&get(11), 11, ErrorCode::RefusedStream);
    server.release(3);
    server.story.clear();
    assert_eq!(server.told(&get(13)), ["request 13 GET / end"]);
    server.loses(&get(15), 15, ErrorCode::RefusedStream);
}

#[test]
fn a_stream_that_is_over_leaves_room_for_another() {
    let limits = Http2Limits {
        streams_max: 2,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    for id in [1, 3] {
        server.takes(&get(id));
        server.answer(id, 1);
    }
    server.story.clear();
    let told = server.told(&[get(5), get(7)].concat());
    assert_eq!(told, ["request 5 GET / end", "request 7 GET / end"]);
    // Over or not, there are not more than twice as many.
    server.answer(5, 1);
    server.loses(&get(9), 9, ErrorCode::RefusedStream);
    server.release(1);
    server.story.clear();
    assert_eq!(server.told(&get(11)), ["request 11 GET / end"]);
    server.release(3);
    server.loses(&get(13), 13, ErrorCode::RefusedStream);
}

#[test]
fn only_the_first_farewell_is_for_nothing() {
    let limits = Http2Limits {
        idle_frames_max: 20,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    let farewell = frame(GO_AWAY, 0, 0, &[0; 8]);
    borne(&mut server, 21, &farewell, ConnectionError::IdleFrames);
}

#[test]
fn data_of_a_stream_that_is_reset_are_counted_beyond_its_window() {
    let limits = Http2Limits {
        idle_frames_max: 20,
        ..DEFAULT()
    };
    for also_released in [false, true] {
        let options = Http2Options {
            stream_window: 100_000,
            limits,
            ..Http2Options::default()
        };
        let mut server = Server::settled_with(options, b"");
        server.takes(&upload(1, &[]));
        server.connection.reset(server.key(1), ErrorCode::Cancel);
        if also_released {
            server.release(1);
        }
        server.takes(&data(1, 0, &[0; 10]).repeat(9_999));
        // One frame, in whatever pieces it comes.
        let frame = data(1, 0, &[0; 100]);
        for byte in &frame {
            server.takes(&[*byte]);
        }
        borne(&mut server, 21, &frame, ConnectionError::IdleFrames);
    }
}

#[test]
fn ends_of_a_stream_that_is_reset_are_counted_though_they_are_empty() {
    let limits = Http2Limits {
        idle_frames_max: 20,
        ..DEFAULT()
    };
    for end in [
        data(1, flag::END, b""),
        frame(DATA, flag::END | flag::PADDED, 1, b"\x02\0\0"),
    ] {
        for also_released in [false, true] {
            let mut server = limited(limits);
            server.takes(&upload(1, &[]));
            server.connection.reset(server.key(1), ErrorCode::Cancel);
            if also_released {
                server.release(1);
            }
            borne(&mut server, 22, &end, ConnectionError::IdleFrames);
        }
    }
}

#[test]
fn a_head_in_too_many_pieces() {
    let mut server = limited(DEFAULT());
    server.takes(&frame(HEADERS, 0, 1, &post(&[])));
    let part = frame(CONTINUATION, 0, 1, &block(&[("a", "b")]));
    borne(&mut server, 32, &part, ConnectionError::ContinuationFlood);
}

#[test]
fn a_head_that_is_too_long_as_it_is_sent() {
    let mut server = limited(DEFAULT());
    server.takes(&frame(HEADERS, 0, 1, &post(&[])));
    let part = frame(CONTINUATION, 0, 1, &[0; 16_000]);
    borne(&mut server, 4, &part, ConnectionError::BlockTooLong);
}

#[test]
fn a_small_block_that_stands_for_a_large_list() {
    // A literal with incremental indexing, and its index.
    let mut head = vec![0x40];
    literal(&mut head, "x-bomb");
    literal(&mut head, &"x".repeat(3000));
    let with = |times: usize| [&post(&[])[..], &head, &[0xbe].repeat(times)].concat();
    // Large, but borne.
    let mut server = limited(DEFAULT());
    let told = server.told(&frame(HEADERS, flag::ALL, 1, &with(160)));
    assert_eq!(told, ["refused 1 HeadTooLarge end"]);
    let head = frame(HEADERS, flag::ALL, 3, &with(200));
    ends(&mut server, &head, ConnectionError::HeaderBomb);
}

#[test]
fn nothing_is_decoded_behind_the_longest_list() {
    // An entry of the table as the name of 1,000 literals, and an index that no table has.
    let mut head = vec![0x40];
    literal(&mut head, &"x".repeat(3000));
    literal(&mut head, "");
    let named = [0x0f, 0xbe - 0x80 - 15, 0].repeat(1000);
    let bomb = [&post(&[])[..], &head, &named, &[0xff, 0x7f]].concat();
    let mut server = limited(DEFAULT());
    let head = frame(HEADERS, flag::ALL, 1, &bomb);
    ends(&mut server, &head, ConnectionError::HeaderBomb);
}

#[test]
fn lines_behind_what_refuses_a_head_are_not_looked_at() {
    let mut server = limited(DEFAULT());
    let long = "x".repeat(9000);
    let lines = [("x", &long[..]), ("priority", "u=0")];
    let told = server.told(&frame(HEADERS, flag::ALL, 1, &post(&lines)));
    assert_eq!(told, ["refused 1 HeadTooLarge end"]);
    let priority = server.connection.priority(server.key(1));
    assert_eq!(priority.map(Priority::urgency), Some(3));
}

#[test]
fn lines_behind_the_longest_list_are_not_looked_at() {
    let limits = Http2Limits {
        list_bytes_max: 1000,
        ..DEFAULT()
    };
    let long = ("x-long", &"x".repeat(1000)[..]);
    let mut server = limited(limits);
    let head = frame(HEADERS, flag::ALL, 1, &post(&[("x-a", "b"), long, long]));
    ends(&mut server, &head, ConnectionError::HeaderBomb);
    assert_eq!(server.head.fields_named("x-a").count(), 1);
    assert_eq!(server.head.fields_named("x-long").count(), 0);
    let mut server = limited(limits);
    server.takes(&upload(1, &[]));
    let trailers = block(&[("x-a", "b"), long, ("x-b", "c")]);
    let trailers = frame(HEADERS, flag::ALL, 1, &trailers);
    ends(&mut server, &trailers, ConnectionError::HeaderBomb);
    assert_eq!(server.trailers.as_bytes(), b"x-a: b\r\n");
}

#[test]
fn ten_thousand_fields_are_refused_with_a_status() {
    let mut fields = post(&[]);
    let mut encoder = HpackEncoder::new();
    encoder.begin(&mut fields);
    for _ in 0..10_000 {
        encoder.field(&mut fields, b"a", b"", Indexing::Indexed);
    }
    let mut server = limited(DEFAULT());
    server.head_options.head_bytes_max = 1 << 20;
    let told = server.told(&frame(HEADERS, flag::ALL, 1, &fields));
    assert_eq!(told, ["refused 1 TooManyFields end"]);
    assert!(server.head.capacity() < 64 << 10);
}

#[test]
fn trailers_that_are_too_long() {
    let mut server = limited(DEFAULT());
    server.takes(&upload(1, &[]));
    let long = "x".repeat(9000);
    let trailers = frame(HEADERS, flag::ALL, 1, &block(&[("a", &long)]));
    server.loses(&trailers, 1, ErrorCode::EnhanceYourCalm);
}

#[test]
fn windows_that_open_by_trickles() {
    let limits = Http2Limits {
        window_updates_max: 50,
        ..DEFAULT()
    };
    let options = Http2Options {
        limits,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, &setting(4, 0));
    server.takes(&get(1));
    assert_eq!(server.answer(1, 1000), 0);
    // Two updates come with the request.
    for left in 0..52 {
        server.takes(&window(1, 1));
        assert_eq!(server.send(1, 1000 - left), 1);
    }
    ends(&mut server, &window(1, 1), ConnectionError::WindowTrickle);
}

#[test]
fn windows_that_open_as_they_are_used_are_no_trickle() {
    let limits = Http2Limits {
        window_updates_max: 50,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    server.takes(&get(1));
    server.answer(1, 0);
    let key = server.key(1);
    // A stream of events: each is small, and the client tells that it has read it.
    for _ in 0..1000 {
        let out = &mut server.out;
        let more = AfterFrame::More;
        let written = server.connection.write_data_header(key, 20, more, out);
        assert_eq!(written, Written::Yes);
        out.extend_from_slice(&[b'x'; 20]);
        server.takes(&[window(1, 20), window(0, 20)].concat());
    }
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let limits = Http2Limits {
        pings_max: u32::MAX,
        control_bytes_max: 1000,
        ..DEFAULT()
    };
    let mut server = limited(limits);
    for _ in 0..100 {
        // It reads now and then.
        server.takes(&ping().repeat(58));
        server.sent();
    }
    ends(&mut server, &ping().repeat(59), ConnectionError::NotReading);
}
