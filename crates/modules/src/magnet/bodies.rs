//! `lighty.r.req_body` and `lighty.r.resp_body`.
//!
//! `collect` waits until the request body has arrived; `get`, `add` and `set` of that body collect it first.
//! A response body that is still being produced (by a backend) is collected before a script reads or changes
//! it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece, RequestBody};
use petrel_engine::cause::CauseCode;
use petrel_engine::cold_files::cause_of_error;
use petrel_engine::network_backend::FileReader;
use petrel_engine::proto::request_head::BodyFraming;
use petrel_engine::proto::status::Status;
use petrel_lua::mlua::{self, Function, Lua, Table, Value};
use petrel_lua::{DirectAnswer, DirectArguments, Lent, Reply};

use super::answer::{Texts, body_of, replace_body};
use super::content::{self, Lengths};
use super::environment::{lend, try_lend};
use crate::lua::{State, waiting_for};

/// The largest body that a script gets as one string, and the largest that is collected for it.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// Adds the functions.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table, texts: &Rc<Texts>) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let collect = collect_request(state, Place::Any)?;
    let recall = collect_request(state, Place::Memory)?;
    let values = lua.create_table()?;
    let lent = state.lent();
    values.set("len", number(state, request_length)?)?;
    values.set(
        "bytes_in",
        number(state, |exchange| Some(exchange.request.body_bytes))?,
    )?;
    values.set("bytes_out", number(state, |_| Some(0))?)?;
    values.set("unspecified_len", {
        let lent = Rc::clone(lent);
        lua.create_function(move |_, ()| {
            lend(&lent, |exchange| {
                exchange.body_framing() == BodyFraming::Chunked
            })
        })?
    })?;
    values.set("collect", &collect)?;
    values.set("get", after(lua, &recall, &request_get(lua, lent)?)?)?;
    host.set("req_body", values)?;
    let changes = lua.create_table()?;
    for (name, first, change) in [
        ("add", &recall, Change::Add),
        ("set", &collect, Change::Set),
    ] {
        let function = with_files(state, &request_change(state, change)?)?;
        changes.set(name, after(lua, first, &function)?)?;
    }
    host.set("req_body_changes", changes)?;
    open_response(state, host, texts)
}

fn open_response(state: &Rc<State>, host: &Table, texts: &Rc<Texts>) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let lent = state.lent();
    let collect = collect_response(state)?;
    let values = lua.create_table()?;
    values.set("len", number(state, response_length)?)?;
    values.set(
        "bytes_in",
        number(state, |exchange| exchange.response.body.length())?,
    )?;
    values.set(
        "bytes_out",
        number(state, |exchange| Some(exchange.sent.body_bytes))?,
    )?;
    values.set("get", after(lua, &collect, &response_get(state)?)?)?;
    host.set("resp_body", values)?;
    let changes = lua.create_table()?;
    let add = response_change(lua, lent, Change::Add)?;
    changes.set("add", after(lua, &collect, &with_files(state, &add)?)?)?;
    let set = with_files(state, &response_change(lua, lent, Change::Set)?)?;
    let texts = Rc::clone(texts);
    let set_text = move |exchange: &mut Exchange, arguments: DirectArguments<'_>, _: &Reply| {
        let response = &mut exchange.response;
        match (arguments.text, &response.body) {
            (None, _) | (_, Body::Source(_)) => DirectAnswer::UNABLE,
            (Some(text), _) => {
                replace_body(response, texts.body(text));
                DirectAnswer::NIL
            }
        }
    };
    changes.set("set", state.machine().direct(lent, set_text, &set)?)?;
    host.set("resp_body_changes", changes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Set,
}

/// A function that calls `first`, which may wait, and then calls `second` with the arguments.
fn after(lua: &Lua, first: &Function, second: &Function) -> mlua::Result<Function> {
    lua.load("local first, second = ... return function(...) first() return second(...) end")
        .set_name("=petrel/magnet.lua")
        .call((first, second))
}

