//! The entries of a directory in compact form: a hundred thousand of them take a few megabytes.

use super::view::{Column, Order, Sort};

/// The entries of a directory.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// All names, one after the other.
    names: Vec<u8>,
    list: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    name_start: u32,
    name_len: u16,
    is_directory: bool,
    size: u64,
    modified_s: u64,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListingEntry<'e> {
    pub(crate) name: &'e [u8],
    pub(crate) is_directory: bool,
    /// Bytes.
    pub(crate) size: u64,
    /// Seconds since 1970.
    pub(crate) modified_s: u64,
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds an entry. A name that is longer than any file system allows is left out.
    pub(crate) fn push(&mut self, entry: ListingEntry<'_>) {
        let Ok(name_start) = u32::try_from(self.names.len()) else {
            return;
        };
        let Ok(name_len) = u16::try_from(entry.name.len()) else {
            return;
        };
        self.names.extend_from_slice(entry.name);
        self.list.push(Slot {
            name_start,
            name_len,
            is_directory: entry.is_directory,
            size: entry.size,
            modified_s: entry.modified_s,
        });
    }

    pub(crate) fn get(&self, index: usize) -> Option<ListingEntry<'_>> {
        self.list.get(index).map(|slot| slot.entry(&self.names))
    }

    /// The indexes of the entries in order. `type_of` is only called when types are compared.
    pub(crate) fn sorted(
        &self,
        sort: Sort,
        type_of: impl Fn(&ListingEntry<'_>) -> Vec<u8>,
    ) -> Vec<u32> {
        let by_name = |slot: &Slot| (!slot.is_directory, slot.entry(&self.names).name);
        let mut list: Vec<(&Slot, u32)> = self.list.iter().zip(0..).collect();
        match sort.column {
            Column::Name => list.sort_unstable_by(|(a, _), (b, _)| by_name(a).cmp(&by_name(b))),
            Column::Modified => list.sort_unstable_by(|(a, _), (b, _)| {
                (a.modified_s, by_name(a)).cmp(&(b.modified_s, by_name(b)))
            }),
            Column::Size => {
                let size = |slot: &Slot| (!slot.is_directory).then_some(slot.size);
                list.sort_unstable_by(|(a, _), (b, _)| {
                    (size(a), by_name(a)).cmp(&(size(b), by_name(b)))
                });
            }
            Column::Type => list.sort_by_cached_key(|(slot, _)| {
                let entry = slot.entry(&self.names);
                (!slot.is_directory, type_of(&entry), entry.name.to_vec())
            }),
        }
        if sort.order == Order::Descending {
            list.reverse();
        }
        list.into_iter().map(|(_, index)| index).collect()
    }
}

impl Slot {
    fn entry<'n>(&self, names: &'n [u8]) -> ListingEntry<'n> {
        let start = self.name_start as usize;
        ListingEntry {
            name: names
                .get(start..start + usize::from(self.name_len))
                .unwrap_or_default(),
            is_directory: self.is_directory,
            size: self.size,
            modified_s: self.modified_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(column: Column, order: Order) -> Vec<String> {
        let mut entries = Entries::default();
        for (name, is_directory, size, modified_s) in [
            ("b", false, 1, 30),
            ("a", false, 20, 20),
            ("z", true, 4096, 10),
            ("B", false, 3, 20),
        ] {
            entries.push(ListingEntry {
                name: name.as_bytes(),
                is_directory,
                size,
                modified_s,
            });
        }
        let sorted = entries.sorted(Sort { column, order }, |entry| {
            entry.name.to_ascii_lowercase()
        });
        sorted
            .into_iter()
            .filter_map(|index| entries.get(index as usize))
            .map(|entry| String::from_utf8_lossy(entry.name).into_owned())
            .collect()
    }

    #[test]
    fn every_column_has_its_order() {
        assert_eq!(sorted(Column::Name, Order::Ascending), ["z", "B", "a", "b"]);
        assert_eq!(
            sorted(Column::Name, Order::Descending),
            ["b", "a", "B", "z"]
        );
        assert_eq!(
            sorted(Column::Modified, Order::Ascending),
            ["z", "B", "a", "b"]
        );
        assert_eq!(
            sorted(Column::Size, Order::Descending),
            ["a", "B", "b", "z"]
        );
        assert_eq!(sorted(Column::Type, Order::Ascending), ["z", "a", "B", "b"]);
    }
}
