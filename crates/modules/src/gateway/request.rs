//! One request to a backend: chooses a backend, queues, connects, sends the request, awaits the head of the
//! reply.
//!
//! A hook of a gateway answers with a [`GatewayRequest`]; the phase loop polls it in the task of the client's
//! connection. When an attempt fails before any byte of a reply has arrived, and sending the request again is
//! safe, it starts over with another connection or backend. `server.stream-response-body` says whether it ends
//! with the head, a little later, or when the whole reply has arrived; then its [`Relay`] becomes the body of
//! the answer.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use petrel_engine::Exchange;
use petrel_engine::body::ReadAhead;
use petrel_engine::cause::CauseCode;
use petrel_engine::ledger::Stage;
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::settings::ReplyStreaming;

use super::answer::{self, ReplyVerdict};
use super::backend::Backend;
use super::balance::{Candidate, Choice, NoBackend, Tried};
use super::capacity::Permit;
use super::connection::BackendConnection;
use super::debug;
use super::environment;
use super::failure::Failure;
use super::holders::HolderSurvey;
use super::limits;
use super::offload::{Offload, Opening};
use super::options::Gateway;
use super::pool::{Grant, QueueTicket};
use super::protocol::{BodyLength, proxy_header};
use super::relay::Relay;
use super::replay::FailedAttempt;
use super::reroute;
use super::stream::{Connecting, is_port_shortage};
use super::talk::{ArrivedHead, Flow, InFlight, Peer, Received, Talk};
use super::upstream::Upstream;
use crate::limit::take_share;
use crate::request_trace::{begin_try, end_try};

/// A request on its way to a backend.
pub(crate) struct GatewayRequest {
    gateway: Rc<Gateway>,
    /// `None` for a CGI program, which has no backend to choose: its conversation has begun already.
    upstream: Option<Rc<Upstream>>,
    tried: Tried,
    replays: u32,
    /// Attempts that were lost after something of the request was written.
    losses: u32,
    /// When the first of them was lost, in milliseconds.
    lost_ms: u64,
    /// Attempts that failed by the fault of a backend.
    failures: u32,
    /// Every backend was tried once, and all of them are being tried a second time.
    is_second_round: bool,
    /// The second until which the request waits because this server is out of descriptors or memory; `None`
    /// if it never was.
    shortage_due_s: Option<u32>,
    /// The second until which the request waits for a backend that is being restarted; `None` if it never was.
    restart_due_s: Option<u32>,
    /// The answer of the backend that was chosen last has to set the balancer's cookie.
    sets_cookie: bool,
    failed: Option<Failure>,
    /// The request is being sent, and not all of it could be sent at once.
    is_sending: bool,
    /// How many attempts have failed, by whatever fault.
    attempts: u16,
    /// Whether the last attempt that failed had begun on a persistent connection, and how many bytes of the
    /// request the backend had taken.
    reached: (bool, u64),
    state: RequestState,
    /// The conversation, in [`RequestState::Talk`]. It is not part of the state, which each step moves, and has
    /// no memory of its own.
    relay: Option<Relay>,
}

/// What few requests need is in boxes: each step moves the state.
enum RequestState {
    /// Host names have to be looked up first. `waits`: the request has waited for that.
    Resolve { waits: bool },
    /// A backend has to be chosen.
    Choose,
    /// All connections of the chosen backend are in use; the request waits for one.
    Queue(Box<QueuePlace>),
    /// A connection is being made.
    Connect {
        attempt: Box<ConnectAttempt>,
        connecting: Connecting,
    },
    /// A pause before the next attempt to connect, because the queue of the backend's unix socket was full.
    /// Without an attempt, because this server is out of descriptors or memory; a connection may become free
    /// meanwhile.
    Pause {
        attempt: Option<Box<ConnectAttempt>>,
        pause: Pin<Box<tokio::time::Sleep>>,
    },
    /// The request is being sent and its reply awaited.
    Talk(Collecting),
    /// The reply is complete and names a file; a disk thread opens it.
    Open(Box<Opening>),
    /// The request has been answered.
    Over,
}

/// How long the body of the reply is collected.
enum Collecting {
    /// The head has not come.
    NotYet,
    /// Until it is complete.
    Whole,
    /// Until it is complete or long, or the time is over.
    Until(Pin<Box<tokio::time::Sleep>>),
}

/// What to do after a step in one state.
enum Transition {
    /// Go on in another state, at once.
    To(RequestState),
    /// Stay in this state until the task is woken.
    Wait(RequestState),
    /// The request is answered.
    End(Outcome),
}

/// A place in the queue of a backend: see [`RequestState::Queue`].
struct QueuePlace {
    chosen: ChosenBackend,
    ticket: QueueTicket,
    /// Places in the queues of other backends of the route, which may be free first.
    others: Vec<QueueTicket>,
    /// It was looked for other backends.
    is_spread: bool,
    due_s: u32,
    /// Which requests had the connections when the wait began.
    holders: HolderSurvey,
    since_ms: u64,
}

