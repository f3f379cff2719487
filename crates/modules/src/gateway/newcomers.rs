//! New connections on which a request was written, of backends that do not say when a process has them.
//!
//! The kernel is asked ([`kernel_view`](super::kernel_view)): a process has a connection when it has accepted
//! it and read what was written. While the kernel says that none has, the requests behind wait in this server
//! and not in the backend's queue. The kernel is asked for the first time a millisecond after the request was
//! written, then after twice the time, and at most for a hundredth of the worker's time. A request that is
//! answered before costs nothing. Where the kernel cannot know (the backend is on another machine), nothing is
//! claimed and no request waits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::clock::thread_processor_time;
use petrel_engine::ledger::Nanos;

use super::backend::SharedBackend;
use super::capacity::Capacity;
use super::connection::Workbench;
use super::holders::{HeldConnection, HiddenHolder, HolderSurvey};
use super::kernel_view::{OtherEnd, WatchedConnection};
use super::limits;
use super::pool::Signal;
use super::stream::BackendStream;

/// The new connections of one worker to one backend that no process is known to have taken.
pub(super) struct Newcomers {
    list: RefCell<Vec<Rc<WatchedNewcomer>>>,
    /// How many there may be: one at first, and after one that waited for long. Further requests wait in this
    /// server. Doubled each time all of them were taken when the kernel was asked, or
    /// before.
    most: Cell<usize>,
    /// Connections that are being made for requests.
    opening: Cell<usize>,
    /// Whether the kernel knows about connections to this backend; `None` before it was asked.
    is_seen: Cell<Option<bool>>,
    /// Not before that time the kernel is asked again.
    not_before: Cell<Nanos>,
    shared: Arc<SharedBackend>,
    workbench: Rc<Workbench>,
    /// Wakes the backend's task, which looks at them.
    signal: Arc<Signal>,
}

struct WatchedNewcomer {
    watched: WatchedConnection,
    written_at: Nanos,
    /// Bytes of the request that were sent. A process that has read some of them has the request.
    sent: Cell<u64>,
    /// When the kernel last said that no process had it.
    untaken_at: Cell<Nanos>,
    taken_at: Cell<Option<Nanos>>,
    /// Which requests the processes had when the kernel said so, and when that was: not long before
    /// `untaken_at`.
    survey: Cell<Option<(Nanos, HolderSurvey)>>,
    /// Shows the request as one that a process has.
    holder: RefCell<Option<HiddenHolder>>,
}

/// One new connection. Dropping it ends the watch.
pub(super) struct Newcomer {
    all: Rc<Newcomers>,
    entry: Rc<WatchedNewcomer>,
}

/// A connection that is being made for a request.
pub(super) struct OpeningConnection {
    all: Rc<Newcomers>,
}

impl Newcomers {
    pub(super) fn new(
        shared: &Arc<SharedBackend>,
        workbench: &Rc<Workbench>,
        signal: &Arc<Signal>,
    ) -> Rc<Newcomers> {
        Rc::new(Newcomers {
            list: RefCell::default(),
            most: Cell::new(1),
            opening: Cell::new(0),
            // A TLS handshake needs a process, so such connections are not watched.
            is_seen: Cell::new(shared.tls.as_ref().map(|_| false)),
            not_before: Cell::new(0),
            shared: Arc::clone(shared),
            workbench: Rc::clone(workbench),
            signal: Arc::clone(signal),
        })
    }

