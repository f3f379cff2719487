//! A request that waits for an answer which is being fetched for somebody else.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::ledger::Stage;
use petrel_engine::module::{Outcome, Pending};
use tokio::time::Sleep;

use super::flight::{Landing, Passenger};
use super::limits;
use super::lookup::{Gate, Turn};

/// Waits in the client's task; then the request is looked up again.
pub struct Waiting {
    gate: Rc<Gate>,
    passenger: Passenger,
    time_is_up: Pin<Box<Sleep>>,
    waits: u8,
}

impl Waiting {
    /// A request that has waited `waits` times before.
    pub fn new(gate: &Rc<Gate>, passenger: Passenger, waits: u8) -> Waiting {
        Waiting {
            gate: Rc::clone(gate),
            passenger,
            time_is_up: Box::pin(tokio::time::sleep(gate.options.lock_timeout)),
            waits,
        }
    }
}

impl Pending for Waiting {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let waits = match self.passenger.poll(context) {
            Poll::Ready(Landing::Stored | Landing::Crashed) => self.waits.saturating_add(1),
            // It is of no use to wait for the next one: all go at once.
            Poll::Ready(Landing::NotStored) => limits::WAITS_MAX,
            Poll::Pending => match self.time_is_up.as_mut().poll(context) {
                Poll::Ready(()) => limits::WAITS_MAX,
                Poll::Pending => return Poll::Pending,
            },
        };
        exchange.stamp(Stage::BackendQueue);
        let turn = Turn {
            waits,
            ..Turn::default()
        };
        Poll::Ready(self.gate.look(exchange, turn))
    }
}
