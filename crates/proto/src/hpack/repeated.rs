//! The parts of the last head of a connection, each with its code.
//!
//! Most heads are like the one before them: Date stays the same for a second, Server always, and often all
//! other fields as well. As long as the dynamic table does not change, the same lines have the same code,
//! which is copied.

/// The parts by their numbers.
#[derive(Debug, Default)]
pub(super) struct RepeatedParts(Vec<RepeatedPart>);

/// The lines of a part, followed by their code.
#[derive(Debug, Default)]
struct RepeatedPart {
    bytes: Vec<u8>,
    lines_length: usize,
    /// [`DynamicTable::changes`](super::dynamic_table::DynamicTable::changes) when the code was made.
    changes: u64,
}

impl RepeatedParts {
    /// The code of `lines`, if they are the same as this part of the last head and the table has not changed.
    #[inline]
    pub(super) fn code(&self, part: usize, lines: &[u8], changes: u64) -> Option<&[u8]> {
        let known = self.0.get(part).filter(|known| known.changes == changes)?;
        let (known_lines, code) = known.bytes.split_at_checked(known.lines_length)?;
        (known_lines == lines).then_some(code)
    }

    /// Keeps `lines` and their code for the next head, unless they are too long.
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

    /// Frees the memory.
    pub(super) fn release_memory(&mut self) {
        self.0 = Vec::new();
    }
}

const PARTS_MAX: usize = 4;

/// Bytes of the lines of one part that are kept.
const LINES_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::{HpackDecoder, HpackEncoder};

    /// The lines that a peer decodes.
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
                // The next block announces it. All entries are evicted.
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
