//! Clients of Redis and memcached, for scripts and for caches that several machines share, and of LDAP, for
//! log-ins.
//!
//! [`Stores::of`] a worker has its connections. [`Redis`] and [`Memcached`] are handles that borrow a
//! connection for each operation; operations are futures that are polled on the worker's thread. The
//! protocols are in `petrel_proto`. This module does not know what is stored or why.
//!
//! | files | |
//! |---|---|
//! | [`redis`](Redis), [`memcached`](Memcached), [`ldap`](Ldap) | the functions that callers use |
//! | [`tier`] | the operations that Redis and memcached have in common, for caches |
//! | [`RemoteServer`], [`Link`] | a server and its connections; also used for scripts' HTTP requests |
//! | `pool`, `link` | which operation gets a connection; one exchange on it |
//! | `circuit` | whether operations should try a server |
//! | `address`, `error`, [`limits`], [`counters`] | |
//!
//! # What must stay true
//!
//! - A connection is used again only after an exchange whose replies are complete, with nothing left over and
//!   nothing unsent. An operation that ends in any other way, or is dropped, closes its connection: so no
//!   operation ever reads the reply to another one.
//! - One rule decides whether an operation is sent again (`pool::Operation::may_be_repeated`): once, on a new
//!   connection, and only if the first one was persistent.
//! - Every operation ends: one timeout covers the wait for a connection, connecting and the reply.
//! - While a server is down, one operation tries it after each pause; all others fail at once.
//! - Memory is allocated for what has arrived, not for what is announced, and is bounded by `limits`.

mod address;
mod circuit;
pub(crate) mod counters;
mod error;
pub(crate) mod ldap;
pub(crate) mod limits;
mod link;
mod memcached;
mod pool;
mod redis;
mod server;
/// Says what held up a request that has waited for a server since `since`.
pub(crate) fn tell_slow_server(since: Nanos, text: &mut HolderText<'_>) {
    waits::with_slow_peer(since, 8, |peer| {
        text.write_str(peer.unwrap_or("a server that stores pages had not answered"));
    });
}

#[cfg(test)]
mod testing;
pub(crate) mod tier;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::gateway::resolve::FollowedNames;
use petrel_engine::clock::Clock;
use petrel_engine::ledger::Nanos;
use petrel_engine::log::LogHandle;
use petrel_engine::tls::TlsServer;
use petrel_engine::waits::{self, HolderText};
use petrel_engine::worker::Worker;

pub(crate) use address::StoreAddress;
#[cfg(test)]
pub(crate) use error::Kind;
pub(crate) use error::{OperationStage, StoreError};
pub(crate) use ldap::{Ldap, LdapOptions, LdapTls, TlsStart};
pub(crate) use link::Link;
pub(crate) use memcached::{
    CasOutcome, Distribution, HashName, KeyForm, Memcached, MemcachedOptions, StoredValue, Wire,
};
pub(crate) use petrel_engine::proto::resp::Value;
pub(crate) use redis::{Pipeline, Redis, RedisOptions};
pub(crate) use server::RemoteServer;

use counters::StoreCounters;
use ldap::{MessageIds, PoolTls};
use link::ReceiveBuffer;
use pool::{Login, Pool, PoolOptions};

/// The connections of one worker to all stores.
pub(crate) struct Stores {
    pools: RefCell<Vec<PoolEntry>>,
    worker: Weak<Worker>,
    clock: Rc<Clock>,
    buffer: Rc<ReceiveBuffer>,
    counters: Arc<StoreCounters>,
    names: Arc<FollowedNames>,
    log: LogHandle,
}

struct PoolEntry {
    key: PoolKey,
    pool: Rc<Pool>,
}

/// Clients with equal keys share connections.
#[derive(Clone, PartialEq, Eq)]
struct PoolKey {
    kind: &'static str,
    address: StoreAddress,
    login: Vec<u8>,
    /// The wire protocol: a memcached expects the protocol that it received first on a connection.
    wire: Option<Wire>,
    tls: Option<LdapTls>,
    connect_timeout_ms: u64,
    connections_max: usize,
}

