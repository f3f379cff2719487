//! `cargo xtask fuzz`: builds the fuzz targets on stable Rust and runs them, all of them or those that a
//! change touched.
//!
//! libFuzzer needs coverage counters in the code. Stable rustc contains the LLVM pass that adds them, but has
//! no option for it; these flags switch it on, so that plain cargo does what cargo-fuzz does on nightly. Only
//! the address sanitizer is missing, and code without `unsafe` has little use for that.

mod targets;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::changes;
use crate::limit::{self, Reads};
use crate::workspace::{Workspace, output_of};
pub use targets::{TARGETS, Target};

/// `cargo xtask fuzz [TARGET]... [--changed] [--seconds N] [--minutes N]`.
///
/// # Errors
/// When the command line is wrong, the program does not build, or a target finds something.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let mut options = Options::parse(arguments)?;
    if options.only_changed
        && let Some(files) = changes::changed_files(workspace)?
    {
        let is_touched = |target: &&Target| files.iter().any(|file| target.is_about(file));
        options.targets.retain(is_touched);
    }
    if options.targets.is_empty() {
        println!("no fuzz target is about the files that were changed");
        return Ok(());
    }
    let program = build(workspace)?;
    let clock = Clock {
        begin: Instant::now(),
        total: options.total,
    };
    let fuzzer = Fuzzer {
        program,
        directory: workspace.root.join("fuzz"),
        clock,
    };
    let seconds = options.seconds.min(clock.share(options.targets.len()));
    fuzzer.run_all(&options.targets, seconds)
}

/// What the command line asks for.
struct Options {
    targets: Vec<&'static Target>,
    /// Leave out targets that no change touched.
    only_changed: bool,
    /// How long each target runs at most.
    seconds: u64,
    /// How long all targets may take together.
    total: Option<Duration>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let (mut targets, mut only_changed) = (Vec::new(), false);
        let (mut seconds, mut minutes) = (None, None);
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            let mut number = || {
                let number = arguments.next().and_then(|number| number.parse().ok());
                number.ok_or_else(|| format!("{argument} takes a number"))
            };
            match argument {
                "--changed" => only_changed = true,
                "--seconds" => seconds = Some(number()?),
                "--minutes" => minutes = Some(number()?),
                name => targets.push(named(name)?),
            }
        }
        if targets.is_empty() {
            targets = TARGETS.iter().collect();
        }
        // With a time for all, each target gets its share of that.
        let default = minutes.map_or(DEFAULT_SECONDS, |_| u64::MAX);
        Ok(Options {
            targets,
            only_changed,
            seconds: seconds.unwrap_or(default),
            total: minutes.map(|minutes: u64| Duration::from_secs(minutes * 60)),
        })
    }
}

fn named(name: &str) -> Result<&'static Target, String> {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.ok_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        let known = known.join(", ");
        format!("no target is called {name:?}; there are {known}")
    })
}

/// The time that all targets may take together.
#[derive(Clone, Copy)]
struct Clock {
    begin: Instant,
    /// `None`: as long as it takes.
    total: Option<Duration>,
}

impl Clock {
    fn left(self) -> Duration {
        self.total.map_or(Duration::MAX, |total| {
            total.saturating_sub(self.begin.elapsed())
        })
    }

    /// How many seconds each of `count` targets can run in the time that is left.
    fn share(self, count: usize) -> u64 {
        share(self.left().as_secs(), count, cores())
    }
}

/// As [`Clock::share`], with as many targets at a time as there are `cores`.
fn share(seconds_left: u64, count: usize, cores: usize) -> u64 {
    let rounds = count.div_ceil(cores).max(1) as u64;
    (seconds_left / rounds)
        .saturating_sub(INPUT_SECONDS_MAX)
        .max(1)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The built program, which has all targets.
struct Fuzzer {
    program: PathBuf,
    /// `fuzz/` in the root.
    directory: PathBuf,
    clock: Clock,
}

/// Builds the program, with a time limit of its own.
fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    let host = host()?;
    let target = workspace.target.join("fuzz");
    let arguments = ["build", "--package", PACKAGE, "--profile", PROFILE];
    let mut command = workspace.cargo(&arguments);
    command
        .args(["--target", &host, "--target-dir"])
        .arg(&target)
        .env("RUSTFLAGS", COVERAGE_FLAGS.join(" "));
    let print = |line: &str| println!("{line}");
    limit::run(
        "the build",
        &mut command,
        Reads::Output,
        BUILD_TIME_MAX,
        print,
    )?;
    Ok(target.join(host).join(PROFILE).join(PACKAGE))
}

