use proptest::prelude::*;

use super::*;

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/client_hello/", $name))
    };
}

/// As `openssl s_client` 3.0 and rustls 0.23 have sent them.
const OPENSSL_TLS13: &[u8] = seed!("openssl_tls13");
const OPENSSL_TLS12: &[u8] = seed!("openssl_tls12");
const OPENSSL_PLAIN: &[u8] = seed!("openssl_plain");
const RUSTLS: &[u8] = seed!("rustls_post_quantum");

const ECDSA_P256_SHA256: u16 = 0x0403;
const RSA_PSS_SHA256: u16 = 0x0804;

/// The message that `input` begins with, which comes in pieces of `step` bytes, and how long it is with its records.
fn decode_in(input: &[u8], step: usize) -> Result<Option<(ClientHello, usize)>, HelloError> {
    let mut decoder = ClientHelloDecoder::default();
    let mut before = 0;
    for piece in input.chunks(step) {
        match decoder.decode(piece)? {
            DecodedHello::NeedMore => before += piece.len(),
            DecodedHello::Complete { hello, consumed } => {
                return Ok(Some((*hello, before + consumed)));
            }
        }
    }
    Ok(None)
}

fn decode(input: &[u8]) -> Result<Option<(ClientHello, usize)>, HelloError> {
    decode_in(input, usize::MAX)
}

fn complete(input: &[u8]) -> ClientHello {
    let (hello, length) = decode(input).unwrap().expect("it is complete");
    assert_eq!(length, input.len());
    hello
}

fn refused(input: &[u8]) -> HelloError {
    let error = decode(input).unwrap_err();
    assert_eq!(decode_in(input, 1), Err(error));
    error
}

/// `message` in records of `payload_bytes` each.
fn in_records(message: &[u8], payload_bytes: usize) -> Vec<u8> {
    let mut records = Vec::new();
    for piece in message.chunks(payload_bytes) {
        records.extend_from_slice(&[HANDSHAKE, 3, 1]);
        records.extend_from_slice(&u16::try_from(piece.len()).unwrap().to_be_bytes());
        records.extend_from_slice(piece);
    }
    records
}

fn list16(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    [&length[..], bytes].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &list16(body)].concat()
}

fn name_extension(name: &[u8]) -> Vec<u8> {
    let entry = [&[HOST_NAME][..], &list16(name)].concat();
    extension(extension::SERVER_NAME, &list16(&entry))
}

/// A small message with these extensions, in one record.
fn hello_with(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; RANDOM]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&list16(extensions));
    message_with(&body)
}

fn message_with(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    in_records(
        &[&[CLIENT_HELLO], &length[1..], body].concat(),
        RECORD_BYTES_MAX,
    )
}

fn named(name: &[u8]) -> Result<Option<(ClientHello, usize)>, HelloError> {
    decode(&hello_with(&name_extension(name)))
}

#[test]
fn what_openssl_asks_for() {
    let hello = complete(OPENSSL_TLS13);
    assert_eq!(hello.server_name(), Some("www.example.org"));
    assert_eq!(hello.alpn().collect::<Vec<_>>(), [&b"h2"[..], b"http/1.1"]);
    let versions: Vec<u16> = hello.versions().collect();
    assert_eq!(versions, [version::TLS13, version::TLS12, 0x0302, 0x0301]);
    assert!(
        hello
            .signature_schemes()
            .any(|scheme| scheme == ECDSA_P256_SHA256)
    );
    assert!(
        hello
            .signature_schemes()
            .any(|scheme| scheme == RSA_PSS_SHA256)
    );
    assert!(hello.cipher_suites().any(|suite| suite == 0x1301));
    assert!(hello.has_session_id() && !hello.has_ticket());

    let old = complete(OPENSSL_TLS12);
    assert_eq!(old.versions().collect::<Vec<_>>(), [version::TLS12]);
    assert_eq!(old.server_name(), Some("example.org"));
    assert!(!old.has_session_id());

    let plain = complete(OPENSSL_PLAIN);
    assert_eq!(plain.server_name(), None);
    assert_eq!(plain.alpn().count(), 0);
}

#[test]
fn what_rustls_asks_for() {
    let hello = complete(RUSTLS);
    assert!(RUSTLS.len() > 1216, "it has a share of X25519MLKEM768");
    assert_eq!(hello.server_name(), Some("example.org"));
    assert_eq!(hello.alpn().count(), 2);
    assert!(hello.versions().any(|offered| offered == version::TLS13));
}

#[test]
fn a_message_comes_in_any_pieces() {
    for input in [OPENSSL_TLS13, OPENSSL_TLS12, OPENSSL_PLAIN, RUSTLS] {
        let whole = complete(input);
        for split in 0..input.len() {
            let mut decoder = ClientHelloDecoder::default();
            assert_eq!(decoder.decode(&input[..split]), Ok(DecodedHello::NeedMore));
            let rest = decoder.decode(&input[split..]).unwrap();
            let hello = Box::new(whole.clone());
            let consumed = input.len() - split;
            assert_eq!(rest, DecodedHello::Complete { hello, consumed });
        }
        assert_eq!(decode_in(input, 1), Ok(Some((whole, input.len()))));
    }
}

