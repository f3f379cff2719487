//! The disk's counters, and the difference between two readings.

use serde::{Deserialize, Serialize};

/// How many spindles a disk has.
pub const SPINDLES: usize = 2;
/// Upper bounds of the classes of lengths by which operations are counted, in bytes; the last class has none.
pub const LENGTHS: [u64; 4] = [4096, 32 * 1024, 128 * 1024, 512 * 1024];

/// One reading of all counters. They count from the start of the disk.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The counters of each spindle.
    pub spindles: [Spindle; SPINDLES],
    /// The kernel's counters of the loop device.
    pub block: Block,
}

/// The counters of a spindle.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spindle {
    /// Reads that it has answered.
    pub operations: u64,
    /// Reads that began where the previous one ended, and did not seek.
    pub sequential: u64,
    /// Bytes of all reads.
    pub bytes: u64,
    /// How many reads were no longer than each of [`LENGTHS`], then the longer ones.
    pub by_length: [u64; LENGTHS.len() + 1],
    /// Nanoseconds, by its own clock, in which it had work.
    pub busy_ns: u64,
    /// Nanoseconds from arrival to end, summed over all operations.
    pub waited_ns: u64,
    /// The most operations that were queued or served at once, since the counters were last read.
    pub depth_max: u64,
    /// How much later than modelled replies were sent, summed over all operations.
    pub late_ns: u64,
    /// The greatest such delay since the counters were last read.
    pub late_ns_max: u64,
}

/// `/sys/block/…/stat`, the fields that iostat shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Reads.
    pub reads: u64,
    /// Reads that were merged with others.
    pub merged: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Milliseconds that reads took, summed.
    pub read_ms: u64,
    /// Milliseconds in which any operation was in progress.
    pub busy_ms: u64,
    /// Milliseconds that all operations took, summed.
    pub queue_ms: u64,
}

/// What happened between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// Its length.
    pub seconds: f64,
    /// Reads that the disk answered.
    pub operations: u64,
    /// Reads that did not seek.
    pub sequential: u64,
    /// Bytes of all reads.
    pub bytes: u64,
    /// How many reads were no longer than each of [`LENGTHS`], then the longer ones.
    pub by_length: [u64; LENGTHS.len() + 1],
    /// The share of the time in which each spindle was busy, from 0 to 1.
    pub utilisation: [f64; SPINDLES],
    /// Mean number of operations that were queued or served, both spindles together.
    pub depth_mean: f64,
    /// The most operations that a spindle had at once.
    pub depth_max: u64,
    /// How much later than modelled replies were sent, mean, in milliseconds.
    pub late_ms_mean: f64,
    /// The greatest delay. A run in which it exceeds [`super::LATE_MS_LIMIT`] is void.
    pub late_ms_max: f64,
    /// iostat's `r/s`.
    pub reads_per_second: f64,
    /// iostat's `rkB/s`.
    pub read_kib_per_second: f64,
    /// iostat's `await`, in milliseconds.
    pub await_ms: f64,
    /// iostat's `avgqu-sz`.
    pub queue_mean: f64,
    /// iostat's `%util`, from 0 to 100.
    pub util_percent: f64,
}

impl Usage {
    /// Reads that had to seek. [`super::simulate()`] knows their cost.
    pub fn seeks(&self) -> u64 {
        self.operations - self.sequential
    }

    /// Whether the machine kept up with the model, so that the run counts.
    pub fn on_time(&self) -> bool {
        self.late_ms_max <= super::LATE_MS_LIMIT
    }
}

impl Counters {
    /// What happened since `earlier`. Maxima cover the time since the counters were read before this reading:
    /// read once before and once after a run.
    pub fn since(&self, earlier: &Self) -> Usage {
        let ns = self.at_ns.saturating_sub(earlier.at_ns).max(1) as f64;
        let mut total = Spindle::default();
        let mut utilisation = [0.0; SPINDLES];
        let pairs = self.spindles.iter().zip(&earlier.spindles);
        for ((now, before), part) in pairs.zip(&mut utilisation) {
            let difference = now.since(before);
            *part = difference.busy_ns as f64 / ns;
            total.add(&difference);
        }
        let block = self.block.since(earlier.block);
        let per_operation_ms = |ns: u64| ns as f64 / 1e6 / total.operations.max(1) as f64;
        let seconds = ns / 1e9;
        Usage {
            seconds,
            operations: total.operations,
            sequential: total.sequential,
            bytes: total.bytes,
            by_length: total.by_length,
            utilisation,
            depth_mean: total.waited_ns as f64 / ns,
            depth_max: total.depth_max,
            late_ms_mean: per_operation_ms(total.late_ns),
            late_ms_max: total.late_ns_max as f64 / 1e6,
            reads_per_second: block.reads as f64 / seconds,
            read_kib_per_second: block.sectors as f64 / 2.0 / seconds,
            await_ms: block.read_ms as f64 / block.reads.max(1) as f64,
            queue_mean: block.queue_ms as f64 / 1e3 / seconds,
            util_percent: (block.busy_ms as f64 / 10.0 / seconds).min(100.0),
        }
    }
}

