//! Backends that Petrel runs and that have too little room, told to the keeper that runs them.
//!
//! The gateway reports; it does not know who hears it. The server process hands reports on to its
//! keeper, which starts another process. Without a listener, in tests and without a keeper, a report
//! is lost.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use petrel_engine::Exchange;
use petrel_engine::shared::Shared;
use petrel_engine::worker::Worker;

use super::options::{BackendHost, SpawnSpec};

/// Hands every report to `hear`, with the number of the program among `specs`: those of
/// [`spawn_specs`](super::options::spawn_specs), in their order. One program is heard of at most once
/// in [`PAUSE_MS`]. `hear` is called on the threads of the workers and must not wait. Only the first
/// listener of a server counts.
pub fn listen(shared: &Shared, specs: Vec<SpawnSpec>, hear: impl Fn(u16) + Send + Sync + 'static) {
    let listener = Listener::new(specs, Box::new(hear));
    // A server has one configuration: there is no second listener to lose.
    let _ = shared.belonging(Overload::default).listener.set(listener);
}

/// A request has to wait for `host`.
pub(super) fn report(exchange: &Exchange, host: &BackendHost) {
    let Some(spec) = &host.spawn else { return };
    if let Some(listener) = WorkersView::of(&exchange.worker).0.listener.get() {
        let now_ms = exchange.worker.clock().now_ms();
        listener.report(spec, now_ms);
    }
}

/// Who listens to the reports of a server.
#[derive(Default)]
struct Overload {
    listener: OnceLock<Listener>,
}

/// The same, found once for each worker: what all share is behind a lock.
struct WorkersView(Arc<Overload>);

impl WorkersView {
    fn of(worker: &Rc<Worker>) -> Rc<WorkersView> {
        worker.belonging(|| WorkersView(worker.shared().belonging(Overload::default)))
    }
}

struct Listener {
    programs: Vec<ProgramReports>,
    hear: Box<dyn Fn(u16) + Send + Sync>,
}

struct ProgramReports {
    spec: SpawnSpec,
    /// When it was last heard of, in milliseconds of the monotonic clock.
    heard_ms: AtomicU64,
}

impl Listener {
    fn new(specs: Vec<SpawnSpec>, hear: Box<dyn Fn(u16) + Send + Sync>) -> Listener {
        let programs = specs.into_iter().map(|spec| ProgramReports {
            spec,
            heard_ms: AtomicU64::new(0),
        });
        Listener {
            programs: programs.collect(),
            hear,
        }
    }

    fn report(&self, spec: &SpawnSpec, now_ms: u64) {
        // No two programs have the same address.
        let mut numbered = (0..).zip(&self.programs);
        let found = numbered.find(|(_, known)| known.spec.address == spec.address);
        let Some((number, program)) = found else {
            return;
        };
        let before = program.heard_ms.load(Ordering::Relaxed);
        if now_ms < before.saturating_add(PAUSE_MS) {
            return;
        }
        // Of workers that report together one is heard.
        let order = Ordering::Relaxed;
        let exchanged = program
            .heard_ms
            .compare_exchange(before, now_ms, order, order);
        if exchanged.is_ok() {
            (self.hear)(number);
        }
    }
}

/// The shortest time between two reports on one program that are heard.
const PAUSE_MS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::options::HostAddress;
    use std::sync::Mutex;
    use std::time::Duration;

    fn spec(port: u16) -> SpawnSpec {
        SpawnSpec {
            command: vec!["/app".to_owned()],
            address: HostAddress::Tcp("127.0.0.1".to_owned(), port),
            environment: Vec::new(),
            copied_environment: None,
            processes_min: 1,
            processes_max: 2,
            idle_timeout: Duration::from_secs(60),
            kill_signal: 15,
            listen_backlog: 1024,
            user: None,
            group: None,
        }
    }

    #[test]
    fn each_program_is_heard_of_once_in_a_pause() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&heard);
        let hear = move |number| notes.lock().expect("no panic").push(number);
        let listener = Listener::new(vec![spec(1), spec(2)], Box::new(hear));
        for (port, now_ms) in [(1, 100), (1, 199), (2, 199), (1, 200), (2, 201), (7, 900)] {
            listener.report(&spec(port), now_ms);
        }
        assert_eq!(*heard.lock().expect("no panic"), [0, 1, 0]);
    }
}
