//! One fetch for many waiters, across workers.
//!
//! Whoever misses first gets the [`Pilot`] of a flight and fetches; the others get the [`Flight`] and wait
//! until it lands. A pilot that is dropped without a word has crashed: those who wait are woken, and one
//! of them is the next pilot. Knows nothing of what is fetched, and no time: who waits brings a limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What became of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The answer is stored.
    Stored,
    /// There is an answer that others cannot have.
    NotStored,
    /// There is none.
    Crashed,
}

/// All fetches under way.
#[derive(Debug)]
pub struct Flights {
    parts: Box<[Part]>,
}

type Part = Mutex<HashMap<Arc<[u8]>, Arc<Flight>>>;

/// One fetch, as those see it who wait for it.
#[derive(Debug, Default)]
pub struct Flight {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    landing: Option<Landing>,
    /// Those who wait; a place is empty when its owner has left.
    waiting: Vec<Option<Waker>>,
}

/// The one who fetches.
#[derive(Debug)]
pub struct Pilot {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    key: Arc<[u8]>,
    hash: u64,
    landing: Landing,
}

/// Who waits for a flight; leaves its place when dropped.
#[derive(Debug)]
pub struct Passenger {
    flight: Arc<Flight>,
    place: Option<usize>,
}

/// What one is for a key.
#[derive(Debug)]
pub enum Boarding {
    /// The first: to fetch.
    Pilot(Pilot),
    /// Somebody fetches already.
    Passenger(Passenger),
}

impl Default for Flights {
    fn default() -> Flights {
        let parts = (0..super::limits::SHARDS).map(|_| Part::default());
        Flights {
            parts: parts.collect(),
        }
    }
}

impl Flights {
    /// Begins to fetch `key`, or to wait for who does. `hash` is that of the key, the same for all.
    pub fn board(self: &Arc<Flights>, key: &[u8], hash: u64) -> Boarding {
        let mut part = self.part(hash);
        if let Some(flight) = part.get(key) {
            return Boarding::Passenger(Passenger {
                flight: Arc::clone(flight),
                place: None,
            });
        }
        let key: Arc<[u8]> = key.into();
        let flight = Arc::new(Flight::default());
        part.insert(Arc::clone(&key), Arc::clone(&flight));
        Boarding::Pilot(Pilot {
            flights: Arc::clone(self),
            flight,
            key,
            hash,
            landing: Landing::Crashed,
        })
    }

    /// How many fetches are under way.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.parts.iter().map(|part| lock(part).len()).sum()
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, HashMap<Arc<[u8]>, Arc<Flight>>> {
        let at = usize::try_from(hash % super::limits::SHARDS as u64).unwrap_or(0);
        lock(&self.parts[at])
    }

    fn end(&self, pilot: &Pilot) {
        self.part(pilot.hash).remove(&*pilot.key);
    }
}

impl Pilot {
    /// Lands: those who wait go on.
    pub fn land(mut self, landing: Landing) {
        self.landing = landing;
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        // Off the board first: who is woken must not meet this flight again.
        self.flights.end(self);
        let mut state = lock(&self.flight.state);
        state.landing = Some(self.landing);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Passenger {
    /// Waits until the flight lands.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Landing> {
        let mut state = lock(&self.flight.state);
        if let Some(landing) = state.landing {
            return Poll::Ready(landing);
        }
        let place = match self.place {
            Some(place) => place,
            None => {
                state.waiting.push(None);
                state.waiting.len() - 1
            }
        };
        self.place = Some(place);
        if let Some(waker) = state.waiting.get_mut(place) {
            match waker {
                Some(known) => known.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl Drop for Passenger {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if let Some(waker) = lock(&self.flight.state).waiting.get_mut(place) {
            *waker = None;
        }
    }
}

/// A panic of somebody else leaves these tables whole: each change is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pilot(flights: &Arc<Flights>, key: &[u8]) -> Pilot {
        match flights.board(key, 7) {
            Boarding::Pilot(pilot) => pilot,
            Boarding::Passenger(_) => panic!("somebody fetches already"),
        }
    }

    fn passenger(flights: &Arc<Flights>, key: &[u8]) -> Passenger {
        match flights.board(key, 7) {
            Boarding::Passenger(passenger) => passenger,
            Boarding::Pilot(_) => panic!("nobody fetches"),
        }
    }

    #[test]
    fn all_who_wait_are_woken_once() {
        let flights = Arc::new(Flights::default());
        let first = pilot(&flights, b"a");
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..3).map(|_| passenger(&flights, b"a")).collect();
        for passenger in &mut waiting {
            assert!(passenger.poll(&mut context).is_pending());
            assert!(passenger.poll(&mut context).is_pending());
        }
        waiting.pop();
        first.land(Landing::Stored);
        assert_eq!(counting.0.load(Ordering::Relaxed), 2);
        for passenger in &mut waiting {
            assert_eq!(passenger.poll(&mut context), Poll::Ready(Landing::Stored));
        }
        assert_eq!(flights.count(), 0);
    }

    #[test]
    fn after_a_crash_there_is_a_next_pilot() {
        let flights = Arc::new(Flights::default());
        let first = pilot(&flights, b"a");
        let mut waits = passenger(&flights, b"a");
        drop(first);
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(waits.poll(&mut context), Poll::Ready(Landing::Crashed));
        let second = pilot(&flights, b"a");
        let _other = pilot(&flights, b"b");
        second.land(Landing::NotStored);
        assert_eq!(flights.count(), 1);
    }
}
