use super::*;

const CONTINUES: AfterFrame = AfterFrame::More;
const ENDS: AfterFrame = AfterFrame::EndOfStream;

#[test]
fn the_first_frame_is_settings_and_opens_the_connection() {
    let mut server = Server::new(Http2Options::default());
    let sent = server.sent();
    let kinds: Vec<_> = sent.iter().map(|sent| (sent.kind, sent.stream)).collect();
    assert_eq!(kinds, [(SETTINGS, 0), (WINDOW, 0)]);
    // As wide as the windows of 100 streams, and of some that are wider.
    assert_eq!(sent[1].number(), 100 * 65_535 + 8 * (192 << 10));
}

#[test]
fn an_answer_of_all_parts() {
    let mut server = Server::settled();
    server.takes(&get(1));
    let key = server.key(1);
    let Server {
        connection, out, ..
    } = &mut server;
    let hints = b"Link: </a.css>\r\n";
    assert_eq!(
        connection.write_interim(key, Status::EARLY_HINTS, hints, out),
        Written::Yes
    );
    let lines =
        b"Server: petrel\r\nConnection: close\r\nKeep-Alive: 1\r\nTransfer-Encoding: chunked\r\n\
        Content-Length: 9\r\nUpgrade: x\r\nTrailer: sum\r\nX-Empty:\r\n";
    let head = connection.write_head(key, Status::OK, &[lines], Some(5), CONTINUES, out);
    assert_eq!(head, Written::Yes);
    assert_eq!(
        connection.write_interim(key, Status::CONTINUE, b"", out),
        Written::No
    );
    assert_eq!(
        connection.write_data_header(key, 5, CONTINUES, out),
        Written::Yes
    );
    out.extend_from_slice(b"hello");
    assert_eq!(
        connection.write_trailers(key, b"Sum: 1\r\n", out),
        Written::Yes
    );
    assert_eq!(connection.write_data_header(key, 0, ENDS, out), Written::No);
    let sent = server.sent();
    let mut decoder = HpackDecoder::new(4096);
    let mut told = Vec::new();
    for sent in &sent {
        let text = match sent.kind {
            HEADERS => fields(&mut decoder, &sent.payload)
                .into_iter()
                .map(|(name, value)| format!("{name}={value} "))
                .collect(),
            _ => String::from_utf8_lossy(&sent.payload).into_owned(),
        };
        told.push((sent.flags, text));
    }
    let expected = [
        (flag::END_HEADERS, ":status=103 link=</a.css> "),
        (
            flag::END_HEADERS,
            ":status=200 content-length=5 server=petrel trailer=sum x-empty= ",
        ),
        (flag::NONE, "hello"),
        (flag::ALL, "sum=1 "),
    ];
    assert_eq!(told, expected.map(|(flags, text)| (flags, text.to_owned())));
    server.release(1);
    assert!(server.sent().is_empty());
    assert_eq!(server.connection.stream_count(), 0);
}

#[test]
fn windows_hold_an_answer_back() {
    let small = setting(4, 10);
    let mut server = Server::settled_with(Http2Options::default(), &small);
    server.takes(&get(1));
    assert_eq!(server.answer(1, 25), 10);
    let key = server.key(1);
    server.connection.mark_ready(key, 15);
    assert_eq!(server.connection.next_to_send(), None);
    let wait = server.connection.window_wait(key);
    assert_eq!(wait, Some(WindowWait::Stream));
    let out = &mut server.out;
    let written = server.connection.write_data_header(key, 1, ENDS, out);
    assert_eq!(written, Written::No);
    server.takes(&window(1, 5));
    assert_eq!(server.connection.next_to_send(), Some(key));
    assert_eq!(server.send(1, 10), 5);
    // The initial window moves those that are open, also below 0.
    server.takes(&frame(SETTINGS, 0, 0, &setting(4, 0)));
    server.takes(&window(1, 10));
    assert_eq!(server.connection.next_to_send(), None);
    server.takes(&frame(SETTINGS, 0, 0, &setting(4, 5)));
    assert_eq!(server.send(1, 5), 5);
}

