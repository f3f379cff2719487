//! Takes lines apart that were written in a format of `accesslog.format`.
//!
//! Only some codes matter here: the stages, a time, and the path of the request. The values of all others end
//! where the text behind their code begins. In a value between quotation marks the server has escaped those,
//! so that no client can make one value look like two. A value without them may end too early; then the line
//! is counted as one that is not understood.

use memchr::memmem;

use crate::time;

/// A format, ready to take lines apart.
#[derive(Debug)]
pub struct Format {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Text(Vec<u8>),
    Value(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// `%t`: with brackets.
    CommonTime,
    /// A number since the epoch; the factor makes microseconds of it, or divides if it is negative.
    NumberTime(i64),
    /// `%r`
    Request,
    /// `%U`
    Path,
    /// `%{stages}x`
    Stages,
    Other,
}

/// What a line says. Values that its format does not have are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<'l> {
    /// Microseconds since the epoch.
    pub at: Option<i64>,
    /// The path of the URL, as it was sent.
    pub path: &'l [u8],
    /// What `%{stages}x` has written.
    pub stages: &'l [u8],
}

impl Format {
    /// Reads a format.
    ///
    /// # Errors
    /// It has no `%{stages}x`, or no text next to a value that is needed: a sentence.
    pub fn parse(text: &str) -> Result<Format, String> {
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, behind @ ..] = rest {
            rest = behind;
            match first {
                b'\\' => {
                    let byte = rest
                        .split_off_first()
                        .map_or(b'\\', |byte| unescaped(*byte));
                    push_text(&mut parts, byte);
                }
                b'%' => match code(&mut rest)? {
                    Code::Text(byte) => push_text(&mut parts, byte),
                    Code::Value(value) => push_value(&mut parts, value)?,
                },
                byte => push_text(&mut parts, *byte),
            }
        }
        let has_stages = |part: &Part| matches!(part, Part::Value(Value::Stages));
        if !parts.iter().any(has_stages) {
            return Err(
                "the format has no %{stages}x, so its lines tell no stage times".to_owned(),
            );
        }
        Ok(Format { parts })
    }

    /// Takes `line` apart. `None`: it is not of this format.
    pub fn read<'l>(&self, line: &'l [u8]) -> Option<Parts<'l>> {
        let mut found = Parts::default();
        let mut rest = line;
        for (n, part) in self.parts.iter().enumerate() {
            match part {
                Part::Text(text) => rest = rest.strip_prefix(&**text)?,
                Part::Value(value) => {
                    let end = match self.parts.get(n + 1) {
                        Some(Part::Text(text)) => end_of_value(rest, text)?,
                        _ => rest.len(),
                    };
                    let (text, behind) = rest.split_at_checked(end)?;
                    found.take(*value, text)?;
                    rest = behind;
                }
            }
        }
        rest.is_empty().then_some(found)
    }
}

impl<'l> Parts<'l> {
    fn take(&mut self, value: Value, text: &'l [u8]) -> Option<()> {
        match value {
            Value::CommonTime => {
                let inner = text.strip_prefix(b"[")?.strip_suffix(b"]")?;
                self.at = Some(time::of_common_log(inner)?);
            }
            Value::NumberTime(factor) => {
                let whole = text.get(..text.len().min(20))?;
                let number: i64 = std::str::from_utf8(whole).ok()?.parse().ok()?;
                self.at = Some(match factor {
                    1.. => number.checked_mul(factor)?,
                    _ => number / factor.checked_neg().filter(|factor| *factor > 0)?,
                });
            }
            Value::Request => {
                let mut words = text.split(|byte| *byte == b' ');
                self.path = words.nth(1).map_or(text, without_query);
            }
            Value::Path => self.path = without_query(text),
            Value::Stages => self.stages = text,
            Value::Other => {}
        }
        Some(())
    }
}

/// The part of a target in front of its query.
pub(crate) fn without_query(target: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    target.get(..end).unwrap_or(target)
}

/// Where the value at the front of `text` ends, which `behind` follows.
fn end_of_value(text: &[u8], behind: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memmem::find(text.get(from..)?, behind)?;
        let backslashes = text.get(..at)?.iter().rev();
        let backslashes = backslashes.take_while(|byte| **byte == b'\\').count();
        // A quotation mark behind an odd number of backslashes is a part of the value.
        if behind.first() != Some(&b'"') || backslashes % 2 == 0 {
            return Some(at);
        }
        from = at + 1;
    }
}

enum Code {
    Text(u8),
    Value(Value),
}

