//! Request heads: with any bytes in any pieces, the parser neither panics nor changes its decision, and a
//! head that it accepts cannot be read in two ways.
//!
//! The input is what a client sends.

use petrel_proto::http1::Parsed;
use petrel_proto::request_head::{BodyFraming, HeadOptions, KnownField, RequestHead, Version};

pub fn request_head(input: &[u8]) {
    for options in [strict(), lax()] {
        let mut whole = RequestHead::default();
        let outcome = whole.parse(input, &options);
        if let Ok(Parsed::Complete { length }) = outcome {
            assert!(length <= input.len());
            is_sound(&whole, &options);
        }
        read_everything(&whole);
        for step in [1, 7, 64] {
            arrives_in_pieces(input, step, &options, outcome.as_ref().ok(), &whole);
        }
        if let Ok(Parsed::Complete { length }) = outcome {
            leaves_nothing_behind(&mut whole, &input[length..], &options);
            can_be_edited(whole);
        }
    }
}

fn strict() -> HeadOptions {
    HeadOptions::default()
}

fn lax() -> HeadOptions {
    HeadOptions {
        head_bytes_max: 256,
        header_strict: false,
        host_strict: false,
        host_normalize: false,
        method_get_body: true,
        ..HeadOptions::default()
    }
}

/// An accepted head leaves no doubt about where it ends, what follows, and which host it is for.
fn is_sound(head: &RequestHead, options: &HeadOptions) {
    assert!(head.head_length() <= options.head_bytes_max);
    assert!(!head.method_bytes().is_empty());
    assert!(
        head.method_bytes()
            .iter()
            .all(|byte| byte.is_ascii_graphic())
    );
    assert!(!head.target().is_empty());
    assert!(
        !head
            .target()
            .iter()
            .any(|&byte| byte <= b' ' || byte == 0x7f)
    );
    for (name, value) in head.iter() {
        assert!(!name.is_empty());
        assert!(
            name.iter()
                .all(|byte| byte.is_ascii_graphic() && *byte != b':')
        );
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)));
        assert_eq!(value.trim_ascii(), value);
    }
    let transfer_encoding = head.field(KnownField::TransferEncoding);
    if transfer_encoding.is_some() {
        assert_eq!(head.framing(), BodyFraming::Chunked);
        assert_eq!(head.field(KnownField::ContentLength), None);
        assert_eq!(head.version(), Version::Http11);
    } else {
        assert_ne!(head.framing(), BodyFraming::Chunked);
    }
    if head.version() == Version::Http11 && options.host_strict {
        assert!(!head.host().is_empty());
    }
    if options.host_strict {
        assert!(
            !head
                .host()
                .iter()
                .any(|byte| b"/\\?#@ ".contains(byte) || *byte <= b' ')
        );
        assert!(!head.host().iter().any(u8::is_ascii_uppercase));
        assert!(head.host().starts_with(head.host_without_port()));
    }
}

/// Calls every accessor, also for partial and refused heads, for which logs use them.
fn read_everything(head: &RequestHead) {
    let _ = (
        head.method(),
        head.method_bytes(),
        head.target(),
        head.version(),
    );
    let _ = (head.host(), head.host_without_port(), head.framing());
    let _ = (
        head.keep_alive(),
        head.expects_continue(),
        head.connection_has("upgrade"),
    );
    let _ = (head.head_bytes(), head.head_length(), head.field_count());
    let _ = (
        head.value_of("x-forwarded-for"),
        head.fields_named("cookie").count(),
    );
    assert_eq!(head.iter().count(), head.field_count());
}

/// The same bytes, arriving `step` at a time, have the same result.
fn arrives_in_pieces(
    input: &[u8],
    step: usize,
    options: &HeadOptions,
    at_once: Option<&Parsed>,
    whole: &RequestHead,
) {
    let mut head = RequestHead::default();
    let ends = (0..=input.len()).step_by(step).chain([input.len()]);
    for end in ends {
        match head.parse(&input[..end], options) {
            Ok(Parsed::Partial) => {}
            Ok(complete) => {
                assert_eq!(at_once, Some(&complete));
                assert!(head.iter().eq(whole.iter()));
                assert_eq!(head.target(), whole.target());
                assert_eq!(head.host(), whole.host());
                assert_eq!(head.framing(), whole.framing());
                return;
            }
            Err(_) => {
                let accepted = matches!(at_once, Some(Parsed::Complete { .. }));
                assert!(!accepted, "refused in pieces, accepted at once");
                return;
            }
        }
    }
    let accepted = matches!(at_once, Some(Parsed::Complete { .. }));
    assert!(!accepted, "incomplete in pieces, accepted at once");
}

/// The next request on the connection is parsed the same by the reused head, which keeps some state, as by a
/// new one.
fn leaves_nothing_behind(head: &mut RequestHead, next: &[u8], options: &HeadOptions) {
    let before = head.clone();
    head.clear();
    let mut fresh = RequestHead::default();
    assert_eq!(head.parse(next, options), fresh.parse(next, options));
    assert!(head.iter().eq(fresh.iter()));
    assert_eq!(head.host(), fresh.host());
    assert_eq!(head.framing(), fresh.framing());
    assert_eq!(head.keep_alive(), fresh.keep_alive());
    *head = before;
}

/// After the changes that modules make, a head can still be read.
fn can_be_edited(mut head: RequestHead) {
    head.set_field("Host", b"a\r\nb");
    head.append_field("X-Added", b"1");
    head.set_field("X-Added", b"2");
    assert_eq!(head.field(KnownField::Host), Some(&b"a  b"[..]));
    assert_eq!(head.fields_named("host").count(), 1);
    assert!(head.fields_named("x-added").eq([b"2"]));
    head.remove_field("x-added");
    assert_eq!(head.value_of("X-Added"), None);
    head.clear();
    assert_eq!(head.field_count(), 0);
}