#[test]
fn the_window_of_the_connection_holds_all_back() {
    let large = setting(4, 1 << 20);
    let mut server = Server::settled_with(Http2Options::default(), &large);
    server.takes(&[get(1), get(3)].concat());
    assert_eq!(server.answer(1, 100_000), 65_535);
    assert_eq!(server.answer(3, 100_000), 0);
    for id in [1, 3] {
        server.connection.mark_ready(server.key(id), 30_000);
        let wait = server.connection.window_wait(server.key(id));
        assert_eq!(wait, Some(WindowWait::Connection));
    }
    assert_eq!(server.connection.next_to_send(), None);
    server.takes(&window(0, 1024));
    assert_eq!(server.connection.next_to_send(), Some(server.key(1)));
    assert_eq!(server.connection.send_room(server.key(3)), 1024);
}

#[test]
fn a_window_that_is_nearly_empty_waits_for_a_useful_amount() {
    let mut server = Server::settled();
    server.takes(&get(1));
    assert_eq!(server.answer(1, 100_000), 65_535);
    let key = server.key(1);
    server.connection.mark_ready(key, 100_000 - 65_535);
    server.takes(&[window(1, 1023), window(0, 5000)].concat());
    assert_eq!(server.connection.next_to_send(), None);
    assert_eq!(server.connection.window_wait(key), Some(WindowWait::Stream));
    server.takes(&window(1, 1));
    assert_eq!(server.connection.next_to_send(), Some(key));
    assert_eq!(server.connection.window_wait(key), None);
    // What is ready fits, though the window has little room.
    server.send_part(1, 1000);
    server.connection.mark_ready(key, 1000);
    assert_eq!(server.connection.next_to_send(), None);
    server.connection.mark_ready(key, 24);
    assert_eq!(server.connection.next_to_send(), Some(key));
}

#[test]
fn half_of_a_small_window_is_a_useful_amount() {
    let mut server = Server::settled_with(Http2Options::default(), &setting(4, 255));
    server.takes(&get(1));
    assert_eq!(server.answer(1, 1000), 255);
    let key = server.key(1);
    server.connection.mark_ready(key, 745);
    server.takes(&window(1, 126));
    assert_eq!(server.connection.next_to_send(), None);
    server.takes(&window(1, 1));
    assert_eq!(server.connection.next_to_send(), Some(key));
    // With a window of 0, the client may open it in steps of any size.
    server.takes(&frame(SETTINGS, 0, 0, &setting(4, 0)));
    server.takes(&window(1, 129));
    assert_eq!(server.connection.next_to_send(), Some(key));
    assert_eq!(server.connection.send_room(key), 1);
}

/// `nghttp -W10`: the client opens the window of its connection, which begins with 65,535 bytes, in small steps.
#[test]
fn half_of_a_step_in_which_the_connection_is_opened_is_a_useful_amount() {
    let mut server = Server::settled();
    server.takes(&[get(1), window(1, 1 << 20)].concat());
    assert_eq!(server.answer(1, 1 << 20), 65_535);
    let key = server.key(1);
    server.connection.mark_ready(key, 1 << 20);
    server.takes(&window(0, 1023));
    server.send_part(1, 64);
    assert_eq!(server.connection.next_to_send(), Some(key));
    server.send_part(1, 959);
    server.takes(&window(0, 511));
    assert_eq!(server.connection.next_to_send(), None);
    let wait = server.connection.window_wait(key);
    assert_eq!(wait, Some(WindowWait::Connection));
    server.takes(&window(0, 1));
    assert_eq!(server.connection.next_to_send(), Some(key));
    // A client that opened it by more once does not get small frames.
    server.takes(&window(0, 20_000));
    server.send_part(1, 16_384);
    server.send_part(1, 4128);
    server.takes(&window(0, 1023));
    assert_eq!(server.connection.next_to_send(), None);
}

