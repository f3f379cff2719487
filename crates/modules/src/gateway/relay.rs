//! Passes one request on to a backend, and the backend's reply back.
//!
//! A [`Relay`] drives a [`Talk`] from the first byte of the request to the last byte of the reply. Until the
//! head of the reply has arrived, the [request](super::request) polls it. Then it is the body of the answer
//! and the client's connection polls it; meanwhile it also passes on a streamed request body, and in a tunnel
//! both directions. If it is dropped before the end of the reply, it lets the backend finish without a
//! client.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::body::{Body, BodySource, Piece, ReadAhead, RequestBody, Spool};
use petrel_engine::ledger::Stage;
use petrel_engine::limits;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::settings::{ReplyStreaming, Settings};
use petrel_engine::waits::HolderText;
use petrel_engine::worker::Worker;

use super::answer;
use super::failure::Failure;
use super::options::Mode;
use super::talk::{ArrivedHead, Event, Flow, Peer, Received, Talk};

/// A conversation with a backend, and what is buffered of the reply.
pub(super) struct Relay {
    worker: Rc<Worker>,
    settings: Rc<Settings>,
    /// The client. When part of the reply is spooled to disk, disk threads serve clients in turn.
    client: u64,
    /// The conversation.
    pub(crate) talk: Talk,
    reply: Spool,
    /// How far the backend may be ahead of the client.
    ahead: ReadAhead,
    state: BodyState,
    /// The head of the reply has been passed on, and this is the body of the answer.
    is_body: bool,
    /// The client accepts trailer fields.
    takes_trailers: bool,
    /// The rest of the request body, or of the client's side of a tunnel, cannot be sent any more.
    cannot_send: bool,
}

/// The state of the answer's body.
enum BodyState {
    Comes,
    Complete,
    Failed(Failure),
}

impl Relay {
    /// A relay for a request whose head `talk` has encoded.
    #[inline(always)]
    pub(super) fn new(exchange: &Exchange, talk: Talk) -> Relay {
        Relay {
            worker: Rc::clone(&exchange.worker),
            settings: Rc::clone(&exchange.settings),
            client: exchange.connection.client_key(),
            talk,
            reply: Spool::default(),
            ahead: match exchange.settings.core.stream_response_body {
                ReplyStreaming::Soon if !answer::may_be_needed_whole(exchange) => {
                    ReadAhead::Bounded
                }
                _ => ReadAhead::Unbounded,
            },
            state: BodyState::Comes,
            is_body: false,
            takes_trailers: exchange.request.head.takes_trailers(),
            cannot_send: false,
        }
    }

    /// Sends what there is of the request. Ready when all of it is sent, or no more of it can be.
    ///
    /// # Errors
    /// The body cannot be read from the file that holds it.
    #[inline]
    pub(crate) fn poll_send(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let sent = match self.talk.peer.host.mode {
            Mode::Responder => {
                let body = &mut exchange.request.body;
                self.talk.poll_send(body, &self.worker, context)
            }
            // An authorizer gets no body; the body is for the backend that answers.
            Mode::Authorizer => {
                let mut none = RequestBody::default();
                none.complete();
                self.talk.poll_send(&mut none, &self.worker, context)
            }
        };
        if sent.is_ready() && self.talk.peer.host.tcp_fin_propagate && exchange.is_half_closed() {
            self.talk.propagate_end();
        }
        sent
    }

