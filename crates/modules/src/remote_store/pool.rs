//! The connections of one worker to one store, and the rules for using them.
//!
//! Knows no protocol: commands are bytes, and a [`Replies`] decodes the replies. A connection is lent to one
//! operation at a time. It comes back only if its exchange is complete and has left it usable. In all other
//! cases, also if the operation is dropped, it is closed.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use petrel_engine::clock::Clock;
use petrel_engine::limits::NOTED_WAIT_NANOS;
use petrel_engine::tls::TlsServer;
use petrel_engine::waits;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::circuit::{Admission, Circuit};
use super::counters::ServerCounters;
use super::error::{Kind, OperationStage, StoreError};
use super::limits;
use super::link::{Afterwards, ExchangeFailure, Link, ReceiveBuffer, Replies};
use super::server::RemoteServer;

/// The connections to one store with one login.
pub(super) struct Pool {
    pub(crate) server: RemoteServer,
    options: PoolOptions,
    /// One place for each operation that uses a connection or waits for one.
    places: Semaphore,
    /// One permit for each connection in use.
    permits: Semaphore,
    circuit: RefCell<Circuit>,
}

/// What a pool is made from.
pub(super) struct PoolOptions {
    pub(crate) peer: Rc<str>,
    /// What is sent before TLS begins, and the server that TLS is for.
    pub(crate) start_tls: Option<(Login, TlsServer)>,
    pub(crate) login: Option<Login>,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections_max: usize,
    pub(crate) buffer: Rc<ReceiveBuffer>,
    pub(crate) clock: Rc<Clock>,
    pub(crate) counters: Arc<ServerCounters>,
}

/// What is sent on a new connection before anything else.
pub(super) struct Login {
    pub(crate) commands: Vec<u8>,
    pub(crate) replies: fn() -> Box<dyn LoginReplies>,
}

/// Decodes the reply to a [`Login`].
pub(super) trait LoginReplies: Replies {
    /// Why the server refuses the login, if it does.
    fn refusal(&self) -> Option<&[u8]>;
}

/// Commands that are sent together.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(crate) commands: &'a [u8],
    /// Whether the server may carry it out twice without harm.
    pub(crate) is_repeatable: bool,
    /// Whether the server is meant to wait, so that a timeout says nothing about its health.
    pub(crate) may_block: bool,
    /// Whether it changes the state of the connection.
    pub(crate) changes_connection: bool,
    /// The time for all of it, including the wait for a connection.
    pub(crate) timeout: Duration,
}

impl Pool {
    pub(crate) fn new(server: RemoteServer, options: PoolOptions) -> Pool {
        let connections_max = options.connections_max.clamp(1, CONNECTIONS_MAX);
        Pool {
            server,
            options,
            places: Semaphore::new(connections_max + limits::WAITING_MAX),
            permits: Semaphore::new(connections_max),
            circuit: RefCell::default(),
        }
    }

    /// The server's name, for messages.
    pub(crate) fn peer(&self) -> &Rc<str> {
        &self.options.peer
    }

