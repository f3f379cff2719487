//! What machine and disk did during a measurement, in the columns of iostat.
//!
//! The columns about spindles come from the modelled disk itself, those about the block device and the
//! processors from the kernel. Of the kernel's files this module reads only `/proc/stat`.

use crate::disk::{Counters, Spindle, Usage};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// One reading of everything.
pub struct Reading {
    at: Instant,
    ticks: Ticks,
    disk: Counters,
}

/// What happened between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// The shares of the processors' time, per cent.
    pub processors: Shares,
    /// One row per spindle.
    pub spindles: Vec<Row>,
    /// The whole disk, with the kernel's counters of the device.
    pub disk: Usage,
}

/// Clock ticks of all processors since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks([u64; FIELDS]);

/// iostat's `avg-cpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// In programs.
    pub user: f64,
    /// In programs of low priority.
    pub nice: f64,
    /// In the kernel, including interrupts.
    pub system: f64,
    /// Idle while a disk read was pending.
    pub iowait: f64,
    /// Taken by the host for other machines.
    pub steal: f64,
    /// Idle.
    pub idle: f64,
}

/// A line of `iostat -x`. Nothing is written, and reads are merged above the spindles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// Reads per second.
    pub reads: f64,
    /// Sectors of 512 bytes per second.
    pub sectors: f64,
    /// Sectors per read.
    pub request_size: f64,
    /// Mean number of reads that were queued or served.
    pub queue: f64,
    /// Milliseconds from a read's arrival to its end.
    pub waited: f64,
    /// Milliseconds of work per read.
    pub service: f64,
    /// Share of the time with work, per cent.
    pub utilisation: f64,
}

impl Reading {
    /// Reads everything now. `disk` are the disk's counters, read at the same time.
    pub fn new(disk: Counters) -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            at: Instant::now(),
            ticks: Ticks::parse(&text),
            disk,
        }
    }

    /// What happened between this reading and a later one.
    pub fn until(&self, later: &Self) -> Seen {
        let seconds = later.at.saturating_duration_since(self.at).as_secs_f64();
        let spindles = self.disk.spindles.iter().zip(&later.disk.spindles);
        Seen {
            processors: later.ticks.since(self.ticks),
            spindles: spindles
                .map(|(before, after)| Row::between(before, after, seconds))
                .collect(),
            disk: later.disk.since(&self.disk),
        }
    }
}

impl Ticks {
    /// proc_stat(5): `cpu`, then user, nice, system, idle, iowait, irq, softirq and steal.
    fn parse(text: &str) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let mut ticks = [0; FIELDS];
        for (tick, field) in ticks.iter_mut().zip(first.split_whitespace().skip(1)) {
            *tick = field.parse().unwrap_or(0);
        }
        Self(ticks)
    }

    fn since(self, earlier: Self) -> Shares {
        let mut spent = [0.0; FIELDS];
        for ((spent, now), before) in spent.iter_mut().zip(self.0).zip(earlier.0) {
            *spent = now.saturating_sub(before) as f64;
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = spent;
        let share = |ticks: f64| 100.0 * ticks / spent.iter().sum::<f64>().max(1.0);
        Shares {
            user: share(user),
            nice: share(nice),
            system: share(system + irq + softirq),
            iowait: share(iowait),
            steal: share(steal),
            idle: share(idle),
        }
    }
}

impl Row {
    fn between(before: &Spindle, after: &Spindle, seconds: f64) -> Self {
        let difference = |of: fn(&Spindle) -> u64| of(after).saturating_sub(of(before)) as f64;
        let operations = difference(|spindle| spindle.operations);
        let sectors = difference(|spindle| spindle.bytes) / 512.0;
        let busy_ms = difference(|spindle| spindle.busy_ns) / 1e6;
        let waited_ms = difference(|spindle| spindle.waited_ns) / 1e6;
        let [each, seconds] = [operations.max(1.0), seconds.max(1e-9)];
        Self {
            reads: operations / seconds,
            sectors: sectors / seconds,
            request_size: sectors / each,
            queue: waited_ms / 1e3 / seconds,
            waited: waited_ms / each,
            service: busy_ms / each,
            utilisation: busy_ms / 10.0 / seconds,
        }
    }
}

