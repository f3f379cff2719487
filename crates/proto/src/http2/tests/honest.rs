//! The honest clients that come nearest to each limit, in a moment of virtual time: none of them loses its
//! connection.

use std::collections::BTreeMap;

use super::*;

/// How a client opens windows while it reads answers.
#[derive(Clone, Copy)]
struct Reader {
    /// SETTINGS_INITIAL_WINDOW_SIZE.
    window: u32,
    /// Bytes by which it widens the window of the connection at the beginning.
    wider: u32,
    /// It opens both windows after so many bytes; 0: after each DATA frame.
    step: u32,
    /// Bytes that come before it begins to read.
    behind: u32,
}

/// Go's net/http, whose caller reads 4 kB at a time: `bufio` does.
const GO: Reader = Reader {
    window: 4 << 20,
    wider: 1 << 30,
    step: 4 << 10,
    behind: 4 << 20,
};

/// Python's h2, httpx, and Jetty with `SimpleFlowControl`: each frame is given back on both windows.
const EACH_FRAME: Reader = Reader {
    window: 65_535,
    wider: 0,
    step: 0,
    behind: 0,
};

/// The same after all that the windows hold has come.
const LATE: Reader = Reader {
    behind: 65_535,
    ..EACH_FRAME
};

const EACH_KILOBYTE: Reader = Reader {
    step: 1024,
    ..EACH_FRAME
};

/// A device with little memory.
const SMALL_WINDOW: Reader = Reader {
    window: 255,
    ..EACH_FRAME
};

/// nghttp2, curl, OkHttp, Netty, Node, Chromium: half of the window at a time.
const HALF_WINDOW: Reader = Reader {
    step: 32_768,
    ..EACH_FRAME
};

/// Downloads `streams` answers of `length` bytes. Returns the number of DATA frames.
fn download(reader: Reader, streams: u32, length: u32) -> u32 {
    let mut server = Server::settled_with(Http2Options::default(), &setting(4, reader.window));
    if reader.wider > 0 {
        server.takes(&window(0, reader.wider));
    }
    let ids = (1..2 * streams).step_by(2);
    let mut left: BTreeMap<u32, u32> = ids.map(|id| (id, length)).collect();
    let mut unread: BTreeMap<u32, u32> = BTreeMap::new();
    for &id in left.keys() {
        server.takes(&get(id));
        server.answer(id, 0);
        let key = server.key(id);
        server.connection.mark_ready(key, u64::from(length));
    }
    let (mut frames, mut behind) = (0, reader.behind);
    while !left.is_empty() {
        while let Some(key) = server.connection.next_to_send() {
            let (id, room) = (key.id(), server.connection.send_room(key));
            let part = room.min(left[&id]);
            server.send_part(id, part);
            let rest = left[&id] - part;
            match rest {
                0 => server.connection.mark_waiting(key),
                _ => server.connection.mark_ready(key, u64::from(rest)),
            }
            left.insert(id, rest);
        }
        let mut answer = Vec::new();
        for sent in server.sent().iter().filter(|sent| sent.kind == DATA) {
            frames += 1;
            let (id, count) = (sent.stream, sent.payload.len() as u32);
            behind = behind.saturating_sub(count);
            let unread = unread.entry(id).or_default();
            *unread += count;
            while behind == 0 && *unread > 0 && *unread >= reader.step {
                let step = if reader.step == 0 {
                    *unread
                } else {
                    reader.step
                };
                *unread -= step;
                answer.extend([window(0, step), window(id, step)].concat());
            }
        }
        assert!(!answer.is_empty() || left.values().all(|&left| left == 0));
        server.takes(&answer);
        left.retain(|_, left| *left > 0);
    }
    frames
}

#[test]
fn downloads_whose_windows_open_in_small_steps() {
    for (reader, streams, length) in [
        (GO, 1, 16 << 20),
        (EACH_FRAME, 1, 20 << 20),
        (LATE, 1, 20 << 20),
        (EACH_KILOBYTE, 1, 8 << 20),
        (HALF_WINDOW, 1, 8 << 20),
        (EACH_FRAME, 100, 200 << 10),
        (SMALL_WINDOW, 1, 1 << 20),
        (SMALL_WINDOW, 50, 20_000),
    ] {
        let frames = download(reader, streams, length);
        let longest = length.div_ceil(reader.window.min(1024)) * streams;
        assert!(frames <= longest, "{frames} frames for {length} bytes");
    }
}

