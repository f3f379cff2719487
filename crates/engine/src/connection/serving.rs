//! One request on the connection: from its first byte to the log.

use std::fmt::Arguments;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::http1::BodyError;
use petrel_sys::pooled::{GiveBack, Pooled};

use super::link::Link;
use super::receive::Receiving;
use super::send::Sending;
use super::{ConnectionState, Step, head};
use crate::cause::{CauseCode, ErrorCause};
use crate::ledger::Stage;
use crate::limits;
use crate::phase::Walked;
use crate::run::ExchangeRun;
use crate::system_calls;
use crate::transport::Peeked;
use crate::worker::{Cut, Worker};

/// A request, its response, and the state of HTTP/1 for them.
pub(super) struct Serving {
    pub(crate) run: ExchangeRun,
    pub(crate) wire: Pooled<Wire>,
}

/// The state of HTTP/1 for one request. Afterwards it waits in the worker's pool for the next request, with
/// its buffers.
pub(crate) struct Wire {
    worker: Rc<Worker>,
    /// Received bytes that were not parsed yet.
    pub(super) input: Vec<u8>,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
}

/// Why the rest of a request body cannot be received.
#[derive(Debug)]
pub(super) enum Broken {
    /// The client is gone.
    Left,
    /// The client has closed its side before the end of the body, or the body cannot be stored.
    TooEarly,
    /// The client has sent something that is no body.
    Malformed(BodyError),
}

impl Wire {
    fn take(worker: &Rc<Worker>) -> Pooled<Wire> {
        let unused = worker.take_spare().unwrap_or_else(|| {
            Box::new(Wire {
                worker: Rc::clone(worker),
                input: Vec::new(),
                receiving: Receiving::default(),
                sending: Sending::default(),
            })
        });
        unused.into()
    }
}

impl GiveBack for Wire {
    fn give_back(mut self: Box<Self>) {
        let Wire {
            worker,
            input,
            receiving,
            sending,
        } = &mut *self;
        input.clear();
        input.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
        *receiving = Receiving::default();
        sending.clear();
        let worker = Rc::clone(worker);
        worker.give_spare(self);
    }
}

impl Serving {
    /// Starts a request whose first bytes have arrived.
    pub(crate) fn begin(link: &mut Link) -> Serving {
        let mut run = link.begin_run();
        let now = run.worker.clock().now();
        run.start_ledger(now);
        Serving::begin_with(run, link)
    }

    /// Starts a request that the client has sent before it had the response to the one before (pipelining), or
    /// together with the end of its TLS handshake. It begins now.
    pub(crate) fn begin_next(link: &mut Link) -> Serving {
        let mut run = link.begin_run();
        let now = run.worker.clock().now();
        run.ledger.start(now);
        run.count_handshake();
        Serving::begin_with(run, link)
    }

    fn begin_with(run: ExchangeRun, link: &Link) -> Serving {
        let wire = Wire::take(&link.worker);
        Serving { run, wire }
    }

