//! The client of one or more memcached servers.

mod hashing;
mod keys;
mod options;
mod replies;
mod sending;
mod servers;

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use petrel_engine::clock::Clock;
use petrel_engine::proto::memcached::{Command, Direction, Item, Key, Reply, Write};

use super::error::StoreError;
use super::limits;
use super::pool::Pool;

use keys::{KeyRule, SentKey};
use servers::Ring;

pub(crate) use hashing::HashName;
pub(crate) use keys::KeyForm;
pub(crate) use options::{MemcachedOptions, Wire};
pub(crate) use servers::Distribution;

/// A client of some memcached servers. It is cheap to create, because the connections belong to the worker.
pub(crate) struct Memcached {
    servers: Vec<Rc<Pool>>,
    ring: Ring,
    keys: KeyRule,
    wire: Wire,
    value_bytes_max: usize,
    timeout: Duration,
    opaque: Cell<u32>,
    clock: Rc<Clock>,
}

/// A value that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredValue {
    /// The value.
    pub data: Bytes,
    /// The flags that it was stored with.
    pub flags: u32,
    /// The number for [`Memcached::cas`]; only [`Memcached::gets`] asks for it.
    pub cas: Option<u64>,
}

/// The result of [`Memcached::cas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CasOutcome {
    /// The value was written.
    Stored,
    /// Another client has written the value in the meantime.
    Changed,
    /// The value does not exist any more.
    NotFound,
}

impl Memcached {
    /// `servers` are the pools for the addresses in `options`, of which there is at least one.
    pub(super) fn new(
        options: &MemcachedOptions,
        servers: Vec<Rc<Pool>>,
        clock: &Rc<Clock>,
    ) -> Result<Memcached, String> {
        let keys = KeyRule::new(options.key_form, &options.namespace, &options.prefix);
        let names: Vec<String> = options.servers.iter().map(ToString::to_string).collect();
        let names: Vec<(&str, u16)> = options
            .servers
            .iter()
            .zip(&names)
            .map(|(address, name)| {
                let path = name.strip_prefix("unix:").unwrap_or(name);
                address.host_and_port().unwrap_or((path, 0))
            })
            .collect();
        let hash = options.hash.unwrap_or(options.distribution.hash_default());
        Ok(Memcached {
            servers,
            ring: Ring::new(options.distribution, hash, &names),
            keys: keys.map_err(|error| format!("namespace and prefix leave no key: {error}"))?,
            wire: options.wire,
            value_bytes_max: options.value_bytes_max.min(limits::BULK_BYTES_MAX),
            timeout: Duration::from_millis(options.timeout_ms),
            opaque: Cell::new(0),
            clock: Rc::clone(clock),
        })
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As for all operations here: the key is invalid, or its server does not answer, or answers with an
    /// error.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<StoredValue>, StoreError> {
        self.get_one(key, false).await
    }

    /// The value of `key`, with the number that [`Memcached::cas`] needs.
    ///
    /// # Errors
    /// See [`Memcached::get`].
    pub(crate) async fn gets(&self, key: &[u8]) -> Result<Option<StoredValue>, StoreError> {
        self.get_one(key, true).await
    }

