//! Subrequests: requests that the server makes to itself for one of a client's.
//!
//! A [`Subrequest`] is an exchange without a connection. It walks the same phases on the same worker,
//! with the client, listener and scheme of its parent, so that every condition and every access rule
//! holds for it as it would if the client had asked; there is no way round them. Whoever owns it pulls
//! head and body and drives it by that, in the owner's own task; dropping it breaks it off. It needs
//! nothing of its parent once it is made: [`Subrequest::detach`] lets one go on when the client has left.
//!
//! What a connection adds is missing: no Date, no framing, no time-outs but those of whoever answers,
//! no bandwidth limit. It is no request of a client, so neither counters nor the access log
//! (the phase [`Log`](crate::module::Phase::Log)) know of it. Its time is that of the stage in which its
//! owner waits; its own ledger counts from its beginning. It never becomes a tunnel, and interim
//! responses (1xx) are dropped.
//!
//! Callers: scripts, caches that fetch pages, pages made of parts.

mod detached;
mod head;

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_proto::method::Method;
use petrel_proto::status::Status;

use crate::body::{Body, BodySource, ColdRead, Piece, RequestBody};
use crate::connection::Receiving;
use crate::deadlines::{Alarm, Deadlines};
use crate::exchange::Exchange;
use crate::ledger::Stage;
use crate::limits;
use crate::phase::{self, Walked};
use crate::response::Response;
use crate::trace;

pub use head::{Inherit, RefusedSubrequest, SubrequestHead};

/// A request of the server to itself.
///
/// [`Subrequest::poll_head`] until there is an answer, then [`Subrequest::poll_piece`] until there is no
/// more of it. Errors are answers as well, with the page that a client would get.
pub struct Subrequest {
    /// There until it is dropped.
    exchange: Option<Box<Exchange>>,
    alarm: Alarm,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
        let lineage = parent.lineage.descend()?;
        let worker = &parent.worker;
        let exchange = worker.take_exchange().unwrap_or_else(|| {
            Box::new(Exchange::new(Rc::clone(worker), parent.connection.clone()))
        });
        let mut subrequest = Subrequest {
            exchange: Some(exchange),
            alarm: Alarm::new(worker),
            state: State::Walk,
        };
        let exchange = subrequest.exchange_mut();
        exchange.ledger.start(worker.clock().now());
        exchange.lineage = lineage;
        head::begin(exchange, parent, &head)?;
        take_body(exchange, &head.body);
        Ok(subrequest)
    }

    /// Goes on until there is an answer, and says its status.
    pub fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        while self.state == State::Walk {
            let exchange = self.exchange.as_mut().expect(THERE);
            match phase::walk(exchange, context) {
                Poll::Ready(Walked::NeedBody) => exchange.request.body.complete(),
                Poll::Ready(Walked::Answered) if exchange.receiving.is_tunnel() => {
                    refuse_tunnel(exchange);
                }
                Poll::Ready(Walked::Answered) => {
                    forget_unsent_body(exchange);
                    trace::over(exchange);
                    self.alarm.clear();
                    self.state = State::Body;
                }
                Poll::Pending => {
                    exchange.interim.clear();
                    self.alarm.set(exchange.wake_at_s, context);
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
            State::Walk | State::Body => {}
            State::Over => return Poll::Ready(None),
            State::Broken => return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into()))),
        }
        self.work(context);
        let body = &mut self.exchange_mut().response.body;
        let polled = body.poll_piece(context);
        match &polled {
            Poll::Pending => {
                let wake_at_s = body.wake_at_s();
                self.alarm
                    .set(wake_at_s.unwrap_or(Deadlines::NEVER), context);
            }
            Poll::Ready(Some(Ok(_))) => self.alarm.clear(),
            Poll::Ready(None) => self.end(State::Over),
            Poll::Ready(Some(Err(_))) => self.end(State::Broken),
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
        let mut cold = ColdRead::of(self.exchange());
        while let Some(piece) = self.piece().await {
            let piece = piece.map_err(CollectError::Broken)?;
            collected.push(piece, &mut cold, bytes_max).await?;
        }
        Ok(collected.into_bytes())
    }

    /// Whether there is an answer; before, [`Subrequest::response`] is empty or half made.
    pub fn is_answered(&self) -> bool {
        self.state != State::Walk
    }

    /// The status of the answer; 0 before there is one.
    pub fn status(&self) -> Status {
        self.response().status
    }

    /// The answer: status and header fields. Content-Length and what else belongs to a connection is not
    /// among them; see [`Subrequest::length`].
    pub fn response(&self) -> &Response {
        &self.exchange().response
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
        self.exchange.as_ref().expect(THERE)
    }

    /// Keeps `what` for `module` with its exchange; see [`Exchange::keep`].
    pub fn keep(&mut self, module: &'static str, what: Rc<dyn std::any::Any>) {
        self.exchange_mut().keep(module, what);
    }

    /// What the body does beside being pulled.
    fn work(&mut self, context: &mut Context<'_>) {
        let exchange = self.exchange_mut();
        let body = &mut exchange.request.body;
        exchange.response.body.work(body, context);
    }

    /// Lets go of what made the body.
    fn end(&mut self, state: State) {
        self.alarm.clear();
        self.exchange_mut().response.body = Body::Empty;
        self.state = state;
    }

    fn exchange_mut(&mut self) -> &mut Exchange {
        self.exchange.as_mut().expect(THERE)
    }
}

