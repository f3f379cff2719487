//! Timeouts of connections: each has one deadline in full seconds, which is checked once a second.
//!
//! Setting a deadline is one store, so the request path may do it often. The check reads 4 bytes for each
//! connection: for 10,000 connections it takes some microseconds a second, so there is no timer wheel.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::task::{Context, Waker};

/// The deadlines of all connections of a worker.
#[derive(Default)]
pub(crate) struct Deadlines {
    due_s: RefCell<Vec<Cell<u32>>>,
    /// Which places are those of connections that only wait for their clients to close.
    lingering: RefCell<Vec<Cell<bool>>>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<DeadlineId>>,
}

/// The place of a connection in the table: its index plus one, so that `Option<DeadlineId>` has the same
/// size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlineId(NonZeroU32);

impl DeadlineId {
    fn of(index: usize) -> DeadlineId {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        DeadlineId(number.expect("fewer connections than 2^32"))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl Deadlines {
    /// A second that never comes.
    pub(crate) const NEVER: u32 = u32::MAX;

    /// Adds a place. `waker` is woken when its deadline passes.
    pub(crate) fn insert(&self, waker: Waker) -> DeadlineId {
        if let Some(id) = self.free.borrow_mut().pop() {
            self.wakers.borrow_mut()[id.index()] = Some(waker);
            return id;
        }
        let mut due = self.due_s.borrow_mut();
        due.push(Cell::new(Self::NEVER));
        self.lingering.borrow_mut().push(Cell::new(false));
        self.wakers.borrow_mut().push(Some(waker));
        DeadlineId::of(due.len() - 1)
    }

    /// Replaces the waker of a place.
    fn replace_waker(&self, id: DeadlineId, waker: &Waker) {
        if let Some(Some(known)) = self.wakers.borrow_mut().get_mut(id.index())
            && !known.will_wake(waker)
        {
            known.clone_from(waker);
        }
    }

    /// Frees the place.
    pub(crate) fn remove(&self, id: DeadlineId) {
        self.due_s.borrow()[id.index()].set(Self::NEVER);
        self.lingering.borrow()[id.index()].set(false);
        self.wakers.borrow_mut()[id.index()] = None;
        self.free.borrow_mut().push(id);
    }

    /// Sets the deadline to `due_s` on the worker's coarse clock.
    #[inline]
    pub(crate) fn set(&self, id: DeadlineId, due_s: u32) {
        self.due_s.borrow()[id.index()].set(due_s);
    }

    /// Makes the deadline `due_s`, unless it is earlier.
    pub(crate) fn lower(&self, id: DeadlineId, due_s: u32) {
        let due = &self.due_s.borrow()[id.index()];
        due.set(due.get().min(due_s));
    }

    /// Removes the deadline.
    pub(crate) fn clear(&self, id: DeadlineId) {
        self.set(id, Self::NEVER);
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(&self, id: DeadlineId, now_s: u32) -> bool {
        self.due_s.borrow()[id.index()].get() <= now_s
    }

    /// Wakes all tasks whose deadline has passed.
    pub(crate) fn sweep(&self, now_s: u32) {
        let wakers = self.wakers.borrow();
        for (due, waker) in self.due_s.borrow().iter().zip(wakers.iter()) {
            if due.get() <= now_s
                && let Some(waker) = waker
            {
                waker.wake_by_ref();
            }
        }
    }

    /// The connection has closed its sending side and waits for its client to close, too.
    pub(crate) fn set_lingering(&self, id: DeadlineId) {
        self.lingering.borrow()[id.index()].set(true);
    }

    /// Ends the waits of lingering connections, because new ones have no place.
    pub(crate) fn end_lingering(&self) {
        let wakers = self.wakers.borrow();
        let due = self.due_s.borrow();
        let places = self.lingering.borrow();
        for ((lingers, due), waker) in places.iter().zip(due.iter()).zip(wakers.iter()) {
            if lingers.get()
                && let Some(waker) = waker
            {
                due.set(0);
                waker.wake_by_ref();
            }
        }
    }

    /// Wakes all tasks.
    pub(crate) fn wake_all(&self) {
        self.wakers
            .borrow()
            .iter()
            .flatten()
            .for_each(Waker::wake_by_ref);
    }
}

/// A deadline for an object that its owner polls. It takes a place in the table when it is first set, and
/// wakes the task that polled last.
pub(crate) struct Alarm {
    deadlines: Rc<Deadlines>,
    place: Option<DeadlineId>,
}

impl Alarm {
    /// An alarm without a deadline.
    pub(crate) fn new(deadlines: &Rc<Deadlines>) -> Alarm {
        Alarm {
            deadlines: Rc::clone(deadlines),
            place: None,
        }
    }

    /// Wakes the task of `context` in the second `due_s`, which may be [`Deadlines::NEVER`].
    pub(crate) fn set(&mut self, due_s: u32, context: &Context<'_>) {
        let deadlines = &self.deadlines;
        let place = match self.place {
            None if due_s == Deadlines::NEVER => return,
            None => *self.place.insert(deadlines.insert(context.waker().clone())),
            Some(place) => {
                deadlines.replace_waker(place, context.waker());
                place
            }
        };
        deadlines.set(place, due_s);
    }

    /// Removes the deadline.
    pub(crate) fn clear(&mut self) {
        if let Some(place) = self.place {
            self.deadlines.clear(place);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.deadlines.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_the_late_are_woken() {
        let (deadlines, count) = (Deadlines::default(), Arc::new(Count::default()));
        let early = deadlines.insert(Arc::clone(&count).into());
        let late = deadlines.insert(Arc::clone(&count).into());
        deadlines.set(early, 20);
        deadlines.set(late, 10);
        deadlines.sweep(9);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        deadlines.sweep(10);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(deadlines.is_over(late, 10) && !deadlines.is_over(early, 10));
    }

    #[test]
    fn an_alarm_wakes_the_task_that_polled_last() {
        let site = crate::testing::Site::new("", &[]);
        let [first, last] = [(); 2].map(|()| Arc::new(Count::default()));
        let mut alarm = Alarm::new(&site.worker().deadlines);
        for count in [&first, &last] {
            let waker = Waker::from(Arc::clone(count));
            alarm.set(7, &Context::from_waker(&waker));
        }
        let sweep = || site.worker().deadlines.sweep(7);
        sweep();
        let woken = |count: &Arc<Count>| count.0.load(Ordering::Relaxed);
        assert_eq!((woken(&first), woken(&last)), (0, 1));
        alarm.clear();
        sweep();
        drop(alarm);
        sweep();
        assert_eq!((woken(&first), woken(&last)), (0, 1));
    }

    #[test]
    fn places_are_used_again_without_the_old_deadline() {
        let (deadlines, count) = (Deadlines::default(), Arc::new(Count::default()));
        let first = deadlines.insert(Arc::clone(&count).into());
        deadlines.set(first, 1);
        deadlines.remove(first);
        let second = deadlines.insert(Arc::clone(&count).into());
        assert_eq!(first.0, second.0);
        deadlines.sweep(100);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }
}
