//! What is kept of one request, written as a [record](petrel_proto::recording).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use petrel_proto::method::Method;
use petrel_proto::recording::record::{
    ANSWERED_BY_BYTES_MAX, AT_CLIENT, AT_ID, AT_LENGTHS, AT_SENT, AT_STAGES, AT_STARTED, AT_TOTAL,
    FIXED_WORDS, HOLDER_BYTES_MAX, NANOS_MAX, RECORD_WORDS_MAX,
};

use crate::ledger::{Ledger, Nanos, Stage};
use crate::request_id::RequestId;

/// A request that is over, for [`encode`].
pub(crate) struct Finished<'a> {
    pub(crate) id: RequestId,
    pub(crate) ledger: &'a Ledger,
    pub(crate) method: Method,
    pub(crate) status: u16,
    /// The code of the cause of an error that Petrel itself made; 0: none.
    pub(crate) cause: u16,
    /// See [`RecordFlag`](petrel_proto::recording::RecordFlag).
    pub(crate) flags: u8,
    /// [`ConnectionFacts::client_key`](crate::exchange::ConnectionFacts::client_key).
    pub(crate) client: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) host: &'a [u8],
    /// Without a query.
    pub(crate) path: &'a [u8],
    /// The module or backend that answered; empty: not known.
    pub(crate) answered_by: &'a [u8],
}

/// The words that a record is written into. There is always room for the longest one.
pub(crate) type Window = [AtomicU64; RECORD_WORDS_MAX];

/// Writes `finished`, which began `to_wall` nanoseconds after its monotonic time.
/// Returns how many words the record has. The last one of them is not written yet: the caller writes it.
#[inline]
pub(crate) fn encode<'a>(
    window: &Window,
    finished: &Finished<'_>,
    waits: impl ExactSizeIterator<Item = (Stage, Nanos, &'a str)>,
    to_wall: u64,
) -> usize {
    let ledger = finished.ledger;
    put(window, AT_STARTED, ledger.started().wrapping_add(to_wall));
    put(window, AT_ID, finished.id.to_bits());
    let total = ledger.total().min(NANOS_MAX);
    let kind = (finished.method as u64) << 48 | u64::from(finished.flags) << 56;
    put(window, AT_TOTAL, total | kind);
    put(window, AT_CLIENT, finished.client);
    put(window, AT_SENT, finished.sent_bytes);
    let codes = u64::from(finished.status) << 32 | u64::from(finished.cause) << 48;
    put(window, AT_STAGES, u64::from(ledger.touched_bits()) | codes);
    let mut at = FIXED_WORDS;
    ledger.each_touched(|_, nanos| {
        put(window, at, nanos);
        at += 1;
    });
    let (host, path) = (finished.host, finished.path);
    at = put_bytes(window, at, host);
    at = put_bytes(window, at, path);
    let answered_by = cut(finished.answered_by, ANSWERED_BY_BYTES_MAX);
    at = put_bytes(window, at, answered_by);
    let lengths = [host, path, answered_by].map(|text| text.len() as u64);
    let mut lengths = lengths[0] | lengths[1] << 8 | lengths[2] << 16;
    if waits.len() > 0 {
        at = encode_waits(window, at, waits, &mut lengths);
    }
    put(window, AT_LENGTHS, lengths);
    at + 1
}

/// What most requests do not have.
#[cold]
#[inline(never)]
fn encode_waits<'a>(
    window: &Window,
    mut at: usize,
    waits: impl Iterator<Item = (Stage, Nanos, &'a str)>,
    lengths: &mut u64,
) -> usize {
    let mut count = 0;
    for (stage, nanos, holder) in waits {
        // One word for the numbers, and the last one of the record.
        let room = RECORD_WORDS_MAX.saturating_sub(at + 2) * 8;
        let holder = cut(holder.as_bytes(), HOLDER_BYTES_MAX);
        if room < holder.len() {
            break;
        }
        let kind = (stage as u64) << 48 | (holder.len() as u64) << 56;
        put(window, at, nanos.min(NANOS_MAX) | kind);
        at = put_bytes(window, at + 1, holder);
        count += 1;
    }
    *lengths |= count << 24;
    at
}

#[inline(always)]
pub(crate) fn put(window: &Window, at: usize, value: u64) {
    // `at` is always inside. The mask only spares the check: RECORD_WORDS_MAX is a power of two.
    window[at & (RECORD_WORDS_MAX - 1)].store(value, Relaxed);
}

/// Writes `bytes`, filled up with zeroes to a whole word. Returns where the next word comes.
#[inline(always)]
fn put_bytes(window: &Window, mut at: usize, bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk() {
        put(window, at, u64::from_le_bytes(*word));
        at += 1;
        rest = after;
    }
    if !rest.is_empty() {
        put(window, at, last_of(bytes, rest));
        at += 1;
    }
    at
}

