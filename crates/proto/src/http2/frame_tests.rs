use proptest::prelude::*;

use super::*;

/// An event with its bytes, put together if it came in parts.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// The stream, the data, the padding with its length byte, and whether the stream ends.
    Data(u32, Vec<u8>, u32, bool),
    /// An event without places, and the bytes of its piece.
    Frame(FrameEvent, Vec<u8>),
}

/// All events of `input`, of which `step` bytes arrive at a time, and the error behind them.
fn story(input: &[u8], step: usize) -> (Vec<Told>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
    let mut events = Vec::new();
    let mut data: Option<(Vec<u8>, u32)> = None;
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert_eq!(decoder.decode(b""), Err(error), "an error is final");
                return (events, Some(error));
            }
        };
        assert!(decoded.consumed <= given.len());
        position += decoded.consumed;
        let mut event = decoded.event;
        match &mut event {
            FrameEvent::NeedMore => {
                assert_eq!(position, arrived, "nothing has to be kept");
                if arrived == input.len() {
                    return (events, None);
                }
                arrived = arrived.saturating_add(step).min(input.len());
            }
            FrameEvent::Data {
                stream,
                range,
                padding_consumed,
                is_frame_end,
                ends_stream,
            } => {
                assert!(range.start < range.end || *is_frame_end);
                assert!(*is_frame_end || !*ends_stream);
                let (bytes, padding) = data.get_or_insert_default();
                bytes.extend_from_slice(&given[range.clone()]);
                *padding += *padding_consumed;
                if *is_frame_end {
                    let (bytes, padding) = data.take().expect("it was begun");
                    events.push(Told::Data(*stream, bytes, padding, *ends_stream));
                }
            }
            FrameEvent::Headers { fragment, .. }
            | FrameEvent::Continuation { fragment, .. }
            | FrameEvent::Settings { payload: fragment }
            | FrameEvent::GoAway {
                debug: fragment, ..
            }
            | FrameEvent::PriorityUpdate {
                value: fragment, ..
            } => {
                let bytes = decoder.payload(given, fragment).to_vec();
                assert_eq!(bytes.len(), fragment.len());
                *fragment = nowhere();
                events.push(Told::Frame(event, bytes));
            }
            _ => events.push(Told::Frame(event, Vec::new())),
        }
    }
}

fn nowhere() -> FramePayload {
    FramePayload {
        place: frame::PayloadPlace::Input,
        range: 0..0,
    }
}

