//! A spindle: how long its operations take, and in which order it serves them.
//!
//! It has no clock and reads nothing: operations come in with the time of their arrival, and go out with the
//! time at which they end. All times are nanoseconds from a start that the caller chooses. `spindle` drives
//! it in real time, `simulate` as fast as possible.
//!
//! An operation takes a seek of 1 + 8·√(distance/capacity) ms, a rotation of up to 8.33 ms (7,200 turns a
//! minute), and the transfer of its length at 60 MB/s. One that begins where the previous one ended needs
//! neither seek nor rotation. The next operation is the nearest of the 32 that have waited longest, unless
//! one has waited for more than two seconds.

use std::collections::VecDeque;

/// The shortest seek, in milliseconds: acceleration and settling.
const SEEK_MS_MIN: f64 = 1.0;
/// What a seek over the whole disk takes in addition, in milliseconds.
const SEEK_MS_RANGE: f64 = 8.0;
/// One turn, in milliseconds.
const ROTATION_MS: f64 = 8.33;
/// The transfer rate.
pub const BYTES_PER_SECOND: f64 = 60e6;
/// The spindle chooses among this many operations that have waited longest.
const WINDOW: usize = 32;
/// An operation that has waited longer, in nanoseconds, is next.
const AGE_NS_MAX: u64 = 2_000_000_000;

/// A requested read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<T> {
    /// Its start, in bytes from the spindle's start.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
    /// When it arrived.
    pub arrived: u64,
    /// The caller's identification.
    pub tag: T,
}

/// A read with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served<T> {
    /// The read.
    pub operation: Operation<T>,
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
    /// Whether it began where the previous one ended.
    pub sequential: bool,
}

/// A spindle and its queue. The caller limits the queue: the kernel has at most 128 requests of a loop device
/// in progress.
#[derive(Debug)]
pub struct Spindle<T> {
    capacity: u64,
    /// The position at which the last operation ended, in bytes.
    head: u64,
    /// When it ended.
    free_at: u64,
    random: Random,
    /// In the order of arrival.
    waiting: VecDeque<Operation<T>>,
}

impl<T> Spindle<T> {
    /// An idle spindle of this capacity. `seed` determines its rotation.
    pub fn new(capacity: u64, seed: u64) -> Self {
        Self {
            capacity: capacity.max(1),
            head: 0,
            free_at: 0,
            random: Random::new(seed),
            waiting: VecDeque::new(),
        }
    }

    /// Puts an operation into the queue. Operations must be pushed in the order of their arrival.
    pub fn push(&mut self, operation: Operation<T>) {
        self.waiting.push_back(operation);
    }

    /// Lets no operation begin before `time`.
    pub fn busy_until(&mut self, time: u64) {
        self.free_at = self.free_at.max(time);
    }

    /// The number of queued operations.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the next operation and tells when it ends. Everything that has arrived by its start must have
    /// been pushed. Operations that arrived later are ignored, even if they are in the queue already because
    /// the caller is late.
    pub fn next(&mut self) -> Option<Served<T>> {
        let start = self.free_at.max(self.waiting.front()?.arrived);
        let operation = self.waiting.remove(self.choose(start))?;
        let sequential = operation.at == self.head;
        let service = if sequential {
            0.0
        } else {
            self.seek_ms(operation.at) + self.random.unit() * ROTATION_MS
        };
        let transfer = operation.bytes as f64 / BYTES_PER_SECOND;
        let end = start + (service * 1e6 + transfer * 1e9) as u64;
        self.head = operation.at + operation.bytes;
        self.free_at = end;
        Some(Served {
            operation,
            start,
            end,
            sequential,
        })
    }

    /// The operation that is next if the head is free at `start`.
    fn choose(&self, start: u64) -> usize {
        let oldest = self.waiting.front().map_or(0, |oldest| oldest.arrived);
        if start.saturating_sub(oldest) > AGE_NS_MAX {
            return 0;
        }
        let here = self.waiting.iter().take(WINDOW).enumerate();
        here.take_while(|(_, operation)| operation.arrived <= start)
            .min_by_key(|(_, operation)| operation.at.abs_diff(self.head))
            .map_or(0, |(index, _)| index)
    }

