//! A client connection: one task that reads requests from a socket and writes responses to it.
//!
//! A [`Connection`] is a [`Link`], which lasts until the end, and a [`ConnectionState`]. The state says what
//! the connection waits for, and owns what it needs for that: an idle connection has no buffer and no
//! exchange, one that serves a request has a [`Serving`]. [`ConnectionState::step`] consumes a state and
//! returns the next one. Code that all versions of HTTP need is in [`ExchangeRun`](crate::run::ExchangeRun).
//! This folder has the code of HTTP/1: heads, chunks, keep-alive, tunnels, and the client's socket.

mod handshake;
mod head;
mod http2;
mod link;
mod proxied;
mod receive;
mod send;
mod serving;

use std::future::Future;
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::clock;
use crate::exchange::{ListenerFacts, Peer};
use crate::ledger::Stage;
use crate::limits;
use crate::system_calls;
use crate::transport::ClientSocket;
use crate::worker::{Cut, Worker};

use handshake::Handshake;
use http2::Http2;
use link::Link;
use serving::Serving;

/// A client connection. Its size matters: tokio adds up to 104 bytes and rounds up to a multiple of 128, so
/// that 152 bytes take 256, and one byte more takes 384. In the server, tokio's sockets are 8 bytes larger
/// than where cargo builds this crate alone.
pub(crate) struct Connection {
    link: Link,
    state: ConnectionState,
}

/// What the connection waits for.
enum ConnectionState {
    /// The rest of a header of the PROXY protocol; the bytes are its beginning. A boxed slice, because a
    /// vector would need a word more.
    ProxyHeader(Box<[u8]>),
    /// The TLS handshake.
    Handshake(Box<Handshake>),
    /// The first byte of a request. If requests are pipelined, it may be here already.
    Idle(Vec<u8>),
    /// The rest of a request head.
    Head(Serving),
    /// The hooks.
    Walk(Serving),
    /// The request body, which a hook asked for.
    WantedBody(Serving),
    /// The rest of the request body, before the response is sent. The body is dropped.
    UnwantedBody(Serving),
    /// The client, which has to read the response.
    Send(Serving),
    /// The rest of a request body that no hook wanted, after the response was sent.
    Discard(Serving),
    /// Anything: the client speaks HTTP/2.
    Http2(Box<Http2>),
    /// The client, which has to close its side after we closed ours.
    Linger(Option<Serving>),
    /// Nothing: the connection has ended.
    Over(Option<Serving>),
}

/// The result of a step: `Continue` has the next state, `Break` the same state, which waits.
type Step = ControlFlow<ConnectionState, ConnectionState>;

impl Connection {
    pub(crate) fn new(
        worker: &Rc<Worker>,
        socket: ClientSocket,
        peer: Peer,
        listener: &Rc<ListenerFacts>,
    ) -> Connection {
        let mut link = Link::new(worker, socket, peer, listener);
        let state = match link.scope.expects_proxy_header(peer.ip()) {
            true => ConnectionState::ProxyHeader(Box::default()),
            false => handshake::begin(Vec::new(), &mut link),
        };
        Connection { link, state }
    }
}

impl ConnectionState {
    #[inline(always)]
    fn step(self, link: &mut Link, context: &mut Context<'_>) -> Step {
        match self {
            ConnectionState::ProxyHeader(input) => proxied::poll_header(input, link, context),
            ConnectionState::Handshake(handshake) => handshake.poll(link, context),
            ConnectionState::Idle(input) => Serving::poll_first(input, link, context),
            ConnectionState::Head(serving) => serving.poll_head(link, context),
            ConnectionState::Walk(serving) => serving.poll_walk(link, context),
            ConnectionState::WantedBody(serving) => {
                let walk = |serving, _: &Link| ConnectionState::Walk(serving);
                serving.poll_body(ConnectionState::WantedBody, walk, link, context)
            }
            ConnectionState::UnwantedBody(serving) => serving.poll_body(
                ConnectionState::UnwantedBody,
                Serving::answer,
                link,
                context,
            ),
            ConnectionState::Send(serving) => serving.poll_send(link, context),
            ConnectionState::Discard(serving) => serving.poll_discard(link, context),
            ConnectionState::Http2(http2) => http2.poll(link, context),
            ConnectionState::Linger(serving) => match link.poll_end(context) {
                Poll::Pending => Break(ConnectionState::Linger(serving)),
                Poll::Ready(()) => Continue(ConnectionState::Over(serving)),
            },
            ConnectionState::Over(serving) => Continue(ConnectionState::Over(serving)),
        }
    }

