//! One recorded request: where its time went in words, then its ledger as a table.

use std::fmt::Write;

use engine::exchange::client_of_key;
use engine::ledger::Nanos;
use engine::proto::recording::{Record, RecordFlag};
use engine::recorder::{percent_of, where_time_went};
use engine::waits::Time;

use crate::recorded::lines;

/// The answer to `petrel why ID`.
pub(crate) fn report(record: &Record) -> String {
    let mut text = summary(record) + "\n\n";
    for (stage, nanos) in &record.stages {
        row(&mut text, stage.name(), *nanos, record.total);
    }
    row(
        &mut text,
        "unattributed",
        record.unattributed(),
        record.total,
    );
    row(&mut text, "total", record.total, record.total);
    text.push('\n');
    for (name, value) in facts(record) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<NAME_WIDTH$}  {value}");
    }
    for wait in &record.waits {
        let holder = lines::printable(&wait.holder);
        let (stage, time) = (wait.stage.name(), Time(wait.nanos));
        let _ = writeln!(
            text,
            "{:<NAME_WIDTH$}  {time} in {stage}: {holder}",
            "waited"
        );
    }
    text
}

/// `94 % of 2.2 s was backend-queue: pool "www" full ...`
pub(crate) fn summary(record: &Record) -> String {
    let holders: Vec<String> = record
        .waits
        .iter()
        .map(|wait| lines::printable(&wait.holder))
        .collect();
    let waits = record.waits.iter().zip(&holders);
    let waits = waits.map(|(wait, holder)| (wait.stage, wait.nanos, holder.as_str()));
    where_time_went(record.total, record.stages.iter().copied(), waits)
}

fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let mut facts = vec![("request", lines::request(record))];
    let mut status = record.status.to_string();
    if record.cause != 0 {
        status += &format!(", cause {} (docs/causes.md)", lines::cause(record));
    }
    if lines::is_aborted(record) {
        status += ", aborted: not sent completely";
    }
    facts.push(("status", status));
    facts.push(("sent", format!("{} bytes", record.sent_bytes)));
    if !record.answered_by.is_empty() {
        facts.push(("answered by", lines::printable(&record.answered_by)));
    }
    let tls = if record.is(RecordFlag::Tls) {
        ", by TLS"
    } else {
        ""
    };
    facts.push(("client", client_of_key(record.client) + tls));
    facts.push(("worker", record.worker.to_string()));
    facts.push(("begun", lines::time(record.started) + " UTC"));
    facts.push(("id", record.id.to_string()));
    if record.is(RecordFlag::Subrequest) {
        facts.push((
            "made by",
            "the server itself, for another request".to_owned(),
        ));
    }
    facts
}

/// A row of the table: `backend-queue       2.0 s   94 %  ###################`.
fn row(text: &mut String, name: &str, nanos: Nanos, total: Nanos) {
    let bar = (u128::from(nanos) * BAR_WIDTH / u128::from(total.max(1))).min(BAR_WIDTH);
    let line = format!(
        "{name:<NAME_WIDTH$}  {:>8}  {:>3} %  {}",
        Time(nanos).to_string(),
        percent_of(nanos, total),
        "#".repeat(bar as usize)
    );
    let _ = writeln!(text, "{}", line.trim_end());
}

const NAME_WIDTH: usize = 18;
const BAR_WIDTH: u128 = 40;