#[test]
fn a_message_comes_in_any_records_and_is_given_on_in_one() {
    let whole = complete(RUSTLS);
    let message = &RUSTLS[RECORD_HEADER..];
    for payload_bytes in [1, 2, 3, 4, 5, message.len() / 100, message.len() - 1] {
        let records = in_records(message, payload_bytes);
        let hello = complete(&records);
        assert_eq!(hello, whole);
        assert_eq!(decode_in(&records, 1), Ok(Some((hello, records.len()))));
        let mut record = Vec::new();
        whole.write_record(&mut record);
        assert_eq!(record, RUSTLS);
    }
}

#[test]
fn what_follows_in_other_records_is_left() {
    let input = [RUSTLS, &[20, 3, 3, 0, 1, 1]].concat();
    let (_, consumed) = decode(&input).unwrap().unwrap();
    assert_eq!(consumed, RUSTLS.len());
}

#[test]
fn what_follows_in_the_same_record_is_refused() {
    let message = [&OPENSSL_PLAIN[RECORD_HEADER..], &[0]].concat();
    let input = in_records(&message, RECORD_BYTES_MAX);
    assert_eq!(refused(&input), HelloError::BytesBehind);
}

#[test]
fn http_is_told_from_tls() {
    for begin in [
        "GET / HTTP/1.1",
        "POST /form",
        "PRI * HTTP/2.0",
        "HEAD /",
        "OPTIONS *",
        "PUT /a",
        "VERSION-CONTROL /",
        "ACL /",
        "PROPFIND /",
        "\r\nGET / HTTP/1.1",
        "\r\n\r\nPOST /form",
        "\nHEAD /",
    ] {
        assert_eq!(refused(begin.as_bytes()), HelloError::PlainHttp, "{begin}");
    }
    let others: [&[u8]; 9] = [
        b"SSH-2.0-OpenSSH_9.9",
        b"EHLO example.org",
        b"get / HTTP/1.1",
        b"\x80\x2e\x01\0\x02",
        b"\0\0\0\0\0",
        b"GETS /",
        b"G E T",
        b"\r\n\r\n\r\n",
        b"\r\nget / HTTP/1.1",
    ];
    for begin in others {
        assert_eq!(refused(begin), HelloError::NotTls, "{begin:?}");
        assert_eq!(HelloError::NotTls.alert(), None);
    }
    assert_eq!(decode(b"GET"), Ok(None));
}

#[test]
fn records_are_checked() {
    assert_eq!(
        refused(&[21, 3, 1, 0, 2, 2, 0]),
        HelloError::UnexpectedRecord
    );
    assert_eq!(refused(&[22, 2, 0, 0, 2, 2, 0]), HelloError::RecordVersion);
    assert_eq!(refused(&[22, 3, 1, 0, 0]), HelloError::RecordLength);
    assert_eq!(refused(&[22, 3, 1, 0x40, 1]), HelloError::RecordLength);
    assert_eq!(refused(&[22, 3, 1, 0, 4, 2, 0]), HelloError::NotClientHello);
    let between = [&in_records(&[1, 0], 2)[..], &[23, 3, 3, 0, 1, 0]].concat();
    assert_eq!(refused(&between), HelloError::UnexpectedRecord);
    assert_eq!(refused(&[0x16, 4, 0, 0, 2]), HelloError::RecordVersion);
}

#[test]
fn lengths_and_counts_have_limits() {
    let largest = MESSAGE_BYTES_MAX - OPENSSL_PLAIN.len() + RECORD_HEADER - 20;
    let padding = extension(21, &vec![0; largest]);
    assert!(decode(&hello_with(&padding)).unwrap().is_some());
    assert_eq!(
        refused(&[22, 3, 1, 0, 4, 1, 0, 0x40, 0]),
        HelloError::TooLong
    );
    // 64 KiB, of which four bytes are enough to know it.
    assert_eq!(
        refused(&[22, 3, 1, 0x40, 0, 1, 1, 0, 0]),
        HelloError::TooLong
    );

    let message = |padding: usize| {
        let input = hello_with(&extension(21, &vec![0; padding]));
        input[RECORD_HEADER..].to_vec()
    };
    let usual = message(0).len();
    let fits = message(usize::from(RECORDS_MAX) - usual);
    assert!(decode(&in_records(&fits, 1)).unwrap().is_some());
    let is_longer = message(usize::from(RECORDS_MAX) - usual + 1);
    assert_eq!(
        refused(&in_records(&is_longer, 1)),
        HelloError::TooManyRecords
    );
}

