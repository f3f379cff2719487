//! The static table (RFC 7541 appendix A), with the usual indexing of each name.

use super::Indexing::{self, Indexed, Never, NotIndexed};

/// The number of entries. The index of the dynamic table's newest entry is one above.
pub(super) const LENGTH: usize = ENTRIES.len();

/// The entry with this index. The first index is 1.
#[inline]
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    let (name, value, _) = ENTRIES.get(index.wrapping_sub(1))?;
    Some((name.as_bytes(), value.as_bytes()))
}

/// The usual indexing of fields with the name of this entry.
#[inline]
pub(super) fn indexing(index: usize) -> Indexing {
    ENTRIES
        .get(index.wrapping_sub(1))
        .map_or(Indexing::Indexed, |(_, _, indexing)| *indexing)
}

/// The first index of `name`, which is in lower case.
#[inline]
pub(super) fn index_of_name(name: &[u8]) -> Option<usize> {
    let index = usize::from(BY_NAME[slot(name)]);
    let (known, _) = entry(index)?;
    (known == name).then_some(index)
}

/// The index of this whole field, where `first` is the first index of its name.
#[inline]
pub(super) fn index_of_field(first: usize, value: &[u8]) -> Option<usize> {
    let last = match first {
        METHOD | PATH | SCHEME => first + 1,
        STATUS => STATUS_LAST,
        _ => first,
    };
    (first..=last).find(|&index| entry(index).is_some_and(|(_, known)| known == value))
}

/// The place of a name in [`BY_NAME`]: a hash whose factors are chosen so that no two names share a place.
#[inline]
const fn slot(name: &[u8]) -> usize {
    match name {
        [first, .., last] => (name.len() + *first as usize * 10 + *last as usize * 4) % SLOTS,
        _ => 0,
    }
}

const fn by_name() -> [u8; SLOTS] {
    let mut slots = [0; SLOTS];
    let mut index = ENTRIES.len();
    while index > 0 {
        let slot = &mut slots[slot(ENTRIES[index - 1].0.as_bytes())];
        // Two entries share a place only if they have the same name, and then they are neighbours.
        assert!(
            *slot == 0
                || *slot == index as u8 + 1 && ENTRIES[index].0.len() == ENTRIES[index - 1].0.len()
        );
        *slot = index as u8;
        index -= 1;
    }
    slots
}

/// For each place the first index of the name that belongs there, or 0.
static BY_NAME: [u8; SLOTS] = by_name();

const SLOTS: usize = 256;

const METHOD: usize = 2;
const PATH: usize = 4;
const SCHEME: usize = 6;
/// The first index of `:status`.
pub(super) const STATUS: usize = 8;
const STATUS_LAST: usize = 14;
pub(super) const CONTENT_LENGTH: usize = 28;
pub(super) const SET_COOKIE: usize = 55;

/// Names and values, from index 1 on, with the usual indexing: fields that differ from one response to the
/// next or are for one client are not indexed, and secrets never.
const ENTRIES: [(&str, &str, Indexing); 61] = [
    (":authority", "", Indexed),
    (":method", "GET", Indexed),
    (":method", "POST", Indexed),
    (":path", "/", NotIndexed),
    (":path", "/index.html", NotIndexed),
    (":scheme", "http", Indexed),
    (":scheme", "https", Indexed),
    (":status", "200", Indexed),
    (":status", "204", Indexed),
    (":status", "206", Indexed),
    (":status", "304", Indexed),
    (":status", "400", Indexed),
    (":status", "404", Indexed),
    (":status", "500", Indexed),
    ("accept-charset", "", Indexed),
    ("accept-encoding", "gzip, deflate", Indexed),
    ("accept-language", "", Indexed),
    ("accept-ranges", "", Indexed),
    ("accept", "", Indexed),
    ("access-control-allow-origin", "", Indexed),
    ("age", "", NotIndexed),
    ("allow", "", Indexed),
    ("authorization", "", Never),
    ("cache-control", "", Indexed),
    ("content-disposition", "", NotIndexed),
    ("content-encoding", "", Indexed),
    ("content-language", "", Indexed),
    ("content-length", "", NotIndexed),
    ("content-location", "", Indexed),
    ("content-range", "", NotIndexed),
    ("content-type", "", Indexed),
    ("cookie", "", Never),
    ("date", "", NotIndexed),
    ("etag", "", NotIndexed),
    ("expect", "", Indexed),
    ("expires", "", NotIndexed),
    ("from", "", Indexed),
    ("host", "", Indexed),
    ("if-match", "", NotIndexed),
    ("if-modified-since", "", NotIndexed),
    ("if-none-match", "", NotIndexed),
    ("if-range", "", NotIndexed),
    ("if-unmodified-since", "", NotIndexed),
    ("last-modified", "", NotIndexed),
    ("link", "", Indexed),
    ("location", "", NotIndexed),
    ("max-forwards", "", Indexed),
    ("proxy-authenticate", "", Indexed),
    ("proxy-authorization", "", Never),
    ("range", "", NotIndexed),
    ("referer", "", NotIndexed),
    ("refresh", "", Indexed),
    ("retry-after", "", NotIndexed),
    ("server", "", Indexed),
    ("set-cookie", "", NotIndexed),
    ("strict-transport-security", "", Indexed),
    ("transfer-encoding", "", Indexed),
    ("user-agent", "", Indexed),
    ("vary", "", Indexed),
    ("via", "", Indexed),
    ("www-authenticate", "", Indexed),
];
