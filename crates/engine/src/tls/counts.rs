//! Counters of TLS, of all workers together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start of the server process.
#[derive(Debug, Default)]
pub struct TlsCounts {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
    misdirected: AtomicU64,
}

impl TlsCounts {
    /// All counters with the names that `status.statistics-url` shows.
    pub fn all(&self) -> [(&'static str, u64); 4] {
        [
            ("tls.handshakes-full", &self.full),
            ("tls.handshakes-resumed", &self.resumed),
            ("tls.handshakes-failed", &self.failed),
            ("tls.misdirected-requests", &self.misdirected),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    pub(crate) fn handshake(&self, is_resumed: bool) {
        let count = if is_resumed {
            &self.resumed
        } else {
            &self.full
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed_handshake(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn misdirected_request(&self) {
        self.misdirected.fetch_add(1, Ordering::Relaxed);
    }
}
