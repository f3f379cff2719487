//! Subrequests: requests that the server makes to itself for one of a client's.
//!
//! A [`Subrequest`] is an exchange without a connection. It walks the same phases on the same worker,
//! with the client, listener and scheme of its parent, so that every condition and every access rule
//! holds for it as it would if the client had asked; there is no way round them. Its owner pulls
//! head and body and drives it by that, in the owner's own task; dropping it breaks it off. It needs
//! nothing of its parent once it is made: [`Subrequest::detach`] lets one go on when the client has left.
//!
//! What a connection adds is missing: no Date, no framing, no time-outs but those of the hooks that answer,
//! no bandwidth limit. It is no request of a client, so neither counters nor the access log
//! (the phase [`Log`](crate::module::Phase::Log)) know of it. Its time is that of the stage in which its
//! owner waits; its own ledger counts from its beginning. It never becomes a tunnel; interim
//! responses (1xx) and trailers are dropped.
//!
//! Callers: scripts, caches that fetch pages, pages made of parts.

mod detached;
mod head;

use std::cell::OnceCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_proto::status::Status;

use crate::body::{Body, BodySource, Piece, RequestBody};
use crate::deadlines::Alarm;
use crate::exchange::{Exchange, Lineage};
use crate::ledger::Stage;
use crate::limits;
use crate::network_backend::FileReader;
use crate::phase::Walked;
use crate::response::Response;
use crate::run::ExchangeRun;
use crate::trace;

pub use head::{Inherit, RefusedSubrequest, SubrequestHead};

/// A request of the server to itself.
///
/// [`Subrequest::poll_head`] until there is an answer, then [`Subrequest::poll_piece`] until there is no
/// more of it. Errors are answers as well, with the page that a client would get.
pub struct Subrequest {
    run: ExchangeRun,
    alarm: Alarm,
    state: SubrequestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubrequestState {
    /// Hooks are at work.
    Walk,
    /// There is an answer; its body is being pulled.
    Body,
    /// The body came to its end.
    Over,
    /// The body broke off.
    Broken,
}

/// Why a body could not be collected.
#[derive(Debug)]
pub enum CollectError {
    /// It is longer than was allowed.
    TooLong,
    /// It broke off, or a file could not be read.
    Broken(io::Error),
}

impl Subrequest {
    /// Makes a request for `head` on behalf of `parent`. Nothing runs yet.
    ///
    /// # Errors
    /// When `head` is no sound request, or too many were made for this request of the client.
    pub fn new(parent: &Exchange, head: SubrequestHead) -> Result<Subrequest, RefusedSubrequest> {
        let lineage = descend(parent)?;
        let worker = &parent.worker;
        let mut run = ExchangeRun::new(worker, parent.connection.clone());
        run.ledger.start(worker.clock().now());
        run.lineage = lineage;
        head::begin(&mut run, parent, &head)?;
        take_body(&mut run, &head.body);
        Ok(Subrequest {
            run,
            alarm: Alarm::new(&worker.deadlines),
            state: SubrequestState::Walk,
        })
    }

    /// Goes on until there is an answer, and says its status.
    pub fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        while self.state == SubrequestState::Walk {
            match self.run.poll_answer(context) {
                // All of it is there.
                Poll::Ready(Walked::NeedBody) => self.run.complete_body(),
                Poll::Ready(Walked::Answered) if self.run.is_tunnel() => {
                    refuse_tunnel(&mut self.run);
                }
                Poll::Ready(Walked::Answered) => {
                    // What has no body may announce one.
                    self.run.settle_body();
                    trace::over(&self.run);
                    self.alarm.clear();
                    self.state = SubrequestState::Body;
                }
                Poll::Pending => {
                    while self.run.take_interim().is_some() {}
                    self.alarm.set(self.run.due_s(), context);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(self.status())
    }

    /// [`Subrequest::poll_head`] as a future.
    pub async fn head(&mut self) -> Status {
        poll_fn(|context| self.poll_head(context)).await
    }

    /// The next piece of the body; `None` is its end. Waits for the head first. After an error every
    /// further call is one.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        ready!(self.poll_head(context));
        match self.state {
            SubrequestState::Walk | SubrequestState::Body => {}
            SubrequestState::Over => return Poll::Ready(None),
            SubrequestState::Broken => {
                return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())));
            }
        }
        self.run.work(context);
        let polled = self.run.poll_piece(context);
        match &polled {
            Poll::Pending => self.alarm.set(self.run.due_s(), context),
            Poll::Ready(Some(Ok(piece))) => {
                self.run.account(piece.length(), piece.length());
                self.alarm.clear();
            }
            Poll::Ready(None) => self.end(SubrequestState::Over),
            Poll::Ready(Some(Err(_))) => self.end(SubrequestState::Broken),
        }
        polled
    }

    /// [`Subrequest::poll_piece`] as a future.
    pub async fn piece(&mut self) -> Option<io::Result<Piece>> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// The rest of the body in memory. One that is a single piece of memory is not copied.
    ///
    /// # Errors
    /// See [`CollectError`]; what was pulled is lost then.
    pub async fn collect(&mut self, bytes_max: usize) -> Result<Bytes, CollectError> {
        self.head().await;
        if self
            .length()
            .is_some_and(|length| length > bytes_max as u64)
        {
            return Err(CollectError::TooLong);
        }
        let mut collected = Collected::default();
        let mut reader = self.exchange().file_reader();
        while let Some(piece) = self.piece().await {
            let piece = piece.map_err(CollectError::Broken)?;
            collected.push(piece, &mut reader, bytes_max).await?;
        }
        Ok(collected.into_bytes())
    }

    /// Whether there is an answer; before, [`Subrequest::response`] is empty or half made.
    pub fn is_answered(&self) -> bool {
        self.state != SubrequestState::Walk
    }

    /// The status of the answer; 0 before there is one.
    pub fn status(&self) -> Status {
        self.response().status
    }

    /// The answer: status and header fields. Content-Length and what else belongs to a connection is not
    /// among them; see [`Subrequest::length`].
    pub fn response(&self) -> &Response {
        &self.run.response
    }

    /// Bytes of the body that are still to come, if that is known.
    pub fn length(&self) -> Option<u64> {
        self.response().body.length()
    }

    /// What Content-Length a client would be told: also for HEAD, which has no body. To be asked before
    /// the body is pulled.
    pub fn announced_length(&self) -> Option<u64> {
        self.response()
            .announced_length
            .or_else(|| self.response().body.length())
    }

    /// The exchange, for its URL, its settings and its environment.
    pub fn exchange(&self) -> &Exchange {
        &self.run
    }

    /// Keeps `what` for `module` with its exchange; see [`Exchange::keep`].
    pub fn keep(&mut self, module: &'static str, what: Rc<dyn std::any::Any>) {
        self.run.keep(module, what);
    }

    /// Lets go of what made the body.
    fn end(&mut self, state: SubrequestState) {
        self.alarm.clear();
        self.run.response.body = Body::Empty;
        self.state = state;
    }
}

