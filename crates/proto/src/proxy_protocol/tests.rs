use proptest::prelude::*;

use super::*;

fn complete(input: &[u8]) -> ProxyHeader {
    match decode(input) {
        Ok(DecodedHeader::Complete(header)) => *header,
        other => panic!("{}: {other:?}", input.escape_ascii()),
    }
}

fn ip(source: &str, destination: &str) -> Endpoints {
    Endpoints::Ip {
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
    }
}

/// A header of version 2 with these bytes after the fixed part.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = V2_SIGNATURE.to_vec();
    header.extend_from_slice(&[command, family]);
    let length = u16::try_from(rest.len()).expect("it is short");
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(rest);
    header
}

fn extra(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("it is short");
    [&[kind][..], &length.to_be_bytes(), value].concat()
}

const TCP4: &[u8] = b"\xc0\0\x02\x01\xc0\0\x02\x02\x10\x00\x00\x50";

#[test]
fn lines_of_version_1_are_read() {
    for (line, endpoints) in [
        (
            "PROXY TCP4 192.0.2.1 192.0.2.2 4096 80\r\n",
            ip("192.0.2.1:4096", "192.0.2.2:80"),
        ),
        (
            "PROXY TCP6 2001:db8::1 ::1 0 65535\r\n",
            ip("[2001:db8::1]:0", "[::1]:65535"),
        ),
        ("PROXY UNKNOWN\r\n", Endpoints::Itself),
        ("PROXY UNKNOWN ffff::f... any thing\r\n", Endpoints::Itself),
    ] {
        let whole = line.to_owned() + "GET / HTTP/1.1\r\n";
        let header = complete(whole.as_bytes());
        assert_eq!((header.length, header.endpoints), (line.len(), endpoints));
        for length in 0..line.len() {
            let part = &line.as_bytes()[..length];
            assert_eq!(decode(part), Ok(DecodedHeader::NeedMore), "{length}");
        }
    }
}

#[test]
fn malformed_lines_are_refused() {
    for line in [
        "PROXY TCP4 192.0.2.1 192.0.2.2 4096 80\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 4096\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 4096 80 \r\n",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 4096 80\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 04096 80\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +4096 80\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 4096 65536\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 4096 \r\n",
        "PROXY TCP4 ::1 ::1 4096 80\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 4096 80\r\n",
        "PROXY TCP4 192.0.2.256 192.0.2.2 4096 80\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 4096 80\r\n",
        "PROXY \r\n",
        "PROXY TCP4 192.0.2.1\0 192.0.2.2 4096 80\r\n",
        "PROXY TCP4 \u{e4} 192.0.2.2 4096 80\r\n",
    ] {
        assert_eq!(decode(line.as_bytes()), Err(HeaderError::Line), "{line:?}");
    }
    let endless = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 200]].concat();
    assert_eq!(decode(&endless[..106]), Ok(DecodedHeader::NeedMore));
    assert_eq!(decode(&endless[..107]), Err(HeaderError::Line));
}

#[test]
fn what_is_no_header_is_refused_at_its_first_wrong_byte() {
    for input in [
        "GET / HTTP/1.1\r\n",
        "PROXZ",
        "PRI * HTTP/2.0",
        "\r\n\r\nG",
        "\x16\x03\x01",
    ] {
        assert_eq!(
            decode(input.as_bytes()),
            Err(HeaderError::Missing),
            "{input:?}"
        );
    }
    assert_eq!(decode(b""), Ok(DecodedHeader::NeedMore));
    let early = &v2(0x11, V2_TCP4, TCP4)[..=V2_SIGNATURE.len()];
    assert_eq!(decode(early), Err(HeaderError::Version));
}

#[test]
fn headers_of_version_2_are_read() {
    let tcp6 = [[0x11; 16], [0x22; 16]].concat();
    let tcp6 = [&tcp6[..], &[0x10, 0, 0, 80]].concat();
    for (family, rest, endpoints) in [
        (V2_TCP4, TCP4, ip("192.0.2.1:4096", "192.0.2.2:80")),
        (
            V2_TCP6,
            &tcp6,
            ip(
                "[1111:1111:1111:1111:1111:1111:1111:1111]:4096",
                "[2222:2222:2222:2222:2222:2222:2222:2222]:80",
            ),
        ),
        (V2_UNIX_STREAM, &[b'/'; V2_UNIX][..], Endpoints::Unix),
        (V2_UNSPECIFIED, b"anything", Endpoints::Itself),
        (0x12, TCP4, Endpoints::Itself),
    ] {
        let header = v2(V2_PROXY, family, rest);
        let whole = [&header[..], b"GET /"].concat();
        let found = complete(&whole);
        assert_eq!((found.length, found.endpoints), (header.len(), endpoints));
        assert_eq!(
            complete(&v2(V2_LOCAL, family, rest)).endpoints,
            Endpoints::Itself
        );
        for length in 0..header.len() {
            assert_eq!(
                decode(&header[..length]),
                Ok(DecodedHeader::NeedMore),
                "{length}"
            );
        }
    }
}

