//! The answer made of parts: type, ETag, Last-Modified, conditions, a range.
//!
//! The ETag depends on all parts, their order and the type. Last-Modified is that of the latest part. If it
//! is not known for one of them, the answer has none.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::module::Outcome;
use petrel_engine::proto::date;
use petrel_engine::proto::status::Status;
use petrel_engine::ranges::AskedRange;
use petrel_engine::settings::CoreSettings;

use super::parts::FoundPart;
use crate::static_file;

/// Answers with `parts`, subject to the conditions of the request.
pub(super) fn answer(exchange: &mut Exchange, parts: &[FoundPart], content_type: &[u8]) -> Outcome {
    let response = &mut exchange.response;
    response.answer(Status::OK);
    response.set("Content-Type", content_type);
    let core = &exchange.settings.core;
    if let Some(etag) = etag(parts, content_type, core) {
        response.set("ETag", etag.as_bytes());
    }
    let modified_s = modified_s(parts);
    if let Some(modified_s) = modified_s {
        let mut text = [0; 29];
        date::format_imf(modified_s, &mut text);
        response.set("Last-Modified", &text);
    }
    let pieces: Vec<Piece> = parts.iter().map(FoundPart::piece).collect();
    if exchange.handles_error() {
        exchange.response.body = body(pieces, None);
        return Outcome::Answer;
    }
    if exchange.settings.core.range_requests {
        exchange.response.set("Accept-Ranges", b"bytes");
    }
    exchange.response.body = match static_file::ask(exchange, length(&pieces), modified_s) {
        AskedRange::Nothing => return Outcome::Answer,
        AskedRange::Range(range) => body(pieces, Some(range)),
        // The phase loop cuts the page where the client asks for several ranges.
        AskedRange::Whole | AskedRange::Ranges(_) => body(pieces, None),
    };
    Outcome::Answer
}

fn length(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::length).sum()
}

/// A strong entity tag, unless the configuration switches those of files off.
fn etag(parts: &[FoundPart], content_type: &[u8], core: &CoreSettings) -> Option<String> {
    let has_file_tags = core.etag_inode || core.etag_size || core.etag_mtime;
    let mut hasher = DefaultHasher::new();
    content_type.hash(&mut hasher);
    let mut length: u64 = 0;
    for part in parts {
        length = length.wrapping_add(part.piece().length());
        match part {
            FoundPart::File(_) if !has_file_tags => return None,
            FoundPart::File(file) => {
                let stat = file.stat();
                let modified = (stat.modified_s, stat.modified_ns);
                core.etag_inode
                    .then_some((stat.device, stat.inode))
                    .hash(&mut hasher);
                core.etag_size.then_some(stat.size).hash(&mut hasher);
                core.etag_mtime.then_some(modified).hash(&mut hasher);
            }
            FoundPart::Text(bytes) => bytes.hash(&mut hasher),
        }
    }
    Some(format!("\"{:016x}-{length:x}\"", hasher.finish()))
}

/// When the latest part was changed, in seconds since 1970.
fn modified_s(parts: &[FoundPart]) -> Option<u64> {
    let times = parts.iter().map(|part| match part {
        FoundPart::File(file) => Some(file.stat().modified_s),
        FoundPart::Text(_) => None,
    });
    times
        .into_iter()
        .try_fold(None, |latest: Option<u64>, time| {
            Some(latest.max(Some(time?)))
        })?
}

/// A body in memory up to this size is sent together with the head in one system call.
const JOINED_BYTES_MAX: u64 = 32 * 1024;

/// A body made of `pieces`, or of the bytes `range` of them. Adjacent pieces in memory are joined, because
/// each piece costs a system call.
fn body(pieces: Vec<Piece>, range: Option<Range<u64>>) -> Body {
    let pieces = match range {
        Some(range) => cut(pieces, range),
        None => pieces,
    };
    let mut joined: VecDeque<Piece> = VecDeque::with_capacity(pieces.len());
    let mut run: Vec<Piece> = Vec::new();
    for piece in pieces {
        let fits = piece.in_memory().is_some() && length(&run) + piece.length() <= JOINED_BYTES_MAX;
        if !fits {
            joined.extend(join(std::mem::take(&mut run)));
        }
        run.push(piece);
    }
    joined.extend(join(run));
    match (joined.len(), joined.pop_front()) {
        (1, Some(piece)) => Body::Piece(piece),
        (_, Some(first)) => {
            joined.push_front(first);
            Body::Pieces(joined)
        }
        (_, None) => Body::Empty,
    }
}

/// Joins the pieces of `run`, which are in memory, into one.
fn join(mut run: Vec<Piece>) -> Option<Piece> {
    if run.len() <= 1 {
        return run.pop();
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length(&run)).unwrap_or_default());
    for piece in &run {
        bytes.extend_from_slice(piece.in_memory().unwrap_or_default());
    }
    Some(Piece::Bytes(bytes.into()))
}

/// The bytes `range` of all pieces together.
fn cut(pieces: Vec<Piece>, range: Range<u64>) -> Vec<Piece> {
    let mut start = 0;
    let mut kept = Vec::new();
    for mut piece in pieces {
        let end = start + piece.length();
        if end > range.start && start < range.end {
            piece.advance(range.start.saturating_sub(start));
            let excess = end.saturating_sub(range.end);
            piece.truncate(piece.length().saturating_sub(excess));
            kept.push(piece);
        }
        start = end;
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;

    use super::*;

    fn bytes_of(mut body: Body) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(piece))) = body.poll_piece(&mut context) {
            pieces.push(piece.in_memory().expect("memory").to_vec());
        }
        pieces
    }

    fn pieces(texts: &[&'static str]) -> Vec<Piece> {
        let text = |text: &&'static str| Piece::Bytes(Bytes::from_static(text.as_bytes()));
        texts.iter().map(text).collect()
    }

    #[test]
    fn small_parts_leave_as_one() {
        assert_eq!(bytes_of(body(pieces(&["ab", "", "c"]), None)), [b"abc"]);
        assert!(bytes_of(body(Vec::new(), None)).is_empty());
        let large = Piece::Bytes(vec![b'x'; 32 * 1024].into());
        let mut all = pieces(&["a", "b"]);
        all.insert(1, large);
        let lengths: Vec<_> = bytes_of(body(all, None)).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 32 * 1024, 1]);
    }

    #[test]
    fn a_range_goes_across_parts() {
        let all = ["abc", "def", "ghi"];
        for (range, expected) in [
            (0..9, "abcdefghi"),
            (1..2, "b"),
            (2..7, "cdefg"),
            (3..6, "def"),
            (8..9, "i"),
        ] {
            let got = bytes_of(body(pieces(&all), Some(range.clone()))).concat();
            assert_eq!(got, expected.as_bytes(), "{range:?}");
        }
    }
}
