//! Recorded requests as JSON, for other programs.

use engine::exchange::client_of_key;
use engine::recorder::{Record, RecordFlag};
use proto::escape;

use crate::recorded::lines;

/// One request as an object, and a line end.
pub(crate) fn one(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, record);
    out.push(b'\n');
    out
}

/// Requests as a list.
pub(crate) fn list(records: &[&Record]) -> Vec<u8> {
    let mut out = b"[".to_vec();
    for (number, record) in records.iter().enumerate() {
        out.extend_from_slice(if number == 0 { b"\n" } else { b",\n" });
        write(&mut out, record);
    }
    out.extend_from_slice(b"\n]\n");
    out
}

fn write(out: &mut Vec<u8>, record: &Record) {
    out.extend_from_slice(format!("{{\"id\":\"{}\"", record.id).as_bytes());
    number(out, "started_ns", record.started);
    number(out, "total_ns", record.total);
    text(out, "method", record.method.as_str().as_bytes());
    text(out, "host", &record.host);
    text(out, "path", &record.path);
    number(out, "status", record.status.into());
    text(out, "cause", lines::cause(record).as_bytes());
    number(out, "sent_bytes", record.sent_bytes);
    text(out, "client", client_of_key(record.client).as_bytes());
    text(out, "answered_by", &record.answered_by);
    number(out, "worker", record.worker.into());
    for (name, flag) in FLAGS {
        out.extend_from_slice(format!(",\"{name}\":{}", record.is(flag)).as_bytes());
    }
    out.extend_from_slice(b",\"stages_ns\":{");
    let mut separator = "";
    for (stage, nanos) in &record.stages {
        out.extend_from_slice(format!("{separator}\"{}\":{nanos}", stage.name()).as_bytes());
        separator = ",";
    }
    out.extend_from_slice(
        format!("{separator}\"unattributed\":{}", record.unattributed()).as_bytes(),
    );
    out.extend_from_slice(b"},\"waits\":[");
    for (number, wait) in record.waits.iter().enumerate() {
        let separator = if number == 0 { "" } else { "," };
        let (stage, nanos) = (wait.stage.name(), wait.nanos);
        out.extend_from_slice(
            format!("{separator}{{\"stage\":\"{stage}\",\"ns\":{nanos}").as_bytes(),
        );
        text(out, "holder", &wait.holder);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

fn number(out: &mut Vec<u8>, name: &str, number: u64) {
    out.extend_from_slice(format!(",\"{name}\":{number}").as_bytes());
}

fn text(out: &mut Vec<u8>, name: &str, text: &[u8]) {
    out.extend_from_slice(format!(",\"{name}\":\"").as_bytes());
    escape::json(out, text);
    out.push(b'"');
}

const FLAGS: [(&str, RecordFlag); 6] = [
    ("complete", RecordFlag::Complete),
    ("tls", RecordFlag::Tls),
    ("subrequest", RecordFlag::Subrequest),
    ("own", RecordFlag::Own),
    ("tunnel", RecordFlag::Tunnel),
    ("cut", RecordFlag::Cut),
];
