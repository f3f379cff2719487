//! Compiles the text of a pattern to items for the matcher.

use super::matcher::Stop;

/// A compiled Lua pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub(super) items: Vec<PatternItem>,
    /// Whether the text begins with `^`. `gmatch` takes that byte literally: [`Pattern::literal`].
    pub(super) anchored: bool,
}

/// One part of a pattern.
#[derive(Clone, Debug)]
pub(super) enum PatternItem {
    /// A byte of a set, repeated.
    One(Set, Repeat),
    /// `%bxy`: from an `x` to the `y` that balances it.
    Balance(u8, u8),
    /// `%f[set]`: between a byte outside the set and one inside.
    Frontier(Set),
    /// `%1` to `%9`: the text of a capture again, numbered from zero. `None` is `%0`.
    Again(Option<usize>),
    /// `(`
    Open,
    /// `()`
    Position,
    /// `)`
    Close,
    /// `$` as the last byte.
    End,
    /// An error, raised when a match reaches this item.
    Fault(Stop),
}

/// How often a byte may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Once,
    /// `?`
    Optional,
    /// `*`
    Any,
    /// `+`
    Some,
    /// `-`
    Shortest,
}

/// A set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Set {
    bits: [u64; 4],
    /// How many tests LuaJIT makes per byte.
    weight: u32,
    /// The only member, if there is just one.
    single: Option<u8>,
}

impl Pattern {
    /// Compiles `text`, where a leading `^` is an anchor. Never fails: errors are items, see [`super`].
    #[must_use]
    pub fn new(text: &[u8]) -> Pattern {
        match text {
            [b'^', rest @ ..] => Pattern {
                items: parse(rest),
                anchored: true,
            },
            _ => Pattern::literal(text),
        }
    }

    /// Compiles `text`, where a leading `^` stands for that byte.
    #[must_use]
    pub fn literal(text: &[u8]) -> Pattern {
        Pattern {
            items: parse(text),
            anchored: false,
        }
    }

    /// Whether a match can begin only where the search begins.
    #[must_use]
    pub(crate) fn is_anchored(&self) -> bool {
        self.anchored
    }

    /// The number of captures, including position captures.
    #[must_use]
    pub(crate) fn capture_count(&self) -> usize {
        let opening =
            |item: &&PatternItem| matches!(item, PatternItem::Open | PatternItem::Position);
        self.items.iter().filter(opening).count()
    }

