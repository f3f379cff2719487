//! HTTP/2 frames are decoded the same in one piece or in many, and frames that are encoded again decode to
//! the same.
//!
//! The input is what a client sends after the connection preface.

use petrel_proto::http2::{
    AfterFrame, ErrorCode, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, FrameDecoder, FrameError,
    FrameEvent, FramePayload, OpenHeaders, PriorityField, Setting, Settings, flag, kind,
    write_data_header, write_frame_header, write_go_away, write_headers, write_ping,
    write_ping_ack, write_reset, write_settings, write_settings_ack, write_window_update,
};

pub fn http2_frames(input: &[u8]) {
    let (frames, refused) = story(input, usize::MAX);
    for step in [1, 7, FRAME_HEADER_BYTES] {
        assert_eq!(story(input, step), (frames.clone(), refused));
    }
    let mut again = Vec::new();
    let sound: Vec<Frame> = frames.into_iter().filter(is_written).collect();
    sound.iter().for_each(|frame| write(&mut again, frame));
    assert_eq!(story(&again, usize::MAX), (sound, None));
}

/// A whole frame, without positions. Padding and priorities of HEADERS are not encoded, so they are left out.
#[derive(Clone, Debug, PartialEq)]
enum Frame {
    Data(u32, Vec<u8>, AfterFrame),
    Headers(u32, Vec<u8>, AfterFrame, bool),
    Continuation(u32, Vec<u8>, bool),
    Priority(u32, PriorityField),
    Reset(u32, ErrorCode),
    Settings(Vec<Setting>),
    SettingsAck,
    Ping([u8; 8]),
    PingAck([u8; 8]),
    GoAway(u32, ErrorCode, Vec<u8>),
    WindowUpdate(u32, u32),
    PriorityUpdate(u32, Vec<u8>),
    Unknown(u8),
    StreamError(u32, FrameError),
}

/// The frames of `input`, which arrives `step` bytes at a time, and the final error.
fn story(input: &[u8], step: usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new(FRAME_BYTES_MAX);
    let mut frames = Vec::new();
    let mut data = Vec::new();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given) {
            Ok(decoded) => decoded,
            Err(error) => return (frames, Some(error)),
        };
        position += decoded.consumed;
        let bytes = |piece: &FramePayload| decoder.payload(given, piece).to_vec();
        frames.push(match decoded.event {
            FrameEvent::NeedMore => {
                assert_eq!(position, arrived);
                if arrived == input.len() {
                    return (frames, None);
                }
                arrived = arrived.saturating_add(step).min(input.len());
                continue;
            }
            FrameEvent::Data {
                stream,
                range,
                is_frame_end,
                ends_stream,
                ..
            } => {
                assert!(is_frame_end || !range.is_empty());
                data.extend_from_slice(&given[range]);
                if !is_frame_end {
                    continue;
                }
                Frame::Data(stream, std::mem::take(&mut data), after(ends_stream))
            }
            FrameEvent::Headers {
                stream,
                fragment,
                ends_stream,
                ends_headers,
                ..
            } => Frame::Headers(stream, bytes(&fragment), after(ends_stream), ends_headers),
            FrameEvent::Continuation {
                stream,
                fragment,
                ends_headers,
            } => Frame::Continuation(stream, bytes(&fragment), ends_headers),
            FrameEvent::Priority { stream, priority } => Frame::Priority(stream, priority),
            FrameEvent::Reset { stream, code } => Frame::Reset(stream, code),
            FrameEvent::Settings { payload } => {
                Frame::Settings(Settings::new(&bytes(&payload)).collect())
            }
            FrameEvent::SettingsAck => Frame::SettingsAck,
            FrameEvent::Ping(payload) => Frame::Ping(payload),
            FrameEvent::PingAck(payload) => Frame::PingAck(payload),
            FrameEvent::GoAway {
                last_stream,
                code,
                debug,
            } => Frame::GoAway(last_stream, code, bytes(&debug)),
            FrameEvent::WindowUpdate { stream, increment } => {
                Frame::WindowUpdate(stream, increment)
            }
            FrameEvent::PriorityUpdate { stream, value } => {
                Frame::PriorityUpdate(stream, bytes(&value))
            }
            FrameEvent::Unknown { kind, length } => {
                assert!(length <= FRAME_BYTES_MAX);
                Frame::Unknown(kind)
            }
            FrameEvent::StreamError { stream, error } => Frame::StreamError(stream, error),
        });
    }
}

fn after(ends_stream: bool) -> AfterFrame {
    match ends_stream {
        true => AfterFrame::EndOfStream,
        false => AfterFrame::More,
    }
}

/// Whether the encoder writes such a frame. It writes parts of header blocks only as a whole block.
fn is_written(frame: &Frame) -> bool {
    !matches!(
        frame,
        Frame::Headers(_, _, _, false) | Frame::Continuation(..) | Frame::StreamError(..)
    )
}

fn write(out: &mut Vec<u8>, frame: &Frame) {
    let start = out.len();
    match frame {
        Frame::Data(stream, data, after) => {
            write_data_header(out, *stream, data.len() as u32, *after);
            out.extend_from_slice(data);
        }
        Frame::Headers(stream, block, after, _) => {
            write_headers(out, *stream, block, *after, FRAME_BYTES_MAX);
            let mut open = Vec::new();
            let headers = OpenHeaders::begin(&mut open);
            open.extend_from_slice(block);
            headers.finish(&mut open, *stream, *after, FRAME_BYTES_MAX);
            assert_eq!(open, out[start..]);
        }
        Frame::Priority(stream, priority) => {
            write_frame_header(out, 5, kind::PRIORITY, 0, *stream);
            let exclusive = u32::from(priority.is_exclusive) << 31;
            out.extend_from_slice(&(exclusive | priority.dependency).to_be_bytes());
            out.push(priority.weight);
        }
        Frame::Reset(stream, code) => write_reset(out, *stream, *code),
        Frame::Settings(settings) => write_settings(out, settings),
        Frame::SettingsAck => write_settings_ack(out),
        Frame::Ping(payload) => write_ping(out, *payload),
        Frame::PingAck(payload) => write_ping_ack(out, *payload),
        Frame::GoAway(last_stream, code, debug) => write_go_away(out, *last_stream, *code, debug),
        Frame::WindowUpdate(stream, increment) => write_window_update(out, *stream, *increment),
        Frame::PriorityUpdate(stream, value) => {
            write_frame_header(out, 4 + value.len() as u32, kind::PRIORITY_UPDATE, 0, 0);
            out.extend_from_slice(&stream.to_be_bytes());
            out.extend_from_slice(value);
        }
        Frame::Unknown(kind) => write_frame_header(out, 0, *kind, flag::ACK, 0),
        Frame::Continuation(..) | Frame::StreamError(..) => {}
    }
}
