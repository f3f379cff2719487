//! Runs other programs to their end, with a time limit.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub output: Vec<u8>,
    /// Its standard error.
    pub errors: String,
}

impl Finished {
    /// Its standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Its exit code; -1 if a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// Whether a program of that name is on the PATH, or in an sbin directory.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut places = path.split(':').chain(["/usr/sbin", "/sbin"]);
    places.any(|place| std::path::Path::new(place).join(program).is_file())
}

/// Runs a program to its end, for at most `limit`.
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

/// Runs curl with `arguments`, showing only errors, for at most 30 seconds.
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
            // What arrived before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