/// A function that returns `now()`, or, if that is nil, the result of `wait()`.
fn now_or_later(lua: &Lua, now: &Function, wait: &Function) -> mlua::Result<Function> {
    let source = "local now, wait = ...\n\
                  return function() local done = now() if done == nil then return wait() end return done end";
    lua.load(source)
        .set_name("=petrel/magnet.lua")
        .call((now, wait))
}

/// A function that returns a number, or nil if there is none.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn number(state: &Rc<State>, read: fn(&Exchange) -> Option<u64>) -> mlua::Result<Function> {
    let lent = Rc::clone(state.lent());
    let machine = state.machine();
    let number = machine.lua().create_function(move |_, ()| {
        lend(&lent, |exchange| read(exchange)).map(|number| number.map(|number| number as f64))
    })?;
    let direct = move |exchange: &mut Exchange, _: DirectArguments<'_>, _: &Reply| {
        read(exchange).map_or(DirectAnswer::NIL, |number| {
            DirectAnswer::number(number as f64)
        })
    };
    machine.direct(state.lent(), direct, &number)
}

// The request ------------------------------------------------------------------------------------------

/// The length that the head announces, or, if it announces none, the length of what was received.
fn request_length(exchange: &Exchange) -> Option<u64> {
    let body = &exchange.request.body;
    match exchange.body_framing() {
        _ if body.is_wanted() && body.is_complete() => Some(body.received()),
        BodyFraming::Length(length) => Some(length),
        BodyFraming::Chunked => None,
        _ => Some(0),
    }
}

/// Where a script needs a body to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Any,
    Memory,
}

/// A function that waits until the request body has arrived. Returns true, or false if it cannot be had.
fn collect_request(state: &Rc<State>, place: Place) -> mlua::Result<Function> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let now = lua.create_function(move |_, ()| {
        lend(&lent, |exchange| {
            collected(exchange).filter(|_| !has_to_be_recalled(exchange, place))
        })
    })?;
    let lent = Rc::clone(state.lent());
    let wait = state.machine().waiting(move |_, ()| {
        let lent = Rc::clone(&lent);
        // The connection polls the exchange again when the body is complete.
        Ok(poll_fn(move |context| {
            let polled = try_lend(&lent, |exchange| {
                let Some(is_there) = collected(exchange) else {
                    return Ok(Poll::Pending);
                };
                if !has_to_be_recalled(exchange, place) {
                    return Ok(Poll::Ready(is_there));
                }
                let recalled = exchange.request.body.spool_mut().poll_recall(context);
                Ok(recalled.map_ok(|()| is_there)?)
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(is_there)) => Poll::Ready(Ok(is_there)),
                Err(error) => Poll::Ready(Err(error)),
            }
        }))
    })?;
    now_or_later(lua, &now, &wait)
}

/// Whether the body is on disk and a script wants to read it. A body that is too long for scripts stays on
/// disk.
fn has_to_be_recalled(exchange: &Exchange, place: Place) -> bool {
    let spool = exchange.request.body.spool();
    place == Place::Memory && spool.is_on_disk() && spool.held() <= BODY_BYTES_MAX
}

/// Whether the body has arrived; `None` if it is on its way.
fn collected(exchange: &mut Exchange) -> Option<bool> {
    let has_body = request_length(exchange) != Some(0);
    let body = &mut exchange.request.body;
    if !has_body {
        return Some(true);
    }
    if body.is_streamed() {
        // The body is already being passed on, usually to a backend.
        return Some(false);
    }
    if !body.is_wanted() && body.is_complete() {
        // The body was read and thrown away.
        return Some(false);
    }
    body.want();
    match body.is_complete() {
        true => Some(body.failure().is_none()),
        false => None,
    }
}

fn request_get(lua: &Lua, lent: &Rc<Lent<Exchange>>) -> mlua::Result<Function> {
    let lent = Rc::clone(lent);
    lua.create_function(move |lua, ()| {
        try_lend(&lent, |exchange| {
            let body = &exchange.request.body;
            if !body.is_complete() || body.received() == 0 {
                return Ok(None);
            }
            lua.create_string(whole(body)?).map(Some)
        })
    })
}

