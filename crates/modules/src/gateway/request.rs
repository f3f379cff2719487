//! The way of one request to a backend and of the reply back: choose, queue, connect, talk.
//!
//! A [`GatewayRequest`] is what a gateway's hook answers with; the phase loop polls it in the task of
//! the client's connection. When something fails before anything of a reply came, and repeating is
//! safe, it starts again with another connection or backend. With `server.stream-response-body` 0 it
//! ends with the whole reply, otherwise with its head; dropped before, because the client has left,
//! it lets the backend finish without a listener.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::body::{Ahead, Body, RequestBody, Spool};
use petrel_engine::ledger::Stage;
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::http1::BodyFraming;
use petrel_engine::proto::status::Status;
use petrel_engine::worker::Worker;

use super::answer::{self, Verdict};
use super::backend::{Backend, now_ms};
use super::balance::{Candidate, Choice, NoBackend, Tried};
use super::connection::BackendConnection;
use super::debug;
use super::failure::Failure;
use super::limits;
use super::offload::{Offload, Opening};
use super::options::{Gateway, Host, Mode};
use super::pool::{Grant, Ticket};
use super::protocol::BodyLength;
use super::replay::FailedAttempt;
use super::reply::{self, Reply};
use super::reroute;
use super::stream::{Connecting, is_own_shortage, is_port_shortage};
use super::talk::{Event, Flow, InFlight, Received, Talk, name_of};
use super::upstream::Upstream;

/// A request on its way.
pub struct GatewayRequest {
    worker: Rc<Worker>,
    gateway: Rc<Gateway>,
    /// None for a CGI program, which is talked to from the beginning.
    upstream: Option<Rc<Upstream>>,
    tried: Tried,
    replays: u32,
    /// Attempts that failed by a backend's fault.
    failures: u32,
    /// Every backend was tried, and they are tried once more.
    is_second_round: bool,
    state: State,
    reply: Collected,
    failed: Option<Failure>,
    told_end: bool,
    /// Until when the request waits because this server ran short, once it has.
    shortage_due_s: Option<u32>,
    set_cookie: Option<Rc<Backend>>,
}

enum State {
    /// Names have to be looked up first; whether the answer has been waited for.
    Resolve {
        waits: bool,
    },
    Choose,
    Queue {
        backend: Rc<Backend>,
        in_flight: InFlight,
        ticket: Ticket,
        due_s: u32,
    },
    Connect {
        attempt: Attempt,
        connecting: Connecting,
    },
    /// The socket's queue was full: a pause before the next attempt. Without an attempt this server ran
    /// short, and a connection may become free meanwhile.
    Pause {
        attempt: Option<Attempt>,
        pause: std::pin::Pin<Box<tokio::time::Sleep>>,
    },
    Talk(Box<Talk>),
    /// The backend is done; the disk is asked for a file that it has named.
    Open(Box<Opening>),
    Over,
}

/// An attempt to connect; gives its permit back unless it succeeds.
struct Attempt {
    backend: Rc<Backend>,
    in_flight: Option<InFlight>,
    due_s: u32,
    has_permit: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.has_permit {
            self.backend.refuse_permit();
        }
    }
}

/// What has come of the reply.
#[derive(Default)]
struct Collected {
    body: Spool,
    verdict: Option<Verdict>,
    failure: Option<io::Error>,
}

impl GatewayRequest {
    /// A request to one of the backends of `upstream`.
    pub fn new(
        exchange: &Exchange,
        gateway: Rc<Gateway>,
        upstream: Rc<Upstream>,
    ) -> GatewayRequest {
        GatewayRequest::in_state(
            exchange,
            gateway,
            Some(upstream),
            State::Resolve { waits: false },
        )
    }

    /// A conversation that has begun already: with a program that was started for it.
    pub fn with_talk(exchange: &Exchange, gateway: Rc<Gateway>, talk: Talk) -> GatewayRequest {
        GatewayRequest::in_state(exchange, gateway, None, State::Talk(Box::new(talk)))
    }

