//! One request at a backend, as the backend's script sees it.

use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::dialect::{Dialect, Params, Speaks, find};
use super::wire::Wire;
use super::{Books, Script};
use crate::PATIENCE;
use crate::stream::Stream;

/// A request that a backend received, for later checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The number of its connection, counted from 0.
    pub connection: usize,
    /// How many requests came before it on that connection.
    pub before: usize,
    /// CGI variables. For HTTP and AJP13: REQUEST_METHOD, REQUEST_URI and SERVER_PROTOCOL, and the header
    /// fields under their names as received.
    pub params: Vec<(String, String)>,
    /// The first mebibyte of the body, as far as it was read.
    pub body: Vec<u8>,
    /// How many bytes of the body were read.
    pub body_bytes: u64,
    /// Whether the body was read to its end.
    pub complete: bool,
}

impl Record {
    /// The value of a variable, or of a header field in any letter case.
    pub fn param(&self, name: &str) -> Option<&str> {
        find(&self.params, name)
    }

    /// The values of all variables or header fields with that name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let same = self
            .params
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_str()).collect()
    }
}

/// An open request at the backend. If the gateway has closed the connection, what the script sends is
/// dropped: see [`Exchange::is_alone`].
pub struct Exchange<'a> {
    wire: &'a mut Wire,
    dialect: &'a mut dyn Dialect,
    books: &'a Books,
    /// The index of its [`Record`].
    index: usize,
    record: Record,
    state: State,
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The response is not complete yet.
    Open,
    /// The response is complete; the connection stays open.
    Answered,
    /// The connection is closed.
    Over,
}