    /// The longest subject for which LuaJIT's matcher certainly takes at most `steps_max` steps.
    #[must_use]
    pub(crate) fn native_subject_max(&self, steps_max: f64) -> usize {
        let (mut low, mut high) = (0usize, 1usize << 31);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.native_steps_max(middle as f64) <= steps_max {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// An upper bound of the steps that LuaJIT's matcher takes for all matches in a subject.
    ///
    /// `entered` is how often an item is tried at most: once for each start, multiplied by the lengths of the
    /// repetitions before it. A repetition that can end in only one place multiplies nothing.
    fn native_steps_max(&self, bytes: f64) -> f64 {
        let length = bytes + 1.0;
        let mut entered = if self.anchored { 1.0 } else { length };
        let mut steps = entered;
        for (index, item) in self.items.iter().enumerate() {
            let rest = self.items.get(index + 1..).unwrap_or_default();
            match item {
                PatternItem::One(set, Repeat::Once) => steps += entered * f64::from(set.weight),
                PatternItem::One(set, Repeat::Optional) => {
                    steps += 2.0 * entered * f64::from(set.weight);
                    entered *= 2.0;
                }
                PatternItem::One(set, _) => {
                    steps += entered * length * f64::from(set.weight + 1);
                    if !set.ends_in_one_place(rest) {
                        entered *= length;
                    }
                }
                PatternItem::Balance(..) | PatternItem::Again(_) => steps += entered * length,
                PatternItem::Frontier(set) => steps += 2.0 * entered * f64::from(set.weight),
                PatternItem::Open
                | PatternItem::Position
                | PatternItem::Close
                | PatternItem::End
                | PatternItem::Fault(_) => {
                    steps += entered;
                }
            }
        }
        steps
    }
}

impl Set {
    /// Whether `byte` is a member.
    pub(super) fn contains(&self, byte: u8) -> bool {
        self.bits[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    /// The only member of a set of one.
    pub(super) fn single(&self) -> Option<u8> {
        self.single
    }

    fn of(members: impl Fn(u8) -> bool, weight: usize) -> Set {
        let mut set = Set {
            bits: [0; 4],
            weight: u32::try_from(weight.max(1)).unwrap_or(u32::MAX),
            single: None,
        };
        let mut last = None;
        let mut count = 0;
        for byte in 0..=255u8 {
            if members(byte) {
                set.bits[usize::from(byte >> 6)] |= 1 << (byte & 63);
                last = Some(byte);
                count += 1;
            }
        }
        set.single = last.filter(|_| count == 1);
        set
    }

    fn is_disjoint(&self, other: &Set) -> bool {
        self.bits
            .iter()
            .zip(&other.bits)
            .all(|(mine, theirs)| mine & theirs == 0)
    }

    /// Whether the match can continue after only one length of this repetition, with `rest` after it: either
    /// nothing follows that could fail, or the next item cannot match a byte of this set.
    fn ends_in_one_place(&self, rest: &[PatternItem]) -> bool {
        let next = rest.iter().find(|item| {
            !matches!(
                item,
                PatternItem::Open | PatternItem::Position | PatternItem::Close
            )
        });
        match next {
            None => rest.iter().all(|item| matches!(item, PatternItem::Close)),
            Some(PatternItem::End) => true,
            Some(PatternItem::One(set, Repeat::Once | Repeat::Some)) => self.is_disjoint(set),
            Some(_) => false,
        }
    }
}

/// The items of a text. Stops after the first error, because no match gets further.
fn parse(text: &[u8]) -> Vec<PatternItem> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    let mut rest = text.get(..end).unwrap_or_default();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let (item, after) = next_item(rest);
        let is_fault = matches!(item, PatternItem::Fault(_));
        items.push(item);
        if is_fault {
            break;
        }
        rest = after;
    }
    items
}

fn next_item(text: &[u8]) -> (PatternItem, &[u8]) {
    match text {
        [b'(', b')', rest @ ..] => (PatternItem::Position, rest),
        [b'(', rest @ ..] => (PatternItem::Open, rest),
        [b')', rest @ ..] => (PatternItem::Close, rest),
        [b'$'] => (PatternItem::End, &[]),
        [b'%', b'b', open, close, rest @ ..] => (PatternItem::Balance(*open, *close), rest),
        [b'%', b'b', ..] => (PatternItem::Fault(Stop::Unbalanced), &[]),
        [b'%', b'f', rest @ ..] => match rest.first() {
            Some(b'[') => match set(rest) {
                Ok((set, rest)) => (PatternItem::Frontier(set), rest),
                Err(fault) => (PatternItem::Fault(fault), &[]),
            },
            _ => (PatternItem::Fault(Stop::FrontierWithoutSet), &[]),
        },
        [b'%', digit @ b'0'..=b'9', rest @ ..] => (
            PatternItem::Again(usize::from(*digit).checked_sub(49)),
            rest,
        ),
        _ => match set(text) {
            Ok((set, rest)) => repeated(set, rest),
            Err(fault) => (PatternItem::Fault(fault), &[]),
        },
    }
}

fn repeated(set: Set, rest: &[u8]) -> (PatternItem, &[u8]) {
    let repeat = match rest.first() {
        Some(b'?') => Repeat::Optional,
        Some(b'*') => Repeat::Any,
        Some(b'+') => Repeat::Some,
        Some(b'-') => Repeat::Shortest,
        _ => return (PatternItem::One(set, Repeat::Once), rest),
    };
    (
        PatternItem::One(set, repeat),
        rest.get(1..).unwrap_or_default(),
    )
}

/// The set for the single byte, class or brackets at the beginning of `text`.
fn set(text: &[u8]) -> Result<(Set, &[u8]), Stop> {
    match text {
        [b'.', rest @ ..] => Ok((Set::of(|_| true, 1), rest)),
        [b'%', class, rest @ ..] => Ok((Set::of(|byte| is_in_class(byte, *class), 1), rest)),
        [b'%'] => Err(Stop::EndsWithPercent),
        [b'[', rest @ ..] => brackets(rest),
        [byte, rest @ ..] => Ok((Set::of(|other| other == *byte, 1), rest)),
        [] => Err(Stop::EndsWithPercent),
    }
}

/// The set of `[…]`, after its opening bracket.
fn brackets(text: &[u8]) -> Result<(Set, &[u8]), Stop> {
    let (negated, text) = match text {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let end = closing_bracket(text).ok_or(Stop::MissingBracket)?;
    let inside = text.get(..end).unwrap_or_default();
    let members = bracket_members(inside);
    let set = Set::of(|byte| members[usize::from(byte)] != negated, inside.len());
    Ok((set, text.get(end + 1..).unwrap_or_default()))
}

/// The position of the `]` that closes a set. It is a member instead if it comes first or is escaped.
fn closing_bracket(text: &[u8]) -> Option<usize> {
    let mut index = 0;
    loop {
        let byte = *text.get(index)?;
        index += 1;
        if byte == b'%' && index < text.len() {
            index += 1;
        }
        if *text.get(index)? == b']' {
            return Some(index);
        }
    }
}

fn bracket_members(mut inside: &[u8]) -> [bool; 256] {
    let mut members = [false; 256];
    loop {
        inside = match inside {
            [] => return members,
            [b'%', class, rest @ ..] => {
                for byte in 0..=255u8 {
                    members[usize::from(byte)] |= is_in_class(byte, *class);
                }
                rest
            }
            [low, b'-', high, rest @ ..] => {
                for byte in *low..=*high {
                    members[usize::from(byte)] = true;
                }
                rest
            }
            [byte, rest @ ..] => {
                members[usize::from(*byte)] = true;
                rest
            }
        };
    }
}

/// Whether `%class` contains `byte`. An unknown class stands for that byte itself.
fn is_in_class(byte: u8, class: u8) -> bool {
    let covered = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0B,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    covered != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(text: &str) -> usize {
        Pattern::new(text.as_bytes()).native_subject_max(2_000_000.0)
    }

    #[test]
    fn the_native_matcher_gets_short_subjects_of_costly_patterns() {
        assert!(native("^/static/") > 1_000_000, "{}", native("^/static/"));
        assert!(native("^([^/]+)/(.*)$") > 100_000);
        assert!((500..5_000).contains(&native("^(.-)/(.*)$")));
        assert!((60..400).contains(&native("^%s*(.-)%s*$")));
        assert!(native(".-.-.-.-.-b") < 10);
        assert_eq!(native(&"a?".repeat(40)), 0);
    }

    #[test]
    fn repetitions_that_end_in_one_place_multiply_nothing() {
        assert!(native("^(%w+)=(%w+);(%w+)$") > 100_000);
        assert!(native("^(%w*)x(%w*)y$") < 2_000);
    }

    #[test]
    fn a_bracket_in_the_first_place_is_a_member() {
        let (set, rest) = set(b"[]]+").expect("sound");
        assert!(set.contains(b']') && !set.contains(b'['));
        assert_eq!(rest, b"+");
    }
}
