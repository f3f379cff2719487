use super::*;

type Story = (Vec<Reply>, Option<ReplyError>);

/// All replies in `wire`, fed `step` bytes at a time, and the error after them.
fn story(
    wire: &[u8],
    step: usize,
    mut feed: impl FnMut(&[u8]) -> Result<MemcachedProgress, ReplyError>,
) -> Story {
    let mut replies = Vec::new();
    for piece in wire.chunks(step) {
        let mut rest = piece;
        while !rest.is_empty() {
            match feed(rest) {
                Ok(fed) => {
                    assert!(fed.reply.is_some() || fed.consumed == rest.len());
                    rest = &rest[fed.consumed..];
                    replies.extend(fed.reply);
                }
                Err(error) => {
                    assert_eq!(feed(b"END\r\n"), Err(error), "it stays");
                    return (replies, Some(error));
                }
            }
        }
    }
    (replies, None)
}

/// Decodes text, and checks that the result does not depend on how it is cut.
fn text(wire: &[u8], value_bytes_max: usize) -> Story {
    let decode = |step| {
        let mut decoder = text::TextDecoder::new(value_bytes_max);
        story(wire, step, |piece| decoder.feed(piece))
    };
    let whole = decode(wire.len());
    for step in 1..wire.len() {
        assert_eq!(decode(step), whole, "in pieces of {step}");
    }
    whole
}

/// Decodes the replies to the command with the number 7.
fn binary(wire: &[u8], value_bytes_max: usize) -> Story {
    let decode = |step| {
        let mut decoder = binary::BinaryDecoder::new(value_bytes_max);
        decoder.expect(7);
        story(wire, step, |piece| decoder.feed(piece))
    };
    let whole = decode(wire.len());
    for step in 1..wire.len() {
        assert_eq!(decode(step), whole, "in pieces of {step}");
    }
    whole
}

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes()).expect("it is a key")
}

fn item(key: &str, flags: u32, cas: Option<u64>, data: &str) -> Reply {
    Reply::Value(Item {
        key: key.into(),
        flags,
        cas,
        data: data.into(),
    })
}