impl Exchange<'_> {
    /// The record of the request.
    pub fn request(&self) -> &Record {
        &self.record
    }

    /// The value of a variable, or of a header field in any letter case; empty if it is missing.
    pub fn param(&self, name: &str) -> &str {
        self.record.param(name).unwrap_or_default()
    }

    /// The path and query as the client sent them.
    pub fn target(&self) -> &str {
        self.param("REQUEST_URI")
    }

    /// Reads the next piece of the request body; `None` at its end.
    pub fn read_some(&mut self) -> Option<Vec<u8>> {
        if self.record.complete || self.state == State::Over {
            return None;
        }
        let read = self.dialect.read_body(self.wire);
        if self.dialect.was_aborted() {
            self.books.aborted.fetch_add(1, Ordering::SeqCst);
        }
        let stretch = match read {
            Ok(stretch) => stretch,
            Err(_) => {
                self.state = State::Over;
                return None;
            }
        };
        match &stretch {
            Some(bytes) => {
                self.record.body_bytes += bytes.len() as u64;
                let room = KEPT.saturating_sub(self.record.body.len());
                let kept = &bytes[..bytes.len().min(room)];
                self.record.body.extend_from_slice(kept);
            }
            None => self.record.complete = true,
        }
        let mut requests = self.books.requests();
        if let Some(record) = requests.get_mut(self.index) {
            record.body_bytes = self.record.body_bytes;
            record.complete = self.record.complete;
            if record.body.len() != self.record.body.len() {
                record.body.clone_from(&self.record.body);
            }
        }
        drop(requests);
        stretch
    }

    /// Reads the request body to its end and returns its first mebibyte.
    pub fn read_body(&mut self) -> Vec<u8> {
        while self.read_some().is_some() {}
        self.record.body.clone()
    }

    /// Reads the request to its end and answers it, with a Content-Length.
    pub fn answer(&mut self, status: u16, fields: &[(&str, &str)], body: impl AsRef<[u8]>) {
        self.read_body();
        let body = body.as_ref();
        let length = body.len().to_string();
        let fields = [fields, &[("Content-Length", length.as_str())]].concat();
        let mut out = Vec::new();
        self.dialect.write_head(&mut out, status, &fields);
        if !body.is_empty() && self.param("REQUEST_METHOD") != "HEAD" {
            self.dialect.write_body(&mut out, body);
        }
        let goes_on = self.dialect.write_end(&mut out);
        self.finish(&out, goes_on);
    }

    /// As [`Exchange::answer`] with status 200 and a text.
    pub fn say(&mut self, text: &str) {
        self.answer(200, &[("Content-Type", "text/plain")], text);
    }

    /// Sends the head of a response. The body follows in pieces; HTTP sends chunks if `fields` has no
    /// Content-Length.
    pub fn head(&mut self, status: u16, fields: &[(&str, &str)]) {
        let mut out = Vec::new();
        self.dialect.write_head(&mut out, status, fields);
        self.raw(&out);
    }

    /// Sends a piece of the body. With protocols that use CGI heads, also of a head written by hand.
    pub fn body(&mut self, bytes: impl AsRef<[u8]>) {
        let mut out = Vec::new();
        self.dialect.write_body(&mut out, bytes.as_ref());
        self.raw(&out);
    }

    /// Ends the response, after reading the rest of the request.
    pub fn end(&mut self) {
        let mut out = Vec::new();
        let goes_on = self.dialect.write_end(&mut out);
        self.finish(&out, goes_on);
    }

    /// Sends a message for the server's log, if the protocol has a way to.
    pub fn log(&mut self, bytes: impl AsRef<[u8]>) {
        let mut out = Vec::new();
        self.dialect.write_log(&mut out, bytes.as_ref());
        self.raw(&out);
    }

    /// Sends exactly these bytes.
    pub fn raw(&mut self, bytes: impl AsRef<[u8]>) {
        if self.state == State::Open && self.wire.send(bytes.as_ref()).is_err() {
            self.state = State::Over;
        }
    }

    /// Sends `bytes` one by one, each in its own packet.
    pub fn trickle(&mut self, bytes: impl AsRef<[u8]>) {
        for byte in bytes.as_ref() {
            self.raw([*byte]);
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Receives up to `limit` raw bytes, outside the protocol: the data of a tunnel. Empty when the gateway
    /// has closed its direction.
    pub fn receive(&mut self, limit: usize) -> Vec<u8> {
        self.wire.take_some(limit).unwrap_or_default()
    }

    /// Does nothing for a while.
    pub fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Closes the connection in an orderly way.
    pub fn close(&mut self) {
        self.wire.shutdown(Shutdown::Both);
        self.state = State::Over;
    }

    /// Resets the connection. On a unix socket this is what happens when a process ends without having read
    /// its whole request, as php-fpm does with the last record.
    pub fn reset(&mut self) {
        self.wire.reset_on_close();
        self.state = State::Over;
    }

    /// Closes this direction of the connection, and continues to receive.
    pub fn half_close(&mut self) {
        self.wire.shutdown(Shutdown::Write);
    }

    /// Hangs until the server closes the connection. Returns whether it did.
    pub fn hang(&mut self) -> bool {
        self.state = State::Over;
        self.wire.drain(PATIENCE)
    }

    /// Whether the gateway has closed the connection, or the script has ended it.
    pub fn is_alone(&self) -> bool {
        self.state == State::Over
    }

    fn finish(&mut self, out: &[u8], goes_on: bool) {
        self.raw(out);
        if self.state == State::Open {
            self.state = match goes_on {
                true => State::Answered,
                false => State::Over,
            };
        }
    }
}

/// How many bytes of a body are kept.
const KEPT: usize = 1 << 20;

/// A connection at a backend, from accept to close.
pub(super) struct Session<'a> {
    wire: Wire,
    dialect: Box<dyn Dialect>,
    number: usize,
    books: &'a Books,
}

impl Session<'_> {
    pub(super) fn new(stream: Stream, speaks: Speaks, number: usize, books: &Books) -> Session<'_> {
        Session {
            wire: Wire::new(stream),
            dialect: speaks.dialect(),
            number,
            books,
        }
    }

    /// Runs `script` for each request until one of the two sides ends the connection. A script that does not
    /// finish its response ends it.
    pub(super) fn run(mut self, script: &Script) {
        for before in 0.. {
            let Ok(params) = self.dialect.read_head(&mut self.wire) else {
                break;
            };
            if !self.one(params, before, script) {
                break;
            }
        }
    }

    /// Serves one request. Returns whether the connection stays open.
    fn one(&mut self, params: Params, before: usize, script: &Script) -> bool {
        let record = Record {
            connection: self.number,
            before,
            params,
            ..Record::default()
        };
        let index = {
            let mut requests = self.books.requests();
            requests.push(record.clone());
            requests.len() - 1
        };
        let mut exchange = Exchange {
            wire: &mut self.wire,
            dialect: &mut *self.dialect,
            books: self.books,
            index,
            record,
            state: State::Open,
        };
        script(&mut exchange);
        if exchange.state != State::Answered {
            return false;
        }
        exchange.read_body();
        exchange.state == State::Answered
    }
}
