//! `petrel.sleep` and `petrel.now`.
#![expect(clippy::disallowed_methods, reason = "scripts ask for the time")]

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel_lua::mlua::{self, Table, Value};

use super::asked::seconds;
use crate::lua::State;

/// Adds both to `petrel`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let sleep = state.machine().waiting(|_, time: Value| {
        let time = seconds("petrel.sleep", &time)?;
        Ok(async move {
            tokio::time::sleep(time).await;
            Ok(())
        })
    })?;
    petrel.set("sleep", sleep)?;
    let now = state.machine().lua().create_function(|_, ()| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(now.unwrap_or_default().as_secs_f64())
    })?;
    petrel.set("now", now)
}