/// The rest of the body, as the body of another answer: of the parent's, as a rule.
impl BodySource for Subrequest {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Subrequest::poll_piece(self, context)
    }

    fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Walk | State::Broken => None,
            State::Body | State::Over => self.length(),
        }
    }

    fn work(&mut self, _: &mut RequestBody, context: &mut Context<'_>) {
        if self.state == State::Body {
            Subrequest::work(self, context);
        }
    }

    fn wake_at_s(&self) -> Option<u32> {
        match self.state {
            State::Walk => Some(self.exchange().wake_at_s),
            _ => self.response().body.wake_at_s(),
        }
    }

    fn waits_for_disk(&self) -> bool {
        self.state == State::Body && self.response().body.waits_for_disk()
    }

    fn stage(&self) -> Stage {
        match self.state {
            State::Walk => Stage::Content,
            State::Body | State::Over | State::Broken => self.response().body.stage(),
        }
    }

    fn has_failed(&self) -> bool {
        // Its request is complete: it takes nothing from the client.
        true
    }
}

impl Drop for Subrequest {
    fn drop(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.clear();
            let worker = Rc::clone(&exchange.worker);
            worker.give_exchange(exchange);
        }
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

/// Where an exchange stands among the subrequests of a client's request.
#[derive(Default)]
pub(crate) struct Lineage {
    depth: u8,
    /// Subrequests that were made for the client's request, by whomever. Made with the first.
    made: OnceCell<Rc<Cell<u32>>>,
}

impl Lineage {
    /// 0 for a client's request.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// The place of one more subrequest.
    fn descend(&self) -> Result<Lineage, RefusedSubrequest> {
        if self.depth >= limits::SUBREQUEST_DEPTH_MAX {
            return Err(RefusedSubrequest::TooDeep);
        }
        let made = self.made.get_or_init(Rc::default);
        if made.get() >= limits::SUBREQUESTS_PER_REQUEST_MAX {
            return Err(RefusedSubrequest::TooMany);
        }
        made.set(made.get() + 1);
        Ok(Lineage {
            depth: self.depth + 1,
            made: OnceCell::from(Rc::clone(made)),
        })
    }
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
        cold: &mut ColdRead,
        bytes_max: usize,
    ) -> Result<(), CollectError> {
        let held = self.first.len() + self.all.len();
        let length = usize::try_from(piece.length()).map_err(|_| CollectError::TooLong)?;
        if length > bytes_max.saturating_sub(held) {
            return Err(CollectError::TooLong);
        }
        match piece {
            Piece::Bytes(bytes) if held == 0 => {
                self.first = bytes;
                return Ok(());
            }
            _ => self.all.extend_from_slice(&std::mem::take(&mut self.first)),
        }
        let mut filled = self.all.len();
        self.all.resize(filled + length, 0);
        while let Some(room @ [_, ..]) = self.all.get_mut(filled..) {
            let read = poll_fn(|context| piece.poll_read(room, cold, context)).await;
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
fn take_body(exchange: &mut Exchange, bytes: &Bytes) {
    let length = bytes.len() as u64;
    let body = &mut exchange.request.body;
    body.want();
    let directories = &exchange.worker.process().upload_directories;
    body.receive(bytes, directories, exchange.connection.client_key());
    body.complete();
    exchange.request.body_bytes = length;
    let bytes_max = exchange.settings.core.body_bytes_max;
    if bytes_max.is_some_and(|bytes_max| length > bytes_max) {
        exchange.log_error(
            "receive",
            format_args!("the body of {length} bytes is over server.max-request-size"),
        );
        phase::refuse(exchange, Status::CONTENT_TOO_LARGE);
    }
}

/// There is nobody to have the other end of a tunnel.
fn refuse_tunnel(exchange: &mut Exchange) {
    exchange.log_error(
        "content",
        format_args!("a subrequest was answered with 101, which it did not ask for"),
    );
    exchange.receiving = Receiving::default();
    phase::refuse(exchange, Status::BAD_GATEWAY);
}

/// Answers to HEAD and some others have no body, but may announce one.
fn forget_unsent_body(exchange: &mut Exchange) {
    let response = &mut exchange.response;
    let is_head = exchange.request.head.method() == Method::Head;
    if is_head && response.announced_length.is_none() {
        response.announced_length = response.body.length();
    }
    if is_head || response.status.is_bodiless() {
        response.body = Body::Empty;
    }
}

const THERE: &str = "it is there until it is dropped";

#[cfg(test)]
mod tests;
