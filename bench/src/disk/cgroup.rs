//! A memory cgroup: processes in it have less memory than the disk holds, including page cache.
//!
//! Uses version 1 or 2, whichever has the memory controller at its usual place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The beginning of the names of these cgroups; the id of the process that made one follows.
const PREFIX: &str = "petrel-bench-";
/// The directory of version 1's memory controller.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
/// The directory of version 2.
const VERSION_2: &str = "/sys/fs/cgroup";

/// A cgroup. Dropping it removes it; its processes should have ended by then.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Makes a cgroup whose processes may have this much memory together. Fails without root, or if cgroups
    /// are mounted elsewhere or read-only, as in many containers.
    pub fn new(limit_bytes: u64) -> io::Result<Self> {
        let (parent, limit) = hierarchy()?;
        clear(parent);
        let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&directory)?;
        let cgroup = Self { directory };
        fs::write(cgroup.directory.join(limit), limit_bytes.to_string())?;
        Ok(cgroup)
    }

    /// Moves a process there, with the children that it starts from then on. Page cache that is charged to
    /// other cgroups stays theirs.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended may take a moment to leave.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The directory for cgroups, and the name of the file with the limit.
fn hierarchy() -> io::Result<(&'static Path, &'static str)> {
    let (first, second) = (Path::new(VERSION_1), Path::new(VERSION_2));
    if first.join("memory.limit_in_bytes").exists() {
        return Ok((first, "memory.limit_in_bytes"));
    }
    let controllers = fs::read_to_string(second.join("cgroup.controllers"))?;
    if !controllers
        .split_ascii_whitespace()
        .any(|name| name == "memory")
    {
        return Err(io::Error::other("no memory controller"));
    }
    fs::write(second.join("cgroup.subtree_control"), "+memory")?;
    Ok((second, "memory.max"))
}

/// Removes the cgroups of processes that were killed.
fn clear(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Fails while a process in it still runs.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    #[test]
    fn a_process_moves_in_and_the_group_goes_away() {
        let cgroup = match Cgroup::new(64 << 20) {
            Ok(cgroup) => cgroup,
            Err(error) => {
                // This bypasses the test harness, which swallows the output of `println!`.
                let _ = writeln!(
                    io::stdout(),
                    "SKIPPED a test of memory cgroups: there are none here: {error}"
                );
                return;
            }
        };
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let moved = cgroup.add(child.id());
        let listed = fs::read_to_string(cgroup.directory.join("cgroup.procs"));
        child.kill().expect("our child");
        child.wait().expect("our child");
        moved.expect("it moves");
        assert!(listed.is_ok_and(|pids| pids.lines().any(|pid| pid == child.id().to_string())));
        let directory = cgroup.directory.clone();
        drop(cgroup);
        assert!(!directory.exists());
    }
}
