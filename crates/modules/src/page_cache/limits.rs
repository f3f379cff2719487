//! Bounds of everything in the page cache that could grow.

/// Variants of one URL that are stored (RFC 9111 4.1). A further one replaces the oldest.
pub(crate) const VARIANTS_MAX: usize = 32;

/// Bytes of a key. A request with a longer key is not looked up.
pub(crate) const KEY_BYTES_MAX: usize = 16 * 1024;

/// Answers of all workers that wait to be written to disk, and answers that one worker is sending to the
/// second tier. Further ones are kept in memory only.
pub(crate) const WRITES_MAX: usize = 64;

/// An answer is kept outside of memory only if it is of use for at least so many seconds.
pub(crate) const BELOW_S_MIN: u64 = 5;

/// The longest time, in seconds, that anything stays in the second tier.
pub(crate) const TIER_S_MAX: u64 = 7 * 24 * 3600;

/// Milliseconds by which the clocks of machines that share a second tier may differ. A purge covers so much
/// more time.
pub(crate) const CLOCKS_MS: u64 = 2000;

/// Tags whose purge is remembered for answers on disk.
pub(crate) const TAG_PURGES_MAX: usize = 4096;

/// Purges that are remembered while the files of earlier processes are being indexed. If there are more, the
/// files that were not indexed yet count as purged.
pub(crate) const PURGES_WHILE_LOADING_MAX: usize = 64 * 1024;

/// Milliseconds that a request waits for the second tier in total, for all its records.
pub(crate) const TIER_WAIT_MS: u64 = 3000;

/// Keys in each of the two generations of a worker's own table.
pub(crate) const FRONT_KEYS_MAX: usize = 4096;

/// Longer keys are always looked up in the shared memory.
pub(crate) const FRONT_KEY_BYTES_MAX: usize = 1024;

/// Seconds for which requests for a URL do not wait for each other, after its answer could not be stored.
pub(crate) const PASS_S: u32 = 60;

/// Seconds until a backend that has failed to make a page is asked for it again.
pub(crate) const RETRY_S: u32 = 3;

/// How often a request waits for another request's fetch before it fetches for itself.
pub(crate) const WAITS_MAX: u8 = 3;

/// Seconds after which a background refresh that has not ended may be started again.
pub(crate) const REFRESH_S: u32 = 60;

/// Purges that are remembered, so that an answer that was fetched before a purge is not stored after it.
pub(crate) const PURGES_MAX: usize = 1024;

/// Parts of the shared memory, each with its own lock.
pub(crate) const SHARDS: usize = 32;

/// The memory that an entry takes in addition to its key, fields and body, in bytes, roughly.
pub(crate) const ENTRY_BYTES: usize = 512;