impl Stores {
    /// The stores of `worker`. A caller that uses them often should keep the result.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<Stores> {
        worker.belonging(|| {
            worker.each_second(|worker| Stores::of(worker).look_after(worker));
            Stores {
                worker: Rc::downgrade(worker),
                clock: Rc::clone(worker.clock()),
                pools: RefCell::default(),
                buffer: Rc::new(RefCell::new(vec![0; limits::RECEIVE_BUFFER_BYTES].into())),
                counters: worker.shared().belonging(StoreCounters::default),
                names: FollowedNames::of(worker.shared()),
                log: worker.logs().error_log(None),
            }
        })
    }

    /// A Redis client. Nothing is sent yet.
    ///
    /// # Errors
    /// There are too many servers already, or the thread for looking up the name cannot be started.
    pub(crate) fn redis(&self, options: &RedisOptions) -> Result<Rc<Redis>, StoreError> {
        let login = options.login();
        let key = PoolKey {
            kind: "redis",
            address: options.address.clone(),
            login: login
                .as_ref()
                .map_or_else(Vec::new, |login| login.commands.clone()),
            wire: None,
            tls: None,
            connect_timeout_ms: options.connect_timeout_ms,
            connections_max: options.connections_max,
        };
        let pool = self.pool(key, login, None)?;
        Ok(Rc::new(Redis::new(pool, options.timeout_ms)))
    }

    /// A client for one or more memcached servers. Nothing is sent yet.
    ///
    /// # Errors
    /// The options name no server, or too many, or prefixes that leave no room for a key; or see
    /// [`Stores::redis`].
    pub(crate) fn memcached(
        &self,
        options: &MemcachedOptions,
    ) -> Result<Rc<Memcached>, StoreError> {
        let refused = |text: String| StoreError::refused(&Rc::from("memcached"), text);
        if options.servers.is_empty() {
            return Err(refused("no server is named".to_owned()));
        }
        if options.servers.len() > limits::MEMCACHED_SERVERS_MAX {
            return Err(refused("too many servers are named".to_owned()));
        }
        let pool = |address: &StoreAddress| {
            let key = PoolKey {
                kind: "memcached",
                address: address.clone(),
                login: Vec::new(),
                wire: Some(options.wire),
                tls: None,
                connect_timeout_ms: options.connect_timeout_ms,
                connections_max: options.connections_max,
            };
            self.pool(key, None, None)
        };
        let pools: Result<Vec<_>, StoreError> = options.servers.iter().map(pool).collect();
        let memcached = Memcached::new(options, pools?, &self.clock);
        memcached.map(Rc::new).map_err(refused)
    }

    /// An LDAP client; with `tls` if its options ask for that. Nothing is sent yet.
    ///
    /// # Errors
    /// See [`Stores::redis`].
    pub(crate) fn ldap(
        &self,
        options: &LdapOptions,
        tls: Option<&TlsServer>,
    ) -> Result<Rc<Ldap>, StoreError> {
        let pool = |login: Option<Login>| {
            let key = PoolKey {
                kind: "ldap",
                address: options.address.clone(),
                login: login
                    .as_ref()
                    .map_or_else(Vec::new, |login| login.commands.clone()),
                wire: None,
                tls: options.tls.clone(),
                connect_timeout_ms: options.timeout.as_millis() as u64,
                connections_max: limits::LDAP_CONNECTIONS_MAX,
            };
            let tls = options
                .tls
                .as_ref()
                .zip(tls)
                .map(|(known, server)| PoolTls {
                    start: known.start,
                    server: server.clone(),
                });
            self.pool(key, login, tls)
        };
        let (searching, binding) = (pool(Some(options.login()))?, pool(None)?);
        let worker = self.worker.upgrade();
        let ids = worker.map_or_else(Rc::default, |worker| worker.belonging(MessageIds::default));
        let ldap = Ldap::new(searching, binding, options.timeout, ids);
        Ok(Rc::new(ldap))
    }

    fn pool(
        &self,
        key: PoolKey,
        login: Option<Login>,
        tls: Option<PoolTls>,
    ) -> Result<Rc<Pool>, StoreError> {
        let mut pools = self.pools.borrow_mut();
        if let Some(known) = pools.iter().find(|entry| entry.key == key) {
            return Ok(Rc::clone(&known.pool));
        }
        let peer: Rc<str> = format!("{} {}", key.kind, key.address).into();
        if pools.len() >= limits::POOLS_MAX {
            // The oldest pool that no handle and no operation uses.
            let unused = |entry: &PoolEntry| Rc::strong_count(&entry.pool) == 1;
            let Some(oldest) = pools.iter().position(unused) else {
                return Err(StoreError::refused(&peer, "too many stores are in use"));
            };
            pools.remove(oldest);
        }
        let place = key.address.place(&self.names, &self.log);
        let place = place.map_err(|error| {
            StoreError::refused(&peer, format!("its name cannot be looked up: {error}"))
        })?;
        let server = RemoteServer::new(
            place,
            &self.worker,
            limits::IDLE_CONNECTIONS_MAX,
            limits::IDLE_MS_MAX,
        );
        let (at_once, agreed) = match tls {
            Some(PoolTls { start, server }) => match start {
                TlsStart::AtOnce => (Some(server), None),
                TlsStart::Agreed => (None, Some((ldap::start_tls(), server))),
            },
            None => (None, None),
        };
        let server = server.with_tls(at_once);
        let options = PoolOptions {
            start_tls: agreed,
            counters: self.counters.of(&peer),
            peer,
            login,
            connect_timeout: Duration::from_millis(key.connect_timeout_ms),
            connections_max: key.connections_max,
            buffer: Rc::clone(&self.buffer),
            clock: Rc::clone(&self.clock),
        };
        let pool = Rc::new(Pool::new(server, options));
        pools.push(PoolEntry {
            key,
            pool: Rc::clone(&pool),
        });
        Ok(pool)
    }

    fn look_after(&self, worker: &Rc<Worker>) {
        for entry in &*self.pools.borrow() {
            entry.pool.server.look_after(worker);
        }
    }
}

#[cfg(test)]
mod tests;