/// The chosen backend, with the request counted in its load.
struct ChosenBackend {
    backend: Rc<Backend>,
    in_flight: InFlight,
}

/// An attempt to connect to a backend.
struct ConnectAttempt {
    chosen: ChosenBackend,
    /// The PROXY header, which is sent in front of the TLS handshake.
    prefix: Vec<u8>,
    permit: Permit,
    due_s: u32,
    /// Set when the backend has accepted the connection and the TLS handshake takes its time; `None` without TLS.
    shakes_hands: Option<Rc<Cell<bool>>>,
}

impl ChosenBackend {
    /// Another backend is free first.
    fn moved_to(mut self, other: &Rc<Backend>) -> ChosenBackend {
        self.in_flight.move_to(other);
        self.backend = Rc::clone(other);
        self
    }
}

impl ConnectAttempt {
    fn shakes_hands(&self) -> bool {
        self.shakes_hands
            .as_ref()
            .is_some_and(|shakes| shakes.get())
    }

    fn connect(self: Box<Self>) -> RequestState {
        RequestState::Connect {
            connecting: {
                let backend = &self.chosen.backend;
                backend.connect_watched(&self.prefix, self.shakes_hands.clone())
            },
            attempt: self,
        }
    }
}

impl GatewayRequest {
    /// A request to one of the backends of `upstream`.
    #[inline(always)]
    pub(crate) fn new(gateway: Rc<Gateway>, upstream: Rc<Upstream>) -> GatewayRequest {
        GatewayRequest::in_state(
            gateway,
            Some(upstream),
            RequestState::Resolve { waits: false },
        )
    }

    /// A conversation with a CGI program, which was started for this request.
    pub(crate) fn with_talk(
        exchange: &Exchange,
        gateway: Rc<Gateway>,
        talk: Talk,
    ) -> GatewayRequest {
        let state = RequestState::Talk(Collecting::NotYet);
        let mut request = GatewayRequest::in_state(gateway, None, state);
        request.relay = Some(Relay::new(exchange, talk));
        request
    }

    #[inline(always)]
    fn in_state(
        gateway: Rc<Gateway>,
        upstream: Option<Rc<Upstream>>,
        state: RequestState,
    ) -> GatewayRequest {
        GatewayRequest {
            gateway,
            upstream,
            tried: Tried::new(),
            replays: 0,
            losses: 0,
            lost_ms: 0,
            failures: 0,
            is_second_round: false,
            shortage_due_s: None,
            restart_due_s: None,
            sets_cookie: false,
            failed: None,
            is_sending: false,
            attempts: 0,
            reached: (false, 0),
            state,
            relay: None,
        }
    }