    /// Sends the operation's commands and reads the replies, for which `replies` makes a decoder.
    ///
    /// # Errors
    /// There is no complete reply. An error inside a complete reply is left to the caller.
    pub(crate) async fn perform<R: Replies>(
        &self,
        operation: Operation<'_>,
        replies: impl Fn() -> R,
    ) -> Result<R, StoreError> {
        let counters = &self.options.counters;
        let begun_ns = self.options.clock.now();
        let stage = Cell::new(OperationStage::Queue);
        let limit = operation.timeout;
        let result = match timeout(limit, self.attempt(operation, replies, &stage)).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out(operation, stage.get())),
        };
        count(&counters.requests, 1);
        let now_ns = self.options.clock.now();
        let waited_ns = now_ns.saturating_sub(begun_ns);
        if waited_ns >= NOTED_WAIT_NANOS {
            let (peer, time) = (self.peer(), waits::Time(waited_ns));
            let did = match result {
                Ok(_) => "took",
                Err(_) => "gave no answer for",
            };
            waits::note_slow_peer(waited_ns, now_ns, |text| {
                write!(text, "{peer} {did} {time}")
            });
        }
        count(&counters.waited_us, waited_ns / NANOS_PER_MICRO);
        if let Err(error) = &result {
            count(&counters.failures, 1);
            match error.kind {
                Kind::TimedOut => count(&counters.timeouts, 1),
                Kind::Down | Kind::Busy => count(&counters.refused, 1),
                _ => {}
            }
        }
        result
    }

    async fn attempt<R: Replies>(
        &self,
        operation: Operation<'_>,
        replies: impl Fn() -> R,
        stage: &Cell<OperationStage>,
    ) -> Result<R, StoreError> {
        self.admit()?;
        let _permit = self.enter().await?;
        // The server may have gone down during the wait.
        let _trial = self.admit()?;
        if let Some(link) = self.server.take_open() {
            match self.exchange(link, operation, &replies, stage).await {
                Err(failure) if operation.may_be_repeated(&failure) => {
                    count(&self.options.counters.repeated, 1);
                }
                result => return result.map_err(|failure| self.failed(failure)),
            }
        }
        stage.set(OperationStage::Connect);
        let link = self.open(stage).await?;
        let result = self.exchange(link, operation, &replies, stage).await;
        result.map_err(|failure| self.failed(failure))
    }

    async fn exchange<R: Replies>(
        &self,
        mut link: Link,
        operation: Operation<'_>,
        replies: impl Fn() -> R,
        stage: &Cell<OperationStage>,
    ) -> Result<R, ExchangeFailure> {
        let mut taken = replies();
        let exchange = link.exchange(operation.commands, &mut taken, &self.options.buffer, stage);
        let afterwards = exchange.await.inspect_err(|failure| {
            if failure.kind == Kind::Lost {
                self.server.close_kept();
            }
        })?;
        self.circuit.borrow_mut().answered();
        if afterwards == Afterwards::Reusable && !operation.changes_connection {
            self.server.keep(link);
        }
        Ok(taken)
    }

    /// Waits for a place and a permit.
    async fn enter(&self) -> Result<(SemaphorePermit<'_>, SemaphorePermit<'_>), StoreError> {
        let busy = |_| {
            let text = "too many requests wait for a connection";
            self.error(OperationStage::Queue, Kind::Busy, text)
        };
        let place = self.places.try_acquire().map_err(busy)?;
        let permit = self.permits.acquire().await;
        Ok((place, permit.expect("the semaphore is never closed")))
    }

    fn admit(&self) -> Result<Option<Trial<'_>>, StoreError> {
        let admission = self.circuit.borrow_mut().admit(self.options.clock.now_ms());
        match admission {
            Admission::Up => Ok(None),
            Admission::Trial => Ok(Some(Trial(self))),
            Admission::Down(why) => {
                let text = format!("it is down: {why}");
                Err(self.error(OperationStage::Connect, Kind::Down, text))
            }
        }
    }

    /// Opens a connection and logs in.
    async fn open(&self, stage: &Cell<OperationStage>) -> Result<Link, StoreError> {
        let opened = timeout(self.options.connect_timeout, self.connect(stage)).await;
        let late = |_| Err(self.error(stage.get(), Kind::TimedOut, "no connection in time"));
        let opened = opened.unwrap_or_else(late);
        if let Err(error) = &opened
            && error.kind != Kind::Busy
        {
            let mut circuit = self.circuit.borrow_mut();
            circuit.unreachable(self.options.clock.now_ms(), &error.text);
        }
        opened
    }

    async fn connect(&self, stage: &Cell<OperationStage>) -> Result<Link, StoreError> {
        let unconnected = |(kind, text)| self.error(OperationStage::Connect, kind, text);
        let mut link = self.server.connect().await.map_err(unconnected)?;
        count(&self.options.counters.connects, 1);
        if let Some((request, server)) = &self.options.start_tls {
            self.say(&mut link, request, stage).await?;
            let stream = link.stream.start_tls(server).await;
            let failed = |error: io::Error| {
                self.error(
                    OperationStage::Connect,
                    Kind::Unreachable,
                    error.to_string(),
                )
            };
            link = Link::new(stream.map_err(failed)?);
        }
        if let Some(login) = &self.options.login {
            self.say(&mut link, login, stage).await?;
        }
        Ok(link)
    }

    /// Sends what has to be sent first on a new connection.
    async fn say(
        &self,
        link: &mut Link,
        login: &Login,
        stage: &Cell<OperationStage>,
    ) -> Result<(), StoreError> {
        let failed = |failure: ExchangeFailure| {
            self.error(OperationStage::Login, failure.kind, failure.text)
        };
        let mut replies = (login.replies)();
        let part = Cell::new(OperationStage::Login);
        stage.set(OperationStage::Login);
        let exchange = link.exchange(&login.commands, &mut *replies, &self.options.buffer, &part);
        let afterwards = exchange.await.map_err(failed)?;
        if let Some(refusal) = replies.refusal() {
            return Err(StoreError::said(
                self.peer(),
                OperationStage::Login,
                refusal,
            ));
        }
        match afterwards {
            Afterwards::Reusable => Ok(()),
            Afterwards::Spent => {
                let text = "it has closed the connection";
                Err(self.error(OperationStage::Login, Kind::Lost, text))
            }
        }
    }

    fn timed_out(&self, operation: Operation<'_>, stage: OperationStage) -> StoreError {
        let text = match stage {
            OperationStage::Queue => "no connection was free in time",
            OperationStage::Connect | OperationStage::Login => "no connection in time",
            _ => "no reply in time",
        };
        let mut circuit = self.circuit.borrow_mut();
        match stage {
            OperationStage::Connect | OperationStage::Login => {
                circuit.unreachable(self.options.clock.now_ms(), text)
            }
            OperationStage::Write | OperationStage::Read if !operation.may_block => {
                circuit.timed_out(self.options.clock.now_ms(), text);
                self.server.close_kept();
            }
            _ => {}
        }
        self.error(stage, Kind::TimedOut, text)
    }

    fn failed(&self, failure: ExchangeFailure) -> StoreError {
        self.error(failure.stage, failure.kind, failure.text)
    }

    fn error(&self, stage: OperationStage, kind: Kind, text: impl Into<String>) -> StoreError {
        StoreError::new(self.peer(), stage, kind, text)
    }
}

impl Operation<'_> {
    /// Whether the operation may be sent again: no byte of a reply has arrived, and the server either cannot
    /// have done anything or may do it twice. A reset proves nothing: a server that closes a connection with
    /// an unread byte resets it.
    fn may_be_repeated(&self, failure: &ExchangeFailure) -> bool {
        failure.kind == Kind::Lost
            && !failure.has_reply_begun
            && (self.is_repeatable || failure.written == 0)
    }
}

/// Held by the operation that finds out whether the server is back.
struct Trial<'a>(&'a Pool);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.circuit.borrow_mut().trial_ends();
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

/// Small enough for the waiting operations to fit into the same semaphore.
const CONNECTIONS_MAX: usize = Semaphore::MAX_PERMITS - limits::WAITING_MAX;

const NANOS_PER_MICRO: u64 = 1_000;