#[test]
fn frames_are_as_long_as_the_client_takes_them() {
    let settings = [setting(5, 20_000), setting(4, 1 << 20)].concat();
    let mut server = Server::settled_with(Http2Options::default(), &settings);
    server.takes(&get(1));
    assert_eq!(server.connection.send_room(server.key(1)), 20_000);
    let long = format!("X-Long: {}\r\n", "\u{1}".repeat(30_000));
    let key = server.key(1);
    let out = &mut server.out;
    let written =
        (server.connection).write_head(key, Status::OK, &[long.as_bytes()], None, ENDS, out);
    assert_eq!(written, Written::Yes);
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].flags), (HEADERS, flag::END));
    assert_eq!(sent[0].payload.len(), 20_000);
    assert!(sent[1..].iter().all(|sent| sent.kind == CONTINUATION));
    assert_eq!(sent.last().map(|sent| sent.flags), Some(flag::END_HEADERS));
}

#[test]
fn control_frames_go_ahead_of_what_was_written_after_them() {
    let mut server = Server::settled();
    server.takes(&[get(1), ping(), frame(SETTINGS, 0, 0, &setting(1, 0))].concat());
    assert!(server.connection.has_control());
    server.answer(1, 3);
    let kinds: Vec<_> = server.sent().iter().map(|sent| sent.kind).collect();
    assert_eq!(kinds, [PING, SETTINGS, HEADERS, DATA]);
}

#[test]
fn turns_go_by_urgency_and_shares() {
    let mut server = Server::settled();
    for (id, priority) in [(1, "u=5"), (3, "i"), (5, "i"), (7, ""), (9, "u=0")] {
        let fields = [&PSEUDO[..], &[("priority", priority)]].concat();
        server.takes(&frame(HEADERS, flag::ALL, id, &block(&fields)));
        assert_eq!(server.answer(id, 0), 0);
        server.connection.mark_ready(server.key(id), 1);
    }
    let mut order = Vec::new();
    for _ in 0..9 {
        let key = server.connection.next_to_send().expect("all have room");
        order.push(key.id());
        let out = &mut server.out;
        let after = if key.id() == 9 { ENDS } else { CONTINUES };
        let written = server.connection.write_data_header(key, 1, after, out);
        assert_eq!(written, Written::Yes);
        out.push(b'x');
    }
    assert_eq!(order, [9, 7, 3, 7, 5, 7, 3, 7, 5]);
    // A stream that waits for its turn may become more urgent.
    for urgency in [0, 5] {
        let key = server.key(1);
        server
            .connection
            .set_priority(key, Priority::new(urgency, false));
        let is_next = server.connection.next_to_send() == Some(key);
        assert_eq!(is_next, urgency == 0);
    }
    for id in [3, 5, 7] {
        server.connection.mark_waiting(server.key(id));
    }
    assert_eq!(server.connection.next_to_send().map(StreamKey::id), Some(1));
    server.takes(&reset(1, ErrorCode::Cancel));
    assert_eq!(server.connection.next_to_send(), None);
}

#[test]
fn streams_without_priorities_share_the_connection() {
    let mut server = Server::settled();
    let mut order = Vec::new();
    for id in [1, 3] {
        server.takes(&get(id));
        server.answer(id, 0);
        server.connection.mark_ready(server.key(id), 1);
    }
    for _ in 0..4 {
        let key = server.connection.next_to_send().expect("both have room");
        order.push(key.id());
        let out = &mut server.out;
        let written = server.connection.write_data_header(key, 1, CONTINUES, out);
        assert_eq!(written, Written::Yes);
        out.push(b'x');
    }
    assert_eq!(order, [1, 3, 1, 3]);
}

