//! `petrel.http`: requests to other servers, over persistent connections.
//!
//! A URL that begins with a slash is a subrequest: a script uses it to ask a configured backend.

mod client;
mod target;

use std::rc::{Rc, Weak};

use petrel_lua::mlua::{self, Table};

use super::asked::WantedRequest;
use crate::lua::State;
use client::HttpClient;
use target::HttpTarget;

/// Adds `petrel.http`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let worker = Weak::clone(state.worker());
    let elsewhere = state.machine().waiting(move |_, asked: WantedRequest| {
        let worker = worker.upgrade().ok_or_else(super::no_request)?;
        let target = HttpTarget::parse(&asked.url).map_err(mlua::Error::runtime)?;
        let client = HttpClient::of(&worker);
        Ok(async move {
            client
                .fetch(&target, &asked)
                .await
                .map_err(mlua::Error::runtime)
        })
    })?;
    let here: mlua::Function = petrel.get("subrequest")?;
    let choose = state
        .machine()
        .lua()
        .load(include_str!("choose.lua"))
        .set_name("=petrel/http.lua");
    petrel.set("http", choose.call::<mlua::Function>((here, elsewhere))?)
}
