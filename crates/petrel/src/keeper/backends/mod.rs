//! Backend programs of the configuration (`bin-path`): started before the server process that
//! connects to them, started again when they end, ended when no server process needs them.
//!
//! There is one listening socket for each program, which all of its processes accept from. It stays
//! open while they come and go, so that connections wait in the kernel instead of being refused. A
//! crash of the server process changes nothing here. Knows nothing of what the programs speak.

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

/// All programs that are being run.
#[derive(Default)]
pub(crate) struct Backends {
    pools: Vec<Pool>,
    opened: u64,
    detached: bool,
}

/// Names one program that is run, also beyond a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolId(u64);

/// Looks at the programs of a configuration without running them.
///
/// # Errors
/// Everything that would keep one from starting, as far as can be seen from outside.
pub(crate) fn check(loaded: &Loaded) -> Result<(), Vec<Diagnostic>> {
    plan::plans(loaded).map(drop)
}

impl Backends {
    /// None yet. `detached`: the process is in the background.
    pub(crate) fn new(detached: bool) -> Backends {
        Backends {
            detached,
            ..Backends::default()
        }
    }

    /// Opens the sockets of all programs of `loaded`. Those that run with the same options already
    /// are shared. The answer is in the order of the programs in the configuration.
    ///
    /// # Errors
    /// Programs that cannot run, and addresses that cannot be had. What was opened goes with the next
    /// [`Backends::retain`].
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

    /// A program whose options have changed gets a unix socket of its own under the same name, as
    /// soon as [`Backends::publish`] says so. An address of TCP exists once: it is shared.
    fn socket_for(&self, plan: &ProgramPlan) -> Result<ProgramSocket, String> {
        let mut before = self.pools.iter().rev();
        let before = before.find(|pool| pool.plan.has_address_of(plan));
        match before {
            Some(pool) if !pool.socket.has_name() => {
                let socket = pool.socket.clone();
                let changed = socket.set_backlog(plan.spec.listen_backlog);
                changed.map_err(|error| format!("{}: {error}", plan.address()))?;
                Ok(socket)
            }
            before => plan.open_socket(before.is_some()),
        }
    }

    /// Starts those of `ids` that do not run yet.
    ///
    /// # Errors
    /// The first program that does not run, in a sentence.
    pub(crate) fn start(&mut self, ids: &[PoolId], logs: &LogRegistry) -> Result<(), String> {
        let detached = self.detached;
        let mut pools = self.pools.iter_mut().filter(|pool| ids.contains(&pool.id));
        pools.try_for_each(|pool| pool.start(logs, detached))
    }

    /// From now on the sockets of `ids` have the names that were asked for.
    pub(crate) fn publish(&mut self, ids: &[PoolId], logs: &LogRegistry) {
        for pool in self.pools.iter_mut().filter(|pool| ids.contains(&pool.id)) {
            if let Err(error) = pool.socket.publish() {
                let address = pool.plan.address();
                logs.error(format_args!(
                    "{address}: the new socket cannot replace the old one: {error}"
                ));
            }
        }
    }

    /// The processes of a program are too few for what is to be done.
    pub(crate) fn overload(&mut self, id: PoolId, now: Instant) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.id == id) {
            pool.overload(now);
        }
    }

    /// Ends the programs for which `is_needed` is false.
    pub(crate) fn retain(&mut self, is_needed: impl Fn(PoolId) -> bool, now: Instant) {
        let pools = self.pools.iter_mut().filter(|pool| pool.is_usable());
        for pool in pools.filter(|pool| !is_needed(pool.id)) {
            pool.end(now);
        }
    }

    /// Does what is due.
    pub(crate) fn tend(&mut self, logs: &LogRegistry, now: Instant) {
        for pool in &mut self.pools {
            pool.tend(logs, self.detached, now);
        }
        self.pools.retain(|pool| !pool.is_gone());
    }

    /// When something is due.
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

    /// Ends all programs and waits for it: for a start that failed.
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
                // Not even SIGKILL ends a process that waits for a disk.
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// How often [`Backends::finish`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);