    /// The name for `debug.log-state-handling`.
    fn name(&self) -> &'static str {
        match self {
            ConnectionState::ProxyHeader(_) => "ProxyHeader",
            ConnectionState::Handshake(_) => "Handshake",
            ConnectionState::Idle(_) | ConnectionState::Head(_) => "Head",
            ConnectionState::Walk(_) => "Walk",
            ConnectionState::WantedBody(_) => "WantedBody",
            ConnectionState::UnwantedBody(_) => "UnwantedBody",
            ConnectionState::Send(_) => "Send",
            ConnectionState::Discard(_) => "Discard",
            ConnectionState::Http2(_) => "Http2",
            ConnectionState::Linger(_) => "Linger",
            ConnectionState::Over(_) => "Over",
        }
    }

    fn serving(&self) -> Option<&Serving> {
        match self {
            ConnectionState::ProxyHeader(_)
            | ConnectionState::Handshake(_)
            | ConnectionState::Idle(_)
            | ConnectionState::Http2(_) => None,
            ConnectionState::Head(serving)
            | ConnectionState::Walk(serving)
            | ConnectionState::WantedBody(serving)
            | ConnectionState::UnwantedBody(serving)
            | ConnectionState::Send(serving)
            | ConnectionState::Discard(serving) => Some(serving),
            ConnectionState::Linger(serving) | ConnectionState::Over(serving) => serving.as_ref(),
        }
    }

    /// Gives the system calls since the last mark to the request that is being served.
    #[inline]
    fn count_calls(&mut self) {
        if let ConnectionState::Head(serving)
        | ConnectionState::Walk(serving)
        | ConnectionState::WantedBody(serving)
        | ConnectionState::UnwantedBody(serving)
        | ConnectionState::Send(serving) = self
        {
            serving.run.ledger.add_calls(system_calls::since_mark());
        }
    }

    /// The deadline has passed.
    fn time_out(mut self, link: &mut Link) -> ConnectionState {
        link.no_deadline();
        if let ConnectionState::Http2(http2) = &mut self {
            http2.time_out();
            return self;
        }
        let is_late_reader = match &mut self {
            ConnectionState::Send(serving) => serving.is_late_reader(link),
            _ => false,
        };
        if let Some(what) = self.timed_out(link) {
            link.trace_timeout(self.serving(), what);
        }
        let (stage, _) = self.stages();
        match self {
            ConnectionState::Idle(input) => link.end_idle(input),
            ConnectionState::Head(serving) => serving.refuse_late_head(),
            ConnectionState::WantedBody(serving) | ConnectionState::UnwantedBody(serving) => {
                serving.refuse_late_body(stage)
            }
            ConnectionState::Walk(serving) if serving.run.is_body_late() => {
                serving.refuse_late_body(stage)
            }
            ConnectionState::Send(serving) => serving.time_out(is_late_reader, link),
            ConnectionState::Walk(_) | ConnectionState::Http2(_) => self,
            ConnectionState::Handshake(_) => {
                link.worker.shared().tls_counts().failed_handshake();
                ConnectionState::Over(None)
            }
            ConnectionState::ProxyHeader(_)
            | ConnectionState::Discard(_)
            | ConnectionState::Linger(_)
            | ConnectionState::Over(_) => ConnectionState::Over(None),
        }
    }

    /// What took too long, for `debug.log-timeouts`.
    fn timed_out(&self, link: &Link) -> Option<&'static str> {
        Some(match self {
            ConnectionState::ProxyHeader(_) => "the header of the PROXY protocol came too slowly",
            ConnectionState::Handshake(_) => "the TLS handshake was not done in time",
            ConnectionState::Head(_) => "the request head came too slowly",
            ConnectionState::Idle(_) if link.facts.request_number > 0 => "no further request came",
            ConnectionState::Idle(_) => "no request came",
            ConnectionState::WantedBody(_) | ConnectionState::UnwantedBody(_) => {
                "the request body came too slowly"
            }
            ConnectionState::Send(serving) if serving.is_write_idle() => {
                "the client took no bytes for too long"
            }
            ConnectionState::Discard(_) | ConnectionState::Linger(_) => {
                "the client did not close the connection"
            }
            ConnectionState::Send(_)
            | ConnectionState::Walk(_)
            | ConnectionState::Http2(_)
            | ConnectionState::Over(_) => {
                return None;
            }
        })
    }

    /// Ends the requests, because the server process ends. A client that has received nothing of its response
    /// gets 503.
    fn cut_off(self, why: Cut, link: &mut Link) -> ConnectionState {
        if self
            .serving()
            .is_some_and(|serving| serving.run.is_refused())
        {
            return self;
        }
        let (stage, of_log) = self.stages();
        match self {
            ConnectionState::ProxyHeader(_)
            | ConnectionState::Handshake(_)
            | ConnectionState::Head(_) => ConnectionState::Over(None),
            // The bytes that have arrived become a request, which is then refused.
            ConnectionState::Idle(input) if input.is_empty() && link.transport.is_silent() => {
                ConnectionState::Over(None)
            }
            ConnectionState::Walk(serving)
            | ConnectionState::WantedBody(serving)
            | ConnectionState::UnwantedBody(serving) => serving.cut_off(stage, of_log, why),
            ConnectionState::Send(serving) => serving.cut_off_sending(why, link),
            ConnectionState::Idle(_)
            | ConnectionState::Discard(_)
            | ConnectionState::Http2(_)
            | ConnectionState::Linger(_)
            | ConnectionState::Over(_) => self,
        }
    }

    /// The runtime drops the connection: logs the requests on it, like others that are cut off.
    fn tell_dropped(self, link: &mut Link) {
        if let ConnectionState::Http2(http2) = self {
            return http2.tell_dropped(link);
        }
        let (stage, of_log) = self.stages();
        if let Some(why) = link.worker.cut()
            && let ConnectionState::Walk(serving)
            | ConnectionState::WantedBody(serving)
            | ConnectionState::UnwantedBody(serving)
            | ConnectionState::Send(serving) = self
        {
            if !serving.run.is_refused() {
                serving.log_cut(of_log, why);
            }
            serving.abort(stage, format_args!("{}", why.sentence()), link);
        }
    }

    /// The stage that the time since the last stamp belongs to, and the stage that the log names.
    fn stages(&self) -> (Stage, Stage) {
        match self {
            ConnectionState::Walk(serving) => (serving.run.stage(), Stage::Content),
            ConnectionState::WantedBody(_) | ConnectionState::UnwantedBody(_) => {
                (Stage::RequestBody, Stage::RequestBody)
            }
            ConnectionState::Send(serving) => (serving.stage_of_sending(), Stage::Send),
            _ => (Stage::Send, Stage::Send),
        }
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        clock::task_runs();
        system_calls::since_mark();
        let Connection { link, state: waits } = self.get_mut();
        let mut state = std::mem::replace(waits, ConnectionState::Over(None));
        if link.is_late(context) {
            state = state.time_out(link);
        }
        let last_request_of_turn = link.facts.request_number + limits::REQUESTS_PER_TURN;
        let traces = link.worker.settings_table().traces_states;
        while !matches!(state, ConnectionState::Over(_)) {
            if let Some(why) = link.worker.cut() {
                state = state.cut_off(why, link);
            }
            let before = traces.then(|| state.name());
            match state.step(link, context) {
                Break(mut waiting) => {
                    waiting.count_calls();
                    *waits = waiting;
                    return Poll::Pending;
                }
                Continue(next) => state = next,
            }
            if let Some(before) = before
                && let Some(serving) = state.serving()
            {
                link.trace_state(serving, before, state.name());
            }
            if matches!(state, ConnectionState::Idle(_))
                && link.facts.request_number >= last_request_of_turn
            {
                *waits = state;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        *waits = state;
        Poll::Ready(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.let_go();
        let state = std::mem::replace(&mut self.state, ConnectionState::Over(None));
        state.tell_dropped(&mut self.link);
        self.link.worker.connection_ends();
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
