//! How many HTTP/2 connections were ended because the client exceeded a limit.

use std::sync::atomic::{AtomicU64, Ordering};

use petrel_proto::http2::{ConnectionError, Http2Error};

/// One counter for each limit, for all workers together.
#[derive(Default)]
pub struct Http2Counters([AtomicU64; ConnectionError::LIMITS.len()]);

impl Http2Counters {
    /// Counts a connection that ended because of `error`, if that is a limit.
    #[cold]
    pub(crate) fn count(&self, error: Http2Error) {
        let Http2Error::Connection(reason) = error else {
            return;
        };
        let mut limits = ConnectionError::LIMITS.iter();
        if let Some(position) = limits.position(|limit| *limit == reason) {
            self.0[position].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All counters with their names, such as `server.http2.ended.rapid-reset`.
    pub fn read(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        ConnectionError::LIMITS.iter().map(name).zip(counts)
    }
}

fn name(limit: &ConnectionError) -> String {
    let mut name = "server.http2.ended.".to_owned();
    for (position, letter) in format!("{limit:?}").char_indices() {
        if position > 0 && letter.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_counter_of_its_own() {
        let counters = Http2Counters::default();
        for reason in ConnectionError::ALL {
            counters.count(Http2Error::Connection(*reason));
        }
        assert!(counters.read().all(|(_, count)| count == 1));
        let names: Vec<String> = counters.read().map(|(name, _)| name).collect();
        assert_eq!(names[0], "server.http2.ended.settings-timeout");
        assert_eq!(
            names.last().map(String::as_str),
            Some("server.http2.ended.not-reading")
        );
    }
}