impl Spindle {
    /// Subtracts sums, and keeps maxima.
    fn since(&self, earlier: &Self) -> Self {
        let mut by_length = self.by_length;
        for (now, before) in by_length.iter_mut().zip(earlier.by_length) {
            *now = now.saturating_sub(before);
        }
        Self {
            operations: self.operations.saturating_sub(earlier.operations),
            sequential: self.sequential.saturating_sub(earlier.sequential),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            by_length,
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
            late_ns: self.late_ns.saturating_sub(earlier.late_ns),
            ..*self
        }
    }

    /// Adds sums, and keeps the greater of maxima.
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.sequential += other.sequential;
        self.bytes += other.bytes;
        for (sum, more) in self.by_length.iter_mut().zip(other.by_length) {
            *sum += more;
        }
        self.busy_ns += other.busy_ns;
        self.waited_ns += other.waited_ns;
        self.depth_max = self.depth_max.max(other.depth_max);
        self.late_ns += other.late_ns;
        self.late_ns_max = self.late_ns_max.max(other.late_ns_max);
    }
}

impl Block {
    /// The fields of `/sys/block/…/stat` (Documentation/block/stat.rst), from Linux 2.6 on.
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text
            .split_ascii_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        let field = |index: usize| fields.get(index).copied();
        Some(Self {
            reads: field(0)?,
            merged: field(1)?,
            sectors: field(2)?,
            read_ms: field(3)?,
            busy_ms: field(9)?,
            queue_ms: field(10)?,
        })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(earlier.reads),
            merged: self.merged.saturating_sub(earlier.merged),
            sectors: self.sectors.saturating_sub(earlier.sectors),
            read_ms: self.read_ms.saturating_sub(earlier.read_ms),
            busy_ms: self.busy_ms.saturating_sub(earlier.busy_ms),
            queue_ms: self.queue_ms.saturating_sub(earlier.queue_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iostat_columns_are_those_of_the_kernel() {
        let text = "  100  7  20000  5000  3 0 24 9  0  900  6000 0 0 0 0\n";
        let block = Block::parse(text).expect("a stat file");
        let expected = Block {
            reads: 100,
            merged: 7,
            sectors: 20_000,
            read_ms: 5000,
            busy_ms: 900,
            queue_ms: 6000,
        };
        assert_eq!(block, expected);
        assert_eq!(Block::parse("1 2 x"), None);
        let now = Counters {
            at_ns: 2_000_000_000,
            block,
            ..Counters::default()
        };
        let usage = now.since(&Counters::default());
        assert_eq!(usage.await_ms, 50.0);
        assert_eq!(usage.queue_mean, 3.0);
        assert_eq!(usage.util_percent, 45.0);
        assert_eq!(usage.read_kib_per_second, 5000.0);
    }

    #[test]
    fn sums_are_differences_and_maxima_are_not() {
        let spindle = |operations, busy_ns, late_ns_max| Spindle {
            operations,
            busy_ns,
            late_ns_max,
            ..Spindle::default()
        };
        let before = Counters {
            at_ns: 1_000_000_000,
            spindles: [spindle(10, 100, 9_000_000), spindle(0, 0, 0)],
            ..Counters::default()
        };
        let after = Counters {
            at_ns: 2_000_000_000,
            spindles: [spindle(30, 500_000_100, 100_000), spindle(5, 0, 400_000)],
            ..Counters::default()
        };
        let usage = after.since(&before);
        assert_eq!(usage.operations, 25);
        assert_eq!(usage.utilisation, [0.5, 0.0]);
        assert_eq!(usage.late_ms_max, 0.4);
        assert!(usage.on_time());
    }
}