/// The same, however the input may arrive.
fn events(input: &[u8]) -> (Vec<Told>, Option<FrameError>) {
    let whole = story(input, usize::MAX);
    for step in 1..input.len().min(60) {
        assert_eq!(story(input, step), whole, "{step}");
    }
    whole
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame_header(&mut out, payload.len() as u32, kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

/// The only event of one frame.
fn event(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Told {
    match events(&frame(kind, flags, stream, payload)) {
        (mut told, None) if told.len() == 1 => told.remove(0),
        other => panic!("{other:?}"),
    }
}

fn told(event: FrameEvent, bytes: &[u8]) -> Told {
    Told::Frame(event, bytes.to_vec())
}

/// Why the last of these frames ends the connection, and with which code.
fn refusal(frames: &[u8]) -> Option<(FrameError, ErrorCode)> {
    events(frames).1.map(|error| (error, error.code()))
}

fn refused(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<(FrameError, ErrorCode)> {
    refusal(&frame(kind, flags, stream, payload))
}

const SIZE: ErrorCode = ErrorCode::FrameSizeError;
const PROTOCOL: ErrorCode = ErrorCode::ProtocolError;

#[test]
fn data_is_told_with_its_padding() {
    assert_eq!(
        event(kind::DATA, 0, 1, b"data"),
        Told::Data(1, b"data".to_vec(), 0, false)
    );
    assert_eq!(
        event(kind::DATA, flag::END_STREAM, 3, b""),
        Told::Data(3, vec![], 0, true)
    );
    let padded = event(
        kind::DATA,
        flag::END_STREAM | flag::PADDED,
        1,
        b"\x03data\0\0\0",
    );
    assert_eq!(padded, Told::Data(1, b"data".to_vec(), 4, true));
    // Nothing but padding, and nothing but its length.
    let only = event(kind::DATA, flag::PADDED, 1, b"\x03\0\0\0");
    assert_eq!(only, Told::Data(1, vec![], 4, false));
    assert_eq!(
        event(kind::DATA, flag::PADDED, 1, b"\0"),
        Told::Data(1, vec![], 1, false)
    );
}

#[test]
fn data_is_handed_out_before_its_frame_ends() {
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
    let input = frame(
        kind::DATA,
        flag::PADDED | flag::END_STREAM,
        1,
        b"\x02data\0\0",
    );
    let event = |range, padding_consumed, is_frame_end| FrameEvent::Data {
        stream: 1,
        range,
        padding_consumed,
        is_frame_end,
        ends_stream: is_frame_end,
    };
    let mut step = |input: &[u8]| {
        let decoded = decoder.decode(input).expect("it is sound");
        (decoded.consumed, decoded.event, decoder.is_between_frames())
    };
    assert_eq!(step(&input[..12]), (12, event(10..12, 1, false), false));
    assert_eq!(step(&input[12..14]), (2, event(0..2, 0, false), false));
    assert_eq!(step(&input[14..15]), (1, FrameEvent::NeedMore, false));
    assert_eq!(step(&input[15..]), (1, event(0..0, 2, true), true));
}

#[test]
fn padding_of_data_that_is_longer_than_the_frame_is_refused() {
    let padding = Some((FrameError::Padding, PROTOCOL));
    assert_eq!(refused(kind::DATA, flag::PADDED, 1, b"\x01"), padding);
    assert_eq!(refused(kind::DATA, flag::PADDED, 1, b"\x05data"), padding);
    assert_eq!(refused(kind::DATA, flag::PADDED, 1, b"\x04data"), None);
    let no_length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::DATA, flag::PADDED, 1, b""), no_length);
}

fn headers(ends_stream: bool, ends_headers: bool, priority: Option<PriorityField>) -> FrameEvent {
    FrameEvent::Headers {
        stream: 1,
        fragment: nowhere(),
        ends_stream,
        ends_headers,
        priority,
    }
}

#[test]
fn headers_are_told_without_padding_and_priority() {
    let all = flag::END_STREAM | flag::END_HEADERS;
    assert_eq!(
        event(kind::HEADERS, all, 1, b"block"),
        told(headers(true, true, None), b"block")
    );
    assert_eq!(
        event(kind::HEADERS, flag::END_HEADERS, 1, b""),
        told(headers(false, true, None), b"")
    );
    let priority = PriorityField {
        dependency: 3,
        is_exclusive: true,
        weight: 255,
    };
    let field = b"\x80\0\0\x03\xff";
    assert_eq!(
        event(
            kind::HEADERS,
            all | flag::PRIORITY,
            1,
            &[&field[..], b"block"].concat()
        ),
        told(headers(true, true, Some(priority)), b"block")
    );
    let payload = [b"\x02", &field[..], b"block\0\0"].concat();
    assert_eq!(
        event(
            kind::HEADERS,
            all | flag::PRIORITY | flag::PADDED,
            1,
            &payload
        ),
        told(headers(true, true, Some(priority)), b"block")
    );
    // As much padding as there can be.
    let payload = [b"\x07", &field[..], b"block\0\0"].concat();
    assert_eq!(
        event(
            kind::HEADERS,
            all | flag::PRIORITY | flag::PADDED,
            1,
            &payload
        ),
        told(headers(true, true, Some(priority)), b"")
    );
}

#[test]
fn headers_that_are_too_short_are_refused() {
    let length = Some((FrameError::Length, SIZE));
    let padding = Some((FrameError::Padding, PROTOCOL));
    assert_eq!(refused(kind::HEADERS, flag::PADDED, 1, b""), length);
    assert_eq!(
        refused(kind::HEADERS, flag::PRIORITY, 1, b"\0\0\0\0"),
        length
    );
    let both = flag::PADDED | flag::PRIORITY;
    assert_eq!(refused(kind::HEADERS, both, 1, b"\0\0\0\0\0"), length);
    assert_eq!(
        refused(kind::HEADERS, flag::PADDED, 1, b"\x06block"),
        padding
    );
    assert_eq!(
        refused(kind::HEADERS, both, 1, b"\x03\0\0\0\0\0\0\0"),
        padding
    );
}

#[test]
fn a_header_block_goes_on_in_continuation_frames() {
    let frames = [
        frame(kind::HEADERS, 0, 1, b"one"),
        frame(kind::CONTINUATION, 0, 1, b""),
        frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"two"),
        frame(kind::PING, 0, 0, b"12345678"),
    ];
    let continuation = |ends_headers| FrameEvent::Continuation {
        stream: 1,
        fragment: nowhere(),
        ends_headers,
    };
    let expected = vec![
        told(headers(false, false, None), b"one"),
        told(continuation(false), b""),
        told(continuation(true), b"two"),
        told(FrameEvent::Ping(*b"12345678"), b""),
    ];
    assert_eq!(events(&frames.concat()), (expected, None));
}

#[test]
fn nothing_else_stands_in_a_header_block() {
    let begun = frame(kind::HEADERS, 0, 1, b"one");
    let then = |kind, stream, payload: &[u8]| {
        refusal(&[&begun[..], &frame(kind, 0, stream, payload)].concat())
    };
    let interrupted = Some((FrameError::Interrupted, PROTOCOL));
    assert_eq!(then(kind::CONTINUATION, 1, b"two"), None);
    assert_eq!(then(kind::CONTINUATION, 3, b"two"), interrupted);
    assert_eq!(then(kind::CONTINUATION, 0, b"two"), interrupted);
    assert_eq!(then(kind::HEADERS, 1, b"two"), interrupted);
    assert_eq!(then(kind::DATA, 1, b"two"), interrupted);
    assert_eq!(then(kind::PING, 0, b"12345678"), interrupted);
    assert_eq!(then(0xee, 1, b""), interrupted);
    let unasked = Some((FrameError::Continuation, PROTOCOL));
    assert_eq!(
        refused(kind::CONTINUATION, flag::END_HEADERS, 1, b""),
        unasked
    );
    let ended = frame(kind::HEADERS, flag::END_HEADERS, 1, b"one");
    let behind = [ended, frame(kind::CONTINUATION, 0, 1, b"")].concat();
    assert_eq!(refusal(&behind), unasked);
}

#[test]
fn priority_is_an_error_of_its_stream_at_most() {
    let priority = PriorityField {
        dependency: 1,
        is_exclusive: false,
        weight: 15,
    };
    let error = |error| told(FrameEvent::StreamError { stream: 3, error }, b"");
    assert_eq!(
        event(kind::PRIORITY, 0, 3, b"\0\0\0\x01\x0f"),
        told(
            FrameEvent::Priority {
                stream: 3,
                priority
            },
            b""
        )
    );
    assert_eq!(
        event(kind::PRIORITY, 0, 3, b"\0\0\0\x03\x0f"),
        error(FrameError::DependsOnItself)
    );
    assert_eq!(
        event(kind::PRIORITY, 0, 3, b"\0\0\0\x01"),
        error(FrameError::Length)
    );
    assert_eq!(
        event(kind::PRIORITY, 0, 3, &[0; 300]),
        error(FrameError::Length)
    );
    assert_eq!(FrameError::DependsOnItself.code(), PROTOCOL);
    assert_eq!(FrameError::Length.code(), SIZE);
}

#[test]
fn resets_have_a_code() {
    let reset = |code| told(FrameEvent::Reset { stream: 1, code }, b"");
    assert_eq!(
        event(kind::RST_STREAM, 0, 1, b"\0\0\0\x08"),
        reset(ErrorCode::Cancel)
    );
    assert_eq!(
        event(kind::RST_STREAM, 0, 1, b"\xff\0\0\x08"),
        reset(ErrorCode::InternalError)
    );
    let length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::RST_STREAM, 0, 1, b"\0\0\x08"), length);
    assert_eq!(refused(kind::RST_STREAM, 0, 1, b"\0\0\0\0\x08"), length);
}

