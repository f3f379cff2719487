//! Makes the answer out of what a script returns and leaves in `lighty`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::BytesMut;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;
use petrel_engine::response::Response;
use petrel_engine::worker::Worker;
use petrel_lua::mlua::{self, Table, Value};

use super::content::{self, Lengths};
use super::environment::{Content, Finished};
use super::hook::ScriptStage;
use crate::{lua_api, static_file};

/// What a script's return value asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Go on with the request.
    GoOn,
    /// Send an interim response, then go on with the request.
    Interim(Status),
    /// Begin again with the request as the script has changed it.
    Restart,
    /// Send the answer with this status.
    Answer(Status),
    /// There is no status with this number.
    Impossible(i64),
}

/// The value of `lighty.RESTART_REQUEST`.
const RESTART_REQUEST: i64 = 99;

/// What `value` asks for, which the script at `path` has returned. A value that is no whole number is logged
/// and otherwise ignored, as in lighttpd.
pub(super) fn verdict(exchange: &Exchange, path: &[u8], value: &Value) -> Verdict {
    let Some(code) = whole_number(value) else {
        let path = String::from_utf8_lossy(path);
        exchange.log_error(
            "lua",
            format_args!(
                "{path}: the script returned a {} instead of a whole number or nothing; it is ignored",
                value.type_name()
            ),
        );
        return Verdict::GoOn;
    };
    let status = u16::try_from(code).map(Status);
    match (code, status) {
        (RESTART_REQUEST, _) => Verdict::Restart,
        // 101 is for a module that takes the connection over, which no script does.
        (101, _) => Verdict::Impossible(code),
        (100..=199, Ok(status)) => Verdict::Interim(status),
        (200..=999, Ok(status)) => Verdict::Answer(status),
        (1000.., _) => Verdict::Impossible(code),
        _ => Verdict::GoOn,
    }
}

fn whole_number(value: &Value) -> Option<i64> {
    match value {
        Value::Nil => Some(0),
        Value::Integer(code) => Some(*code),
        Value::Number(code) => number(*code),
        Value::String(text) => number(text.to_str().ok()?.trim().parse().ok()?),
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "it is compared again"
)]
fn number(code: f64) -> Option<i64> {
    let whole = code as i64;
    (whole as f64 == code && code.abs() < 1e15).then_some(whole)
}

/// Memory for texts of scripts that become answers. A short text is copied behind the last one, and the
/// memory is used again when the answers are sent.
#[derive(Default)]
pub(super) struct Texts(RefCell<BytesMut>);

impl Texts {
    /// The memory of `worker`.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<Texts> {
        worker.belonging(Texts::default)
    }

    /// A body of `text`.
    pub(crate) fn body(&self, text: &[u8]) -> Body {
        if !(1..=SHORT_TEXT_BYTES_MAX).contains(&text.len()) {
            return Body::from(text.to_vec());
        }
        let mut room = self.0.borrow_mut();
        if room.capacity() < text.len() {
            room.reserve(TEXTS_BYTES);
        }
        room.extend_from_slice(text);
        Body::Piece(Piece::Bytes(room.split().freeze()))
    }
}

/// Longer texts have memory of their own.
const SHORT_TEXT_BYTES_MAX: usize = 1024;
/// How much memory [`Texts`] takes at once. An answer that is not sent keeps it from being used again.
const TEXTS_BYTES: usize = 16 << 10;

/// The paths of the files that a script wants to be sent.
///
/// # Errors
/// No memory is left.
pub(super) fn files(content: &Content<'_>) -> mlua::Result<Vec<Vec<u8>>> {
    match content {
        Content::Parts(parts) => content::files(parts),
        Content::Nothing | Content::Text(_) | Content::Wrong(_) => Ok(Vec::new()),
    }
}

