//! A client connection: one task that drives HTTP/1 from bytes to exchanges and back.
//!
//! States are what the connection waits for; [`Connection::poll`] is the table of contents. An idle
//! connection holds no buffer and no exchange: it reads into the worker's buffer and takes an
//! exchange from the pool when the first byte of a request is there. HTTP/2 will be a sibling
//! of this driver: it has to yield exchanges and to pull bodies, nothing else.

mod head;
mod input;
mod proxied;
mod receive;
mod send;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::status::Status;

use crate::deadlines::{DeadlineId, Deadlines};
use crate::exchange::{ConnectionFacts, Exchange, Peer, Proxied};
use crate::ledger::Stage;
use crate::limits;
use crate::listener::ListenerFacts;
use crate::phase::{self, Walked};
use crate::settings::ConnectionScope;
use crate::transport::{Peeked, Transport};
use crate::worker::{Cut, Worker};

use input::Input;
pub(crate) use receive::Receiving;
use receive::Streamed;
pub(crate) use send::Sending;

/// One client connection. tokio adds up to 104 bytes and rounds up to a multiple of 128: 152 bytes take 256, and one
/// byte more takes 384. In the server, tokio's sockets take 8 bytes more than where cargo builds this crate alone.
pub(crate) struct Connection {
    transport: Transport,
    worker: Rc<Worker>,
    scope: Rc<ConnectionScope>,
    listener: Rc<ListenerFacts>,
    exchange: Option<Box<Exchange>>,
    /// Bytes that were received and not used yet.
    input: Input,
    peer: Peer,
    /// What is known of few.
    rare: Option<Box<Rare>>,
    id: u64,
    requests: u32,
    deadline: Option<DeadlineId>,
    state: State,
    /// The first byte of a request head has been received, and not yet its last.
    head_begun: bool,
    /// The next piece of the answer is not there yet.
    waits_for_maker: bool,
    /// The second in which the client must have taken more of the answer; 0: it takes what there is.
    write_due_s: u32,
    reader: Reader,
}

/// What is known of a client as a reader, which decides how many bytes the kernel takes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// It has not been sent much yet.
    New,
    /// It has been sent [`limits::UNPROVEN_TURN_BYTES`], and may not read at all: the kernel holds no more than so many
    /// unsent.
    Unproven,
    /// It has taken what the kernel held: the kernel's buffer grows with its pace.
    Proven,
}

/// What is known of few connections.
#[derive(Default)]
struct Rare {
    /// What a proxy in front said about the connection.
    proxied: Option<Rc<Proxied>>,
    /// What the kernel said when somebody wanted to know.
    local_address: Option<SocketAddr>,
}