#[test]
fn names_of_hosts_are_dns_names() {
    let name = |text: &str| {
        let decoded = named(text.as_bytes())?.expect("it is complete");
        Ok(decoded.0.server_name().expect("there is one").to_owned())
    };
    let longest = format!(
        "{}.{}.{}.{}",
        "a".repeat(63),
        "b".repeat(63),
        "c".repeat(63),
        "d".repeat(61)
    );
    for (given, read) in [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("localhost", "localhost"),
        ("_dmarc.a-b.xn--bcher-kva.de", "_dmarc.a-b.xn--bcher-kva.de"),
        ("1.2.3.4.example", "1.2.3.4.example"),
        (&longest, &longest),
    ] {
        assert_eq!(name(given).as_deref(), Ok(read));
    }
    let too_long = format!("{longest}x");
    for given in [
        "a\0.example",
        "example.org\0",
        ".",
        "..",
        ".example",
        "a..b",
        "*.example.org",
        "-a.example",
        "a-.example",
        "a b",
        "exämple.org",
        "a/b",
        "[::1]",
        "example.org:443",
        "a@b",
        &"a".repeat(64),
        &too_long,
    ] {
        assert_eq!(name(given), Err(HelloError::ServerName), "{given:?}");
    }
    for given in ["127.0.0.1", "::1", "fe80::1"] {
        let (hello, _) = named(given.as_bytes()).unwrap().unwrap();
        assert_eq!(hello.server_name(), None, "{given:?}");
    }
    for given in ["1.2.3.4.", "127.1", "2130706433"] {
        assert_eq!(name(given), Err(HelloError::ServerAddress), "{given:?}");
    }
    assert_eq!(named(b"\xff\xfe").unwrap_err(), HelloError::ServerName);
    assert_eq!(named(b"").unwrap_err(), HelloError::Malformed);
}

#[test]
fn a_name_is_alone() {
    let one = [&[HOST_NAME][..], &list16(b"a.example")].concat();
    let two = list16(&[one.clone(), one].concat());
    let input = hello_with(&extension(extension::SERVER_NAME, &two));
    assert_eq!(refused(&input), HelloError::Malformed);
    let again = [name_extension(b"a.example"), name_extension(b"b.example")].concat();
    assert_eq!(refused(&hello_with(&again)), HelloError::DuplicateExtension);
    let of_another_kind = list16(&[&[1][..], &list16(b"a.example")].concat());
    let input = hello_with(&extension(extension::SERVER_NAME, &of_another_kind));
    assert_eq!(refused(&input), HelloError::ServerName);
}

#[test]
fn lists_fit_into_their_lengths() {
    for (kind, body) in [
        (extension::ALPN, &[][..]),
        (extension::ALPN, &[0, 0]),
        (extension::ALPN, &[0, 1, 0]),
        (extension::ALPN, &[0, 2, 5, b'a']),
        (extension::ALPN, &[0, 2, 1, b'a', 0]),
        (extension::SUPPORTED_VERSIONS, &[0]),
        (extension::SUPPORTED_VERSIONS, &[3, 3, 4, 3]),
        (extension::SIGNATURE_ALGORITHMS, &[0, 0]),
        (extension::SIGNATURE_ALGORITHMS, &[0, 3, 4, 3, 4]),
        (extension::SERVER_NAME, &[0, 3, 0, 0, 9]),
    ] {
        let input = hello_with(&extension(kind, body));
        assert_eq!(refused(&input), HelloError::Malformed, "{kind} {body:?}");
    }
    let [.., last] = RUSTLS else { unreachable!() };
    let longer = [&RUSTLS[RECORD_HEADER + MESSAGE_HEADER..], &[*last]].concat();
    assert_eq!(refused(&message_with(&longer)), HelloError::Malformed);
    assert_eq!(refused(&message_with(&[])), HelloError::Malformed);
}

#[test]
fn extensions_may_be_missing() {
    let with = hello_with(&[]);
    let body = &with[RECORD_HEADER + MESSAGE_HEADER..with.len() - 2];
    let hello = complete(&message_with(body));
    assert_eq!(hello.versions().collect::<Vec<_>>(), [version::TLS12]);
    assert_eq!(hello.signature_schemes().count(), 0);
    // And nothing shorter is a message.
    for length in 0..body.len() {
        assert_eq!(
            refused(&message_with(&body[..length])),
            HelloError::Malformed
        );
    }
}

#[test]
fn tickets_are_seen() {
    let empty = extension(extension::SESSION_TICKET, &[]);
    assert!(!complete(&hello_with(&empty)).has_ticket());
    let full = extension(extension::SESSION_TICKET, &[1, 2]);
    assert!(complete(&hello_with(&full)).has_ticket());
    let shared = extension(extension::PRE_SHARED_KEY, &[1, 2]);
    assert!(complete(&hello_with(&shared)).has_ticket());
}

proptest! {
    #[test]
    fn changed_bytes_are_read_alike_in_any_pieces(
        position in 0..OPENSSL_TLS13.len(), byte: u8, step in 1..64usize,
    ) {
        let mut input = OPENSSL_TLS13.to_vec();
        input[position] = byte;
        prop_assert_eq!(decode_in(&input, step), decode(&input));
    }
}
