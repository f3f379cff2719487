//! Connections on which a FastCGI application is asked whether one of its processes has them.
//!
//! GET_VALUES, as the first record of a new connection, is answered when a process has accepted it. When
//! requests wait and no connection is free, one new connection carries only this question. It waits in the
//! backend's queue; its answer means that a process is free, the request that has waited longest is written
//! then, and the next connection asks. So the number of connections follows the number of processes without
//! being known, and requests wait in this server, where they can still go elsewhere. A process runs nothing for
//! a connection that carries only the question.
//!
//! ```text
//!                 connected              answered            the backend is known to keep it, or 10 ms
//!   Connecting ────────────> Unanswered ───────────> Proving ────────────────────────────────────> in use
//!                                │   ^                  │
//!            closed, does not ───┘   │                  └── closed: php before 8.2.12 answers and closes,
//!            answer at all           │                      but a process is free
//!                          a reply has ended and its process may work on
//! ```
//!
//! A second connection asks when the first one has waited for [`limits::ASK_MORE_MS`]: php-fpm with `pm =
//! ondemand` starts a process only when a connection arrives. It starts none while a process seems to be idle, so a
//! process that takes another connection at that moment leaves this one without. As nothing arrives any more, the
//! last connection that asks makes way for a new one after [`limits::ASK_ANEW_MS`], and after twice that time again,
//! [`limits::ASKED_ANEW_MAX`] times: the kernel's queue keeps a closed connection until a process takes it.
//!
//! Behind the end of a reply the question says when the process is back: a script may work on after
//! `fastcgi_finish_request()`. It is asked behind the first replies of a backend, behind one of
//! [`limits::ASK_ONE_OF`], and for some time behind each reply of a backend that was found to work on.

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Poll};

use super::backend::Backend;
use super::capacity::{Answering, Answers, Permit};
use super::connection::{BackendConnection, Questions};
use super::failure::Failure;
use super::kernel_view::OtherEnd;
use super::limits;
use super::pool::Grant;
use super::stream::{BackendStream, Connecting};

/// The connections of one worker to one backend that await an answer.
#[derive(Default)]
pub(super) struct AskingConnections {
    all: RefCell<Vec<Asked>>,
    /// Not before that time another one is begun, because the last one failed.
    not_before_ms: Cell<u64>,
    /// How often a connection has made way for a new one since the last one was answered.
    renewals: Cell<u32>,
    /// Requests that were sent, to ask behind one of many.
    sent: Cell<u32>,
}

enum Asked {
    Connecting {
        connecting: Connecting,
        permit: Permit,
        since_ms: u64,
    },
    Unanswered {
        connection: Box<BackendConnection>,
        since_ms: u64,
        /// When the kernel first said that a process had read the question.
        read_since_ms: Option<u64>,
        /// Behind a reply: the process has accepted the connection before.
        is_behind: bool,
    },
    Proving {
        connection: Box<BackendConnection>,
        until_ms: u64,
    },
}

/// What has become of a connection that asks.
enum AskedVerdict {
    /// A process has it.
    Free(Box<BackendConnection>),
    /// A process was free, but the connection was closed.
    FreeElsewhere(Permit),
    /// It was closed without an answer.
    Closed,
    /// It was closed behind a reply.
    Ended,
    /// It could not be made.
    Failed(io::Error),
}

impl AskingConnections {
    /// Whether time alone can change something, and not only an answer.
    pub(super) fn has_deadline(&self, backend: &Backend) -> bool {
        let capacity = &backend.shared.capacity;
        let is_open = |answering: &Answering| answering.get(0) != Answers::Yes;
        let all = self.all.borrow();
        all.iter().any(|asked| match asked {
            Asked::Connecting { .. } | Asked::Proving { .. } => true,
            Asked::Unanswered { is_behind, .. } => is_open(capacity.answering(*is_behind)),
        })
    }

    /// Whether it may be tried now to make a connection to a backend that is gone.
    pub(super) fn may_try(&self, now_ms: u64) -> bool {
        let may = now_ms >= self.not_before_ms.get();
        if may {
            self.not_before_ms.set(now_ms + limits::ASK_PAUSE_MS);
        }
        may
    }

