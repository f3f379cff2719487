//! What held a request up, where people look for it: on the status page and in what `petrel why` says.

use std::process::Command;

use serde_json::Value;

use crate::{PATIENCE, Server, eventually, petrel, run};

/// Panics unless the status page at `/status` and `petrel why` say what the access log's `note` says about the request
/// `id`. A note is `STAGE TIME: HOLDER`; the log escapes quotes in it.
#[track_caller]
pub fn expect_note_everywhere(server: &Server, id: &str, note: &str) {
    let (wait, holder) = note.split_once(": ").expect("a note has a holder");
    let holder = &holder.replace("\\\"", "\"");
    let stage = wait.split(' ').next().unwrap_or_default();
    // The page is made once a second.
    let mut page = String::new();
    let is_shown = eventually(|| {
        page = server.get("/status?json").text();
        is_on_the_page(&page, id, stage, holder)
    });
    assert!(
        is_shown,
        "the status page does not say {id}, {note}: {page}"
    );
    let mut why = Command::new(petrel());
    why.args(["why", id, "-f"])
        .arg(server.tree().path("petrel.conf"));
    let told = run(&mut why, PATIENCE);
    assert!(
        told.text().contains(holder),
        "`petrel why` does not say {holder:?}: {}{}",
        told.text(),
        told.errors
    );
}

/// Whether the status page, given as JSON, says about the request `id` that `holder` held it up in `stage`.
fn is_on_the_page(page: &str, id: &str, stage: &str, holder: &str) -> bool {
    let page: Value = serde_json::from_str(page).unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut slowest = list(&page["slowest"]).into_iter();
    let request = slowest.find(|request| request["id"] == *id);
    let waits = request.map(|request| list(&request["waits"]));
    let mut waits = waits.into_iter().flatten();
    waits.any(|wait| wait["stage"] == *stage && wait["holder"] == *holder)
}
