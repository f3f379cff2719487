//! The requests that wait for a connection to a backend, in the order in which they came.
//!
//! A [`Queue`] belongs to one worker. What becomes free is laid down for the request that has waited
//! longest, which is woken and collects it; a request that stops waiting gives back what was laid down for
//! it. Other workers are called by their [`Signal`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::backend::Backend;
use super::connection::BackendConnection;

/// What a request that wants a backend is given.
pub enum Grant {
    /// A connection that was used before.
    Kept(Box<BackendConnection>),
    /// The right to open one; the permit is taken.
    Open,
}

/// How other workers call this one.
#[derive(Debug, Default)]
pub(super) struct Signal {
    /// Requests of this worker that wait.
    pub waiting: AtomicU32,
    /// Idle connections of this worker.
    pub idle: AtomicU32,
    /// Something may have changed.
    pub notify: Notify,
}

/// The requests of one worker that wait.
#[derive(Default)]
pub(crate) struct Queue {
    places: RefCell<VecDeque<QueuedRequest>>,
    next: Cell<u64>,
    /// Places that nothing was laid down for yet.
    empty: Cell<usize>,
}

struct QueuedRequest {
    id: u64,
    waker: Option<Waker>,
    grant: Option<Grant>,
}

/// A place in the queue. Dropping it gives it up.
pub struct QueueTicket {
    pub(super) backend: Rc<Backend>,
    pub(super) place: u64,
}

impl QueueTicket {
    /// What was laid down for this place.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Grant> {
        match self.backend.queue.collect(self.place, context.waker()) {
            Some(grant) => Poll::Ready(grant),
            None => Poll::Pending,
        }
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.backend.leave(self.place);
    }
}

impl Queue {
    /// Whether no request waits in vain.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty.get() == 0
    }

    /// A place at the end.
    pub(crate) fn join(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id + 1);
        self.empty.set(self.empty.get() + 1);
        self.places.borrow_mut().push_back(QueuedRequest {
            id,
            waker: None,
            grant: None,
        });
        id
    }

    /// Lays `grant` down for the request that has waited longest. Gives it back when none waits.
    pub(crate) fn give(&self, grant: Grant) -> Option<Grant> {
        let mut places = self.places.borrow_mut();
        let Some(place) = places.iter_mut().find(|place| place.grant.is_none()) else {
            return Some(grant);
        };
        place.grant = Some(grant);
        self.empty.set(self.empty.get() - 1);
        if let Some(waker) = place.waker.take() {
            waker.wake();
        }
        None
    }

    /// Takes what was laid down for `place`; otherwise `waker` is woken when something is.
    pub(crate) fn collect(&self, place: u64, waker: &Waker) -> Option<Grant> {
        let mut places = self.places.borrow_mut();
        let index = places.iter().position(|known| known.id == place)?;
        let known = places.get_mut(index)?;
        if known.grant.is_none() {
            match &mut known.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            return None;
        }
        places.remove(index)?.grant
    }

    /// Gives `place` up, and back what was laid down for it.
    pub(crate) fn leave(&self, place: u64) -> Option<Grant> {
        let mut places = self.places.borrow_mut();
        let index = places.iter().position(|known| known.id == place)?;
        let left = places.remove(index)?;
        if left.grant.is_none() {
            self.empty.set(self.empty.get() - 1);
        }
        left.grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(grant: Option<Grant>) -> bool {
        matches!(grant, Some(Grant::Open))
    }

    #[test]
    fn who_came_first_gets_it() {
        let queue = Queue::default();
        let (first, second) = (queue.join(), queue.join());
        assert!(queue.give(Grant::Open).is_none());
        assert!(queue.collect(second, Waker::noop()).is_none());
        assert!(is_open(queue.collect(first, Waker::noop())));
        assert!(!queue.is_empty());
        assert!(queue.give(Grant::Open).is_none());
        assert!(queue.is_empty());
        assert!(is_open(queue.collect(second, Waker::noop())));
        assert!(is_open(queue.give(Grant::Open)), "nobody waits any more");
    }

    #[test]
    fn who_leaves_gives_back_what_was_laid_down() {
        let queue = Queue::default();
        let (first, second) = (queue.join(), queue.join());
        assert!(queue.leave(second).is_none());
        assert!(queue.give(Grant::Open).is_none());
        assert!(is_open(queue.leave(first)));
        assert!(queue.is_empty());
        assert!(queue.collect(first, Waker::noop()).is_none());
    }
}