/// The word of `rest`, the last up to 7 of `bytes`; none only if there are no others.
#[inline(always)]
pub(crate) fn last_of(bytes: &[u8], rest: &[u8]) -> u64 {
    let length = rest.len();
    if let Some(last) = bytes.last_chunk() {
        // The bytes in front of `rest` are shifted out.
        return u64::from_le_bytes(*last) >> (64 - 8 * length);
    }
    // Two reads that overlap.
    if let (Some(first), Some(last)) = (rest.first_chunk(), rest.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (length - 4));
    }
    let byte = |at: usize| rest.get(at).map_or(0, |byte| u64::from(*byte));
    byte(0) | byte(1) << 8 | byte(2) << 16
}

/// At most the first `bytes_max` of `bytes`.
#[inline]
pub(crate) fn cut(bytes: &[u8], bytes_max: usize) -> &[u8] {
    bytes.get(..bytes_max).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use petrel_proto::recording::record::{
        HOST_BYTES_MAX, PATH_BYTES_MAX, count_in, decode, last_word,
    };
    use petrel_proto::recording::{Record, RecordFlag};

    use super::*;

    fn window() -> Box<Window> {
        Box::new(std::array::from_fn(|_| AtomicU64::new(u64::MAX)))
    }

    fn finished<'a>(ledger: &'a Ledger, host: &'a [u8], path: &'a [u8]) -> Finished<'a> {
        Finished {
            id: RequestId::from_bits(0x1234),
            ledger,
            method: Method::Post,
            status: 503,
            cause: 77,
            flags: RecordFlag::Complete as u8 | RecordFlag::Own as u8,
            client: 1 << 32 | 0x7f00_0001,
            sent_bytes: 1 << 40,
            host,
            path,
            answered_by: b"",
        }
    }

    fn through(finished: &Finished<'_>, waits: &[(Stage, Nanos, &str)]) -> Record {
        let window = window();
        let count = encode(&window, finished, waits.iter().copied(), 1_000_000);
        put(&window, count - 1, last_word(640, count, 3));
        let words: Vec<u64> = window[..count]
            .iter()
            .map(|word| word.load(Relaxed))
            .collect();
        assert_eq!(count_in(words[count - 1], 640 + count as u64), Some(count));
        assert_eq!(count_in(words[count - 1], 641 + count as u64), None);
        decode(&words).expect("it is a record")
    }

    #[test]
    fn texts_of_every_length_come_back() {
        let mut ledger = Ledger::default();
        ledger.start(1_000);
        ledger.stamp(Stage::Parse, 1_500);
        ledger.stamp(Stage::ReadFile, 10_000_000_000);
        ledger.stamp(Stage::Send, 10_000_000_020);
        let text: Vec<u8> = (1..=200).collect();
        for host in 0..=HOST_BYTES_MAX {
            for path in 0..=PATH_BYTES_MAX {
                let record = through(
                    &finished(&ledger, &text[..host], &text[100 - path..100]),
                    &[],
                );
                assert_eq!(*record.host, text[..host]);
                assert_eq!(*record.path, text[100 - path..100]);
            }
        }
        let record = through(&finished(&ledger, b"h", b"/"), &[]);
        assert_eq!((record.started, record.total), (1_001_000, 9_999_999_020));
        let stages = [
            (Stage::Parse, 500),
            (Stage::ReadFile, 9_999_998_500),
            (Stage::Send, 20),
        ];
        assert_eq!(
            (record.stages.as_slice(), record.unattributed()),
            (&stages[..], 0)
        );
        assert_eq!((record.id.to_bits(), record.worker), (0x1234, 3));
        assert_eq!(
            (record.method, record.status, record.cause),
            (Method::Post, 503, 77)
        );
        assert_eq!(
            (record.client, record.sent_bytes),
            (1 << 32 | 0x7f00_0001, 1 << 40)
        );
        assert!(record.is(RecordFlag::Own) && !record.is(RecordFlag::Tls));
    }

    #[test]
    fn notes_are_kept_as_far_as_there_is_room() {
        let mut ledger = Ledger::default();
        ledger.start(0);
        for (number, stage) in Stage::ALL.iter().enumerate() {
            ledger.stamp(*stage, number as u64 * 10);
        }
        let long = "x".repeat(300);
        let texts = [b'h'; HOST_BYTES_MAX];
        let path = [b'p'; PATH_BYTES_MAX];
        let mut all = finished(&ledger, &texts, &path);
        all.answered_by = &[b'b'; 300];
        for length in 0..300 {
            let notes = [(Stage::Stat, u64::MAX, &long[..length]); 8];
            let record = through(&all, &notes);
            assert!((1..=8).contains(&record.waits.len()), "{length}");
            let wait = &record.waits[0];
            assert_eq!(
                *wait.holder,
                *cut(&long.as_bytes()[..length], HOLDER_BYTES_MAX)
            );
            assert_eq!((wait.stage, wait.nanos), (Stage::Stat, NANOS_MAX));
            assert_eq!(*record.answered_by, [b'b'; ANSWERED_BY_BYTES_MAX]);
        }
    }
}
