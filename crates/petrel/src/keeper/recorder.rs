//! The keeper's side of the recorder: the memory in which server processes leave counters and records.
//!
//! The keeper makes the memory and hands it on. It never reads what is in there.

use std::os::fd::OwnedFd;

use engine::log::LogRegistry;
use engine::recorder::SharedMemory;
use engine::settings::ProcessSettings;

use super::process::ServerProcess;

/// The memory, and the descriptor by which other programs can read it.
pub(super) struct KeptRecorder {
    memory: SharedMemory,
    #[expect(dead_code, reason = "a command will ask for it")]
    descriptor: Option<OwnedFd>,
}

impl KeptRecorder {
    /// Makes the memory for a server with the settings `process`. If that fails, counters and records end with each
    /// server process.
    pub(super) fn open(process: &ProcessSettings, logs: &LogRegistry) -> KeptRecorder {
        match SharedMemory::create(process.workers.get() * RING_BYTES) {
            Ok((memory, descriptor)) => KeptRecorder {
                memory,
                descriptor: Some(descriptor),
            },
            Err(error) => {
                logs.error(format_args!(
                    "recorder: no shared memory ({error}); counters and records end with each server process"
                ));
                KeptRecorder {
                    memory: SharedMemory::private(),
                    descriptor: None,
                }
            }
        }
    }

    /// The memory for a server process that is forked while `others` are there.
    pub(super) fn memory_beside(&self, others: &[ServerProcess]) -> SharedMemory {
        let ids = others.iter().map(|process| process.id().unsigned_abs());
        self.memory.beside(ids.collect())
    }
}

/// For each worker.
const RING_BYTES: usize = 1 << 20;