    /// Closes the last one of several, which began at `latest_ms`, if no process has taken it for long.
    fn make_way(&self, backend: &Backend, latest_ms: u64, now_ms: u64) -> bool {
        let renewals = self.renewals.get();
        if renewals == limits::ASKED_ANEW_MAX
            || now_ms < latest_ms + (limits::ASK_ANEW_MS << renewals)
        {
            return false;
        }
        let mut all = self.all.borrow_mut();
        let is_last = |asked: &mut Asked| asked.waits_since_ms() == Some(latest_ms);
        let is_untaken = |asked: &mut Asked| is_last(asked) && !backend.has_accepted(asked);
        let closed = all.extract_if(.., is_untaken).next();
        if closed.is_some() {
            self.renewals.set(renewals + 1);
            backend.shared.capacity.waits_no_more();
        }
        closed.is_some()
    }

    /// Closes all of them.
    pub(super) fn close_all(&self, backend: &Backend) {
        let all = self.all.take();
        for asked in &all {
            if asked.is_counted() {
                backend.shared.capacity.waits_no_more();
            }
        }
    }

    /// Which questions go with a request on `connection`.
    pub(super) fn questions(
        &self,
        backend: &Backend,
        connection: &BackendConnection,
        now_ms: u64,
    ) -> Questions {
        let keeps = backend.shared.capacity.keeps_asked();
        if !(keeps || connection.has_answered_first()) || !backend.asks(now_ms) {
            return Questions::default();
        }
        let sent = self.sent.get();
        self.sent.set(sent.wrapping_add(1));
        let is_sample = sent < limits::ASK_FIRST || sent.is_multiple_of(limits::ASK_ONE_OF);
        let behind = backend.shared.capacity.behind.get(now_ms);
        let answers_behind = behind != Answers::No;
        Questions {
            leads: keeps
                && answers_behind
                && connection.is_reused()
                && connection.idle_for_ms(now_ms) >= limits::ASK_AFTER_IDLE_MS,
            // Whether the application keeps its connections is asked until that is known, although requests wait.
            ends: answers_behind
                && (behind == Answers::Unknown
                    || self.works_on(backend, now_ms)
                    || (is_sample && backend.queue.is_empty())),
        }
    }

    /// Whether a process has worked on behind one of the last replies, or does now.
    fn works_on(&self, backend: &Backend, now_ms: u64) -> bool {
        let works_now = |asked: &Asked| asked.works_on(now_ms);
        if self.all.borrow().iter().any(works_now) {
            backend.shared.capacity.has_worked_on(true);
        }
        backend.shared.capacity.works_on()
    }

    /// The reply on `connection` has ended, and the answer behind it is to come.
    pub(super) fn await_end(&self, connection: Box<BackendConnection>, now_ms: u64) {
        self.all.borrow_mut().push(Asked::Unanswered {
            connection,
            since_ms: now_ms,
            read_since_ms: None,
            is_behind: true,
        });
    }
}

impl Asked {
    /// Whether it counts as a connection that no process has accepted.
    fn is_counted(&self) -> bool {
        match self {
            Asked::Connecting { .. } => true,
            Asked::Unanswered { is_behind, .. } => !is_behind,
            Asked::Proving { .. } => false,
        }
    }

    /// Whether it is about to be free: its reply has just ended, or it was answered.
    fn is_soon_free(&self, now_ms: u64) -> bool {
        match self {
            Asked::Unanswered {
                is_behind: true,
                since_ms,
                ..
            } => now_ms < since_ms + limits::WORKS_ON_MS,
            Asked::Proving { .. } => true,
            _ => false,
        }
    }

    /// Whether its reply has ended for a while, and its process does not read again.
    fn works_on(&self, now_ms: u64) -> bool {
        match self {
            Asked::Unanswered {
                is_behind: true,
                since_ms,
                ..
            } => now_ms >= since_ms + limits::WORKS_ON_MS,
            _ => false,
        }
    }

    /// Since when it has waited for a process.
    fn waits_since_ms(&self) -> Option<u64> {
        match self {
            Asked::Connecting { since_ms, .. } | Asked::Unanswered { since_ms, .. } => {
                self.is_counted().then_some(*since_ms)
            }
            Asked::Proving { .. } => None,
        }
    }
}

