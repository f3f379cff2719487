//! For tests of modules: a configuration, and requests that go through its phases without a socket.
//!
//! ```
//! use petrel_engine::testing::Site;
//!
//! let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
//! assert_eq!(site.get("/").status(), 404);
//! ```
//!
//! A [`Site`] is a worker without listeners. Its requests use the same parser, settings and phase loop as
//! those of a connection. Only what the connection adds is missing (Date, Server, framing, timeouts). The
//! answer keeps its [`Exchange`], so that a test can examine the physical path or the environment. The server
//! does not use it, and the linker leaves it out of the program.
#![expect(clippy::disallowed_methods, reason = "a test that hangs ends")]

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use petrel_config::{Config, Diagnostic, LoadOptions, Schema, Style, parse_str, render};
use petrel_proto::http1::Parsed;

use crate::body::{Body, Piece};
use crate::deadlines::Alarm;
use crate::exchange::ListenerFacts;
use crate::exchange::dry_run::DryRun;
use crate::exchange::{ConnectionFacts, Exchange, Peer, Scheme};
use crate::log::LogRegistry;
use crate::module::ModuleSpec;
use crate::offline::{DryRunAnswer, OfflineWorker};
use crate::recorder::SharedMemory;
use crate::settings::directives::DIRECTIVES;
use crate::settings::{ConnectionScope, ProcessSettings, SettingsTable, loaded_modules};
use crate::worker::{self, Worker};

pub use crate::exchange::Interim;
pub use crate::phase::Walked;
pub use crate::run::{AnswerHead, ExchangeRun};

/// A configuration that a test can send requests to.
pub struct Site {
    worker: OfflineWorker,
    scope: Rc<ConnectionScope>,
    facts: ConnectionFacts,
}

/// The response to a request.
pub struct Answer {
    run: ExchangeRun,
    body: Vec<u8>,
}

/// A request that is being answered, driven as a connection would drive it.
struct Driven<'r> {
    run: ExchangeRun,
    /// The body. All of it arrives when a hook asks for it.
    body: &'r [u8],
    is_answered: bool,
    /// The bytes of the response body so far.
    pulled: Vec<u8>,
    alarm: Alarm,
}

impl Site {
    /// A site with the configuration `text`. All of `modules` are loaded in this order, unless the text sets
    /// server.modules.
    ///
    /// # Panics
    /// If the configuration is refused; the message is that of the diagnostic.
    pub fn new(text: &str, modules: &[&'static ModuleSpec]) -> Site {
        Site::try_new(text, modules).unwrap_or_else(|message| panic!("{message}"))
    }

    /// Like [`Site::new`]. If the configuration is refused, returns the lines that would be logged.
    ///
    /// # Errors
    /// The errors of the configuration.
    pub fn try_new(text: &str, modules: &[&'static ModuleSpec]) -> Result<Site, String> {
        Site::with_memory(text, modules, SharedMemory::private())
    }

    /// Like [`Site::try_new`], with counters and records in `memory`.
    ///
    /// # Errors
    /// The errors of the configuration.
    pub fn with_memory(
        text: &str,
        modules: &[&'static ModuleSpec],
        memory: SharedMemory,
    ) -> Result<Site, String> {
        let mut tables = vec![DIRECTIVES];
        tables.extend(modules.iter().map(|module| module.directives));
        let schema = Schema::new(&tables);
        let config = parse_str("test.conf", text, &schema, &LoadOptions::from_process())
            .map_err(|diagnostics| diagnostics.to_string())?;
        let loaded = match config.global().entry("server.modules") {
            Some(_) => loaded_modules(&config, modules),
            None => modules.to_vec(),
        };
        let shown = |diagnostic: Diagnostic| render(&diagnostic, &config.sources, Style::Line);
        SettingsTable::check(&config, &schema, &loaded).map_err(shown)?;
        let process = ProcessSettings::new(&config).map_err(shown)?;
        Ok(Site::start(config, schema, loaded, process, memory))
    }

    fn start(
        config: Config,
        schema: Schema,
        modules: Vec<&'static ModuleSpec>,
        process: ProcessSettings,
        memory: SharedMemory,
    ) -> Site {
        let logs = Arc::new(LogRegistry::discarding());
        let table = SettingsTable::new(
            Arc::new(config),
            Arc::new(schema),
            modules,
            Arc::clone(&logs),
        );
        let worker = OfflineWorker::new(table, Arc::new(process), logs, memory);
        let facts = ConnectionFacts::new(
            Peer::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 40000))),
            Scheme::Http,
            Rc::new(ListenerFacts::new(LISTENER.to_owned(), 80)),
        );
        let scope = facts.scope(worker.settings_table());
        Site {
            worker,
            scope,
            facts,
        }
    }

