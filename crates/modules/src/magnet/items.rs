//! `lighty.r.req_item`: numbers about the request.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_lua::DirectAnswer;
use petrel_lua::mlua::{self, Lua, Table, Value};

use super::environment::{lend, try_lend};
use crate::lua::State;

/// In the order in which `pairs` returns them.
const ITEMS: [&str; 9] = [
    "bytes_in",
    "bytes_out",
    "stream_id",
    "req_count",
    "start_time",
    "keep_alive",
    "http_status",
    "req_header_len",
    "resp_header_len",
];

/// Adds the names, and the functions that read and write the items.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    host.set("items", lua.create_sequence_from(ITEMS)?)?;
    let lent = Rc::clone(state.lent());
    let get = lua.create_function(move |lua, number: usize| {
        let name = number.checked_sub(1).and_then(|index| ITEMS.get(index));
        try_lend(&lent, |exchange| match name {
            Some(&"start_time") => start_time(lua, exchange),
            name => Ok(Value::Number(value(exchange, name.copied()))),
        })
    })?;
    let get = state.machine().direct(
        state.lent(),
        |exchange, arguments, _| {
            let number = usize::try_from(arguments.number).unwrap_or(0);
            match number.checked_sub(1).and_then(|index| ITEMS.get(index)) {
                None | Some(&"start_time") => DirectAnswer::UNABLE,
                name => DirectAnswer::number(value(exchange, name.copied())),
            }
        },
        &get,
    )?;
    host.set("item_get", get)?;
    let lent = Rc::clone(state.lent());
    let set = lua.create_function(move |_, (number, value): (usize, Value)| {
        let name = number.checked_sub(1).and_then(|index| ITEMS.get(index));
        // A script can have the connection closed after this answer. Nothing else can be changed.
        let closes = matches!(value, Value::Integer(0) | Value::Boolean(false))
            || matches!(value, Value::Number(number) if number == 0.0);
        lend(&lent, |exchange| {
            let is_keep_alive = name == Some(&"keep_alive");
            exchange.response.close |= is_keep_alive && closes;
            is_keep_alive
        })
    })?;
    host.set("item_set", set)
}

/// All items but `start_time` are numbers.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn value(exchange: &Exchange, name: Option<&str>) -> f64 {
    let head = &exchange.request.head;
    let number = match name {
        Some("bytes_in") => head.head_length() as u64 + exchange.request.body_bytes,
        Some("bytes_out") => exchange.sent.bytes,
        Some("req_count") => exchange.connection.request_number.into(),
        Some("keep_alive") => (head.keep_alive() && !exchange.response.close).into(),
        Some("http_status") => exchange.response.status.0.into(),
        Some("req_header_len") => head.head_length() as u64,
        Some("resp_header_len") => exchange.response.fields().as_bytes().len() as u64,
        // The number of the stream; HTTP/1 has only one.
        _ => 0,
    };
    number as f64
}

/// A function that returns seconds and nanoseconds.
fn start_time(lua: &Lua, exchange: &Exchange) -> mlua::Result<Value> {
    let begin = exchange
        .worker
        .clock()
        .wall_nanos_at(exchange.ledger.started());
    let (seconds, nanoseconds) = (begin / 1_000_000_000, begin % 1_000_000_000);
    let function = lua.create_function(move |_, ()| Ok((seconds, nanoseconds)))?;
    Ok(Value::Function(function))
}
