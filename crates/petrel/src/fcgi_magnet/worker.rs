//! What the connections of one thread share: the global Lua environment, the script cache, and counts of
//! requests and body bytes.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};
use std::time::Instant;

use lua::budget::proof;
use lua::mlua;
use lua::{GlobalsMaker, Lent, Machine, Progress, Run, ScriptError};
use modules::lua::programs::Programs;
use proto::status::Status;

use super::MagnetOptions;
use super::api::{self, Current};
use super::file_threads::DiskThreads;
use super::limits::BODIES_BYTES_MAX;
use super::request::Request;
use super::scripts::{LoadedScripts, NoScript, ScriptFiles};
use super::slot::ScriptRequest;
use crate::fcgi_program::limits::REQUESTS_PER_WORKER_MAX;
use crate::fcgi_program::{Common, FcgiProgram};

/// The state of one worker thread.
pub(crate) struct Worker {
    options: Arc<MagnetOptions>,
    environment: RefCell<Rc<Environment>>,
    files: ScriptFiles,
    common: Common,
    /// Requests to reuse. They are boxed because requests in use are boxed, too.
    #[expect(clippy::vec_box, reason = "the box itself is what is pooled")]
    idle: RefCell<Vec<Box<Request>>>,
    requests: Cell<usize>,
    body_bytes: Cell<usize>,
}

/// The global Lua environment: a Lua state, and the function in it that makes a script's own environment.
struct Environment {
    machine: Rc<Machine>,
    scripts: LoadedScripts,
    make: GlobalsMaker,
    current: Current,
}

/// How the start of a script went.
pub(crate) enum StartedScript {
    /// The script ended without an error.
    Ended,
    /// The script waits for something.
    Waits(Running),
    /// There is no such script, or it may not be run: the status for the client and the reason for the log.
    Refused(Status, String),
    /// The script failed.
    Failed(ScriptError),
}

/// A script that waits for something.
pub(crate) struct Running {
    run: Run,
    environment: Rc<Environment>,
}

impl Worker {
    /// A worker for the calling thread.
    ///
    /// # Errors
    /// Memory has run out, or the root of the scripts does not exist.
    pub(crate) fn new(options: Arc<MagnetOptions>, common: Common) -> io::Result<Rc<Worker>> {
        if !proof::compiled_loops_stop() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| common.complain(proof::REMEDY));
        }
        let environment =
            Environment::new(&options).map_err(|error| io::Error::other(error.to_string()))?;
        let files = ScriptFiles::new(options.root.as_deref())?;
        Ok(Rc::new(Worker {
            options,
            environment: RefCell::new(Rc::new(environment)),
            files,
            common,
            idle: RefCell::default(),
            requests: Cell::new(0),
            body_bytes: Cell::new(0),
        }))
    }

    /// The command-line options.
    pub(crate) fn options(&self) -> &MagnetOptions {
        &self.options
    }

    /// Runs the script of `request` until it ends or waits.
    pub(crate) fn start(&self, request: &mut Request) -> StartedScript {
        let environment = match self.environment() {
            Ok(environment) => environment,
            Err(error) => {
                let words = format!("a new Lua state: {error}");
                return StartedScript::Refused(Status::SERVICE_UNAVAILABLE, words);
            }
        };
        let path = request.param(b"SCRIPT_FILENAME").unwrap_or_default();
        let found = self.files.find(
            &environment.machine,
            &environment.scripts,
            path,
            Instant::now(),
        );
        let script = match found {
            Ok(script) => script,
            Err(NoScript::Refused(status, words)) => return StartedScript::Refused(status, words),
            Err(NoScript::Broken(error)) => return StartedScript::Failed(error),
        };
        let begun = environment.current.lend(request, || {
            Run::start(&environment.machine, &script, &environment.make)
        });
        match begun {
            Ok(Progress::Ended(_)) => StartedScript::Ended,
            Ok(Progress::Waits(run)) => StartedScript::Waits(Running { run, environment }),
            Err(error) => StartedScript::Failed(error),
        }
    }

    /// Takes an empty request and counts it until it is given back. Returns `None` if there are too many.
    pub(crate) fn take_request(&self) -> Option<Box<Request>> {
        if self.requests.get() >= REQUESTS_PER_WORKER_MAX
            || self.body_bytes.get() >= BODIES_BYTES_MAX
        {
            return None;
        }
        self.requests.set(self.requests.get() + 1);
        let idle = self.idle.borrow_mut().pop();
        Some(idle.unwrap_or_else(|| Box::new(Request::new())))
    }

    /// Takes a request back for reuse.
    pub(crate) fn give_request(&self, mut request: Box<Request>) {
        self.requests.set(self.requests.get() - 1);
        self.count_body(request.body().len(), 0);
        request.clear();
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push(request);
        }
    }

    /// Counts that the length of a body changed.
    pub(crate) fn count_body(&self, before: usize, after: usize) {
        self.body_bytes.set(self.body_bytes.get() - before + after);
    }

    /// The global environment, or a new one if it is worn out. Scripts that are waiting continue in the old
    /// one.
    fn environment(&self) -> mlua::Result<Rc<Environment>> {
        let mut environment = self.environment.borrow_mut();
        if environment.machine.is_worn_out() {
            *environment = Rc::new(Environment::new(&self.options)?);
        }
        Ok(Rc::clone(&environment))
    }
}

impl FcgiProgram for Worker {
    type FcgiRequest = ScriptRequest;

    fn common(&self) -> &Common {
        &self.common
    }

    fn begin(self: &Rc<Self>, now: Instant) -> Option<ScriptRequest> {
        ScriptRequest::new(self, now + self.options.request_time_max)
    }

    fn requests_max(&self) -> usize {
        REQUESTS_PER_WORKER_MAX
    }

    fn is_idle(&self) -> bool {
        self.requests.get() == 0
    }
}

impl Environment {
    fn new(options: &MagnetOptions) -> mlua::Result<Environment> {
        let machine = Machine::new(options.machine.clone())?;
        // The request as a whole has this limit.
        let programs = Programs::alone(options.request_time_max);
        machine.use_threads(Rc::new(DiskThreads { programs }))?;
        let current: Current = Rc::new(Lent::new());
        let make = api::add_to(&machine, &current, &options.dicts)?.into();
        Ok(Environment {
            machine,
            scripts: LoadedScripts::default(),
            make,
            current,
        })
    }
}

impl Running {
    /// Resumes the script if what it waits for has arrived.
    pub(crate) fn poll(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ScriptError>> {
        let run = &mut self.run;
        let lend = self.environment.current.lend(request, || run.poll(context));
        lend.map_ok(drop)
    }
}

/// The most requests that are kept for reuse.
const IDLE_MAX: usize = 64;