#[test]
fn settings_are_told_in_their_order_and_unknown_ones_left_out() {
    let settings = [
        Setting::HeaderTableSize(0),
        Setting::EnablePush(false),
        Setting::MaxConcurrentStreams(100),
        Setting::InitialWindowSize(WINDOW_BYTES_MAX),
        Setting::MaxFrameSize(0xff_ffff),
        Setting::MaxHeaderListSize(u32::MAX),
        Setting::EnableConnectProtocol(true),
        Setting::NoRfc7540Priorities(true),
        Setting::MaxFrameSize(FRAME_BYTES_MAX),
    ];
    let mut frame = Vec::new();
    write_settings(&mut frame, &settings);
    let unknown = b"\xfa\xfa\xff\xff\xff\xff";
    frame.splice(9..9, *unknown);
    frame[2] += unknown.len() as u8;
    let (told, None) = events(&frame) else {
        panic!("they are sound");
    };
    let [Told::Frame(FrameEvent::Settings { .. }, payload)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!(Settings::new(payload).collect::<Vec<_>>(), settings);
    assert!(Settings::new(b"").next().is_none());
    assert_eq!(
        event(kind::SETTINGS, 0, 0, b""),
        self::told(FrameEvent::Settings { payload: nowhere() }, b"")
    );
}

#[test]
fn settings_out_of_their_bounds_are_refused() {
    let value = |id: u8, value: u32| {
        let payload = [&[0, id][..], &value.to_be_bytes()].concat();
        refused(kind::SETTINGS, 0, 0, &payload)
    };
    for switch in [2, 8, 9] {
        assert_eq!(value(switch, 1), None);
        assert_eq!(value(switch, 2), Some((FrameError::Switch, PROTOCOL)));
    }
    let window = Some((FrameError::WindowSetting, ErrorCode::FlowControlError));
    assert_eq!(value(4, 1 << 31), window);
    let frame_size = Some((FrameError::FrameSizeSetting, PROTOCOL));
    assert_eq!(value(5, 16_383), frame_size);
    assert_eq!(value(5, 1 << 24), frame_size);
    let length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::SETTINGS, 0, 0, b"\0\x01\0\0\0"), length);
    assert_eq!(
        refused(kind::SETTINGS, flag::ACK, 0, b"\0\x01\0\0\0\0"),
        length
    );
}

