//! Runs the command of an `include_shell`.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use super::include::{plain_reason, text_of};
use crate::limits;

/// The result of a command.
pub(super) struct Output {
    /// Its output.
    pub(super) text: String,
    /// The beginning of its standard error.
    pub(super) error_text: String,
    /// Why its output must not be used: "ended with exit code 3".
    pub(super) failure: Option<String>,
}

/// Runs `command` with `/bin/sh -c` in `directory`, and waits for it.
pub(super) fn run(command: &str, directory: &Path) -> Output {
    match spawn(command, directory) {
        Ok(child) => collect(child),
        Err(error) => Output {
            text: String::new(),
            error_text: String::new(),
            failure: Some(format!("cannot be run: {}", plain_reason(&error))),
        },
    }
}

fn spawn(command: &str, directory: &Path) -> std::io::Result<Child> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).current_dir(directory);
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

fn collect(mut child: Child) -> Output {
    let errors = child
        .stderr
        .take()
        .map(|stream| thread::spawn(move || drain(stream, limits::SHELL_ERROR_BYTES_MAX)));
    let mut bytes = Vec::new();
    let read = match child.stdout.take() {
        Some(stream) => stream
            .take(limits::SHELL_OUTPUT_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes),
        None => Ok(0),
    };
    let endless = bytes.len() > limits::SHELL_OUTPUT_BYTES_MAX;
    if endless {
        // The command may have ended meanwhile; then there is nothing to kill.
        let _ = child.kill();
    }
    let status = child.wait();
    // Processes that the command has left in the background may keep its standard error open forever.
    let error_text = match errors {
        Some(reader) if !endless => reader.join().unwrap_or_default(),
        _ => String::new(),
    };
    let failure = match (read, status) {
        _ if endless => Some(format!(
            "printed more than {} MiB",
            limits::SHELL_OUTPUT_BYTES_MAX >> 20
        )),
        (Err(error), _) | (_, Err(error)) => {
            Some(format!("cannot be read: {}", plain_reason(&error)))
        }
        (Ok(_), Ok(status)) if status.success() => None,
        (Ok(_), Ok(status)) => Some(match status.code() {
            Some(code) => format!("ended with exit code {code}"),
            None => format!("was ended by a {status}"),
        }),
    };
    Output {
        text: text_of(bytes),
        error_text,
        failure,
    }
}

/// Reads `stream` to its end and returns its first `bytes_max` bytes.
fn drain(mut stream: impl Read, bytes_max: usize) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let room = bytes_max.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(buffer.get(..room).unwrap_or(&[]));
    }
    text_of(kept)
}
