//! `cargo xtask fuzz`: builds the fuzz targets on stable Rust and runs them.
//!
//! libFuzzer needs coverage counters in the code. Stable rustc contains the LLVM pass that adds them, but has
//! no option for it; these flags switch it on, so that plain cargo does what cargo-fuzz does on nightly. Only
//! the address sanitizer is missing, and code without `unsafe` has little use for that.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, thread};

use crate::limit::{self, Reads};
use crate::workspace::{self, Workspace, output_of};

/// Every target: `fuzz/src/NAME.rs`, with seeds in `fuzz/seeds/NAME/`.
pub const TARGETS: &[&str] = &[
    "request_head",
    "request_body",
    "url",
    "range",
    "fields",
    "configuration",
    "template",
    "listen",
    "cgi_head",
    "fastcgi",
    "scgi",
    "uwsgi",
    "ajp13",
    "response",
    "proxied",
    "ldap",
    "resp",
    "memcached",
    "stored_page",
    "recorder",
    "client_hello",
    "hpack",
    "http2_frames",
    "http2_connection",
    "http2_to_http1",
];

/// The manifest of the targets, from the root.
pub const MANIFEST: &str = "fuzz/Cargo.toml";

/// How long each target runs by default when asked for, in seconds.
const DEFAULT_SECONDS: u32 = 60;

/// How long a target may take to replay its seeds, in seconds, start and end included.
const KNOWN_SECONDS_MAX: u64 = 120;

/// An input that takes longer than this (seconds) or more memory (MiB) counts as a failure.
const INPUT_SECONDS_MAX: u32 = 10;
const MEMORY_MIB_MAX: u32 = 2048;

/// `cargo xtask fuzz [TARGET]... [--seconds N]`.
///
/// # Errors
/// When the command line is wrong, the targets do not build, or one finds something.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let mut targets = Vec::new();
    let mut seconds = DEFAULT_SECONDS;
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        if argument == "--seconds" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            seconds = number.ok_or("--seconds takes a number")?;
        } else if let Some(target) = TARGETS.iter().find(|target| **target == argument) {
            targets.push(*target);
        } else {
            let known = TARGETS.join(", ");
            return Err(format!(
                "no target is called {argument:?}; there are {known}"
            ));
        }
    }
    let targets = if targets.is_empty() {
        TARGETS
    } else {
        &targets
    };
    Fuzzer::build(workspace)?.run_all(targets, seconds)
}

/// The built targets.
struct Fuzzer {
    programs: PathBuf,
    /// `fuzz/` in the root.
    directory: PathBuf,
}

impl Fuzzer {
    fn build(workspace: &Workspace) -> Result<Fuzzer, String> {
        let host = host()?;
        let target = workspace.target.join("fuzz");
        let mut command = workspace.cargo(&["build", "--release", "--bins", "--target", &host]);
        command
            .args(["--manifest-path", MANIFEST, "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", COVERAGE_FLAGS.join(" "));
        workspace::run(&mut command)?;
        Ok(Fuzzer {
            programs: target.join(host).join("release"),
            directory: workspace.root.join("fuzz"),
        })
    }

    /// Runs as many targets at a time as there are cores. A target that finds something does not stop the
    /// others.
    fn run_all(&self, targets: &[&'static str], seconds: u32) -> Result<(), String> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut failures = Vec::new();
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.run(target, seconds) {
                    Ok(summary) => println!("{target}: {summary}"),
                    Err(message) => {
                        println!("{target}: {message}");
                        failures.push(*target);
                    }
                }
            }
            failures
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let failures: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, Vec<&'static str>>| {
                worker.join().expect("a worker does not panic")
            };
            workers.into_iter().flat_map(join).collect()
        });
        if failures.is_empty() {
            return Ok(());
        }
        Err(format!("found by {}", failures.join(", ")))
    }

    /// Runs one target; its last line of output, or all of it when it found something.
    fn run(&self, target: &str, seconds: u32) -> Result<String, String> {
        let corpus = self.directory.join("corpus").join(target);
        let artifacts = self.directory.join("artifacts").join(target);
        for directory in [&corpus, &artifacts] {
            fs::create_dir_all(directory)
                .map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let mut command = Command::new(self.programs.join(target));
        command
            .arg(corpus)
            .arg(self.directory.join("seeds").join(target))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .arg(format!("-max_total_time={seconds}"))
            .current_dir(&self.directory)
            .stdin(Stdio::null());
        // The seconds begin when the target has replayed its seeds.
        let limit = Duration::from_secs(u64::from(seconds) + KNOWN_SECONDS_MAX);
        let mut report = Vec::new();
        let keep = |line: &str| report.push(line.to_owned());
        let outcome = limit::run(target, &mut command, Reads::Errors, limit, keep);
        match outcome {
            Ok(()) => Ok(report.pop().unwrap_or_default()),
            Err(message) => Err(format!("{message}\n{}", report.join("\n"))),
        }
    }
}

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
    fn every_target_has_its_source_its_seeds_and_its_entry() {
        let fuzz = Workspace::here().root.join("fuzz");
        let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
        for target in TARGETS {
            let entry = format!("path = \"src/{target}.rs\"");
            assert!(manifest.contains(&entry), "{target}");
            let source = fuzz.join("fuzz_targets").join(format!("{target}.rs"));
            assert!(source.is_file(), "{target}");
            let seeds = fs::read_dir(fuzz.join("seeds").join(target)).expect("seeds");
            assert!(seeds.count() >= 5, "{target}");
        }
        assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
    }
}
