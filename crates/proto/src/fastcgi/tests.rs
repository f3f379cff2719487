use proptest::prelude::*;

use super::*;

const ID: u16 = 1;

/// A reply as a web server decodes it.
#[derive(Debug, Default, PartialEq)]
struct Reply {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: Option<(u32, ProtocolStatus)>,
    refused: Option<RecordError>,
    /// Bytes after the end.
    left: usize,
}

/// Decodes `input`, which arrives `step` bytes at a time.
fn reply_in_steps(input: &[u8], step: usize) -> Reply {
    let mut decoder = FastCgiDecoder::new(ID);
    let mut reply = Reply::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let decoded = match decoder.decode(&input[position..arrived]) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert_eq!(decoder.decode(b""), Err(error), "an error is final");
                reply.refused = Some(error);
                return reply;
            }
        };
        let given = &input[position..arrived];
        position += decoded.consumed;
        assert!(position <= arrived);
        match decoded.event {
            FastCgiEvent::NeedMore if arrived == input.len() => return reply,
            FastCgiEvent::NeedMore => arrived = (arrived + step).min(input.len()),
            FastCgiEvent::Data(stream, range) => {
                assert!(!range.is_empty() && range.end == decoded.consumed);
                match stream {
                    Stream::Stdout => reply.stdout.extend_from_slice(&given[range]),
                    Stream::Stderr => reply.stderr.extend_from_slice(&given[range]),
                }
            }
            FastCgiEvent::End {
                app_status,
                protocol_status,
            } => {
                reply.end = Some((app_status, protocol_status));
                reply.left = input.len() - position;
                return reply;
            }
        }
    }
}

/// Decodes `input`, and checks that the result does not depend on how it arrives.
fn reply(input: &[u8]) -> Reply {
    let whole = reply_in_steps(input, input.len().max(1));
    for step in 1..input.len().min(40) {
        let mut stepped = reply_in_steps(input, step);
        if stepped.end.is_some() {
            stepped.left = whole.left;
        }
        assert_eq!(stepped, whole, "{step}");
    }
    whole
}

fn record(kind: u8, id: u8, content: &[u8], padding: usize) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a short record");
    let [high, low] = length.to_be_bytes();
    let padding_length = u8::try_from(padding).expect("a short padding");
    let header = [1, kind, 0, id, high, low, padding_length, 0];
    [&header[..], content, &vec![0xee; padding]].concat()
}

/// A request as an application decodes it.
#[derive(Debug, Default, PartialEq)]
struct Request {
    id: u16,
    begin: Option<(Option<Role>, AfterRequest)>,
    params: Vec<u8>,
    params_ended: bool,
    stdin: Vec<u8>,
    stdin_ended: bool,
    aborted: bool,
}

#[derive(Debug, Default, PartialEq)]
struct Requests {
    requests: Vec<Request>,
    asked: Vec<u8>,
    unknown: Vec<u8>,
    refused: Option<RecordError>,
}

impl Requests {
    fn of(&mut self, id: u16) -> &mut Request {
        let position = self.requests.iter().position(|known| known.id == id);
        let position = position.unwrap_or_else(|| {
            self.requests.push(Request {
                id,
                ..Request::default()
            });
            self.requests.len() - 1
        });
        &mut self.requests[position]
    }
}

fn requests_in_steps(input: &[u8], step: usize) -> Requests {
    let mut decoder = RequestDecoder::new();
    let mut found = Requests::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert_eq!(decoder.decode(b""), Err(error), "an error is final");
                found.refused = Some(error);
                return found;
            }
        };
        position += decoded.consumed;
        match decoded.event {
            RequestEvent::NeedMore if arrived == input.len() => return found,
            RequestEvent::NeedMore => arrived = (arrived + step).min(input.len()),
            RequestEvent::Begin { id, role, after } => found.of(id).begin = Some((role, after)),
            RequestEvent::Params(id, range) => {
                assert!(!range.is_empty());
                found.of(id).params.extend_from_slice(&given[range]);
            }
            RequestEvent::ParamsEnd(id) => found.of(id).params_ended = true,
            RequestEvent::Stdin(id, range) => {
                assert!(!range.is_empty());
                found.of(id).stdin.extend_from_slice(&given[range]);
            }
            RequestEvent::StdinEnd(id) => found.of(id).stdin_ended = true,
            RequestEvent::Abort(id) => found.of(id).aborted = true,
            RequestEvent::GetValues(range) => found.asked.extend_from_slice(&given[range]),
            RequestEvent::UnknownManagement(kind) => found.unknown.push(kind),
        }
    }
}

