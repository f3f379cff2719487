//! A record: what is kept of one request, and how it lies in memory.
//!
//! A record is a few words of 64 bits: seven with numbers, one for each stage that was stamped, then texts,
//! each filled up to a whole word, then the notes about waits, and a last word by which a reader finds the
//! beginning. It has no query and no header field but the host.

use super::request_id::RequestId;
use super::stage::{Nanos, Stage};
use crate::method::Method;

/// What is true of a recorded request: each is a bit of its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordFlag {
    /// The whole response was handed to the kernel.
    Complete = 1,
    /// The client speaks TLS.
    Tls = 2,
    /// The server made the request itself, for another one.
    Subrequest = 4,
    /// The response is an error that Petrel itself made.
    Own = 8,
    /// Host or path were longer than what is kept.
    Cut = 16,
    /// It became a tunnel, whose time is that of the conversation.
    Tunnel = 32,
}

/// A recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its id.
    pub id: RequestId,
    /// When its first byte arrived, in nanoseconds since 1970.
    pub started: u64,
    /// How long it took.
    pub total: Nanos,
    /// Its method, as the client sent it.
    pub method: Method,
    /// The status of the response; 0: there was none.
    pub status: u16,
    /// The code of the cause of an error that Petrel itself made; 0: none.
    pub cause: u16,
    flags: u8,
    /// The client, as a number that the engine makes of its address.
    pub client: u64,
    /// How many bytes were sent, head included.
    pub sent_bytes: u64,
    /// The number of its worker within the server process, from 0.
    pub worker: u16,
    /// The stages in which it was, with their times, in the order of [`Stage::ALL`].
    pub stages: Vec<(Stage, Nanos)>,
    /// The host that the client asked for.
    pub host: Box<[u8]>,
    /// The path, without a query.
    pub path: Box<[u8]>,
    /// The module or backend that answered; empty: not known.
    pub answered_by: Box<[u8]>,
    /// Its long waits.
    pub waits: Vec<RecordedWait>,
}

/// A long wait of a recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedWait {
    /// The stage in which the request waited.
    pub stage: Stage,
    /// How long.
    pub nanos: Nanos,
    /// What held it up, in words; cut.
    pub holder: Box<[u8]>,
}

impl Record {
    /// Whether `flag` is true of the request.
    pub fn is(&self, flag: RecordFlag) -> bool {
        self.flags & flag as u8 != 0
    }

    /// The time that belongs to no stage.
    pub fn unattributed(&self) -> Nanos {
        let known = self.stages.iter().map(|(_, nanos)| *nanos);
        self.total
            .saturating_sub(known.fold(0, Nanos::saturating_add))
    }
}

/// The last word of a record of `count` words that begins `position` words after the beginning of its ring's
/// time.
#[inline]
pub fn last_word(position: u64, count: usize, worker: u16) -> u64 {
    position << 24 | u64::from(worker & 0xfff) << 12 | count as u64
}

/// How many words the record has whose last word is `last`, if it begins at a position that fits.
pub fn count_in(last: u64, end: u64) -> Option<usize> {
    let count = last & 0xfff;
    let begins = end.checked_sub(count)?;
    (count > 0 && begins << 24 == last & !0xff_ffff).then_some(count as usize)
}

/// Reads a record from its words. `None`: they are none.
pub fn decode(words: &[u64]) -> Option<Record> {
    let (last, words) = words.split_last()?;
    let fixed: &[u64; FIXED_WORDS] = words.first_chunk()?;
    let mut rest = RareParts(&words[FIXED_WORDS..]);
    let (kind, codes, lengths) = (fixed[AT_TOTAL], fixed[AT_STAGES], fixed[AT_LENGTHS]);
    let touched = codes as u32;
    let mut stages = Vec::new();
    for (number, stage) in Stage::ALL.iter().enumerate() {
        if touched & 1 << number != 0 {
            stages.push((*stage, rest.word()?));
        }
    }
    let host = rest.bytes(lengths as u8)?;
    let path = rest.bytes((lengths >> 8) as u8)?;
    let answered_by = rest.bytes((lengths >> 16) as u8)?;
    let mut waits = Vec::new();
    for _ in 0..(lengths >> 24) as u8 {
        let wait = rest.word()?;
        waits.push(RecordedWait {
            stage: *Stage::ALL.get(usize::from((wait >> 48) as u8))?,
            nanos: wait & NANOS_MAX,
            holder: rest.bytes((wait >> 56) as u8)?,
        });
    }
    rest.0.is_empty().then_some(Record {
        id: RequestId::from_bits(fixed[AT_ID]),
        started: fixed[AT_STARTED],
        total: kind & NANOS_MAX,
        method: *Method::ALL.get(usize::from((kind >> 48) as u8))?,
        status: (codes >> 32) as u16,
        cause: (codes >> 48) as u16,
        flags: (kind >> 56) as u8,
        client: fixed[AT_CLIENT],
        sent_bytes: fixed[AT_SENT],
        worker: (last >> 12) as u16 & 0xfff,
        stages,
        host,
        path,
        answered_by,
        waits,
    })
}

/// The words of a record that are still to be read.
struct RareParts<'a>(&'a [u64]);

impl RareParts<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*word)
    }

    fn bytes(&mut self, length: u8) -> Option<Box<[u8]>> {
        let length = usize::from(length);
        let (words, rest) = self.0.split_at_checked(length.div_ceil(8))?;
        self.0 = rest;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(length);
        Some(bytes.into())
    }
}

/// When the first byte of the request arrived, in nanoseconds since 1970.
pub const AT_STARTED: usize = 0;
/// The id of the request.
pub const AT_ID: usize = 1;
/// The total in 48 bits, the method in 8, the flags in 8.
pub const AT_TOTAL: usize = 2;
/// The client.
pub const AT_CLIENT: usize = 3;
/// How many bytes were sent.
pub const AT_SENT: usize = 4;
/// A bit for each stage in 32 bits, the status in 16, the cause in 16.
pub const AT_STAGES: usize = 5;
/// The lengths of host, path and `answered_by`, and the number of notes; 8 bits each.
pub const AT_LENGTHS: usize = 6;
/// How many words with numbers each record has.
pub const FIXED_WORDS: usize = 7;

/// 78 hours, in 48 bits.
pub const NANOS_MAX: u64 = (1 << 48) - 1;

/// What is kept of a host.
pub const HOST_BYTES_MAX: usize = 40;
/// What is kept of a path.
pub const PATH_BYTES_MAX: usize = 96;
/// What is kept of the name of the module or backend that answered.
pub const ANSWERED_BY_BYTES_MAX: usize = 40;
/// What is kept of the note about a wait.
pub const HOLDER_BYTES_MAX: usize = 240;
/// The longest record, the last word included.
pub const RECORD_WORDS_MAX: usize = 128;

// All but the notes fits; these stop before the end.
const _: () = {
    let texts = (HOST_BYTES_MAX + PATH_BYTES_MAX + ANSWERED_BY_BYTES_MAX) / 8;
    assert!(FIXED_WORDS + Stage::ALL.len() + texts + 2 < RECORD_WORDS_MAX);
    assert!(RECORD_WORDS_MAX.is_power_of_two() && RECORD_WORDS_MAX < 1 << 12);
    assert!(HOLDER_BYTES_MAX < 256 && PATH_BYTES_MAX < 256);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_words_are_no_record() {
        assert_eq!(decode(&[]), None);
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let words: Vec<u64> = (0..state % 60)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    state >> (state >> 60)
                })
                .collect();
            state = state.wrapping_add(1);
            let _ = decode(&words);
        }
    }
}
