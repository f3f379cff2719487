//! A client connection: one task that drives HTTP/1 from bytes to exchanges and back.
//!
//! States are what the connection waits for; [`Connection::poll`] is the table of contents. An idle
//! connection holds no buffer and no exchange: it reads into the worker's buffer and takes an
//! exchange from the pool when the first byte of a request is there. HTTP/2 will be a sibling
//! of this driver: it has to yield exchanges and to pull bodies, nothing else.

mod head;
mod receive;
mod send;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::status::Status;

use crate::deadlines::DeadlineId;
use crate::exchange::{ConnectionFacts, Exchange, Peer};
use crate::ledger::Stage;
use crate::limits;
use crate::listener::ListenerFacts;
use crate::phase::{self, Walked};
use crate::settings::ConnectionScope;
use crate::transport::Transport;
use crate::worker::Worker;

pub(crate) use receive::Receiving;
pub(crate) use send::Sending;

/// One client connection.
pub(crate) struct Connection {
    transport: Transport,
    worker: Rc<Worker>,
    scope: Rc<ConnectionScope>,
    listener: Rc<ListenerFacts>,
    exchange: Option<Box<Exchange>>,
    /// Bytes that were received and not used yet. No allocation while it is empty and idle.
    input: Vec<u8>,
    peer: Peer,
    /// What the kernel said when somebody wanted to know; boxed because few do.
    local_address: Option<Box<SocketAddr>>,
    id: u64,
    requests: u32,
    deadline: Option<DeadlineId>,
    state: State,
    /// The first byte of a request head has been received, and not yet its last.
    head_begun: bool,
}

/// What the connection is doing. Names say what we are waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A request head, or its rest.
    Head,
    /// Hooks.
    Walk,
    /// The request body, because a hook asked for it.
    WantedBody,
    /// The request body, to be thrown away before the answer is sent.
    UnwantedBody,
    /// The client, to take the answer.
    Send,
    /// The rest of a request body nobody wanted; the answer is sent.
    Discard,
    /// The client, to close its side after we closed ours.
    Linger,
    /// Nothing: the connection is over.
    Over,
}

impl Connection {
    pub fn new(
        worker: &Rc<Worker>,
        transport: Transport,
        peer: Peer,
        listener: &Rc<ListenerFacts>,
    ) -> Connection {
        Connection {
            transport,
            scope: worker
                .settings_table()
                .connection_scope(&listener.address, peer.ip()),
            listener: Rc::clone(listener),
            exchange: None,
            input: Vec::new(),
            peer,
            local_address: None,
            id: worker.connection_begins(),
            requests: 0,
            deadline: None,
            state: State::Head,
            head_begun: false,
            worker: Rc::clone(worker),
        }
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<State> {
        match self.state {
            State::Head => self.poll_head(context),
            State::Walk => self.poll_walk(context),
            State::WantedBody => self
                .poll_body(context)
                .map(|done| done.unwrap_or(State::Walk)),
            State::UnwantedBody => self
                .poll_body(context)
                .map(|done| done.unwrap_or_else(|| self.answer())),
            State::Send => self.poll_send(context),
            State::Discard => self.poll_discard(context),
            State::Linger => self.poll_linger(context),
            State::Over => Poll::Ready(State::Over),
        }
    }

    fn poll_walk(&mut self, context: &mut Context<'_>) -> Poll<State> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        let next = match ready!(phase::walk(exchange, context)) {
            Walked::NeedBody => State::WantedBody,
            Walked::Answered
                if exchange
                    .receiving
                    .wants_to_read_before_answer(&exchange.response) =>
            {
                State::UnwantedBody
            }
            Walked::Answered => return Poll::Ready(self.answer()),
        };
        // The time the head and the hooks took is not the body's.
        let read_idle_s = exchange.settings.core.read_idle_s;
        self.set_deadline(read_idle_s);
        Poll::Ready(next)
    }

    /// The response is ready: writes its head and begins to send.
    fn answer(&mut self) -> State {
        let keep_alive = self.may_keep_alive();
        let exchange = self.exchange.as_mut().expect("a request is under way");
        head::write(exchange, keep_alive);
        State::Send
    }

    /// Refuses the request, whatever became of it so far, and closes after the answer.
    fn refuse(&mut self, status: Status, cause: std::fmt::Arguments<'_>) -> State {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.log_error(Stage::Receive.name(), cause);
        phase::refuse(exchange, status);
        exchange.receiving.give_up();
        State::Walk
    }

    fn may_keep_alive(&self) -> bool {
        let Some(exchange) = &self.exchange else {
            return false;
        };
        let core = &exchange.settings.core;
        exchange.request.head.keep_alive()
            && !exchange.response.close
            && self.requests < core.keep_alive_requests_max
            && core.keep_alive_idle_s > 0
            && self.worker.draining().is_none()
            && exchange.receiving.can_be_finished()
    }

    /// The answer is sent: log it, and be ready for the next request.
    fn finish(&mut self) -> State {
        self.know_local_address();
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.stamp(Stage::Send);
        self.worker.count_request();
        phase::log(exchange);
        let next = match (exchange.sent.keep_alive, exchange.receiving.is_finished()) {
            (true, true) => State::Head,
            (true, false) => State::Discard,
            // Nothing unread: closing cannot cost the client its answer (no reset is sent).
            (false, true) if self.input.is_empty() && !exchange.receiving.is_given_up() => {
                State::Over
            }
            (false, _) => {
                self.transport.shutdown_write();
                State::Linger
            }
        };
        match next {
            State::Head => self.reset_for_next_request(),
            _ => self.set_deadline(limits::LINGER_S),
        }
        next
    }

