//! The CPU time and memory of a server's processes.
//!
//! The total CPU time comes from each process's CPU clock, which counts nanoseconds and includes threads that
//! have ended. The kernel samples user and system time by ticks only (10 ms in `/proc/PID/stat`), so those
//! only determine the proportion, and `results` pools them over all repeats. Both are exact for sleeping
//! processes only: take snapshots when the server is idle.

use crate::peers::process::{Process, Running, Stat};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs;
use std::ops::AddAssign;
use std::time::Duration;

/// The CPU time of every process of a server at one moment.
pub struct Snapshot(HashMap<Process, Cpu>);

/// CPU time used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// In all.
    pub total: Duration,
    /// Clock ticks in user mode.
    pub user_ticks: u64,
    /// Clock ticks in the kernel.
    pub system_ticks: u64,
}

/// Memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident bytes; pages shared between processes count in each.
    pub resident: u64,
    /// Resident bytes; shared pages are divided among the processes that share them.
    pub proportional: u64,
}

impl Snapshot {
    /// The CPU time of all processes of `server` now.
    pub fn take(server: &Running) -> Self {
        let processes = server.processes().into_iter();
        Self(
            processes
                .filter_map(|process| Some((process, Cpu::of(process.pid)?)))
                .collect(),
        )
    }

    /// The CPU time used since. New processes count from their start; what a process used that has ended is
    /// lost.
    pub fn used_until(&self, later: &Self) -> Cpu {
        let mut used = Cpu::default();
        for (process, now) in &later.0 {
            used += now.since(self.0.get(process).copied().unwrap_or_default());
        }
        used
    }
}

impl Cpu {
    fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let now = clock_getcpuclockid(Pid::from_raw(pid))
            .and_then(ClockId::now)
            .ok()?;
        let (user_ticks, system_ticks) = (stat.user_ticks, stat.system_ticks);
        Some(Self {
            total: Duration::from(now),
            user_ticks,
            system_ticks,
        })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            total: self.total.saturating_sub(earlier.total),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
        }
    }
}

impl AddAssign for Cpu {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.user_ticks += other.user_ticks;
        self.system_ticks += other.system_ticks;
    }
}

/// CPU time of the whole machine since boot, without idling, in clock ticks.
pub fn busy_ticks() -> u64 {
    parse_busy(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// The share of `cores` that neither server nor client used: other programs, and kernel work for no process.
/// It is coarse, because the machine's time is counted in ticks.
pub fn foreign_share(busy_ticks: u64, ours: Duration, elapsed: Duration, cores: usize) -> f64 {
    let busy = busy_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    let available = elapsed.as_secs_f64() * cores as f64;
    ((busy - ours.as_secs_f64()) / available).max(0.0)
}

/// CPU time of the calling thread.
pub fn own_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Memory of all processes of `server`.
pub fn memory(server: &Running) -> Memory {
    let mut all = Memory::default();
    for process in server.processes() {
        let path = format!("/proc/{}/smaps_rollup", process.pid);
        let one = parse_smaps(&fs::read_to_string(path).unwrap_or_default());
        all.resident += one.resident;
        all.proportional += one.proportional;
    }
    all
}

/// proc_stat(5): `cpu`, then user, nice, system, idle, iowait, irq, softirq and steal.
fn parse_busy(text: &str) -> u64 {
    let first = text.lines().next().unwrap_or_default();
    let ticks = first
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(|field| field.parse().unwrap_or(0));
    let idle = |place: &usize| (3..=4).contains(place);
    ticks
        .enumerate()
        .filter(|(place, _): &(usize, u64)| !idle(place))
        .map(|(_, n)| n)
        .sum()
}

/// Parses lines of proc_pid_smaps(5) such as `Pss:     123 kB`.
fn parse_smaps(text: &str) -> Memory {
    let value = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or("0");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        kibibytes * 1024
    };
    Memory {
        resident: value("Rss:"),
        proportional: value("Pss:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_and_proportional_are_read() {
        let text = "00400000-7ffc0000 ---p 00000000 00:00 0 [rollup]\n\
                    Rss:                2048 kB\nPss:                 512 kB\nPss_Dirty: 4 kB\n";
        assert_eq!(
            parse_smaps(text),
            Memory {
                resident: 2 << 20,
                proportional: 512 << 10
            }
        );
        assert_eq!(parse_smaps(""), Memory::default());
    }

    #[test]
    fn idle_and_waiting_ticks_do_not_count_as_busy() {
        assert_eq!(
            parse_busy("cpu  1 2 4 800 1600 8 16 32 64 128\ncpu0 9 9 9\n"),
            63
        );
    }

    #[test]
    fn what_is_not_ours_is_foreign() {
        let second = Duration::from_secs(1);
        let ticks = rustix::param::clock_ticks_per_second();
        let share = foreign_share(ticks * 3 / 2, second, second, 2);
        assert!((share - 0.25).abs() < 1e-9, "{share}");
        assert_eq!(foreign_share(0, second, second, 2), 0.0);
    }

    #[test]
    fn used_time_counts_new_processes_and_ignores_lost_ones() {
        let cpu = |milliseconds, user_ticks| Cpu {
            total: Duration::from_millis(milliseconds),
            user_ticks,
            system_ticks: 1,
        };
        let process = Process::for_test;
        let before = Snapshot(HashMap::from([
            (process(1), cpu(10, 1)),
            (process(2), cpu(50, 9)),
        ]));
        let after = Snapshot(HashMap::from([
            (process(1), cpu(25, 3)),
            (process(3), cpu(7, 2)),
        ]));
        let expected = Cpu {
            total: Duration::from_millis(22),
            user_ticks: 4,
            system_ticks: 1,
        };
        assert_eq!(before.used_until(&after), expected);
    }

    #[test]
    fn the_cpu_clock_of_this_process_runs() {
        let own = std::process::id() as i32;
        let before = Cpu::of(own).unwrap().total;
        let mut sum = 0_u64;
        let started = own_cpu();
        while own_cpu() - started < Duration::from_millis(20) {
            sum = std::hint::black_box(sum + 1);
        }
        let used = Cpu::of(own).unwrap().total - before;
        assert!(used >= Duration::from_millis(15), "{used:?}");
    }
}
