//! A store as the second tier of a cache that several machines share.
//!
//! What is read is the cache's own business: here are bytes under keys. A store that does not answer is
//! an error that the cache takes for a miss.
#![expect(
    clippy::disallowed_methods,
    reason = "files have the time of the system"
)]

use std::pin::Pin;

use bytes::Bytes;

use super::error::StoreError;
#[cfg(test)]
use super::memcached::CasOutcome;
use super::memcached::Memcached;
use super::redis::Redis;
#[cfg(test)]
use petrel_engine::proto::memcached::EXPIRED;
#[cfg(test)]
use petrel_engine::proto::resp::Value;

/// The answer of a tier, when it has come.
pub(crate) type TierAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'a>>;

/// Where several machines put what they share: an `Rc<Redis>` or an `Rc<Memcached>` becomes an `Rc<dyn Tier>`.
/// Errors are those of the store.
pub(crate) trait Tier {
    /// The value of `key`, if it is there.
    fn get<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, Option<Bytes>>;

    /// Writes a value, for so many seconds; 0 is for ever.
    fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], ttl_s: u64) -> TierAnswer<'a, ()>;

    /// Removes a value, if it is there.
    fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()>;

    /// Takes `key` for somebody who knows `token`, if nobody has it: one machine fetches what the others
    /// wait for. It is free again after `ttl_ms` (memcached: full seconds, rounded up).
    #[cfg(test)]
    fn lock<'a>(&'a self, key: &'a [u8], token: &'a [u8], ttl_ms: u64) -> TierAnswer<'a, bool>;

    /// Frees `key`, if it is still `token` that has it. Answers whether it was.
    #[cfg(test)]
    fn unlock<'a>(&'a self, key: &'a [u8], token: &'a [u8]) -> TierAnswer<'a, bool>;

    /// The longest value that can be written, in bytes.
    fn value_bytes_max(&self) -> usize;
}

/// `SET key value EX ttl`, and a lock by `SET key token NX PX ttl`.
impl Tier for Redis {
    fn get<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, Option<Bytes>> {
        Box::pin(async move {
            let value = self.command(&[&b"GET"[..], key]).await?;
            Ok(value.into_bytes().map(Bytes::from))
        })
    }

    fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], ttl_s: u64) -> TierAnswer<'a, ()> {
        Box::pin(async move {
            if value.len() > Tier::value_bytes_max(self) {
                // It could not be read again.
                return Err(self.refused("the value is longer than allowed"));
            }
            let ttl = ttl_s.min(TTL_S_MAX).to_string();
            match ttl_s {
                0 => self.command(&[&b"SET"[..], key, value]).await?,
                _ => {
                    self.command(&[&b"SET"[..], key, value, b"EX", ttl.as_bytes()])
                        .await?
                }
            };
            Ok(())
        })
    }

    fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()> {
        Box::pin(async move {
            // Whether it was there is not asked: a second time does no harm.
            self.command_repeatable(&[&b"DEL"[..], key]).await?;
            Ok(())
        })
    }

    #[cfg(test)]
    fn lock<'a>(&'a self, key: &'a [u8], token: &'a [u8], ttl_ms: u64) -> TierAnswer<'a, bool> {
        Box::pin(async move {
            let ttl = ttl_ms.clamp(1, TTL_S_MAX * 1000).to_string();
            let set = [&b"SET"[..], key, token, b"NX", b"PX", ttl.as_bytes()];
            Ok(self.command(&set).await?.is_ok())
        })
    }

    #[cfg(test)]
    fn unlock<'a>(&'a self, key: &'a [u8], token: &'a [u8]) -> TierAnswer<'a, bool> {
        Box::pin(async move {
            let script = [&b"EVAL"[..], DELETE_IF_EQUAL, b"1", key, token];
            Ok(self.command(&script).await? == Value::Integer(1))
        })
    }

    fn value_bytes_max(&self) -> usize {
        super::limits::BULK_BYTES_MAX
    }
}

/// `set`, and a lock by `add`, which is freed by a `cas` with a time that is over.
impl Tier for Memcached {
    fn get<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, Option<Bytes>> {
        Box::pin(async move {
            let value = Memcached::get(self, key).await?;
            Ok(value.map(|value| value.data))
        })
    }

    fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], ttl_s: u64) -> TierAnswer<'a, ()> {
        Box::pin(async move {
            let expiry = Memcached::expiry_of(ttl_s, wall_s());
            Memcached::set(self, key, value, 0, expiry).await
        })
    }

    fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()> {
        Box::pin(async move {
            Memcached::delete(self, key).await?;
            Ok(())
        })
    }

    #[cfg(test)]
    fn lock<'a>(&'a self, key: &'a [u8], token: &'a [u8], ttl_ms: u64) -> TierAnswer<'a, bool> {
        Box::pin(async move {
            let ttl_s = ttl_ms.div_ceil(1000).max(1);
            let expiry = Memcached::expiry_of(ttl_s, wall_s());
            self.add(key, token, 0, expiry).await
        })
    }

    #[cfg(test)]
    fn unlock<'a>(&'a self, key: &'a [u8], token: &'a [u8]) -> TierAnswer<'a, bool> {
        Box::pin(async move {
            let held = self.gets(key).await?;
            let Some((value, cas)) = held.and_then(|value| Some((value.data, value.cas?))) else {
                return Ok(false);
            };
            if value != token {
                return Ok(false);
            }
            let outcome = self.cas(key, b"", 0, EXPIRED, cas).await?;
            Ok(outcome == CasOutcome::Stored)
        })
    }

    fn value_bytes_max(&self) -> usize {
        Memcached::value_bytes_max(self)
    }
}

/// The Unix time.
fn wall_s() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
const DELETE_IF_EQUAL: &[u8] =
    b"if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";

/// A hundred years. Redis refuses what is beyond its clock.
const TTL_S_MAX: u64 = 100 * 365 * 24 * 3600;
