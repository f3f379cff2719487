//! What is told of two answers that differ.
//!
//! Left out, because it differs by nature or is each server's own: Date, Server, the words of Connection, the text of ETags,
//! how a body of unknown length is framed, bytes that were compressed, and the text of built-in pages.

use std::collections::BTreeSet;

use petrel_tests::Response;

use crate::differential::requests::Answer;

/// Fields that must be the same, beside those whose names begin with `X-`.
const FIELDS: [&str; 14] = [
    "Content-Type",
    "Content-Length",
    "Content-Range",
    "Content-Encoding",
    "Content-Language",
    "Last-Modified",
    "Location",
    "Allow",
    "Cache-Control",
    "Vary",
    "Set-Cookie",
    "WWW-Authenticate",
    "Access-Control-Allow-Origin",
    "Content-Security-Policy",
];

/// Those that a built-in page has its own way with.
const OF_PAGES: [&str; 3] = ["Content-Length", "Content-Type", "Content-Security-Policy"];

/// Seconds that may lie between the two answers.
const BETWEEN_S: u64 = 300;

/// One note for each difference.
pub(crate) fn notes(our_answer: &Answer, their_answer: &Answer) -> Vec<String> {
    let (ours, theirs) = match (&our_answer.response, &their_answer.response) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(_), Err(_)) => return Vec::new(),
        (Ok(ours), Err(error)) => return vec![format!("status {} for none: {error}", ours.status)],
        (Err(error), Ok(theirs)) => {
            return vec![format!("no answer for {}: {error}", theirs.status)];
        }
    };
    if ours.status != theirs.status {
        return vec![format!("status {} for {}", ours.status, theirs.status)];
    }
    let is_error = theirs.status >= 300;
    let is_compressed = [ours, theirs]
        .iter()
        .any(|one| !one.all("Content-Encoding").is_empty());
    let is_page =
        theirs.has_page_of_lighttpd() || is_error && (our_answer.is_to_head || is_compressed);
    let (our_body, their_body) = (
        our_answer.plain(&ours.text()),
        their_answer.plain(&theirs.text()),
    );
    // Directories of the two trees, and what separates ranges, have names of different lengths.
    let is_as_sent = our_body == ours.text() && their_body == theirs.text();
    let is_listing = their_body.contains("<title>Index of");
    let has_lengths = !is_listing
        && [ours, theirs]
            .iter()
            .all(|one| one.all("Content-Length").len() == 1);
    let mut notes = Vec::new();
    for name in names(ours, theirs) {
        let of_body = name == "Content-Length" && (!has_lengths || is_compressed || !is_as_sent);
        if of_body || is_page && OF_PAGES.contains(&name.as_str()) {
            continue;
        }
        let values = |answer: &Answer, response: &Response| -> Vec<String> {
            response
                .all(&name)
                .iter()
                .map(|value| answer.plain(value))
                .collect()
        };
        let (ours, theirs) = (values(our_answer, ours), values(their_answer, theirs));
        if ours != theirs {
            notes.push(format!("{name} {ours:?} for {theirs:?}"));
        }
    }
    let (our_etag, their_etag) = (etag_form(ours), etag_form(theirs));
    if our_etag != their_etag {
        notes.push(format!("ETag {our_etag} for {their_etag}"));
    }
    if !is_about_the_same_time(ours, theirs) {
        notes.push(format!(
            "Expires {:?} for {:?}",
            ours.all("Expires"),
            theirs.all("Expires")
        ));
    }
    if !is_page && !is_compressed {
        let (our_body, their_body) = match is_listing {
            true => (links(&our_body), links(&their_body)),
            false => (our_body, their_body),
        };
        if our_body.trim_start() != their_body.trim_start() {
            notes.push(first_difference(&our_body, &their_body));
        }
    }
    notes
}

/// The fields that are compared.
fn names(ours: &Response, theirs: &Response) -> BTreeSet<String> {
    let sent = ours.fields.iter().chain(&theirs.fields);
    let own = sent
        .map(|(name, _)| name.to_ascii_lowercase())
        .filter(|name| name.starts_with("x-"));
    own.chain(FIELDS.map(str::to_owned)).collect()
}

/// Whether there is an ETag, whether it is weak, and the coding in it.
fn etag_form(response: &Response) -> String {
    let Some(etag) = response.all("ETag").first().copied() else {
        return "none".to_owned();
    };
    let weak = if etag.starts_with("W/") {
        "weak"
    } else {
        "strong"
    };
    let is_name = |text: &&str| text.bytes().all(|byte| byte.is_ascii_lowercase());
    let behind = etag.trim_end_matches('"').rsplit('-').next();
    let coding = behind.filter(is_name).unwrap_or_default();
    format!("{weak} {coding}")
}

/// Whether both expire at about the same time, or not at all.
fn is_about_the_same_time(ours: &Response, theirs: &Response) -> bool {
    match (
        ours.all("Expires").as_slice(),
        theirs.all("Expires").as_slice(),
    ) {
        ([], []) => true,
        ([ours], [theirs]) => {
            let seconds = |text: &str| engine::proto::date::parse(text.as_bytes());
            match (seconds(ours), seconds(theirs)) {
                (Some(ours), Some(theirs)) => ours.abs_diff(theirs) <= BETWEEN_S,
                _ => ours == theirs,
            }
        }
        _ => false,
    }
}

/// What a listing links to.
fn links(page: &str) -> String {
    let targets = page
        .split("href=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    let mut entries: Vec<&str> = targets
        .filter(|target| *target != "../" && !target.starts_with('?'))
        .collect();
    entries.sort_unstable();
    entries.join(" ")
}

/// The first lines that differ.
fn first_difference(ours: &str, theirs: &str) -> String {
    let (mut our_lines, mut their_lines) = (ours.lines(), theirs.lines());
    loop {
        match (our_lines.next(), their_lines.next()) {
            (ours, theirs) if ours == theirs && ours.is_some() => {}
            (None, None) => return format!("ends of lines in {ours:?} for {theirs:?}"),
            (ours, theirs) => {
                return format!(
                    "body {:?} for {:?}",
                    ours.unwrap_or("(end)"),
                    theirs.unwrap_or("(end)")
                );
            }
        }
    }
}