/// The whole body that was received. It has been read back into memory, unless it is too long.
fn whole(body: &RequestBody) -> mlua::Result<&[u8]> {
    check_length(body.received())?;
    body.bytes()
        .ok_or_else(|| mlua::Error::runtime("the body is not there any more"))
}

fn check_length(length: u64) -> mlua::Result<()> {
    if length <= BODY_BYTES_MAX {
        return Ok(());
    }
    Err(mlua::Error::runtime(format_args!(
        "a body of {length} bytes is longer than the {} MiB that scripts may have of one",
        BODY_BYTES_MAX >> 20
    )))
}

fn request_change(state: &Rc<State>, change: Change) -> mlua::Result<Function> {
    in_memory(
        state,
        |exchange, what| pieces_of(exchange, what).map(Some),
        move |_, exchange, added| {
            let mut bytes = match change {
                Change::Set => Vec::new(),
                Change::Add => whole(&exchange.request.body)?.to_vec(),
            };
            check_length(bytes.len() as u64 + added.len() as u64)?;
            bytes.extend_from_slice(&added);
            let directories = exchange.worker.process().upload_directories.clone();
            let client = exchange.connection.client_key();
            exchange.request.body.replace(&bytes, &directories, client);
            Ok(Value::Nil)
        },
    )
}

// The response -----------------------------------------------------------------------------------------

/// The length of the answer's body; `None` if it is not known, or if there is no answer yet.
fn response_length(exchange: &Exchange) -> Option<u64> {
    let response = &exchange.response;
    match response.announced_length {
        Some(length) => Some(length),
        None if response.status == Status(0) && response.body.is_empty() => None,
        None => response.body.length(),
    }
}

/// A function that waits until the whole response body has arrived.
fn collect_response(state: &Rc<State>) -> mlua::Result<Function> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let now = lua.create_function(move |_, ()| {
        lend(&lent, |exchange| {
            (!matches!(exchange.response.body, Body::Source(_))).then_some(true)
        })
    })?;
    let lent = Rc::clone(state.lent());
    let wait = state.machine().waiting(move |_, ()| {
        let lent = Rc::clone(&lent);
        let mut pieces = VecDeque::new();
        let held = Cell::new(0);
        Ok(poll_fn(move |context| {
            let polled = lend(&lent, |exchange| {
                pull(exchange, &mut pieces, &held, context)
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(result)) => Poll::Ready(result),
                Err(error) => Poll::Ready(Err(error)),
            }
        }))
    })?;
    now_or_later(lua, &now, &wait)
}

/// Takes the pieces of the body as they arrive, and puts all of them back at the end.
fn pull(
    exchange: &mut Exchange,
    pieces: &mut VecDeque<Piece>,
    held: &Cell<u64>,
    context: &mut Context<'_>,
) -> Poll<mlua::Result<bool>> {
    let body = &mut exchange.response.body;
    loop {
        body.work(&mut exchange.request.body, context);
        match body.poll_piece(context) {
            Poll::Pending => {
                let wake_at_s = body.wake_at_s();
                if let Some(second) = wake_at_s {
                    exchange.wake_at(second);
                }
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(piece))) => {
                held.set(held.get() + piece.length());
                if let Err(error) = check_length(held.get()) {
                    return failed(exchange, error);
                }
                pieces.push_back(piece);
            }
            Poll::Ready(Some(Err(error))) => {
                return failed(exchange, mlua::Error::external(error));
            }
            Poll::Ready(None) => break,
        }
    }
    exchange.response.body = body_of(std::mem::take(pieces));
    Poll::Ready(Ok(true))
}

/// Part of the body is lost, so there is none to send: the answer becomes an error.
fn failed(exchange: &mut Exchange, error: mlua::Error) -> Poll<mlua::Result<bool>> {
    exchange.replace_by_error(CauseCode::LuaBodyLost);
    Poll::Ready(Err(error))
}

fn response_get(state: &Rc<State>) -> mlua::Result<Function> {
    in_memory(
        state,
        |exchange, _| {
            Ok(match &exchange.response.body {
                Body::Piece(piece) => Some(VecDeque::from([piece.clone()])),
                Body::Pieces(pieces) => Some(pieces.clone()),
                Body::Empty | Body::Source(_) => None,
            })
        },
        |lua, _, bytes| lua.create_string(bytes).map(Value::String),
    )
}

