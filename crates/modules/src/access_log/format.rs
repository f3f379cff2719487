//! `accesslog.format`: a text with codes, compiled into a list of parts.
//!
//! The codes are those of lighttpd 1.4 and Petrel's own, which all end in `x`. An error says which part of
//! the format is wrong, and gives a hint. A parameter of a code that takes none is ignored, as in lighttpd.

use std::ops::Range;

use petrel_engine::ledger::Stage;

use super::time::{CachedTime, End, Moment, Unit};

/// A compiled format.
pub(super) struct LineFormat {
    pub(super) parts: Vec<FormatPart>,
}

impl LineFormat {
    /// Whether a line contains the address that the client connected to.
    pub(super) fn tells_local_address(&self) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, FormatPart::Field(Field::LocalAddress)))
    }
}

/// A part of a line.
pub(super) enum FormatPart {
    /// Text that is the same in every line.
    Text(Box<[u8]>),
    Field(Field),
}

/// The value of a code.
pub(super) enum Field {
    /// %a %h
    RemoteAddress,
    /// %A
    LocalAddress,
    /// %b %B: bytes of the body, without the head
    BodyBytes,
    /// %{name}C
    Cookie(Box<str>),
    /// %D %T
    Duration(Unit),
    /// %{name}e %{name}n, %u
    Environment(Box<str>),
    /// %f
    FileName,
    /// %H
    Protocol,
    /// %{name}i
    RequestHeader(Box<str>),
    /// %I
    BytesReceived,
    /// %k: earlier requests on the connection
    KeepAliveRequests,
    /// %m
    Method,
    /// %{name}o
    ResponseHeader(Box<str>),
    /// %O
    BytesSent,
    /// %p
    Port(Port),
    /// %q
    Query,
    /// %r
    RequestLine,
    /// %s
    Status,
    /// %t
    Time(End, Moment),
    /// %U
    UrlPath,
    /// %v
    ServerName,
    /// %V, %{Host}i
    Host,
    /// %X
    ConnectionState,
    /// %{stage:name}x
    Stage(Span, Unit),
    /// %{stages}x
    Stages,
    /// %{waits}x
    Waits,
    /// %{in-kernel}x
    InKernel(Unit),
    /// %{request-id}x
    RequestId,
    /// %{cause}x
    Cause,
}

/// The port that %p writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// server.port
    Canonical,
    Local,
    Remote,
}

/// A time that the ledger has measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Of(Stage),
    Total,
    Unattributed,
}

/// Why a format is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FormatError {
    /// The part of the format that is wrong.
    pub(super) range: Range<usize>,
    /// One sentence.
    pub(super) message: String,
    /// What to do about it.
    pub(super) hint: String,
}

impl LineFormat {
    /// Compiles `text`.
    pub(super) fn parse(text: &str) -> Result<LineFormat, FormatError> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut at = 0;
        while let Some(&byte) = text.as_bytes().get(at) {
            match byte {
                b'\\' => at += 1 + unescape(text.as_bytes().get(at + 1), &mut literal),
                b'%' => {
                    let code = Code::read(text, at)?;
                    at = code.range.end;
                    match field(&code)? {
                        FieldOrText::Text(text) => literal.extend_from_slice(text.as_bytes()),
                        FieldOrText::Field(field) => {
                            push_text(&mut parts, &mut literal);
                            parts.push(FormatPart::Field(field));
                        }
                    }
                }
                _ => {
                    literal.push(byte);
                    at += 1;
                }
            }
        }
        push_text(&mut parts, &mut literal);
        Ok(LineFormat { parts })
    }
}

fn push_text(parts: &mut Vec<FormatPart>, literal: &mut Vec<u8>) {
    if !literal.is_empty() {
        parts.push(FormatPart::Text(std::mem::take(literal).into()));
    }
}

