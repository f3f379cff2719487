//! HPACK: decoded fields that are encoded and decoded again are the same, and both sides of a connection have
//! the same tables.
//!
//! The input is header blocks, each preceded by a byte with its length. A block of length 0 changes the size
//! of the table.

use petrel_proto::hpack::{FieldLine, HpackDecoder, HpackEncoder, HpackError, Indexing};

/// A name, a value, and whether it is sensitive.
type Line = (Vec<u8>, Vec<u8>, bool);

const TABLE_BYTES: u32 = 4096;

pub fn hpack(input: &[u8]) {
    let mut decoder = HpackDecoder::new(TABLE_BYTES);
    let mut frugal = HpackDecoder::new(TABLE_BYTES);
    let mut encoder = HpackEncoder::new();
    let mut other_side = HpackDecoder::new(TABLE_BYTES);
    let mut rest = input;
    while let Some((&length, behind)) = rest.split_first() {
        let (block, behind) = behind.split_at(usize::from(length).min(behind.len()));
        rest = behind;
        if block.is_empty() {
            let size = behind.first().map_or(0, |byte| u32::from(*byte) * 17);
            encoder.set_table_bytes_max(size);
            continue;
        }
        let decoded = lines_of(&mut decoder, block);
        frugal.release_memory();
        assert_eq!(lines_of(&mut frugal, block), decoded);
        let Ok(lines) = decoded else {
            return;
        };
        let ours = encoded(&mut encoder, &lines);
        let mut lower = lines;
        lower
            .iter_mut()
            .for_each(|line| line.0.make_ascii_lowercase());
        assert_eq!(lines_of(&mut other_side, &ours), Ok(lower));
    }
}

fn lines_of(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<Line>, HpackError> {
    let mut lines = Vec::new();
    let mut list_bytes = 0;
    decoder.decode(block, &mut |line: FieldLine<'_>| {
        list_bytes += line.list_bytes();
        lines.push((line.name.to_vec(), line.value.to_vec(), line.is_sensitive));
    })?;
    let one = |line: &Line| line.0.len() + line.1.len() + 32;
    assert_eq!(lines.iter().map(one).sum::<usize>(), list_bytes);
    Ok(lines)
}

fn encoded(encoder: &mut HpackEncoder, lines: &[Line]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (index, (name, value, is_sensitive)) in lines.iter().enumerate() {
        let indexing = match index % 4 {
            _ if *is_sensitive => Indexing::Never,
            0 => Indexing::NotIndexed,
            _ => Indexing::Indexed,
        };
        encoder.field(&mut block, name, value, indexing);
    }
    block
}
