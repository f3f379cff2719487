//! The part of a connection that lasts until it closes: its socket, its client, its deadline.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::serving::Serving;
use super::{ConnectionState, Step};
use crate::deadlines::DeadlineId;
use crate::exchange::{ConnectionFacts, ListenerFacts, Peer, Proxied, Scheme};
use crate::limits;
use crate::run::ExchangeRun;
use crate::settings::ConnectionScope;
use crate::transport::{ClientSocket, TlsStream, Transport};
use crate::worker::{Drain, Worker};

use std::ops::ControlFlow::{Break, Continue};

/// The part of a connection that all its states share.
pub(super) struct Link {
    pub(crate) transport: Transport,
    pub(crate) worker: Rc<Worker>,
    pub(crate) scope: Rc<ConnectionScope>,
    /// Its `request_number` counts the requests that have begun on this connection.
    pub(crate) facts: ConnectionFacts,
    deadline: Option<DeadlineId>,
    reader: Reader,
}

/// Whether the client is known to read its responses. Decides how many bytes the worker gives to the kernel
/// at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// The client was not sent much yet.
    New,
    /// The client was sent [`limits::UNPROVEN_TURN_BYTES`] and may not read at all. The kernel queues at most
    /// that many unsent bytes for it.
    Unproven,
    /// The client has read what the kernel had queued. The kernel's buffer may grow with the client's pace.
    Proven,
}

