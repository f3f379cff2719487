use super::*;

/// All replies in `wire`, fed `step` bytes at a time, and the error after them.
fn decode(wire: &[u8], step: usize, limits: ReplyLimits) -> (Vec<Value>, Option<RespError>) {
    let mut decoder = RespDecoder::new(limits);
    let mut values = Vec::new();
    for piece in wire.chunks(step) {
        let mut rest = piece;
        while !rest.is_empty() {
            match decoder.feed(rest) {
                Ok(fed) => {
                    assert!(fed.value.is_some() || fed.consumed == rest.len());
                    rest = &rest[fed.consumed..];
                    values.extend(fed.value);
                }
                Err(error) => {
                    assert_eq!(decoder.feed(b"+OK\r\n"), Err(error), "it stays");
                    return (values, Some(error));
                }
            }
        }
    }
    (values, None)
}

/// Decodes replies, and checks that the result does not depend on how they are cut.
fn decode_all(wire: &[u8], limits: ReplyLimits) -> (Vec<Value>, Option<RespError>) {
    let whole = decode(wire, wire.len(), limits);
    for step in 1..wire.len() {
        assert_eq!(decode(wire, step, limits), whole, "in pieces of {step}");
    }
    whole
}

fn values(wire: &str) -> Vec<Value> {
    let (values, error) = decode_all(wire.as_bytes(), ReplyLimits::default());
    assert_eq!(error, None, "{wire:?}");
    values
}

