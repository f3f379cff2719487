//! The counters of the clients, for the status module.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use petrel_engine::shared::{Shared, lock};

use super::limits;

/// Adds the counters of all stores to `counters` as `store.KIND ADDRESS.NAME`, for example `store.redis
/// 127.0.0.1:6379.requests`.
pub(crate) fn read(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let stores = shared.belonging(StoreCounters::default);
    let servers = lock(&stores.servers);
    for (peer, server) in &*servers {
        for (name, counter) in server.all() {
            counters.insert(format!("store.{peer}.{name}"), counter.load(Relaxed));
        }
    }
}

/// The counters of all servers that a process has used.
#[derive(Default)]
pub(super) struct StoreCounters {
    servers: Mutex<BTreeMap<String, Arc<ServerCounters>>>,
}

/// The counters of all workers for one server.
#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    /// Operations. A pipeline counts as one.
    pub(crate) requests: AtomicU64,
    /// Operations without a reply: the server is unreachable, too slow, or its reply is invalid.
    pub(crate) failures: AtomicU64,
    /// Failures because of a timeout.
    pub(crate) timeouts: AtomicU64,
    /// Failures of operations that were not tried, because the server is down or too many wait.
    pub(crate) refused: AtomicU64,
    /// Connections made.
    pub(crate) connects: AtomicU64,
    /// Operations that were sent again because a persistent connection turned out to be closed.
    pub(crate) repeated: AtomicU64,
    /// Microseconds that all operations together have waited.
    pub(crate) waited_us: AtomicU64,
}

impl StoreCounters {
    /// The counters of `peer`.
    pub(crate) fn of(&self, peer: &str) -> Arc<ServerCounters> {
        let mut servers = lock(&self.servers);
        let is_room = servers.len() < limits::COUNTED_SERVERS_MAX;
        let name = match servers.contains_key(peer) || is_room {
            true => peer,
            false => OTHERS,
        };
        Arc::clone(servers.entry(name.to_owned()).or_default())
    }
}

impl ServerCounters {
    fn all(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("requests", &self.requests),
            ("failures", &self.failures),
            ("timeouts", &self.timeouts),
            ("refused", &self.refused),
            ("connects", &self.connects),
            ("repeated", &self.repeated),
            ("waited-us", &self.waited_us),
        ]
    }
}

const OTHERS: &str = "others";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_counters_of_their_own_up_to_a_number() {
        let shared = Shared::new(1, 1);
        let stores = shared.belonging(StoreCounters::default);
        stores.of("redis a:1").requests.fetch_add(2, Relaxed);
        stores.of("redis a:1").requests.fetch_add(1, Relaxed);
        for number in 0..300 {
            stores
                .of(&format!("redis b:{number}"))
                .connects
                .fetch_add(1, Relaxed);
        }
        let mut counters = BTreeMap::new();
        read(&shared, &mut counters);
        assert_eq!(counters.get("store.redis a:1.requests"), Some(&3));
        assert_eq!(counters.get("store.redis a:1.waited-us"), Some(&0));
        assert_eq!(counters.get("store.others.connects"), Some(&45));
        assert_eq!(counters.len(), 257 * 7);
    }
}
