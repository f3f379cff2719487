//! The connections of one worker to one server, and the rules for using them.
//!
//! Knows no protocol: commands are bytes, replies are taken by a [`Replies`]. A connection is lent to
//! one operation at a time and comes back only when its exchange is over and has left it as it was;
//! in all other cases, also when nobody waits for the operation any more, it is closed.
#![expect(
    clippy::disallowed_methods,
    reason = "one use of a connection is timed"
)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::address::StorePlace;
use super::circuit::{Admission, Circuit};
use super::counters::ServerCounters;
use super::error::{Kind, OperationStage, StoreError};
use super::limits;
use super::link::{Afterwards, ExchangeFailure, Link, ReceiveBuffer, Replies};

/// Connections to one server, with one login.
pub(super) struct Pool {
    peer: Rc<str>,
    place: StorePlace,
    login: Option<Login>,
    connect_timeout: Duration,
    buffer: Rc<ReceiveBuffer>,
    is_draining: Rc<Cell<bool>>,
    counters: Arc<ServerCounters>,
    idle: RefCell<VecDeque<Idle>>,
    /// One for each connection that may be in use.
    permits: Semaphore,
    waiting: Cell<usize>,
    circuit: RefCell<Circuit>,
    /// The time for the circuit, if a test has stopped the clock.
    #[cfg(test)]
    stopped_at: Cell<Option<Instant>>,
}

/// What a pool is made from.
pub(super) struct PoolOptions {
    pub(crate) peer: Rc<str>,
    pub(crate) place: StorePlace,
    pub(crate) login: Option<Login>,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections_max: usize,
    pub(crate) buffer: Rc<ReceiveBuffer>,
    /// The worker drains: no connection is kept.
    pub(crate) is_draining: Rc<Cell<bool>>,
    pub(crate) counters: Arc<ServerCounters>,
}

/// What is said on a new connection before anything else.
pub(super) struct Login {
    pub(crate) commands: Vec<u8>,
    pub(crate) replies: fn() -> Box<dyn LoginReplies>,
}

/// What takes the answer to a [`Login`].
pub(super) trait LoginReplies: Replies {
    /// Why the server refuses, if it does.
    fn refusal(&self) -> Option<&[u8]>;
}

/// Commands that are sent at once.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(crate) commands: &'a [u8],
    /// Whether it makes no difference if the server does it twice.
    pub(crate) is_repeatable: bool,
    /// Whether the server is meant to wait, so that a time-out says nothing about it.
    pub(crate) may_block: bool,
    /// Whether the connection is another one afterwards.
    pub(crate) changes_connection: bool,
    /// For all of it, the wait for a connection included.
    pub(crate) timeout: Duration,
}

struct Idle {
    link: Link,
    since: Instant,
}

impl Pool {
    pub(crate) fn new(options: PoolOptions) -> Pool {
        Pool {
            peer: options.peer,
            place: options.place,
            login: options.login,
            connect_timeout: options.connect_timeout,
            buffer: options.buffer,
            is_draining: options.is_draining,
            counters: options.counters,
            idle: RefCell::default(),
            permits: Semaphore::new(options.connections_max.clamp(1, Semaphore::MAX_PERMITS)),
            waiting: Cell::new(0),
            circuit: RefCell::default(),
            #[cfg(test)]
            stopped_at: Cell::default(),
        }
    }

    /// The server's name for messages.
    pub(crate) fn peer(&self) -> &Rc<str> {
        &self.peer
    }

    /// Connections that nobody uses.
    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether one of them is of no use any more, as far as the kernel knows.
    #[cfg(test)]
    pub(crate) fn is_an_idle_one_stale(&self) -> bool {
        self.idle.borrow().iter().any(|idle| idle.link.is_stale())
    }

    /// As if nobody had used them for so long.
    #[cfg(test)]
    pub(crate) fn let_idle_ones_age(&self, by: Duration) {
        for idle in &mut *self.idle.borrow_mut() {
            idle.since = idle
                .since
                .checked_sub(by)
                .expect("the machine is up for longer");
        }
    }

    /// What the circuit takes for the present goes on by this, and no further.
    #[cfg(test)]
    pub(crate) fn step_clock(&self, by: Duration) {
        self.stopped_at.set(Some(self.now() + by));
    }

