//! Backends that Petrel runs and that have too little room, told to whoever runs them.

use petrel_engine::Exchange;

use super::options::Host;

/// A request has to wait for `host`.
pub fn report(exchange: &Exchange, host: &Host) {
    let _ = (exchange, host);
}
