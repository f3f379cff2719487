//! Request fields as `HTTP_` variables.

use petrel_engine::proto::cgi::VARIABLE_BYTES;
use petrel_engine::proto::request_head::{KnownField, RequestHead};

use super::Variables;

/// Gives `out` a variable for each field of `head` that may have one, in order. Fields with the same
/// name become one variable, their values joined with commas (for Cookie with semicolons). A field without a
/// value gets no variable.
pub(super) fn build(head: &RequestHead, out: &mut impl Variables) {
    if head.field_count() > FEW_FIELDS {
        return build_many(head, out);
    }
    let twins = Twins::of(head);
    for (position, (known, name, value)) in head.iter_with_known().enumerate() {
        let bit = 1 << position;
        if twins.later & bit != 0 {
            continue;
        }
        if twins.first & bit != 0 {
            add_field(head, known, name, &joined_value(head, name), out);
        } else {
            add_field(head, known, name, value, out);
        }
    }
}

/// Which fields have the name of another field: one bit for each position.
#[derive(Default)]
struct Twins {
    first: u64,
    later: u64,
}

impl Twins {
    fn of(head: &RequestHead) -> Twins {
        let mut twins = Twins::default();
        let mut known_fields = 0_u64;
        let mut keys = [0; FEW_FIELDS];
        let mut others = 0;
        for (position, (known, name, _)) in head.iter_with_known().enumerate() {
            // The parser has already joined the well-known fields, so twins are rare.
            let may_be_twin = match known {
                Some(known) => {
                    let before = known_fields;
                    known_fields |= 1 << known as u8;
                    before == known_fields
                }
                None => {
                    let key = key(name);
                    let has_key = keys[..others].contains(&key);
                    keys[others] = key;
                    others += 1;
                    has_key
                }
            };
            if may_be_twin {
                twins.note(head, position, name);
            }
        }
        twins
    }

    #[cold]
    fn note(&mut self, head: &RequestHead, position: usize, name: &[u8]) {
        let mut earlier = head.iter().take(position);
        if let Some(first) = earlier.position(|(known, _)| known.eq_ignore_ascii_case(name)) {
            self.first |= 1 << first;
            self.later |= 1 << position;
        }
    }
}

/// Equal for equal names, and nearly always different for different names.
fn key(name: &[u8]) -> u32 {
    let letter = |byte: Option<&u8>| u32::from(byte.copied().unwrap_or_default() | 0x20);
    (name.len() as u32) << 16 | letter(name.first()) << 8 | letter(name.last())
}

/// As [`build`], for so many fields that comparing every pair would take long.
#[cold]
fn build_many(head: &RequestHead, out: &mut impl Variables) {
    let fields = head.iter().enumerate();
    let mut fields: Vec<_> = fields
        .map(|(position, (name, value))| (name.to_ascii_lowercase(), position, value))
        .collect();
    fields.sort_unstable();
    let groups = fields.chunk_by(|one, other| one.0 == other.0);
    let mut groups: Vec<_> = groups.collect();
    groups.sort_unstable_by_key(|group| group[0].1);
    for group in groups {
        let name = &group[0].0;
        let values = group.iter().map(|(_, _, value)| *value);
        let known = KnownField::from_name(name);
        add_field(head, known, name, &join(name, values), out);
    }
}

#[cold]
fn joined_value(head: &RequestHead, name: &[u8]) -> Vec<u8> {
    let fields = head.iter();
    let named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    join(name, named.map(|(_, value)| value))
}

fn join<'v>(name: &[u8], values: impl Iterator<Item = &'v [u8]>) -> Vec<u8> {
    let separator: &[u8] = if name.eq_ignore_ascii_case(b"cookie") {
        b"; "
    } else {
        b", "
    };
    let mut joined = Vec::new();
    for value in values.filter(|value| !value.is_empty()) {
        if !joined.is_empty() {
            joined.extend_from_slice(separator);
        }
        joined.extend_from_slice(value);
    }
    joined
}