fn refused(wire: &str) -> RespError {
    let (_, error) = decode_all(wire.as_bytes(), ReplyLimits::default());
    error.unwrap_or_else(|| panic!("{wire:?} is taken"))
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn a_command_is_an_array_of_strings() {
    let mut wire = b"kept".to_vec();
    write_command(&mut wire, &[&b"SET"[..], b"a\r\nb", b""]);
    assert_eq!(wire, b"kept*3\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$0\r\n\r\n");
    write_command::<&[u8]>(&mut wire, &[]);
    assert!(wire.ends_with(b"$0\r\n\r\n"));
}

#[test]
fn types_of_resp2_are_read() {
    let wire = "+OK\r\n-ERR no\r\n:-42\r\n:+7\r\n$2\r\n\r\n\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n\
        *3\r\n:1\r\n*1\r\n$1\r\na\r\n$-1\r\n";
    let expected = [
        Value::Status(b"OK".into()),
        Value::Error(b"ERR no".into()),
        Value::Integer(-42),
        Value::Integer(7),
        bulk("\r\n"),
        bulk(""),
        Value::Nil,
        Value::Nil,
        Value::Array(vec![]),
        Value::Array(vec![
            Value::Integer(1),
            Value::Array(vec![bulk("a")]),
            Value::Nil,
        ]),
    ];
    assert_eq!(values(wire), expected);
}

#[test]
fn types_of_resp3_are_read() {
    let wire = "_\r\n#t\r\n#f\r\n,1.5e3\r\n,-inf\r\n(123456789012345678901234567890\r\n\
        !5\r\nERR x\r\n=7\r\ntxt:abc\r\n%1\r\n+k\r\n:1\r\n~2\r\n:1\r\n:2\r\n>1\r\n+news\r\n";
    let expected = [
        Value::Nil,
        Value::Boolean(true),
        Value::Boolean(false),
        Value::Double(1500.0),
        Value::Double(f64::NEG_INFINITY),
        Value::BigNumber(b"123456789012345678901234567890".into()),
        Value::Error(b"ERR x".into()),
        Value::Verbatim {
            format: *b"txt",
            text: b"abc".into(),
        },
        Value::Map(vec![(Value::Status(b"k".into()), Value::Integer(1))]),
        Value::Set(vec![Value::Integer(1), Value::Integer(2)]),
        Value::Push(vec![Value::Status(b"news".into())]),
    ];
    assert_eq!(values(wire), expected);
    let nan = RespDecoder::new(ReplyLimits::default()).feed(b",nan\r\n");
    assert!(
        matches!(nan, Ok(RespProgress { value: Some(Value::Double(number)), .. }) if number.is_nan())
    );
}

#[test]
fn attributes_are_dropped() {
    let wire = "|1\r\n+ttl\r\n*1\r\n:3\r\n$1\r\na\r\n*2\r\n|0\r\n:1\r\n|1\r\n+x\r\n+y\r\n:2\r\n";
    let array = Value::Array(vec![Value::Integer(1), Value::Integer(2)]);
    assert_eq!(values(wire), [bulk("a"), array]);
}

#[test]
fn garbage_is_refused_with_its_reason() {
    for (wire, reason) in [
        ("HTTP/1.1 400 Bad Request\r\n", RespError::UnknownType),
        ("\r\n", RespError::UnknownType),
        ("+OK\n", RespError::LineEnd),
        ("+OK\rX", RespError::LineEnd),
        ("$1\r\nabc", RespError::LineEnd),
        ("$1\r\na\rb", RespError::LineEnd),
        (":\r\n", RespError::Number),
        (":1x\r\n", RespError::Number),
        (":9223372036854775808\r\n", RespError::Number),
        (",1,5\r\n", RespError::Number),
        (",infinity\r\n", RespError::Number),
        ("#true\r\n", RespError::Number),
        ("(1.5\r\n", RespError::Number),
        ("$-2\r\n", RespError::Length),
        ("$+1\r\n", RespError::Length),
        ("*\r\n", RespError::Length),
        ("_x\r\n", RespError::Length),
        ("~-1\r\n", RespError::Length),
        ("!-1\r\n", RespError::Length),
        ("$?\r\n", RespError::Streamed),
        ("*?\r\n", RespError::Streamed),
        ("=3\r\ntxt\r\n", RespError::Verbatim),
        ("=4\r\nabcd\r\n", RespError::Verbatim),
    ] {
        assert_eq!(refused(wire), reason, "{wire:?}");
    }
    let endless = format!("+{}", "a".repeat(70_000));
    let (_, error) = decode(endless.as_bytes(), 1000, ReplyLimits::default());
    assert_eq!(error, Some(RespError::LineTooLong));
    let number = format!(":{}\r\n", "0".repeat(65));
    assert_eq!(refused(&number), RespError::LineTooLong);
}

#[test]
fn what_is_announced_beyond_limits_is_refused_before_it_comes() {
    for (wire, reason) in [
        ("$536870912\r\n", RespError::BulkTooLong),
        ("$99999999999999999999999\r\n", RespError::TooLarge),
        ("*1000000000\r\n", RespError::TooLarge),
        ("%9223372036854775807\r\n", RespError::TooLarge),
        ("*18446744073709551615\r\n", RespError::TooLarge),
    ] {
        assert_eq!(refused(wire), reason, "{wire:?}");
    }
}

#[test]
fn limits_hold_for_all_of_a_reply_and_each_reply_anew() {
    let limits = ReplyLimits {
        bulk_bytes_max: 10,
        reply_bytes_max: 15 + 2 * size_of::<Value>(),
        depth_max: 2,
    };
    let fits = "*2\r\n$10\r\n0123456789\r\n$5\r\n01234\r\n";
    let (values, error) = decode_all(fits.repeat(3).as_bytes(), limits);
    assert_eq!((values.len(), error), (3, None));
    let over = "*2\r\n$10\r\n0123456789\r\n$6\r\n012345\r\n";
    let (_, error) = decode_all(over.as_bytes(), limits);
    assert_eq!(error, Some(RespError::TooLarge));
    let (_, error) = decode_all(b"$11\r\n", limits);
    assert_eq!(error, Some(RespError::BulkTooLong));
    let (_, error) = decode_all(b"*1\r\n*1\r\n:1\r\n", limits);
    assert_eq!(error, None);
    let (_, error) = decode_all(b"*1\r\n*1\r\n*1\r\n", limits);
    assert_eq!(error, Some(RespError::TooDeep));
}

#[test]
fn a_decoder_tells_what_a_reply_takes() {
    let mut decoder = RespDecoder::new(ReplyLimits::default());
    for (wire, values, bytes) in [(&b"*2\r\n$3\r\nabc\r\n:1\r\n"[..], 3, 3), (b":1\r\n", 1, 0)] {
        decoder.feed(wire).expect("it is sound");
        assert_eq!(decoder.reply_bytes(), values * size_of::<Value>() + bytes);
    }
}

#[test]
fn values_say_what_they_are() {
    assert_eq!(bulk("a").bytes(), Some(&b"a"[..]));
    assert_eq!(bulk("a").into_bytes(), Some(b"a".to_vec()));
    assert_eq!(Value::Nil.bytes(), None);
    assert!(Value::Status(b"OK".into()).is_ok() && !bulk("OK").is_ok());
    assert!(Value::Error(b"ERR".into()).is_error());
}