    /// A request was written on a new connection. `None`: nothing can be known about it.
    pub(super) fn add(
        self: &Rc<Self>,
        stream: &BackendStream,
        now: Nanos,
        sent: u64,
        holder: Option<&HeldConnection>,
    ) -> Option<Newcomer> {
        if self.is_seen.get() == Some(false) {
            return None;
        }
        let watched = self.workbench.kernel.watch_stream(stream);
        if watched.is_none() && self.is_seen.get().is_none() {
            self.is_seen.set(Some(false));
        }
        let entry = Rc::new(WatchedNewcomer {
            watched: watched?,
            written_at: now,
            sent: Cell::new(sent),
            untaken_at: Cell::new(now),
            taken_at: Cell::new(None),
            survey: Cell::new(None),
            holder: RefCell::new(holder.map(HeldConnection::hide)),
        });
        self.list.borrow_mut().push(Rc::clone(&entry));
        self.shared.capacity.begins_to_wait();
        if self.list.borrow().len() == 1 {
            // The backend's task looks at it, and at those that come meanwhile.
            self.signal.notify.notify_one();
        }
        Some(Newcomer {
            all: Rc::clone(self),
            entry,
        })
    }

    /// The counts of the backend.
    pub(super) fn capacity(&self) -> &Capacity {
        &self.shared.capacity
    }

    /// Whether a request may be written on one more new connection.
    pub(super) fn allow_another(&self) -> bool {
        let has_room = || {
            let is_blind = self.is_seen.get() == Some(false);
            is_blind || self.list.borrow().len() + self.opening.get() < self.most.get()
        };
        if has_room() {
            return true;
        }
        self.look(self.workbench.clock.now());
        has_room()
    }

    /// How many connections are being made for requests.
    pub(super) fn opening(&self) -> u32 {
        u32::try_from(self.opening.get()).unwrap_or(u32::MAX)
    }

    /// A connection is made for a request. It counts until the request is written.
    pub(super) fn begin_opening(self: &Rc<Self>) -> OpeningConnection {
        self.opening.set(self.opening.get() + 1);
        OpeningConnection {
            all: Rc::clone(self),
        }
    }

    /// Since when the oldest one has waited.
    pub(super) fn oldest_since(&self) -> Option<Nanos> {
        self.list.borrow().first().map(|entry| entry.written_at)
    }

    /// How long to wait before the kernel is asked again; `None`: there is nothing to ask.
    pub(super) fn pause(&self, now: Nanos, do_requests_wait: bool) -> Option<Nanos> {
        let age = now.saturating_sub(self.oldest_since()?);
        let most = match do_requests_wait {
            true => limits::LOOK_AROUND_MS,
            false => limits::LOOK_MS_MAX,
        };
        let pause = age.clamp(
            limits::LOOK_MS_MIN * NANOS_PER_MILLI,
            most * NANOS_PER_MILLI,
        );
        Some(pause.max(self.not_before.get().saturating_sub(now)))
    }

    /// [`Self::look`], unless all of them were written so lately that their replies may come at once.
    pub(super) fn look_if_due(&self, now: Nanos) {
        let due_after = limits::LOOK_MS_MIN * NANOS_PER_MILLI;
        let since = self.oldest_since();
        if since.is_some_and(|since| now >= since + due_after) {
            self.look(now);
        }
    }

    /// Asks the kernel, if the worker has the time for it, which of them have been taken.
    pub(super) fn look(&self, now: Nanos) {
        if now < self.not_before.get() || self.list.borrow().is_empty() {
            return;
        }
        let processor_time = thread_processor_time();
        let mut list = self.list.borrow_mut();
        let mut is_first_untaken = true;
        let mut survey = None;
        let mut survey = || *survey.get_or_insert_with(|| self.shared.survey());
        list.retain(|entry| {
            // The kernel's queue is first come, first served: those behind one that waits wait, too.
            if !is_first_untaken {
                entry.is_untaken(now, &mut survey);
                return true;
            }
            let waits = match self.workbench.kernel.other_end(&entry.watched) {
                OtherEnd::NotAccepted => {
                    is_first_untaken = false;
                    true
                }
                // Some applications accept connections before a process or thread of them has time for one.
                OtherEnd::Accepted { unread } => u64::from(unread) >= entry.sent.get(),
                OtherEnd::Gone => false,
                OtherEnd::Unknown => {
                    if self.is_seen.get().is_none() {
                        self.is_seen.set(Some(false));
                        self.shared.is_unseen();
                    }
                    entry.show(entry.written_at);
                    self.shared.capacity.waits_no_more();
                    return false;
                }
            };
            self.is_seen.set(Some(true));
            match waits {
                true => entry.is_untaken(now, &mut survey),
                false => {
                    // While the worker was busy it could not ask.
                    let asked = now.min(self.workbench.clock.news_since(entry.written_at));
                    entry.is_taken(asked.max(entry.untaken_at.get()));
                    self.shared.capacity.is_taken(now / NANOS_PER_MILLI);
                }
            }
            if !waits {
                self.shared.capacity.waits_no_more();
            }
            waits
        });
        if list.is_empty() {
            self.allow_more();
        } else if list.first().is_some_and(|oldest| oldest.is_late(now)) {
            self.most.set(1);
        }
        drop(list);
        let after = self.workbench.clock.now();
        // Other programs may have had the processor meanwhile.
        let used = thread_processor_time().saturating_sub(processor_time);
        let cost = after.saturating_sub(now).min(used);
        self.not_before.set(after + cost * limits::LOOK_COST_FACTOR);
    }