    /// The values of several keys in their order, from all servers at the same time. If a server does not
    /// answer, its values count as missing, as long as another server answers.
    ///
    /// # Errors
    /// A key is invalid, there are too many keys, or no server answers.
    pub(crate) async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<StoredValue>>, StoreError> {
        if keys.len() > limits::KEYS_AT_ONCE_MAX {
            return Err(self.refused(0, "too many keys at once"));
        }
        let sent: Result<Vec<SentKey>, StoreError> =
            keys.iter().map(|key| self.sent(key.as_ref())).collect();
        let sent = sent?;
        let mut shares: Vec<Vec<usize>> = vec![Vec::new(); self.servers.len()];
        for (index, key) in sent.iter().enumerate() {
            if let Some(share) = shares.get_mut(self.ring.server_of(key.without_namespace())) {
                share.push(index);
            }
        }
        let asked = shares
            .iter()
            .enumerate()
            .filter(|(_, share)| !share.is_empty());
        let fetches = asked.map(|(server, share)| {
            let keys: Vec<Key<'_>> = share
                .iter()
                .filter_map(|index| sent.get(*index))
                .map(SentKey::key)
                .collect();
            async move { self.fetch(server, &keys, false).await }
        });
        let fetched = join_all(fetches).await;
        let mut values = vec![None; keys.len()];
        let (mut has_answer, mut failure) = (fetched.is_empty(), None);
        for items in fetched {
            match items {
                Ok(items) => {
                    has_answer = true;
                    hand_out(items, &sent, &mut values);
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if !has_answer => Err(error),
            _ => Ok(values),
        }
    }

    /// Writes a value that lives for `ttl_s` seconds; 0: forever.
    ///
    /// # Errors
    /// See [`Memcached::get`]; also if the value is too long.
    pub(crate) async fn set(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        ttl_s: u64,
    ) -> Result<(), StoreError> {
        let (server, reply) = self.store(Write::Set, key, value, flags, ttl_s).await?;
        match reply {
            Reply::Stored => Ok(()),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Writes as `how` says, if its condition is met ([`Write::Add`]: there is no value yet; all others:
    /// there is one). Returns whether it did.
    ///
    /// # Errors
    /// See [`Memcached::set`].
    pub(crate) async fn store_if(
        &self,
        how: Write,
        key: &[u8],
        value: &[u8],
        flags: u32,
        ttl_s: u64,
    ) -> Result<bool, StoreError> {
        let (server, reply) = self.store(how, key, value, flags, ttl_s).await?;
        match reply {
            Reply::Stored => Ok(true),
            Reply::NotStored | Reply::Exists | Reply::NotFound => Ok(false),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Writes a value, unless another client has written it since [`Memcached::gets`] returned `cas`.
    ///
    /// # Errors
    /// See [`Memcached::set`].
    pub(crate) async fn cas(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        ttl_s: u64,
        cas: u64,
    ) -> Result<CasOutcome, StoreError> {
        let (server, reply) = self
            .store(Write::Cas(cas), key, value, flags, ttl_s)
            .await?;
        match reply {
            Reply::Stored => Ok(CasOutcome::Stored),
            Reply::Exists => Ok(CasOutcome::Changed),
            Reply::NotFound => Ok(CasOutcome::NotFound),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Removes a value. Returns whether there was one.
    ///
    /// # Errors
    /// See [`Memcached::get`].
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<bool, StoreError> {
        let (server, sent) = self.locate(key)?;
        match self
            .one(server, &Command::Delete { key: sent.key() })
            .await?
        {
            Reply::Deleted => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Adds to a value that is a decimal number, or subtracts from it: 2⁶⁴ - 1 is followed by 0, and it does
    /// not go below 0. Returns the new number; `None` if there is no value.
    ///
    /// # Errors
    /// See [`Memcached::get`]; also if the value is no number.
    pub(crate) async fn count(
        &self,
        direction: Direction,
        key: &[u8],
        by: u64,
    ) -> Result<Option<u64>, StoreError> {
        let (server, sent) = self.locate(key)?;
        let key = sent.key();
        let command = Command::Count { direction, key, by };
        match self.one(server, &command).await? {
            Reply::Number(number) => Ok(Some(number)),
            Reply::NotFound => Ok(None),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Changes how long a value lives. Returns whether there is one.
    ///
    /// # Errors
    /// See [`Memcached::get`].
    pub(crate) async fn touch(&self, key: &[u8], ttl_s: u64) -> Result<bool, StoreError> {
        let (server, sent) = self.locate(key)?;
        let (key, expiry_s) = (sent.key(), self.expiry_s(ttl_s));
        match self.one(server, &Command::Touch { key, expiry_s }).await? {
            Reply::Touched => Ok(true),
            Reply::NotFound => Ok(false),
            other => Err(self.unexpected(server, &other)),
        }
    }

    /// Removes all values from all servers after `delay_s` seconds.
    ///
    /// # Errors
    /// One of the servers failed; the others may have done it.
    pub(crate) async fn flush_all(&self, delay_s: u32) -> Result<(), StoreError> {
        let command = Command::FlushAll { delay_s };
        let flushes = (0..self.servers.len()).map(|server| self.one(server, &command));
        let replies = join_all(flushes).await;
        for (server, reply) in replies.into_iter().enumerate() {
            match reply? {
                Reply::Ok => {}
                other => return Err(self.unexpected(server, &other)),
            }
        }
        Ok(())
    }

    /// The version of the first server.
    ///
    /// # Errors
    /// See [`Memcached::get`].
    pub(crate) async fn version(&self) -> Result<Vec<u8>, StoreError> {
        match self.one(0, &Command::Version).await? {
            Reply::Version(release) => Ok(release),
            other => Err(self.unexpected(0, &other)),
        }
    }

    fn expiry_s(&self, ttl_s: u64) -> u32 {
        expiry_of(ttl_s, self.clock.wall_seconds())
    }

    /// The longest value that is sent, in bytes.
    pub(crate) fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// The name of the server that has `key`, for messages.
    ///
    /// # Errors
    /// The key is invalid.
    #[cfg(test)]
    pub(crate) fn server_of(&self, key: &[u8]) -> Result<&str, StoreError> {
        let (server, _) = self.locate(key)?;
        Ok(self.peer(server))
    }
}

impl From<Item> for StoredValue {
    fn from(item: Item) -> StoredValue {
        StoredValue {
            data: item.data.into(),
            flags: item.flags,
            cas: item.cas,
        }
    }
}

/// Puts each item into all places whose key was asked for.
fn hand_out(items: Vec<Item>, sent: &[SentKey], values: &mut [Option<StoredValue>]) {
    let with_key = |mut item: Item| (std::mem::take(&mut item.key), StoredValue::from(item));
    let found: HashMap<Vec<u8>, StoredValue> = items.into_iter().map(with_key).collect();
    for (place, asked) in values.iter_mut().zip(sent) {
        if let Some(value) = found.get(asked.key().bytes()) {
            *place = Some(value.clone());
        }
    }
}

/// The expiry time that is sent for `ttl_s` seconds at this Unix time: memcached takes more than 30 days for
/// a date. 0 is forever.
fn expiry_of(ttl_s: u64, wall_s: u64) -> u32 {
    match ttl_s {
        0..=RELATIVE_S_MAX => ttl_s as u32,
        _ => u32::try_from(wall_s.saturating_add(ttl_s)).unwrap_or(u32::MAX),
    }
}

const RELATIVE_S_MAX: u64 = 30 * 24 * 3600;

#[cfg(test)]
mod tests;
