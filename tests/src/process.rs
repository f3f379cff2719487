//! What the server's processes hold and use, according to `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A process and all its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessTree {
    /// The process ids, beginning with that of the first process.
    pub pids: Vec<u32>,
}

/// What the processes of a tree hold, to be compared before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Number of processes.
    pub processes: usize,
    /// Open descriptors by kind: a path, `socket`, `pipe`, `anon_inode:[eventpoll]`.
    pub descriptors: BTreeMap<String, usize>,
}

impl Holdings {
    /// Whether they are the same as `before`. Open files below `www` may be fewer: when another test mounts something,
    /// the server forgets the files that it knows.
    pub fn are_as(&self, before: &Holdings) -> bool {
        let is_served = |name: &str| name.contains("/www/");
        let others = |holdings: &Holdings| {
            let mut others = holdings.descriptors.clone();
            others.retain(|name, _| !is_served(name));
            others
        };
        let mut served = (self.descriptors.iter()).filter(|(name, _)| is_served(name));
        self.processes == before.processes
            && others(self) == others(before)
            && served.all(|(name, count)| {
                before
                    .descriptors
                    .get(name)
                    .is_some_and(|most| count <= most)
            })
    }
}

impl ProcessTree {
    /// The processes that exist now.
    pub fn of(pid: u32) -> ProcessTree {
        let mut parents = BTreeMap::new();
        for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
            let Some(child) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if let Some(parent) = stat_field(child, PARENT) {
                parents.insert(child, parent as u32);
            }
        }
        let mut pids = vec![pid];
        let mut next = 0;
        while let Some(&parent) = pids.get(next) {
            let children = parents.iter().filter(|(_, its)| **its == parent);
            pids.extend(children.map(|(child, _)| *child));
            next += 1;
        }
        ProcessTree { pids }
    }

    /// What the processes hold, apart from descriptors that belong to threads for reading. The descriptors of
    /// a process that has just ended count as closed.
    pub fn holdings(&self) -> Holdings {
        let mut descriptors = BTreeMap::new();
        for pid in &self.pids {
            let directory = format!("/proc/{pid}/fd");
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if let Ok(target) = fs::read_link(entry.path())
                    && !is_of_threads(&target)
                {
                    *descriptors.entry(kind(&target)).or_default() += 1;
                }
            }
        }
        Holdings {
            processes: self.pids.len(),
            descriptors,
        }
    }

    /// The CPU time of all of them so far, in user and kernel mode, to a hundredth of a second.
    pub fn cpu_time(&self) -> Duration {
        let ticks: u64 = self
            .pids
            .iter()
            .map(|pid| {
                stat_field(*pid, USER_TICKS).unwrap_or(0)
                    + stat_field(*pid, SYSTEM_TICKS).unwrap_or(0)
            })
            .sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Bytes of memory that are private to them and were written to.
    pub fn private_dirty_bytes(&self) -> u64 {
        let of = |pid: &u32| rollup_bytes(*pid, "Private_Dirty:");
        self.pids.iter().map(of).sum()
    }

    /// Bytes of memory that they use, including shared memory.
    pub fn resident_bytes(&self) -> u64 {
        self.pids.iter().map(|pid| rollup_bytes(*pid, "Rss:")).sum()
    }

    /// The process with the most descriptors: the server process.
    pub fn busiest(&self) -> u32 {
        let count = |pid: &&u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        *self
            .pids
            .iter()
            .max_by_key(count)
            .expect("a tree has a root")
    }
}

/// Raises this process's limit of open descriptors as far as allowed. Returns the limit.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("every process may raise it up to the hard limit");
    limit.maximum.unwrap_or(u64::MAX)
}

/// A ring and its event descriptor, which come and go with threads.
fn is_of_threads(target: &Path) -> bool {
    let names = ["anon_inode:[io_uring]", "anon_inode:[eventfd]"];
    names.iter().any(|name| target == Path::new(name))
}

/// `socket:[4711]` becomes `socket`, `/proc/4711/mountinfo` becomes `/proc/N/mountinfo`, and
/// `/proc/4711/task/4712/schedstat` `/proc/N/task/N/schedstat`, because the numbers differ each time.
fn kind(target: &Path) -> String {
    let target = target.to_string_lossy();
    if let Some((process, file)) = target
        .strip_prefix("/proc/")
        .and_then(|rest| rest.split_once('/'))
        && process.parse::<u32>().is_ok()
    {
        let of_thread = file
            .strip_prefix("task/")
            .and_then(|rest| rest.split_once('/'));
        return match of_thread {
            Some((_, file)) => format!("/proc/N/task/N/{file}"),
            None => format!("/proc/N/{file}"),
        };
    }
    match target.split_once(":[") {
        Some((kind, number)) if number.starts_with(|first: char| first.is_ascii_digit()) => {
            kind.to_owned()
        }
        _ => target.into_owned(),
    }
}

/// A line of `/proc/PID/smaps_rollup`.
fn rollup_bytes(pid: u32, name: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// A number in `/proc/PID/stat`, counted from after the program's name.
fn stat_field(pid: u32, index: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(index)?.parse().ok()
}

const PARENT: usize = 1;
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_one_kind() {
        assert_eq!(kind(Path::new("socket:[12]")), "socket");
        assert_eq!(
            kind(Path::new("anon_inode:[eventpoll]")),
            "anon_inode:[eventpoll]"
        );
        assert_eq!(kind(Path::new("/a")), "/a");
    }

    #[test]
    fn this_process_uses_time_and_memory() {
        let tree = ProcessTree::of(std::process::id());
        assert_eq!(tree.pids.first(), Some(&std::process::id()));
        assert!(tree.private_dirty_bytes() > 0);
        assert!(tree.holdings().descriptors.values().sum::<usize>() >= 3);
    }
}