fn requests(input: &[u8]) -> Requests {
    let whole = requests_in_steps(input, input.len().max(1));
    for step in 1..input.len().min(40) {
        assert_eq!(requests_in_steps(input, step), whole, "{step}");
    }
    whole
}

fn pairs(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let owned = |pair: Result<(&[u8], &[u8]), RecordError>| {
        let (name, value) = pair.expect("the pairs are whole");
        (name.to_vec(), value.to_vec())
    };
    Pairs::new(bytes).map(owned).collect()
}

#[test]
fn a_request_is_written_as_the_specification_says() {
    let mut out = b"kept".to_vec();
    write_begin_request(&mut out, ID, Role::Responder, AfterRequest::Keep);
    let mut params = ParamsEncoder::new(&mut out, ID);
    params.add(b"A", b"bc");
    params.add(b"D", b"");
    params.finish();
    write_stream(&mut out, kind::STDIN, ID, b"body");
    write_end_of_stream(&mut out, kind::STDIN, ID);
    let expected = [
        &b"kept"[..],
        &[1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0],
        &[1, 4, 0, 1, 0, 8, 0, 0, 1, 2, b'A', b'b', b'c', 1, 0, b'D'],
        &[1, 4, 0, 1, 0, 0, 0, 0],
        &[1, 5, 0, 1, 0, 4, 4, 0, b'b', b'o', b'd', b'y', 0, 0, 0, 0],
        &[1, 5, 0, 1, 0, 0, 0, 0],
    ];
    assert_eq!(out, expected.concat());
}

#[test]
fn long_names_and_values_have_lengths_of_four_bytes() {
    let mut out = Vec::new();
    let mut params = ParamsEncoder::new(&mut out, ID);
    params.add(&[b'n'; 127], &[b'v'; 128]);
    params.add(&[b'm'; 300], b"");
    params.finish();
    assert_eq!(out[8..13], [127, 0x80, 0, 0, 128]);
    let expected = [
        (vec![b'n'; 127], vec![b'v'; 128]),
        (vec![b'm'; 300], Vec::new()),
    ];
    let read = requests(&out);
    assert_eq!(pairs(&read.requests[0].params), expected);
}

#[test]
fn a_value_in_two_parts_is_one_value() {
    for (first, second) in [
        (0, 0),
        (5, 0),
        (0, 127),
        (60, 67),
        (60, 68),
        (300, 231),
        (65_000, 600),
    ] {
        let (first, second) = (vec![b'a'; first], vec![b'b'; second]);
        let mut out = Vec::new();
        let mut params = ParamsEncoder::new(&mut out, ID);
        params.add_joined(b"NAME", &first, &second);
        params.add(b"LAST", b"1");
        params.finish();
        let read = requests(&out);
        let found = pairs(&read.requests[0].params);
        assert_eq!(found[0], (b"NAME".to_vec(), [first, second].concat()));
        assert_eq!(found[1], (b"LAST".to_vec(), b"1".to_vec()));
    }
}

#[test]
fn no_params_are_an_empty_stream() {
    let mut out = Vec::new();
    ParamsEncoder::new(&mut out, ID).finish();
    assert_eq!(out, record(kind::PARAMS, 1, b"", 0));
}

#[test]
fn pairs_are_kept_whole_within_records() {
    let mut out = Vec::new();
    let mut params = ParamsEncoder::new(&mut out, ID);
    for number in 0..100 {
        params.add(b"NAME", &vec![b'x'; number * 37]);
    }
    params.finish();
    let mut rest = &out[..];
    let mut count = 0;
    let mut records = 0;
    while let [1, 4, 0, 1, high, low, padding, 0, content @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        assert!(length <= CONTENT_BYTES_MAX && (length + usize::from(*padding)) % 8 == 0);
        count += pairs(&content[..length]).len();
        records += 1;
        rest = &content[length + usize::from(*padding)..];
    }
    assert!(rest.is_empty());
    assert_eq!((count, records), (100, 4));
}

