//! Subrequests: requests that the server makes to itself for a request of a client.
//!
//! A [`Subrequest`] is an exchange without a connection. It goes through the same phases on the same worker,
//! with the client, the listener and the scheme of its parent. So every condition and every access rule
//! applies as if the client had sent the request, and no subrequest can get around them. Its owner drives it
//! by polling for the head and the body, in the owner's own task. Dropping it stops it. It does not need its
//! parent once it was made: [`Subrequest::detach`] lets one continue when the client is gone.
//!
//! It lacks what a connection adds: there is no Date, no framing, no timeout but those of the hooks that
//! answer, and no bandwidth limit. Since no client has sent it, counters and the access log (the phase
//! [`Log`](crate::module::Phase::Log)) do not see it. Its time counts for the stage in which its owner waits;
//! its own ledger begins with it. It cannot become a tunnel. Interim responses (1xx) and trailers are
//! dropped.
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
use crate::cause::CauseCode;
use crate::deadlines::Alarm;
use crate::exchange::{Exchange, Lineage};
use crate::ledger::Stage;
use crate::limits;
use crate::network_backend::FileReader;
use crate::phase::Walked;
use crate::response::Response;
use crate::run::ExchangeRun;
use crate::trace;
use crate::waits;

pub use head::{Inherit, RefusedSubrequest, SubrequestHead};

/// A request of the server to itself.
///
/// Call [`Subrequest::poll_head`] until there is a response, then [`Subrequest::poll_piece`] until its body
/// ends. Errors are responses, too, with the page that a client would get.
pub struct Subrequest {
    run: ExchangeRun,
    alarm: Alarm,
    state: SubrequestState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubrequestState {
    /// Hooks run.
    Walk,
    /// There is a response; the owner takes its body.
    Body,
    /// The body is complete.
    Over,
    /// The body has ended early.
    Broken,
}

/// Why a body could not be collected.
#[derive(Debug)]
pub enum CollectError {
    /// It is longer than allowed.
    TooLong,
    /// It has ended early, or a file could not be read.
    Broken(io::Error),
}

impl Subrequest {
    /// A subrequest for `head` on behalf of `parent`. Does not run any hook yet.
    ///
    /// # Errors
    /// `head` is not a valid request, or the client's request has made too many.
    pub fn new(parent: &Exchange, head: SubrequestHead) -> Result<Subrequest, RefusedSubrequest> {
        let lineage = descend(parent)?;
        let worker = &parent.worker;
        let mut run = ExchangeRun::new(worker, parent.connection.clone());
        run.ledger.start(worker.clock().now());
        run.lineage = lineage;
        head::begin(&mut run, parent, &head)?;
        if let Some(dry_run) = parent.dry_run() {
            run.set_dry_run(dry_run.for_subrequest());
        }
        take_body(&mut run, &head.body);
        Ok(Subrequest {
            run,
            alarm: Alarm::new(&worker.deadlines),
            state: SubrequestState::Walk,
        })
    }

    /// Runs the hooks until there is a response, and returns its status.
    pub fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        while self.state == SubrequestState::Walk {
            match self.run.poll_answer(context) {
                // The body was complete from the start.
                Poll::Ready(Walked::NeedBody) => self.run.complete_body(),
                Poll::Ready(Walked::Answered) if self.run.is_tunnel() => {
                    refuse_tunnel(&mut self.run);
                }
                Poll::Ready(Walked::Answered) => {
                    // A response without a body may announce one.
                    self.run.settle_body();
                    trace::over(&self.run);
                    self.tell_wait();
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

    /// The next piece of the body; `None` is its end. Waits for the head first. After an error, every further
    /// call returns an error.
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

    /// The rest of the body in memory. A body that is a single piece in memory is not copied.
    ///
    /// # Errors
    /// See [`CollectError`]. The bytes that were read are lost then.
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

    /// Whether there is a response. Before that, [`Subrequest::response`] is not complete.
    pub fn is_answered(&self) -> bool {
        self.state != SubrequestState::Walk
    }

    /// The status of the response; 0 before there is one.
    pub fn status(&self) -> Status {
        self.response().status
    }

    /// The response: status and header fields. Content-Length and other fields of the connection are not
    /// among them; see [`Subrequest::length`].
    pub fn response(&self) -> &Response {
        &self.run.response
    }

    /// How many bytes of the body are still to come, if that is known.
    pub fn length(&self) -> Option<u64> {
        self.response().body.length()
    }

    /// The Content-Length that a client would get, also for HEAD, which has no body. Call it before taking
    /// pieces of the body.
    pub fn announced_length(&self) -> Option<u64> {
        self.response()
            .announced_length
            .or_else(|| self.response().body.length())
    }

    /// The exchange, for its URL, its settings and its environment.
    pub fn exchange(&self) -> &Exchange {
        &self.run
    }

    /// Stores `what` for `module` in the exchange; see [`Exchange::keep`].
    pub fn keep(&mut self, module: &'static str, what: Rc<dyn std::any::Any>) {
        self.run.keep(module, what);
    }

    /// Says what the subrequest waited for, to the script or module that waits for its answer.
    fn tell_wait(&self) {
        if let Some(longest) = self.run.waits().iter().max_by_key(|wait| wait.nanos) {
            let now = self.run.worker.clock().latest();
            let took = now.saturating_sub(self.run.ledger.started());
            let path = self.run.waits_path();
            waits::note_slow_peer(took, now, |text| {
                write!(text, "its subrequest {path}: {longest}");
            });
        }
    }

    /// Drops the source of the body.
    fn end(&mut self, state: SubrequestState) {
        self.alarm.clear();
        self.run.response.body = Body::Empty;
        self.state = state;
    }
}

/// A subrequest as the source of another response's body, mostly its parent's.
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
        // The subrequest has its whole body, so it takes nothing from the client.
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

/// The lineage of a further subrequest of `parent`.
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

/// The bytes of a body that is being collected.
#[derive(Default)]
struct Collected {
    /// The first piece, while it is the only one.
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

/// Gives the request its body, with the limits of a client's body.
fn take_body(run: &mut ExchangeRun, bytes: &Bytes) {
    run.request.body.want();
    run.receive(bytes);
    run.complete_body();
    run.allows_body(bytes.len() as u64);
}

/// Refuses a tunnel, which needs a client.
fn refuse_tunnel(run: &mut ExchangeRun) {
    run.log_error(
        "content",
        format_args!("a subrequest was answered with 101, which it did not ask for"),
    );
    run.refuse_quietly(Stage::Content, CauseCode::SubrequestTunnel);
}

#[cfg(test)]
mod tests;
