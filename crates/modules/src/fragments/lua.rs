//! `petrel.fragment(key, ttl, make)` for scripts.
//!
//! The ticket for making a fragment is kept with the request and not with the script, so it is dropped with
//! the request, however the script ends.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_lua::Lent;
use petrel_lua::mlua::{self, Lua, LuaString, Table, Value};

use super::{Patience, Taken, Ticket, fresh, take};
use crate::lua::State;

/// Adds `petrel.fragment`.
///
/// # Errors
/// No memory is left.
pub(crate) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let native = lua.create_table()?;
    add_fresh(state, &native)?;
    add_take(state, &native)?;
    add_ends(state, &native)?;
    let fragment: mlua::Function = lua
        .load(include_str!("fragment.lua"))
        .set_name("=petrel/fragment.lua")
        .call(native)?;
    petrel.set("fragment", fragment)
}

/// `fresh(key)`: returns the fragment, or nil.
fn add_fresh(state: &Rc<State>, native: &Table) -> mlua::Result<()> {
    // Weak, because the worker owns the state, and the state the function.
    let worker = state.worker().clone();
    let function = state
        .machine()
        .lua()
        .create_function(move |lua, key: LuaString| {
            let found = worker
                .upgrade()
                .and_then(|worker| fresh(&worker, &own(&key)));
            shown(lua, found)
        })?;
    native.set("fresh", function)
}

/// `take(key, ttl)`: returns the fragment, or nil and the number of a ticket.
fn add_take(state: &Rc<State>, native: &Table) -> mlua::Result<()> {
    let worker = state.worker().clone();
    let lent = Rc::clone(state.lent());
    let function = state
        .machine()
        .waiting(move |lua, (key, ttl): (LuaString, f64)| {
            let (worker, lent) = (worker.upgrade(), Rc::clone(&lent));
            let (key, lua) = (own(&key), lua.clone());
            Ok(async move {
                let Some(worker) = worker else {
                    return Ok((Value::Nil, 0));
                };
                let patience = patience(&lent);
                // The cast saturates. A fraction of a second is rounded up.
                match take(&worker, &key, ttl.ceil() as u32, patience).await {
                    Taken::Found(bytes) => Ok((shown(&lua, Some(bytes))?, 0)),
                    Taken::Make(ticket) => Ok((Value::Nil, keep(&lent, ticket))),
                }
            })
        })?;
    native.set("take", function)
}

/// `finish(ticket, text)`, and `fail(ticket, key, reason)`, which returns the last fragment or nil.
fn add_ends(state: &Rc<State>, native: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let finish = lua.create_function(move |_, (number, text): (usize, LuaString)| {
        if let Some(ticket) = find(&lent, number) {
            ticket.finish(Bytes::copy_from_slice(&text.as_bytes()));
        }
        Ok(())
    })?;
    native.set("finish", finish)?;
    let lent = Rc::clone(state.lent());
    let fail = lua.create_function(
        move |lua, (number, key, reason): (usize, LuaString, LuaString)| {
            let found = find(&lent, number).and_then(Ticket::fail);
            if found.is_some() {
                let (key, reason) = (key.to_string_lossy(), reason.to_string_lossy());
                lent.with(|exchange| {
                    let cause = format_args!("the last fragment {key:?} is used again: {reason}");
                    exchange.log_error("content", cause);
                });
            }
            shown(lua, found)
        },
    )?;
    native.set("fail", fail)
}

/// The key of a script's fragment; the prefix distinguishes it from keys of URLs.
pub(super) fn own(key: &LuaString) -> Vec<u8> {
    [&b"k"[..], &key.as_bytes()].concat()
}

fn shown(lua: &Lua, found: Option<Bytes>) -> mlua::Result<Value> {
    match found {
        Some(bytes) => lua.create_string(bytes).map(Value::String),
        None => Ok(Value::Nil),
    }
}

/// The tickets of a request, numbered from 1.
#[derive(Default)]
struct Tickets(RefCell<Vec<Option<Ticket>>>);

/// How many tickets a request keeps. A fragment without a kept ticket is not stored.
const TICKETS_MAX: usize = 256;

/// Whether the request may wait for another one to make a fragment.
fn patience(lent: &Lent<Exchange>) -> Patience {
    let is_free = lent.with(|exchange| {
        let tickets = exchange.kept::<Tickets>(KEPT);
        let has_none = |tickets: Rc<Tickets>| tickets.0.borrow().iter().all(Option::is_none);
        !exchange.is_subrequest() && tickets.is_none_or(has_none)
    });
    match is_free {
        Some(true) => Patience::Waits,
        _ => Patience::MakesItsOwn,
    }
}

/// Keeps `ticket` with the request. Returns its number; 0 if it is not kept.
fn keep(lent: &Lent<Exchange>, ticket: Ticket) -> usize {
    let kept = lent.with(|exchange| {
        let tickets = exchange.kept::<Tickets>(KEPT).unwrap_or_else(|| {
            let made = Rc::<Tickets>::default();
            exchange.keep(KEPT, Rc::clone(&made) as Rc<dyn std::any::Any>);
            made
        });
        let mut tickets = tickets.0.borrow_mut();
        let is_free = |place: &Option<Ticket>| place.is_none();
        match tickets.iter_mut().position(|place| is_free(place)) {
            Some(place) => {
                if let Some(free) = tickets.get_mut(place) {
                    *free = Some(ticket);
                }
                place + 1
            }
            None if tickets.len() < TICKETS_MAX => {
                tickets.push(Some(ticket));
                tickets.len()
            }
            None => 0,
        }
    });
    kept.unwrap_or(0)
}

/// Takes the ticket with this number.
fn find(lent: &Lent<Exchange>, number: usize) -> Option<Ticket> {
    let tickets = lent.with(|exchange| exchange.kept::<Tickets>(KEPT))??;
    let mut tickets = tickets.0.borrow_mut();
    tickets.get_mut(number.checked_sub(1)?)?.take()
}

const KEPT: &str = "petrel.fragment";
