//! One fetch for many requests that wait for it, across workers.
//!
//! The first request that misses gets the [`Pilot`] of a flight and fetches. The others get a [`Passenger`]
//! each and wait until it lands. If a pilot is dropped without having landed, it has crashed: the passengers
//! are woken, and one of them becomes the next pilot. This module does not know what is fetched and has no
//! timeouts: a passenger's caller sets one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use petrel_engine::request_id::RequestId;
use petrel_engine::shared::lock;

use tokio::sync::watch;

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Landing {
    /// The answer is stored.
    Stored,
    /// There is an answer, but it is not stored, so other requests cannot have it.
    NotStored,
    /// There is no answer.
    Crashed,
}

/// All fetches that are under way.
#[derive(Debug)]
pub(crate) struct Flights {
    parts: Box<[Mutex<FlightPart>]>,
}

type FlightPart = HashMap<Arc<[u8]>, Passenger>;

/// The request that fetches.
#[derive(Debug)]
pub(crate) struct Pilot {
    flights: Arc<Flights>,
    landed: watch::Sender<Option<Landing>>,
    key: Arc<[u8]>,
    hash: u64,
    landing: Landing,
}

/// A request that waits for a flight.
#[derive(Clone, Debug)]
pub(crate) struct Passenger {
    landed: watch::Receiver<Option<Landing>>,
    /// The request that fetches.
    pub(crate) pilot: RequestId,
}

/// The role of a request for a key.
#[derive(Debug)]
pub(crate) enum Boarding {
    /// The first request: it has to fetch.
    Pilot(Pilot),
    /// Another request is fetching already.
    Passenger(Passenger),
}

impl Default for Flights {
    fn default() -> Flights {
        let parts = (0..super::limits::SHARDS).map(|_| Mutex::default());
        Flights {
            parts: parts.collect(),
        }
    }
}

impl Flights {
    /// Boards the flight for `key`, as pilot if there is none yet. `hash` is the hash of the key, `by` is the request.
    pub(crate) fn board(self: &Arc<Flights>, key: &[u8], hash: u64, by: RequestId) -> Boarding {
        let mut part = self.part(hash);
        if let Some(flight) = part.get(key) {
            return Boarding::Passenger(flight.clone());
        }
        let key: Arc<[u8]> = key.into();
        let (sender, landed) = watch::channel(None);
        part.insert(Arc::clone(&key), Passenger { landed, pilot: by });
        Boarding::Pilot(Pilot {
            flights: Arc::clone(self),
            landed: sender,
            key,
            hash,
            landing: Landing::Crashed,
        })
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, FlightPart> {
        let at = usize::try_from(hash % super::limits::SHARDS as u64).unwrap_or(0);
        lock(&self.parts[at])
    }
}

impl Pilot {
    /// Ends the flight; the passengers go on.
    pub(crate) fn land(mut self, landing: Landing) {
        self.landing = landing;
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        // Removed from the table first: the requests that are woken must not board this flight again.
        self.flights.part(self.hash).remove(&self.key);
        self.landed.send_replace(Some(self.landing));
    }
}

impl Passenger {
    /// Waits until the flight lands.
    pub(crate) async fn landed(mut self) -> Landing {
        let landed = self.landed.wait_for(Option::is_some).await;
        landed
            .ok()
            .and_then(|landing| *landing)
            .unwrap_or(Landing::Crashed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    fn under_way(flights: &Flights) -> usize {
        flights.parts.iter().map(|part| lock(part).len()).sum()
    }

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pilot(flights: &Arc<Flights>, key: &[u8]) -> Pilot {
        match flights.board(key, 7, RequestId::default()) {
            Boarding::Pilot(pilot) => pilot,
            Boarding::Passenger(_) => panic!("another request fetches already"),
        }
    }

    fn passenger(flights: &Arc<Flights>, key: &[u8]) -> Passenger {
        match flights.board(key, 7, RequestId::default()) {
            Boarding::Passenger(passenger) => passenger,
            Boarding::Pilot(_) => panic!("no request fetches"),
        }
    }

    #[test]
    fn all_who_wait_are_woken_once() {
        let flights = Arc::new(Flights::default());
        let first = pilot(&flights, b"a");
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..3)
            .map(|_| Box::pin(passenger(&flights, b"a").landed()))
            .collect();
        for passenger in &mut waiting {
            assert!(passenger.as_mut().poll(&mut context).is_pending());
            assert!(passenger.as_mut().poll(&mut context).is_pending());
        }
        waiting.pop();
        first.land(Landing::Stored);
        assert_eq!(counting.0.load(Ordering::Relaxed), 2);
        for passenger in &mut waiting {
            let landed = passenger.as_mut().poll(&mut context);
            assert_eq!(landed, Poll::Ready(Landing::Stored));
        }
        assert_eq!(under_way(&flights), 0);
    }

    #[test]
    fn after_a_crash_there_is_a_next_pilot() {
        let flights = Arc::new(Flights::default());
        let first = pilot(&flights, b"a");
        let mut waits = Box::pin(passenger(&flights, b"a").landed());
        drop(first);
        let mut context = Context::from_waker(Waker::noop());
        let landed = waits.as_mut().poll(&mut context);
        assert_eq!(landed, Poll::Ready(Landing::Crashed));
        let second = pilot(&flights, b"a");
        let _other = pilot(&flights, b"b");
        second.land(Landing::NotStored);
        assert_eq!(under_way(&flights), 1);
    }
}
