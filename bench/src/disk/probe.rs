//! `petrel-bench disk`: what the disk can do, by the model alone or read by threads without a server.
//!
//! If threads do not reach what the model promises, the disk is no measure for servers.

use super::model::Random;
use super::volume::Impossible;
use super::{Cgroup, Contents, Disk, Plan, SEQUENTIAL_MB_PER_SECOND, Usage, check, simulate};
use crate::cli::DiskOptions;
use crate::interrupt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The share of the model's figure that threads should reach with a deep queue.
const GOAL: f64 = 0.97;
/// How long the queues fill before counting starts.
const WARM_UP: Duration = Duration::from_secs(1);
/// How much a thread reads at once: small files whole, and large ones in pieces that the kernel does not
/// split.
const PIECE: usize = 1 << 20;
/// The servers' memory.
const SERVER_MEMORY: u64 = 1 << 30;
/// How many clients fetch large files at the same time.
const LARGE_DEPTH: u32 = 16;

/// Runs and prints what the options ask for.
pub fn run(options: &DiskOptions) -> Result<(), String> {
    if options.simulate {
        simulated(options);
        return Ok(());
    }
    if let Err(reason) = super::available() {
        println!("Skipped: {reason}.");
        return Ok(());
    }
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let done = if options.check {
        check::run()
    } else {
        probe(options)
    };
    match done {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Err("interrupted".to_owned()),
        Err(error) if is_impossible(&error) => {
            println!("Skipped: {error}.");
            Ok(())
        }
        done => done.map_err(|error| format!("the modelled disk: {error}")),
    }
}

fn is_impossible(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|error| error.is::<Impossible>())
}

fn simulated(options: &DiskOptions) {
    let Plan {
        small_bytes, seed, ..
    } = Plan::published();
    println!("The limit of the model, files of {small_bytes} bytes, fetches a second:\n");
    println!("{:>8} {:>12} {:>12}", "clients", "seeks/fetch", "fetches/s");
    for depth in &options.depth {
        for operations in &options.operations {
            let rate = simulate(*depth, *operations, small_bytes, seed);
            println!("{depth:>8} {operations:>12.2} {rate:>12.1}");
        }
    }
    println!("\nIn sequence, without a seek: {SEQUENTIAL_MB_PER_SECOND:.0} MB/s.");
}

fn probe(options: &DiskOptions) -> io::Result<()> {
    if let Err(error) = Cgroup::new(SERVER_MEMORY) {
        println!("Servers cannot be limited to 1 GiB of memory here: {error}.");
    }
    let plan = plan(options);
    let started = Instant::now();
    let mut disk = Disk::build(&plan)?;
    println!(
        "Built and filled in {:.1} s.",
        started.elapsed().as_secs_f64()
    );
    let Contents { stored, blocks } = disk.contents()?;
    println!(
        "It keeps {:.1} MB, in {blocks:?} blocks.",
        stored as f64 / 1e6
    );
    let small: Vec<_> = (0..plan.small_files).map(|n| plan.small(n)).collect();
    for depth in &options.depth {
        disk.make_cold()?;
        compare("metadata cold", &disk, &small, *depth, options)?;
        disk.make_cold()?;
        disk.warm_metadata()?;
        compare("metadata warm", &disk, &small, *depth, options)?;
    }
    disk.make_cold()?;
    let large: Vec<_> = (0..plan.large_files).map(|n| plan.large(n)).collect();
    let (_, usage) = fetch(&disk, &large, LARGE_DEPTH, options.run_length())?;
    let rate = usage.bytes as f64 / 1e6 / usage.seconds;
    let part = rate / SEQUENTIAL_MB_PER_SECOND;
    println!("\nLarge files, {LARGE_DEPTH} threads: {rate:.1} MB/s, {part:.2} of the limit");
    tell(&usage);
    Ok(())
}