    fn reset_for_next_request(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.clear();
        }
    }

    /// The exchange goes back to the pool: nothing of the next request is there.
    fn rest(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.clear();
            self.worker.give_exchange(exchange);
        }
        self.input = Vec::new();
    }

    /// The exchange for a request that begins: the one at hand, or one of the pool.
    fn begin_exchange(&mut self) -> &mut Exchange {
        self.requests += 1;
        let facts = ConnectionFacts {
            peer: self.peer,
            listener: Rc::clone(&self.listener),
            request_number: self.requests,
            id: self.id,
        };
        let worker = &self.worker;
        let exchange = self.exchange.get_or_insert_with(|| {
            worker
                .take_exchange()
                .unwrap_or_else(|| Box::new(Exchange::new(Rc::clone(worker), facts.clone())))
        });
        exchange.connection = facts;
        exchange.local_address = self.local_address.as_deref().copied();
        exchange
    }

    /// Asks for the address the client connected to, if the settings want it and it is not known.
    #[inline]
    fn know_local_address(&mut self) {
        if let Some(exchange) = &mut self.exchange
            && exchange.settings.wants_local_address
            && exchange.local_address().is_none()
        {
            exchange.local_address = self.transport.local_address();
            self.local_address = exchange.local_address.map(Box::new);
        }
    }

    /// Ends the present wait when more than `seconds` have passed on a clock of full seconds, as
    /// lighttpd does: never early, up to a second late, and 0 is the shortest time there is.
    fn set_deadline(&self, seconds: u32) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set(
                deadline,
                self.worker
                    .clock()
                    .seconds()
                    .saturating_add(seconds)
                    .saturating_add(1),
            );
        }
    }

    fn no_deadline(&self) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.clear(deadline);
        }
    }

    /// `debug.log-state-handling`: what the connection does, and what it will do now.
    #[inline]
    fn trace_state(&self, next: State) {
        if let Some(exchange) = &self.exchange
            && exchange.settings.core.debug.state_handling
            && next != self.state
        {
            let (id, state) = (self.id, self.state);
            exchange.log_error(
                "state",
                format_args!("connection={id} {state:?} -> {next:?}"),
            );
        }
    }

    /// `debug.log-timeouts`: what took too long.
    fn trace_timeout(&self) {
        let what = match self.state {
            State::Head if self.head_begun => "the request head came too slowly",
            State::Head if self.requests > 0 => "no further request came",
            State::Head => "no request came",
            State::WantedBody | State::UnwantedBody => "the request body came too slowly",
            State::Send => "the client took no bytes for too long",
            State::Discard | State::Linger => "the client did not close the connection",
            State::Walk | State::Over => return,
        };
        match &self.exchange {
            Some(exchange) if exchange.settings.core.debug.timeouts => {
                exchange.log_error("time-out", format_args!("{what}"));
            }
            None if self.worker.base_settings().core.debug.timeouts => {
                let log = &self.worker.base_settings().core.error_log;
                log.error(format_args!(
                    "(time-out) {what} client={}",
                    self.peer.without_port()
                ));
            }
            _ => {}
        }
    }

    /// The deadline of the present state has passed.
    fn time_out(&mut self) {
        self.no_deadline();
        self.trace_timeout();
        self.state = match self.state {
            State::Head if self.head_begun => {
                let input = std::mem::take(&mut self.input);
                let cause = format_args!("the request head came too slowly");
                self.refuse_head(&input, Status::REQUEST_TIMEOUT, cause)
            }
            State::WantedBody | State::UnwantedBody => self.refuse(
                Status::REQUEST_TIMEOUT,
                format_args!("the request body came too slowly"),
            ),
            State::Send => {
                self.abort(format_args!("the client took no bytes for too long"));
                State::Over
            }
            State::Walk => State::Walk,
            State::Head | State::Discard | State::Linger | State::Over => State::Over,
        };
    }

    /// The answer cannot be completed: it is logged as far as it got.
    fn abort(&mut self, cause: std::fmt::Arguments<'_>) {
        self.know_local_address();
        if let Some(exchange) = &mut self.exchange {
            if exchange.settings.core.debug.state_handling {
                exchange.log_error(Stage::Send.name(), cause);
            }
            exchange.sent.keep_alive = false;
            exchange.stamp(Stage::Send);
            phase::log(exchange);
        }
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        match this.deadline {
            None => {
                this.deadline = Some(this.worker.deadlines.insert(context.waker().clone()));
                this.set_deadline(this.worker.base_settings().core.read_idle_s);
            }
            Some(deadline) => {
                if this
                    .worker
                    .deadlines
                    .is_over(deadline, this.worker.clock().seconds())
                {
                    this.time_out();
                }
            }
        }
        let last_request_of_turn = this.requests + limits::REQUESTS_PER_TURN;
        while this.state != State::Over {
            let next = ready!(this.step(context));
            this.trace_state(next);
            this.state = next;
            if this.state == State::Head && this.requests >= last_request_of_turn {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.remove(deadline);
        }
        self.rest();
        self.worker.connection_ends();
    }
}
