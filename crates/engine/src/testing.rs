//! For tests of modules: a configuration, and requests walked through its phases without a socket.
//!
//! ```
//! use petrel_engine::testing::Site;
//!
//! let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
//! assert_eq!(site.get("/").status(), 404);
//! ```
//!
//! A [`Site`] is a worker without listeners. Its requests go through the same parser, settings and
//! phase loop as those of a connection; only what the connection adds (Date, Server, framing,
//! time-outs) is missing. The answer keeps its [`Exchange`], so that a test can look at the
//! physical path or the environment. Built with the feature `testing` only.

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
use crate::deadlines::{Alarm, Deadlines};
use crate::exchange::{ConnectionFacts, Exchange, Peer};
use crate::listener::ListenerFacts;
use crate::log::LogRegistry;
use crate::module::ModuleSpec;
use crate::phase::{self, Walked};
use crate::settings::directives::DIRECTIVES;
use crate::settings::{ConnectionScope, ProcessSettings, SettingsTable, loaded_modules};
use crate::shared::Shared;
use crate::worker::{self, Worker};

/// A configuration that requests can be made to.
pub struct Site {
    worker: Rc<Worker>,
    scope: Rc<ConnectionScope>,
    facts: ConnectionFacts,
}

/// What became of a request.
pub struct Answer {
    exchange: Box<Exchange>,
    body: Vec<u8>,
}

impl Site {
    /// A site with the configuration `text`. All of `modules` take part, in this order, unless the
    /// text has server.modules.
    ///
    /// # Panics
    /// With the message of the diagnostic, if the configuration is refused.
    pub fn new(text: &str, modules: &[&'static ModuleSpec]) -> Site {
        Site::try_new(text, modules).unwrap_or_else(|message| panic!("{message}"))
    }

    /// The same. A refused configuration comes back as the lines that would be logged.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn try_new(text: &str, modules: &[&'static ModuleSpec]) -> Result<Site, String> {
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
        Ok(Site::start(config, schema, loaded, process))
    }

    fn start(
        config: Config,
        schema: Schema,
        modules: Vec<&'static ModuleSpec>,
        process: ProcessSettings,
    ) -> Site {
        let logs = Arc::new(LogRegistry::discarding());
        let table = SettingsTable::new(
            Arc::new(config),
            Arc::new(schema),
            modules,
            Arc::clone(&logs),
        );
        let worker = Worker::new(
            table,
            Arc::new(process),
            Arc::new(Shared::new(1, OPEN_FILES_MAX)),
            logs,
        );
        let facts = ConnectionFacts {
            peer: Peer::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 40000))),
            listener: Rc::new(ListenerFacts::new(LISTENER.to_owned(), 80)),
            request_number: 1,
            id: 1,
        };
        let scope = worker
            .settings_table()
            .connection_scope(LISTENER, facts.peer.ip());
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

    /// Makes a GET request over HTTP/1.1 to the host `a.example`.
    ///
    /// # Panics
    /// See [`Site::request`].
    pub fn get(&self, target: &str) -> Answer {
        self.request(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"))
    }

    /// Makes a request: a head, with its empty line, and what follows as the body. Only a head
    /// that the parser accepts gets to the phases.
    ///
    /// # Panics
    /// If the head is refused or incomplete, or a hook waits for something that never happens.
    pub fn request(&self, request: &str) -> Answer {
        let mut exchange = self.exchange();
        let body = self.begin(&mut exchange, request.as_bytes());
        self.walk(&mut exchange, body);
        let body = collect(std::mem::take(&mut exchange.response.body));
        phase::log(&mut exchange);
        Answer { exchange, body }
    }

    /// The same with the waker of the task it is awaited in, for hooks that wait for timers, sockets or
    /// other tasks (`#[tokio::test(flavor = "local")]`). The worker's clock goes on meanwhile, and a hook
    /// is called again when it said by [`Exchange::wake_at`].
    ///
    /// # Panics
    /// As [`Site::request`], and if there is no whole answer after some seconds.
    pub async fn request_async(&self, request: &str) -> Answer {
        let mut exchange = self.exchange();
        let body = self.begin(&mut exchange, request.as_bytes());
        let mut alarm = Alarm::new(&self.worker);
        let mut pulled = Vec::new();
        let answered = async {
            poll_fn(|context| walk_awake(&mut exchange, body, &mut alarm, context)).await;
            poll_fn(|context| work_and_pull(&mut exchange, &mut pulled, &mut alarm, context)).await;
        };
        tokio::select! {
            in_time = tokio::time::timeout(ANSWER_TIME_MAX, answered) => {
                assert!(in_time.is_ok(), "no answer after {ANSWER_TIME_MAX:?}: {request:?}");
            }
            () = worker::tick(Rc::clone(&self.worker)) => unreachable!("the clock never stops"),
        }
        phase::log(&mut exchange);
        Answer {
            exchange,
            body: pulled,
        }
    }

    /// [`Site::get`] in the manner of [`Site::request_async`].
    ///
    /// # Panics
    /// See [`Site::request_async`].
    pub async fn get_async(&self, target: &str) -> Answer {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
        self.request_async(&request).await
    }

    /// A request whose settings are chosen and that has not gone through any phase, for tests of what
    /// hooks call. What follows the head is its body, which is complete.
    ///
    /// # Panics
    /// If the head is refused or incomplete.
    pub fn unanswered(&self, request: &str) -> Box<Exchange> {
        let mut exchange = self.exchange();
        let body = self.begin(&mut exchange, request.as_bytes());
        exchange.request.body.want();
        give_body(&mut exchange, body);
        exchange
    }

    fn exchange(&self) -> Box<Exchange> {
        let mut exchange = Box::new(Exchange::new(Rc::clone(&self.worker), self.facts.clone()));
        exchange.ledger.start(self.worker.clock().now());
        exchange
    }

    /// Reads the head and chooses the settings; answers with the body.
    fn begin<'r>(&self, exchange: &mut Exchange, bytes: &'r [u8]) -> &'r [u8] {
        let process = self.worker.process();
        let request = &mut exchange.request;
        let length = match request.head.parse(bytes, &process.head_options) {
            Ok(Parsed::Complete { length }) => length,
            other => panic!("the request head is refused: {other:?}"),
        };
        request.method = request.head.method();
        request
            .original_target
            .extend_from_slice(request.head.target());
        request
            .url
            .parse(request.head.target(), request.method, &process.url_options)
            .expect("the test's URL is sound");
        exchange.settle(&self.scope);
        &bytes[length..]
    }

    fn walk(&self, exchange: &mut Exchange, body: &[u8]) {
        let patience = Patience::new();
        loop {
            match phase::walk(exchange, &mut patience.context()) {
                Poll::Ready(Walked::Answered) => return,
                Poll::Ready(Walked::NeedBody) => give_body(exchange, body),
                Poll::Pending => patience.wait(),
            }
        }
    }
}

