//! `petrel fcgi-stat-accel`: the program of the article about accelerating small files.
//!
//! A web server with one thread waits for the disk when it opens a file whose inode is not in memory. With
//! this program it first sends a FastCGI request, and this program waits instead: a disk thread of the engine
//! ([`pool`]) opens the file, calls stat() on it and reads its beginning ([`look`]). The reply ([`answer`])
//! names the file in X-LIGHTTPD-send-file, and the web server then finds everything in memory. [`target`]
//! determines which file a request is about, [`fcgi_program`] handles connections and records, and a [`slot`]
//! is one request.
//!
//! Knows no HTTP beyond what a web server passes by FastCGI, and never sends a byte of a file.
#![expect(clippy::disallowed_methods, reason = "its threads have no worker")]

mod answer;
mod limits;
mod look;
mod pool;
mod slot;
mod target;

use std::cell::Cell;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::blocking;
use proto::status::Status;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli;
use crate::fcgi_program::limits::REQUESTS_PER_WORKER_MAX;
use crate::fcgi_program::{self, Common, FcgiProgram, Setup, SocketPlace};
use pool::{LookFunction, Looks};
use slot::StatRequest;
use target::without_slash;

/// Why the reply does not name a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The status for the client.
    pub(crate) status: Status,
    /// The line for the log: stage, cause, path. `None` if the fault is the client's alone.
    pub(crate) words: Option<String>,
}

/// Serves until a signal stops the program. Returns the exit code.
pub(crate) fn run(options: &cli::FcgiStatAccel) -> u8 {
    match serve(options) {
        Ok(()) => 0,
        Err(message) => crate::terminal::fail(&format!("fcgi-stat-accel: {message}")),
    }
}

fn serve(arguments: &cli::FcgiStatAccel) -> Result<(), String> {
    let roots = roots(&arguments.document_root)?;
    let read_ahead = arguments.read_ahead;
    let patience = Duration::from_secs(arguments.timeout_s.into());
    let look: Arc<LookFunction> = Arc::new(move |target: &_| look::look(target, read_ahead));
    let threads = blocking::Threads {
        stat: arguments.threads.into(),
        ..blocking::THREADS
    };
    blocking::configure(threads);
    raise_open_files();
    let setup = Setup {
        name: "fcgi-stat-accel",
        place: place(arguments),
        // One worker is enough, because it waits only for sockets, never for a disk.
        workers: 1,
    };
    fcgi_program::serve(setup, move |common| {
        Ok(Rc::new(Accelerator {
            common,
            pool: Rc::new(Looks::new(patience, Arc::clone(&look))),
            roots: roots.clone(),
            patience,
            requests: Cell::new(0),
        }))
    })
}

fn place(arguments: &cli::FcgiStatAccel) -> SocketPlace {
    match (&arguments.socket, arguments.port) {
        (Some(path), _) => SocketPlace::Unix {
            path: path.clone(),
            mode: arguments.mode,
        },
        (None, Some(port)) => SocketPlace::Tcp(SocketAddr::new(arguments.address, port)),
        (None, None) => SocketPlace::Inherited {
            options: "--port or --socket",
        },
    }
}

/// The directories of the command line. Each is listed as it was given and with its links resolved, because
/// web servers may use either path.
fn roots(directories: &[PathBuf]) -> Result<Vec<Box<[u8]>>, String> {
    let mut roots = Vec::new();
    for directory in directories {
        let failed = |error: io::Error| format!("{}: {error}", directory.display());
        let resolved = fs::canonicalize(directory).map_err(failed)?;
        if !resolved.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let given = std::path::absolute(directory).map_err(failed)?;
        let text = |path: &Path| Box::from(without_slash(path.as_os_str().as_bytes()));
        roots.extend([text(&given), text(&resolved)]);
    }
    Ok(roots)
}

/// Raises the limit of open files as far as allowed: each connection and each file being looked at takes one.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If that fails, the program serves fewer connections.
    let _ = setrlimit(Resource::Nofile, most);
}

/// The state of the worker.
struct Accelerator {
    common: Common,
    pool: Rc<Looks>,
    /// The directories below which files must be. If there are none, the DOCUMENT_ROOT of each request
    /// counts.
    roots: Vec<Box<[u8]>>,
    /// How long a request may take.
    patience: Duration,
    requests: Cell<usize>,
}

impl FcgiProgram for Accelerator {
    type FcgiRequest = StatRequest;

    fn common(&self) -> &Common {
        &self.common
    }

    fn begin(self: &Rc<Self>, now: Instant) -> Option<StatRequest> {
        let has_room = self.requests.get() < self.requests_max();
        has_room.then(|| StatRequest::new(self, now + self.patience))
    }

    fn requests_max(&self) -> usize {
        REQUESTS_PER_WORKER_MAX
    }

    fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }
}

impl Refusal {
    /// A refusal with a line for the log.
    fn new(status: Status, words: String) -> Refusal {
        Refusal {
            status,
            words: Some(words),
        }
    }

    /// A refusal without a line for the log, because it is nothing unusual.
    fn silent(status: Status) -> Refusal {
        Refusal {
            status,
            words: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_known_by_both_names() {
        let home = tempfile::tempdir().expect("a directory");
        let home = fs::canonicalize(home.path()).expect("there");
        fs::create_dir(home.join("real")).expect("made");
        std::os::unix::fs::symlink("real", home.join("link")).expect("made");
        let text = |name: &str| Box::from(home.join(name).as_os_str().as_bytes());
        assert_eq!(
            roots(&[home.join("link/")]),
            Ok(vec![text("link"), text("real")])
        );
        assert_eq!(
            roots(&[PathBuf::from("/")]),
            Ok(vec![Box::default(), Box::default()])
        );
        fs::write(home.join("file"), "").expect("written");
        assert!(roots(&[home.join("file")]).is_err());
        assert!(roots(&[home.join("missing")]).is_err());
        assert_eq!(roots(&[]), Ok(Vec::new()));
    }
}