#[inline]
fn add_field(
    head: &RequestHead,
    known: Option<KnownField>,
    name: &[u8],
    value: &[u8],
    out: &mut impl Variables,
) {
    if value.is_empty() {
        return;
    }
    match known {
        Some(known) => add_known(head, known, value, out),
        None => add_unknown(name, value, out),
    }
}

#[inline]
fn add_known(head: &RequestHead, known: KnownField, value: &[u8], out: &mut impl Variables) {
    let value = match known {
        // In the normalized form that conditions and virtual hosts compare, as in lighttpd.
        KnownField::Host => head.host(),
        // The body was already asked for, and is passed on decoded.
        KnownField::TransferEncoding | KnownField::Expect => return,
        // Upgrade gets its variable elsewhere, and only where the backend may open the tunnel. HTTP2-Settings
        // is for h2c, which is never used.
        KnownField::Upgrade | KnownField::Http2Settings => return,
        // RFC 3875 gives it a name without the prefix.
        KnownField::ContentType => return out.add(b"CONTENT_TYPE", value),
        _ => value,
    };
    let (variable, length) = &KNOWN_VARIABLES[known as usize];
    out.add(&variable[..*length], value);
}

fn add_unknown(name: &[u8], value: &[u8], out: &mut impl Variables) {
    let mut variable = [0; PREFIX.len() + SHORT_NAME_BYTES];
    let Some(end) = variable.get_mut(..PREFIX.len() + name.len()) else {
        return add_long(name, value, out);
    };
    let (prefix, rest) = end.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    let mut is_sound = true;
    for (to, from) in rest.iter_mut().zip(name) {
        *to = VARIABLE_BYTES[usize::from(*from)];
        is_sound &= *to != 0;
    }
    // HTTP clients in many languages take this variable for the proxy to use (CVE-2016-5385 and others).
    if is_sound && end != b"HTTP_PROXY" {
        out.add(end, value);
    }
}

#[cold]
fn add_long(name: &[u8], value: &[u8], out: &mut impl Variables) {
    let converted = name.iter().map(|byte| VARIABLE_BYTES[usize::from(*byte)]);
    let variable: Vec<u8> = PREFIX.iter().copied().chain(converted).collect();
    if !variable.contains(&0) {
        out.add(&variable, value);
    }
}

/// Up to this many fields are compared pairwise. Their positions must fit into the bits of [`Twins`].
const FEW_FIELDS: usize = 64;

const PREFIX: &[u8] = b"HTTP_";

/// Names up to this length are converted on the stack.
const SHORT_NAME_BYTES: usize = 64;

/// The variable of each known field, and the length of its name.
static KNOWN_VARIABLES: [([u8; KNOWN_BYTES_MAX], usize); KnownField::COUNT] = known_variables();

const KNOWN_BYTES_MAX: usize = 32;

const fn known_variables() -> [([u8; KNOWN_BYTES_MAX], usize); KnownField::COUNT] {
    let mut table = [([0; KNOWN_BYTES_MAX], 0); KnownField::COUNT];
    let mut number = 0;
    while number < KnownField::COUNT {
        let name = KnownField::ALL[number].name().as_bytes();
        let (bytes, length) = &mut table[number];
        while *length < PREFIX.len() {
            bytes[*length] = PREFIX[*length];
            *length += 1;
        }
        let mut position = 0;
        while position < name.len() {
            bytes[*length] = VARIABLE_BYTES[name[position] as usize];
            *length += 1;
            position += 1;
        }
        number += 1;
    }
    table
}

// Each known field has a bit in `Twins::of`.
const _: () = assert!(KnownField::COUNT <= 64);

#[cfg(test)]
mod tests {
    use petrel_engine::proto::http1::Parsed;
    use petrel_engine::proto::request_head::HeadOptions;

    use super::*;