    /// The worker, for its file cache and clock.
    pub fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Sends a GET request in HTTP/1.1 for the host `a.example`.
    ///
    /// # Panics
    /// See [`Site::request`].
    pub fn get(&self, target: &str) -> Answer {
        self.request(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"))
    }

    /// Sends a request: a head with its empty line, followed by the body. The parser must accept the head.
    ///
    /// # Panics
    /// If the head is refused or incomplete, or a hook waits for something that never happens.
    pub fn request(&self, request: &str) -> Answer {
        let mut driven = self.begin(request.as_bytes());
        let patience = Patience::new();
        while driven.poll(&mut patience.context()).is_pending() {
            patience.wait();
        }
        driven.finish()
    }

    /// Like [`Site::request`], with the waker of the calling task, for hooks that wait for timers, sockets or
    /// other tasks (`#[tokio::test(flavor = "local")]`). The worker's clock runs meanwhile, and a hook is
    /// called again at the time of its [`Exchange::wake_at`].
    ///
    /// # Panics
    /// As for [`Site::request`], and if the response is not complete after some seconds.
    pub async fn request_async(&self, request: &str) -> Answer {
        let mut driven = self.begin(request.as_bytes());
        let answered = poll_fn(|context| driven.poll(context));
        let in_time = self.with_clock(tokio::time::timeout(ANSWER_TIME_MAX, answered));
        assert!(
            in_time.await.is_ok(),
            "no answer after {ANSWER_TIME_MAX:?}: {request:?}"
        );
        driven.finish()
    }

    /// Sends a request as a dry run.
    ///
    /// # Panics
    /// The process has no descriptor left.
    pub fn dry_run(&self, request: &str, dry_run: DryRun) -> DryRunAnswer {
        let answer = self
            .worker
            .dry_run(&self.facts, request.as_bytes(), dry_run);
        answer.expect("a runtime can be made")
    }

    /// Awaits `future` while the worker's clock runs.
    pub async fn with_clock<T>(&self, future: impl Future<Output = T>) -> T {
        tokio::select! {
            output = future => output,
            () = worker::tick(Rc::clone(&self.worker)) => unreachable!("the clock never stops"),
        }
    }

    /// From now on requests come from `connection`.
    pub fn set_connection(&mut self, connection: ConnectionFacts) {
        self.scope = connection.scope(self.worker.settings_table());
        self.facts = connection;
    }

    /// The connection that requests come from, for tests that drive an [`ExchangeRun`] themselves.
    pub fn connection(&self) -> ConnectionFacts {
        self.facts.clone()
    }

    /// [`Site::get`] as in [`Site::request_async`].
    ///
    /// # Panics
    /// See [`Site::request_async`].
    pub async fn get_async(&self, target: &str) -> Answer {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
        self.request_async(&request).await
    }

    /// A request whose settings are chosen but for which no hook has run, for tests of functions that hooks
    /// call. The bytes after the head are its complete body.
    ///
    /// # Panics
    /// If the head is refused or incomplete.
    pub fn unanswered(&self, request: &str) -> ExchangeRun {
        let mut driven = self.begin(request.as_bytes());
        driven.run.request.body.want();
        driven.give_body();
        driven.run
    }

    /// Parses the head and chooses the settings.
    fn begin<'r>(&self, bytes: &'r [u8]) -> Driven<'r> {
        let mut run = ExchangeRun::new(&self.worker, self.facts.clone());
        run.ledger.start(self.worker.clock().now());
        let options = run.head_options();
        let length = match run.request.head.parse(bytes, &options) {
            Ok(Parsed::Complete { length }) => length,
            other => panic!("the request head is refused: {other:?}"),
        };
        run.begin(&self.scope).expect("the test's URL is sound");
        Driven {
            run,
            body: &bytes[length..],
            is_answered: false,
            pulled: Vec::new(),
            alarm: Alarm::new(&self.worker.deadlines),
        }
    }
}

