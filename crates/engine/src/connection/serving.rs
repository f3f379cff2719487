//! One request on the connection: from its first byte to the log.

use std::fmt::Arguments;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::http1::BodyError;
use petrel_proto::status::Status;
use petrel_sys::pooled::{GiveBack, Pooled};

use super::link::Link;
use super::receive::Receiving;
use super::send::Sending;
use super::{ConnectionState, Step, head};
use crate::ledger::Stage;
use crate::limits;
use crate::phase::Walked;
use crate::run::ExchangeRun;
use crate::transport::Peeked;
use crate::worker::{Cut, Worker};

/// A request and its answer, and what HTTP/1 has under way for them.
pub(super) struct Serving {
    pub(crate) run: ExchangeRun,
    pub(crate) wire: Pooled<Wire>,
}

/// What HTTP/1 has under way for a request. It waits for the next one in the worker's pool, with its buffers.
pub(crate) struct Wire {
    worker: Rc<Worker>,
    /// Bytes that were received and not used yet.
    pub(super) input: Vec<u8>,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
}

/// Why nothing more comes of a request's body.
#[derive(Debug)]
pub(super) enum Broken {
    /// The client is gone.
    Left,
    /// It ended before the body did, or the body cannot be kept.
    TooEarly,
    /// What it sends is no body.
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
    /// The first bytes of a request have come.
    pub(crate) fn begin(link: &mut Link) -> Serving {
        let now = link.worker.clock().now();
        let mut run = link.begin_run();
        run.ledger.start(now);
        link.set_deadline(link.worker.base_settings().core.read_idle_s);
        let wire = Wire::take(&link.worker);
        Serving { run, wire }
    }

    /// Goes through the hooks.
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
        // The time the head and the hooks took is not the body's.
        let stage = self.run.stage();
        self.run.stamp(stage);
        link.set_deadline(self.run.settings.core.read_idle_s);
        Continue(body(self))
    }

    /// What goes on between client and server while a hook waits for something else: interim
    /// responses, a streamed body, and the client's leaving. Ready: the hook should look again.
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

    /// Looks, once for each request, what the client sends while it waits for its answer.
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

    /// It is not known yet whether the client will be waited for.
    #[inline]
    pub(crate) fn stop_paces(&mut self) {
        let now_s = self.run.worker.clock().seconds();
        self.wire.sending.pace.stop(now_s);
        self.run.stop_body_pace();
    }

    /// The response is ready: writes its head and begins to send.
    pub(crate) fn answer(mut self, link: &Link) -> ConnectionState {
        let keep_alive = self.may_keep_alive(link);
        // A client that has not been asked for its body by now is not asked any more.
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

    /// The answer is sent: log it, and be ready for the next request.
    pub(crate) fn finish(mut self, link: &mut Link) -> ConnectionState {
        link.know_local_address(&mut self.run);
        self.run.finish();
        match (self.run.sent.keep_alive, self.is_received()) {
            (true, true) => self.end("Send", link),
            (true, false) => {
                self.run.request.body.give_up();
                link.set_deadline(limits::LINGER_S);
                ConnectionState::Discard(self)
            }
            // Nothing unread: closing cannot cost the client its answer (no reset is sent).
            (false, true) if self.wire.input.is_empty() && !self.run.is_refused() => {
                link.transport.say_end();
                ConnectionState::Over(Some(self))
            }
            (false, _) => {
                link.stop_speaking();
                self.linger()
            }
        }
    }

    /// The connection is ready for another request. `before`: what it has done until now.
    pub(crate) fn end(mut self, before: &'static str, link: &Link) -> ConnectionState {
        let next = ConnectionState::Idle(match self.wire.input.is_empty() {
            // The buffer of a body does not stay with the connection.
            true => {
                link.set_deadline(self.run.settings.core.keep_alive_idle_s);
                Vec::new()
            }
            // The next request is there: nothing is waited for.
            false => {
                link.no_deadline();
                std::mem::take(&mut self.wire.input)
            }
        });
        link.trace_state(&self, before, next.name());
        next
    }

    /// The client is waited for to close its side. What it has sent beyond its request is of no use.
    pub(crate) fn linger(mut self) -> ConnectionState {
        self.wire.input = Vec::new();
        ConnectionState::Linger(Some(self))
    }

    /// Refuses the request, whatever became of it so far, and closes after the answer.
    pub(crate) fn refuse(
        mut self,
        stage: Stage,
        status: Status,
        cause: Arguments<'_>,
    ) -> ConnectionState {
        self.run.refuse(stage, status, cause);
        ConnectionState::Walk(self)
    }

    /// The rest of the request's body will not come.
    pub(crate) fn give_up(self, stage: Stage, broken: &Broken, link: &mut Link) -> ConnectionState {
        let incomplete = "the client left before the request body was complete";
        let unanswered = "the client left before it had its answer";
        match (broken, self.run.body_refusal()) {
            (Broken::Malformed(error), _) => {
                let cause = format_args!("{error}");
                self.refuse(stage, error.status(), cause)
            }
            (Broken::TooEarly, Some((status, cause))) => {
                self.refuse(stage, status, format_args!("{cause}"))
            }
            (Broken::TooEarly, None) => self.abort(stage, format_args!("{incomplete}"), link),
            (Broken::Left, _) => self.abort(stage, format_args!("{unanswered}"), link),
        }
    }

    pub(crate) fn refuse_late_body(self, stage: Stage) -> ConnectionState {
        let cause = self.run.lateness_of_body();
        self.refuse(stage, Status::REQUEST_TIMEOUT, format_args!("{cause}"))
    }

    /// The server process ends while the answer is in the making.
    pub(crate) fn cut_off(mut self, stage: Stage, of_log: Stage, why: Cut) -> ConnectionState {
        self.log_cut(of_log, why);
        self.run.refuse_quietly(stage, Status::SERVICE_UNAVAILABLE);
        ConnectionState::Walk(self)
    }

    pub(crate) fn log_cut(&self, stage: Stage, why: Cut) {
        let cause = format_args!("{}: {}", self.run.loss(), why.sentence());
        self.run.log_error(stage.name(), cause);
    }

    /// The answer cannot be completed: it is logged as far as it got.
    pub(crate) fn abort(
        mut self,
        stage: Stage,
        cause: Arguments<'_>,
        link: &mut Link,
    ) -> ConnectionState {
        link.know_local_address(&mut self.run);
        self.run.abort(stage, cause);
        ConnectionState::Over(Some(self))
    }

    /// What the time since the last stamp was spent on, while the answer is being sent.
    pub(crate) fn stage_of_sending(&self) -> Stage {
        match self.wire.sending.waits_for_maker {
            true => self.run.response.body.stage(),
            false => Stage::Send,
        }
    }
}