/// The rest of the body, as the body of another answer: of the parent's, as a rule.
impl BodySource for Subrequest {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Subrequest::poll_piece(self, context)
    }

    fn remaining(&self) -> Option<u64> {
        match self.state {
            SubrequestState::Walk | SubrequestState::Broken => None,
            SubrequestState::Body | SubrequestState::Over => self.length(),
        }
    }

    fn work(&mut self, _: &mut RequestBody, context: &mut Context<'_>) {
        if self.state == SubrequestState::Body {
            self.run.work(context);
        }
    }

    fn wake_at_s(&self) -> Option<u32> {
        match self.state {
            SubrequestState::Walk => Some(self.run.wake_at_s),
            _ => self.response().body.wake_at_s(),
        }
    }

    fn waits_for_disk(&self) -> bool {
        self.state == SubrequestState::Body && self.response().body.waits_for_disk()
    }

    fn stage(&self) -> Stage {
        match self.state {
            SubrequestState::Walk => Stage::Content,
            SubrequestState::Body | SubrequestState::Over | SubrequestState::Broken => {
                self.response().body.stage()
            }
        }
    }

    fn has_failed(&self) -> bool {
        // Its request is complete: it takes nothing from the client.
        true
    }
}

impl std::fmt::Debug for Subrequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subrequest")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Display for CollectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CollectError::TooLong => f.write_str("the body is longer than was allowed"),
            CollectError::Broken(error) => write!(f, "the body broke off: {error}"),
        }
    }
}

impl std::error::Error for CollectError {}

/// The place of one more subrequest.
fn descend(parent: &Exchange) -> Result<Lineage, RefusedSubrequest> {
    let client_method = parent.client_method();
    let client_method = client_method.unwrap_or_else(|| parent.request.head.method());
    let parent = &parent.lineage;
    if parent.depth >= limits::SUBREQUEST_DEPTH_MAX {
        return Err(RefusedSubrequest::TooDeep);
    }
    let made = parent.made.get_or_init(Rc::default);
    if made.get() >= limits::SUBREQUESTS_PER_REQUEST_MAX {
        return Err(RefusedSubrequest::TooMany);
    }
    made.set(made.get() + 1);
    Ok(Lineage {
        depth: parent.depth + 1,
        client_method: Some(client_method),
        made: OnceCell::from(Rc::clone(made)),
    })
}

/// Bytes of a body that come together.
#[derive(Default)]
struct Collected {
    /// The first piece, as long as it is the only one.
    first: Bytes,
    all: Vec<u8>,
}

impl Collected {
    async fn push(
        &mut self,
        mut piece: Piece,
        reader: &mut FileReader,
        bytes_max: usize,
    ) -> Result<(), CollectError> {
        let held = self.first.len() + self.all.len();
        let length = usize::try_from(piece.length()).map_err(|_| CollectError::TooLong)?;
        if length > bytes_max.saturating_sub(held) {
            return Err(CollectError::TooLong);
        }
        if held == 0
            && let Some(bytes) = piece.share_bytes()
        {
            self.first = bytes;
            return Ok(());
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        let mut filled = self.all.len();
        self.all.resize(filled + length, 0);
        while let Some(room @ [_, ..]) = self.all.get_mut(filled..) {
            let read = poll_fn(|context| piece.poll_read(room, reader, context)).await;
            filled += read.map_err(CollectError::Broken)?;
        }
        Ok(())
    }

    fn into_bytes(self) -> Bytes {
        match self.all.is_empty() {
            true => self.first,
            false => self.all.into(),
        }
    }
}

/// Gives the request its body, under the limits of a client's.
fn take_body(run: &mut ExchangeRun, bytes: &Bytes) {
    run.request.body.want();
    run.receive(bytes);
    run.complete_body();
    run.allows_body(bytes.len() as u64);
}

/// A tunnel needs a client at its other end.
fn refuse_tunnel(run: &mut ExchangeRun) {
    run.log_error(
        "content",
        format_args!("a subrequest was answered with 101, which it did not ask for"),
    );
    run.refuse_quietly(Stage::Content, Status::BAD_GATEWAY);
}

#[cfg(test)]
mod tests;