impl Backend {
    /// Whether this application is asked: it speaks FastCGI, keeps connections, and is not known not to answer. A
    /// connection that begins with a PROXY header is of one client only.
    pub(super) fn asks(&self, now_ms: u64) -> bool {
        let capacity = &self.shared.capacity;
        self.host.proxy_protocol == 0
            && capacity.first.get(now_ms) != Answers::No
            && !capacity.closes()
    }

    /// Requests wait: begins another connection that asks, unless enough of them do.
    pub(super) fn ask_for_more(&self, now_ms: u64) {
        let asking = &self.asking;
        if now_ms < asking.not_before_ms.get() {
            return;
        }
        // The processes of connections whose reply has just ended usually take a fraction of a millisecond.
        let is_soon = |asked: &&Asked| asked.is_soon_free(now_ms);
        let soon = asking.all.borrow().iter().filter(is_soon).count();
        if soon >= self.queue.count() {
            return;
        }
        let (mut count, mut latest_ms) = (0, 0);
        for since_ms in asking.all.borrow().iter().filter_map(Asked::waits_since_ms) {
            count += 1;
            latest_ms = latest_ms.max(since_ms);
        }
        // An application that turns out to keep no connections may end when one closes without a request.
        let keeps = self.shared.capacity.behind.get(now_ms) == Answers::Yes;
        let asked_max = match keeps {
            true => limits::ASKED_MAX,
            false => limits::ASKED_MAX.min(self.queue.count() - soon),
        };
        if count > 0 && count < asked_max {
            if now_ms < latest_ms + limits::ASK_MORE_MS {
                return;
            }
        } else if count > 0 && !(keeps && asking.make_way(self, latest_ms, now_ms)) {
            return;
        }
        let Some(permit) = Permit::take(&self.shared) else {
            return;
        };
        self.shared.capacity.begins_to_wait();
        asking.all.borrow_mut().push(Asked::Connecting {
            connecting: self.connect(&[]),
            permit,
            since_ms: now_ms,
        });
    }

    /// Whether the kernel says that a process has accepted this connection.
    fn has_accepted(&self, asked: &Asked) -> bool {
        let Asked::Unanswered { connection, .. } = asked else {
            return false;
        };
        matches!(self.other_end(connection), OtherEnd::Accepted { .. })
    }

    fn other_end(&self, connection: &BackendConnection) -> OtherEnd {
        let kernel = &self.workbench.kernel;
        let seen = kernel.watch_stream(&connection.stream);
        seen.map_or(OtherEnd::Unknown, |watched| kernel.other_end(&watched))
    }

    /// A connection that asks an application which is not asked any more: the next request is written on it.
    pub(super) fn take_asked(&self, now_ms: u64) -> Option<Box<BackendConnection>> {
        let mut all = self.asking.all.borrow_mut();
        if all.is_empty() || self.asks(now_ms) {
            return None;
        }
        let is_usable = |asked: &mut Asked| match asked {
            Asked::Unanswered { is_behind, .. } => !*is_behind,
            Asked::Proving { .. } => true,
            Asked::Connecting { .. } => false,
        };
        match all.extract_if(.., is_usable).next()? {
            Asked::Unanswered { mut connection, .. } => {
                self.shared.capacity.waits_no_more();
                connection.answer_is_late();
                Some(connection)
            }
            Asked::Proving { connection, .. } => Some(connection),
            Asked::Connecting { .. } => None,
        }
    }

    /// Reads the answers that have come. `context` is woken when more can be done.
    pub(super) fn poll_asked(&self, context: &mut Context<'_>) {
        let now_ms = self.now_ms();
        // What is done about a verdict can begin another connection, so the list is not borrowed meanwhile.
        let (mut kept, mut verdicts) = (Vec::new(), Vec::new());
        let mut has_news = false;
        for asked in self.asking.all.take() {
            let did_wait = asked.waits_since_ms().is_some();
            match self.poll_one(asked, now_ms, context) {
                Ok(asked) => {
                    // While a connection proves that it is kept, the next one asks.
                    has_news |= did_wait && asked.waits_since_ms().is_none();
                    kept.push(asked);
                }
                Err(verdict) => verdicts.push(verdict),
            }
        }
        *self.asking.all.borrow_mut() = kept;
        has_news |= !verdicts.is_empty();
        for verdict in verdicts {
            self.take_verdict(verdict, now_ms);
        }
        if has_news {
            self.asking.renewals.set(0);
            self.look_around();
            // What was begun has to be polled once, so that its socket wakes the task.
            context.waker().wake_by_ref();
        }
    }