/// What the connection is doing. Names say what we are waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A header of the PROXY protocol, or its rest.
    ProxyHeader,
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
        let scope = worker
            .settings_table()
            .connection_scope(&listener.address, peer.ip());
        let state = match scope.expects_proxy_header(peer.ip()) {
            true => State::ProxyHeader,
            false => State::Head,
        };
        Connection {
            transport,
            scope,
            listener: Rc::clone(listener),
            exchange: None,
            input: Input::default(),
            peer,
            rare: None,
            id: worker.connection_begins(),
            requests: 0,
            deadline: None,
            state,
            head_begun: false,
            waits_for_maker: false,
            write_due_s: 0,
            reader: Reader::New,
            worker: Rc::clone(worker),
        }
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<State> {
        match self.state {
            State::ProxyHeader => self.poll_proxy_header(context),
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
        let next = loop {
            let exchange = self.exchange.as_mut().expect("a request is under way");
            match phase::walk(exchange, context) {
                Poll::Ready(Walked::NeedBody) if exchange.request.body.is_complete() => {}
                Poll::Ready(Walked::NeedBody) => break State::WantedBody,
                Poll::Ready(Walked::Answered)
                    if exchange.receiving.wants_to_read_before_answer(
                        &exchange.response,
                        &exchange.request.body,
                    ) =>
                {
                    break State::UnwantedBody;
                }
                Poll::Ready(Walked::Answered) => return Poll::Ready(self.answer()),
                Poll::Pending => {
                    if let Some(next) = ready!(self.poll_beside_walk(context)) {
                        return Poll::Ready(next);
                    }
                }
            }
        };
        // The time the head and the hooks took is not the body's.
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.stamp(phase::stage(exchange));
        let read_idle_s = exchange.settings.core.read_idle_s;
        self.set_deadline(read_idle_s);
        Poll::Ready(next)
    }

    /// What goes on between client and server while a hook waits for something else: interim
    /// responses, a streamed body, and the client's leaving. `Ready(None)`: the hook should look again.
    fn poll_beside_walk(&mut self, context: &mut Context<'_>) -> Poll<Option<State>> {
        if let Some(exchange) = &mut self.exchange {
            exchange.stop_paces();
        }
        if self.poll_interim(context).is_err() {
            return Poll::Ready(Some(self.client_left()));
        }
        match self.poll_streamed_body(context) {
            Poll::Ready(Streamed::More) => return Poll::Ready(None),
            Poll::Ready(Streamed::Gone) => return Poll::Ready(Some(self.body_broke_off())),
            Poll::Ready(Streamed::Malformed(error)) => {
                let cause = format_args!("{}", error.reason.sentence());
                return Poll::Ready(Some(self.refuse(error.status, cause)));
            }
            Poll::Pending => {}
        }
        let waits_for_body = self.waits_for_streamed_body();
        if !waits_for_body {
            match self.poll_leaving(context) {
                Poll::Ready(Peeked::Gone) => return Poll::Ready(Some(self.client_left())),
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => {}
            }
        }
        self.wait_for_hook(waits_for_body);
        Poll::Pending
    }

    /// Looks, once for each request, what the client sends while it waits for its answer.
    fn poll_leaving(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        if exchange.sending.has_looked() || !self.input.is_empty() {
            return Poll::Pending;
        }
        let peeked = ready!(self.transport.poll_peek(context));
        exchange.sending.look();
        exchange.is_half_closed = peeked == Peeked::End;
        Poll::Ready(peeked)
    }

    /// The next deadline is the hook's, or that of the body's next bytes.
    fn wait_for_hook(&mut self, waits_for_body: bool) {
        let exchange = self.exchange.as_ref().expect("a request is under way");
        let due_s = exchange.wake_at_s;
        let due_s = due_s.min(self.body_due_s(waits_for_body));
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set(deadline, due_s);
        }
    }

    /// The second in which more of a streamed body must have come. The time begins when the client is
    /// the one who is waited for: not while there is no room for what it could send.
    fn body_due_s(&mut self, is_waited_for: bool) -> u32 {
        let exchange = self.exchange.as_ref().expect("a request is under way");
        let from_now_s = self.due_after(exchange.settings.core.read_idle_s);
        let now_s = self.worker.clock().seconds();
        let exchange = self.exchange.as_mut().expect("a request is under way");
        let rate = exchange.settings.core.read_rate_min;
        let Receiving { due_s, pace, .. } = &mut exchange.receiving;
        if !is_waited_for {
            *due_s = 0;
            return Deadlines::NEVER;
        }
        if *due_s == 0 {
            *due_s = from_now_s;
        }
        let slow_s = pace.wait(now_s, rate).unwrap_or(Deadlines::NEVER);
        slow_s.min(*due_s)
    }

    fn poll_interim(&mut self, context: &mut Context<'_>) -> std::io::Result<()> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        while !exchange.interim.is_empty() {
            match self.transport.poll_write(context, &exchange.interim) {
                Poll::Ready(Ok(count)) => drop(exchange.interim.drain(..count)),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn client_left(&mut self) -> State {
        self.abort(format_args!("the client left before it had its answer"));
        State::Over
    }

    fn body_broke_off(&mut self) -> State {
        let exchange = self.exchange.as_ref().expect("a request is under way");
        match exchange.request.body.failure() {
            Some(failure) => {
                let cause = format!("the request body cannot be kept: {failure}");
                self.refuse(receive::status_of_failure(failure), format_args!("{cause}"))
            }
            None => {
                self.abort(format_args!(
                    "the client left before the request body was complete"
                ));
                State::Over
            }
        }
    }

    /// The response is ready: writes its head and begins to send.
    fn answer(&mut self) -> State {
        let keep_alive = self.may_keep_alive();
        let exchange = self.exchange.as_mut().expect("a request is under way");
        head::write(exchange, keep_alive);
        self.write_due_s = 0;
        State::Send
    }

    /// Refuses the request, whatever became of it so far, and closes after the answer.
    fn refuse(&mut self, status: Status, cause: std::fmt::Arguments<'_>) -> State {
        self.stamp();
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.log_error(Stage::Receive.name(), cause);
        phase::refuse(exchange, status);
        exchange.receiving.give_up();
        State::Walk
    }

    /// Gives the time since the last stamp to what the request is at.
    fn stamp(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            let stage = match self.state {
                State::Head if self.head_begun => Stage::Receive,
                State::ProxyHeader | State::Head => Stage::Parse,
                State::Walk => phase::stage(exchange),
                State::WantedBody | State::UnwantedBody => Stage::RequestBody,
                State::Send if self.waits_for_maker => exchange.response.body.stage(),
                State::Send | State::Discard | State::Linger | State::Over => Stage::Send,
            };
            exchange.stamp(stage);
        }
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
            (true, false) => {
                exchange.request.body.give_up();
                State::Discard
            }
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
        let Connection {
            exchange,
            head_begun,
            waits_for_maker,
            write_due_s,
            // What is about the connection, and not about a request on it.
            transport: _,
            worker: _,
            scope: _,
            listener: _,
            input: _,
            peer: _,
            rare: _,
            id: _,
            requests: _,
            reader: _,
            deadline: _,
            state: _,
        } = self;
        if let Some(exchange) = exchange {
            exchange.clear();
        }
        *head_begun = false;
        *waits_for_maker = false;
        *write_due_s = 0;
    }

    /// The exchange goes back to the pool: nothing of the next request is there.
    fn rest(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.clear();
            self.worker.give_exchange(exchange);
        }
        self.input.release();
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
        exchange.local_address = None;
        if let Some(rare) = &self.rare {
            exchange.local_address = rare.local_address;
            if let Some(proxied) = &rare.proxied {
                exchange.scheme = proxied.scheme;
                exchange.proxied = Some(Rc::clone(proxied));
            }
        }
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
            self.rare.get_or_insert_default().local_address = exchange.local_address;
        }
    }

    /// Ends the present wait when more than `seconds` have passed on a clock of full seconds, as
    /// lighttpd does: never early, up to a second late, and 0 is the shortest time there is.
    fn set_deadline(&self, seconds: u32) {
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set(deadline, self.due_after(seconds));
        }
    }

    fn due_after(&self, seconds: u32) -> u32 {
        let now_s = self.worker.clock().seconds();
        now_s.saturating_add(seconds).saturating_add(1)
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
            State::ProxyHeader => "the header of the PROXY protocol came too slowly",
            State::Head if self.head_begun => "the request head came too slowly",
            State::Head if self.requests > 0 => "no further request came",
            State::Head => "no request came",
            State::WantedBody | State::UnwantedBody => "the request body came too slowly",
            State::Send if self.is_write_idle() => "the client took no bytes for too long",
            State::Discard | State::Linger => "the client did not close the connection",
            State::Send | State::Walk | State::Over => return,
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

    /// The next bytes of a streamed body are due, and the client is the one who is waited for.
    fn is_body_late(&self) -> bool {
        let Some(exchange) = &self.exchange else {
            return false;
        };
        let now_s = self.worker.clock().seconds();
        let (due_s, rate) = (
            exchange.receiving.due_s,
            exchange.settings.core.read_rate_min,
        );
        let is_late = due_s != 0 && due_s <= now_s;
        self.waits_for_streamed_body() && (is_late || exchange.receiving.pace.is_over(now_s, rate))
    }

    /// Why a request body is not waited for any longer.
    fn lateness_of_body(&self) -> String {
        let now_s = self.worker.clock().seconds();
        match &self.exchange {
            Some(exchange)
                if exchange
                    .receiving
                    .pace
                    .is_over(now_s, exchange.settings.core.read_rate_min) =>
            {
                format!(
                    "the client sent its request body at {} bytes a second, below server.min-read-rate = {};",
                    exchange.receiving.pace.rate(now_s),
                    exchange.settings.core.read_rate_min.bytes_per_second
                )
            }
            _ => "the request body came too slowly".to_owned(),
        }
    }

    /// Whether the client has taken nothing of its answer for `server.max-write-idle`, or takes it below the least
    /// rate, which the log is told. A full socket becomes writable only when much of its queue is free. The queue may
    /// hold megabytes, and a slow client may need minutes for them. So the worker asks the kernel what the client has
    /// taken before it gives the client up.
    fn is_late_reader(&mut self) -> bool {
        let now_s = self.worker.clock().seconds();
        let is_write_idle = self.is_write_idle();
        let Some(exchange) = &mut self.exchange else {
            return false;
        };
        let rate = exchange.settings.core.write_rate_min;
        if !is_write_idle && !exchange.sending.pace.is_over(now_s, rate) {
            return false;
        }
        if exchange.look_what_is_taken(&self.transport) {
            let write_idle_s = exchange.settings.core.write_idle_s;
            self.write_due_s = self.due_after(write_idle_s);
        }
        let Some(exchange) = &self.exchange else {
            return false;
        };
        let is_slow = exchange.sending.pace.is_over(now_s, rate);
        if is_slow {
            exchange.log_error(
                Stage::Send.name(),
                format_args!(
                    "the client took its answer at {} bytes a second, below server.min-write-rate = {};",
                    exchange.sending.pace.rate(now_s),
                    rate.bytes_per_second
                ),
            );
        }
        is_slow || self.is_write_idle()
    }

    /// The deadline of the present state has passed.
    fn time_out(&mut self) {
        self.no_deadline();
        let is_late_reader =
            self.state == State::Send && !self.waits_for_maker && self.is_late_reader();
        self.trace_timeout();
        self.state = match self.state {
            State::ProxyHeader => State::Over,
            State::Head if self.head_begun => {
                let input = std::mem::take(&mut self.input);
                let cause = format_args!("the request head came too slowly");
                self.refuse_head(&input, Status::REQUEST_TIMEOUT, cause)
            }
            State::WantedBody | State::UnwantedBody => self.refuse_late_body(),
            // The answer's maker may wait for the body just as well.
            State::Send if self.waits_for_maker && self.is_body_late() => {
                let cause = self.lateness_of_body();
                if let Some(exchange) = &self.exchange {
                    exchange.log_error(Stage::RequestBody.name(), format_args!("{cause}"));
                }
                self.abort(format_args!("{cause}"));
                State::Over
            }
            // It is not the client who is waited for; whoever it is looks at the clock.
            State::Send if self.waits_for_maker => State::Send,
            State::Send if is_late_reader => {
                self.abort(format_args!("the client took no bytes for too long"));
                State::Over
            }
            // Bytes wait for the client, and it takes them fast enough.
            State::Send => State::Send,
            State::Walk if self.is_body_late() => self.refuse_late_body(),
            State::Walk => State::Walk,
            State::Head => self.end_idle(),
            State::Discard | State::Linger | State::Over => State::Over,
        };
    }

    fn is_write_idle(&self) -> bool {
        self.write_due_s != 0 && self.write_due_s <= self.worker.clock().seconds()
    }

    fn refuse_late_body(&mut self) -> State {
        let cause = self.lateness_of_body();
        self.refuse(Status::REQUEST_TIMEOUT, format_args!("{cause}"))
    }

    /// The time of an idle connection is over. A request that has arrived meanwhile is answered; one that arrives
    /// from now on meets an end of the stream in good order, without a reset if the worker drains: then many
    /// connections end at once that their clients did not take for old.
    fn end_idle(&mut self) -> State {
        if !self.transport.is_silent() {
            self.set_deadline(limits::IDLE_DRAIN_S);
            return State::Head;
        }
        if self.worker.draining().is_none() {
            return State::Over;
        }
        self.transport.shutdown_write();
        self.set_deadline(limits::LINGER_S);
        State::Linger
    }

    /// What is under way ends because the server process does. A client that has nothing of its answer gets 503.
    fn cut_off(&mut self, why: Cut) -> State {
        let is_refused = |exchange: &Exchange| exchange.receiving.is_given_up();
        let state = self.state;
        match state {
            State::ProxyHeader => State::Over,
            // What has arrived becomes a request, which is refused then.
            State::Head if self.head_begun || self.transport.is_silent() => State::Over,
            State::Head | State::Discard | State::Linger | State::Over => state,
            State::Walk | State::WantedBody | State::UnwantedBody | State::Send
                if self.exchange.as_deref().is_some_and(is_refused) =>
            {
                state
            }
            State::Walk | State::WantedBody | State::UnwantedBody => {
                self.log_cut(why);
                self.stamp();
                let exchange = self.exchange.as_mut().expect("a request is under way");
                phase::refuse(exchange, Status::SERVICE_UNAVAILABLE);
                exchange.receiving.give_up();
                State::Walk
            }
            State::Send => {
                self.log_cut(why);
                match self.replace_answer(Status::SERVICE_UNAVAILABLE) {
                    true => State::Walk,
                    false => {
                        self.abort(format_args!("{}", why.sentence()));
                        State::Over
                    }
                }
            }
        }
    }

    fn log_cut(&self, why: Cut) {
        if let Some(exchange) = &self.exchange {
            let stage = match self.state {
                State::Send => Stage::Send,
                State::WantedBody | State::UnwantedBody => Stage::RequestBody,
                _ => Stage::Content,
            };
            let loss = exchange.loss();
            exchange.log_error(stage.name(), format_args!("{loss}: {}", why.sentence()));
        }
    }

    /// The connection is dropped with its runtime: what is under way is told like everything else that is cut.
    fn tell_dropped(&mut self) {
        let is_under_way = match self.state {
            State::Walk | State::WantedBody | State::UnwantedBody | State::Send => true,
            State::ProxyHeader | State::Head | State::Discard | State::Linger | State::Over => {
                false
            }
        };
        if let (true, Some(why)) = (is_under_way, self.worker.cut()) {
            let is_told = self
                .exchange
                .as_ref()
                .is_some_and(|exchange| exchange.receiving.is_given_up());
            if !is_told {
                self.log_cut(why);
            }
            self.abort(format_args!("{}", why.sentence()));
        }
    }

    /// The answer cannot be completed: it is logged as far as it got.
    fn abort(&mut self, cause: std::fmt::Arguments<'_>) {
        self.stamp();
        self.know_local_address();
        if let Some(exchange) = &mut self.exchange {
            if exchange.settings.core.debug.state_handling {
                exchange.log_error(Stage::Send.name(), cause);
            }
            exchange.sent.keep_alive = false;
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
            if let Some(why) = this.worker.cut() {
                this.state = this.cut_off(why);
            }
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
        if petrel_sys::spawn::is_starting() {
            self.transport.shutdown_write();
        }
        self.tell_dropped();
        self.rest();
        self.worker.connection_ends();
    }
}

#[cfg(test)]
mod tests;
