//! The requests that `lighty.server.irequests()` returns: those of this worker that have run a script and are
//! not finished.
//!
//! They are noted only after a script of this worker has called that function for the first time, as they
//! were when their first script ran. Before that, a request costs nothing here.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use petrel_engine::Exchange;
use petrel_engine::worker::Worker;
use petrel_lua::mlua::{self, Lua, Table};

use super::NAME;

/// The requests that a worker has noted.
#[derive(Default)]
pub(super) struct Others {
    is_asked_for: Cell<bool>,
    requests: RefCell<Vec<Weak<Noted>>>,
}

/// A request that is not finished. Its exchange keeps this until it is.
struct Noted {
    attributes: Vec<(&'static str, Vec<u8>)>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Others {
    /// The noted requests of `worker`.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<Others> {
        worker.belonging(Others::default)
    }

    /// Notes a request that is about to run a script.
    pub(crate) fn note(&self, exchange: &mut Exchange) {
        if !self.is_asked_for.get() || exchange.kept::<Noted>(NAME).is_some() {
            return;
        }
        let noted = Rc::new(Noted::new(exchange));
        let mut requests = self.requests.borrow_mut();
        // Drops finished requests before the list would grow, so that it stays as long as there are requests
        // at the same time.
        if requests.len() == requests.capacity() {
            requests.retain(|request| request.strong_count() > 0);
        }
        requests.push(Rc::downgrade(&noted));
        exchange.keep(NAME, noted);
    }

    /// All noted requests except that of `exchange`: tables with `req_attr` and `req_header`.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn list(&self, lua: &Lua, exchange: &mut Exchange) -> mlua::Result<Table> {
        self.is_asked_for.set(true);
        self.note(exchange);
        let mine = exchange.kept::<Noted>(NAME);
        let is_mine = |noted: &Rc<Noted>| mine.as_ref().is_some_and(|mine| Rc::ptr_eq(mine, noted));
        let list = lua.create_table()?;
        let requests = self.requests.borrow();
        for noted in requests.iter().filter_map(Weak::upgrade) {
            if !is_mine(&noted) {
                list.raw_push(noted.table(lua)?)?;
            }
        }
        Ok(list)
    }
}

impl Noted {
    fn new(exchange: &Exchange) -> Noted {
        let request = &exchange.request;
        let address = exchange.connection.peer.address_text();
        let attributes = [
            ("uri.path", request.url.path()),
            ("uri.query", request.url.query()),
            ("uri.authority", request.head.host()),
            ("uri.scheme", exchange.scheme().as_str().as_bytes()),
            (
                "request.method",
                request.method_for_rules().as_str().as_bytes(),
            ),
            ("request.uri", request.target()),
            ("request.orig-uri", request.original_target()),
            ("request.remote-ip", address.as_bytes()),
            ("request.remote-addr", address.as_bytes()),
        ];
        let attributes = attributes
            .into_iter()
            .filter(|(_, value)| !value.is_empty());
        let fields = request.head.iter();
        Noted {
            attributes: attributes
                .map(|(name, value)| (name, value.to_vec()))
                .collect(),
            fields: fields
                .map(|(name, value)| (name.to_vec(), value.to_vec()))
                .collect(),
        }
    }

    fn table(&self, lua: &Lua) -> mlua::Result<Table> {
        let attributes = lua.create_table()?;
        for (name, value) in &self.attributes {
            attributes.raw_set(*name, lua.create_string(value)?)?;
        }
        let fields = lua.create_table()?;
        for (name, value) in &self.fields {
            fields.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
        }
        lua.create_table_from([("req_attr", attributes), ("req_header", fields)])
    }
}