    fn variables(fields: &str) -> Vec<(String, String)> {
        let mut head = RequestHead::new();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let options = HeadOptions {
            head_bytes_max: 1 << 20,
            ..HeadOptions::default()
        };
        let parsed = head.parse(request.as_bytes(), &options);
        assert!(matches!(parsed, Ok(Parsed::Complete { .. })), "{parsed:?}");
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        build(&head, &mut |name: &[u8], value: &[u8]| {
            found.push((text(name), text(value)))
        });
        found
    }

    fn shown(fields: &str) -> String {
        let lines = variables(fields).into_iter().skip(1);
        lines
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect()
    }

    #[test]
    fn names_are_upper_case_with_underscores() {
        assert_eq!(
            shown("User-Agent: ua\r\nx-2-Y: 1\r\nContent-Type: a/b\r\nAccept: */*\r\n"),
            "HTTP_USER_AGENT=ua\nHTTP_X_2_Y=1\nCONTENT_TYPE=a/b\nHTTP_ACCEPT=*/*\n"
        );
    }

    #[test]
    fn what_could_pass_for_another_field_is_left_out() {
        assert_eq!(
            shown("X_Foo: spoofed\r\nX.Foo: spoofed\r\nX!Foo: spoofed\r\nX-Foo: real\r\n"),
            "HTTP_X_FOO=real\n"
        );
        assert_eq!(shown("Proxy: evil\r\nPROXY: evil\r\n"), "");
        assert_eq!(
            shown("Content_Type: spoofed\r\nProxy-Foo: 1\r\n"),
            "HTTP_PROXY_FOO=1\n"
        );
    }

    #[test]
    fn the_host_is_the_one_that_was_decided_on() {
        let mut head = RequestHead::new();
        let request =
            b"POST http://A.Example:80/ HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n";
        head.parse(request, &HeadOptions::default()).expect("valid");
        let mut hosts = Vec::new();
        build(&head, &mut |name: &[u8], value: &[u8]| {
            hosts.push((name.to_vec(), value.to_vec()))
        });
        assert_eq!(hosts, [(b"HTTP_HOST".to_vec(), b"a.example".to_vec())]);
    }

    #[test]
    fn repeated_fields_are_one_variable_at_the_place_of_the_first() {
        assert_eq!(
            shown("X-A: 1\r\nCookie: a=1\r\nX-B: 2\r\nx-a: 3\r\nCookie: b=2\r\nX-A:\r\nX-A: 4\r\n"),
            "HTTP_X_A=1, 3, 4\nHTTP_COOKIE=a=1; b=2\nHTTP_X_B=2\n"
        );
        // Names of the same length with the same first and last letter have the same `key`.
        assert_eq!(
            shown("X-AA: 1\r\nX-BA: 2\r\n"),
            "HTTP_X_AA=1\nHTTP_X_BA=2\n"
        );
    }

    #[test]
    fn fields_without_a_value_have_no_variable() {
        assert_eq!(
            shown("X-Empty:\r\nX-Blank:  \r\nX-A:\r\nX-A: 1\r\n"),
            "HTTP_X_A=1\n"
        );
    }

    #[test]
    fn many_fields_become_the_same_variables_as_few() {
        let some = "X-A: 1\r\nX_B: 0\r\nX-C: 2\r\nx-a: 3\r\nProxy: evil\r\nContent-Type: a/b\r\n";
        let others: String = (0..FEW_FIELDS)
            .map(|n| format!("X-Pad-{n}: v\r\n"))
            .collect();
        let few = variables(some);
        let many = variables(&format!("{some}{others}"));
        assert_eq!(many[..few.len()], few);
        assert_eq!(many.len(), few.len() + FEW_FIELDS);
        assert_eq!(many[few.len()].0, "HTTP_X_PAD_0");
    }

    #[test]
    fn long_names_are_converted_as_well() {
        for length in [SHORT_NAME_BYTES, SHORT_NAME_BYTES + 1, 3000] {
            let name = "a".repeat(length);
            let expected = format!("HTTP_{}=1\n", "A".repeat(length));
            assert_eq!(shown(&format!("{name}: 1\r\n{name}_: 2\r\n")), expected);
        }
    }
}