#[test]
fn a_pair_longer_than_a_record_goes_on_in_the_next() {
    for length in [65_000, 65_519, 65_520, 65_527, 65_528, 65_529, 200_000] {
        let mut out = Vec::new();
        let mut params = ParamsEncoder::new(&mut out, ID);
        let value: Vec<u8> = (0..length).map(|number: u32| number as u8).collect();
        params.add(b"A", b"1");
        params.add(b"B", &value);
        params.add(b"C", b"3");
        params.finish();
        let read = requests_in_steps(&out, 4096);
        let request = &read.requests[0];
        assert!(request.params_ended && read.refused.is_none());
        let found = pairs(&request.params);
        assert_eq!(found.len(), 3);
        assert!(found[1] == (b"B".to_vec(), value), "{length}");
        assert_eq!(found[2], (b"C".to_vec(), b"3".to_vec()));
    }
}

#[test]
fn long_bodies_are_several_records() {
    let body = vec![7; 150_000];
    let mut out = Vec::new();
    write_stream(&mut out, kind::STDIN, ID, &body);
    write_stream(&mut out, kind::STDIN, ID, b"");
    assert!(!requests_in_steps(&out, 5000).requests[0].stdin_ended);
    write_end_of_stream(&mut out, kind::STDIN, ID);
    let read = requests_in_steps(&out, 5000);
    assert_eq!(read.requests[0].stdin, body);
    assert!(read.requests[0].stdin_ended);
}

#[test]
fn a_reply_comes_out_as_it_went_in() {
    let mut wire = Vec::new();
    write_stream(&mut wire, kind::STDERR, ID, b"oops");
    write_stream(&mut wire, kind::STDOUT, ID, b"Status: 200\r\n\r\n");
    wire.extend(record(kind::GET_VALUES_RESULT, 0, b"xyz", 3));
    wire.extend(record(200, 0, b"unheard of", 0));
    wire.extend(record(200, 1, b"unheard of", 1));
    write_stream(&mut wire, kind::STDOUT, ID, b"body");
    write_end_of_stream(&mut wire, kind::STDOUT, ID);
    write_end_of_stream(&mut wire, kind::STDERR, ID);
    wire.extend(record(kind::END_REQUEST, 1, &[0, 0, 1, 2, 0, 0, 0, 0], 5));
    let expected = Reply {
        stdout: b"Status: 200\r\n\r\nbody".to_vec(),
        stderr: b"oops".to_vec(),
        end: Some((258, ProtocolStatus::RequestComplete)),
        refused: None,
        left: 0,
    };
    assert_eq!(reply(&wire), expected);
    wire.extend(b"next");
    assert_eq!(reply(&wire).left, 4);
    for length in 0..wire.len() - 4 {
        assert_eq!(reply_in_steps(&wire[..length], 7).end, None, "{length}");
    }
}

#[test]
fn replies_that_break_the_rules_are_refused() {
    let end = record(kind::END_REQUEST, 1, &[0; 8], 0);
    for (wire, error) in [
        (vec![2], RecordError::Version),
        (vec![0, 6, 0, 1, 0, 0, 0, 0], RecordError::Version),
        (record(kind::STDOUT, 2, b"x", 0), RecordError::RequestId),
        (record(kind::STDOUT, 0, b"x", 0), RecordError::RequestId),
        (
            record(kind::END_REQUEST, 2, &[0; 8], 0),
            RecordError::RequestId,
        ),
        (
            record(kind::END_REQUEST, 0, &[0; 8], 0),
            RecordError::RequestId,
        ),
        (
            record(kind::END_REQUEST, 1, &[0; 7], 0),
            RecordError::Length,
        ),
        (
            record(kind::END_REQUEST, 1, &[0; 9], 0),
            RecordError::Length,
        ),
        (record(kind::END_REQUEST, 1, &[4; 8], 0), RecordError::Kind),
        (record(kind::STDIN, 1, b"x", 0), RecordError::Kind),
        (record(kind::GET_VALUES, 0, b"", 0), RecordError::Kind),
        (
            [
                record(kind::STDOUT, 1, b"", 0),
                record(kind::STDOUT, 1, b"x", 0),
            ]
            .concat(),
            RecordError::BehindEndOfStream,
        ),
        (
            [
                record(kind::STDERR, 1, b"", 0),
                record(kind::STDERR, 1, b"x", 0),
            ]
            .concat(),
            RecordError::BehindEndOfStream,
        ),
    ] {
        assert_eq!(reply(&wire).refused, Some(error), "{wire:?}");
    }
    let twice = [
        record(kind::STDOUT, 1, b"", 2),
        record(kind::STDOUT, 1, b"", 2),
        end,
    ]
    .concat();
    assert_eq!(reply(&twice).refused, None);
}

