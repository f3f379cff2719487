//! The most frequent of names that clients choose, in memory of a fixed size.
//!
//! This is the algorithm Space-Saving (Metwally, Agrawal, El Abbadi 2005): a name that is not in the table
//! takes the place of the rarest one and inherits its count, which is then how much too high its own count
//! may be. Every name that has more than one in [`limits::TOP_NAMES`] of the requests is in the table.

use crate::ledger::Nanos;
use crate::limits;

/// A table of names.
#[derive(Default)]
pub(super) struct Top(Vec<TopEntry>);

/// A name and how often it was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopEntry {
    /// The name, cut to [`limits::TOP_NAME_BYTES_MAX`]. It can hold any bytes.
    pub name: Vec<u8>,
    /// Requests; at most `error` too many.
    pub requests: u64,
    /// How much too high `requests` may be.
    pub error: u64,
    /// Bytes of the responses with their heads.
    pub sent_bytes: u64,
    /// The time of the requests.
    pub time: Nanos,
}

impl Top {
    /// Counts a request that stands for `weight` requests like it.
    pub(super) fn count(&mut self, name: &[u8], weight: u32, sent_bytes: u64, time: Nanos) {
        let weight = u64::from(weight);
        let entry = self.entry(cut(name));
        entry.requests += weight;
        entry.sent_bytes = entry
            .sent_bytes
            .saturating_add(sent_bytes.saturating_mul(weight));
        entry.time = entry.time.saturating_add(time.saturating_mul(weight));
    }

    fn entry(&mut self, name: &[u8]) -> &mut TopEntry {
        let known = self.0.iter().position(|entry| entry.name == name);
        let index = known.unwrap_or_else(|| match self.0.len() < limits::TOP_NAMES {
            true => {
                self.0.push(TopEntry {
                    name: name.to_vec(),
                    ..TopEntry::default()
                });
                self.0.len() - 1
            }
            false => self.replace_rarest(name),
        });
        &mut self.0[index]
    }

    fn replace_rarest(&mut self, name: &[u8]) -> usize {
        let rarest = (0..self.0.len()).min_by_key(|index| self.0[*index].requests);
        let index = rarest.unwrap_or(0);
        let entry = &mut self.0[index];
        entry.name.clear();
        entry.name.extend_from_slice(name);
        entry.error = entry.requests;
        entry.sent_bytes = 0;
        entry.time = 0;
        index
    }

    /// Old requests count half.
    pub(super) fn halve(&mut self) {
        for entry in &mut self.0 {
            entry.requests /= 2;
            entry.error /= 2;
            entry.sent_bytes /= 2;
            entry.time /= 2;
        }
        self.0.retain(|entry| entry.requests > 0);
    }

    /// Adds the counts of another worker.
    pub(super) fn merge(&mut self, other: &Top) {
        for entry in &other.0 {
            match self.0.iter_mut().find(|known| known.name == entry.name) {
                Some(known) => {
                    known.requests += entry.requests;
                    known.error += entry.error;
                    known.sent_bytes += entry.sent_bytes;
                    known.time += entry.time;
                }
                None => self.0.push(entry.clone()),
            }
        }
    }

    /// The most frequent names, the most frequent first.
    pub(super) fn entries(mut self) -> Vec<TopEntry> {
        self.0
            .sort_by(|one, other| (other.requests, &one.name).cmp(&(one.requests, &other.name)));
        self.0.truncate(limits::TOP_SHOWN);
        self.0
    }
}

fn cut(name: &[u8]) -> &[u8] {
    name.get(..limits::TOP_NAME_BYTES_MAX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_names_survive_any_number_of_rare_ones() {
        let mut top = Top::default();
        for number in 0..100_000 {
            let rare = format!("/rare/{number}");
            top.count(rare.as_bytes(), 1, 10, 5);
            if number % 10 == 0 {
                top.count(b"/frequent", 1, 10, 5);
            }
        }
        assert_eq!(top.0.len(), limits::TOP_NAMES);
        let entries = top.entries();
        assert_eq!(entries.len(), limits::TOP_SHOWN);
        assert_eq!(entries[0].name, b"/frequent");
        let true_count = 10_000;
        let sure = entries[0].requests - entries[0].error;
        assert!(
            sure <= true_count && entries[0].requests >= true_count,
            "{entries:?}"
        );
    }

    #[test]
    fn names_are_cut_and_old_ones_fade() {
        let mut top = Top::default();
        top.count(&vec![b'a'; 1 << 20], 8, u64::MAX, 1);
        top.count(b"once", 1, 0, 0);
        assert_eq!(top.0[0].name.len(), limits::TOP_NAME_BYTES_MAX);
        top.halve();
        assert_eq!(top.0.len(), 1);
        assert_eq!(top.0[0].requests, 4);
    }

    #[test]
    fn workers_are_added_up() {
        let (mut one, mut other) = (Top::default(), Top::default());
        one.count(b"a", 1, 10, 1);
        other.count(b"a", 2, 10, 1);
        other.count(b"b", 5, 0, 0);
        one.merge(&other);
        let entries = one.entries();
        let counts: Vec<_> = entries.iter().map(|entry| entry.requests).collect();
        assert_eq!(counts, [5, 3]);
        assert_eq!(entries[1].sent_bytes, 30);
    }
}
