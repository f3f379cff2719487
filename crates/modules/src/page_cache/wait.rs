//! A request that waits for an answer which another request is fetching.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::request_id::RequestId;
use petrel_engine::waits::HolderText;
use tokio::time::{error::Elapsed, timeout};

use super::flight::{Landing, Passenger};
use super::limits;
use super::lookup::{Gate, LookupTurn};

/// Waits in the client's task; then the request is looked up again.
pub(crate) struct WaitingLookup {
    gate: Rc<Gate>,
    landed: Pin<Box<dyn Future<Output = Result<Landing, Elapsed>>>>,
    waits: u8,
    /// The request that fetches.
    pilot: RequestId,
}

impl WaitingLookup {
    /// A request that has waited `waits` times before.
    pub(crate) fn new(gate: &Rc<Gate>, passenger: Passenger, waits: u8) -> WaitingLookup {
        WaitingLookup {
            gate: Rc::clone(gate),
            pilot: passenger.pilot,
            landed: Box::pin(timeout(gate.options.lock_timeout, passenger.landed())),
            waits,
        }
    }
}

impl Pending for WaitingLookup {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Cache)
    }

    fn holder(&self, exchange: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        let path = exchange.waits_path();
        write!(text, "request {} fetched {path} for the cache", self.pilot);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let waits = match ready!(self.landed.as_mut().poll(context)) {
            Ok(Landing::Stored | Landing::Crashed) => self.waits.saturating_add(1),
            // Waiting for the next fetch would be useless, so all waiting requests are sent on at once.
            Ok(Landing::NotStored) | Err(_) => limits::WAITS_MAX,
        };
        let turn = LookupTurn {
            waits,
            ..LookupTurn::default()
        };
        Poll::Ready(self.gate.look(exchange, turn))
    }
}
