//! `petrel fcgi-magnet`: Lua scripts by FastCGI, the program that the article calls lua-fastcgi-magnet.
//!
//! It does what that does, step by step, with the step in this folder that it is:
//!
//! 1. creates a global Lua environment ([`worker`]);
//! 2. accepts a request ([`fcgi_program`]);
//! 3. loads the script from the script cache ([`scripts`]);
//! 4. makes an empty environment for the script (`api.lua`);
//! 5. lets its `print` write into the answer ([`api`], [`answer`]);
//! 6. runs it ([`slot`]);
//! 7. goes on with 2.
//!
//! What is different: many connections and, on each, many requests are served at a time by one thread, as
//! scripts may wait; connections are kept; and a script that does not end is stopped.
//!
//! Knows nothing of HTTP but what a web server says by FastCGI, and nothing of configuration files.
#![expect(clippy::disallowed_methods, reason = "its threads have no worker")]

mod answer;
mod api;
mod fields;
mod file_threads;
mod limits;
mod request;
mod scripts;
mod slot;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lua::budget::Budget;
use lua::library::dict::Dicts;

use crate::cli;
use crate::fcgi_program::{self, Setup, SocketPlace};
use worker::Worker;

/// What was asked for, checked.
pub(crate) struct MagnetOptions {
    /// How Lua states are made.
    machine: lua::MachineOptions,
    /// Where scripts must be.
    root: Option<PathBuf>,
    /// The longest body of a request, in bytes.
    body_bytes_max: usize,
    /// For how long a request may take, waiting included.
    request_time_max: Duration,
    /// The dictionaries of `petrel.dict`, which all threads share.
    dicts: Arc<Dicts>,
}

/// Serves until a signal ends it. The answer is the exit code.
pub(crate) fn run(options: &cli::FcgiMagnet) -> u8 {
    match serve(options) {
        Ok(()) => 0,
        Err(message) => crate::terminal::fail(&format!("fcgi-magnet: {message}")),
    }
}

fn serve(arguments: &cli::FcgiMagnet) -> Result<(), String> {
    let options = Arc::new(MagnetOptions::new(arguments));
    let setup = Setup {
        name: "fcgi-magnet",
        place: place(arguments),
        workers: usize::from(arguments.workers),
    };
    fcgi_program::serve(setup, move |common| {
        Worker::new(Arc::clone(&options), common)
    })
}

fn place(arguments: &cli::FcgiMagnet) -> SocketPlace {
    match (&arguments.socket, arguments.listen) {
        (Some(path), _) => SocketPlace::Unix {
            path: path.clone(),
            mode: arguments.mode,
        },
        (None, Some(address)) => SocketPlace::Tcp(address),
        (None, None) => SocketPlace::Inherited {
            options: "--socket or --listen",
        },
    }
}

impl MagnetOptions {
    fn new(arguments: &cli::FcgiMagnet) -> MagnetOptions {
        let mut machine = lua::MachineOptions::default();
        machine.budget = Budget {
            time: Duration::from_millis(arguments.max_run_time_ms.into()),
            growth_bytes: mebibytes(arguments.max_run_memory_mib),
        };
        machine.state_bytes_max = machine.state_bytes_max.max(2 * machine.budget.growth_bytes);
        for allowed in &arguments.allow {
            let library = &mut machine.library;
            *match allowed {
                cli::Allowed::Ffi => &mut library.ffi,
                cli::Allowed::Jit => &mut library.jit,
                cli::Allowed::Debug => &mut library.debug,
                cli::Allowed::OsExit => &mut library.os_exit,
                cli::Allowed::IoPopen => &mut library.io_popen,
            } = true;
        }
        MagnetOptions {
            machine,
            root: arguments.root.clone(),
            body_bytes_max: mebibytes(arguments.max_body_mib),
            request_time_max: Duration::from_secs(arguments.max_request_time_s.into()),
            dicts: Arc::new(Dicts::new(DICT_BYTES)),
        }
    }
}

fn mebibytes(count: u32) -> usize {
    usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_mul(1 << 20)
}

/// Bytes of a dictionary of `petrel.dict`.
const DICT_BYTES: usize = 1 << 20;