    /// Runs the hooks.
    pub(crate) fn poll_walk(mut self, link: &mut Link, context: &mut Context<'_>) -> Step {
        let body: fn(Serving) -> ConnectionState = loop {
            match self.run.poll_answer(context) {
                Poll::Ready(Walked::NeedBody) => break ConnectionState::WantedBody,
                Poll::Ready(Walked::Answered) if self.reads_before_answer() => {
                    break ConnectionState::UnwantedBody;
                }
                Poll::Ready(Walked::Answered) => return Continue(self.answer(link)),
                Poll::Pending => match self.poll_beside_walk(link, context) {
                    Poll::Pending => return Break(ConnectionState::Walk(self)),
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(broken)) => {
                        let stage = self.run.stage();
                        return Continue(self.give_up(stage, &broken, link));
                    }
                },
            }
        };
        // The time for the head and the hooks does not belong to the body.
        let stage = self.run.stage();
        self.run.stamp(stage);
        link.set_deadline(self.run.settings.core.read_idle_s);
        Continue(body(self))
    }

    /// Handles what else happens while a hook waits: interim responses, a streamed body, and a client that
    /// leaves. Ready: the hook should be polled again.
    fn poll_beside_walk(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        self.stop_paces();
        if self.poll_interim(link, context).is_err() {
            return Poll::Ready(Err(Broken::Left));
        }
        if let Poll::Ready(streamed) = self.poll_streamed_body(link, context) {
            return Poll::Ready(streamed);
        }
        if !self.run.waits_for_client()
            && let Poll::Ready(peeked) = self.poll_leaving(link, context)
        {
            return Poll::Ready(match peeked {
                Peeked::Gone => Err(Broken::Left),
                Peeked::Bytes | Peeked::End => Ok(()),
            });
        }
        link.set_due(self.run.due_s());
        Poll::Pending
    }

    /// Checks once for each request whether the client sends something or leaves while it waits for its
    /// response.
    pub(crate) fn poll_leaving(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Peeked> {
        if self.wire.sending.has_looked || !self.wire.input.is_empty() {
            return Poll::Pending;
        }
        let peeked = ready!(link.transport.poll_peek(context));
        self.wire.sending.has_looked = true;
        self.run.is_half_closed = peeked == Peeked::End;
        Poll::Ready(peeked)
    }

    /// Stops measuring the client's pace: it is unknown whether the worker will wait for the client.
    #[inline]
    pub(crate) fn stop_paces(&mut self) {
        let now_s = self.run.worker.clock().seconds();
        self.wire.sending.pace.stop(now_s);
        self.run.stop_body_pace();
    }

    /// The response is ready: writes its head and begins to send it.
    pub(crate) fn answer(mut self, link: &Link) -> ConnectionState {
        let keep_alive = self.may_keep_alive(link);
        // A client that still waits for "100 Continue" does not get it any more.
        self.wire.receiving.waits_for_continue = false;
        head::write(&mut self, keep_alive);
        ConnectionState::Send(self)
    }

    fn may_keep_alive(&self, link: &Link) -> bool {
        let core = &self.run.settings.core;
        self.run.request.head.keep_alive()
            && !self.run.response.close
            && link.facts.request_number < core.keep_alive_requests_max
            && core.keep_alive_idle_s > 0
            && link.worker.draining().is_none()
            && self.can_be_received()
    }

    /// The response was sent: logs the request and prepares for the next one.
    pub(crate) fn finish(mut self, link: &mut Link) -> ConnectionState {
        link.know_local_address(&mut self.run);
        self.note_slow_client(link);
        self.run.ledger.add_calls(system_calls::since_mark());
        self.run.finish();
        match (self.run.sent.keep_alive, self.is_received()) {
            (true, true) => self.end("Send", link),
            (true, false) => {
                self.run.request.body.give_up();
                link.set_deadline(limits::DISCARD_S);
                ConnectionState::Discard(self)
            }
            (false, _) => self.linger(link),
        }
    }

    /// Waits for the next request. `before` is the state that has ended.
    pub(crate) fn end(mut self, before: &'static str, link: &Link) -> ConnectionState {
        let next = ConnectionState::Idle(match self.wire.input.is_empty() {
            // The connection does not keep the buffer of a body while it is idle.
            true => {
                link.set_deadline(self.run.settings.core.keep_alive_idle_s);
                Vec::new()
            }
            // The next request has arrived already.
            false => {
                link.no_deadline();
                std::mem::take(&mut self.wire.input)
            }
        });
        link.trace_state(&self, before, next.name());
        next
    }

    /// Closes our side, and waits until the client closes its own: a byte that the client sends to a closed
    /// socket is answered by a reset, which destroys what the client has not read of the response (RFC 9112
    /// section 9.6).
    pub(crate) fn linger(mut self, link: &mut Link) -> ConnectionState {
        if self.run.is_half_closed && self.wire.input.is_empty() {
            link.transport.say_end();
            return ConnectionState::Over(Some(self));
        }
        self.wire.input = Vec::new();
        link.stop_speaking();
        ConnectionState::Linger(Some(self))
    }

    /// Refuses the request at any point before the response is sent. The connection closes after the
    /// response.
    pub(crate) fn refuse(
        mut self,
        stage: Stage,
        cause: impl Into<ErrorCause>,
        what: Arguments<'_>,
    ) -> ConnectionState {
        self.run.refuse(stage, cause, what);
        ConnectionState::Walk(self)
    }

    /// The rest of the request body will not arrive.
    pub(crate) fn give_up(self, stage: Stage, broken: &Broken, link: &mut Link) -> ConnectionState {
        let incomplete = "the client left before the request body was complete";
        let unanswered = "the client left before it had its answer";
        match (broken, self.run.body_refusal()) {
            (Broken::Malformed(error), _) => {
                let cause = CauseCode::of_body(*error);
                self.refuse(stage, cause, format_args!("{error}"))
            }
            (Broken::TooEarly, Some((cause, what))) => {
                self.refuse(stage, cause, format_args!("{what}"))
            }
            (Broken::TooEarly, None) => self.abort(stage, format_args!("{incomplete}"), link),
            (Broken::Left, _) => self.abort(stage, format_args!("{unanswered}"), link),
        }
    }

    pub(crate) fn refuse_late_body(self, stage: Stage) -> ConnectionState {
        let what = self.run.lateness_of_body();
        self.refuse(stage, CauseCode::BodyTimeout, format_args!("{what}"))
    }

    /// The server process ends before there is a response.
    pub(crate) fn cut_off(mut self, stage: Stage, of_log: Stage, why: Cut) -> ConnectionState {
        self.log_cut(of_log, why);
        self.run.refuse_quietly(stage, CauseCode::ServerStopping);
        ConnectionState::Walk(self)
    }

    pub(crate) fn log_cut(&self, stage: Stage, why: Cut) {
        let cause = format_args!("{}: {}", self.run.loss(), why.sentence());
        self.run.log_error(stage.name(), cause);
    }

    /// The response cannot be completed: logs the part that was sent.
    pub(crate) fn abort(
        mut self,
        stage: Stage,
        cause: Arguments<'_>,
        link: &mut Link,
    ) -> ConnectionState {
        link.know_local_address(&mut self.run);
        let for_maker = std::mem::take(&mut self.wire.sending.waits_for_maker);
        self.run.abandon(stage, for_maker);
        self.note_slow_client(link);
        self.run.ledger.add_calls(system_calls::since_mark());
        self.run.abort(stage, cause);
        ConnectionState::Over(Some(self))
    }

    fn note_slow_client(&mut self, link: &Link) {
        self.run.note_slow_client(|| link.transport.tcp_path());
    }

    /// The stage that the time since the last stamp belongs to while a response is being sent.
    pub(crate) fn stage_of_sending(&self) -> Stage {
        self.wire.sending.wait_stage(&self.run)
    }
}
