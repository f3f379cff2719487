//! `petrel fcgi-magnet`: runs Lua scripts for web servers that speak FastCGI. The article calls this program
//! lua-fastcgi-magnet.
//!
//! It takes the steps of that program. Each step has its place in this folder:
//!
//! 1. create a global Lua environment ([`worker`]);
//! 2. accept a request ([`fcgi_program`]);
//! 3. load the script from the script cache ([`scripts`]);
//! 4. make an empty environment for the script (`api.lua`);
//! 5. make its `print` write into the reply ([`api`], [`answer`]);
//! 6. run it ([`slot`]);
//! 7. continue with 2.
//!
//! Unlike the original, one thread serves many connections, and many requests on each, at the same time,
//! since scripts may wait. Connections are persistent. A script that does not end is stopped.
//!
//! Knows no HTTP beyond what a web server passes by FastCGI, and no configuration files.
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

/// The checked command-line options.
pub(crate) struct MagnetOptions {
    /// How Lua states are made.
    machine: lua::MachineOptions,
    /// The directory below which scripts must be.
    root: Option<PathBuf>,
    /// The longest body of a request, in bytes.
    body_bytes_max: usize,
    /// How long a request may take, its waits included.
    request_time_max: Duration,
    /// The dictionaries of `petrel.dict`, which all threads share.
    dicts: Arc<Dicts>,
}

/// Serves until a signal stops the program. Returns the exit code.
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

/// The size of a dictionary of `petrel.dict`, in bytes.
const DICT_BYTES: usize = 1 << 20;