    /// Reads from the backend as long as the buffer has room, and hands heads to `take_head`. Ready at the
    /// end of the reply, or when `take_head` returns `Stop`.
    ///
    /// # Errors
    /// The connection broke, the reply is invalid, or a timeout expired.
    pub(crate) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        take_head: &mut dyn FnMut(&Peer, ArrivedHead<'_>) -> Flow,
    ) -> Poll<Result<Received, Failure>> {
        let Relay {
            worker,
            settings,
            client,
            talk,
            reply,
            ..
        } = self;
        let directories = &worker.process().upload_directories;
        let held_max = match self.ahead {
            ReadAhead::Bounded => limits::STREAM_BUFFER_BYTES_MAX,
            ReadAhead::Unbounded => u64::MAX,
        };
        loop {
            // The buffer is full until the client takes something.
            if reply.held() >= held_max {
                return Poll::Pending;
            }
            let room = reply.poll_room(context).map_err(Failure::Spool)?;
            if room.is_pending() {
                talk.was_held_up(worker);
                return Poll::Pending;
            }
            let received = talk.poll_receive(worker, context, &mut |peer, event| match event {
                Event::Head(head) => take_head(peer, head),
                Event::Body(bytes) => {
                    reply.push(bytes, directories, *client);
                    match reply.held() < held_max && reply.has_room() {
                        true => Flow::Go,
                        false => Flow::Stop,
                    }
                }
                Event::Log(bytes) => {
                    log(settings, peer.name(), bytes);
                    Flow::Go
                }
            });
            match received {
                // The buffer was full; it was not `take_head` that stopped.
                Poll::Ready(Ok(Received::Stopped)) if !reply.is_empty() => {}
                Poll::Ready(received) => return Poll::Ready(received),
                Poll::Pending => {
                    return match talk.lateness(worker) {
                        Some(failure) => Poll::Ready(Err(failure)),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }

    /// The body of the answer, if all of the reply has been received and no trailers follow it.
    pub(crate) fn take_whole_body(&mut self) -> Option<Body> {
        let has_ended = self.talk.has_ended() || self.talk.has_whole_body();
        let is_whole = has_ended && self.talk.trailers.is_empty();
        is_whole.then(|| std::mem::take(&mut self.reply).into_body())
    }

    /// Whether as much of the body has arrived as may before the answer is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.ahead == ReadAhead::Bounded && self.reply.held() >= limits::STREAM_BUFFER_BYTES_MAX
    }

    /// Turns the relay into the body of the answer. It begins with what is buffered; the rest is read while
    /// the client is sent to, as far `ahead` of the client as that says.
    pub(crate) fn into_body(mut self, ahead: ReadAhead) -> Body {
        if self.talk.has_ended() {
            self.state = BodyState::Complete;
        }
        self.ahead = ahead;
        self.is_body = true;
        Body::Source(Box::new(self))
    }

    /// Ends the conversation, which has failed.
    pub(super) fn close(&mut self) {
        self.log_dropped();
        self.talk.close();
    }

    /// Reads more of the body from the backend, as long as the buffer has room.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !matches!(self.state, BodyState::Comes) {
            return Poll::Pending;
        }
        let received = ready!(self.poll_receive(context, &mut |_, _| Flow::Go));
        self.state = match received {
            Ok(Received::End) => BodyState::Complete,
            Ok(Received::Stopped) => BodyState::Comes,
            Err(failure) => BodyState::Failed(failure),
        };
        Poll::Ready(())
    }

    /// Logs how much of the application's STDERR output was dropped.
    fn log_dropped(&self) {
        let dropped = self.talk.log_bytes_dropped();
        if dropped > 0 {
            self.settings.core.error_log.error(format_args!(
                "(backend-body) stderr: {dropped} more bytes were dropped backend={}",
                self.talk.peer.name()
            ));
        }
    }
}

impl BodySource for Relay {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        loop {
            if let Some(piece) = self.reply.take() {
                return Poll::Ready(Some(Ok(piece)));
            }
            match &self.state {
                BodyState::Complete => return Poll::Ready(None),
                BodyState::Failed(failure) => {
                    if let Some(backend) = &self.talk.peer.backend
                        && let Some(fault) = failure.of_backend()
                    {
                        let now_ms = self.worker.clock().now_ms();
                        backend.shared.health.failed(now_ms, fault);
                    }
                    let error = failure.of_body(self.talk.peer.name());
                    self.close();
                    return Poll::Ready(Some(Err(error)));
                }
                // What arrived before reading had to stop is sent at once.
                BodyState::Comes => {
                    if self.poll_rest(context).is_pending() && self.reply.is_empty() {
                        return match self.talk.has_whole_body() {
                            true => Poll::Ready(None),
                            false => Poll::Pending,
                        };
                    }
                }
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        let held = self.reply.held();
        match &self.state {
            // HTTP/1 sends trailers behind a chunked body, so the length is not told here. A body with a
            // length cannot have trailers.
            BodyState::Complete if self.takes_trailers && !self.talk.trailers.is_empty() => None,
            BodyState::Complete => Some(held),
            _ if self.talk.is_tunnel() => None,
            _ => Some(self.talk.conversation()?.remaining()? + held),
        }
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        std::mem::take(&mut self.talk.trailers)
    }

    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        if self.talk.is_open() && !self.cannot_send {
            let sent = self.talk.poll_send(request_body, &self.worker, context);
            if matches!(sent, Poll::Ready(Err(_))) || self.talk.cannot_send() {
                // If the reply lacks something, that is found when it ends.
                self.cannot_send = true;
                request_body.give_up();
            }
        } else if request_body.is_wanted() {
            // The reply is complete, and the backend did not wait for the rest of the request body.
            request_body.give_up();
        }
        if self.ahead == ReadAhead::Unbounded {
            let _ = self.poll_rest(context);
        }
    }

    fn wake_at_s(&self) -> Option<u32> {
        self.talk.due_s()
    }

    fn stage(&self) -> Stage {
        Stage::BackendBody
    }

    /// Nothing is late while the two ends of a tunnel are silent.
    fn tell_wait(&self, text: &mut HolderText<'_>) {
        if !self.talk.is_tunnel() {
            write!(text, "{} sent its reply", self.talk.peer.name());
        }
    }

    fn has_failed(&self) -> bool {
        self.cannot_send || !self.talk.is_open() || self.talk.lateness(&self.worker).is_some()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Otherwise `close` has logged it.
        if self.is_body || self.talk.has_ended() {
            self.log_dropped();
        }
        let settings = Rc::clone(&self.settings);
        let log = move |name: &str, text: &[u8]| log(&settings, name, text);
        self.talk.detach(&self.worker, log);
    }
}

/// Writes what an application says to the error log, line by line.
fn log(settings: &Settings, backend: &str, bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            settings.core.error_log.error(format_args!(
                "(backend-body) stderr: {} backend={backend}",
                String::from_utf8_lossy(line).escape_debug()
            ));
        }
    }
}