    fn step(
        &mut self,
        state: RequestState,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Transition {
        match state {
            RequestState::Resolve { waits } => self.resolve(waits, exchange, context),
            RequestState::Choose => self.choose(exchange),
            RequestState::Queue(place) => self.queue(place, exchange, context),
            RequestState::Connect {
                attempt,
                connecting,
            } => self.connect(attempt, connecting, exchange, context),
            RequestState::Pause { attempt, mut pause } => match pause.as_mut().poll(context) {
                Poll::Pending => Transition::Wait(RequestState::Pause { attempt, pause }),
                Poll::Ready(()) => {
                    Transition::To(attempt.map_or(RequestState::Choose, ConnectAttempt::connect))
                }
            },
            RequestState::Talk(collecting) => self.talk(collecting, exchange, context),
            RequestState::Open(mut opening) => match opening.poll(exchange, context) {
                Poll::Pending => Transition::Wait(RequestState::Open(opening)),
                Poll::Ready(Offload::Answered(outcome)) => Transition::End(outcome),
                Poll::Ready(_) => Transition::End(exchange.fail(CauseCode::GwReplyRefused)),
            },
            RequestState::Over => Transition::End(exchange.fail(CauseCode::Internal)),
        }
    }

    fn resolve(
        &mut self,
        waits: bool,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Transition {
        if let Some(upstream) = &self.upstream
            && upstream.poll_known(context).is_pending()
        {
            return Transition::Wait(RequestState::Resolve { waits: true });
        }
        if waits {
            exchange.stamp_wait(Stage::BackendQueue, |_, text| {
                let upstream = self.upstream.as_ref();
                let names = upstream.map(|upstream| upstream.looked_up_names());
                let names = names.unwrap_or_default();
                write!(
                    text,
                    "the name server had not answered for the backend's host {names}"
                );
            });
        }
        self.choose(exchange)
    }

    fn choose(&mut self, exchange: &mut Exchange) -> Transition {
        let Some(upstream) = self.upstream.clone() else {
            return self.give_up(exchange);
        };
        if self.failures >= self.gateway.tries_max {
            return self.give_up(exchange);
        }
        let chosen = match reroute::named(exchange) {
            Some(named) if !named.0.is_empty() && upstream.answers() => {
                self.choose_named(&upstream, &named.0, exchange)
            }
            _ => upstream.choose(exchange, &self.tried),
        };
        let (backend, choice) = match chosen {
            Ok(chosen) => chosen,
            Err(NoBackend::Unknown) => {
                let what = format_args!(
                    "X-Rewrite-Backend names a backend that this scope does not have;"
                );
                let outcome = exchange.fail(CauseCode::GwUnknownBackend);
                exchange.log_error(Stage::BackendQueue.name(), what);
                return Transition::End(outcome);
            }
            Err(NoBackend::Down | NoBackend::Tried)
                if let Some(backend) = upstream.restarting() =>
            {
                return self.wait_for_restart(backend, exchange);
            }
            Err(NoBackend::Down) if self.failed.is_none() => {
                let what = format_args!("all backends are down;");
                let outcome = exchange.fail(CauseCode::GwAllDown);
                exchange.log_error(Stage::BackendQueue.name(), what);
                return Transition::End(outcome);
            }
            // A process of a backend died while it had the request. The same address may have other
            // processes.
            Err(NoBackend::Tried) if !self.is_second_round && self.has_seen_death() => {
                self.is_second_round = true;
                self.tried = Tried::new();
                return Transition::To(RequestState::Choose);
            }
            Err(_) => return self.give_up(exchange),
        };
        let name = &backend.shared.name;
        let what = format_args!("chosen backend={name}");
        debug::say(&self.gateway, debug::CHOICES, exchange, what);
        self.sets_cookie = choice.set_cookie;
        self.go_to(backend, exchange)
    }

    /// The request takes a connection of `backend`, or waits for one.
    fn go_to(&mut self, backend: Rc<Backend>, exchange: &mut Exchange) -> Transition {
        let pool = &backend.shared;
        let name = &pool.name;
        let shares = match take_share(exchange, &pool.shares, pool.capacity.told(), name) {
            Ok(shares) => shares,
            // The request is refused and not queued: others in the queue would have to wait behind it.
            Err(refused) => {
                pool.health.return_probe(exchange.worker.clock().now_ms());
                return Transition::End(refused);
            }
        };
        let chosen = ChosenBackend {
            in_flight: InFlight::new(&backend, shares),
            backend: Rc::clone(&backend),
        };
        if let Some(grant) = backend.try_take() {
            return self.use_grant(chosen, grant, exchange);
        }
        self.join_queue(chosen, exchange)
    }

    /// Waits in the queue of the chosen backend.
    fn join_queue(&mut self, chosen: ChosenBackend, exchange: &mut Exchange) -> Transition {
        let backend = &chosen.backend;
        let name = &backend.shared.name;
        let Some(ticket) = backend.wait(exchange.request.method) else {
            let what = format_args!("too many requests wait for backend={name}");
            let outcome = exchange.fail(CauseCode::GwQueueFull);
            exchange.log_error(Stage::BackendQueue.name(), what);
            return Transition::End(outcome);
        };
        self.say(
            exchange,
            format_args!("waits for a connection backend={name}"),
        );
        let due_s = due_after(exchange, backend.host.backlog_timeout);
        let shared = &backend.shared;
        Transition::To(RequestState::Queue(Box::new(QueuePlace {
            due_s: self.restart_due_s.unwrap_or(due_s),
            holders: shared.survey(),
            since_ms: exchange.worker.clock().latest_ms(),
            others: Vec::new(),
            is_spread: false,
            chosen,
            ticket,
        })))
    }

    /// The chosen backend is busy: other backends that work may answer instead, because a request that is not
    /// written is bound to none, unless its keys have a share of that one.
    fn spread(&self, place: &mut QueuePlace, exchange: &Exchange) {
        let QueuePlace { chosen, others, .. } = place;
        if let Some(upstream) = &self.upstream
            && !chosen.in_flight.has_shares()
            && self.restart_due_s.is_none()
        {
            let also = upstream.others(&chosen.backend, &self.tried, exchange);
            let method = exchange.request.method;
            others.extend(also.iter().filter_map(|other| other.wait(method)));
        }
    }

    /// The backend is being restarted: the request waits for it as long as it would wait for a connection.
    fn wait_for_restart(&mut self, backend: Rc<Backend>, exchange: &mut Exchange) -> Transition {
        let due_s = due_after(exchange, backend.host.backlog_timeout);
        let due_s = *self.restart_due_s.get_or_insert(due_s);
        if is_over(exchange, due_s) {
            return self.give_up(exchange);
        }
        self.tried = Tried::new();
        self.go_to(backend, exchange)
    }

    fn has_seen_death(&self) -> bool {
        matches!(self.failed, Some(Failure::Read(_) | Failure::Write(_)))
    }

    /// The backend that a reply named with `X-Rewrite-Backend`.
    fn choose_named(
        &self,
        upstream: &Upstream,
        name: &[u8],
        exchange: &Exchange,
    ) -> Result<(Rc<Backend>, Choice), NoBackend> {
        let backend = upstream.named(name).ok_or(NoBackend::Unknown)?;
        if self.tried.contains(backend.key()) {
            return Err(NoBackend::Tried);
        }
        let choice = Choice {
            index: 0,
            set_cookie: false,
        };
        let now_ms = exchange.worker.clock().now_ms();
        match backend.shared.health.admit(now_ms) {
            true => Ok((backend, choice)),
            false => Err(NoBackend::Down),
        }
    }

    #[inline(never)]
    fn queue(
        &mut self,
        mut place: Box<QueuePlace>,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Transition {
        if place.chosen.backend.is_stuck() && !std::mem::replace(&mut place.is_spread, true) {
            super::overload::report(exchange, &place.chosen.backend.host);
            self.spread(&mut place, exchange);
        }
        let mut polled = place.ticket.poll(context);
        let mut winner = None;
        for (number, other) in place.others.iter_mut().enumerate() {
            if polled.is_pending() {
                polled = other.poll(context);
                winner = polled.is_ready().then_some(number);
            }
        }
        if polled.is_pending() && !is_over(exchange, place.due_s) {
            exchange.wake_at(place.due_s);
            return Transition::Wait(RequestState::Queue(place));
        }
        let stage = stamp_queue(&place, self.restart_due_s.is_some(), exchange);
        let QueuePlace {
            chosen,
            ticket,
            others,
            ..
        } = *place;
        let winner = winner.and_then(|number| others.get(number));
        let chosen = match winner {
            Some(winner) => chosen.moved_to(&winner.backend),
            None => chosen,
        };
        drop((ticket, others));
        match polled {
            Poll::Ready(grant) => self.use_grant(chosen, grant, exchange),
            Poll::Pending => {
                if self.restart_due_s.is_some() {
                    return self.give_up(exchange);
                }
                let what = format_args!("no connection became free in time;");
                let outcome = exchange.fail(CauseCode::GwQueueTimeout);
                exchange.log_error(stage.name(), what);
                Transition::End(outcome)
            }
        }
    }

    fn use_grant(
        &mut self,
        chosen: ChosenBackend,
        grant: Grant,
        exchange: &mut Exchange,
    ) -> Transition {
        let backend = &chosen.backend;
        let name = &backend.shared.name;
        begin_try(exchange, name);
        let permit = match grant {
            Grant::Kept(mut connection) => {
                let is_replay = self.replays > 0;
                if !must_be_replaced(exchange, backend, &mut connection, is_replay) {
                    return self.ask(chosen, connection, exchange);
                }
                self.say(
                    exchange,
                    format_args!(
                        "opens a connection, since the persistent one may have been closed by backend={name}"
                    ),
                );
                connection.into_permit()
            }
            Grant::Open(permit) => Some(permit),
            Grant::Failed(failure) => return self.connect_failed(&chosen, failure, exchange),
        };
        // Every connection to a backend has one.
        let Some(permit) = permit else {
            return self.give_up(exchange);
        };
        self.say(exchange, format_args!("connects backend={name}"));
        let mut prefix = Vec::new();
        let has_tls = backend.shared.tls.is_some();
        if has_tls {
            proxy_header::write(backend.host.proxy_protocol, exchange, &mut prefix);
        }
        let attempt = Box::new(ConnectAttempt {
            due_s: due_after(exchange, backend.host.connect_timeout),
            permit,
            chosen,
            prefix,
            shakes_hands: has_tls.then(Rc::default),
        });
        Transition::To(attempt.connect())
    }

    fn ask(
        &mut self,
        chosen: ChosenBackend,
        connection: Box<BackendConnection>,
        exchange: &mut Exchange,
    ) -> Transition {
        let ChosenBackend {
            backend,
            mut in_flight,
        } = chosen;
        // A backend that is stopped loses requests by no fault of theirs; it was then seen to be gone.
        let was_stopped = backend.shared.capacity.last_gone_ms() >= self.lost_ms;
        if self.losses > limits::LOSSES_MAX && !was_stopped {
            end_try(exchange, None);
            return self.give_up(exchange);
        }
        in_flight.hold(exchange);
        exchange.backend = Some(Rc::clone(&backend.name));
        self.say(
            exchange,
            format_args!(
                "sends the request on a connection with {} earlier requests backend={}",
                connection.requests(),
                backend.shared.name
            ),
        );
        debug::request_head(&self.gateway, exchange);
        let peer = Peer {
            host: Rc::clone(&backend.host),
            backend: Some(backend),
        };
        let body = BodyLength::of(exchange, &peer.host);
        let begun = Talk::begin(
            exchange,
            &self.gateway,
            peer,
            Some(in_flight),
            connection,
            body,
        );
        match begun {
            Ok(talk) => {
                self.relay = Some(Relay::new(exchange, talk));
                Transition::To(RequestState::Talk(Collecting::NotYet))
            }
            Err(error) => {
                let what =
                    format_args!("the request cannot be sent by this protocol: {};", error.0);
                let outcome = exchange.fail(CauseCode::GwRequestUnfit);
                exchange.log_error(Stage::BackendFirstByte.name(), what);
                Transition::End(outcome)
            }
        }
    }

    #[inline(never)]
    fn connect(
        &mut self,
        attempt: Box<ConnectAttempt>,
        mut connecting: Connecting,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Transition {
        let connected = connecting.as_mut().poll(context);
        let is_late = is_over(exchange, attempt.due_s);
        let failure = match connected {
            Poll::Ready(Ok(stream)) => {
                stamp_connect(exchange, &attempt.chosen, attempt.shakes_hands());
                let now_ms = exchange.worker.clock().now_ms();
                let ConnectAttempt { chosen, permit, .. } = *attempt;
                chosen.backend.is_connected(now_ms);
                let connection = chosen.backend.adopt(stream, permit, now_ms);
                return self.ask(chosen, connection, exchange);
            }
            // The queue of the unix socket is full. It may have room in a moment.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                if !is_late {
                    super::overload::report(exchange, &attempt.chosen.backend.host);
                    return pause(Some(attempt));
                }
                Failure::Overloaded
            }
            Poll::Ready(Err(error)) => Failure::of_connect(error),
            Poll::Pending if is_late => Failure::ConnectTimeout,
            Poll::Pending => {
                exchange.wake_at(attempt.due_s);
                return Transition::Wait(RequestState::Connect {
                    attempt,
                    connecting,
                });
            }
        };
        let shakes_hands = attempt.shakes_hands();
        let chosen = attempt.chosen;
        // The permit is free for a request that waits for a connection.
        drop(attempt.permit);
        chosen
            .backend
            .has_failed(&failure, exchange.worker.clock().now_ms());
        stamp_connect(exchange, &chosen, shakes_hands);
        self.connect_failed(&chosen, failure, exchange)
    }

    /// No connection to the chosen backend could be made: another one is tried, or the client gets an error.
    fn connect_failed(
        &mut self,
        chosen: &ChosenBackend,
        failure: Failure,
        exchange: &mut Exchange,
    ) -> Transition {
        let backend = &chosen.backend;
        // Local ports do not become free soon, so waiting is no use; but each backend address has its own set of
        // local ports.
        if let Failure::OwnShortage(error) = &failure
            && !is_port_shortage(error)
        {
            return self.wait_out_shortage(backend, failure, exchange);
        }
        stamp_connect(exchange, chosen, false);
        end_try(exchange, Some(&failure));
        self.failed_with(false, 0);
        self.tried.add(backend);
        if self.restart_due_s.is_none() {
            self.failures += 1;
            tell(exchange, backend, &failure);
        }
        self.failed = Some(failure);
        Transition::To(RequestState::Choose)
    }

    /// This server has no descriptor or memory for another connection. The request waits until a connection
    /// becomes free, and tries now and then to open one, for as long as connecting may take.
    fn wait_out_shortage(
        &mut self,
        backend: &Rc<Backend>,
        failure: Failure,
        exchange: &mut Exchange,
    ) -> Transition {
        let host = &backend.host;
        let due_s = due_after(exchange, host.connect_timeout)
            .min(due_after(exchange, host.backlog_timeout));
        let due_s = *self.shortage_due_s.get_or_insert(due_s);
        if is_over(exchange, due_s) {
            exchange.stamp_wait(Stage::BackendConnect, |_, text| {
                text.write_str("this server has no descriptors or memory left");
            });
            tell(exchange, backend, &failure);
            self.failed_with(false, 0);
            self.failed = Some(failure);
            return self.give_up(exchange);
        }
        if let Failure::OwnShortage(error) = &failure {
            self.say(
                exchange,
                format_args!(
                    "this server has no descriptors or memory left, so the request waits: {error};"
                ),
            );
        }
        pause(None)
    }

    fn talk(
        &mut self,
        collecting: Collecting,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Transition {
        let Some(relay) = &mut self.relay else {
            return Transition::End(exchange.fail(CauseCode::Internal));
        };
        let sent = relay.poll_send(exchange, context);
        let was_sending = std::mem::replace(&mut self.is_sending, sent.is_pending());
        if was_sending && !relay.talk.reply_has_begun() {
            stamp_sending(relay, exchange);
        }
        let had_begun = relay.talk.reply_has_begun();
        let mut verdict = match &collecting {
            Collecting::NotYet => None,
            Collecting::Whole => Some(ReplyVerdict::Collect),
            Collecting::Until(_) => Some(ReplyVerdict::CollectBriefly),
        };
        let received = relay.poll_receive(context, &mut |peer, head| match head {
            ArrivedHead::Interim(head) => {
                answer::inform(exchange, head);
                Flow::Go
            }
            ArrivedHead::Final(conversation) => {
                debug::reply_head(&self.gateway, exchange, peer.name(), conversation.head());
                let accepted = answer::accept(exchange, &self.gateway, &peer.host, conversation);
                match verdict.insert(accepted) {
                    ReplyVerdict::Collect | ReplyVerdict::CollectBriefly => Flow::Go,
                    _ => Flow::Stop,
                }
            }
        });
        if let Some((until, survey)) = relay.talk.take_taken()
            && let Some(backend) = &relay.talk.peer.backend
        {
            let backend = &backend.shared;
            exchange.stamp_wait_part(Stage::BackendAccept, until, |_, text| match survey {
                Some(survey) => survey.tell(backend, until, text),
                None => write!(text, "the process of {} had not read it", backend.name),
            });
        }
        if !had_begun && relay.talk.reply_has_begun() {
            let name = relay.talk.peer.name();
            let host = &relay.talk.peer.host;
            let fpm = relay.talk.peer.backend.as_ref();
            let fpm = fpm.and_then(|backend| backend.shared.fpm.as_ref());
            let before = exchange.ledger.stage(Stage::BackendFirstByte);
            let since_ms = exchange.ledger.last() / NANOS_PER_MILLI;
            exchange.stamp_wait_latest(Stage::BackendFirstByte, |exchange, text| {
                write!(text, "{name} worked on the request");
                if let Some(fpm) = fpm {
                    let is_script = |path: &str| environment::is_script_file(exchange, host, path);
                    fpm.tell_child(since_ms, exchange.request.url.path(), is_script, text);
                }
            });
            if let Some(backend) = &relay.talk.peer.backend {
                let waited = exchange.ledger.stage(Stage::BackendFirstByte) - before;
                backend.first_bytes.count(waited);
                let now_ms = exchange.worker.clock().latest_ms();
                backend.shared.health.replied(now_ms);
                backend.shared.capacity.served();
            }
        }
        match (received, sent) {
            (Poll::Ready(Ok(Received::End | Received::Stopped)), _) => {
                self.answer(verdict, exchange)
            }
            (Poll::Ready(Err(failure)), _) => {
                let failure = relay.talk.blame(failure);
                self.fail(failure, exchange)
            }
            (_, Poll::Ready(Err(failure))) => self.fail(failure, exchange),
            (Poll::Pending, _)
                if matches!(
                    verdict,
                    Some(ReplyVerdict::Collect | ReplyVerdict::CollectBriefly)
                ) && relay.talk.has_whole_body() =>
            {
                self.answer(verdict, exchange)
            }
            (Poll::Pending, _) => {
                let collecting = match verdict {
                    Some(ReplyVerdict::CollectBriefly) => {
                        let mut pause = match collecting {
                            Collecting::Until(pause) => pause,
                            _ => Box::pin(tokio::time::sleep(limits::REPLY_COLLECTED)),
                        };
                        if relay.is_full() || pause.as_mut().poll(context).is_ready() {
                            return self.answer(verdict, exchange);
                        }
                        Collecting::Until(pause)
                    }
                    Some(_) => Collecting::Whole,
                    None => Collecting::NotYet,
                };
                if let Some(due_s) = relay.talk.due_s() {
                    exchange.wake_at(due_s);
                }
                Transition::Wait(RequestState::Talk(collecting))
            }
        }
    }

    /// The head of the reply has arrived, and as much of the body as was to be collected.
    fn answer(&mut self, verdict: Option<ReplyVerdict>, exchange: &mut Exchange) -> Transition {
        let Some(relay) = &mut self.relay else {
            return Transition::End(exchange.fail(CauseCode::Internal));
        };
        let name = relay.talk.peer.name();
        exchange.stamp_wait_latest(Stage::BackendBody, |_, text| {
            write!(text, "{name} sent its reply");
        });
        if relay.talk.has_ended() || relay.talk.has_whole_body() {
            end_try(exchange, None);
        }
        let ahead = match verdict {
            Some(ReplyVerdict::Discard(outcome)) => return Transition::End(outcome),
            Some(ReplyVerdict::Open(opening)) => {
                self.relay = None;
                return Transition::To(RequestState::Open(opening));
            }
            Some(ReplyVerdict::Refuse) | None => {
                return Transition::End(exchange.fail(CauseCode::GwReplyRefused));
            }
            Some(ReplyVerdict::Tunnel) => {
                exchange.become_tunnel(ReadAhead::Bounded);
                relay.talk.become_tunnel();
                ReadAhead::Bounded
            }
            Some(ReplyVerdict::CollectBriefly) => ReadAhead::Unbounded,
            Some(ReplyVerdict::Stream | ReplyVerdict::Collect) => {
                match exchange.settings.core.stream_response_body {
                    ReplyStreaming::AtOnce => ReadAhead::Unbounded,
                    _ => ReadAhead::Bounded,
                }
            }
        };
        if let (Some(upstream), Some(backend)) = (&self.upstream, &relay.talk.peer.backend)
            && self.sets_cookie
        {
            let mut cookie = Vec::new();
            upstream.balancer().write_set_cookie(backend, &mut cookie);
            exchange.response.append("Set-Cookie", &cookie);
        }
        if let Some(body) = relay.take_whole_body() {
            exchange.response.body = body;
        } else if let Some(relay) = self.relay.take() {
            exchange.response.body = relay.into_body(ahead);
        }
        Transition::End(Outcome::Answer)
    }

    /// The conversation failed: the request starts over, or the client gets an error.
    #[inline(never)]
    fn fail(&mut self, failure: Failure, exchange: &mut Exchange) -> Transition {
        let Some(mut relay) = self.relay.take() else {
            return self.give_up(exchange);
        };
        let stage = match relay.talk.reply_has_begun() {
            true => Stage::BackendBody,
            false if self.is_sending || matches!(failure, Failure::Write(_)) => Stage::BackendSend,
            false => Stage::BackendFirstByte,
        };
        exchange.stamp_wait(stage, |_, text| {
            write!(text, "{} failed: {failure}", relay.talk.peer.name());
        });
        end_try(exchange, Some(&failure));
        // An application that refuses the request has done nothing with it.
        let is_lost = relay.talk.bytes_written() > 0 && !matches!(failure, Failure::Refused);
        if is_lost && self.losses == 0 {
            self.lost_ms = exchange.worker.clock().now_ms();
        }
        self.losses += u32::from(is_lost);
        let may_repeat = self.may_repeat(&relay.talk, &failure, exchange);
        let was_closed_idle = relay.talk.was_closed_idle(&failure);
        self.failed_with(relay.talk.is_on_kept(), relay.talk.bytes_written());
        if let Some(backend) = &relay.talk.peer.backend
            && relay.talk.disproves_keeping()
        {
            backend.shared.capacity.set_keeps_asked(false);
        }
        relay.close();
        let peer = &relay.talk.peer;
        match &peer.backend {
            // Its other idle connections are probably closed as well. This says nothing about its health.
            Some(backend) if was_closed_idle => {
                backend.forget_idle();
                if !may_repeat {
                    let name = peer.name();
                    let what = format_args!(
                        "{failure}, and the request must not be sent twice; backend={name}"
                    );
                    exchange.log_failure(failure.stage().name(), failure.cause(), what);
                }
            }
            Some(backend) => {
                self.tried.add(backend);
                self.failures += 1;
                tell(exchange, backend, &failure);
            }
            None => tell_log(exchange, peer.name(), &failure),
        }
        if may_repeat {
            self.replays += 1;
            self.say(
                exchange,
                format_args!("sends the request again after a failure: {failure};"),
            );
            exchange.response.clear();
            self.failed = Some(failure);
            return Transition::To(RequestState::Choose);
        }
        self.failed = Some(failure);
        self.give_up(exchange)
    }

    /// Whether the request may be sent again, to any backend, after `talk` has failed. A program that was
    /// started for the request cannot be asked again.
    fn may_repeat(&self, talk: &Talk, failure: &Failure, exchange: &Exchange) -> bool {
        if failure.is_timeout() || self.upstream.is_none() || self.replays >= limits::REPLAYS_MAX {
            return false;
        }
        let body = &exchange.request.body;
        let attempt = FailedAttempt {
            reply_has_begun: talk.reply_has_begun(),
            bytes_written: talk.bytes_written(),
            body_is_held: body.received() == body.spool().held(),
            is_refused: matches!(failure, Failure::Refused),
        };
        attempt.may_be_repeated(exchange.request.method)
    }

    /// One more attempt has failed.
    fn failed_with(&mut self, is_reused: bool, bytes: u64) {
        self.attempts = self.attempts.saturating_add(1);
        self.reached = (is_reused, bytes);
    }

    fn give_up(&self, exchange: &mut Exchange) -> Transition {
        let mut cause = match &self.failed {
            Some(failure) => failure.cause(),
            None => CauseCode::GwNoBackend.into(),
        };
        cause.attempts = self.attempts;
        (cause.is_reused, cause.bytes) = self.reached;
        exchange.response.clear();
        Transition::End(exchange.fail(cause))
    }

    /// Writes a line to the error log if `*.debug` asks for lines about connections.
    fn say(&self, exchange: &Exchange, what: fmt::Arguments<'_>) {
        debug::say(&self.gateway, debug::CONNECTIONS, exchange, what);
    }
}

impl Pending for GatewayRequest {
    fn abandon(&mut self, exchange: &mut Exchange) {
        match &self.state {
            RequestState::Queue(place) => {
                stamp_queue(place, self.restart_due_s.is_some(), exchange);
            }
            RequestState::Connect { attempt, .. } => {
                stamp_connect(exchange, &attempt.chosen, attempt.shakes_hands());
            }
            RequestState::Talk(collecting) => {
                let Some(relay) = &self.relay else {
                    return;
                };
                let name = relay.talk.peer.name();
                match collecting {
                    _ if self.is_sending && !relay.talk.reply_has_begun() => {
                        stamp_sending(relay, exchange);
                    }
                    Collecting::NotYet => {
                        exchange.stamp_wait(Stage::BackendFirstByte, |_, text| {
                            write!(text, "{name} worked on the request, which was given up");
                        });
                    }
                    _ => {
                        exchange.stamp_wait(Stage::BackendBody, |_, text| {
                            write!(text, "{name} sent its reply, which was given up");
                        });
                    }
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = std::mem::replace(&mut self.state, RequestState::Over);
        loop {
            match self.step(state, exchange, context) {
                Transition::To(next) => state = next,
                Transition::Wait(state) => {
                    self.state = state;
                    return Poll::Pending;
                }
                Transition::End(outcome) => return Poll::Ready(outcome),
            }
        }
    }
}

/// The end of a wait for a connection of `place`'s backend. Returns its stage.
fn stamp_queue(place: &QueuePlace, is_restarted: bool, exchange: &mut Exchange) -> Stage {
    let backend = &place.chosen.backend;
    let survey = backend.survey_since(place.since_ms);
    let holders = survey.as_ref().unwrap_or(&place.holders);
    let stage = holders.stage();
    exchange.stamp_wait(stage, |exchange, text| match is_restarted {
        true => write!(text, "no process listened at {}", backend.shared.name),
        false => {
            let now = exchange.worker.clock().latest();
            holders.tell(&backend.shared, now, text);
        }
    });
    stage
}

fn pause(attempt: Option<Box<ConnectAttempt>>) -> Transition {
    let pause = Duration::from_millis(limits::QUEUE_FULL_PAUSE_MS);
    Transition::To(RequestState::Pause {
        attempt,
        pause: Box::pin(tokio::time::sleep(pause)),
    })
}

/// A request that is not sent at once has a stage for that: the backend does not take it, or the client has
/// not sent all of the body.
fn stamp_sending(relay: &Relay, exchange: &mut Exchange) {
    match exchange.request.body.is_complete() || relay.talk.has_unsent() {
        true => {
            let name = relay.talk.peer.name();
            exchange.stamp_wait(Stage::BackendSend, |_, text| {
                write!(text, "{name} did not take the request");
            });
        }
        false => {
            exchange.stamp_wait(Stage::RequestBody, |_, text| {
                text.write_str("the client was sending the body");
            });
        }
    }
}

fn stamp_connect(exchange: &mut Exchange, chosen: &ChosenBackend, shakes_hands: bool) {
    exchange.stamp_wait(Stage::BackendConnect, |_, text| {
        let name = &chosen.backend.shared.name;
        match shakes_hands {
            true => write!(text, "{name} did not complete the TLS handshake meanwhile"),
            false => write!(text, "{name} accepted no connection meanwhile"),
        }
    });
}

/// Health and log get to know.
fn tell(exchange: &Exchange, backend: &Backend, failure: &Failure) {
    let name = &backend.shared.name;
    tell_log(exchange, name, failure);
    let now_ms = exchange.worker.clock().now_ms();
    let kind = failure.of_backend();
    if let Some(time) = kind.and_then(|kind| backend.shared.health.failed(now_ms, kind)) {
        exchange.log_error(
            failure.stage().name(),
            format_args!(
                "not tried again for {} s backend={name}",
                time.as_secs_f64()
            ),
        );
    }
}

fn tell_log(exchange: &Exchange, backend: &str, failure: &Failure) {
    let what = format_args!("{failure} backend={backend}");
    exchange.log_failure(failure.stage().name(), failure.cause(), what);
}

/// Whether a request needs a new connection, because the backend may have closed this persistent one. One that
/// must not be sent twice always asks. One that may be sent again does without the check, which costs a system
/// call, until it was lost once: a backend that closes each connection after its reply would lose it each time.
fn must_be_replaced(
    exchange: &Exchange,
    backend: &Backend,
    connection: &mut BackendConnection,
    is_replay: bool,
) -> bool {
    let is_kept = connection.requests() > 0;
    if !is_kept || exchange.request.method.is_idempotent() {
        return is_kept && is_replay;
    }
    let now_ms = exchange.worker.clock().now_ms();
    backend.may_close(connection, now_ms)
}

const NANOS_PER_MILLI: u64 = 1_000_000;

fn due_after(exchange: &Exchange, time: Duration) -> u32 {
    if time.is_zero() {
        return u32::MAX;
    }
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    exchange.worker.clock().after(seconds)
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
