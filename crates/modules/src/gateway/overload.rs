//! Reports that a backend program, which the keeper runs, has too few processes.
//!
//! A gateway reports; it does not know where the report goes. The server process sends it to the keeper,
//! which starts another process. Without a listener (in tests, or without a keeper) the report is lost.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use petrel_engine::Exchange;
use petrel_engine::shared::Shared;
use petrel_engine::worker::Worker;

use super::options::{BackendHost, SpawnSpec};

/// Hands every report to `hear`, with the position of the program in `specs`, which is the list of
/// [`spawn_specs`](super::options::spawn_specs). One program is reported at most once in [`PAUSE_MS`]. `hear`
/// is called on the threads of the workers and must not block. Only the first listener of a server counts.
pub fn listen(shared: &Shared, specs: Vec<SpawnSpec>, hear: impl Fn(u16) + Send + Sync + 'static) {
    let listener = Listener::new(specs, Box::new(hear));
    // A server has one configuration: there is no second listener to lose.
    let _ = shared.belonging(Overload::default).listener.set(listener);
}

/// Reports that a request has to wait for a process of `host`.
pub(super) fn report(exchange: &Exchange, host: &BackendHost) {
    let Some(spec) = &host.spawn else { return };
    if let Some(listener) = WorkersView::of(&exchange.worker).0.listener.get() {
        let now_ms = exchange.worker.clock().now_ms();
        listener.report(spec, now_ms);
    }
}

/// The listener for the reports of a server.
#[derive(Default)]
struct Overload {
    listener: OnceLock<Listener>,
}

/// The [`Overload`] object, fetched once for each worker, because what all workers share is behind a lock.
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
    /// When a report about the program was last passed on, in milliseconds of the monotonic clock.
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
        // Each program has an address of its own, so the address identifies it.
        let mut numbered = (0..).zip(&self.programs);
        let found = numbered.find(|(_, known)| known.spec.address == spec.address);
        let Some((number, program)) = found else {
            return;
        };
        let before = program.heard_ms.load(Ordering::Relaxed);
        if now_ms < before.saturating_add(PAUSE_MS) {
            return;
        }
        // If several workers report at the same time, one report is passed on.
        let order = Ordering::Relaxed;
        let exchanged = program
            .heard_ms
            .compare_exchange(before, now_ms, order, order);
        if exchanged.is_ok() {
            (self.hear)(number);
        }
    }
}

/// The shortest time between two reports about one program that are passed on.
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