#[test]
fn nothing_comes_behind_the_end_of_a_request() {
    let wire = record(kind::END_REQUEST, 1, &[0; 8], 0);
    let mut decoder = FastCgiDecoder::new(ID);
    assert!(decoder.decode(&wire).is_ok());
    assert_eq!(decoder.decode(b""), Err(RecordError::BehindEndOfRequest));
    decoder.begin();
    assert!(matches!(
        decoder.decode(&wire).map(|decoded| decoded.event),
        Ok(FastCgiEvent::End { .. })
    ));
}

#[test]
fn what_is_given_back_comes_again() {
    let wire = [
        record(kind::STDOUT, 1, b"headbody", 3),
        record(kind::STDOUT, 1, b"", 0),
    ]
    .concat();
    let mut decoder = FastCgiDecoder::new(ID);
    let first = decoder.decode(&wire).expect("a record");
    assert_eq!(first.event, FastCgiEvent::Data(Stream::Stdout, 8..16));
    decoder.give_back(4);
    let position = first.consumed - 4;
    let second = decoder.decode(&wire[position..]).expect("its rest");
    assert_eq!(second.event, FastCgiEvent::Data(Stream::Stdout, 0..4));
    assert!(!decoder.is_stdout_ended());
    let third = decoder
        .decode(&wire[position + 4..])
        .expect("the end of STDOUT");
    assert_eq!((third.consumed, third.event), (11, FastCgiEvent::NeedMore));
    assert!(decoder.is_stdout_ended());
}

#[test]
fn requests_may_be_interleaved() {
    let mut wire = Vec::new();
    write_begin_request(&mut wire, 1, Role::Responder, AfterRequest::Keep);
    write_begin_request(&mut wire, 300, Role::Authorizer, AfterRequest::Close);
    let mut one = ParamsEncoder::new(&mut wire, 1);
    one.add(b"A", b"1");
    one.finish();
    write_stream(&mut wire, kind::STDIN, 300, b"other");
    write_stream(&mut wire, kind::DATA, 1, b"for filters only");
    write_stream(&mut wire, kind::STDIN, 1, b"this");
    wire.extend(record(kind::BEGIN_REQUEST, 2, &[0, 9, 1, 0, 0, 0, 0, 0], 4));
    wire.extend(record(kind::GET_VALUES, 0, b"\x0f\0FCGI_MPXS_CONNS", 6));
    wire.extend(record(99, 0, b"?", 0));
    wire.extend(record(99, 1, b"?", 0));
    write_end_of_stream(&mut wire, kind::STDIN, 1);
    wire.extend([1, kind::ABORT_REQUEST, 1, 44, 0, 0, 0, 0]);
    let found = requests(&wire);
    let one = Request {
        id: 1,
        begin: Some((Some(Role::Responder), AfterRequest::Keep)),
        params: b"\x01\x01A1".to_vec(),
        params_ended: true,
        stdin: b"this".to_vec(),
        stdin_ended: true,
        aborted: false,
    };
    let other = Request {
        id: 300,
        begin: Some((Some(Role::Authorizer), AfterRequest::Close)),
        stdin: b"other".to_vec(),
        aborted: true,
        ..Request::default()
    };
    let strange = Request {
        id: 2,
        begin: Some((None, AfterRequest::Keep)),
        ..Request::default()
    };
    assert_eq!(found.requests, [one, other, strange]);
    assert_eq!(
        pairs(&found.asked),
        [(b"FCGI_MPXS_CONNS".to_vec(), Vec::new())]
    );
    assert_eq!((found.unknown, found.refused), (vec![99], None));
}