fn response_change(lua: &Lua, lent: &Rc<Lent<Exchange>>, change: Change) -> mlua::Result<Function> {
    let lent = Rc::clone(lent);
    lua.create_function(move |_, what: Value| {
        try_lend(&lent, |exchange| {
            if change == Change::Set {
                let body = match &what {
                    Value::String(text) => Body::from(text.as_bytes().to_vec()),
                    _ => body_of(pieces_of(exchange, &what)?),
                };
                replace_body(&mut exchange.response, body);
                return Ok(());
            }
            let added = pieces_of(exchange, &what)?;
            let response = &mut exchange.response;
            let mut pieces = match std::mem::take(&mut response.body) {
                Body::Empty | Body::Source(_) => VecDeque::new(),
                Body::Piece(piece) => VecDeque::from([piece]),
                Body::Pieces(pieces) => pieces,
            };
            pieces.extend(added);
            response.body = body_of(pieces);
            Ok(())
        })
    })
}

/// The pieces that a function needs for its argument.
type WantedPieces = fn(&Exchange, &Value) -> mlua::Result<Option<VecDeque<Piece>>>;

/// A function that passes the bytes of some pieces to `with` and returns its result; nil if there are no
/// pieces. It waits if some are files whose contents are not in the worker's memory.
fn in_memory(
    state: &Rc<State>,
    wanted: WantedPieces,
    with: impl Fn(&Lua, &mut Exchange, Vec<u8>) -> mlua::Result<Value> + 'static,
) -> mlua::Result<Function> {
    let (lua, with) = (state.machine().lua(), Rc::new(with));
    let (lent, now_with) = (Rc::clone(state.lent()), Rc::clone(&with));
    let now = lua.create_function(move |lua, what: Value| {
        try_lend(&lent, |exchange| {
            let Some(pieces) = wanted(exchange, &what)? else {
                return Ok((true, Value::Nil));
            };
            if pieces.iter().any(|piece| piece.in_memory().is_none()) {
                return Ok((false, Value::Nil));
            }
            check_length(pieces.iter().map(Piece::length).sum())?;
            let parts: Vec<&[u8]> = pieces.iter().filter_map(Piece::in_memory).collect();
            now_with(lua, exchange, parts.concat()).map(|value| (true, value))
        })
    })?;
    let lent = Rc::clone(state.lent());
    let wait = state.machine().waiting(move |lua, what: Value| {
        let mut gathering = try_lend(&lent, |exchange| {
            let pieces = wanted(exchange, &what)?.unwrap_or_default();
            Gathering::new(exchange, pieces)
        })?;
        let (lent, with, lua) = (Rc::clone(&lent), Rc::clone(&with), lua.weak());
        Ok(poll_fn(move |context| {
            let polled = try_lend(&lent, |exchange| {
                let Poll::Ready(bytes) = gathering.poll(exchange, context) else {
                    return Ok(Poll::Pending);
                };
                let bytes = bytes?;
                // The Lua state still exists, because a script of it is running.
                let lua = lua.try_upgrade();
                let value = lua.map(|lua| with(&lua, exchange, bytes)).transpose()?;
                Ok(Poll::Ready(value.unwrap_or(Value::Nil)))
            });
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                Err(error) => Poll::Ready(Err(error)),
            }
        }))
    })?;
    let source = "local now, wait = ...\n\
                  local function done(what, is_done, value)\n\
                    if is_done then return value end\n\
                    return wait(what)\n\
                  end\n\
                  return function(what) return done(what, now(what)) end";
    lua.load(source)
        .set_name("=petrel/magnet.lua")
        .call((now, wait))
}

/// Pieces that are being read into memory.
struct Gathering {
    pieces: VecDeque<Piece>,
    bytes: Vec<u8>,
    filled: usize,
    reader: FileReader,
}