fn plan(options: &DiskOptions) -> Plan {
    let published = Plan::published();
    Plan {
        small_files: options.small_files().unwrap_or(published.small_files),
        large_files: options.large_files().unwrap_or(published.large_files),
        ..published
    }
}

/// Fetches small files, and compares with the model's figure.
fn compare(
    name: &str,
    disk: &Disk,
    paths: &[String],
    depth: u32,
    options: &DiskOptions,
) -> io::Result<()> {
    let (fetches, usage) = fetch(disk, paths, depth, options.run_length())?;
    let operations = usage.operations as f64 / fetches.max(1) as f64;
    let rate = fetches as f64 / usage.seconds;
    let Plan {
        small_bytes, seed, ..
    } = *disk.plan();
    let seeks = usage.seeks() as f64 / fetches.max(1) as f64;
    let limit = simulate(depth, seeks, small_bytes, seed);
    let part = rate / limit;
    let verdict = if part < GOAL { "below" } else { "at least" };
    println!(
        "\nSmall files, {name}, {depth} threads: {rate:.1} fetches/s, {operations:.2} reads a fetch,"
    );
    println!("{part:.3} of the limit of {limit:.1}: {verdict} {GOAL}");
    tell(&usage);
    Ok(())
}

fn tell(usage: &Usage) {
    let [first, second] = usage.utilisation.map(|part| part * 100.0);
    println!(
        "  disk: busy {first:.1} and {second:.1} %, queue {:.1} (at most {} a spindle), {} reads, {} of them in sequence, lengths {:?}",
        usage.depth_mean, usage.depth_max, usage.operations, usage.sequential, usage.by_length
    );
    println!(
        "  block device: {:.1} r/s, {:.0} rkB/s, await {:.1} ms, avgqu-sz {:.1}, {:.1} %util",
        usage.reads_per_second,
        usage.read_kib_per_second,
        usage.await_ms,
        usage.queue_mean,
        usage.util_percent
    );
    let verdict = if usage.on_time() {
        ""
    } else {
        ": this run does not count"
    };
    println!(
        "  late by {:.3} ms, at most {:.3} ms{verdict}",
        usage.late_ms_mean, usage.late_ms_max
    );
}

/// Reads files, each once and in a random order, with `depth` threads. Returns how many after the queues have
/// filled, and the disk's counters for that time.
fn fetch(disk: &Disk, paths: &[String], depth: u32, length: Duration) -> io::Result<(u64, Usage)> {
    let order = shuffled(paths.len(), disk.plan().seed);
    let (next, done, stop) = (
        AtomicUsize::new(0),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let work = || -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        while !stop.load(Ordering::Relaxed) && !interrupt::asked() {
            let number = order.get(next.fetch_add(1, Ordering::Relaxed));
            let path = number.and_then(|number| paths.get(*number));
            let path =
                path.ok_or_else(|| io::Error::other("too few files for a run of this length"))?;
            let expected = disk.plan().expected(path).ok_or(io::ErrorKind::NotFound)?;
            disk.read(&expected, &mut buffer)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
        let measured = measure(disk, &done, length);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let panicked = |_| io::Error::other("a reading thread panicked");
            thread.join().map_err(panicked).flatten()?;
        }
        measured
    })
}

/// Counts for `length`, after the queues have filled.
fn measure(disk: &Disk, done: &AtomicU64, length: Duration) -> io::Result<(u64, Usage)> {
    pause(WARM_UP)?;
    let (before, counters) = (done.load(Ordering::Relaxed), disk.counters()?);
    pause(length)?;
    let usage = disk.counters()?.since(&counters);
    Ok((done.load(Ordering::Relaxed) - before, usage))
}

fn pause(length: Duration) -> io::Result<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        if interrupt::asked() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    Ok(())
}

/// The numbers below `count` in a random order.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut numbers: Vec<_> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.below(last as u64 + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_number() {
        let mut numbers = shuffled(1000, 5);
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
    }
}