impl Answer {
    /// The status.
    pub fn status(&self) -> u16 {
        self.exchange.response.status.0
    }

    /// The value of the first response field of this name.
    pub fn field(&self, name: &str) -> Option<String> {
        self.exchange.response.get(name).map(text)
    }

    /// The response fields that the modules and the core set, in wire form.
    pub fn fields(&self) -> String {
        text(self.exchange.response.fields().as_bytes())
    }

    /// The body, which is there for HEAD as well if a handler made one.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    #[cfg(test)]
    pub(crate) fn into_exchange(self) -> Box<Exchange> {
        self.exchange
    }

    /// The exchange as it was when the answer was sent.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The same, for functions that change an exchange further.
    pub fn exchange_mut(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}

/// The body comes, all at once, when it is asked for.
fn give_body(exchange: &mut Exchange, body: &[u8]) {
    exchange
        .request
        .body
        .receive(body, &[std::env::temp_dir()], 0);
    exchange.request.body_bytes = body.len() as u64;
    exchange.request.body.complete();
}

fn collect(mut body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    let patience = Patience::new();
    loop {
        match body.poll_piece(&mut patience.context()) {
            Poll::Ready(None) => return bytes,
            Poll::Ready(Some(piece)) => append(&mut bytes, piece.expect("the body can be made")),
            Poll::Pending => patience.wait(),
        }
    }
}

/// How a test without a runtime waits: for other threads, and not for ever.
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

    /// Until somebody wakes, or a moment.
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

/// What a connection does while hooks are at work.
fn walk_awake(
    exchange: &mut Exchange,
    body: &[u8],
    alarm: &mut Alarm,
    context: &mut Context<'_>,
) -> Poll<()> {
    loop {
        match phase::walk(exchange, context) {
            Poll::Ready(Walked::Answered) => return Poll::Ready(()),
            Poll::Ready(Walked::NeedBody) => give_body(exchange, body),
            Poll::Pending => {
                let of_request = &exchange.request.body;
                if !of_request.is_streamed() || of_request.is_complete() {
                    alarm.set(exchange.wake_at_s, context);
                    return Poll::Pending;
                }
                give_body(exchange, body);
            }
        }
    }
}

/// What a connection does while it sends, to the last byte. The body of the answer is empty then.
fn work_and_pull(
    exchange: &mut Exchange,
    pulled: &mut Vec<u8>,
    alarm: &mut Alarm,
    context: &mut Context<'_>,
) -> Poll<()> {
    let body = &mut exchange.response.body;
    loop {
        body.work(&mut exchange.request.body, context);
        match body.poll_piece(context) {
            Poll::Ready(Some(piece)) => {
                append(pulled, piece.expect("the body can be made"));
            }
            Poll::Ready(None) => break,
            Poll::Pending => {
                alarm.set(body.wake_at_s().unwrap_or(Deadlines::NEVER), context);
                return Poll::Pending;
            }
        }
    }
    *body = Body::Empty;
    Poll::Ready(())
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

/// The address requests seem to come in by.
const LISTENER: &str = "127.0.0.1:80";

/// Until a hook or body that waits is asked again, if it does not wake.
const MOMENT: Duration = Duration::from_millis(1);

/// How long an answer that is awaited may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Files a site keeps open.
const OPEN_FILES_MAX: usize = 64;