    fn in_state(
        exchange: &Exchange,
        gateway: Rc<Gateway>,
        upstream: Option<Rc<Upstream>>,
        state: State,
    ) -> GatewayRequest {
        GatewayRequest {
            worker: Rc::clone(&exchange.worker),
            gateway,
            upstream,
            tried: Tried::new(),
            replays: 0,
            failures: 0,
            is_second_round: false,
            state,
            reply: Collected::default(),
            failed: None,
            told_end: false,
            shortage_due_s: None,
            set_cookie: None,
        }
    }

    fn step(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            match &mut self.state {
                State::Resolve { waits } => {
                    if let Some(upstream) = &self.upstream
                        && upstream.poll_known(context).is_pending()
                    {
                        *waits = true;
                        return Poll::Pending;
                    }
                    if *waits {
                        exchange.stamp(Stage::BackendQueue);
                    }
                    self.state = State::Choose;
                }
                State::Choose => {
                    if let Some(outcome) = self.choose(exchange) {
                        return Poll::Ready(outcome);
                    }
                }
                State::Queue { .. } => {
                    if let Some(outcome) = ready!(self.poll_queue(exchange, context)) {
                        return Poll::Ready(outcome);
                    }
                }
                State::Connect { .. } => {
                    if let Some(outcome) = ready!(self.poll_connect(exchange, context)) {
                        return Poll::Ready(outcome);
                    }
                }
                State::Pause { pause, .. } => {
                    ready!(pause.as_mut().poll(context));
                    self.try_again_to_connect();
                }
                State::Talk(_) => {
                    if let Some(outcome) = ready!(self.poll_talk(exchange, context)) {
                        return Poll::Ready(outcome);
                    }
                }
                State::Open(opening) => {
                    let opened = ready!(opening.poll(exchange, context));
                    self.state = State::Over;
                    return Poll::Ready(match opened {
                        Offload::Answered(outcome) => outcome,
                        Offload::None | Offload::Opening(_) | Offload::Refused(_) => {
                            exchange.answer(Status::BAD_GATEWAY)
                        }
                    });
                }
                State::Over => return Poll::Ready(exchange.answer(Status::INTERNAL_SERVER_ERROR)),
            }
        }
    }

    fn choose(&mut self, exchange: &mut Exchange) -> Option<Outcome> {
        let Some(upstream) = self.upstream.clone() else {
            return Some(self.give_up(exchange));
        };
        if self.failures >= self.gateway.tries_max {
            return Some(self.give_up(exchange));
        }
        let chosen = match reroute::named(exchange) {
            Some(named) if !named.0.is_empty() && upstream.answers() => {
                self.choose_named(&upstream, &named.0)
            }
            _ => upstream.choose(exchange, &self.tried),
        };
        let (backend, choice) = match chosen {
            Ok(chosen) => chosen,
            Err(NoBackend::Unknown) => {
                exchange.log_error(
                    Stage::BackendQueue.name(),
                    format_args!("X-Rewrite-Backend names no backend of this scope;"),
                );
                return Some(exchange.answer(Status::BAD_GATEWAY));
            }
            Err(NoBackend::Down) if self.failed.is_none() => {
                exchange.log_error(
                    Stage::BackendQueue.name(),
                    format_args!("all backends are down;"),
                );
                return Some(exchange.answer(Status::SERVICE_UNAVAILABLE));
            }
            // A process died; behind the same address there may be others.
            Err(NoBackend::Tried) if !self.is_second_round && self.has_seen_death() => {
                self.is_second_round = true;
                self.tried = Tried::new();
                return None;
            }
            Err(_) => return Some(self.give_up(exchange)),
        };
        debug::say(
            &self.gateway,
            debug::CHOICES,
            exchange,
            format_args!("chosen backend={}", backend.shared.name),
        );
        self.set_cookie = choice.set_cookie.then(|| Rc::clone(&backend));
        let in_flight = InFlight::new(&backend);
        match backend.try_take() {
            Some(grant) => return self.use_grant(exchange, backend, in_flight, grant),
            None => match backend.wait() {
                Some(ticket) => {
                    debug::say(
                        &self.gateway,
                        debug::CONNECTIONS,
                        exchange,
                        format_args!("waits for a connection backend={}", backend.shared.name),
                    );
                    super::overload::report(exchange, &backend.host);
                    self.state = State::Queue {
                        due_s: due_after(exchange, backend.host.backlog_timeout),
                        backend,
                        in_flight,
                        ticket,
                    };
                }
                None => {
                    exchange.log_error(
                        Stage::BackendQueue.name(),
                        format_args!("too many requests wait for backend={}", backend.shared.name),
                    );
                    return Some(exchange.answer(Status::SERVICE_UNAVAILABLE));
                }
            },
        }
        None
    }

    fn has_seen_death(&self) -> bool {
        matches!(self.failed, Some(Failure::Read(_) | Failure::Write(_)))
    }

    /// The backend that a reply named.
    fn choose_named(
        &self,
        upstream: &Upstream,
        name: &[u8],
    ) -> Result<(Rc<Backend>, Choice), NoBackend> {
        let backend = upstream.named(name).ok_or(NoBackend::Unknown)?;
        if self.tried.contains(backend.key()) {
            return Err(NoBackend::Tried);
        }
        let choice = Choice {
            index: 0,
            set_cookie: false,
        };
        match backend.shared.health.admit(now_ms()) {
            true => Ok((backend, choice)),
            false => Err(NoBackend::Down),
        }
    }

    fn poll_queue(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Option<Outcome>> {
        let State::Queue { ticket, due_s, .. } = &mut self.state else {
            return Poll::Ready(None);
        };
        let Poll::Ready(grant) = ticket.poll(context) else {
            if !is_over(exchange, *due_s) {
                exchange.wake_at(*due_s);
                return Poll::Pending;
            }
            exchange.stamp(Stage::BackendQueue);
            exchange.log_error(
                Stage::BackendQueue.name(),
                format_args!("no connection became free in time;"),
            );
            self.state = State::Over;
            return Poll::Ready(Some(exchange.answer(Status::GATEWAY_TIMEOUT)));
        };
        exchange.stamp(Stage::BackendQueue);
        if let State::Queue {
            backend,
            in_flight,
            ticket,
            ..
        } = std::mem::replace(&mut self.state, State::Over)
        {
            drop(ticket);
            return Poll::Ready(self.use_grant(exchange, backend, in_flight, grant));
        }
        Poll::Ready(None)
    }

    fn use_grant(
        &mut self,
        exchange: &mut Exchange,
        backend: Rc<Backend>,
        in_flight: InFlight,
        grant: Grant,
    ) -> Option<Outcome> {
        let grant = match grant {
            Grant::Kept(connection) if must_be_replaced(exchange, &backend, &connection) => {
                debug::say(
                    &self.gateway,
                    debug::CONNECTIONS,
                    exchange,
                    format_args!(
                        "does without a kept connection that may be closed by backend={}",
                        backend.shared.name
                    ),
                );
                connection.close_for_another();
                Grant::Open
            }
            grant => grant,
        };
        match grant {
            Grant::Kept(connection) => {
                debug::say(
                    &self.gateway,
                    debug::CONNECTIONS,
                    exchange,
                    format_args!(
                        "asks on a connection with {} requests before backend={}",
                        connection.requests(),
                        backend.shared.name
                    ),
                );
                debug::request_head(&self.gateway, exchange);
                let host = Rc::clone(&backend.host);
                let body = body_length(exchange, &host);
                let talk = Talk::begin(
                    exchange,
                    &self.gateway,
                    host,
                    Some((backend, in_flight)),
                    connection,
                    body,
                );
                match talk {
                    Ok(talk) => self.state = State::Talk(Box::new(talk)),
                    Err(error) => {
                        exchange.log_error(
                            Stage::BackendWait.name(),
                            format_args!("the backend cannot be asked: {};", error.0),
                        );
                        let status = Status::REQUEST_HEADER_FIELDS_TOO_LARGE;
                        return Some(exchange.answer(status));
                    }
                }
            }
            Grant::Open => {
                debug::say(
                    &self.gateway,
                    debug::CONNECTIONS,
                    exchange,
                    format_args!("connects backend={}", backend.shared.name),
                );
                self.state = State::Connect {
                    connecting: backend.address.connect(),
                    attempt: Attempt {
                        due_s: due_after(exchange, backend.host.connect_timeout),
                        backend,
                        in_flight: Some(in_flight),
                        has_permit: true,
                    },
                };
            }
        }
        None
    }

    fn poll_connect(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Option<Outcome>> {
        let State::Connect {
            attempt,
            connecting,
        } = &mut self.state
        else {
            return Poll::Ready(None);
        };
        let connected = connecting.as_mut().poll(context);
        let is_late = is_over(exchange, attempt.due_s);
        let failure = match connected {
            Poll::Ready(Ok(stream)) => {
                exchange.stamp(Stage::BackendConnect);
                let now_ms = exchange.worker.clock().now() / 1_000_000;
                attempt.has_permit = false;
                attempt.backend.shared.health.connected(now_ms);
                let connection = attempt.backend.adopt(stream, now_ms);
                let backend = Rc::clone(&attempt.backend);
                let Some(in_flight) = attempt.in_flight.take() else {
                    return Poll::Ready(None);
                };
                let grant = Grant::Kept(connection);
                return Poll::Ready(self.use_grant(exchange, backend, in_flight, grant));
            }
            // The queue of a unix socket is full: it may be shorter in a moment.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock && !is_late => {
                return Poll::Ready(self.pause_before_connecting(exchange));
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Failure::Overloaded
            }
            // Ports do not become free soon. Another backend's address has ports of its own.
            Poll::Ready(Err(error)) if is_port_shortage(&error) => Failure::OwnShortage(error),
            Poll::Ready(Err(error)) if is_own_shortage(&error) => {
                return Poll::Ready(self.wait_out_shortage(exchange, error));
            }
            Poll::Ready(Err(error)) => Failure::Connect(error),
            Poll::Pending if is_late => Failure::ConnectTimeout,
            Poll::Pending => {
                exchange.wake_at(attempt.due_s);
                return Poll::Pending;
            }
        };
        exchange.stamp(Stage::BackendConnect);
        let backend = Rc::clone(&attempt.backend);
        self.tried.add(&backend);
        self.failures += 1;
        self.state = State::Choose;
        self.tell(exchange, &backend, &failure);
        self.failed = Some(failure);
        Poll::Ready(None)
    }

    fn pause_before_connecting(&mut self, exchange: &Exchange) -> Option<Outcome> {
        if let State::Connect { attempt, .. } = std::mem::replace(&mut self.state, State::Over) {
            super::overload::report(exchange, &attempt.backend.host);
            self.pause(Some(attempt));
        }
        None
    }

    /// This server has no descriptor or memory left for a connection: the request waits for one that
    /// becomes free, and tries to make one from time to time, as long as it may take to connect.
    fn wait_out_shortage(&mut self, exchange: &mut Exchange, error: io::Error) -> Option<Outcome> {
        let State::Connect { attempt, .. } = std::mem::replace(&mut self.state, State::Over) else {
            return None;
        };
        let waits_until_s = due_after(exchange, attempt.backend.host.backlog_timeout);
        let due_s = attempt.due_s.min(waits_until_s);
        let due_s = *self.shortage_due_s.get_or_insert(due_s);
        if is_over(exchange, due_s) {
            exchange.stamp(Stage::BackendConnect);
            let failure = Failure::OwnShortage(error);
            self.tell(exchange, &attempt.backend, &failure);
            self.failed = Some(failure);
            return Some(self.give_up(exchange));
        }
        debug::say(
            &self.gateway,
            debug::CONNECTIONS,
            exchange,
            format_args!("this server has run short, so the request waits: {error};"),
        );
        // Its permit goes back: a connection that becomes free comes to this request, too.
        drop(attempt);
        self.pause(None);
        None
    }

    fn pause(&mut self, attempt: Option<Attempt>) {
        let pause = std::time::Duration::from_millis(limits::QUEUE_FULL_PAUSE_MS);
        self.state = State::Pause {
            attempt,
            pause: Box::pin(tokio::time::sleep(pause)),
        };
    }

    fn try_again_to_connect(&mut self) {
        if let State::Pause { attempt, .. } = std::mem::replace(&mut self.state, State::Over) {
            self.state = match attempt {
                Some(attempt) => State::Connect {
                    connecting: attempt.backend.address.connect(),
                    attempt,
                },
                None => State::Choose,
            };
        }
    }

    fn poll_talk(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Option<Outcome>> {
        let State::Talk(talk) = &mut self.state else {
            return Poll::Ready(None);
        };
        let sent = match talk.host.mode {
            Mode::Responder => {
                talk.poll_send(&mut exchange.request.body, &exchange.worker, context)
            }
            // The body is for who answers.
            Mode::Authorizer => {
                let mut none = RequestBody::default();
                none.complete();
                talk.poll_send(&mut none, &exchange.worker, context)
            }
        };
        if sent.is_ready()
            && talk.host.tcp_fin_propagate
            && exchange.is_half_closed()
            && !std::mem::replace(&mut self.told_end, true)
        {
            talk.propagate_end();
        }
        let had_begun = talk.reply_has_begun();
        let received = receive(talk, &self.gateway, &mut self.reply, exchange, context);
        if !had_begun && talk.reply_has_begun() {
            exchange.stamp_latest(Stage::BackendWait);
            if let Some(backend) = talk.backend() {
                let now_ms = exchange.worker.clock().latest() / 1_000_000;
                backend.shared.health.replied(now_ms);
            }
        }
        if let Some(error) = self.reply.failure.take() {
            return Poll::Ready(self.fail(exchange, Failure::Spool(error)));
        }
        match (received, sent) {
            (Poll::Ready(Ok(Received::End)), _) => Poll::Ready(self.end(exchange)),
            (Poll::Ready(Ok(Received::Stopped)), _) => Poll::Ready(self.hand_over(exchange)),
            // Why it could not be sent tells more than that there is no reply.
            (Poll::Ready(Err(_)), Poll::Ready(Err(failure))) | (Poll::Ready(Err(failure)), _) => {
                Poll::Ready(self.fail(exchange, failure))
            }
            (Poll::Pending, Poll::Ready(Err(failure))) => Poll::Ready(self.fail(exchange, failure)),
            (Poll::Pending, _) => self.wait_for_backend(exchange),
        }
    }

    fn wait_for_backend(&mut self, exchange: &mut Exchange) -> Poll<Option<Outcome>> {
        let State::Talk(talk) = &self.state else {
            return Poll::Ready(None);
        };
        match talk.due_s() {
            Some((due_s, failure)) if is_over(exchange, due_s) => {
                Poll::Ready(self.fail(exchange, failure))
            }
            Some((due_s, _)) => {
                exchange.wake_at(due_s);
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }

    /// The whole reply is there.
    fn end(&mut self, exchange: &mut Exchange) -> Option<Outcome> {
        exchange.stamp_latest(Stage::BackendReply);
        if let State::Talk(talk) = std::mem::replace(&mut self.state, State::Over) {
            reply::log_dropped(&exchange.settings, &talk);
        }
        Some(match self.reply.verdict.take() {
            Some(Verdict::Collect | Verdict::Stream) => {
                exchange.response.body = std::mem::take(&mut self.reply.body).into_body();
                self.finish(exchange);
                Outcome::Answer
            }
            Some(Verdict::Discard(outcome)) => outcome,
            Some(Verdict::Open(opening)) => {
                self.state = State::Open(opening);
                return None;
            }
            Some(Verdict::Tunnel | Verdict::Refuse) | None => exchange.answer(Status::BAD_GATEWAY),
        })
    }

    /// The head is there, and the rest is not waited for.
    fn hand_over(&mut self, exchange: &mut Exchange) -> Option<Outcome> {
        exchange.stamp_latest(Stage::BackendReply);
        let State::Talk(mut talk) = std::mem::replace(&mut self.state, State::Over) else {
            return Some(exchange.answer(Status::INTERNAL_SERVER_ERROR));
        };
        let ahead = match exchange.settings.core.stream_response_body {
            1 => Ahead::Unbounded,
            _ => Ahead::Bounded,
        };
        Some(match self.reply.verdict.take() {
            Some(Verdict::Tunnel) => {
                exchange.become_tunnel(Ahead::Bounded);
                talk.become_tunnel();
                self.stream(exchange, *talk, Ahead::Bounded)
            }
            Some(Verdict::Stream | Verdict::Collect) => self.stream(exchange, *talk, ahead),
            Some(Verdict::Discard(outcome)) => {
                talk.detach(&self.worker);
                outcome
            }
            Some(Verdict::Open(opening)) => {
                talk.detach(&self.worker);
                self.state = State::Open(opening);
                return None;
            }
            Some(Verdict::Refuse) | None => {
                talk.detach(&self.worker);
                exchange.answer(Status::BAD_GATEWAY)
            }
        })
    }

    fn stream(&mut self, exchange: &mut Exchange, talk: Talk, ahead: Ahead) -> Outcome {
        let reply = Reply::new(exchange, talk, ahead);
        exchange.response.body = Body::Source(Box::new(reply));
        self.finish(exchange);
        Outcome::Answer
    }

    fn finish(&mut self, exchange: &mut Exchange) {
        if let (Some(upstream), Some(backend)) = (&self.upstream, self.set_cookie.take()) {
            let mut cookie = Vec::new();
            upstream.balancer().write_set_cookie(&backend, &mut cookie);
            exchange.response.append("Set-Cookie", &cookie);
        }
    }

    /// The conversation failed: tries again, or gives up.
    fn fail(&mut self, exchange: &mut Exchange, failure: Failure) -> Option<Outcome> {
        let State::Talk(talk) = std::mem::replace(&mut self.state, State::Choose) else {
            return Some(exchange.answer(Status::INTERNAL_SERVER_ERROR));
        };
        exchange.stamp(match talk.reply_has_begun() {
            true => Stage::BackendReply,
            false => Stage::BackendWait,
        });
        reply::log_dropped(&exchange.settings, &talk);
        let was_kept = talk.is_on_kept_connection();
        let body = &exchange.request.body;
        let attempt = FailedAttempt {
            reply_has_begun: talk.reply_has_begun(),
            bytes_written: talk.bytes_written(),
            body_is_held: body.received() == body.spool().held(),
            is_refused: matches!(failure, Failure::Refused),
        };
        let may_repeat = !failure.is_timeout()
            && attempt.may_be_repeated(exchange.request.method)
            && self.replays < limits::REPLAYS_MAX;
        if let Some(backend) = talk.backend() {
            if was_kept && !talk.reply_has_begun() && !failure.is_timeout() {
                // It was closed while it was idle; the others probably as well.
                backend.forget_idle();
            } else {
                self.tried.add(backend);
                self.failures += 1;
                self.tell(exchange, &Rc::clone(backend), &failure);
            }
        } else {
            let name = talk.backend_name();
            exchange.log_error(
                failure.stage().name(),
                format_args!("{failure} backend={name}"),
            );
        }
        if may_repeat && self.upstream.is_some() {
            self.replays += 1;
            debug::say(
                &self.gateway,
                debug::CONNECTIONS,
                exchange,
                format_args!("tries again after: {failure};"),
            );
            self.reply = Collected::default();
            self.told_end = false;
            exchange.response.clear();
            self.failed = Some(failure);
            return None;
        }
        if was_kept && !talk.reply_has_begun() && !failure.is_timeout() {
            let name = talk.backend_name();
            exchange.log_error(
                failure.stage().name(),
                format_args!("{failure} and must not be asked again; backend={name}"),
            );
        }
        self.failed = Some(failure);
        Some(self.give_up(exchange))
    }

    /// Health and log get to know.
    fn tell(&self, exchange: &Exchange, backend: &Backend, failure: &Failure) {
        let name = &backend.shared.name;
        exchange.log_error(
            failure.stage().name(),
            format_args!("{failure} backend={name}"),
        );
        let now_ms = exchange.worker.clock().now() / 1_000_000;
        let Some(kind) = failure.of_backend() else {
            return;
        };
        if let Some(time) = backend.shared.health.failed(now_ms, kind) {
            exchange.log_error(
                failure.stage().name(),
                format_args!("left alone for {time:?} backend={name}"),
            );
        }
    }

    fn give_up(&mut self, exchange: &mut Exchange) -> Outcome {
        self.state = State::Over;
        let status = match &self.failed {
            Some(failure) => failure.status(),
            None => Status::SERVICE_UNAVAILABLE,
        };
        exchange.response.clear();
        exchange.answer(status)
    }
}

impl Pending for GatewayRequest {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        self.step(exchange, context)
    }
}

impl Drop for GatewayRequest {
    fn drop(&mut self) {
        if let State::Talk(talk) = std::mem::replace(&mut self.state, State::Over) {
            talk.detach(&self.worker);
        }
    }
}

/// Takes what the backend has said so far, as far as the disk takes it.
fn receive(
    talk: &mut Talk,
    gateway: &Gateway,
    reply: &mut Collected,
    exchange: &mut Exchange,
    context: &mut Context<'_>,
) -> Poll<Result<Received, Failure>> {
    loop {
        match reply.body.poll_room(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                reply.failure = Some(error);
                return Poll::Pending;
            }
            Poll::Pending => {
                talk.was_held_up(&exchange.worker);
                return Poll::Pending;
            }
        }
        let received = ready!(receive_what_has_room(
            talk, gateway, reply, exchange, context
        ));
        let is_collected = matches!(reply.verdict, Some(Verdict::Collect));
        if !(is_collected && matches!(received, Ok(Received::Stopped))) {
            return Poll::Ready(received);
        }
    }
}

fn receive_what_has_room(
    talk: &mut Talk,
    gateway: &Gateway,
    reply: &mut Collected,
    exchange: &mut Exchange,
    context: &mut Context<'_>,
) -> Poll<Result<Received, Failure>> {
    let worker = Rc::clone(&exchange.worker);
    let host: Rc<Host> = Rc::clone(&talk.host);
    let backend = talk.backend().cloned();
    talk.poll_receive(&worker, context, &mut |event| {
        match event {
            Event::Interim(head) => answer::inform(exchange, head),
            Event::Log(bytes) => {
                let name = name_of(backend.as_ref(), &host);
                reply::log(&exchange.settings, name, bytes);
            }
            Event::Head(conversation) => {
                let name = backend.as_ref().map_or(&host.label, |it| &it.shared.name);
                debug::reply_head(gateway, exchange, name, conversation.head());
                let verdict = answer::accept(exchange, gateway, &host, conversation);
                let is_collected = matches!(verdict, Verdict::Collect);
                reply.verdict = Some(verdict);
                if !is_collected {
                    return Flow::Stop;
                }
            }
            Event::Body(bytes) => {
                let directories = &worker.process().upload_directories;
                let client = exchange.connection.client_key();
                reply.body.push(bytes, directories, client);
                if !reply.body.has_room() {
                    return Flow::Stop;
                }
            }
        }
        Flow::Go
    })
}

/// What the backend is told of the body. Only what is complete, or announced, has a length.
pub(super) fn body_length(exchange: &Exchange, host: &Host) -> BodyLength {
    let body = &exchange.request.body;
    let length = match (body.is_complete(), exchange.body_framing()) {
        (true, _) => Some(body.received()),
        (false, BodyFraming::Length(length)) => Some(length),
        (false, _) => None,
    };
    match length {
        // FastCGI 1.0, section 6.3.
        _ if host.mode == Mode::Authorizer => BodyLength::None,
        Some(0) => BodyLength::None,
        Some(length) => BodyLength::Known(length),
        None => BodyLength::Unknown,
    }
}

/// Whether a request that must not be sent twice has to do without a kept connection, because the backend
/// may have closed it. Other requests save the look at it: they may be sent again.
fn must_be_replaced(
    exchange: &Exchange,
    backend: &Backend,
    connection: &BackendConnection,
) -> bool {
    let is_kept = connection.requests() > 0;
    if !is_kept || exchange.request.method.is_idempotent() {
        return false;
    }
    let now_ms = exchange.worker.clock().now() / 1_000_000;
    backend.may_close(connection, now_ms)
}

fn due_after(exchange: &Exchange, time: std::time::Duration) -> u32 {
    if time.is_zero() {
        return u32::MAX;
    }
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let now_s = exchange.worker.clock().seconds();
    now_s.saturating_add(seconds).saturating_add(1)
}

fn is_over(exchange: &Exchange, due_s: u32) -> bool {
    due_s <= exchange.worker.clock().seconds()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_time_of_zero_is_no_limit() {
        let tree = crate::testing::Tree::new(&[]);
        let answer = tree.site("", &[]).get("/");
        let exchange = answer.exchange();
        let now_s = exchange.worker.clock().seconds();
        let due_s = due_after(exchange, Duration::ZERO);
        assert!(!is_over(exchange, due_s));
        assert_eq!(due_s, u32::MAX, "the deadlines' word for never");
        assert_eq!(due_after(exchange, Duration::from_secs(7)), now_s + 8);
    }
}