#[test]
fn requests_that_break_the_rules_are_refused() {
    for (wire, error) in [
        (vec![7], RecordError::Version),
        (record(kind::STDIN, 0, b"x", 0), RecordError::RequestId),
        (
            record(kind::BEGIN_REQUEST, 0, &[0; 8], 0),
            RecordError::RequestId,
        ),
        (
            record(kind::BEGIN_REQUEST, 1, &[0; 7], 0),
            RecordError::Length,
        ),
        (
            record(kind::GET_VALUES, 0, &[0; 4097], 0),
            RecordError::Length,
        ),
        (record(kind::STDOUT, 1, b"x", 0), RecordError::Kind),
        (record(kind::GET_VALUES, 1, b"", 0), RecordError::Kind),
    ] {
        assert_eq!(requests(&wire).refused, Some(error), "{wire:?}");
    }
}

#[test]
fn pairs_that_are_cut_off_are_an_error() {
    for bytes in [
        &b"\x01"[..],
        b"\x01\x02A",
        b"\x80\0\0",
        b"\x01\xff\xff\xff\xffA",
    ] {
        let found: Vec<_> = Pairs::new(bytes).collect();
        assert_eq!(found, [Err(RecordError::Pair)], "{bytes:?}");
    }
    let found: Vec<_> = Pairs::new(b"\x01\x01AB\x01").collect();
    assert_eq!(found, [Ok((&b"A"[..], &b"B"[..])), Err(RecordError::Pair)]);
}

