//! A store as the second tier of a cache that several machines share.
//!
//! What is read is the cache's own business: here are bytes under keys. A store that does not answer is
//! an error that the cache takes for a miss.

use std::pin::Pin;

use bytes::Bytes;

use super::error::StoreError;
use super::memcached::Memcached;
use super::redis::Redis;

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

    /// The longest value that can be written, in bytes.
    fn value_bytes_max(&self) -> usize;
}

/// `SET key value EX ttl`.
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

    fn value_bytes_max(&self) -> usize {
        super::limits::BULK_BYTES_MAX
    }
}

impl Tier for Memcached {
    fn get<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, Option<Bytes>> {
        Box::pin(async move {
            let value = Memcached::get(self, key).await?;
            Ok(value.map(|value| value.data))
        })
    }

    fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], ttl_s: u64) -> TierAnswer<'a, ()> {
        Box::pin(Memcached::set(self, key, value, 0, ttl_s))
    }

    fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()> {
        Box::pin(async move {
            Memcached::delete(self, key).await?;
            Ok(())
        })
    }

    fn value_bytes_max(&self) -> usize {
        Memcached::value_bytes_max(self)
    }
}

/// A hundred years. Redis refuses what is beyond its clock.
const TTL_S_MAX: u64 = 100 * 365 * 24 * 3600;