#[test]
fn malformed_headers_are_refused() {
    for (header, error) in [
        (v2(0x11, V2_TCP4, TCP4), HeaderError::Version),
        (v2(0x22, V2_TCP4, TCP4), HeaderError::Version),
        (v2(V2_PROXY, V2_TCP4, &TCP4[1..]), HeaderError::Length),
        (v2(V2_PROXY, V2_TCP6, TCP4), HeaderError::Length),
        (v2(V2_PROXY, V2_UNIX_STREAM, &[0; 215]), HeaderError::Length),
        (
            v2(V2_PROXY, V2_UNSPECIFIED, &[0; 5000]),
            HeaderError::Length,
        ),
        (
            v2(V2_PROXY, V2_TCP4, &[TCP4, b"\x02"].concat()),
            HeaderError::Extras,
        ),
        (
            v2(V2_PROXY, V2_TCP4, &[TCP4, b"\x02\0\x02a"].concat()),
            HeaderError::Extras,
        ),
        (
            v2(V2_PROXY, V2_TCP4, &[TCP4, b"\x20\0\x02aa"].concat()),
            HeaderError::Extras,
        ),
        (
            v2(V2_PROXY, V2_TCP4, &[TCP4, b"\x03\0\x04aaaa"].concat()),
            HeaderError::Checksum,
        ),
        (
            v2(V2_PROXY, V2_TCP4, &[TCP4, b"\x03\0\x03aaa"].concat()),
            HeaderError::Extras,
        ),
    ] {
        assert_eq!(decode(&header), Err(error), "{}", header.escape_ascii());
    }
}

#[test]
fn extras_tell_of_tls_and_the_host() {
    let tls = [
        &b"\x03\0\0\0\0"[..],
        &extra(0x21, b"TLSv1.3"),
        &extra(0x22, b"joe"),
        &extra(0x23, b"AES"),
        &extra(0x99, b"?"),
    ]
    .concat();
    let rest = [
        TCP4,
        &extra(0x01, b"h2"),
        &extra(0x02, b"a.example"),
        &extra(0x20, &tls),
    ]
    .concat();
    let extras = complete(&v2(V2_PROXY, V2_TCP4, &rest)).extras;
    assert_eq!(extras.authority.as_deref(), Some(&b"a.example"[..]));
    let tls = extras.tls.expect("it is there");
    assert!(tls.is_used && tls.has_certificate && tls.is_verified);
    assert_eq!(tls.version.as_deref(), Some(&b"TLSv1.3"[..]));
    assert_eq!(tls.common_name.as_deref(), Some(&b"joe"[..]));
    assert_eq!(
        (tls.cipher.as_deref(), tls.key_algorithm),
        (Some(&b"AES"[..]), None)
    );
    let failed = extra(0x20, b"\x05\0\0\0\x01");
    let failed = complete(&v2(V2_PROXY, V2_TCP4, &[TCP4, &failed].concat())).extras;
    assert!(
        failed
            .tls
            .is_some_and(|tls| tls.has_certificate && !tls.is_verified)
    );
}

#[test]
fn a_right_checksum_is_accepted() {
    let sum = b"\x71\x29\x7c\xf0";
    let rest = [TCP4, b"\x03\0\x04", sum, b"\x04\0\0"].concat();
    let mut header = v2(V2_PROXY, V2_TCP4, &rest);
    assert_eq!(
        complete(&header).endpoints,
        ip("192.0.2.1:4096", "192.0.2.2:80")
    );
    header[V2_FIXED] ^= 1;
    assert_eq!(decode(&header), Err(HeaderError::Checksum));
}

#[test]
fn what_is_written_is_read() {
    for endpoints in [
        ip("192.0.2.1:4096", "192.0.2.2:80"),
        ip("[2001:db8::1]:1", "[::1]:65535"),
        Endpoints::Itself,
    ] {
        for encode in [encode_v1, encode_v2] {
            let mut header = Vec::new();
            encode(&endpoints, &mut header);
            let found = complete(&header);
            assert_eq!((found.length, &found.endpoints), (header.len(), &endpoints));
        }
    }
    let mut line = Vec::new();
    encode_v1(&ip("[::ffff:192.0.2.1]:1", "192.0.2.2:2"), &mut line);
    assert_eq!(line, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
    line.clear();
    encode_v1(&ip("[2001:db8::1]:1", "192.0.2.2:2"), &mut line);
    assert_eq!(line, b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1 2\r\n");
    let mut unix = Vec::new();
    encode_v2(&Endpoints::Unix, &mut unix);
    assert_eq!(complete(&unix).endpoints, Endpoints::Itself);
}

proptest! {
    #[test]
    fn any_bytes_are_survived_and_waiting_ends(bytes: Vec<u8>, command in 0x20_u8..0x22, family: u8) {
        let _ = decode(&bytes);
        let _ = decode(&[V1_PREFIX, &bytes].concat());
        let mut header = v2(command, family, &bytes);
        let _ = decode(&header);
        header.resize(HEADER_BYTES_MAX, 0);
        prop_assert_ne!(decode(&header), Ok(DecodedHeader::NeedMore));
    }
}