    /// All of them were taken.
    fn allow_more(&self) {
        let most = self.most.get() * 2;
        self.most.set(most.min(limits::NEWCOMERS_MAX));
    }
}

impl WatchedNewcomer {
    fn is_late(&self, now: Nanos) -> bool {
        now.saturating_sub(self.written_at) > limits::STUCK_MS * NANOS_PER_MILLI
    }

    fn is_untaken(&self, at: Nanos, survey: &mut impl FnMut() -> HolderSurvey) {
        self.untaken_at.set(at);
        let Some((surveyed_at, _)) = self.survey.get() else {
            self.survey.set(Some((at, survey())));
            return;
        };
        let age_ms = at.saturating_sub(surveyed_at) / NANOS_PER_MILLI;
        if age_ms < limits::SURVEY_MS {
            return;
        }
        let survey = survey();
        // Between two requests a process has none. The next look shows that it has taken this one.
        if !survey.is_empty() || age_ms >= 2 * limits::SURVEY_MS {
            self.survey.set(Some((at, survey)));
        }
    }

    fn is_taken(&self, at: Nanos) {
        self.taken_at.set(Some(at));
        self.show(at);
    }

    fn show(&self, at: Nanos) {
        if let Some(holder) = self.holder.take() {
            holder.show(at);
        }
    }
}

impl Newcomer {
    /// The reply has begun. Returns until when no process was known to have the connection, and which requests
    /// the processes had meanwhile; `None` if the kernel has not said that.
    pub(super) fn taken(self) -> Option<(Nanos, HolderSurvey)> {
        let Newcomer { all, entry } = &self;
        let is_last = matches!(&all.list.borrow()[..], [last] if Rc::ptr_eq(last, entry));
        if is_last && !entry.is_late(all.workbench.clock.latest()) {
            // It was taken before the kernel was asked.
            all.allow_more();
        }
        let at = entry.taken_at.get().unwrap_or(entry.untaken_at.get());
        entry.show(at);
        let (_, survey) = entry.survey.get()?;
        Some((at, survey))
    }

    /// So many bytes of the request were sent.
    pub(super) fn has_sent(&self, bytes: u64) {
        self.entry.sent.set(bytes);
    }

    /// No client waits for the reply any more, so the request is shown no more.
    pub(super) fn is_left(&self) {
        self.entry.holder.take();
    }
}

impl Drop for OpeningConnection {
    fn drop(&mut self) {
        self.all.opening.set(self.all.opening.get() - 1);
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut list = self.all.list.borrow_mut();
        let before = list.len();
        list.retain(|entry| !Rc::ptr_eq(entry, &self.entry));
        if list.len() < before {
            self.all.shared.capacity.waits_no_more();
        }
        // From now on the connection counts itself.
        if self.entry.taken_at.get().is_some() {
            self.all.shared.capacity.is_given_up();
        }
    }
}

const NANOS_PER_MILLI: u64 = 1_000_000;