#[test]
fn applications_answer_management_records() {
    let mut wire = Vec::new();
    write_values_result(
        &mut wire,
        [(&b"FCGI_MPXS_CONNS"[..], &b"1"[..]), (&[b'x'; 128], b"")],
    );
    write_unknown_type(&mut wire, 99);
    write_end_request(&mut wire, ID, 3, ProtocolStatus::Overloaded);
    assert_eq!(wire[..10], [1, 10, 0, 0, 0, 18, 6, 0, 15, 1]);
    assert_eq!(
        wire[32..48],
        [1, 11, 0, 0, 0, 8, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(reply(&wire).end, Some((3, ProtocolStatus::Overloaded)));
}

#[test]
fn numbers_and_names_belong_together() {
    for number in 0..=4 {
        if let Some(role) = Role::from_number(number) {
            assert_eq!(role.number(), number);
        }
        if let Some(status) = ProtocolStatus::from_number(number as u8) {
            assert_eq!(u16::from(status.number()), number);
        }
    }
    assert_eq!(Role::from_number(0), None);
    assert_eq!(ProtocolStatus::from_number(4), None);
}

proptest! {
    #[test]
    fn params_and_bodies_come_back(
        pairs_in in proptest::collection::vec((
            proptest::collection::vec(any::<u8>(), 0..200),
            proptest::collection::vec(any::<u8>(), 0..3000),
        ), 0..30),
        body in proptest::collection::vec(any::<u8>(), 0..3000),
        step in 1..5000_usize,
    ) {
        let mut wire = Vec::new();
        write_begin_request(&mut wire, ID, Role::Responder, AfterRequest::Keep);
        let mut params = ParamsEncoder::new(&mut wire, ID);
        for (name, value) in &pairs_in {
            params.add(name, value);
        }
        params.finish();
        write_stream(&mut wire, kind::STDIN, ID, &body);
        write_end_of_stream(&mut wire, kind::STDIN, ID);
        let found = requests_in_steps(&wire, step);
        prop_assert_eq!(found.refused, None);
        prop_assert_eq!(found.requests.len(), 1);
        let request = &found.requests[0];
        prop_assert_eq!(&pairs(&request.params), &pairs_in);
        prop_assert_eq!(&request.stdin, &body);
        prop_assert!(request.params_ended && request.stdin_ended);
    }

    #[test]
    fn records_are_read_alike_however_they_arrive(
        parts in proptest::collection::vec((
            0..13_u8, 0..3_u8, proptest::collection::vec(any::<u8>(), 0..12), 0..9_usize,
        ), 0..12),
        step in 1..30_usize,
    ) {
        let wire: Vec<u8> = parts
            .iter()
            .flat_map(|(kind, id, content, padding)| record(*kind, *id, content, *padding))
            .collect();
        let all = wire.len().max(1);
        let (whole, mut stepped) = (reply_in_steps(&wire, all), reply_in_steps(&wire, step));
        stepped.left = if whole.end.is_some() { whole.left } else { 0 };
        prop_assert_eq!(stepped, whole);
        prop_assert_eq!(requests_in_steps(&wire, step), requests_in_steps(&wire, all));
    }

    #[test]
    fn a_whole_reply_is_what_the_decoder_makes_of_it(
        parts in proptest::collection::vec((0..7_usize, 0..9_usize), 1..5),
        cut in 0..8_usize,
    ) {
        let wire: Vec<u8> = parts
            .iter()
            .flat_map(|(part, padding)| {
                let (kind, id, content): (u8, u8, &[u8]) = match part {
                    0 | 1 => (kind::STDOUT, 1, b"Status: 200\n\n"),
                    2 => (kind::STDOUT, 1, b""),
                    3 => (kind::STDERR, 1, b"oops"),
                    4 => (kind::END_REQUEST, 2, &[0; 8]),
                    5 => (kind::END_REQUEST, 1, &[0, 0, 0, 0, 2, 0, 0, 0]),
                    _ => (kind::END_REQUEST, 1, &[0; 8]),
                };
                record(kind, id, content, *padding)
            })
            .collect();
        let wire = &wire[..wire.len().saturating_sub(cut / 4 * cut)];
        if let Some(whole) = whole_reply(wire, ID) {
            let decoded = reply_in_steps(wire, wire.len());
            prop_assert_eq!(&decoded.stdout, &wire[whole.stdout]);
            prop_assert_eq!(decoded.stderr, b"");
            prop_assert_eq!(decoded.end, Some((0, ProtocolStatus::RequestComplete)));
            prop_assert_eq!(decoded.left, wire.len() - whole.end);
        }
    }
}

#[test]
fn replies_in_their_simplest_form_are_found_whole() {
    let end = record(kind::END_REQUEST, 1, &[0; 8], 3);
    let content = record(kind::STDOUT, 1, b"A: b\n\n", 2);
    let simple = [&content[..], &end].concat();
    let whole = whole_reply(&simple, ID).expect("it is simple");
    assert_eq!((whole.stdout, whole.end), (8..14, simple.len()));
    let ended = [&content[..], &record(kind::STDOUT, 1, b"", 1), &end].concat();
    assert_eq!(
        whole_reply(&ended, ID).map(|whole| whole.end),
        Some(ended.len())
    );
    assert_eq!(
        whole_reply(&simple[..simple.len() - 1], ID),
        None,
        "it is incomplete"
    );
    assert_eq!(whole_reply(&[&content[..], &simple].concat(), ID), None);
}

#[test]
fn the_answer_to_get_values_is_taken_as_a_whole() {
    let mut asked = Vec::new();
    write_get_values(&mut asked);
    assert_eq!(asked.len() % 8, 0);
    let mut decoder = RequestDecoder::default();
    let event = decoder.decode(&asked).expect("it is sound").event;
    let RequestEvent::GetValues(range) = event else {
        panic!("{event:?}")
    };
    assert!(range.is_empty());

    let mut answer = Vec::new();
    write_values_result(&mut answer, [(&b"FCGI_MPXS_CONNS"[..], &b"0"[..])]);
    let unknown = record(kind::UNKNOWN_TYPE, 0, &[9, 0, 0, 0, 0, 0, 0, 0], 3);
    for whole in [answer, unknown, record(kind::GET_VALUES_RESULT, 0, b"", 0)] {
        for length in 0..whole.len() {
            assert_eq!(values_answer(&whole[..length]), Ok(None), "{length}");
        }
        assert_eq!(values_answer(&whole), Ok(Some(whole.len())));
        let more = [&whole[..], b"more"].concat();
        assert_eq!(values_answer(&more), Ok(Some(whole.len())));
    }
    let large = vec![0; VALUES_BYTES_MAX + 1];
    for (wrong, error) in [
        (
            record(kind::GET_VALUES_RESULT, 1, b"", 0),
            RecordError::RequestId,
        ),
        (record(kind::STDOUT, 1, b"x", 0), RecordError::RequestId),
        (record(kind::STDOUT, 0, b"x", 0), RecordError::Kind),
        (
            record(kind::GET_VALUES_RESULT, 0, &large, 0),
            RecordError::Length,
        ),
        (b"HTTP/1.1 400 Bad Request".to_vec(), RecordError::Version),
    ] {
        assert_eq!(values_answer(&wrong), Err(error));
    }
}