impl Fuzzer {
    /// Runs as many targets at a time as there are cores, for `seconds` each. A target that finds something does not
    /// stop the others.
    fn run_all(&self, targets: &[&'static Target], seconds: u64) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut failures = Vec::new();
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                if self.clock.left().is_zero() {
                    println!("{}: no time was left", target.name);
                    continue;
                }
                match self.run(target.name, seconds) {
                    Ok(summary) => println!("{}: {summary}", target.name),
                    Err(message) => {
                        println!("{}: {message}", target.name);
                        failures.push(target.name);
                    }
                }
            }
            failures
        };
        let failures: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..cores()).map(|_| scope.spawn(worker)).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, Vec<&'static str>>| {
                worker.join().expect("a worker does not panic")
            };
            workers.into_iter().flat_map(join).collect()
        });
        if failures.is_empty() {
            return Ok(());
        }
        Err(format!("fuzzing failed: {}", failures.join(", ")))
    }

    /// Runs one target; its last line of output, or all of it when it found something.
    fn run(&self, target: &str, seconds: u64) -> Result<String, String> {
        let corpus = self.directory.join("corpus").join(target);
        let artifacts = self.directory.join("artifacts").join(target);
        for directory in [&corpus, &artifacts] {
            fs::create_dir_all(directory)
                .map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let mut command = Command::new(&self.program);
        command
            .env("PETREL_FUZZ_TARGET", target)
            .arg(corpus)
            .arg(self.directory.join("seeds").join(target))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .arg(format!("-max_total_time={seconds}"))
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        let mut report = Vec::new();
        let keep = |line: &str| report.push(line.to_owned());
        // The seconds of libFuzzer begin when it has replayed the corpus and the seeds.
        let time = Duration::from_secs(seconds + KNOWN_SECONDS_MAX);
        let outcome = limit::run(target, &mut command, Reads::Errors, time, keep);
        match outcome {
            Ok(()) => Ok(report.pop().unwrap_or_default()),
            Err(message) => Err(format!("{message}\n{}", report.join("\n"))),
        }
    }
}

/// The package of the targets, which is the name of its program, and the profile that it is built with.
const PACKAGE: &str = "petrel-fuzz";
const PROFILE: &str = "fuzz";

/// How long each target runs unless the command line says otherwise, in seconds.
const DEFAULT_SECONDS: u64 = 60;

/// Several times what the build takes on two cores.
const BUILD_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// How long a target may take to replay its corpus and its seeds, in seconds, start and end included.
const KNOWN_SECONDS_MAX: u64 = 120;

/// An input that takes longer than this (seconds) or more memory (MiB) counts as a failure.
const INPUT_SECONDS_MAX: u64 = 10;
const MEMORY_MIB_MAX: u32 = 2048;

/// The target triple of this machine. When cargo is given `--target`, it does not use the coverage flags for
/// build scripts and procedural macros, even if the target is this machine.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output_of(Command::new(Path::new(&rustc)).arg("-vV"))?;
    let version = String::from_utf8_lossy(&version);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// Edge coverage in counters, operands of comparisons shown to the fuzzer, and the `cfg` that libfuzzer-sys
/// expects.
const COVERAGE_FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_what_runs_and_for_how_long() {
        let options = Options::parse(&[]).expect("it is right");
        assert_eq!(options.targets.len(), TARGETS.len());
        assert!(!options.only_changed);
        assert_eq!((options.seconds, options.total), (60, None));
        let options = Options::parse(&["url", "--seconds", "5", "range"]).expect("it is right");
        let names: Vec<_> = options.targets.iter().map(|target| target.name).collect();
        assert_eq!((names, options.seconds), (vec!["url", "range"], 5));
        let options = Options::parse(&["--changed", "--minutes", "6"]).expect("it is right");
        assert!(options.only_changed);
        let all = Some(Duration::from_secs(360));
        assert_eq!((options.seconds, options.total), (u64::MAX, all));
        for wrong in [&["nothing"][..], &["--seconds"], &["--minutes", "soon"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn targets_share_the_time_that_is_left() {
        // Each leaves time for its start and for an input that hangs.
        assert_eq!(share(300, 1, 2), 290);
        assert_eq!(share(300, 2, 2), 290);
        assert_eq!(share(300, 25, 2), 13);
        assert_eq!(share(20, 25, 2), 1);
        assert_eq!(share(0, 1, 2), 1);
    }
}
