//! The memory of a recorder: a header, a directory of regions, and the regions.

use super::stage::Stage;

/// `petrelre`, as the bytes of a word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"petrelre");
/// Changes with the layout of this memory or of the records, which have the numbers of stages.
pub const LAYOUT_VERSION: u64 = 3;
const _: () = assert!(
    Stage::ALL.len() == 26,
    "the list of stages has changed: change the version, too"
);

// The header.
/// [`MAGIC`].
pub const AT_MAGIC: usize = 0;
/// [`LAYOUT_VERSION`].
pub const AT_VERSION: usize = 1;
/// How many words there are.
pub const AT_COUNT: usize = 2;
/// The first word that belongs to no region.
pub const AT_FREE: usize = 3;
/// How many entries of the directory are used.
pub const AT_ENTRIES: usize = 4;
/// The number of the next claim of a ring or of counters that have an owner.
pub const AT_CLAIMS: usize = 5;
/// How many words the header has; the directory is behind it.
pub const HEADER_WORDS: usize = 8;

// An entry of the directory.
/// The kind of the region; 0: the entry is not complete.
pub const ENTRY_KIND: usize = 0;
/// The name of the region, three words.
pub const ENTRY_NAME: usize = 1;
/// The hash of the layout of counters; the number of the last claim of a ring.
pub const ENTRY_LAYOUT: usize = 4;
/// The first word of the region.
pub const ENTRY_OFFSET: usize = 5;
/// How many words the region has.
pub const ENTRY_COUNT: usize = 6;
/// Whom a ring belongs to, or belonged to.
pub const ENTRY_OWNER: usize = 7;
/// How many words an entry has.
pub const ENTRY_WORDS: usize = 8;

// Kinds of regions.
/// Counters.
pub const COUNTERS: u64 = 1;
/// What a worker has recorded.
pub const RING: u64 = 2;

/// How many entries the directory has room for.
pub const ENTRIES_MAX: usize = 1023;
/// Where regions begin.
pub const REGIONS: usize = HEADER_WORDS + ENTRIES_MAX * ENTRY_WORDS;
