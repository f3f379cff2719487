//! The requests of one worker that wait for a connection to a backend, first come, first served.
//!
//! A [`Queue`] belongs to one worker. A connection or permit that becomes free is put in the place of the
//! request that has waited longest. That request's task is woken and collects it; a request that stops
//! waiting returns what was put in its place. Workers wake each other with a [`Signal`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::task::{Context, Poll, Waker};

use petrel_engine::proto::method::Method;
use tokio::sync::Notify;

use super::backend::Backend;
use super::capacity::Permit;
use super::connection::BackendConnection;
use super::failure::Failure;

/// What a request that waits for a backend gets.
pub(super) enum Grant {
    /// A persistent connection.
    Kept(Box<BackendConnection>),
    /// A permit to open a connection.
    Open(Permit),
    /// No connection can be made.
    Failed(Failure),
}

/// How other workers wake this one.
#[derive(Debug, Default)]
pub(super) struct Signal {
    /// How many requests of this worker wait.
    pub waiting: AtomicU32,
    /// How many idle connections this worker has.
    pub idle: AtomicU32,
    /// Wakes the backend's task in this worker, which looks around.
    pub notify: Notify,
}

/// The requests of one worker that wait for one backend.
#[derive(Default)]
pub(crate) struct Queue {
    places: RefCell<VecDeque<QueuedRequest>>,
    next_id: Cell<u64>,
    /// Places that hold no grant yet.
    empty: Cell<usize>,
}

struct QueuedRequest {
    id: u64,
    since_ms: u64,
    method: Method,
    waker: Option<Waker>,
    grant: Option<Grant>,
}

/// A request's place in the queue. Dropping the ticket leaves the queue.
pub(super) struct QueueTicket {
    pub(super) backend: Rc<Backend>,
    pub(super) place: u64,
    pub(super) since_ms: u64,
    /// The request counts as one that had to wait, however short the wait is.
    pub(super) is_backlogged: bool,
}

impl QueueTicket {
    /// Ready with the grant that was put in this place.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Grant> {
        match self.backend.queue.collect(self.place, context.waker()) {
            Some(grant) => Poll::Ready(grant),
            None => Poll::Pending,
        }
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.backend.leave(self);
    }
}

impl Queue {
    /// Whether every request in the queue has its grant.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty.get() == 0
    }

    /// Wakes the requests that have no grant.
    pub(crate) fn wake_all(&self) {
        for place in self.places.borrow_mut().iter_mut() {
            if place.grant.is_none()
                && let Some(waker) = place.waker.take()
            {
                waker.wake();
            }
        }
    }

    /// How many requests have no grant.
    pub(crate) fn count(&self) -> usize {
        self.empty.get()
    }

    /// Since when the request has waited that has waited longest without a grant.
    pub(crate) fn oldest_since_ms(&self) -> Option<u64> {
        self.next(|place| place.since_ms)
    }

    /// The method of that request, which gets the next grant.
    pub(crate) fn next_method(&self) -> Option<Method> {
        self.next(|place| place.method)
    }

    fn next<T>(&self, what: impl FnOnce(&QueuedRequest) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let places = self.places.borrow();
        places.iter().find(|place| place.grant.is_none()).map(what)
    }

    /// Adds a place at the end.
    pub(crate) fn join(&self, now_ms: u64, method: Method) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.empty.set(self.empty.get() + 1);
        self.places.borrow_mut().push_back(QueuedRequest {
            id,
            since_ms: now_ms,
            method,
            waker: None,
            grant: None,
        });
        id
    }

    /// Puts `grant` in the place of the request that has waited longest. Returns it when no request waits.
    #[inline]
    pub(crate) fn give(&self, grant: Grant) -> Option<Grant> {
        match self.is_empty() {
            true => Some(grant),
            false => self.give_first(grant),
        }
    }

    fn give_first(&self, grant: Grant) -> Option<Grant> {
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

    /// Takes the grant out of `place`. If there is none yet, `waker` is woken when one comes.
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

    /// Removes `place`, and returns the grant that was put there but not collected.
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

    fn grant() -> Grant {
        Grant::Failed(Failure::ConnectTimeout)
    }

    fn is_one(grant: Option<Grant>) -> bool {
        matches!(grant, Some(Grant::Failed(_)))
    }

    #[test]
    fn who_came_first_gets_it() {
        let queue = Queue::default();
        let (first, second) = (queue.join(7, Method::Get), queue.join(8, Method::Post));
        assert_eq!(queue.oldest_since_ms(), Some(7));
        assert!(queue.give(grant()).is_none());
        assert_eq!(queue.oldest_since_ms(), Some(8));
        assert_eq!(queue.next_method(), Some(Method::Post));
        assert!(queue.collect(second, Waker::noop()).is_none());
        assert!(is_one(queue.collect(first, Waker::noop())));
        assert!(!queue.is_empty());
        assert!(queue.give(grant()).is_none());
        assert!(queue.is_empty());
        assert!(is_one(queue.collect(second, Waker::noop())));
        assert!(is_one(queue.give(grant())), "no request waits any more");
    }

    #[test]
    fn who_leaves_gives_back_what_was_laid_down() {
        let queue = Queue::default();
        let (first, second) = (queue.join(0, Method::Get), queue.join(0, Method::Get));
        assert!(queue.leave(second).is_none());
        assert!(queue.give(grant()).is_none());
        assert!(is_one(queue.leave(first)));
        assert!(queue.is_empty());
        assert!(queue.collect(first, Waker::noop()).is_none());
    }
}