#[test]
fn pings_and_acknowledgements_are_told_apart() {
    assert_eq!(
        event(kind::SETTINGS, flag::ACK, 0, b""),
        told(FrameEvent::SettingsAck, b"")
    );
    let bytes = *b"12345678";
    assert_eq!(
        event(kind::PING, 0, 0, &bytes),
        told(FrameEvent::Ping(bytes), b"")
    );
    assert_eq!(
        event(kind::PING, flag::ACK, 0, &bytes),
        told(FrameEvent::PingAck(bytes), b"")
    );
    let length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::PING, 0, 0, b"1234567"), length);
    assert_eq!(refused(kind::PING, flag::ACK, 0, b"123456789"), length);
}

#[test]
fn go_away_has_a_text() {
    let mut frame = Vec::new();
    write_go_away(&mut frame, 7, ErrorCode::EnhanceYourCalm, b"too much");
    let event = FrameEvent::GoAway {
        last_stream: 7,
        code: ErrorCode::EnhanceYourCalm,
        debug: nowhere(),
    };
    assert_eq!(events(&frame), (vec![told(event, b"too much")], None));
    let length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::GOAWAY, 0, 0, b"\0\0\0\0\0\0\0"), length);
}

#[test]
fn window_updates_of_nothing_are_errors() {
    let update = |stream, increment| told(FrameEvent::WindowUpdate { stream, increment }, b"");
    assert_eq!(
        event(kind::WINDOW_UPDATE, 0, 0, b"\xff\xff\xff\xff"),
        update(0, WINDOW_BYTES_MAX)
    );
    assert_eq!(
        event(kind::WINDOW_UPDATE, 0, 5, b"\0\0\x01\0"),
        update(5, 256)
    );
    let error = FrameError::Increment;
    let of_stream = told(FrameEvent::StreamError { stream: 5, error }, b"");
    assert_eq!(event(kind::WINDOW_UPDATE, 0, 5, b"\x80\0\0\0"), of_stream);
    assert_eq!(
        refused(kind::WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
        Some((error, PROTOCOL))
    );
    assert_eq!(
        refused(kind::WINDOW_UPDATE, 0, 5, b"\0\0\x01"),
        Some((FrameError::Length, SIZE))
    );
}

#[test]
fn priority_updates_name_a_stream() {
    let value = FramePayload { ..nowhere() };
    let update = FrameEvent::PriorityUpdate { stream: 9, value };
    assert_eq!(
        event(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x09u=1, i"),
        told(update, b"u=1, i")
    );
    let no_stream = Some((FrameError::NoStream, PROTOCOL));
    assert_eq!(
        refused(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\0u=1"),
        no_stream
    );
    let length = Some((FrameError::Length, SIZE));
    assert_eq!(refused(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0"), length);
}

#[test]
fn a_frame_is_of_a_stream_or_of_the_connection() {
    let no_stream = Some((FrameError::NoStream, PROTOCOL));
    for kind in [kind::DATA, kind::HEADERS, kind::PRIORITY, kind::RST_STREAM] {
        assert_eq!(refused(kind, 0, 0, b"\0\0\0\0\0"), no_stream);
    }
    let stream = Some((FrameError::Stream, PROTOCOL));
    for kind in [
        kind::SETTINGS,
        kind::PING,
        kind::GOAWAY,
        kind::PRIORITY_UPDATE,
    ] {
        assert_eq!(refused(kind, 0, 1, b"12345678"), stream);
    }
    assert_eq!(
        refused(kind::PUSH_PROMISE, 0, 1, b"\0\0\0\x02"),
        Some((FrameError::Push, PROTOCOL))
    );
}

#[test]
fn frames_of_unknown_kinds_are_skipped() {
    let frames = [
        frame(0xee, 0xff, 7, &[0; 500]),
        frame(0xef, 0, 0, b""),
        frame(kind::SETTINGS, 1, 0, b""),
    ];
    let unknown = |kind, length| told(FrameEvent::Unknown { kind, length }, b"");
    let expected = vec![
        unknown(0xee, 500),
        unknown(0xef, 0),
        told(FrameEvent::SettingsAck, b""),
    ];
    assert_eq!(events(&frames.concat()), (expected, None));
}

#[test]
fn a_frame_that_is_too_long_is_refused_at_its_header() {
    let long = vec![0; FRAME_BYTES_MAX as usize + 1];
    let too_long = Some((FrameError::TooLong, SIZE));
    for kind in [kind::DATA, kind::HEADERS, kind::SETTINGS, 0xee] {
        let frame = frame(kind, 0, 1, &long);
        assert_eq!(
            story(&frame[..9], 1).1.map(|error| (error, error.code())),
            too_long
        );
        let (longest, _) = long
            .split_last()
            .map_or((&[][..], 0), |(_, rest)| (rest, 0));
        assert_ne!(
            story(&self::frame(kind, 0, 1, longest), usize::MAX).1,
            Some(FrameError::TooLong)
        );
    }
}

#[test]
fn a_long_buffer_is_not_kept() {
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
    let frame = frame(kind::HEADERS, flag::END_HEADERS, 1, &[7; 5000]);
    for part in [&frame[..5], &frame[5..3000]] {
        let decoded = decoder.decode(part).expect("it is sound");
        assert_eq!(
            decoded,
            FrameDecoded {
                consumed: part.len(),
                event: FrameEvent::NeedMore
            }
        );
    }
    let decoded = decoder.decode(&frame[3000..]).expect("it is sound");
    let FrameEvent::Headers { fragment, .. } = &decoded.event else {
        panic!("{decoded:?}");
    };
    assert_eq!(decoder.payload(&frame[3000..], fragment), [7; 5000]);
    assert_eq!(
        decoder.decode(b""),
        Ok(FrameDecoded {
            consumed: 0,
            event: FrameEvent::NeedMore
        })
    );
    assert!(decoder.collected_capacity() < 5000);
}

#[test]
fn long_blocks_are_written_in_several_frames() {
    let block: Vec<u8> = (0..100).collect();
    for (max, frames) in [(100, 1), (99, 2), (50, 2), (33, 4), (1, 100)] {
        let mut out = b"before".to_vec();
        write_headers(&mut out, 1, &block, AfterFrame::EndOfStream, max);
        let mut open = b"before".to_vec();
        let headers = OpenHeaders::begin(&mut open);
        open.extend_from_slice(&block);
        headers.finish(&mut open, 1, AfterFrame::EndOfStream, max);
        assert_eq!(open, out);
        let (told, None) = events(&out[6..]) else {
            panic!("it is sound");
        };
        assert_eq!(told.len(), frames);
        let mut whole = Vec::new();
        for (index, told) in told.iter().enumerate() {
            let Told::Frame(event, bytes) = told else {
                panic!("{told:?}");
            };
            whole.extend_from_slice(bytes);
            let is_last = index + 1 == frames;
            match event {
                FrameEvent::Headers {
                    ends_stream,
                    ends_headers,
                    ..
                } if index == 0 => {
                    assert_eq!((*ends_stream, *ends_headers), (true, is_last));
                }
                FrameEvent::Continuation { ends_headers, .. } => assert_eq!(*ends_headers, is_last),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(whole, block);
    }
    let mut empty = Vec::new();
    write_headers(&mut empty, 1, b"", AfterFrame::More, 100);
    assert_eq!(
        events(&empty),
        (vec![told(headers(false, true, None), b"")], None)
    );
}

#[test]
fn what_is_written_is_read() {
    let mut out = Vec::new();
    write_settings_ack(&mut out);
    write_ping(&mut out, *b"12345678");
    write_ping_ack(&mut out, *b"87654321");
    write_window_update(&mut out, 0, 1);
    write_window_update(&mut out, 3, 0);
    write_window_update(&mut out, 3, WINDOW_BYTES_MAX);
    write_reset(&mut out, 5, ErrorCode::RefusedStream);
    write_data_header(&mut out, 7, 4, AfterFrame::More);
    out.extend_from_slice(b"data");
    write_data_header(&mut out, 7, 0, AfterFrame::EndOfStream);
    let frame = |event| told(event, b"");
    let expected = vec![
        frame(FrameEvent::SettingsAck),
        frame(FrameEvent::Ping(*b"12345678")),
        frame(FrameEvent::PingAck(*b"87654321")),
        frame(FrameEvent::WindowUpdate {
            stream: 0,
            increment: 1,
        }),
        frame(FrameEvent::WindowUpdate {
            stream: 3,
            increment: WINDOW_BYTES_MAX,
        }),
        frame(FrameEvent::Reset {
            stream: 5,
            code: ErrorCode::RefusedStream,
        }),
        Told::Data(7, b"data".to_vec(), 0, false),
        Told::Data(7, vec![], 0, true),
    ];
    assert_eq!(events(&out), (expected, None));
}

#[test]
fn every_error_code_has_its_number() {
    for (number, &code) in ErrorCode::ALL.iter().enumerate() {
        assert_eq!(code.number() as usize, number);
        assert_eq!(ErrorCode::from_number(code.number()), code);
    }
    assert_eq!(ErrorCode::from_number(14), ErrorCode::InternalError);
    assert_eq!(ErrorCode::Http11Required.name(), "HTTP_1_1_REQUIRED");
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![8 => 0..=9u8, 1 => Just(kind::PRIORITY_UPDATE), 1 => any::<u8>()];
    let lengths = prop_oneof![0..=10usize, 0..300usize];
    (kinds, any::<u8>(), 0..4u32, lengths, any::<[u8; 8]>()).prop_map(
        |(kind, flags, stream, length, front)| {
            let mut payload = vec![0; length];
            payload
                .iter_mut()
                .zip(front)
                .for_each(|(place, byte)| *place = byte % 9);
            frame(kind, flags, stream, &payload)
        },
    )
}

proptest! {
    #[test]
    fn frames_in_any_pieces_are_the_same(
        frames in proptest::collection::vec(any_frame(), 1..8),
        cuts in proptest::collection::vec(1..40usize, 1..8),
    ) {
        let input = frames.concat();
        let whole = story(&input, usize::MAX);
        for step in cuts {
            prop_assert_eq!(story(&input, step), whole.clone());
        }
    }
}
