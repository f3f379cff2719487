//! What the page cache may make grow, and how far.

/// Stored variants of one URL (RFC 9111 4.1). The oldest makes room for a newer one.
pub(crate) const VARIANTS_MAX: usize = 32;

/// Field names in Vary. An answer that depends on more is not stored.
pub(super) const VARY_NAMES_MAX: usize = 16;

/// Tags of one answer; more of them are left out, which a warning tells.
pub(super) const TAGS_MAX: usize = 256;

/// Bytes of a key. A request with a longer one is not looked up.
pub(crate) const KEY_BYTES_MAX: usize = 16 * 1024;

/// Answers that wait to be written to disk, or are being sent to the second tier by one worker. More are
/// kept in memory alone.
pub(crate) const WRITES_MAX: usize = 64;

/// Seconds for which an answer must be of use to be kept anywhere but in memory.
pub(crate) const BELOW_S_MIN: u64 = 5;

/// Seconds for which anything stays in the second tier at most.
pub(crate) const TIER_S_MAX: u64 = 7 * 24 * 3600;

/// Milliseconds by which clocks of machines may differ that share a second tier: so much longer a purge
/// counts.
pub(crate) const CLOCKS_MS: u64 = 2000;

/// Tags whose purge is remembered for what is on disk.
pub(crate) const TAG_PURGES_MAX: usize = 4096;

/// Purges that are remembered while the files of earlier processes are looked for. If there are more,
/// those files that were not found yet do not count.
pub(crate) const PURGES_WHILE_LOADING_MAX: usize = 64 * 1024;

/// Milliseconds that a request waits for the second tier at most, however many records it has to ask for.
pub(crate) const TIER_WAIT_MS: u64 = 3000;

/// Keys in each of the two generations that a worker remembers by itself.
pub(crate) const FRONT_KEYS_MAX: usize = 4096;

/// Longer keys are looked up in the shared memory each time.
pub(crate) const FRONT_KEY_BYTES_MAX: usize = 1024;

/// Seconds for which a URL whose answer could not be stored is fetched without waiting for others.
pub(crate) const PASS_S: u32 = 60;

/// Seconds after which a backend is asked again that has failed to bring a page.
pub(crate) const RETRY_S: u32 = 3;

/// How often a request waits for somebody else's fetch before it goes by itself.
pub(crate) const WAITS_MAX: u8 = 3;

/// Seconds after which a background refresh that has not ended may be begun once more.
pub(crate) const REFRESH_S: u32 = 60;

/// Purges that are remembered, so that what was fetched before one is not stored after it.
pub(crate) const PURGES_MAX: usize = 1024;

/// Parts of the shared memory, each with a lock of its own.
pub(crate) const SHARDS: usize = 32;

/// Bytes that an entry takes besides its key, fields and body, roughly.
pub(crate) const ENTRY_BYTES: usize = 512;
