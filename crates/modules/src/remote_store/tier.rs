//! A store as the second tier of a cache that several machines share.
//!
//! Only bytes and keys are known here; their meaning is known to the cache. If the store does not answer, the
//! cache treats the error as a miss.

use std::pin::Pin;

use bytes::Bytes;

use super::error::StoreError;
use super::memcached::Memcached;
use super::redis::Redis;

/// The future result of an operation on a tier.
pub(crate) type TierAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'a>>;

/// A store that several machines share: `Rc<Redis>` and `Rc<Memcached>` can be used as `Rc<dyn Tier>`. Errors
/// are those of the store.
pub(crate) trait Tier {
    /// The value of `key`, if there is one.
    fn get<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, Option<Bytes>>;

    /// Writes a value that lives for so many seconds; 0: forever.
    fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], ttl_s: u64) -> TierAnswer<'a, ()>;

    /// Removes the value, if there is one.
    fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()>;

    /// The longest value that can be written, in bytes.
    fn value_bytes_max(&self) -> usize;
}

/// Writes with `SET key value EX ttl`.
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
                // A longer value could not be read again.
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
            // The number of removed keys does not matter, so a repetition does no harm.
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

/// A hundred years. Redis refuses times that its clock cannot represent.
const TTL_S_MAX: u64 = 100 * 365 * 24 * 3600;