#[test]
fn going_away_loses_no_request() {
    let mut server = Server::settled();
    server.takes(&get(1));
    server.connection.go_away();
    let sent = server.sent();
    assert_eq!(sent[0].payload[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    server.story.clear();
    // What was on its way is taken.
    assert_eq!(server.told(&upload(3, &[])), ["request 3 POST / more"]);
    server.connection.go_away();
    server.connection.go_away();
    let sent = server.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].payload[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    // What comes behind it is not looked at, but for tables and windows.
    assert!(
        server
            .told(&[upload(5, &[]), data(5, flag::END, b"x")].concat())
            .is_empty()
    );
    assert!(server.told(&reset(5, ErrorCode::Cancel)).is_empty());
    assert_eq!(server.told(&data(3, flag::END, b"x")), ["data 3", "end 3"]);
    for id in [1, 3] {
        assert_eq!(server.answer(id, 10), 10);
        server.release(id);
    }
    assert_eq!(server.connection.stream_count(), 0);
}

#[test]
fn a_stream_that_is_released_early_is_reset() {
    let mut server = Server::settled();
    server.takes(&[get(1), upload(3, &[]), get(5), get(7)].concat());
    server.answer(3, 1);
    server.answer(5, 1);
    server.takes(&reset(7, ErrorCode::Cancel));
    server.sent();
    for id in [1, 3, 5, 7] {
        let key = server.key(id);
        server.release(id);
        server.connection.release(key);
    }
    let told: Vec<_> = server
        .sent()
        .iter()
        .map(|sent| (sent.stream, sent.number()))
        .collect();
    let codes = [ErrorCode::InternalError, ErrorCode::NoError];
    assert_eq!(told, [(1, codes[0].number()), (3, codes[1].number())]);
}

#[test]
fn nothing_is_written_behind_the_farewell_to_a_client_that_errs() {
    let options = Http2Options {
        stream_window: 100,
        connection_window: 0,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, b"");
    server.takes(&[get(1), get(3), upload(5, &[])].concat());
    server.takes(&data(5, flag::NONE, &[0; 90]));
    server.answer(3, 0);
    server.connection.mark_ready(server.key(3), 1);
    server.fails(&get(2), ErrorCode::ProtocolError);
    let keys = [1, 3, 5].map(|id| server.key(id));
    for key in keys {
        let Server {
            connection, out, ..
        } = &mut server;
        assert_eq!(connection.next_to_send(), None);
        let interim = connection.write_interim(key, Status::CONTINUE, b"", out);
        assert_eq!(interim, Written::No);
        let head = connection.write_head(key, Status::OK, &[], None, ENDS, out);
        assert_eq!(head, Written::No);
        assert_eq!(connection.write_data_header(key, 0, ENDS, out), Written::No);
        assert_eq!(connection.write_trailers(key, b"", out), Written::No);
        connection.consumed(key, 90);
        connection.reset(key, ErrorCode::Cancel);
        connection.release(key);
    }
    assert!(server.sent().is_empty());
    assert_eq!(server.connection.stream_count(), 0);
}

#[test]
fn nothing_is_written_for_a_stream_that_is_gone() {
    let mut server = Server::settled();
    server.takes(&[get(1), reset(1, ErrorCode::Cancel)].concat());
    let key = server.key(1);
    for _ in 0..2 {
        let Server {
            connection, out, ..
        } = &mut server;
        assert_eq!(
            connection.write_interim(key, Status::CONTINUE, b"", out),
            Written::No
        );
        let head = connection.write_head(key, Status::OK, &[], None, ENDS, out);
        assert_eq!(head, Written::No);
        assert_eq!(connection.write_data_header(key, 0, ENDS, out), Written::No);
        assert_eq!(connection.write_trailers(key, b"", out), Written::No);
        connection.reset(key, ErrorCode::Cancel);
        connection.consumed(key, 10);
        connection.mark_ready(key, 1);
        assert_eq!(
            (connection.send_room(key), connection.next_to_send()),
            (0, None)
        );
        connection.release(key);
    }
    assert!(server.sent().is_empty());
}
