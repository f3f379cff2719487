//! The region of a worker: where its rings and slots are.

use super::record::RECORD_WORDS_MAX;
use super::ring::RING_WORDS_MIN;

/// Where the parts of a worker's region are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Areas {
    /// The ring of all requests.
    pub recent: Area,
    /// The ring of responses with a status of 500 or more.
    pub errors: Area,
    /// The ring of Petrel's own responses with a status from 400 to 499.
    pub refusals: Area,
    /// The slots of slow requests.
    pub slow: Area,
    /// How many slots each group of hosts has.
    pub slowest: usize,
}

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its first word in the region.
    pub at: usize,
    /// How many words it has.
    pub count: usize,
}

impl Areas {
    /// Divides a region of `count` words: an eighth for each ring of errors, a quarter for slow requests, and
    /// the rest for all requests.
    pub fn of(count: usize, slowest: usize) -> Areas {
        let room = count.saturating_sub(REGION_HEADER_WORDS);
        let eighth = (room / 8).max(RING_WORDS_MIN);
        let slots = match slowest {
            0 => 0,
            slowest => room / 4 / SLOT_WORDS / slowest * slowest,
        };
        let mut at = REGION_HEADER_WORDS;
        let mut area = |count: usize| {
            at += count;
            Area {
                at: at - count,
                count,
            }
        };
        let (errors, refusals) = (area(eighth), area(eighth));
        let slow = area(slots * SLOT_WORDS);
        let left = count.saturating_sub(at);
        Areas {
            recent: Area { at, count: left },
            errors,
            refusals,
            slow,
            slowest,
        }
    }

    /// The numbers that tell readers where the parts are.
    pub fn numbers(&self) -> [u64; AREA_NUMBERS] {
        let Areas {
            recent,
            errors,
            refusals,
            slow,
            slowest,
        } = self;
        [
            recent.at,
            recent.count,
            errors.at,
            errors.count,
            refusals.at,
            refusals.count,
            slow.at,
            slow.count,
            *slowest,
        ]
        .map(|number| number as u64)
    }

    /// Reads them from the header of a region of `count` words. `None`: they lie outside, or over each other.
    pub fn read(header: &[u64], count: usize) -> Option<Areas> {
        let mut numbers = header.get(AT_AREAS..)?.iter();
        let mut next = || usize::try_from(*numbers.next()?).ok();
        let mut area = || {
            Some(Area {
                at: next()?,
                count: next()?,
            })
        };
        let (recent, errors, refusals, slow) = (area()?, area()?, area()?, area()?);
        let mut all = [recent, errors, refusals, slow];
        // An area without words lies somewhere, too: a reader adds its place to the region's.
        if all.iter().any(|area| area.at > count) {
            return None;
        }
        all.sort_by_key(|area| area.at);
        let mut free = REGION_HEADER_WORDS;
        for area in all.into_iter().filter(|area| area.count > 0) {
            if area.at < free {
                return None;
            }
            free = area.at.checked_add(area.count)?;
        }
        (free <= count).then_some(Areas {
            recent,
            errors,
            refusals,
            slow,
            slowest: 0,
        })
    }
}

/// How many words the record in a slot with this state has.
pub fn count_in_slot(state: u64) -> Option<usize> {
    let count = (state >> 1) as usize & 0xffff;
    (state & 1 == 0 && (1..=RECORD_WORDS_MAX).contains(&count)).then_some(count)
}

// The header of a worker's region.
/// Where the parts are: [`Areas::numbers`].
pub const AT_AREAS: usize = 0;
/// How many numbers say that.
pub const AREA_NUMBERS: usize = 9;
/// The number of the worker in its process.
pub const AT_WORKER: usize = 15;
// Each on cache lines of its own worker only: no other worker writes here.
/// The state of the ring of all requests.
pub const AT_RECENT_STATE: usize = 16;
/// The state of the ring of errors.
pub const AT_ERRORS_STATE: usize = 18;
/// The state of the ring of refusals.
pub const AT_REFUSALS_STATE: usize = 20;
/// The request for which the worker works.
pub const AT_NOW: usize = 24;
/// How many words the header of a region has.
pub const REGION_HEADER_WORDS: usize = 32;

// What the worker does now.
/// The id of that request; 0: there is none.
pub const NOW_ID: usize = 0;
/// When it began.
pub const NOW_STARTED: usize = 1;
/// The beginning of its target, two words.
pub const NOW_TARGET: usize = 2;
/// How many words that takes.
pub const NOW_WORDS: usize = 4;

/// A slot: its state, and a record.
pub const SLOT_WORDS: usize = RECORD_WORDS_MAX + 8;
/// How many words a region has at least.
pub const REGION_WORDS_MIN: usize = REGION_HEADER_WORDS + 8 * RING_WORDS_MIN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_outside_is_no_area_even_without_words() {
        let good = Areas::of(100_000, 8).numbers();
        let read = |numbers: &[u64]| {
            let header: Vec<u64> = (0..AT_AREAS)
                .map(|_| 0)
                .chain(numbers.iter().copied())
                .collect();
            Areas::read(&header, 100_000)
        };
        assert!(read(&good).is_some());
        let mut outside = good;
        // The slow requests: no words, at the end of the address space.
        outside[6..8].copy_from_slice(&[u64::MAX, 0]);
        assert!(read(&outside).is_none());
    }
}
