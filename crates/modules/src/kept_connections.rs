//! Idle persistent connections to one server.
//!
//! Gateways use it for connections to backends, [`remote_store`](crate::remote_store) for connections to
//! stores and to servers that scripts make requests to. It knows no protocol, no limit and no clock.

use std::cell::RefCell;

/// A persistent connection.
pub(crate) trait Keepable {
    /// Whether the connection cannot be used any more, as far as the worker knows: the server has closed it,
    /// or has sent something without a request. Makes no system call unless TLS records have arrived.
    fn is_stale(&mut self) -> bool;

    /// When the last request on it ended, in milliseconds of the worker's clock.
    fn idle_since_ms(&self) -> u64;
}

/// The idle connections of one worker to one server.
pub(crate) struct KeptConnections<C> {
    /// The connection that was used last is at the end.
    idle: RefCell<Vec<C>>,
}

impl<C: Keepable> KeptConnections<C> {
    /// No connections.
    pub(crate) fn new() -> KeptConnections<C> {
        KeptConnections {
            idle: RefCell::default(),
        }
    }

    /// The number of idle connections.
    pub(crate) fn count(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Keeps a connection whose request has just ended.
    pub(crate) fn keep(&self, connection: C) {
        self.idle.borrow_mut().push(connection);
    }

    /// The connection that was used last. Stale connections are closed on the way.
    #[inline]
    pub(crate) fn take(&self) -> Option<C> {
        loop {
            let mut connection = self.idle.borrow_mut().pop()?;
            if !connection.is_stale() {
                return Some(connection);
            }
        }
    }

    /// Closes connections that have been idle for `idle_ms_max` or longer, and stale ones.
    pub(crate) fn close_old(&self, now_ms: u64, idle_ms_max: u64) {
        let is_fresh = |connection: &mut C| {
            let idle_ms = now_ms.saturating_sub(connection.idle_since_ms());
            idle_ms < idle_ms_max && !connection.is_stale()
        };
        self.idle.borrow_mut().retain_mut(is_fresh);
    }

    /// Whether a connection has been idle for `idle_ms`, and can be used.
    pub(crate) fn has_rested(&self, now_ms: u64, idle_ms: u64) -> bool {
        let mut idle = self.idle.borrow_mut();
        let oldest = idle
            .first_mut()
            .filter(|connection| now_ms.saturating_sub(connection.idle_since_ms()) >= idle_ms);
        oldest.is_some_and(|connection| !connection.is_stale())
    }

    /// Closes the connection that has been idle for longest.
    pub(crate) fn close_oldest(&self) {
        let mut idle = self.idle.borrow_mut();
        if !idle.is_empty() {
            idle.remove(0);
        }
    }

    /// Closes all connections.
    pub(crate) fn close_all(&self) {
        self.idle.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pretended {
        name: char,
        is_stale: bool,
        since_ms: u64,
    }

    impl Keepable for Pretended {
        fn is_stale(&mut self) -> bool {
            self.is_stale
        }

        fn idle_since_ms(&self) -> u64 {
            self.since_ms
        }
    }

    fn kept(connections: &[(char, u64)], stale: &str) -> KeptConnections<Pretended> {
        let kept = KeptConnections::new();
        for (name, since_ms) in connections {
            kept.keep(Pretended {
                name: *name,
                is_stale: stale.contains(*name),
                since_ms: *since_ms,
            });
        }
        kept
    }

    fn taken(kept: &KeptConnections<Pretended>) -> String {
        std::iter::from_fn(|| kept.take().map(|connection| connection.name)).collect()
    }

    #[test]
    fn the_one_used_last_comes_first_and_stale_ones_never() {
        let kept = kept(&[('a', 1), ('b', 2), ('c', 3), ('d', 4)], "bd");
        assert_eq!(kept.take().map(|connection| connection.name), Some('c'));
        assert_eq!(kept.count(), 2);
        assert_eq!(taken(&kept), "a");
    }

    #[test]
    fn the_oldest_has_rested_if_it_is_not_stale() {
        let connections = [('a', 10), ('b', 20)];
        assert!(kept(&connections, "b").has_rested(60, 50));
        assert!(!kept(&connections, "b").has_rested(59, 50));
        assert!(!kept(&connections, "a").has_rested(60, 50));
        assert!(!kept(&[], "").has_rested(60, 50));
    }

    #[test]
    fn old_ones_are_closed() {
        let kept = kept(&[('a', 10), ('b', 20), ('c', 30), ('d', 31)], "d");
        kept.close_old(39, 20);
        assert_eq!(kept.count(), 2);
        kept.close_oldest();
        assert_eq!(taken(&kept), "c");
        kept.close_oldest();
        kept.keep(Pretended {
            name: 'e',
            is_stale: false,
            since_ms: 40,
        });
        kept.close_all();
        assert_eq!(kept.count(), 0);
    }
}