/// Copies fields, content and status to the answer. The [files] have been looked up.
///
/// # Errors
/// No memory is left.
pub(super) fn apply(
    exchange: &mut Exchange,
    stage: ScriptStage,
    path: &[u8],
    verdict: Verdict,
    finished: &Finished<'_>,
    texts: &Texts,
) -> mlua::Result<()> {
    if let Some(header) = &finished.header {
        set_fields(exchange, path, header)?;
    }
    match verdict {
        Verdict::Answer(status) => answer(exchange, stage, path, status, &finished.content, texts),
        Verdict::Interim(status) if stage != ScriptStage::Answer => {
            interim(exchange, status);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn answer(
    exchange: &mut Exchange,
    stage: ScriptStage,
    path: &[u8],
    status: Status,
    content: &Content<'_>,
    texts: &Texts,
) -> mlua::Result<()> {
    exchange.response.set_told_status(status);
    let body = match content {
        Content::Nothing => lua_api::take_body(exchange),
        Content::Text(text) => Some(texts.body(text)),
        Content::Parts(parts) => Some(parts_of(exchange, path, parts)?),
        Content::Wrong(kind) => {
            let path = String::from_utf8_lossy(path);
            exchange.log_error(
                "lua",
                format_args!("{path}: lighty.content is a {kind} instead of a table"),
            );
            None
        }
    };
    if let Some(body) = body {
        replace_body(&mut exchange.response, body);
    }
    if stage != ScriptStage::Answer && status == Status::OK {
        send_ranges(exchange);
    }
    // Content that a script has written is sent even if the status is an error. In the last stage there is a
    // body already, perhaps that of the error page.
    let response = &mut exchange.response;
    if stage != ScriptStage::Answer && status.is_error() && response.body.is_empty() {
        forget_fields(response);
    }
    response.is_final |= stage != ScriptStage::Answer && !response.body.is_empty();
    Ok(())
}

/// The server's error page is sent because the script has written no body. As in lighttpd, the script's
/// fields are dropped then, except for the challenge that asks for a password.
fn forget_fields(response: &mut Response) {
    let challenge = response.get("WWW-Authenticate").map(<[u8]>::to_vec);
    match (response.cause(), response.status) {
        (Some(cause), status) => response.fail_with_status(cause, status),
        (None, status) => response.answer_as_told(status),
    }
    response.set("WWW-Authenticate", &challenge.unwrap_or_default());
}

/// Sends the range that the client asked for, as with a static file: media players seek in what scripts send.
fn send_ranges(exchange: &mut Exchange) {
    let wants_ranges = exchange.request.head.field(KnownField::Range).is_some();
    if !wants_ranges || exchange.handles_error() {
        return;
    }
    match std::mem::take(&mut exchange.response.body) {
        Body::Piece(whole) => static_file::answer_as_asked(exchange, whole, None),
        other => exchange.response.body = other,
    }
}

/// Replaces the body of the answer.
pub(super) fn replace_body(response: &mut Response, body: Body) {
    response.body = body;
    response.announced_length = None;
    // These fields described the old body.
    response.remove_all(&["Content-Encoding", "Content-Range"]);
    if response.status == Status::PARTIAL_CONTENT {
        response.status = Status::OK;
    }
}

fn parts_of(exchange: &mut Exchange, path: &[u8], parts: &Table) -> mlua::Result<Body> {
    match content::pieces(exchange, parts, Lengths::AreEnds)? {
        Ok(pieces) => Ok(body_of(pieces)),
        Err(missing) => {
            let path = String::from_utf8_lossy(path);
            let kept = exchange.response.begin_anew();
            exchange.response.fail(missing.cause());
            exchange.log_error("lua", format_args!("{path}: {missing}"));
            carry_from(&kept, &mut exchange.response);
            Ok(Body::Empty)
        }
    }
}

/// A body made of `pieces`.
pub(super) fn body_of(mut pieces: VecDeque<Piece>) -> Body {
    match pieces.len() {
        0 => Body::Empty,
        1 => pieces.pop_front().map_or(Body::Empty, Body::Piece),
        _ => Body::Pieces(pieces),
    }
}

/// Copies `lighty.header` to the answer: strings and numbers. Other values are skipped.
fn set_fields(exchange: &mut Exchange, path: &[u8], header: &Table) -> mlua::Result<()> {
    for pair in header.pairs::<Value, Value>() {
        let (name, value) = pair?;
        let name = match &name {
            Value::String(name) => name.to_str().ok(),
            _ => None,
        };
        let (Some(name), Some(value)) = (name, content::text_of(&value)) else {
            let path = String::from_utf8_lossy(path);
            exchange.log_error(
                "lua",
                format_args!(
                    "{path}: a name or value in lighty.header is no string; it is ignored"
                ),
            );
            continue;
        };
        exchange.response.set(&name, &value);
    }
    Ok(())
}

/// The fields so far are sent with the interim response and not with the answer.
fn interim(exchange: &mut Exchange, status: Status) {
    let mut fields = HeaderBlock::new();
    fields.extend_from_wire(exchange.response.fields().as_bytes());
    exchange.response.close = exchange.response.begin_anew().close;
    exchange.inform(status, fields);
}

/// No module has answered yet: keeps the fields that scripts have set until one does, and drops a body that
/// was set without a status.
pub(super) fn carry(response: &mut Response) {
    let has_body = !matches!(response.body, Body::Empty);
    if response.fields().is_empty() && !has_body && !response.close {
        return;
    }
    let kept = response.begin_anew();
    carry_from(&kept, response);
}

fn carry_from(kept: &Response, response: &mut Response) {
    if kept.close {
        response.carry("Connection", b"close");
    }
    for (name, value) in kept.fields().iter() {
        if let Ok(name) = std::str::from_utf8(name) {
            response.carry(name, value);
        }
    }
}