    /// The time for the circuit.
    fn now(&self) -> Instant {
        #[cfg(test)]
        if let Some(now) = self.stopped_at.get() {
            return now;
        }
        Instant::now()
    }

    /// Sends the operation's commands and reads the replies to them, which `replies` makes a taker for.
    ///
    /// # Errors
    /// There is no complete reply; what the error is counted as. What a complete reply says is the
    /// caller's business.
    pub(crate) async fn perform<R: Replies>(
        &self,
        operation: Operation<'_>,
        replies: impl Fn() -> R,
    ) -> Result<R, StoreError> {
        let begun = Instant::now();
        let stage = Cell::new(OperationStage::Queue);
        let limit = operation.timeout;
        let result = match timeout(limit, self.attempt(operation, replies, &stage)).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out(operation, stage.get())),
        };
        count(&self.counters.requests, 1);
        count(&self.counters.waited_us, begun.elapsed().as_micros() as u64);
        if let Err(error) = &result {
            count(&self.counters.failures, 1);
            match error.kind {
                Kind::TimedOut => count(&self.counters.timeouts, 1),
                Kind::Down | Kind::Busy => count(&self.counters.refused, 1),
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
        self.refuse_if_down()?;
        let _permit = self.enter().await?;
        // The server may have gone while this waited.
        let _trial = self.admit()?;
        if let Some(mut link) = self.take_idle() {
            match self.exchange(&mut link, operation, &replies, stage).await {
                Ok((taken, afterwards)) => {
                    self.keep(link, afterwards, operation);
                    return Ok(taken);
                }
                Err(failure) if operation.may_be_repeated(&failure) => {
                    count(&self.counters.repeated, 1);
                }
                Err(failure) => return Err(self.failed(failure)),
            }
        }
        stage.set(OperationStage::Connect);
        let mut link = self.open(stage).await?;
        match self.exchange(&mut link, operation, &replies, stage).await {
            Ok((taken, afterwards)) => {
                self.keep(link, afterwards, operation);
                Ok(taken)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    async fn exchange<R: Replies>(
        &self,
        link: &mut Link,
        operation: Operation<'_>,
        replies: impl Fn() -> R,
        stage: &Cell<OperationStage>,
    ) -> Result<(R, Afterwards), ExchangeFailure> {
        let mut taken = replies();
        let exchange = link.exchange(operation.commands, &mut taken, &self.buffer, stage);
        let afterwards = exchange.await;
        if afterwards
            .as_ref()
            .is_err_and(|failure| failure.kind == Kind::Lost)
        {
            // It has closed one; the others are hardly better.
            self.idle.borrow_mut().clear();
        }
        let afterwards = afterwards?;
        self.circuit.borrow_mut().answered();
        Ok((taken, afterwards))
    }

    /// A place among those who may have a connection.
    async fn enter(&self) -> Result<Permit<'_>, StoreError> {
        if let Ok(permit) = self.permits.try_acquire() {
            permit.forget();
            return Ok(Permit(self));
        }
        if self.waiting.get() >= limits::WAITING_MAX {
            let text = "too many requests wait for a connection";
            return Err(StoreError::new(
                &self.peer,
                OperationStage::Queue,
                Kind::Busy,
                text,
            ));
        }
        let _waiting = WaitingCount::new(&self.waiting);
        let permit = self.permits.acquire().await;
        permit.expect("nobody closes the semaphore").forget();
        Ok(Permit(self))
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close_idle(&self) {
        let idle = self.idle.take();
        drop(idle);
    }

    /// Closes connections that nobody has used for long.
    pub(crate) fn close_old(&self) {
        forget_old(&mut self.idle.borrow_mut());
    }

    fn refuse_if_down(&self) -> Result<(), StoreError> {
        self.admit().map(drop)
    }

    fn admit(&self) -> Result<Option<Trial<'_>>, StoreError> {
        let admission = self.circuit.borrow_mut().admit(self.now());
        match admission {
            Admission::Up => Ok(None),
            Admission::Trial => Ok(Some(Trial(self))),
            Admission::Down(why) => {
                let text = format!("it is down: {why}");
                Err(StoreError::new(
                    &self.peer,
                    OperationStage::Connect,
                    Kind::Down,
                    text,
                ))
            }
        }
    }

    /// The connection that was used last.
    fn take_idle(&self) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        forget_old(&mut idle);
        while let Some(Idle { link, .. }) = idle.pop_back() {
            if !link.is_stale() {
                return Some(link);
            }
        }
        None
    }

    fn keep(&self, link: Link, afterwards: Afterwards, operation: Operation<'_>) {
        let is_spent = afterwards == Afterwards::Spent || operation.changes_connection;
        if is_spent || self.is_draining.get() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        forget_old(&mut idle);
        if idle.len() < limits::IDLE_CONNECTIONS_MAX {
            let since = Instant::now();
            idle.push_back(Idle { link, since });
        }
    }

    /// A new connection, logged in.
    async fn open(&self, stage: &Cell<OperationStage>) -> Result<Link, StoreError> {
        let opened = match timeout(self.connect_timeout, self.connect(stage)).await {
            Ok(opened) => opened,
            Err(_) => {
                let text = "no connection in time";
                Err(StoreError::new(
                    &self.peer,
                    stage.get(),
                    Kind::TimedOut,
                    text,
                ))
            }
        };
        if let Err(error) = &opened
            && error.kind != Kind::Busy
        {
            let mut circuit = self.circuit.borrow_mut();
            circuit.unreachable(self.now(), &error.text);
        }
        opened
    }

    async fn connect(&self, stage: &Cell<OperationStage>) -> Result<Link, StoreError> {
        let unconnected =
            |(kind, text)| StoreError::new(&self.peer, OperationStage::Connect, kind, text);
        let stream = self.place.connect().await.map_err(unconnected)?;
        count(&self.counters.connects, 1);
        let mut link = Link::new(stream);
        let Some(login) = &self.login else {
            return Ok(link);
        };
        let failed = |failure: ExchangeFailure| {
            StoreError::new(
                &self.peer,
                OperationStage::Login,
                failure.kind,
                failure.text,
            )
        };
        let mut replies = (login.replies)();
        let part = Cell::new(OperationStage::Login);
        stage.set(OperationStage::Login);
        let exchange = link.exchange(&login.commands, &mut *replies, &self.buffer, &part);
        let afterwards = exchange.await.map_err(failed)?;
        if let Some(refusal) = replies.refusal() {
            return Err(StoreError::said(&self.peer, OperationStage::Login, refusal));
        }
        match afterwards {
            Afterwards::Reusable => Ok(link),
            Afterwards::Spent => {
                let text = "it has closed the connection";
                Err(StoreError::new(
                    &self.peer,
                    OperationStage::Login,
                    Kind::Lost,
                    text,
                ))
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
                circuit.unreachable(self.now(), text)
            }
            OperationStage::Write | OperationStage::Read if !operation.may_block => {
                circuit.timed_out(self.now(), text);
                self.idle.borrow_mut().clear();
            }
            _ => {}
        }
        StoreError::new(&self.peer, stage, Kind::TimedOut, text)
    }

    fn failed(&self, failure: ExchangeFailure) -> StoreError {
        StoreError::new(&self.peer, failure.stage, failure.kind, failure.text)
    }
}

impl Operation<'_> {
    /// Whether the operation may be sent again: nothing of a reply came, and the server cannot have done
    /// anything or may do it twice. A reset proves nothing: a server that closes with any unread byte resets
    /// the connection.
    fn may_be_repeated(&self, failure: &ExchangeFailure) -> bool {
        failure.kind == Kind::Lost
            && !failure.has_reply_begun
            && (self.is_repeatable || failure.written == 0)
    }
}

/// Who holds it may use a connection.
struct Permit<'a>(&'a Pool);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.permits.add_permits(1);
    }
}

/// Who holds it finds out whether the server is back.
struct Trial<'a>(&'a Pool);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.circuit.borrow_mut().trial_ends();
    }
}

/// Counts one who waits.
struct WaitingCount<'a>(&'a Cell<usize>);

impl WaitingCount<'_> {
    fn new(count: &Cell<usize>) -> WaitingCount<'_> {
        count.set(count.get() + 1);
        WaitingCount(count)
    }
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn forget_old(idle: &mut VecDeque<Idle>) {
    let oldest = Duration::from_secs(limits::IDLE_S_MAX);
    while idle
        .front()
        .is_some_and(|idle| idle.since.elapsed() > oldest)
    {
        idle.pop_front();
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