impl Seen {
    /// The mean of the spindles' utilisation, per cent.
    pub fn utilisation(&self) -> f64 {
        let each = self.spindles.iter().map(|row| row.utilisation);
        each.sum::<f64>() / self.spindles.len().max(1) as f64
    }

    /// Milliseconds from a read's arrival at the disk to its end.
    pub fn waited(&self) -> f64 {
        let reads: f64 = self.spindles.iter().map(|row| row.reads).sum();
        let waited = self.spindles.iter().map(|row| row.waited * row.reads);
        waited.sum::<f64>() / reads.max(1e-9)
    }

    /// Mean number of reads at the disk, for all spindles.
    pub fn queue(&self) -> f64 {
        self.spindles.iter().map(|row| row.queue).sum()
    }
}

/// Formats as `iostat -xm` does.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shares {
            user,
            nice,
            system,
            iowait,
            steal,
            idle,
        } = self.processors;
        writeln!(f, "avg-cpu:  %user   %nice %system %iowait  %steal   %idle")?;
        writeln!(
            f,
            "        {user:>7.2} {nice:>7.2} {system:>7.2} {iowait:>7.2} {steal:>7.2} {idle:>7.2}"
        )?;
        writeln!(
            f,
            "Device:   rrqm/s wrqm/s    r/s    w/s    rsec/s  wsec/s  rMB/s  wMB/s avgrq-sz avgqu-sz  await  svctm  %util"
        )?;
        for (row, name) in self.spindles.iter().zip('a'..) {
            writeln!(f, "sd{name}     {row}")?;
        }
        let disk = &self.disk;
        let sectors = disk.read_kib_per_second * 2.0;
        let device = Row {
            reads: disk.reads_per_second,
            sectors,
            request_size: sectors / disk.reads_per_second.max(1e-9),
            queue: disk.queue_mean,
            waited: disk.await_ms,
            service: 10.0 * disk.util_percent / disk.reads_per_second.max(1e-9),
            utilisation: disk.util_percent,
        };
        writeln!(f, "loop    {device}")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            reads,
            sectors,
            request_size,
            queue,
            waited,
            service,
            utilisation,
        } = self;
        let megabytes = sectors / 2048.0;
        write!(
            f,
            "{:>8.2} {:>6.2} {reads:>6.2} {:>6.2} {sectors:>9.2} {:>7.2} {megabytes:>6.2} {:>6.2} \
             {request_size:>8.2} {queue:>8.2} {waited:>6.2} {service:>6.2} {utilisation:>6.2}",
            0.0, 0.0, 0.0, 0.0, 0.0
        )
    }
}

/// The fields in the first line of `/proc/stat`, without those for guests, which are included in user time.
const FIELDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_processors_are_those_of_iostat() {
        let before = Ticks::parse("cpu  100 0 100 1000 50 0 0 0 7 7\ncpu0 9 9 9\n");
        let after = Ticks::parse("cpu  110 5 115 1030 90 2 3 5 9 9\n");
        let shares = after.since(before);
        assert!((shares.iowait - 40.0 / 1.1).abs() < 1e-9, "{shares:?}");
        assert!((shares.system - 20.0 / 1.1).abs() < 1e-9, "{shares:?}");
        let Shares {
            user,
            nice,
            system,
            iowait,
            steal,
            idle,
        } = shares;
        assert!((user + nice + system + iowait + steal + idle - 100.0).abs() < 1e-9);
        assert_eq!(
            before.since(after),
            Shares::default(),
            "time does not run backwards"
        );
    }

    #[test]
    fn a_spindles_row_is_that_of_iostat() {
        let after = Spindle {
            operations: 200,
            bytes: 200 * 100 * 512,
            busy_ns: 1_500_000_000,
            waited_ns: 20_000_000_000,
            ..Spindle::default()
        };
        let row = Row::between(&Spindle::default(), &after, 2.0);
        let expected = Row {
            reads: 100.0,
            sectors: 10_000.0,
            request_size: 100.0,
            queue: 10.0,
            waited: 100.0,
            service: 7.5,
            utilisation: 75.0,
        };
        assert_eq!(row, expected);
        let line = row.to_string();
        assert!(line.contains("100.00") && line.ends_with("75.00"), "{line}");
    }
}
