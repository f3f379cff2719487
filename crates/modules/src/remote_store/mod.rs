//! Clients of Redis and memcached, for scripts and for caches that several machines share; and of LDAP, for log-ins.
//!
//! [`Stores::of`] a worker has its connections. [`Redis`] and [`Memcached`] are handles that borrow them,
//! an operation at a time; their operations are futures to be polled on the worker's thread. The
//! protocols are `petrel_proto`'s; nothing here knows what is stored, or why.
//!
//! | files | |
//! |---|---|
//! | [`redis`](Redis), [`memcached`](Memcached), [`ldap`](Ldap) | what a program calls |
//! | [`tier`] | what both can do alike, for caches |
//! | [`RemoteServer`], [`Link`] | a server and the connections to it, also for what scripts ask over HTTP |
//! | `pool`, `link` | who gets a connection to a store, and one exchange on one |
//! | `circuit` | whether a server is worth trying |
//! | `address`, `error`, [`limits`], [`counters`] | |
//!
//! # What must stay true
//!
//! - A connection is used again only after an exchange whose replies are complete, with nothing left
//!   over and nothing unsent. An operation that ends in any other way, also by being dropped, closes it:
//!   no operation ever reads what was meant for another one.
//! - An operation is sent again by one rule (`pool::Operation::may_be_repeated`), once, on a new
//!   connection, and only if the first one was a kept one.
//! - Every operation has an end: one time-out spans the wait for a connection, connecting and the reply.
//! - A server that is away costs one attempt a pause; all other operations are told at once.
//! - Memory is taken for what has come, not for what is announced, and ends at `limits`.

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
#[cfg(test)]
mod testing;
pub(crate) mod tier;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::gateway::resolve::FollowedNames;
use petrel_engine::clock::Clock;
use petrel_engine::log::LogHandle;
use petrel_engine::tls::TlsServer;
use petrel_engine::worker::Worker;

pub(crate) use address::StoreAddress;
pub(crate) use error::StoreError;
#[cfg(test)]
pub(crate) use error::{Kind, OperationStage};
pub(crate) use ldap::{Ldap, LdapOptions, LdapTls, TlsStart};
pub(crate) use link::Link;
pub(crate) use memcached::{
    CasOutcome, Distribution, HashName, KeyForm, Memcached, MemcachedOptions, StoredValue, Wire,
};
pub(crate) use petrel_engine::proto::resp::Value;
pub(crate) use redis::{Pipeline, Redis, RedisOptions};
pub(crate) use server::RemoteServer;

use counters::StoreCounters;
use ldap::PoolTls;
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

/// Clients that would make the same connections share them.
#[derive(Clone, PartialEq, Eq)]
struct PoolKey {
    kind: &'static str,
    address: StoreAddress,
    login: Vec<u8>,
    /// A memcached speaks on a connection what it heard there first.
    wire: Option<Wire>,
    tls: Option<LdapTls>,
    connect_timeout_ms: u64,
    connections_max: usize,
}

impl Stores {
    /// Those of `worker`. To be kept by a caller that asks often.
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

    /// A Redis. Nothing is sent yet.
    ///
    /// # Errors
    /// There are too many servers already, or its name cannot be looked up for lack of a thread.
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

    /// One memcached or several. Nothing is sent yet.
    ///
    /// # Errors
    /// The options name no server, too many, or a namespace and prefix that leave no key; or see
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

    /// An LDAP server; `tls` if its options have it. Nothing is sent yet.
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
        Ok(Rc::new(Ldap::new(searching, binding, options.timeout)))
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
            // The oldest that no handle and no operation has.
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
