//! Takes down the parts of a disk, including those that a killed run has left behind.
//!
//! Everything of a disk is below one directory, whose `lock` its owner holds. A process that can lock it may
//! clean up. Errors do not stop the cleaning: the next run tries again.

use super::volume::{BACKING, FUSE_POINT, LOCK, PREFIX, ROOT};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// Removes disks whose owner has ended.
pub fn clear() {
    for directory in directories(&std::env::temp_dir()) {
        let lock = File::open(directory.join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            take_down(&directory);
        }
    }
}

/// Unmounts and removes a disk, from the top down. It retries for a while, because a program that a killed
/// run had started may still be about to mount it.
pub fn take_down(directory: &Path) {
    for _ in 0..ATTEMPTS {
        take_apart(directory);
        if !directory.exists() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// How often taking down a disk is tried, with a pause in between.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

fn take_apart(directory: &Path) {
    unmount(&directory.join(ROOT));
    for device in loop_devices(directory) {
        // If it is still open, the kernel detaches it on the last close.
        let _ = quietly(Command::new("losetup").arg("-d").arg(device));
    }
    unmount(&directory.join(FUSE_POINT));
    // Never recursive: if one is still mounted, its files must not be removed.
    for point in [ROOT, FUSE_POINT] {
        let _ = fs::remove_dir(directory.join(point));
    }
    let _ = fs::remove_file(directory.join(LOCK));
    let _ = fs::remove_dir(directory);
}

/// Loop devices over files below a directory.
fn loop_devices(directory: &Path) -> Vec<PathBuf> {
    let Ok(blocks) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let ours = |block: &fs::DirEntry| {
        let backing = fs::read_to_string(block.path().join(BACKING));
        backing.is_ok_and(|file| Path::new(file.trim_end()).starts_with(directory))
    };
    let blocks = blocks.flatten().filter(ours);
    blocks
        .map(|block| Path::new("/dev").join(block.file_name()))
        .collect()
}

/// Unmounts through another program: a thread of this one that waited in the kernel for its own file could
/// not be killed, and neither could the process.
fn unmount(point: &Path) {
    let unmount = |option| quietly(Command::new("umount").args(["-i", option]).arg(point));
    if !unmount("-n").is_ok_and(|status| status.success()) {
        // It fails if nothing is mounted there, if the mount is in use, or if its file system is dead.
        let _ = unmount("-l");
    }
}

fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    ours.map(|entry| entry.path()).collect()
}

fn quietly(command: &mut Command) -> std::io::Result<ExitStatus> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).status()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_disks_are_looked_at() {
        let parent = tempfile::tempdir().expect("a directory");
        for name in ["petrel-bench-1", "petrel-bench-disk-1"] {
            fs::create_dir(parent.path().join(name)).expect("a directory");
        }
        let found = directories(parent.path());
        assert_eq!(found, [parent.path().join("petrel-bench-disk-1")]);
    }

    #[test]
    fn what_is_not_ours_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(ROOT).join("file");
        fs::create_dir(directory.path().join(ROOT)).expect("a directory");
        fs::write(&file, "precious").expect("a file");
        take_down(directory.path());
        assert!(file.exists());
    }
}