    fn poll_one(
        &self,
        asked: Asked,
        now_ms: u64,
        context: &mut Context<'_>,
    ) -> Result<Asked, AskedVerdict> {
        let capacity = &self.shared.capacity;
        match asked {
            Asked::Connecting {
                mut connecting,
                permit,
                since_ms,
            } => match connecting.as_mut().poll(context) {
                Poll::Ready(Ok(stream)) => {
                    self.is_connected(now_ms);
                    let mut connection = self.adopt(stream, permit, now_ms);
                    connection.ask_first();
                    self.poll_one(
                        Asked::Unanswered {
                            connection,
                            since_ms,
                            read_since_ms: None,
                            is_behind: false,
                        },
                        now_ms,
                        context,
                    )
                }
                Poll::Ready(Err(error)) => {
                    capacity.waits_no_more();
                    Err(AskedVerdict::Failed(error))
                }
                Poll::Pending => {
                    let time = self.host.connect_timeout;
                    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                    if time_ms > 0 && now_ms.saturating_sub(since_ms) > time_ms {
                        capacity.waits_no_more();
                        return Err(AskedVerdict::Failed(io::ErrorKind::TimedOut.into()));
                    }
                    Ok(Asked::Connecting {
                        connecting,
                        permit,
                        since_ms,
                    })
                }
            },
            Asked::Unanswered {
                mut connection,
                since_ms,
                mut read_since_ms,
                is_behind,
            } => {
                let answered = self.poll_answer(&mut connection, context);
                if answered.is_ready() && !is_behind {
                    capacity.waits_no_more();
                }
                match answered {
                    Poll::Ready(Ok(())) => {
                        self.has_answered(connection, since_ms, is_behind, now_ms, context)
                    }
                    Poll::Ready(Err(error)) => {
                        // A process that closes behind a reply ends, or turns to another connection. One that closes
                        // instead of its first answer does not know the question.
                        let is_telling = !is_behind || error.kind() == io::ErrorKind::InvalidData;
                        let answering = capacity.answering(is_behind);
                        if is_telling && answering.get(now_ms) == Answers::Unknown {
                            answering.no(true, now_ms);
                        }
                        if is_behind {
                            capacity.has_closed_behind_reply(now_ms);
                        }
                        Err(match is_behind {
                            true => AskedVerdict::Ended,
                            false => AskedVerdict::Closed,
                        })
                    }
                    Poll::Pending => {
                        let answering = capacity.answering(is_behind);
                        let answers = answering.get(now_ms);
                        // If it does not answer, another connection has shown that meanwhile.
                        if answers != Answers::Yes
                            && let Some(is_sure) = self.does_not_answer(
                                &connection,
                                since_ms,
                                &mut read_since_ms,
                                now_ms,
                            )
                        {
                            if !is_behind {
                                capacity.waits_no_more();
                            }
                            if answers == Answers::Unknown {
                                // An application that reads ahead has read this question before it is back.
                                answering.no(is_sure && !is_behind, now_ms);
                            }
                            connection.answer_is_late();
                            return Err(AskedVerdict::Free(connection));
                        }
                        Ok(Asked::Unanswered {
                            connection,
                            since_ms,
                            read_since_ms,
                            is_behind,
                        })
                    }
                }
            }
            Asked::Proving {
                mut connection,
                until_ms,
            } => match poll_close(&mut connection.stream, context) {
                Poll::Ready(()) => match connection.into_permit() {
                    Some(permit) => Err(AskedVerdict::FreeElsewhere(permit)),
                    None => Err(AskedVerdict::Closed),
                },
                Poll::Pending if now_ms >= until_ms || capacity.keeps_asked() => {
                    Err(AskedVerdict::Free(connection))
                }
                Poll::Pending => Ok(Asked::Proving {
                    connection,
                    until_ms,
                }),
            },
        }
    }