fn commands<'a>(keys: &'a [Key<'a>]) -> Vec<Command<'a>> {
    let store = |how| Command::Store {
        how,
        key: key("k"),
        flags: 3,
        expiry_s: 60,
        data: b"a\r\nb",
    };
    let mut commands: Vec<_> = [
        Write::Set,
        Write::Add,
        Write::Replace,
        Write::Append,
        Write::Prepend,
        Write::Cas(u64::MAX),
    ]
    .map(store)
    .into();
    commands.extend([
        Command::Get {
            keys,
            with_cas: false,
        },
        Command::Get {
            keys,
            with_cas: true,
        },
        Command::Delete { key: key("k") },
        Command::Count {
            direction: Direction::Up,
            key: key("k"),
            by: 1,
        },
        Command::Count {
            direction: Direction::Down,
            key: key("k"),
            by: u64::MAX,
        },
        Command::Touch {
            key: key("k"),
            expiry_s: 0,
        },
        Command::FlushAll { delay_s: 10 },
        Command::Version,
    ]);
    commands
}

#[test]
fn a_key_can_be_nothing_but_a_key() {
    let longest = "k".repeat(250);
    assert_eq!(key(&longest).bytes().len(), 250);
    assert_eq!(key("\u{e4}/?").bytes(), "ä/?".as_bytes());
    for (bytes, error) in [
        (&b""[..], KeyError::Empty),
        ("k".repeat(251).as_bytes(), KeyError::TooLong),
        (b"a b", KeyError::Character),
        (b"a\r\nflush_all", KeyError::Character),
        (b"a\0", KeyError::Character),
        (b"a\x7f", KeyError::Character),
    ] {
        assert_eq!(Key::new(bytes), Err(error));
    }
}

#[test]
fn commands_are_written_as_text() {
    let keys = [key("a"), key("b")];
    let mut wire = Vec::new();
    for command in commands(&keys) {
        text::write(&mut wire, &command);
    }
    let expected = "set k 3 60 4\r\na\r\nb\r\nadd k 3 60 4\r\na\r\nb\r\nreplace k 3 60 4\r\na\r\nb\r\n\
        append k 3 60 4\r\na\r\nb\r\nprepend k 3 60 4\r\na\r\nb\r\n\
        cas k 3 60 4 18446744073709551615\r\na\r\nb\r\nget a b\r\ngets a b\r\ndelete k\r\nincr k 1\r\n\
        decr k 18446744073709551615\r\ntouch k 0\r\nflush_all 10\r\nversion\r\n";
    assert_eq!(String::from_utf8_lossy(&wire), expected);
}

#[test]
fn replies_are_read_as_text() {
    let wire =
        b"VALUE a 1 3\r\na\r\n\r\nVALUE b 4294967295 0 42\r\n\r\nEND\r\nSTORED\r\nNOT_STORED\r\n\
        EXISTS\r\nNOT_FOUND\r\nDELETED\r\nTOUCHED\r\nOK\r\n17\r\n5  \r\nVERSION 1.6.18\r\nERROR\r\n\
        ERROR Too many open connections\r\nCLIENT_ERROR bad\r\nSERVER_ERROR out of memory\r\n";
    let expected = [
        item("a", 1, None, "a\r\n"),
        item("b", u32::MAX, Some(42), ""),
        Reply::End,
        Reply::Stored,
        Reply::NotStored,
        Reply::Exists,
        Reply::NotFound,
        Reply::Deleted,
        Reply::Touched,
        Reply::Ok,
        Reply::Number(17),
        Reply::Number(5),
        Reply::Version(b"1.6.18".into()),
        Reply::Unsupported,
        Reply::ServerError(b"Too many open connections".into()),
        Reply::ClientError(b"bad".into()),
        Reply::ServerError(b"out of memory".into()),
    ];
    assert_eq!(text(wire, 1 << 20), (expected.into(), None));
}

#[test]
fn garbage_is_refused_with_its_reason() {
    for (wire, reason) in [
        ("HTTP/1.1 400 Bad Request\r\n", ReplyError::Unknown),
        ("\r\n", ReplyError::Unknown),
        ("stored\r\n", ReplyError::Unknown),
        ("-1\r\n", ReplyError::Unknown),
        ("18446744073709551616\r\n", ReplyError::Unknown),
        ("END\n", ReplyError::LineEnd),
        ("VALUE a 0 1\r\nabc", ReplyError::LineEnd),
        ("VALUE a 0 1\r\na\rb", ReplyError::LineEnd),
        ("VALUE a 0\r\n", ReplyError::Value),
        ("VALUE  0 1\r\n", ReplyError::Value),
        ("VALUE a -1 1\r\n", ReplyError::Value),
        ("VALUE a 4294967296 1\r\n", ReplyError::Value),
        ("VALUE a 0 x\r\n", ReplyError::Value),
        ("VALUE a 0 1 x\r\n", ReplyError::Value),
        ("VALUE a 0 1 2 3\r\n", ReplyError::Value),
        ("VALUE a 0 11\r\n", ReplyError::ValueTooLong),
        ("VALUE a 0 536870912000\r\n", ReplyError::ValueTooLong),
    ] {
        assert_eq!(text(wire.as_bytes(), 10).1, Some(reason), "{wire:?}");
    }
    let endless = vec![b'a'; 3000];
    assert_eq!(text(&endless, 10).1, Some(ReplyError::LineTooLong));
    assert_eq!(text(b"VALUE a 0 10\r\n0123456789\r\n", 10).1, None);
}

#[test]
fn commands_are_written_as_packets() {
    let keys = [key("a"), key("bb")];
    let mut wire = Vec::new();
    let get = Command::Get {
        keys: &keys,
        with_cas: false,
    };
    binary::write(&mut wire, &get, 7);
    let header = |operation, key, extras, length| {
        [
            0x80, operation, 0, key, extras, 0, 0, 0, 0, 0, 0, length, 0, 0, 0, 7, 0, 0, 0, 0, 0,
            0, 0, 0,
        ]
    };
    let expected = [
        &header(0x0d, 1, 0, 1)[..],
        b"a",
        &header(0x0d, 2, 0, 2),
        b"bb",
        &header(0x0a, 0, 0, 0),
    ]
    .concat();
    assert_eq!(wire, expected);

    let mut wire = Vec::new();
    for command in commands(&keys) {
        binary::write(&mut wire, &command, 7);
    }
    let mut found = Vec::new();
    let mut rest = &wire[..];
    while let Some((header, behind)) = rest.split_at_checked(24) {
        assert_eq!((header[0], header[15]), (0x80, 7));
        let length = u32::from_be_bytes(header[8..12].try_into().expect("four bytes"));
        let (body, behind) = behind.split_at(length as usize);
        found.push((header[1], header[4], header[23], body));
        rest = behind;
    }
    assert_eq!(rest, b"");
    let stored = b"\0\0\0\x03\0\0\0\x3cka\r\nb";
    let once = b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\xff\xff\xff\xffk";
    let most = b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\xff\xff\xff\xffk";
    let expected: [(u8, u8, u8, &[u8]); 18] = [
        (0x01, 8, 0, stored),
        (0x02, 8, 0, stored),
        (0x03, 8, 0, stored),
        (0x0e, 0, 0, b"ka\r\nb"),
        (0x0f, 0, 0, b"ka\r\nb"),
        (0x01, 8, 255, stored),
        (0x0d, 0, 0, b"a"),
        (0x0d, 0, 0, b"bb"),
        (0x0a, 0, 0, b""),
        (0x0d, 0, 0, b"a"),
        (0x0d, 0, 0, b"bb"),
        (0x0a, 0, 0, b""),
        (0x04, 0, 0, b"k"),
        (0x05, 20, 0, once),
        (0x06, 20, 0, most),
        (0x1c, 4, 0, b"\0\0\0\0k"),
        (0x08, 4, 0, b"\0\0\0\x0a"),
        (0x0b, 0, 0, b""),
    ];
    assert_eq!(found, expected);
}

/// A reply with the number 7, as a server writes it.
fn packet(operation: u8, status: u8, extras: &[u8], key: &str, value: &[u8]) -> Vec<u8> {
    let length = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![
        0x81,
        operation,
        0,
        key.len() as u8,
        extras.len() as u8,
        0,
        0,
        status,
    ];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9]);
    for part in [extras, key.as_bytes(), value] {
        packet.extend_from_slice(part);
    }
    packet
}

