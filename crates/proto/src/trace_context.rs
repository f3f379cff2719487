//! W3C Trace Context: the fields `traceparent` and `tracestate`, by which a request carries the trace that it
//! belongs to from server to server.
//!
//! What does not follow the grammar is as if it were not there: the receiver begins a new trace (section
//! 3.2.2.3 and 3.3.1 of the recommendation).

/// The name of the field with the ids.
pub const TRACEPARENT: &str = "traceparent";

/// The name of the field with what vendors add.
pub const TRACESTATE: &str = "tracestate";

/// The value of `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; not zero.
    pub trace_id: u128,
    /// The span of the sender; not zero.
    pub span_id: u64,
    /// The sender records the trace.
    pub is_sampled: bool,
}

/// `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const LENGTH: usize = 55;

impl TraceParent {
    /// Reads a value. `None`: it is malformed, or an id is zero.
    ///
    /// Values of later versions may be longer; what they have in front is read (section 3.2.4).
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        let head = value.get(..LENGTH)?;
        let mut parts = head.split(|byte| *byte == b'-');
        let version = digits(parts.next()?, 2)?;
        let trace_id = digits(parts.next()?, 32)?;
        let span_id = digits(parts.next()?, 16)?;
        let flags = digits(parts.next()?, 2)?;
        let is_whole = match (version, value.get(LENGTH)) {
            (0xff, _) => false,
            (_, None) => true,
            (0, Some(_)) => false,
            (_, Some(next)) => *next == b'-',
        };
        if !is_whole || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(TraceParent {
            trace_id,
            span_id: span_id as u64,
            is_sampled: flags & 1 == 1,
        })
    }

    /// The value to be sent.
    pub fn value(&self) -> String {
        let flags = u8::from(self.is_sampled);
        format!(
            "00-{:032x}-{:016x}-{flags:02x}",
            self.trace_id, self.span_id
        )
    }
}

/// Exactly `count` lower-case hexadecimal digits.
fn digits(text: &[u8], count: usize) -> Option<u128> {
    if text.len() != count {
        return None;
    }
    text.iter().try_fold(0, |number: u128, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// Joins the values of all `tracestate` fields. `None`: there are none, or a member is malformed, or there
/// are too many or too long ones to be passed on.
pub fn trace_state<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    let mut members = 0;
    for member in fields.flat_map(|field| field.split(|byte| *byte == b',')) {
        let member = member.trim_ascii();
        if member.is_empty() {
            continue;
        }
        members += 1;
        if members > MEMBERS_MAX || !is_member(member) {
            return None;
        }
        if !joined.is_empty() {
            joined.push(b',');
        }
        joined.extend_from_slice(member);
        if joined.len() > STATE_BYTES_MAX {
            return None;
        }
    }
    (!joined.is_empty()).then_some(joined)
}

/// The most members of a list (section 3.3.1.1).
const MEMBERS_MAX: usize = 32;

/// How much has to be passed on at least (section 3.3.1.5). Longer lists are dropped, not cut.
const STATE_BYTES_MAX: usize = 512;

/// `key=value`: the key as in section 3.3.1.3.1, the value printable ASCII without comma and equals sign.
fn is_member(member: &[u8]) -> bool {
    let Some(equals) = member.iter().position(|byte| *byte == b'=') else {
        return false;
    };
    let (key, value) = member.split_at(equals);
    let is_key =
        |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_value = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'=');
    let begins_well = matches!(key.first(), Some(b'a'..=b'z' | b'0'..=b'9'));
    let value = value.get(1..).unwrap_or_default();
    begins_well
        && key.len() <= 256
        && key.iter().all(is_key)
        && !value.is_empty()
        && value.len() <= 256
        && value.iter().all(is_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_sound_value_is_read_and_written() {
        let parent = TraceParent::parse(SOUND.as_bytes()).expect("sound");
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled);
        assert_eq!(parent.value(), SOUND);
    }

    #[test]
    fn only_the_lowest_flag_counts() {
        let sampled = |flags: &str| {
            let value = SOUND.replace("-01", flags);
            TraceParent::parse(value.as_bytes()).map(|parent| parent.is_sampled)
        };
        assert_eq!(sampled("-00"), Some(false));
        assert_eq!(sampled("-02"), Some(false));
        assert_eq!(sampled("-ff"), Some(true));
    }

    #[test]
    fn values_of_later_versions_are_read_as_far_as_they_are_known() {
        let later = SOUND.replacen("00", "cc", 1);
        assert!(TraceParent::parse(later.as_bytes()).is_some());
        assert!(TraceParent::parse(format!("{later}-what").as_bytes()).is_some());
        assert!(TraceParent::parse(format!("{later}what").as_bytes()).is_none());
    }

    #[test]
    fn values_that_lie_are_nothing() {
        for value in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736000f067aa0ba902b7-01",
            "0-04bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            " 0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(value.as_bytes()), None, "{value:?}");
        }
    }

    fn state(fields: &[&str]) -> Option<String> {
        let joined = trace_state(fields.iter().map(|field| field.as_bytes()))?;
        Some(String::from_utf8(joined).expect("ASCII"))
    }

    #[test]
    fn states_are_joined() {
        assert_eq!(
            state(&["a=1 , b@c=x y", "", "d/e=!"]).as_deref(),
            Some("a=1,b@c=x y,d/e=!")
        );
        assert_eq!(state(&[]), None);
        assert_eq!(state(&[" , "]), None);
    }

    #[test]
    fn malformed_or_large_states_are_dropped() {
        for field in [
            "a",
            "=1",
            "a=",
            "A=1",
            "a=1=2",
            "a=\u{7f}",
            "a=1\r\nb: c",
            "-a=1",
        ] {
            assert_eq!(state(&[field]), None, "{field:?}");
        }
        assert_eq!(state(&[&["a=1"; 33].join(",")]), None);
        let long = format!("a={}", "x".repeat(256));
        assert!(state(&[&long]).is_some());
        assert_eq!(state(&[&long, &long]), None);
        assert_eq!(state(&[&format!("{}=1", "a".repeat(257))]), None);
    }
}