/// Reads the code whose percent sign is in front of `rest`.
fn code(rest: &mut &[u8]) -> Result<Code, String> {
    let mut parameter: &[u8] = b"";
    match rest.first() {
        Some(b'{') => {
            let end = memchr::memchr(b'}', rest).ok_or("%{ has no }")?;
            parameter = rest.get(1..end).unwrap_or_default();
            *rest = rest.get(end + 1..).unwrap_or_default();
        }
        Some(b'<' | b'>') => *rest = rest.get(1..).unwrap_or_default(),
        _ => {}
    }
    let letter = rest
        .split_off_first()
        .ok_or("a letter is missing after %")?;
    let form = parameter
        .strip_prefix(b"begin:")
        .or(parameter.strip_prefix(b"end:"));
    let value = match (letter, form.unwrap_or(parameter)) {
        (b'%', _) => return Ok(Code::Text(b'%')),
        (b'l', _) => return Ok(Code::Text(b'-')),
        (b't', b"") => Value::CommonTime,
        (b't', b"sec") => Value::NumberTime(1_000_000),
        (b't', b"msec") => Value::NumberTime(1_000),
        (b't', b"usec") => Value::NumberTime(1),
        (b't', b"nsec") => Value::NumberTime(-1_000),
        (b'r', _) => Value::Request,
        (b'U', _) => Value::Path,
        (b'x', b"stages") => Value::Stages,
        _ => Value::Other,
    };
    Ok(Code::Value(value))
}

/// As in `accesslog.format`.
fn unescaped(byte: u8) -> u8 {
    match byte {
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        other => other,
    }
}

fn push_text(parts: &mut Vec<Part>, byte: u8) {
    match parts.last_mut() {
        Some(Part::Text(text)) => text.push(byte),
        _ => parts.push(Part::Text(vec![byte])),
    }
}

fn push_value(parts: &mut Vec<Part>, value: Value) -> Result<(), String> {
    match parts.last() {
        Some(Part::Value(Value::Other)) if value == Value::Other => Ok(()),
        Some(Part::Value(_)) => {
            Err("two codes without text between them cannot be told apart".to_owned())
        }
        _ => {
            parts.push(Part::Value(value));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str =
        r#"%h %V %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %{stages}x"#;

    fn read<'l>(format: &str, line: &'l str) -> Option<Parts<'l>> {
        Format::parse(format).expect("sound").read(line.as_bytes())
    }

    #[test]
    fn a_combined_line_is_taken_apart() {
        let line = r#"::1 h - [26/Nov/2026:02:33:18 +0000] "GET /a b?c HTTP/1.1" 200 6 "-" "x \" y" parse=1,total=2"#;
        let found = read(FORMAT, line).expect("of the format");
        assert_eq!(found.at, Some(1_795_660_398_000_000));
        assert_eq!(found.path, b"/a");
        assert_eq!(found.stages, b"parse=1,total=2");
    }

    #[test]
    fn a_client_cannot_forge_stages() {
        let line = r#"::1 h - [26/Nov/2026:02:33:18 +0000] "GET / HTTP/1.1" 200 6 "-" "\" total=9" total=2"#;
        assert_eq!(
            read(FORMAT, line).expect("of the format").stages,
            b"total=2"
        );
        let line =
            r#"::1 h - [26/Nov/2026:02:33:18 +0000] "GET / HTTP/1.1" 200 6 "-" "\\" total=2"#;
        assert_eq!(
            read(FORMAT, line).expect("of the format").stages,
            b"total=2"
        );
    }

    #[test]
    fn times_are_read_in_each_unit() {
        for (code, text) in [
            ("%{sec}t", "1795660398"),
            ("%{begin:msec}t", "1795660398000"),
            ("%{end:usec}t", "1795660398000000"),
            ("%{nsec}t", "1795660398000000999"),
        ] {
            let line = format!("{text} total=2 /x");
            let found = read(&format!("{code} %{{stages}}x %U"), &line).expect("of the format");
            assert_eq!(found.at, Some(1_795_660_398_000_000), "{code}");
            assert_eq!(found.path, b"/x");
        }
    }

    #[test]
    fn other_lines_are_not_of_the_format() {
        for line in [
            "",
            "x",
            "::1 h - [yesterday] \"GET / HTTP/1.1\" 200 6 \"-\" \"\" total=2",
        ] {
            assert_eq!(read(FORMAT, line), None, "{line}");
        }
        assert_eq!(read("%{stages}x|", "total=1|more"), None);
        assert_eq!(
            read("%{sec}t %{stages}x", "99999999999999999999 total=1"),
            None
        );
    }

    #[test]
    fn formats_without_stages_are_refused() {
        for format in ["", "%h %r", "%{stages", "%", "%t%{stages}x", "%{stages}x%h"] {
            assert!(Format::parse(format).is_err(), "{format}");
        }
        assert!(Format::parse("%h%u %{stages}x%%").is_ok());
    }
}