#[test]
fn small_requests_with_all_that_browsers_send_beside_them() {
    let mut server = Server::settled();
    for id in (1..20_001_u32).step_by(2) {
        let update = [&id.to_be_bytes()[..], b"u=1"].concat();
        let priority = frame(PRIORITY_UPDATE, flag::NONE, 0, &update);
        // Firefox widens the window of each stream.
        server.takes(&[get(id), window(id, 12 << 20), priority, ping()].concat());
        let key = server.key(id);
        let (end, out) = (AfterFrame::EndOfStream, &mut server.out);
        let head = (server.connection).write_head(key, Status(304), &[], None, end, out);
        assert_eq!(head, Written::Yes);
        server.release(id);
        server.sent();
        // The client cancelled before the answer came.
        server.takes(&reset(id, ErrorCode::Cancel));
    }
}

#[test]
fn grpc_messages_without_content_and_its_pings() {
    let mut server = Server::settled();
    server.takes(&upload(1, &[]));
    server.answer(1, 0);
    let key = server.key(1);
    // grpc-go sends each message in a frame, and PING when DATA come; the service answers each.
    for _ in 0..100_000 {
        server.takes(&data(1, flag::NONE, &[0; 5]));
        server.connection.consumed(key, 5);
        server.send_part(1, 5);
        server.sent();
        server.takes(&[ping(), window(0, 5), window(1, 5)].concat());
    }
}

#[test]
fn a_body_that_is_sent_byte_by_byte() {
    let mut server = Server::settled();
    server.takes(&upload(1, &[]));
    let key = server.key(1);
    for _ in 0..60 {
        // One each millisecond.
        for _ in 0..1000 {
            server.takes(&data(1, flag::NONE, b"x"));
            server.connection.consumed(key, 1);
        }
        server.now_s += 1;
    }
}

#[test]
fn uploads_that_are_flushed_before_they_end() {
    let mut server = Server::settled();
    for id in (1..2001).step_by(2) {
        server.takes(&upload(id, &[]));
        server.takes(&[data(id, 0, b"body"), data(id, 0, b""), data(id, 1, b"")].concat());
        server.answer(id, 1);
        server.release(id);
        server.sent();
    }
}

#[test]
fn a_client_that_measures_and_widens_its_windows() {
    let mut server = Server::settled();
    let mut bytes = 64 << 10;
    // grpc-go, up to 16 MiB, each time with SETTINGS; a keep-alive PING each second.
    while bytes <= 16 << 20 {
        server.takes(&[frame(SETTINGS, 0, 0, &setting(4, bytes)), ping()].concat());
        bytes *= 2;
    }
}

#[test]
fn a_client_that_begins_many_requests_before_it_reads_settings() {
    let mut server = Server::new(Http2Options::default());
    server.takes(PREFACE);
    server.takes(&frame(SETTINGS, flag::NONE, 0, b""));
    for id in (1..601).step_by(2) {
        server.takes(&get(id));
    }
    assert_eq!(server.keys.len(), 100);
}

#[test]
fn a_head_with_the_longest_cookies_of_a_browser() {
    let mut server = Server::settled();
    let cookie = "x".repeat(4096);
    let fields = [("cookie", &cookie[..]); 14];
    let head = post(&fields);
    let mut parts = head.chunks(16_384);
    let first = parts.next().unwrap_or_default();
    server.takes(&frame(HEADERS, flag::END, 1, first));
    server.takes(&frame(CONTINUATION, 0, 1, parts.next().unwrap_or_default()));
    server.takes(&frame(CONTINUATION, 0, 1, parts.next().unwrap_or_default()));
    let last = parts.next().unwrap_or_default();
    let told = server.told(&frame(CONTINUATION, flag::END_HEADERS, 1, last));
    assert_eq!(told, ["refused 1 HeadTooLarge end"]);
}

#[test]
fn pages_that_are_left_before_all_of_their_parts_have_come() {
    let mut server = Server::settled();
    let mut ids = (1..).step_by(2);
    // Five pages in a period: half of the parts of each are cancelled.
    for _ in 0..5 {
        let page: Vec<u32> = ids.by_ref().take(100).collect();
        for &id in &page {
            server.takes(&get(id));
        }
        for (number, &id) in page.iter().enumerate() {
            match number % 2 {
                0 => assert_eq!(server.answer(id, 1), 1),
                _ => server.takes(&reset(id, ErrorCode::Cancel)),
            }
            server.release(id);
        }
        server.sent();
    }
}
