use proptest::prelude::*;

use super::*;
use crate::http1::Parsed;
use crate::method::Method;

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Adds a field, or a pseudo-field if its name begins with a colon.
fn add(builder: &mut HeadBuilder<'_>, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
    match name.strip_prefix(b":") {
        Some(name) => builder.pseudo_field(name, value),
        None => builder.field(name, value),
    }
}

/// The four pseudo-fields of a request for `path`.
fn request<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
    [
        (":method", method),
        (":scheme", "https"),
        (":authority", "A.example:443"),
        (":path", path),
    ]
}

fn built_with(
    version: Version,
    parts: &[Fields<'_>],
    body: BodyFraming,
    options: &HeadOptions,
) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::new();
    let mut builder = head.build(version, options);
    for (name, value) in parts.concat() {
        add(&mut builder, name.as_bytes(), value.as_bytes())?;
    }
    builder.finish(body)?;
    Ok(head)
}

fn built(parts: &[Fields<'_>], body: BodyFraming) -> Result<RequestHead, HeadError> {
    built_with(Version::Http2, parts, body, &HeadOptions::default())
}

#[test]
fn a_head_is_built_of_pseudo_fields_and_fields() {
    let options = HeadOptions {
        default_port: 443,
        ..HeadOptions::default()
    };
    let fields = [
        ("cookie", "a=1"),
        ("accept", "x"),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ];
    let parts: [Fields<'_>; 2] = [&request("GET", "/a?b"), &fields];
    let head = built_with(Version::Http2, &parts, BodyFraming::None, &options).expect("sound");
    assert_eq!((head.method(), head.target()), (Method::Get, &b"/a?b"[..]));
    assert_eq!(
        (head.version(), head.host()),
        (Version::Http2, &b"a.example"[..])
    );
    assert_eq!(head.field(KnownField::Host), Some(&b"A.example:443"[..]));
    assert_eq!(head.field(KnownField::Cookie), Some(&b"a=1; b=2"[..]));
    assert_eq!((head.field_count(), head.framing()), (4, BodyFraming::None));
    assert!(head.keep_alive() && !head.expects_continue());
    assert_eq!(
        head.head_bytes(),
        b"GET /a?b HTTP/2.0\r\nHost: A.example:443\r\ncookie: a=1\r\naccept: x\r\ncookie: b=2\r\n\
          te: trailers\r\n\r\n"
    );
}

#[test]
fn extended_connect_names_its_protocol_as_upgrade() {
    let mut connect = request("CONNECT", "/chat").to_vec();
    connect.push((":protocol", "websocket"));
    let head = built(&[&connect, &[("a", "b")]], BodyFraming::Chunked).expect("sound");
    assert_eq!(head.method(), Method::Connect);
    assert_eq!(head.protocol(), Some(&b"websocket"[..]));
    assert_eq!(head.framing(), BodyFraming::None);
    assert_eq!(
        head.head_bytes(),
        b"CONNECT /chat HTTP/2.0\r\nHost: A.example:443\r\nUpgrade: websocket\r\na: b\r\n\r\n"
    );
    let refused = |parts: &[Fields<'_>]| built(parts, BodyFraming::Chunked).err();
    let length = [("content-length", "5")];
    assert_eq!(
        refused(&[&connect, &length]),
        Some(HeadError::BodyUnexpected)
    );
    for value in ["", "web socket", "a/", "a,b"] {
        connect[4].1 = value;
        assert_eq!(refused(&[&connect]), Some(HeadError::RequestTarget));
    }
    let get = built(&[&request("GET", "/")], BodyFraming::None).expect("sound");
    assert_eq!(get.protocol(), None);
}

#[test]
fn pseudo_fields_are_complete_once_and_before_the_others() {
    let sound = request("GET", "/");
    for missing in [0, 1, 3] {
        let mut parts = sound.to_vec();
        parts.remove(missing);
        assert_eq!(
            built(&[&parts], BodyFraming::None).err(),
            Some(HeadError::PseudoField)
        );
    }
    for (wrong, reason) in [
        ((":method", "GET"), HeadError::PseudoField),
        ((":status", "200"), HeadError::PseudoField),
        ((":protocol", "websocket"), HeadError::PseudoField),
        ((":Path", "/"), HeadError::PseudoField),
        (("", "x"), HeadError::FieldName),
    ] {
        assert_eq!(
            built(&[&sound, &[wrong]], BodyFraming::None).err(),
            Some(reason),
            "{wrong:?}"
        );
    }
    let (first, late) = sound.split_at(3);
    let parts: [Fields<'_>; 3] = [first, &[("a", "b")], late];
    assert_eq!(
        built(&parts, BodyFraming::None).err(),
        Some(HeadError::PseudoField)
    );
    for (place, value, reason) in [
        (0, "", HeadError::RequestTarget),
        (0, "G T", HeadError::RequestTarget),
        (0, "get", HeadError::MethodUnknown),
        (0, "CONNECT", HeadError::MethodConnect),
        (1, "ftp", HeadError::RequestTarget),
        (2, "a b", HeadError::RequestTarget),
        (2, " a", HeadError::RequestTarget),
        (2, "u@a", HeadError::RequestTarget),
        (2, "", HeadError::HostInvalid),
        (2, "a\r\nb", HeadError::RequestTarget),
        (3, "", HeadError::RequestTarget),
        (3, "a", HeadError::RequestTarget),
        (3, "http://b/", HeadError::RequestTarget),
        (3, "/ ", HeadError::RequestTarget),
        (3, "/\n", HeadError::RequestTarget),
        (3, "/\u{7f}", HeadError::RequestTarget),
    ] {
        let mut parts = sound;
        parts[place].1 = value;
        assert_eq!(
            built(&[&parts], BodyFraming::None).err(),
            Some(reason),
            "{place} {value:?}"
        );
    }
}

#[test]
fn a_host_field_stands_for_the_authority_or_agrees_with_it() {
    let [method, scheme, _, path] = request("GET", "/");
    let host_of = |fields: Fields<'_>| {
        let parts: [Fields<'_>; 2] = [&[method, scheme, path], fields];
        built(&parts, BodyFraming::None)
            .map(|head| String::from_utf8_lossy(head.host()).into_owned())
    };
    assert_eq!(host_of(&[]), Err(HeadError::HostMissing));
    assert_eq!(
        host_of(&[("host", "B.example")]),
        Ok("b.example".to_owned())
    );
    assert_eq!(
        host_of(&[("host", "b"), ("host", "c")]),
        Err(HeadError::HostRepeated)
    );
    let sound = request("GET", "/");
    let both = built(&[&sound, &[("host", "a.EXAMPLE:443")]], BodyFraming::None);
    assert_eq!(both.expect("they agree").fields_named("host").count(), 1);
    let both = built(&[&sound, &[("host", "b")]], BodyFraming::None);
    assert_eq!(both.err(), Some(HeadError::HostRepeated));
    let mut head = RequestHead::new();
    let options = HeadOptions::default();
    let mut builder = head.build(Version::Http11, &options);
    builder.needs_no_host();
    for (name, value) in [method, scheme, path] {
        add(&mut builder, name.as_bytes(), value.as_bytes()).expect("sound");
    }
    builder
        .finish(BodyFraming::None)
        .expect("it need not have one");
    assert_eq!((head.host(), head.field_count()), (&b""[..], 0));
}

#[test]
fn fields_are_lower_case_without_blanks_and_not_about_the_connection() {
    let refused = |name: &str, value: &str| {
        built(&[&request("GET", "/"), &[(name, value)]], BodyFraming::None).err()
    };
    for (name, value) in [
        ("x", ""),
        ("x", "a b"),
        ("x", "\u{e4}"),
        ("te", "trailers"),
        ("trailer", "x"),
    ] {
        assert_eq!(refused(name, value), None, "{name}: {value}");
    }
    for (name, value, reason) in [
        ("X", "a", HeadError::FieldName),
        ("a b", "a", HeadError::FieldName),
        ("x", " a", HeadError::FieldValue),
        ("x", "a\t", HeadError::FieldValue),
        ("x", "a\nb", HeadError::FieldValue),
        ("x", "a\0b", HeadError::FieldValue),
        ("te", "gzip", HeadError::FieldOfConnection),
        ("connection", "close", HeadError::FieldOfConnection),
        ("keep-alive", "1", HeadError::FieldOfConnection),
        ("proxy-connection", "close", HeadError::FieldOfConnection),
        ("transfer-encoding", "chunked", HeadError::FieldOfConnection),
        ("upgrade", "websocket", HeadError::FieldOfConnection),
    ] {
        assert_eq!(refused(name, value), Some(reason), "{name}: {value}");
    }
}

#[test]
fn content_length_agrees_with_what_follows() {
    use BodyFraming::{Chunked, Length, None as Nothing};
    let framed = |method: &str, length: Option<&str>, body: BodyFraming| {
        let fields: Vec<_> = length
            .map(|length| ("content-length", length))
            .into_iter()
            .collect();
        built(&[&request(method, "/"), &fields], body).map(|head| head.framing())
    };
    for (length, body, framing) in [
        (None, Nothing, Ok(Nothing)),
        (None, Chunked, Ok(Chunked)),
        (None, Length(3), Ok(Length(3))),
        (None, Length(0), Ok(Nothing)),
        (Some("3"), Chunked, Ok(Length(3))),
        (Some("3"), Length(3), Ok(Length(3))),
        (Some("0"), Nothing, Ok(Nothing)),
        (Some("3"), Nothing, Err(HeadError::ContentLengthInvalid)),
        (Some("3"), Length(4), Err(HeadError::ContentLengthInvalid)),
        (Some("x"), Chunked, Err(HeadError::ContentLengthInvalid)),
    ] {
        assert_eq!(framed("POST", length, body), framing, "{length:?} {body:?}");
    }
    // The end is still to come, so it is unknown whether there is a body.
    assert_eq!(framed("GET", None, Chunked), Ok(Nothing));
    assert_eq!(
        framed("GET", Some("3"), Chunked),
        Err(HeadError::BodyUnexpected)
    );
    let parts: [Fields<'_>; 1] = [&request("GET", "/")];
    let as_http11 = built_with(Version::Http11, &parts, Chunked, &HeadOptions::default());
    assert_eq!(as_http11.err(), Some(HeadError::BodyUnexpected));
    let parts: [Fields<'_>; 1] = [&request("POST", "/")];
    let as_http11 = |body| {
        let head = built_with(Version::Http11, &parts, body, &HeadOptions::default())?;
        Ok(
            String::from_utf8_lossy(head.field(KnownField::ContentLength).unwrap_or_default())
                .into_owned(),
        )
    };
    assert_eq!(as_http11(Nothing), Err(HeadError::LengthRequired));
    assert_eq!(as_http11(Length(0)), Ok("0".to_owned()));
    assert_eq!(as_http11(Length(12)), Ok("12".to_owned()));
}

#[test]
fn a_builder_leaves_nothing_of_the_head_before() {
    let options = HeadOptions::default();
    let mut head = RequestHead::new();
    head.parse(
        b"PUT /x HTTP/1.0\r\nHost: h\r\nX: y\r\nContent-Length: 3\r\n\r\n",
        &options,
    )
    .expect("sound");
    let mut builder = head.build(Version::Http3, &options);
    for (name, value) in request("GET", "/") {
        add(&mut builder, name.as_bytes(), value.as_bytes()).expect("sound");
    }
    builder.finish(BodyFraming::None).expect("sound");
    let fresh = built_with(
        Version::Http3,
        &[&request("GET", "/")],
        BodyFraming::None,
        &options,
    );
    assert_eq!(facts(&head), facts(&fresh.expect("sound")));
}

/// Everything that the accessors of a head return.
fn facts(head: &RequestHead) -> impl PartialEq + std::fmt::Debug + use<> {
    let fields: Vec<_> = head
        .iter()
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect();
    let known: Vec<_> = KnownField::ALL
        .iter()
        .map(|field| head.field(*field).map(<[u8]>::to_vec))
        .collect();
    let line = (
        head.method(),
        head.target().to_vec(),
        head.version(),
        head.host().to_vec(),
    );
    let ends = (head.framing(), head.keep_alive(), head.expects_continue());
    (line, ends, fields, known)
}

/// A head as HTTP/1.1 text, and as the fields to build it from.
#[derive(Clone, Debug)]
struct Both {
    method: String,
    path: Vec<u8>,
    authority: Option<Vec<u8>>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Both {
    fn text(&self) -> Vec<u8> {
        let mut text = [self.method.as_bytes(), b" ", &self.path, b" HTTP/1.1\r\n"].concat();
        let host = self
            .authority
            .iter()
            .map(|authority| (b"Host".to_vec(), authority.clone()));
        for (name, value) in host.chain(self.fields.iter().cloned()) {
            text.extend_from_slice(&[&name[..], b": ", &value, b"\r\n"].concat());
        }
        text.extend_from_slice(b"\r\n");
        text
    }

    fn parsed(&self, options: &HeadOptions) -> Result<RequestHead, HeadError> {
        let (mut head, text) = (RequestHead::new(), self.text());
        // If a line end in the middle made it a shorter head, it is not the head that was meant.
        match head.parse(&text, options)? {
            Parsed::Complete { length } if length == text.len() => Ok(head),
            _ => Err(HeadError::FieldValue),
        }
    }

    fn built(&self, options: &HeadOptions) -> Result<RequestHead, HeadError> {
        let mut head = RequestHead::new();
        let mut builder = head.build(Version::Http11, options);
        builder.pseudo_field(b"method", self.method.as_bytes())?;
        builder.pseudo_field(b"scheme", b"http")?;
        if let Some(authority) = &self.authority {
            builder.pseudo_field(b"authority", authority)?;
        }
        builder.pseudo_field(b"path", &self.path)?;
        for (name, value) in &self.fields {
            builder.field(name, value)?;
        }
        let is_length =
            |(name, _): &(Vec<u8>, Vec<u8>)| name.eq_ignore_ascii_case(b"content-length");
        let body = match self.fields.iter().any(is_length) {
            true => BodyFraming::Chunked,
            false => BodyFraming::None,
        };
        builder.finish(body)?;
        Ok(head)
    }
}

/// Fields of requests, valid ones often enough. They hold no line ends, which would divide text, and which
/// builders refuse.
fn both() -> impl Strategy<Value = Both> {
    let method = prop_oneof![
        4 => "GET",
        2 => "POST",
        2 => "PUT",
        1 => "HEAD",
        1 => "CONNECT",
        1 => "get",
        1 => "[A-Z ]{0,4}"
    ];
    let path = prop_oneof![
        4 => "/[a-z?%/]{0,8}".prop_map(String::into_bytes),
        1 => Just(b"*".to_vec()),
        1 => proptest::collection::vec(1..=255_u8, 0..4).prop_map(|bytes| [b"/", &bytes[..]].concat()),
    ];
    let authority = prop_oneof![
        1 => "[a-zA-Z.:0-9\\[\\]-]{0,8}".prop_map(String::into_bytes),
        4 => Just(b"a.example:80".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    let name = prop_oneof![
        4 => proptest::sample::select(KnownField::ALL)
            .prop_map(|field| field.name().as_bytes().to_vec()),
        4 => "[a-zA-Z-]{1,8}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    let value = prop_oneof![
        4 => "[0-9]{1,3}".prop_map(String::into_bytes),
        1 => Just(b"100-continue".to_vec()),
        4 => "[ -~\t]{0,10}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    let is_comparable = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let known = KnownField::from_name(name);
        let is_of_text = known.is_some_and(KnownField::is_hop_by_hop);
        let ends_name = |byte: &u8| b":\r\n".contains(byte);
        !is_of_text
            && known != Some(KnownField::Host)
            && !name.iter().any(ends_name)
            && !has_line_end(value)
    };
    let fields = proptest::collection::vec(
        (name, value).prop_filter("is comparable", is_comparable),
        0..6,
    );
    (
        method,
        path,
        proptest::option::weighted(0.9, authority),
        fields,
    )
        .prop_filter("is one line each", |(_, path, authority, _)| {
            !has_line_end(path) && !authority.as_deref().is_some_and(has_line_end)
        })
        .prop_map(|(method, path, authority, fields)| Both {
            method,
            path,
            authority,
            fields,
        })
}

fn has_line_end(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"\r\n".contains(byte))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn what_the_parser_accepts_is_accepted_and_means_the_same(
        both in both(),
        head_bytes_max in prop_oneof![Just(8192), 20..200_usize],
        is_strict in any::<bool>(),
    ) {
        // Blanks around values are removed only from text.
        let values = both.fields.iter().map(|(_, value)| value).chain(&both.authority);
        let has_blanks = values.into_iter().any(|value| trimmed(value) != value);
        let options = HeadOptions {
            head_bytes_max: if has_blanks { 8192 } else { head_bytes_max },
            header_strict: is_strict,
            host_strict: is_strict,
            host_normalize: is_strict,
            method_get_body: !is_strict,
            ..HeadOptions::default()
        };
        match (both.parsed(&options), both.built(&options)) {
            (Ok(parsed), Ok(built)) => {
                prop_assert_eq!(facts(&parsed), facts(&built));
                prop_assert!(has_blanks || built.head_bytes() == parsed.head_bytes());
            }
            (Err(_), Err(_)) => {}
            (parsed, built) => prop_assert!(false, "{:?} {:?}", parsed.map(|_| ()), built.map(|_| ())),
        }
    }
}
