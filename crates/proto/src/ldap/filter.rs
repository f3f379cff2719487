//! Search filters (RFC 4515): turns their text into bytes for the server, and escapes names that clients have
//! sent.

use std::fmt;

use super::ber::{self, OCTET_STRING, SEQUENCE};

/// A filter in the encoding that servers take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedFilter(Vec<u8>);

impl EncodedFilter {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Why a text is no filter, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterError {
    what: &'static str,
    at: usize,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterError { what, at } = self;
        write!(f, "{what} at byte {at}")
    }
}

impl std::error::Error for FilterError {}

/// Reads a filter, such as `(&(objectClass=person)(uid=anna))`. One that is a single comparison may stand
/// without parentheses, as libldap has it.
///
/// # Errors
/// It is none.
pub fn read_filter(text: &[u8]) -> Result<EncodedFilter, FilterError> {
    let mut reader = FilterReader { text, at: 0 };
    reader.skip_spaces();
    let mut out = Vec::new();
    match reader.peek() {
        Some(b'(') => reader.filter(DEPTH_MAX, &mut out)?,
        _ => reader.comparison(&mut out)?,
    }
    reader.skip_spaces();
    match reader.peek() {
        None => Ok(EncodedFilter(out)),
        Some(_) => Err(reader.error("something stands behind its end")),
    }
}

/// Escapes `value` for a filter: the server compares it byte by byte, also where it has `*` or parentheses.
pub fn escape_in_filter(value: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'*' | b'(' | b')' | b'\\' | 0..0x20 | 0x7f.. => write_hex(*byte, &mut escaped),
            _ => escaped.push(*byte),
        }
    }
    escaped
}

/// Escapes `value` for a distinguished name (RFC 4514).
pub fn escape_in_name(value: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'@' => {
                escaped.push(*byte);
            }
            _ => write_hex(*byte, &mut escaped),
        }
    }
    escaped
}

fn write_hex(byte: u8, out: &mut Vec<u8>) {
    let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
    out.extend_from_slice(&[b'\\', digit(byte >> 4), digit(byte & 15)]);
}

struct FilterReader<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> FilterReader<'t> {
    /// `(...)`.
    fn filter(&mut self, depth: usize, out: &mut Vec<u8>) -> Result<(), FilterError> {
        if depth == 0 {
            return Err(self.error("it is nested too deeply"));
        }
        self.expect(b'(', "a parenthesis is missing")?;
        match self.peek() {
            Some(b'&') => self.list(AND, depth, out)?,
            Some(b'|') => self.list(OR, depth, out)?,
            Some(b'!') => {
                self.at += 1;
                self.skip_spaces();
                let mut inner = Vec::new();
                self.filter(depth - 1, &mut inner)?;
                ber::write(NOT, &inner, out);
            }
            _ => self.comparison(out)?,
        }
        self.skip_spaces();
        self.expect(b')', "a parenthesis is not closed")
    }

    fn list(&mut self, tag: ber::Tag, depth: usize, out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.at += 1;
        let mut inner = Vec::new();
        self.skip_spaces();
        while self.peek() == Some(b'(') {
            self.filter(depth - 1, &mut inner)?;
            self.skip_spaces();
        }
        ber::write(tag, &inner, out);
        Ok(())
    }

    /// `uid=anna`, `cn=A*`, `age>=18`, `memberOf:1.2.840.113556.1.4.1941:=cn=staff`.
    fn comparison(&mut self, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let begin = self.at;
        let behind_name = self.take_while(|byte| !b"=<>~:()*\\".contains(&byte));
        let name = behind_name.trim_ascii();
        let operator = self.peek();
        let tag = match operator {
            Some(b'=') => EQUALITY,
            Some(b'>') => GREATER_OR_EQUAL,
            Some(b'<') => LESS_OR_EQUAL,
            Some(b'~') => APPROXIMATE,
            Some(b':') => return self.extensible(name, out),
            _ => return Err(self.error("a comparison is missing")),
        };
        if !is_attribute(name) {
            self.at = begin;
            return Err(self.error("the name of an attribute is missing or damaged"));
        }
        self.at += 1;
        if tag != EQUALITY {
            self.expect(b'=', "= is missing")?;
        }
        let parts = self.value()?;
        match parts.as_slice() {
            [whole] => write_pair(tag, name, whole, out),
            _ if tag != EQUALITY => return Err(self.error("an asterisk stands where none can")),
            [first, last] if first.is_empty() && last.is_empty() => ber::write(PRESENT, name, out),
            parts => write_substrings(name, parts, out),
        }
        Ok(())
    }

    /// From the first colon on: `:dn:rule:=value`.
    fn extensible(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let (mut is_of_name, mut rule) = (false, None);
        self.at += 1;
        while self.peek() != Some(b'=') {
            let word =
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            match word {
                b"" => return Err(self.error("a matching rule is missing")),
                word if word.eq_ignore_ascii_case(b"dn") && !is_of_name => is_of_name = true,
                word if rule.is_none() => rule = Some(word),
                _ => return Err(self.error("there are too many matching rules")),
            }
            self.expect(b':', "a colon is missing")?;
        }
        self.at += 1;
        if !name.is_empty() && !is_attribute(name) || name.is_empty() && rule.is_none() {
            return Err(self.error("the name of an attribute is missing or damaged"));
        }
        let parts = self.value()?;
        let [value] = parts.as_slice() else {
            return Err(self.error("an asterisk stands where none can"));
        };
        let mut content = Vec::new();
        if let Some(rule) = rule {
            ber::write(MATCHING_RULE, rule, &mut content);
        }
        if !name.is_empty() {
            ber::write(MATCHED_TYPE, name, &mut content);
        }
        ber::write(MATCH_VALUE, value, &mut content);
        if is_of_name {
            ber::write(NAME_ATTRIBUTES, &[0xff], &mut content);
        }
        ber::write(EXTENSIBLE, &content, out);
        Ok(())
    }

    /// A value up to a parenthesis or the end: its parts between asterisks, unescaped.
    fn value(&mut self) -> Result<Vec<Vec<u8>>, FilterError> {
        let mut parts = vec![Vec::new()];
        while let Some(byte) = self.peek().filter(|byte| !b"()".contains(byte)) {
            self.at += 1;
            let part = match (byte, parts.last_mut()) {
                (b'*', _) | (_, None) => {
                    parts.push(Vec::new());
                    continue;
                }
                (_, Some(part)) => part,
            };
            match byte {
                b'\\' => {
                    let digits = self.text.get(self.at..self.at + 2);
                    let escaped = digits.and_then(hex_byte);
                    part.push(
                        escaped.ok_or(self.error("a backslash needs two hexadecimal digits"))?,
                    );
                    self.at += 2;
                }
                byte => part.push(byte),
            }
        }
        Ok(parts)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), FilterError> {
        if self.peek() != Some(byte) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(())
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'t [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| !is_part(*byte));
        let part = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.at += part.len();
        part
    }

    fn skip_spaces(&mut self) {
        self.take_while(|byte| byte.is_ascii_whitespace());
    }

    fn error(&self, what: &'static str) -> FilterError {
        FilterError { what, at: self.at }
    }
}

