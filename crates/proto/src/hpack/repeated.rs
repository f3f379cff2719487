//! The parts of the last head on a connection, each with its code.
//!
//! Most heads are like the one before: Date and Server are for a second, and often so are all other fields. Until an entry
//! enters the dynamic table or leaves it, the same lines have the same code, which is copied then.

/// Parts of the last head, by their numbers.
#[derive(Debug, Default)]
pub(super) struct RepeatedParts(Vec<RepeatedPart>);

/// Lines, and behind them their code.
#[derive(Debug, Default)]
struct RepeatedPart {
    bytes: Vec<u8>,
    lines_length: usize,
    /// How often the dynamic table had changed when the code was made.
    changes: u64,
}

impl RepeatedParts {
    /// The code of `lines`, if they were this part of the last head, and the table is as it was.
    #[inline]
    pub(super) fn code(&self, part: usize, lines: &[u8], changes: u64) -> Option<&[u8]> {
        let known = self.0.get(part).filter(|known| known.changes == changes)?;
        let (known_lines, code) = known.bytes.split_at_checked(known.lines_length)?;
        (known_lines == lines).then_some(code)
    }

    /// Keeps the code of `lines` as that of this part. Long lines are not kept.
    pub(super) fn keep(&mut self, part: usize, lines: &[u8], code: &[u8], changes: u64) {
        if lines.len() > LINES_BYTES_MAX || part >= PARTS_MAX {
            return;
        }
        if self.0.len() <= part {
            self.0.resize_with(part + 1, RepeatedPart::default);
        }
        let known = &mut self.0[part];
        known.bytes.clear();
        known.bytes.extend_from_slice(lines);
        known.bytes.extend_from_slice(code);
        known.lines_length = lines.len();
        known.changes = changes;
    }

    /// Gives the memory back.
    pub(super) fn release_memory(&mut self) {
        self.0 = Vec::new();
    }
}

const PARTS_MAX: usize = 4;

/// What a part takes at most on each connection; its code is hardly longer.
const LINES_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::{HpackDecoder, HpackEncoder};

    /// What comes out at the other side.
    fn decoded(decoder: &mut HpackDecoder, block: &[u8]) -> String {
        let mut lines = String::new();
        let mut take = |line: super::super::FieldLine<'_>| {
            for part in [line.name, b": ", line.value, b"\n"] {
                lines.push_str(std::str::from_utf8(part).expect("text"));
            }
        };
        decoder.decode(block, &mut take).expect("a sound block");
        lines
    }

    #[test]
    fn parts_that_come_again_say_the_same_whatever_else_has_changed_the_table() {
        let (mut encoder, mut decoder) = (HpackEncoder::new(), HpackDecoder::new(4096));
        let mut lengths = Vec::new();
        for number in 0..200 {
            let date = format!("Date: {}\r\n", number / 50);
            let rare = match number % 7 {
                0 => format!("X-Rare: {number}\r\n"),
                _ => String::new(),
            };
            let parts = [date, "Server: a\r\nX-Own: b\r\n".to_owned(), rare];
            let mut block = Vec::new();
            encoder.begin(&mut block);
            for (part, lines) in parts.iter().enumerate() {
                encoder.part(&mut block, part, lines.as_bytes(), |_| false);
            }
            if number == 120 {
                // It says so in the next block, and drops all entries.
                encoder.set_table_bytes_max(0);
            }
            lengths.push(block.len());
            let expected = parts.concat().replace("\r\n", "\n");
            let told = decoded(&mut decoder, &block);
            assert!(
                told.eq_ignore_ascii_case(&expected),
                "{told:?} {expected:?}"
            );
        }
        // Date is a literal of four bytes, each other line an index.
        assert_eq!(lengths[4..7], [6; 3]);
        assert!(lengths[122] > 10, "there is no table");
    }

    #[test]
    fn long_parts_are_not_kept_and_memory_is_given_back() {
        let mut encoder = HpackEncoder::new();
        let long = format!("ETag: {}\r\n", "1".repeat(super::LINES_BYTES_MAX));
        let mut block = Vec::new();
        encoder.part(&mut block, 0, long.as_bytes(), |_| false);
        assert!(encoder.repeated().0.is_empty());
        encoder.part(&mut block, 1, b"ETag: 1\r\n", |_| false);
        assert_eq!(encoder.repeated().0.len(), 2);
        encoder.release_memory();
        assert_eq!(encoder.repeated().0.capacity(), 0);
    }
}