impl Link {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        socket: ClientSocket,
        peer: Peer,
        listener: &Rc<ListenerFacts>,
    ) -> Link {
        let mut facts = ConnectionFacts {
            peer,
            scheme: Scheme::Http,
            listener: Rc::clone(listener),
            request_number: 0,
            id: worker.connection_begins(),
            late: None,
        };
        let table = worker.settings_table();
        let mut scope = facts.scope(table);
        let transport = match scope.speaks_tls {
            true => {
                facts.scheme = Scheme::Https;
                scope = facts.scope(table);
                let clock = Rc::clone(worker.clock());
                Transport::Tls(Box::new(TlsStream::new(
                    socket,
                    worker.tls_buffers(),
                    clock,
                )))
            }
            false => Transport::Plain(socket),
        };
        Link {
            transport,
            scope,
            facts,
            deadline: None,
            reader: Reader::New,
            worker: Rc::clone(worker),
        }
    }

    /// A run for the next request.
    pub(crate) fn begin_run(&mut self) -> ExchangeRun {
        self.facts.request_number += 1;
        ExchangeRun::new(&self.worker, self.facts.clone())
    }

    /// A trusted proxy has named the client of this connection.
    pub(crate) fn be_proxied(&mut self, peer: Peer, scheme: Scheme, proxied: Proxied) {
        self.facts.peer = peer;
        // A TLS connection stays https, even if the header says otherwise.
        if !self.transport.is_tls() {
            self.facts.scheme = scheme;
        }
        self.facts.late().proxied = Some(proxied);
        self.scope = self.facts.scope(self.worker.settings_table());
    }

    /// Gets the local address from the kernel, if the settings want it and it is not known.
    #[inline]
    pub(crate) fn know_local_address(&mut self, run: &mut ExchangeRun) {
        if run.settings.wants_local_address && run.local_address().is_none() {
            self.ask_for_local_address(run);
        }
    }

    #[cold]
    fn ask_for_local_address(&mut self, run: &mut ExchangeRun) {
        if let Some(address) = self.transport.local_address() {
            self.facts.late().local_address = Some(address);
            run.connection.late = self.facts.late.clone();
        }
    }

    /// Whether the deadline has passed. The first call registers the connection in the table of deadlines.
    pub(crate) fn is_late(&mut self, context: &Context<'_>) -> bool {
        let deadlines = &self.worker.deadlines;
        let Some(deadline) = self.deadline else {
            self.deadline = Some(deadlines.insert(context.waker().clone()));
            self.set_deadline(self.worker.base_settings().core.read_idle_s);
            return false;
        };
        deadlines.is_over(deadline, self.worker.clock().seconds())
    }

    /// The present wait ends after `seconds`; see [`Clock::after`](crate::clock::Clock::after).
    pub(crate) fn set_deadline(&self, seconds: u32) {
        self.set_due(self.worker.clock().after(seconds));
    }

    /// The present wait ends in the second `due_s`.
    pub(crate) fn set_due(&self, due_s: u32) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set(deadline, due_s);
        }
    }

    /// The present wait ends in the second `due_s` at the latest.
    pub(crate) fn lower_due(&self, due_s: Option<u32>) {
        if let (Some(deadline), Some(due_s)) = (self.deadline, due_s) {
            self.worker.deadlines.lower(deadline, due_s);
        }
    }

    pub(crate) fn no_deadline(&self) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.clear(deadline);
        }
    }

    /// Keeps an idle connection waiting, or ends it if the worker drains. A request that arrives before the
    /// end is still answered.
    pub(crate) fn rest(&mut self, waiting: ConnectionState) -> Step {
        match self.worker.draining() {
            Some(Drain::Stop) if self.transport.is_silent() => {
                self.transport.say_end();
                return Continue(ConnectionState::Over(None));
            }
            Some(Drain::Successor) => self.set_deadline(limits::IDLE_DRAIN_S),
            Some(Drain::Stop) | None => {}
        }
        Break(waiting)
    }

    /// Ends an idle connection whose time is over. A request that has arrived meanwhile is still answered. If
    /// the worker drains, a request that arrives later meets an orderly end of the stream and no reset,
    /// because then many connections end at once that their clients did not expect to end.
    pub(crate) fn end_idle(&mut self, input: Vec<u8>) -> ConnectionState {
        if !self.transport.is_silent() {
            self.set_deadline(limits::IDLE_DRAIN_S);
            return ConnectionState::Idle(input);
        }
        match self.worker.draining() {
            None => {
                self.transport.say_end();
                ConnectionState::Over(None)
            }
            Some(_) => {
                self.stop_speaking();
                ConnectionState::Linger(None)
            }
        }
    }

    /// Closes our sending side. The client gets some time to close its side.
    pub(crate) fn stop_speaking(&mut self) {
        self.transport.say_end();
        self.transport.shutdown_write();
        self.set_deadline(limits::LINGER_S);
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set_lingering(deadline);
        }
    }

    /// Reads and drops input until the client closes. If we closed first, a reset could reach the client
    /// before it has read the response.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut buffer = self.worker.receive_buffer.borrow_mut();
        loop {
            match ready!(self.transport.poll_read(context, &mut buffer)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
    }

    /// How many bytes may be sent before other tasks of the worker run.
    pub(crate) fn turn_bytes(&self) -> u64 {
        match self.reader {
            Reader::New | Reader::Unproven => u64::from(limits::UNPROVEN_TURN_BYTES),
            Reader::Proven => limits::SEND_TURN_BYTES,
        }
    }

    /// Counts bytes that were sent to the client. `has_taken`: the client has read what the kernel had queued
    /// for it. Until that happens once, the kernel gets only little at a time, so that clients that do not
    /// read cost the worker little time.
    #[inline]
    pub(crate) fn judge_reader(&mut self, sent_bytes: u64, has_taken: bool) {
        match self.reader {
            Reader::New if sent_bytes >= limits::UNPROVEN_TURN_BYTES.into() => {
                self.turn_reader(Reader::Unproven, limits::UNPROVEN_TURN_BYTES);
            }
            Reader::Unproven if has_taken => self.turn_reader(Reader::Proven, 0),
            Reader::New | Reader::Unproven | Reader::Proven => {}
        }
    }

    #[cold]
    fn turn_reader(&mut self, reader: Reader, unsent_bytes_max: u32) {
        self.transport.limit_unsent(unsent_bytes_max);
        self.reader = reader;
    }

    /// For `debug.log-state-handling`: logs the state that has ended and the next one.
    #[inline]
    pub(crate) fn trace_state(&self, serving: &Serving, before: &'static str, next: &'static str) {
        if serving.run.settings.core.debug.state_handling && next != before {
            self.tell_state(serving, before, next);
        }
    }

    #[cold]
    fn tell_state(&self, serving: &Serving, before: &'static str, next: &'static str) {
        let id = self.facts.id;
        let cause = format_args!("connection={id} {before} -> {next}");
        serving.run.log_error("state", cause);
    }

    /// For `debug.log-timeouts`: logs what took too long.
    pub(crate) fn trace_timeout(&self, serving: Option<&Serving>, what: &str) {
        match serving {
            Some(serving) if serving.run.settings.core.debug.timeouts => {
                serving.run.log_error("time-out", format_args!("{what}"));
            }
            None if self.worker.base_settings().core.debug.timeouts => {
                let log = &self.worker.base_settings().core.error_log;
                log.error(format_args!(
                    "(time-out) {what} client={}",
                    self.facts.peer.without_port()
                ));
            }
            _ => {}
        }
    }

    /// Logs an error of the client that concerns no single request.
    #[cold]
    pub(crate) fn log_common(&self, stage: &str, cause: &str) {
        let log = &self.worker.base_settings().core.error_log;
        let client = self.facts.peer.without_port();
        log.error(format_args!("({stage}) {cause} client={client}"));
    }

    /// Whether clients may use HTTP/2 without TLS.
    #[inline]
    pub(crate) fn takes_http2_in_clear(&self) -> bool {
        self.scope.http2.in_clear && !self.transport.is_tls()
    }

    /// Frees the place in the table of deadlines, because the connection is dropped.
    pub(crate) fn let_go(&self) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.remove(deadline);
        }
        if petrel_sys::spawn::is_starting() {
            self.transport.shutdown_write();
        }
    }
}