/// A name or a number with dots, perhaps with options: `cn;lang-de`.
fn is_attribute(name: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._;".contains(byte);
    !name.is_empty() && name.iter().all(is_part)
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let text = str::from_utf8(digits).ok()?;
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

fn write_pair(tag: ber::Tag, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut content = Vec::new();
    ber::write(OCTET_STRING, name, &mut content);
    ber::write(OCTET_STRING, value, &mut content);
    ber::write(tag, &content, out);
}

/// Writes a comparison with the `parts` that asterisks separate.
fn write_substrings(name: &[u8], parts: &[Vec<u8>], out: &mut Vec<u8>) {
    let mut substrings = Vec::new();
    for (place, part) in parts
        .iter()
        .enumerate()
        .filter(|(_, part)| !part.is_empty())
    {
        let tag = match place {
            0 => INITIAL,
            place if place + 1 == parts.len() => FINAL,
            _ => ANY,
        };
        ber::write(tag, part, &mut substrings);
    }
    if substrings.is_empty() {
        return ber::write(PRESENT, name, out);
    }
    let mut content = Vec::new();
    ber::write(OCTET_STRING, name, &mut content);
    ber::write(SEQUENCE, &substrings, &mut content);
    ber::write(SUBSTRINGS, &content, out);
}

const AND: ber::Tag = 0xa0;
const OR: ber::Tag = 0xa1;
const NOT: ber::Tag = 0xa2;
const EQUALITY: ber::Tag = 0xa3;
const SUBSTRINGS: ber::Tag = 0xa4;
const GREATER_OR_EQUAL: ber::Tag = 0xa5;
const LESS_OR_EQUAL: ber::Tag = 0xa6;
const PRESENT: ber::Tag = 0x87;
const APPROXIMATE: ber::Tag = 0xa8;
const EXTENSIBLE: ber::Tag = 0xa9;

const INITIAL: ber::Tag = 0x80;
const ANY: ber::Tag = 0x81;
const FINAL: ber::Tag = 0x82;

const MATCHING_RULE: ber::Tag = 0x81;
const MATCHED_TYPE: ber::Tag = 0x82;
const MATCH_VALUE: ber::Tag = 0x83;
const NAME_ATTRIBUTES: ber::Tag = 0x84;

/// How deep parentheses may be nested.
const DEPTH_MAX: usize = 32;