/// Decodes a backslash before `byte`. Returns how many bytes were consumed.
fn unescape(byte: Option<&u8>, literal: &mut Vec<u8>) -> usize {
    let Some(byte) = byte else {
        literal.push(b'\\');
        return 0;
    };
    literal.push(match byte {
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        other => *other,
    });
    1
}

/// A code in the text: `%>s`, `%{name}i`.
struct Code<'a> {
    letter: char,
    parameter: Option<&'a str>,
    range: Range<usize>,
}

impl<'a> Code<'a> {
    fn read(text: &'a str, start: usize) -> Result<Code<'a>, FormatError> {
        let rest = text.get(start + 1..).unwrap_or_default();
        let error = |length: usize, message: &str, hint: &str| FormatError {
            range: start..start + 1 + length,
            message: message.to_owned(),
            hint: hint.to_owned(),
        };
        let (parameter, before) = match rest.strip_prefix('{') {
            None => (None, usize::from(rest.starts_with(['<', '>']))),
            Some(inner) => match inner.split_once('}') {
                None => {
                    return Err(error(
                        rest.len(),
                        "%{ has no }",
                        "close the name: %{Referer}i",
                    ));
                }
                Some(("", _)) => {
                    return Err(error(
                        2,
                        "%{} has no name in it",
                        "write a name: %{Referer}i",
                    ));
                }
                Some((parameter, _)) => (Some(parameter), parameter.len() + 2),
            },
        };
        match rest.get(before..).and_then(|rest| rest.chars().next()) {
            Some(letter) => {
                let range = start..start + 1 + before + letter.len_utf8();
                Ok(Code {
                    letter,
                    parameter,
                    range,
                })
            }
            None => Err(error(
                before,
                "a letter is missing after %",
                "%% is a percent sign; the codes are those of Apache's mod_log_config",
            )),
        }
    }

    fn error(&self, message: String, hint: &str) -> FormatError {
        FormatError {
            range: self.range.clone(),
            message,
            hint: hint.to_owned(),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.parameter
            .is_some_and(|parameter| parameter.eq_ignore_ascii_case(name))
    }

    fn name(&self) -> Result<Box<str>, FormatError> {
        self.parameter.map(Box::from).ok_or_else(|| {
            let letter = self.letter;
            self.error(
                format!("%{letter} needs a name"),
                &format!("write %{{name}}{letter}"),
            )
        })
    }
}

enum FieldOrText {
    Field(Field),
    Text(&'static str),
}

fn field(code: &Code<'_>) -> Result<FieldOrText, FormatError> {
    let field = match code.letter {
        '%' => return Ok(FieldOrText::Text("%")),
        // The remote log name of RFC 1413, which no server asks for any more.
        'l' => return Ok(FieldOrText::Text("-")),
        'a' | 'h' => Field::RemoteAddress,
        'A' => Field::LocalAddress,
        'b' | 'B' => Field::BodyBytes,
        'C' => Field::Cookie(code.name()?),
        'D' => Field::Duration(unit(code, Unit::Microseconds)?),
        'e' | 'n' => Field::Environment(code.name()?),
        'f' => Field::FileName,
        'H' => Field::Protocol,
        // The field as conditions see it: in lower case, without the default port.
        'i' if code.is_named("host") => Field::Host,
        'i' => Field::RequestHeader(code.name()?),
        'I' => Field::BytesReceived,
        'k' => Field::KeepAliveRequests,
        'm' => Field::Method,
        'o' => Field::ResponseHeader(code.name()?),
        'O' => Field::BytesSent,
        'p' => Field::Port(port(code)?),
        'q' => Field::Query,
        'r' => Field::RequestLine,
        's' => Field::Status,
        't' => time(code)?,
        'T' => Field::Duration(unit(code, Unit::Seconds)?),
        'u' => Field::Environment("REMOTE_USER".into()),
        'U' => Field::UrlPath,
        'v' => Field::ServerName,
        'V' => Field::Host,
        'X' => Field::ConnectionState,
        'x' => own(code)?,
        'P' => {
            let message = "%P, the process of a request, has no meaning here".to_owned();
            return Err(code.error(message, "one process serves all requests: leave it out"));
        }
        letter => {
            let message = format!("there is no code %{}", letter.escape_debug());
            return Err(code.error(message, unknown_hint(code)));
        }
    };
    Ok(FieldOrText::Field(field))
}

fn unknown_hint(code: &Code<'_>) -> &'static str {
    match code.letter {
        '{' => "%> and %< go with codes that have no name: write %{name}i",
        '>' | '<' => "only one of > and < can stand before a code",
        '0'..='9' | '!' => "conditions on the status are not part of lighttpd's formats",
        _ => "the codes are % a A b B C D e f h H i I k l m n o O p q r s t T u U v V x X",
    }
}

fn unit(code: &Code<'_>, default: Unit) -> Result<Unit, FormatError> {
    match code.parameter {
        None => Ok(default),
        Some(name) => named_unit(code, name),
    }
}

fn port(code: &Code<'_>) -> Result<Port, FormatError> {
    match code.parameter {
        None | Some("canonical") => Ok(Port::Canonical),
        Some("local") => Ok(Port::Local),
        Some("remote") => Ok(Port::Remote),
        Some(name) => Err(code.error(
            format!("there is no port {name:?}"),
            "it is %{canonical}p, %{local}p or %{remote}p",
        )),
    }
}

fn time(code: &Code<'_>) -> Result<Field, FormatError> {
    let parameter = code.parameter.unwrap_or("[%d/%b/%Y:%H:%M:%S %z]");
    let (end, form) = match parameter.split_once(':') {
        Some(("begin", form)) => (End::Begin, form),
        Some(("end", form)) => (End::End, form),
        _ => (End::End, parameter),
    };
    let moment = match form.strip_suffix("_frac") {
        Some(name) if Unit::from_name(name).is_some_and(|unit| unit != Unit::Seconds) => {
            Unit::from_name(name).map(Moment::Fraction)
        }
        _ if form.len() > 2 => Unit::from_name(form).map(Moment::Since),
        _ => None,
    };
    if let Some(moment) = moment {
        return Ok(Field::Time(end, moment));
    }
    if !form.contains('%') {
        return Err(code.error(
            format!("the time format {form:?} is the same at all times"),
            "use strftime's conversions, such as %{%Y-%m-%d}t, or sec, msec, usec, nsec, \
             msec_frac, usec_frac, nsec_frac",
        ));
    }
    let time = CachedTime::new(form).map_err(|cause| {
        code.error(
            format!("the time format {form:?} is wrong: {cause}"),
            "see strftime(3)",
        )
    })?;
    Ok(Field::Time(end, Moment::Formatted(time)))
}

/// `%{…}x`, which lighttpd does not have.
fn own(code: &Code<'_>) -> Result<Field, FormatError> {
    let parameter = code.parameter.unwrap_or_default();
    match parameter {
        "stages" => return Ok(Field::Stages),
        "waits" => return Ok(Field::Waits),
        "request-id" => return Ok(Field::RequestId),
        "cause" => return Ok(Field::Cause),
        _ => {}
    }
    match parameter.split_once(':').unwrap_or((parameter, "us")) {
        ("stage", name) if parameter != "stage" => stage(code, name),
        ("in-kernel", unit) => named_unit(code, unit).map(Field::InKernel),
        _ => Err(code.error(
            "%x needs the name of what it tells".to_owned(),
            "write %{request-id}x, %{cause}x, %{stages}x, %{waits}x, %{in-kernel}x, %{stage:content}x or \
             %{stage:total:ms}x",
        )),
    }
}

fn stage(code: &Code<'_>, name: &str) -> Result<Field, FormatError> {
    let (stage, unit) = name.split_once(':').unwrap_or((name, "us"));
    let unit = named_unit(code, unit)?;
    let span = match stage {
        "total" => Some(Span::Total),
        "unattributed" => Some(Span::Unattributed),
        _ => Stage::ALL
            .iter()
            .copied()
            .find(|known| known.name() == stage)
            .map(Span::Of),
    };
    match span {
        Some(span) => Ok(Field::Stage(span, unit)),
        None => {
            let names: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
            let hint = format!("stages are {}, total and unattributed", names.join(", "));
            Err(code.error(format!("there is no stage {stage:?}"), &hint))
        }
    }
}

fn named_unit(code: &Code<'_>, name: &str) -> Result<Unit, FormatError> {
    Unit::from_name(name).ok_or_else(|| {
        code.error(
            format!("{name:?} is no unit of time"),
            "units are s, ms, us and ns",
        )
    })
}

/// The position of `range`, a part of the string `value`, in `written`, the literal that `value` comes from.
/// `None` if that is not a single plain literal, but a variable or a sum of strings.
pub(super) fn locate(written: &str, value: &str, range: Range<usize>) -> Option<Range<usize>> {
    let quote = written
        .chars()
        .next()
        .filter(|first| matches!(first, '"' | '\''))?;
    let mut places = Vec::with_capacity(value.len() + 1);
    let mut at = 1;
    for byte in value.bytes() {
        let escaped = byte == quote as u8 && written.as_bytes().get(at) == Some(&b'\\');
        at += usize::from(escaped);
        if written.as_bytes().get(at) != Some(&byte) {
            return None;
        }
        places.push(at);
        at += 1;
    }
    places.push(at);
    if written.get(at..) != Some(quote.encode_utf8(&mut [0; 4])) {
        return None;
    }
    Some(*places.get(range.start)?..*places.get(range.end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(format: &str) -> FormatError {
        LineFormat::parse(format).err().expect("wrong")
    }

    #[test]
    fn the_place_of_an_error_is_told() {
        for (format, range) in [
            ("a %Z b", 2..4),
            ("%h %{foo", 3..8),
            ("%{}i", 0..3),
            ("x%", 1..2),
            ("%>", 0..2),
            ("%P", 0..2),
            ("%{foo}p", 0..7),
            ("%!200s", 0..2),
            ("%>{Referer}i", 0..3),
            ("%{ticks}T", 0..9),
            ("%{begin:}t", 0..10),
            ("%{sec }t", 0..8),
            ("%{%!}t", 0..6),
            ("%C", 0..2),
            ("%i", 0..2),
            ("%x", 0..2),
            ("%{stage:none}x", 0..14),
            ("%{stage:send:h}x", 0..16),
            ("%{stage}x", 0..9),
            ("%{in-kernel:h}x", 0..15),
            ("%{wait}x", 0..8),
            ("%\u{e9}", 0..3),
        ] {
            let error = error(format);
            assert_eq!(error.range, range, "{format}: {error:?}");
            assert!(!error.hint.is_empty() && !error.message.is_empty());
        }
    }

    #[test]
    fn parameters_where_none_is_taken_are_ignored_as_in_lighttpd() {
        for format in ["%>h", "%<h", "%{x}h", "%{remote}a", "%{foo}s", "%{x}%"] {
            assert!(LineFormat::parse(format).is_ok(), "{format}");
        }
    }

    #[test]
    fn backslashes_in_text_are_resolved() {
        let format = LineFormat::parse(r#"a\tb\n\"\\\q%%\"#).expect("sound");
        let [FormatPart::Text(text)] = &format.parts[..] else {
            panic!("one text")
        };
        assert_eq!(&**text, b"a\tb\n\"\\q%\\");
    }

    #[test]
    fn a_place_is_found_behind_escaped_quotes() {
        assert_eq!(locate(r#""\"%r\" %Z""#, r#""%r" %Z"#, 5..7), Some(8..10));
        assert_eq!(locate("'\"%Z'", "\"%Z", 1..3), Some(2..4));
        assert_eq!(locate("\"%Z\" + var.x", "%Z...", 0..2), None);
        assert_eq!(locate("var.format", "%Z", 0..2), None);
    }
}
