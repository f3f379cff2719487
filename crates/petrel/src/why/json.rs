//! Recorded requests as JSON, for other programs.

use engine::exchange::client_of_key;
use engine::proto::recording::{Record, RecordFlag};
use proto::json::JsonWriter;

use crate::recorded::lines;

/// One request as an object, and a line end.
pub(crate) fn one(record: &Record) -> Vec<u8> {
    let mut out = object(record);
    out.push(b'\n');
    out
}

/// Requests as a list, each on a line of its own.
pub(crate) fn list(records: &[&Record]) -> Vec<u8> {
    let objects: Vec<_> = records.iter().map(|record| object(record)).collect();
    [b"[\n", &*objects.join(&b",\n"[..]), b"\n]\n"].concat()
}

fn object(record: &Record) -> Vec<u8> {
    let mut json = JsonWriter::default();
    json.object(|json| {
        json.text("id", &record.id.to_string());
        json.number("started_ns", record.started);
        json.number("total_ns", record.total);
        json.text("method", record.method.as_str());
        json.bytes("host", &record.host);
        json.bytes("path", &record.path);
        json.number("status", record.status.into());
        json.text("cause", lines::cause(record));
        json.number("sent_bytes", record.sent_bytes);
        json.text("client", &client_of_key(record.client));
        json.bytes("answered_by", &record.answered_by);
        json.number("worker", record.worker.into());
        for (name, flag) in FLAGS {
            json.truth(name, record.is(flag));
        }
        json.key("stages_ns").object(|json| {
            for (stage, nanos) in &record.stages {
                json.number(stage.name(), *nanos);
            }
            json.number("unattributed", record.unattributed());
        });
        json.key("waits").list(&record.waits, |wait, json| {
            json.object(|json| {
                json.text("stage", wait.stage.name());
                json.number("ns", wait.nanos);
                json.bytes("holder", &wait.holder);
            });
        });
    });
    json.out
}

const FLAGS: [(&str, RecordFlag); 6] = [
    ("complete", RecordFlag::Complete),
    ("tls", RecordFlag::Tls),
    ("subrequest", RecordFlag::Subrequest),
    ("own", RecordFlag::Own),
    ("tunnel", RecordFlag::Tunnel),
    ("cut", RecordFlag::Cut),
];
