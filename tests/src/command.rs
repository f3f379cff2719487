//! Other programs: run to their end, within a time.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// What a program did.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub output: Vec<u8>,
    /// What it complained about.
    pub errors: String,
}

impl Finished {
    /// What it printed, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// The exit code; -1 when a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// Whether a program of that name is on the PATH, or where administrators' programs are.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut places = path.split(':').chain(["/usr/sbin", "/sbin"]);
    places.any(|place| std::path::Path::new(place).join(program).is_file())
}

/// Runs a program to its end, for `limit` at most.
///
/// # Panics
/// It cannot be started, or takes longer.
pub fn run(command: &mut Command, limit: Duration) -> Finished {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{shown}: {error}; `cargo xtask test` installs what tests need")
        });
    let output = collect(child.stdout.take());
    let errors = collect(child.stderr.take());
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("it is our child") {
            Some(status) => break status,
            None if begin.elapsed() > limit => {
                child.kill().expect("it is our child");
                child.wait().expect("it was killed");
                panic!("{shown} took longer than {limit:?}");
            }
            None => thread::sleep(Duration::from_millis(3)),
        }
    };
    let output = output.join().expect("reading does not panic");
    let errors = errors.join().expect("reading does not panic");
    let errors = String::from_utf8_lossy(&errors).into_owned();
    Finished {
        status,
        output,
        errors,
    }
}

/// Runs curl with `arguments`, silent but for errors, for 30 seconds at most.
///
/// # Panics
/// As [`run`].
pub fn curl(arguments: &[&str]) -> Finished {
    run(
        Command::new("curl")
            .args(["--silent", "--show-error"])
            .args(arguments),
        PATIENCE,
    )
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What came before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
