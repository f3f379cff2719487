//! `petrel-bench disk --check`: checks that the whole disk works as specified, with FUSE, loop device and
//! ext4.
//!
//! A disk needs a process of its own, which runs this program. So the check is part of the program, and a
//! test runs it.

use super::{Disk, Expected, Fault, Plan};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a hanging disk is watched: many times what any read takes.
const HANG: Duration = Duration::from_millis(300);
/// From `errno.h`.
const EIO: i32 = 5;

/// Runs all checks. The error says what is wrong.
pub fn run() -> io::Result<()> {
    let mut disk = Disk::build(&Plan::tiny())?;
    println!("There is a disk below {}.", disk.root().display());
    cold(&mut disk)?;
    println!("What is read again costs nothing, until the disk is cold.");
    busy(&mut disk)?;
    println!("A disk in use is not made cold.");
    disk.make_cold()?;
    errors(&disk)?;
    println!("A file that is to fail does, and no other.");
    hang(&disk)?;
    println!("A disk that hangs answers nothing, and goes on afterwards.");
    gone(disk)?;
    println!("It is gone, with all that it was made of, though a file of it is open.");
    Ok(())
}

/// Retries once if it fails, because other programs may read from disks at any time.
fn cold(disk: &mut Disk) -> io::Result<()> {
    if cold_reads(disk).is_ok() {
        return Ok(());
    }
    disk.make_cold()?;
    cold_reads(disk)
}

fn cold_reads(disk: &mut Disk) -> io::Result<()> {
    let (small, hot) = (disk.plan().small(3), disk.plan().hot(1));
    let [metadata, data] = reads(disk, &[&small])?;
    expect(
        metadata > 0 && data == 1,
        "a cold file takes one read, and some of metadata",
    )?;
    let again = reads(disk, &[&small])?;
    expect(again == [0, 0], "it is in the page cache then")?;
    disk.make_cold()?;
    let [metadata, data] = reads(disk, &[&small])?;
    expect(
        metadata > 0 && data == 1,
        "it is not, after the disk was made cold",
    )?;
    disk.make_cold()?;
    disk.warm_metadata()?;
    let [short, long] = reads(disk, &[&small, &hot])?;
    // A hot file is as long as a block of metadata, so one read of that length is allowed.
    expect([short, long] == [1, 1], "warm metadata is not read")?;
    let large = disk.plan().large(1);
    let [short, long] = reads(disk, &[&large])?;
    expect(short < 4 && long > 10, "a large file is read in pieces")
}

/// Reads files. Returns how many reads of up to a block, and how many longer ones, that caused.
fn reads(disk: &Disk, paths: &[&str]) -> io::Result<[u64; 2]> {
    let before = disk.counters()?;
    for path in paths {
        let file = disk.plan().expected(path).ok_or(io::ErrorKind::NotFound)?;
        disk.read(&file, &mut vec![0; 1 << 20])?;
    }
    let usage = disk.counters()?.since(&before);
    let [short, ..] = usage.by_length;
    Ok([short, usage.operations - short])
}

fn busy(disk: &mut Disk) -> io::Result<()> {
    let hot = disk.plan().hot(0);
    let open = fs::File::open(disk.path_of(&hot))?;
    expect(
        disk.make_cold().is_err(),
        "an open file keeps it from being unmounted",
    )?;
    drop(open);
    reads(disk, &[&hot]).map(drop)
}

fn errors(disk: &Disk) -> io::Result<()> {
    let [broken, sound] = small(disk, [0, 1])?;
    let path = broken.path.clone();
    disk.set_fault(&Fault::Errors { path, from: 0 })?;
    let failed = read(disk, &broken).map_err(|error| error.raw_os_error());
    expect(failed == Err(Some(EIO)), "a broken file cannot be read")?;
    expect(read(disk, &sound).is_ok(), "others can")?;
    let path = "/s9999/00.bin".to_owned();
    let missing = disk.set_fault(&Fault::Errors { path, from: 0 });
    let missing = missing.map_err(|error| error.kind());
    expect(
        missing == Err(io::ErrorKind::NotFound),
        "what is not there cannot fail",
    )?;
    read(disk, &broken)
}

fn hang(disk: &Disk) -> io::Result<()> {
    let [file] = small(disk, [2])?;
    disk.set_fault(&Fault::Hang)?;
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let done = read(disk, &file);
            answered.store(true, Ordering::SeqCst);
            done
        });
        std::thread::sleep(HANG);
        let hung = !answered.load(Ordering::SeqCst);
        // Before anything else, because the thread cannot end until then.
        disk.set_fault(&Fault::None)?;
        expect(hung, "a disk that hangs does not answer")?;
        let done = thread.join();
        expect(done.is_ok_and(|done| done.is_ok()), "it goes on afterwards")
    })
}

fn gone(disk: Disk) -> io::Result<()> {
    let path = disk.path_of(&disk.plan().hot(3));
    let open = fs::File::open(path)?;
    let root = disk.root().to_owned();
    drop(disk);
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mounted = mounts.contains(&*root.to_string_lossy());
    expect(!mounted && !root.exists(), "nothing stays")?;
    drop(open);
    Ok(())
}

fn small<const N: usize>(disk: &Disk, numbers: [u32; N]) -> io::Result<[Expected; N]> {
    let files = numbers.map(|number| disk.plan().expected(&disk.plan().small(number)));
    let files: Vec<_> = files.into_iter().flatten().collect();
    files.try_into().map_err(|_| io::ErrorKind::NotFound.into())
}

fn read(disk: &Disk, file: &Expected) -> io::Result<()> {
    disk.read(file, &mut vec![0; 1 << 20])
}

fn expect(holds: bool, what: &str) -> io::Result<()> {
    if holds {
        return Ok(());
    }
    Err(io::Error::other(format!("this does not hold: {what}")))
}
