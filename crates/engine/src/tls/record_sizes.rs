//! How much plaintext goes into one record.
//!
//! A client can decrypt a record only when it has all of it. While the congestion window of a connection is
//! small, the rest of a large record arrives a round trip later, so the first records are small. A record
//! costs the worker about as much as encrypting 1 KiB, so later records are large.

use crate::limits;

/// The record sizes of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordSizes {
    /// Bytes sent since the last pause.
    sent_bytes: u32,
    /// The second in which records were last made, or still waited for the socket.
    last_s: u32,
}

impl RecordSizes {
    /// To be called before records are made. A time in which records wait for a slow client (`is_all_written`
    /// is false) is no pause.
    pub(super) fn begin(&mut self, is_all_written: bool, now_s: u32) {
        if is_all_written && now_s.saturating_sub(self.last_s) >= limits::TLS_PAUSE_S {
            self.sent_bytes = 0;
        }
        self.last_s = now_s;
    }

    /// How many of the next `available` bytes one record should take.
    pub(super) fn next(&self, available: usize) -> usize {
        match self.sent_bytes < limits::TLS_SMALL_RECORDS_BYTES {
            true if available <= limits::TLS_WHOLE_ANSWER_BYTES_MAX => available,
            true => limits::TLS_SMALL_RECORD_BYTES,
            false => available.min(limits::TLS_RECORD_BYTES_MAX),
        }
    }

    /// A record with `bytes` of plaintext was made.
    pub(super) fn made(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.sent_bytes = self.sent_bytes.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u32 = 1000;

    /// The sizes of the records when `bytes` are there at once.
    fn sizes(policy: &mut RecordSizes, mut bytes: usize, now_s: u32) -> Vec<usize> {
        let mut sizes = Vec::new();
        policy.begin(true, now_s);
        while bytes > 0 {
            let size = policy.next(bytes);
            policy.made(size);
            sizes.push(size);
            bytes -= size;
        }
        sizes
    }

    #[test]
    fn a_small_answer_is_one_record() {
        let mut policy = RecordSizes::default();
        assert_eq!(sizes(&mut policy, 4500, NOW_S), [4500]);
    }

    #[test]
    fn records_grow_and_are_small_again_after_a_pause() {
        let mut policy = RecordSizes::default();
        let begin = sizes(
            &mut policy,
            limits::TLS_SMALL_RECORDS_BYTES as usize + 100_000,
            NOW_S,
        );
        assert_eq!(begin[0], limits::TLS_SMALL_RECORD_BYTES);
        let small = begin
            .iter()
            .filter(|&&size| size == limits::TLS_SMALL_RECORD_BYTES);
        let bytes = small.count() * limits::TLS_SMALL_RECORD_BYTES;
        assert!(bytes >= limits::TLS_SMALL_RECORDS_BYTES as usize);
        assert!(begin.contains(&limits::TLS_RECORD_BYTES_MAX));

        let soon_s = NOW_S + limits::TLS_PAUSE_S - 1;
        policy.begin(true, soon_s);
        assert_eq!(policy.next(100_000), limits::TLS_RECORD_BYTES_MAX);
        policy.made(1);
        policy.begin(true, soon_s + limits::TLS_PAUSE_S);
        assert_eq!(policy.next(100_000), limits::TLS_SMALL_RECORD_BYTES);
    }

    #[test]
    fn records_that_wait_are_no_pause() {
        let mut policy = RecordSizes::default();
        sizes(&mut policy, 200_000, NOW_S);
        policy.begin(false, NOW_S + limits::TLS_PAUSE_S);
        policy.begin(true, NOW_S + limits::TLS_PAUSE_S);
        assert_eq!(policy.next(100_000), limits::TLS_RECORD_BYTES_MAX);
    }
}