impl Driven<'_> {
    /// Runs until the response is complete.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.is_answered {
            match self.run.poll_answer(context) {
                Poll::Ready(walked) => self.is_answered = walked == Walked::Answered,
                Poll::Pending if self.run.waits_for_client() => {}
                Poll::Pending => return self.wait(context),
            }
            if !self.is_answered {
                self.give_body();
            }
        }
        loop {
            self.run.work(context);
            match self.run.poll_piece(context) {
                Poll::Ready(Some(piece)) => {
                    append(&mut self.pulled, piece.expect("the body can be made"));
                }
                Poll::Ready(None) => break,
                Poll::Pending => return self.wait(context),
            }
        }
        self.run.response.body = Body::Empty;
        Poll::Ready(())
    }

    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.set(self.run.due_s(), context);
        Poll::Pending
    }

    fn give_body(&mut self) {
        self.run.receive(self.body);
        self.run.complete_body();
    }

    fn finish(mut self) -> Answer {
        self.run.finish();
        Answer {
            run: self.run,
            body: self.pulled,
        }
    }
}

impl Answer {
    /// The status code.
    pub fn status(&self) -> u16 {
        self.run.response.status.0
    }

    /// The value of the first response field with this name.
    pub fn field(&self, name: &str) -> Option<String> {
        self.run.response.get(name).map(text)
    }

    /// The response fields that the modules and the core have set, in wire format.
    pub fn fields(&self) -> String {
        text(self.run.response.fields().as_bytes())
    }

    /// The body. For HEAD, too, if a hook has made one.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// What a connection would write besides the fields. It may add some.
    pub fn head(&mut self) -> AnswerHead {
        self.run.answer_head()
    }

    #[cfg(test)]
    pub(crate) fn into_exchange(self) -> ExchangeRun {
        self.run
    }

    /// The exchange after the response was sent.
    pub fn exchange(&self) -> &Exchange {
        &self.run
    }

    /// The exchange, for functions that change it.
    pub fn exchange_mut(&mut self) -> &mut Exchange {
        &mut self.run
    }
}

/// How a test without a runtime waits for other threads, with a limit.
struct Patience {
    waker: Waker,
    ends: Instant,
}

impl Patience {
    fn new() -> Patience {
        Patience {
            waker: Waker::from(Arc::new(Unpark(thread::current()))),
            ends: Instant::now() + ANSWER_TIME_MAX,
        }
    }

    fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }

    /// Waits until it is woken, or for a moment.
    fn wait(&self) {
        assert!(
            Instant::now() < self.ends,
            "no answer after {ANSWER_TIME_MAX:?}"
        );
        thread::park_timeout(MOMENT);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn append(bytes: &mut Vec<u8>, mut piece: Piece) {
    let start = bytes.len();
    bytes.resize(start + usize::try_from(piece.length()).expect("it fits"), 0);
    let mut filled = start;
    while filled < bytes.len() {
        filled += piece
            .read(&mut bytes[filled..])
            .expect("the piece can be read");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The address of the listener that requests come in by.
const LISTENER: &str = "127.0.0.1:80";

/// How long a waiting hook or body is not polled if it does not wake the test.
const MOMENT: Duration = Duration::from_millis(1);

/// The longest time for an awaited response.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