    fn has_answered(
        &self,
        mut connection: Box<BackendConnection>,
        since_ms: u64,
        is_behind: bool,
        now_ms: u64,
        context: &mut Context<'_>,
    ) -> Result<Asked, AskedVerdict> {
        let capacity = &self.shared.capacity;
        connection.is_taken(now_ms);
        capacity.answering(is_behind).yes();
        if is_behind {
            let is_late = now_ms >= since_ms + limits::WORKS_ON_MS;
            capacity.has_worked_on(is_late);
            self.keeps_connections();
            return Err(AskedVerdict::Free(connection));
        }
        if capacity.keeps_asked() {
            return Err(AskedVerdict::Free(connection));
        }
        let until_ms = now_ms + limits::CLOSES_AFTER_ANSWER_MS;
        let proving = Asked::Proving {
            connection,
            until_ms,
        };
        self.poll_one(proving, now_ms, context)
    }

    fn poll_answer(
        &self,
        connection: &mut BackendConnection,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut sent = 0;
        if let Poll::Ready(Err(error)) = connection.poll_flush(context, &mut sent) {
            return Poll::Ready(Err(error));
        }
        // Behind a reply the answer may have been read together with its end.
        let mut read = 0;
        let mut buffer = [0; 512];
        loop {
            match connection.take_answer(buffer.get(..read).unwrap_or_default()) {
                Ok(true) if connection.input.is_empty() => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Ok(true) | Err(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            }
            match std::task::ready!(connection.stream.poll_read(context, &mut buffer)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => read = count,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether the application, which has never answered, does not answer at all. `Some(true)`: a process has
    /// read the question. `Some(false)`: on another machine, where a busy one looks alike.
    fn does_not_answer(
        &self,
        connection: &BackendConnection,
        since_ms: u64,
        read_since_ms: &mut Option<u64>,
        now_ms: u64,
    ) -> Option<bool> {
        // Most applications have answered by then.
        if now_ms < since_ms + limits::LOOK_MS_MAX {
            return None;
        }
        match self.other_end(connection) {
            OtherEnd::Accepted { unread: 0 } => {
                let since_ms = *read_since_ms.get_or_insert(now_ms);
                (now_ms >= since_ms + limits::ANSWERS_WITHIN_MS).then_some(true)
            }
            OtherEnd::NotAccepted | OtherEnd::Accepted { .. } | OtherEnd::Gone => None,
            OtherEnd::Unknown => {
                (now_ms >= since_ms + limits::ANSWERS_WITHIN_MS_ELSEWHERE).then_some(false)
            }
        }
    }

    fn take_verdict(&self, verdict: AskedVerdict, now_ms: u64) {
        let asking = &self.asking;
        match verdict {
            AskedVerdict::Free(mut connection) => {
                if self.closes(&connection, now_ms) {
                    return;
                }
                if connection.is_reused() {
                    connection.rest(now_ms);
                }
                self.give(Grant::Kept(connection));
            }
            AskedVerdict::FreeElsewhere(permit) => self.give(Grant::Open(permit)),
            AskedVerdict::Ended => {}
            AskedVerdict::Closed => asking.not_before_ms.set(now_ms + limits::ASK_PAUSE_MS),
            // The queue of the unix socket is full: the backend is busy, not down.
            AskedVerdict::Failed(error) if error.kind() == io::ErrorKind::WouldBlock => {
                asking
                    .not_before_ms
                    .set(now_ms + limits::QUEUE_FULL_PAUSE_MS);
            }
            AskedVerdict::Failed(error) => {
                asking.not_before_ms.set(now_ms + limits::ASK_PAUSE_MS);
                self.has_failed(&Failure::of_connect(error), now_ms);
            }
        }
    }
}

/// Ready when the other side has closed the connection, or sent something without a request.
fn poll_close(stream: &mut BackendStream, context: &mut Context<'_>) -> Poll<()> {
    stream.poll_read(context, &mut [0; 1]).map(|_| ())
}

#[cfg(test)]
mod tests;
