//! The backend programs of the configuration (`bin-path`). They start before the server process that connects
//! to them, are restarted when they exit, and are stopped when no server process needs them.
//!
//! Each program has one listening socket, which all its processes accept from. The socket stays open when
//! processes exit, so that connections wait in the kernel instead of being refused, unless the program keeps
//! dying. A crash of the server process does not affect the programs. This module does not know which protocols they speak.

mod group;
mod output;
mod plan;
mod pool;
mod process;

use std::thread;
use std::time::{Duration, Instant};

use config::Diagnostic;
use engine::log::LogRegistry;

use crate::load::Loaded;
use crate::spawn::ProgramSocket;
use plan::ProgramPlan;
use pool::Pool;
use process::KILL_GRACE;

/// All running programs.
#[derive(Default)]
pub(crate) struct Backends {
    pools: Vec<Pool>,
    opened: u64,
    detached: bool,
}

/// Identifies a running program, also across reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

/// Checks the programs of a configuration without running them.
///
/// # Errors
/// Everything that would keep one from starting, as far as that can be found out without starting it.
pub(crate) fn check(loaded: &Loaded) -> Result<(), Vec<Diagnostic>> {
    plan::plans(loaded).map(drop)
}

impl Backends {
    /// No programs yet. `detached`: the keeper is in the background.
    pub(crate) fn new(detached: bool) -> Backends {
        Backends {
            detached,
            ..Backends::default()
        }
    }

    /// Opens the sockets of all programs of `loaded`. A program that already runs with the same options is
    /// shared. The result is in the order of the programs in the configuration.
    ///
    /// # Errors
    /// Programs that cannot run, and addresses that cannot be opened. The next [`Backends::retain`] closes
    /// what was opened before the error.
    pub(crate) fn open(&mut self, loaded: &Loaded) -> Result<Vec<PoolId>, Vec<Diagnostic>> {
        let mut ids = Vec::new();
        for plan in plan::plans(loaded)? {
            let known = self
                .pools
                .iter()
                .find(|pool| pool.is_usable() && pool.plan == plan);
            let id = match known {
                Some(pool) => pool.id,
                None => self
                    .open_pool(plan)
                    .map_err(|message| vec![Diagnostic::error_anywhere(message)])?,
            };
            ids.push(id);
        }
        Ok(ids)
    }

    fn open_pool(&mut self, plan: ProgramPlan) -> Result<PoolId, String> {
        let socket = self.socket_for(&plan)?;
        self.opened += 1;
        let id = PoolId(self.opened);
        self.pools.push(Pool::new(id, plan, socket));
        Ok(id)
    }

    /// The socket for a program. If its options have changed, it gets a new unix socket, which takes over the
    /// name when [`Backends::publish`] is called. A TCP address can be bound only once, so its socket is
    /// shared.
    fn socket_for(&self, plan: &ProgramPlan) -> Result<ProgramSocket, String> {
        let mut before = self.pools.iter().rev();
        let before = before.find(|pool| pool.plan.has_address_of(plan));
        match before.map(|pool| pool.socket.as_ref()) {
            Some(Some(socket)) if !socket.has_name() => {
                let socket = socket.clone();
                let changed = socket.set_backlog(plan.spec.listen_backlog);
                changed.map_err(|error| format!("{}: {error}", plan.address()))?;
                Ok(socket)
            }
            before => plan.open_socket(before.is_some()),
        }
    }

    /// Starts those of `ids` that are not running yet.
    ///
    /// # Errors
    /// The first program that does not start, as a sentence.
    pub(crate) fn start(&mut self, ids: &[PoolId], logs: &LogRegistry) -> Result<(), String> {
        let detached = self.detached;
        let mut pools = self.pools.iter_mut().filter(|pool| ids.contains(&pool.id));
        pools.try_for_each(|pool| pool.start(logs, detached))
    }

    /// Gives the sockets of `ids` their final names, so that new connections reach these programs.
    pub(crate) fn publish(&mut self, ids: &[PoolId], logs: &LogRegistry) {
        for pool in self.pools.iter_mut().filter(|pool| ids.contains(&pool.id)) {
            let Some(socket) = &mut pool.socket else {
                continue;
            };
            if let Err(error) = socket.publish() {
                let address = pool.plan.address();
                logs.error(format_args!(
                    "{address}: the new socket cannot replace the old one: {error}"
                ));
            }
        }
    }

    /// A program has too few processes for its load.
    pub(crate) fn overload(&mut self, id: PoolId, now: Instant) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.id == id) {
            pool.overload(now);
        }
    }

    /// Stops the programs for which `is_needed` returns false.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(PoolId) -> bool, now: Instant) {
        let pools = self.pools.iter_mut().filter(|pool| pool.is_usable());
        for pool in pools.filter(|pool| !is_needed(pool.id)) {
            pool.end(now);
        }
    }

    /// Does everything that is due.
    pub(crate) fn tend(&mut self, logs: &LogRegistry, now: Instant) {
        for pool in &mut self.pools {
            pool.tend(logs, self.detached, now);
        }
        self.pools.retain(|pool| !pool.is_gone());
    }

    /// When the next action is due.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.pools
            .iter()
            .filter_map(|pool| pool.deadline(now))
            .min()
    }

    /// Whether no process is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Stops all programs and waits for them to end, after a start that failed.
    pub(crate) fn finish(&mut self, logs: &LogRegistry) {
        self.retain(|_| false, Instant::now());
        let deadline = Instant::now() + KILL_GRACE;
        while !self.pools.is_empty() {
            let now = Instant::now();
            self.tend(logs, now);
            if now > deadline {
                self.pools.iter_mut().for_each(|pool| pool.kill(now));
            }
            if now > deadline + KILL_GRACE {
                // Even SIGKILL does not end a process that waits for a disk.
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// How often [`Backends::finish`] checks the processes.
const LOOK_EVERY: Duration = Duration::from_millis(5);
