//! FastCGI records of applications and of web servers are decoded the same in one piece or in many. What a
//! web server writes about a request, an application reads.
//!
//! The input is what the other side sends. It is also split at its zeros into names and values.

use petrel_proto::fastcgi::{
    FastCgiDecoder, FastCgiEvent, Pairs, ParamsEncoder, RecordError, RequestDecoder, RequestEvent,
    VALUES_BYTES_MAX,
};

pub fn fastcgi(input: &[u8]) {
    let (replies, requests) = (reply(input, usize::MAX), request(input, usize::MAX));
    for step in [1, 11] {
        assert_eq!(reply(input, step), replies);
        assert_eq!(request(input, step), requests);
    }
    round_trip(input);
}

/// Events, independent of how the input was cut, and the final error.
type Story = (Vec<(String, Vec<u8>)>, Option<RecordError>);

fn reply(input: &[u8], step: usize) -> Story {
    let mut decoder = FastCgiDecoder::new(1);
    let mut story = Story::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        match decoder.decode(given) {
            Err(error) => {
                story.1 = Some(error);
                return story;
            }
            Ok(decoded) => match decoded.event {
                FastCgiEvent::NeedMore => {
                    position += decoded.consumed;
                    // The longest record that is awaited as a whole is END_REQUEST with its padding.
                    assert!(arrived - position < 8 + 8 + 255);
                    if arrived == input.len() {
                        return story;
                    }
                    arrived = arrived.saturating_add(step).min(input.len());
                }
                FastCgiEvent::Data(stream, range) => {
                    assert!(!range.is_empty() && range.end == decoded.consumed);
                    tell(&mut story, format!("{stream:?}"), &given[range.clone()]);
                    // Half of it is given back, and must come again.
                    let back = range.len() / 2;
                    decoder.give_back(back);
                    position += decoded.consumed - back;
                    let last = story.0.last_mut().expect("it was told");
                    last.1.truncate(last.1.len() - back);
                }
                end @ FastCgiEvent::End { .. } => {
                    tell(&mut story, format!("{end:?}"), b"");
                    return story;
                }
            },
        }
    }
}

fn request(input: &[u8], step: usize) -> Story {
    let mut decoder = RequestDecoder::new();
    let mut story = Story::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        match decoder.decode(given) {
            Err(error) => {
                story.1 = Some(error);
                return story;
            }
            Ok(decoded) => {
                assert!(decoded.consumed <= given.len());
                position += decoded.consumed;
                match decoded.event {
                    RequestEvent::NeedMore => {
                        assert!(arrived - position <= VALUES_BYTES_MAX + 8);
                        if arrived == input.len() {
                            return story;
                        }
                        arrived = arrived.saturating_add(step).min(input.len());
                    }
                    RequestEvent::Params(id, range) => {
                        tell(&mut story, format!("params {id}"), &given[range]);
                    }
                    RequestEvent::Stdin(id, range) => {
                        tell(&mut story, format!("stdin {id}"), &given[range]);
                    }
                    RequestEvent::GetValues(range) => {
                        let asked = &given[range];
                        assert!(Pairs::new(asked).count() <= asked.len());
                        tell(&mut story, "values".to_owned(), asked);
                    }
                    event => tell(&mut story, format!("{event:?}"), b""),
                }
            }
        }
    }
}

/// Adds an event, or appends to the last one if it was of the same stream.
fn tell(story: &mut Story, what: String, bytes: &[u8]) {
    match story.0.last_mut() {
        Some((last, known)) if *last == what && !bytes.is_empty() => known.extend_from_slice(bytes),
        _ => story.0.push((what, bytes.to_vec())),
    }
}

fn round_trip(input: &[u8]) {
    let mut pairs = Vec::new();
    let mut wire = Vec::new();
    let mut params = ParamsEncoder::new(&mut wire, 1);
    for part in input.split(|&byte| byte == 0) {
        let (name, value) = part.split_at(part.len() / 3);
        params.add(name, value);
        pairs.push((name, value));
    }
    params.finish();
    assert_eq!(wire.len() % 8, 0);
    let (events, refused) = request(&wire, usize::MAX);
    assert_eq!((events.len(), refused), (2, None));
    let found: Result<Vec<_>, RecordError> = Pairs::new(&events[0].1).collect();
    assert_eq!(found, Ok(pairs));
}
