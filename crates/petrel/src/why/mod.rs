//! `petrel why`: where the time of a request went, from the recorder of a running server.
//!
//! The keeper passes a descriptor of the recorder's memory, by which it can only be read. This program reads
//! it with the rights of the user who called it.

mod json;
mod report;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use engine::proto::recording::{Record, Recording};
use engine::recorder::FileSource;
use engine::request_id::RequestId;

use crate::cli::Why;
use crate::command;
use crate::recorded::{chrome, lines, otlp};
use crate::terminal::{self, EXIT_FAILURE, print};

/// Runs the command. Returns the exit code.
pub(crate) fn run(why: &Why) -> u8 {
    let read = || -> Result<Recording, String> {
        let memory = command::recorder_of(&why.server)?;
        Recording::read(&FileSource(&memory)).map_err(|error| error.to_string())
    };
    match read() {
        Ok(recording) => show(why, &recording),
        Err(message) => terminal::fail(&message),
    }
}

fn show(why: &Why, recording: &Recording) -> u8 {
    if why.chrome.is_some() || why.otlp.is_some() {
        return write_files(why, recording);
    }
    if let Some(id) = why.id {
        let all = recording.all();
        return match all.iter().find(|record| record.id == id) {
            Some(record) if why.json => print(&json::one(record)),
            Some(record) => print(report::report(record).as_bytes()),
            None => {
                terminal::complain(format_args!("petrel: {}", gone(&all, recording, id)));
                GONE
            }
        };
    }
    let records = chosen(why, recording);
    match why.json {
        true => print(&json::list(&records)),
        false if records.is_empty() => {
            terminal::complain(format_args!("petrel: no such request is recorded"));
            GONE
        }
        false => {
            let lines = records.iter().map(|record| lines::line(record) + "\n");
            print(lines.collect::<String>().as_bytes())
        }
    }
}

/// The records that were asked for, in the order in which they are shown.
fn chosen<'a>(why: &Why, recording: &'a Recording) -> Vec<&'a Record> {
    let workers = recording.workers.iter();
    let mut records: Vec<&Record> = match (why.errors, &why.slowest) {
        (true, _) => workers
            .flat_map(|worker| worker.errors.iter().chain(&worker.refusals))
            .collect(),
        (false, Some(host)) => {
            let host = host.as_deref().map(str::to_ascii_lowercase);
            let is_of_host = |record: &&Record| match &host {
                Some(host) => is_host(&record.host, host),
                None => true,
            };
            workers
                .flat_map(|worker| worker.slow.iter())
                .filter(is_of_host)
                .collect()
        }
        (false, None) => recording.all(),
    };
    match why.slowest {
        Some(_) => records.sort_by_key(|record| std::cmp::Reverse(record.total)),
        None => records.sort_by_key(|record| record.started),
    }
    let most = why.last.unwrap_or(LAST_UNLESS_TOLD);
    if why.slowest.is_some() {
        records.truncate(most);
    } else {
        records.drain(..records.len().saturating_sub(most));
    }
    records
}

/// Whether a request asked for `host`, which may leave out the port.
fn is_host(asked: &[u8], host: &str) -> bool {
    let port = asked.strip_prefix(host.as_bytes());
    port.is_some_and(|port| match port {
        [] => true,
        [b':', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    })
}

fn gone(all: &[&Record], recording: &Recording, id: RequestId) -> String {
    let mut now = recording
        .workers
        .iter()
        .filter_map(|worker| worker.now.as_ref());
    if let Some(now) = now.find(|now| now.id == id) {
        return format!("{} has not ended", lines::now(now));
    }
    match all.first() {
        Some(oldest) => format!(
            "{id} is not recorded: it is still under way, or older than what is kept (the oldest request that is \
             there began at {}; recorder.size says how many there are)",
            lines::time(oldest.started)
        ),
        None => {
            format!("{id} is not recorded: there is no request at all (recorder.size may be 0)")
        }
    }
}

fn write_files(why: &Why, recording: &Recording) -> u8 {
    let files = [
        (&why.chrome, chrome::trace(recording)),
        (&why.otlp, otlp::traces(recording)),
    ];
    for (path, content) in files {
        let Some(path) = path else { continue };
        if let Err(error) = write(path, &content) {
            return terminal::fail(&format!("{}: {error}", path.display()));
        }
    }
    0
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if path == Path::new("-") {
        return io::stdout().write_all(content);
    }
    File::create(path)?.write_all(content)
}

/// The exit code if the request is not recorded.
const GONE: u8 = 1;
/// How many requests a list has.
const LAST_UNLESS_TOLD: usize = 20;
const _: () = assert!(GONE != EXIT_FAILURE);
