//! Recorded requests in the trace format of Chrome, which Perfetto (ui.perfetto.dev) draws.
//!
//! Each worker is a group of tracks. Requests that a worker served at the same time are on tracks of their
//! own, because slices of one track cannot overlap. Below a request are its stages, one after another in
//! their usual order: only their sums are recorded, not how they alternated.

use engine::exchange::client_of_key;
use engine::ledger::Nanos;
use engine::proto::recording::{Record, Recording};
use proto::escape;

use super::lines;

/// All records as a trace.
pub(crate) fn trace(recording: &Recording) -> Vec<u8> {
    let begins = recording.all().first().map_or(0, |record| record.started);
    let mut out = format!(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"begins\":\"{} UTC\"}},\"traceEvents\":[",
        lines::time(begins)
    )
    .into_bytes();
    let mut is_first = true;
    let mut event = |text: &dyn Fn(&mut Vec<u8>)| {
        out.extend_from_slice(if is_first { b"\n{" } else { b",\n{" });
        is_first = false;
        text(&mut out);
        out.push(b'}');
    };
    for (number, worker) in recording.workers.iter().enumerate() {
        // A process in the format is a group of tracks.
        let group = number + 1;
        let name = format!("worker {} of process {}", worker.worker, worker.process);
        event(&|out| {
            out.extend_from_slice(
                format!(
                    "\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{group},\"tid\":0,\"args\":{{\"name\":\"{name}\"}}"
                )
                .as_bytes(),
            );
        });
        let mut tracks = Tracks::default();
        for record in worker.all_once() {
            let track = tracks.of(record) + 1;
            event(&|out| request(out, record, begins, group, track));
            let mut at = record.started;
            for (stage, nanos) in &record.stages {
                event(&|out| {
                    slice(
                        out,
                        stage.name().as_bytes(),
                        at - begins,
                        *nanos,
                        group,
                        track,
                    );
                });
                at = at.saturating_add(*nanos);
            }
        }
    }
    out.extend_from_slice(b"\n]}\n");
    out
}

fn request(out: &mut Vec<u8>, record: &Record, begins: u64, group: usize, track: usize) {
    let name = format!(
        "{} {}",
        record.method.as_str(),
        String::from_utf8_lossy(&record.path)
    );
    let at = record.started.saturating_sub(begins);
    slice(out, name.as_bytes(), at, record.total, group, track);
    out.extend_from_slice(
        format!(
            ",\"args\":{{\"id\":\"{}\",\"status\":{},\"sent_bytes\":{},\"client\":\"{}\",\"host\":\"",
            record.id,
            record.status,
            record.sent_bytes,
            client_of_key(record.client),
        )
        .as_bytes(),
    );
    escape::json(out, &record.host);
    out.push(b'"');
    for (number, wait) in record.waits.iter().enumerate() {
        out.extend_from_slice(format!(",\"wait {number} ({})\":\"", wait.stage.name()).as_bytes());
        escape::json(out, &wait.holder);
        out.push(b'"');
    }
    out.push(b'}');
}

/// A slice, without the brackets around it. `at`: since the beginning of the trace.
fn slice(out: &mut Vec<u8>, name: &[u8], at: u64, took: Nanos, group: usize, track: usize) {
    out.extend_from_slice(b"\"ph\":\"X\",\"name\":\"");
    escape::json(out, name);
    let micros = |nanos: u64| format!("{}.{:03}", nanos / 1_000, nanos % 1_000);
    let (at, took) = (micros(at), micros(took));
    out.extend_from_slice(
        format!("\",\"ts\":{at},\"dur\":{took},\"pid\":{group},\"tid\":{track}").as_bytes(),
    );
}

/// Until when each track of a group is in use.
#[derive(Default)]
struct Tracks(Vec<u64>);

impl Tracks {
    /// The first track that is free when `record` begins. Records come in the order of their beginnings.
    fn of(&mut self, record: &Record) -> usize {
        let ends = record.started.saturating_add(record.total);
        let free = self.0.iter().position(|until| *until <= record.started);
        match free {
            Some(track) => self.0[track] = ends,
            None if self.0.len() < TRACKS_MAX => self.0.push(ends),
            None => return TRACKS_MAX,
        }
        free.unwrap_or(self.0.len() - 1)
    }
}

/// Requests that find no track are drawn over each other on one more.
const TRACKS_MAX: usize = 1000;