#[test]
fn replies_are_read_as_packets() {
    let wire = [
        packet(0x0d, 0, &[0, 0, 0, 5], "a", b"value"),
        packet(0x0d, 1, &[], "", b"Not found"),
        packet(0x0d, 0, &[0, 0, 0, 0], "b", b""),
        packet(0x0a, 0, &[], "", b""),
        packet(0x01, 0, &[], "", b""),
        packet(0x02, 2, &[], "", b"Data exists for key."),
        packet(0x03, 1, &[], "", b"Not found"),
        packet(0x0e, 5, &[], "", b"Not stored."),
        packet(0x04, 0, &[], "", b""),
        packet(0x05, 0, &[], "", &17u64.to_be_bytes()),
        packet(0x05, 6, &[], "", b"Non-numeric"),
        packet(0x1c, 0, &[], "", b""),
        packet(0x08, 0, &[], "", b""),
        packet(0x0b, 0, &[], "", b"1.6.18"),
        packet(0x1c, 0x81, &[], "", b"Unknown command"),
        packet(0x01, 0x03, &[], "", b"Too large."),
    ];
    let expected = [
        item("a", 5, Some(9), "value"),
        item("b", 0, Some(9), ""),
        Reply::End,
        Reply::Stored,
        Reply::Exists,
        Reply::NotFound,
        Reply::NotStored,
        Reply::Deleted,
        Reply::Number(17),
        Reply::ClientError(b"Non-numeric".into()),
        Reply::Touched,
        Reply::Ok,
        Reply::Version(b"1.6.18".into()),
        Reply::Unsupported,
        Reply::ServerError(b"Too large.".into()),
    ];
    assert_eq!(binary(&wire.concat(), 20), (expected.into(), None));
}

#[test]
fn packets_that_are_no_replies_are_refused() {
    let sound = packet(0x0d, 0, &[0, 0, 0, 5], "a", b"value");
    let changed = |position: usize, byte: u8| {
        let mut packet = sound.clone();
        packet[position] = byte;
        packet
    };
    for (wire, reason) in [
        (changed(0, 0x80), ReplyError::Magic),
        (changed(1, 0x7f), ReplyError::Operation),
        (changed(15, 8), ReplyError::Operation),
        (changed(3, 200), ReplyError::Lengths),
        (changed(4, 3), ReplyError::Lengths),
        (changed(8, 0x7f), ReplyError::ValueTooLong),
        (changed(28, b' '), ReplyError::Value),
        (packet(0x05, 0, &[], "", b"17"), ReplyError::Lengths),
        (
            packet(0x0b, 0, &[], "", &[b'1'; 21]),
            ReplyError::ValueTooLong,
        ),
    ] {
        assert_eq!(binary(&wire, 20), (vec![], Some(reason)), "{wire:?}");
    }
}