    fn seek_ms(&self, at: u64) -> f64 {
        let distance = at.abs_diff(self.head) as f64 / self.capacity as f64;
        SEEK_MS_MIN + SEEK_MS_RANGE * distance.sqrt()
    }
}

/// Pseudo-random numbers, the same for the same seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose sequence depends on the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from 0 to 1, exclusive.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number from 0 to `end`, exclusive; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: no value is more frequent than another by more than end / 2^64.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const CAPACITY: u64 = 1_000_000_000;

    fn spindle() -> Spindle<&'static str> {
        Spindle::new(CAPACITY, 7)
    }

    fn read(at: u64, arrived: u64, tag: &'static str) -> Operation<&'static str> {
        Operation {
            at,
            bytes: 60_000,
            arrived,
            tag,
        }
    }

    #[test]
    fn a_read_takes_seek_rotation_and_transfer() {
        // Over a quarter of the disk: 1 + 8 * 0.5 ms; 60,000 bytes take 1 ms.
        for seed in 0..1000 {
            let mut spindle = Spindle::new(CAPACITY, seed);
            spindle.push(read(CAPACITY / 4, 10, "a"));
            let served = spindle.next().expect("it waits");
            let took = served.end - served.start;
            assert_eq!(served.start, 10);
            assert!((6 * MS..=14_330_000).contains(&took), "{took}");
        }
    }

    #[test]
    fn rotation_is_even_and_the_same_for_a_seed() {
        let mut random = Random::new(3);
        let mean = (0..100_000).map(|_| random.unit()).sum::<f64>() / 100_000.0;
        assert!((0.495..0.505).contains(&mean), "{mean}");
        let run = |seed| {
            let mut spindle = Spindle::new(CAPACITY, seed);
            spindle.push(read(5000, 0, "a"));
            spindle.next().map(|served| served.end)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn what_goes_on_needs_no_seek() {
        let mut spindle = spindle();
        spindle.push(read(500_000, 0, "first"));
        let first = spindle.next().expect("it waits");
        spindle.push(read(560_000, first.end + 5 * MS, "second"));
        let second = spindle.next().expect("it waits");
        assert!(second.sequential && !first.sequential);
        // It does not begin before it has arrived.
        assert_eq!(second.start, first.end + 5 * MS);
        assert_eq!(second.end, second.start + MS);
    }

    #[test]
    fn one_begins_where_the_one_before_ends_however_late_the_caller_is() {
        let mut spindle = spindle();
        spindle.push(read(1_000_000, 0, "a"));
        let first = spindle.next().expect("it waits");
        spindle.push(read(900_000_000, 1, "far"));
        // Nearer, but it has not arrived when the head is free.
        spindle.push(read(1_060_000, first.end + 1, "near"));
        let second = spindle.next().expect("it waits");
        assert_eq!((second.operation.tag, second.start), ("far", first.end));
        assert_eq!(spindle.next().map(|served| served.start), Some(second.end));
        assert_eq!(spindle.next(), None);
    }

    #[test]
    fn the_nearest_of_the_window_is_next() {
        let mut spindle = spindle();
        for n in 0..WINDOW as u64 {
            spindle.push(read(CAPACITY - n * 1000, 0, "far"));
        }
        // The nearest of all, but the 33rd in the queue.
        spindle.push(read(1000, 0, "near"));
        let served = spindle.next().expect("it waits");
        assert_eq!(served.operation.at, CAPACITY - 31_000);
        // Now it is within the window, but the others are nearer.
        let served = spindle.next().expect("it waits");
        assert_eq!(served.operation.tag, "far");
        assert_eq!(spindle.waiting(), 31);
    }

    #[test]
    fn an_operation_that_has_waited_for_two_seconds_is_next() {
        let mut spindle = spindle();
        spindle.push(read(CAPACITY, 0, "far"));
        let mut near = 0;
        let tags = std::iter::from_fn(|| {
            near += 120_000;
            spindle.push(read(near, 0, "near"));
            spindle
                .next()
                .map(|served| (served.operation.tag, served.start))
        });
        let mut tags = tags.skip_while(|(tag, _)| *tag == "near");
        let (tag, start) = tags.next().expect("it does not starve");
        assert_eq!(tag, "far");
        // An operation takes 15 ms at most.
        assert!((2000 * MS..2015 * MS).contains(&start), "{start}");
    }
}
