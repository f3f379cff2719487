//! A disk that is as slow and as broken as a test wants: jobs of a thread wait at the gate that it has
//! closed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, Weak};

use rustix::io::Errno;

/// Holds up the writes of the spools of one thread.
#[derive(Default)]
pub(in crate::body::spool) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// The results of the next writes.
    passes: VecDeque<Option<Errno>>,
    is_open: bool,
    arrived: usize,
}

thread_local! {
    static GATE: RefCell<Option<Arc<Gate>>> = const { RefCell::new(None) };
}

/// The gate of this thread.
pub(in crate::body::spool) fn current() -> Option<Arc<Gate>> {
    GATE.with_borrow(Clone::clone)
}

/// Closes the gate of this thread, until what this returns is dropped.
pub(in crate::body::spool) fn close() -> ClosedGate {
    let gate = Arc::new(Gate::default());
    GATE.set(Some(Arc::clone(&gate)));
    ClosedGate(gate)
}

/// A gate that is closed.
pub(in crate::body::spool) struct ClosedGate(Arc<Gate>);

impl ClosedGate {
    /// Lets one write through.
    pub(crate) fn pass_one(&self) {
        self.let_through(None);
    }

    /// Lets one write fail.
    pub(crate) fn fail_one(&self, errno: Errno) {
        self.let_through(Some(errno));
    }

    /// Writes that have come to the gate so far.
    pub(crate) fn arrived(&self) -> usize {
        self.0.state.lock().expect("sound").arrived
    }

    /// The gate, as long as a job is at it or on its way to it.
    pub(crate) fn watch(&self) -> Weak<Gate> {
        Arc::downgrade(&self.0)
    }

    fn let_through(&self, what: Option<Errno>) {
        self.0.state.lock().expect("sound").passes.push_back(what);
        self.0.changed.notify_all();
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        GATE.set(None);
        self.0.state.lock().expect("sound").is_open = true;
        self.0.changed.notify_all();
    }
}

impl Gate {
    /// Waits until the test lets this write through.
    pub(crate) fn pass(&self) -> io::Result<()> {
        let mut state = self.state.lock().expect("sound");
        state.arrived += 1;
        loop {
            if let Some(pass) = state.passes.pop_front() {
                return pass.map_or(Ok(()), |errno| Err(errno.into()));
            }
            if state.is_open {
                return Ok(());
            }
            state = self.changed.wait(state).expect("sound");
        }
    }
}
