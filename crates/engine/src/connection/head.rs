//! Writes response heads of HTTP/1.

use petrel_proto::http1::{write_content_length, write_status_line};
use petrel_proto::request_head::Version;

use super::send::Framing;
use super::serving::Serving;
use crate::trace;

/// Writes the head of the response into the send buffer, and decides how the end of the body is marked.
pub(super) fn write(serving: &mut Serving, keep_alive: bool) {
    let run = &mut serving.run;
    let is_head_unread = !run.request.refused_line.is_empty();
    let version = match run.settings.core.http11 {
        // For a refused head, the end of its first line tells the client's version; otherwise the response
        // has our own.
        true if is_head_unread && run.request.refused_line.ends_with(b" HTTP/1.0") => {
            Version::Http10
        }
        true if is_head_unread => Version::Http11,
        true => run.request.head.version(),
        false => Version::Http10,
    };
    let head = run.answer_head();
    let framing = match (head.length, version) {
        _ if !head.has_body => Framing::Plain,
        (Some(_), _) => Framing::Plain,
        (None, Version::Http10) => Framing::UntilClose,
        (None, _) => Framing::Chunked,
    };
    let keep_alive = keep_alive && framing != Framing::UntilClose;
    let out = serving.wire.sending.begin(framing, run);
    write_status_line(out, version, head.status);
    if head.adds_date {
        run.worker.clock().write_date_line(out);
    }
    if head.adds_server {
        out.extend_from_slice(&run.settings.core.server_line);
    }
    out.extend_from_slice(run.response.fields().as_bytes());
    match (head.length, framing) {
        (_, Framing::Chunked) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        (Some(length), _) => write_content_length(out, length),
        _ => {}
    }
    match (keep_alive, version) {
        _ if run.is_tunnel() => out.extend_from_slice(b"Connection: upgrade\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (false, Version::Http11) => out.extend_from_slice(b"Connection: close\r\n"),
        _ => {}
    }
    if let Some(value) = head.server_timing {
        out.extend_from_slice(b"Server-Timing: ");
        out.extend_from_slice(&value);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    run.sent.head_bytes = out.len() as u64;
    run.sent.keep_alive = keep_alive;
    if run.settings.core.debug.response_header {
        trace::response_header(run, out);
    }
}