impl Gathering {
    fn new(exchange: &Exchange, pieces: VecDeque<Piece>) -> mlua::Result<Gathering> {
        let length = pieces.iter().map(Piece::length).sum();
        check_length(length)?;
        Ok(Gathering {
            pieces,
            bytes: vec![0; usize::try_from(length).unwrap_or(0)],
            filled: 0,
            reader: exchange.file_reader(),
        })
    }

    /// Ready with all bytes when the disk has delivered them.
    fn poll(
        &mut self,
        exchange: &Exchange,
        context: &mut Context<'_>,
    ) -> Poll<mlua::Result<Vec<u8>>> {
        while let Some(piece) = self.pieces.front_mut() {
            if piece.length() == 0 {
                self.pieces.pop_front();
                continue;
            }
            let rest = self.bytes.get_mut(self.filled..).unwrap_or_default();
            match ready!(piece.poll_read(rest, &mut self.reader, context)) {
                Ok(count) => self.filled += count,
                Err(error) => return Poll::Ready(Err(unreadable(exchange, piece, error))),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.bytes)))
    }
}

/// The error for a script whose file cannot be read. Unless the script catches it, the script ends, and the
/// request gets 504 if the disk does not answer in time.
fn unreadable(exchange: &Exchange, piece: &Piece, error: io::Error) -> mlua::Error {
    match (error.kind(), piece) {
        (io::ErrorKind::TimedOut, Piece::File { file, .. }) => {
            exchange.give_up_on_file("lua", &file.path());
        }
        _ => exchange.fail_on_file(cause_of_error(&error)),
    }
    mlua::Error::external(error)
}

/// A function that waits until the files in its argument have been looked up, and then calls `change` with
/// it.
fn with_files(state: &Rc<State>, change: &Function) -> mlua::Result<Function> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let are_known = lua.create_function(move |_, parts: Table| {
        let files = content::files(&parts)?;
        lend(&lent, |exchange| content::are_known(exchange, &files))
    })?;
    let lent = Rc::clone(state.lent());
    let wait = state.machine().waiting(move |_, parts: Table| {
        let files = content::files(&parts)?;
        Ok(waiting_for(Rc::clone(&lent), move |exchange| {
            content::are_known(exchange, &files).then_some(())
        }))
    })?;
    let source = "local are_known, wait, change = ...\n\
                  local type = type\n\
                  return function(what)\n\
                    if type(what) == 'table' and not are_known(what) then wait(what) end\n\
                    return change(what)\n\
                  end";
    lua.load(source)
        .set_name("=petrel/magnet.lua")
        .call((are_known, wait, change))
}

/// The pieces that a script passed to `add` or `set`.
fn pieces_of(exchange: &Exchange, what: &Value) -> mlua::Result<VecDeque<Piece>> {
    match what {
        Value::Table(parts) => content::pieces(exchange, parts, Lengths::AreLengths)?
            .map_err(|missing| mlua::Error::runtime(missing.to_string())),
        other => {
            let text = content::text_of(other).unwrap_or_default();
            let piece = Piece::Bytes(text.into());
            Ok((piece.length() > 0).then_some(piece).into_iter().collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_engine::file_cache::FileEntry;

    use super::*;
    use crate::testing::Tree;

    #[tokio::test(flavor = "local")]
    async fn a_file_that_cannot_be_read_is_named_and_to_blame() {
        let tree = Tree::new(&[("short", "0123456789")]);
        let path = tree.path("short");
        let site = tree.site("", &[]);
        let exchange = site.unanswered("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let file = std::fs::File::open(&path).expect("it was just made");
        let file = FileEntry::from_file(file, path.as_bytes()).expect("it is a file");
        let range = 0..file.stat().size;
        tree.write("short", "012");
        let pieces = [Piece::Bytes("a".into()), Piece::File { file, range }];
        let mut gathering = Gathering::new(&exchange, pieces.into()).expect("it is short");
        let read = poll_fn(|context| gathering.poll(&exchange, context)).await;
        let error = read.expect_err("it ends before its length").to_string();
        assert!(error.contains(&path), "{error}");
        let cause = exchange.file_failure().expect("a failure");
        assert_eq!(cause.code, CauseCode::DiskError);
    }
}
