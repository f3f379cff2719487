//! What a module is: a name, its directives, and a function that turns settings into hooks.
//!
//! A module never sees a socket. It is asked once for every distinct set of merged settings
//! (`configure`), and answers with the hooks that have work to do for requests with those
//! settings; a module that answers with none costs such a request nothing. The phase loop
//! ([`crate::phase`]) calls the hooks and stamps the clock around them.

use std::any::Any;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use petrel_config::Diagnostic;
use petrel_config::schema::DirectiveSpec;

use crate::exchange::Exchange;
use crate::file_cache::NextNames;
use crate::handed::Handed;
use crate::log::LogRegistry;
use crate::settings::Values;
use crate::tls::TlsHost;

/// One module: an entry of the table in `modules/src/lib.rs`.
pub struct ModuleSpec {
    /// lighttpd's name, as it stands in `server.modules` (`mod_expire`).
    pub name: &'static str,
    /// One or two sentences for the directive reference.
    pub doc: &'static str,
    /// When the module takes part.
    pub loaded: Loaded,
    /// Every directive it reads. The schema is the sum of these tables.
    pub directives: &'static [DirectiveSpec],
    /// Turns one set of merged settings into hooks. Called at start-up for every block of the
    /// configuration (so that a wrong value is found by `-t`), and again by each worker the
    /// first time a request has these settings. Must not touch sockets or wait.
    pub configure: fn(&mut Configure<'_>) -> Result<(), Diagnostic>,
}

/// When a module takes part in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Part of the core: its directives work without naming it.
    Always,
    /// Only when `server.modules` lists it.
    Listed,
    /// As `Listed`, and also unlisted as long as `server.compat-module-load` is on
    /// (mod_indexfile, mod_dirlisting, mod_staticfile).
    Compat,
}

/// What `configure` works with: values in, hooks out.
pub struct Configure<'a> {
    /// The merged values of the settings being built.
    pub values: &'a Values<'a>,
    /// Logs by the name the configuration gives them. Empty handles during a check.
    pub logs: &'a LogRegistry,
    /// Whether the hooks will be used, or the values are only being checked.
    pub purpose: Purpose,
    pub(crate) handed: &'a Handed,
    pub(crate) first_hooks: Vec<(Phase, Rc<dyn Hook>)>,
    pub(crate) early_hooks: Vec<(Phase, Rc<dyn Hook>)>,
    pub(crate) hooks: Vec<(Phase, Rc<dyn Hook>)>,
    pub(crate) last_hooks: Vec<(Phase, Rc<dyn Hook>)>,
    pub(crate) wants_local_address: bool,
    pub(crate) unread: Vec<TakesUnread>,
    pub(crate) next_names: Vec<LooksNext>,
    pub(crate) proxy_headers: Option<ProxyHeaders>,
    pub(crate) tls: Option<Rc<TlsHost>>,
}

/// Whose connections begin with a header of the PROXY protocol: those from which addresses (`None` is
/// a unix socket).
pub type ProxyHeaders = Rc<dyn Fn(Option<IpAddr>) -> bool>;

/// Whether another process opens the file that a URL path (first) leads to (second).
pub type TakesUnread = Rc<dyn Fn(&[u8], &[u8]) -> bool>;

/// The names that will be looked up behind the physical path, for one job of the disk.
pub type LooksNext = Rc<dyn Fn(&Exchange) -> Option<NextNames>>;

/// Why `configure` is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To find wrong values. Open nothing, create nothing.
    Check,
    /// A worker is about to serve requests with these settings.
    Serve,
}

impl Configure<'_> {
    /// What the module has made before the server process was started, if it has.
    pub fn handed<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.handed.get()
    }

    /// Lets `hook` run in `phase`. Hooks of one phase run in the order of `server.modules`.
    pub fn add(&mut self, phase: Phase, hook: impl Hook + 'static) {
        self.hooks.push((phase, Rc::new(hook)));
    }

    /// Lets `hook` run in `phase` before all others, wherever its module stands in `server.modules`:
    /// for what others rely on.
    pub fn add_first(&mut self, phase: Phase, hook: impl Hook + 'static) {
        self.first_hooks.push((phase, Rc::new(hook)));
    }

    /// Lets `hook` run in `phase` behind the hooks given to [`Configure::add_first`], which say who the client is, and before
    /// those given to [`Configure::add`], wherever its module stands in `server.modules`.
    pub fn add_early(&mut self, phase: Phase, hook: impl Hook + 'static) {
        self.early_hooks.push((phase, Rc::new(hook)));
    }

    /// Lets `hook` run in `phase` behind all hooks given to [`Configure::add`], wherever its module
    /// stands in `server.modules`: for rules that must see what the others have made.
    pub fn add_last(&mut self, phase: Phase, hook: impl Hook + 'static) {
        self.last_hooks.push((phase, Rc::new(hook)));
    }

    /// Makes [`Exchange::local_address`] known to hooks on wildcard listeners as well. The kernel is
    /// asked for it, once a connection, only if a module wants it.
    pub fn want_local_address(&mut self) {
        self.wants_local_address = true;
    }

    /// Has regular files that `takes` says so of go on to the hooks also when this process may not read
    /// them: who answers opens them itself, as another user. They stay
    /// [`FileKind::Denied`](crate::file_cache::FileKind::Denied), and 403 if no hook answers.
    pub fn take_unread(&mut self, takes: TakesUnread) {
        self.unread.push(takes);
    }

    /// Says which names a request will look up next when its physical path has to be asked for on the disk:
    /// index files, precompressed siblings. They are looked up in the same job.
    pub fn look_next(&mut self, names: LooksNext) {
        self.next_names.push(names);
    }

    /// Has connections begin with a header of the PROXY protocol if their peer's address is one of
    /// `from`. Counts when a connection is accepted, so only what is set for all its requests does.
    pub fn expect_proxy_headers(&mut self, from: ProxyHeaders) {
        self.proxy_headers = Some(from);
    }

    /// Has clients speak TLS. Whether a connection does is decided when it is accepted, by what is set for all its
    /// requests; which host it is begun for, by the name in its ClientHello.
    pub fn speak_tls(&mut self, host: Rc<TlsHost>) {
        self.tls = Some(host);
    }
}

/// The phases of an exchange, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The URL is known and nothing has been looked up: redirect, rewrite, Lua.
    Translate,
    /// May this client have this URL? `url.access-deny`, authentication.
    Authorize,
    /// Choose the document root: simple-vhost, evhost.
    DocumentRoot,
    /// Turn the URL path into a physical path: alias.
    Map,
    /// The file is looked up. Index files, and rules about the physical path.
    Resolved,
    /// Exactly one hook answers: static file, directory listing, gateway, Lua.
    Content,
    /// The answer is as its maker gave it: caches store it. No hook of this phase answers or waits.
    Store,
    /// The response head is complete: change headers, wrap the body.
    Transform,
    /// The last byte is sent, or the client has gone.
    Log,
}

impl Phase {
    /// How many phases there are.
    pub const COUNT: usize = 9;
}

/// One module's work in one phase, for one set of settings.
pub trait Hook {
    /// Looks at the exchange and says how it goes on. Called on the worker's thread: anything
    /// that could wait belongs into [`Outcome::Later`].
    fn run(&self, exchange: &mut Exchange) -> Outcome;
}

/// What a hook says.
pub enum Outcome {
    /// Nothing for me (any more): the next hook.
    Next,
    /// `exchange.response` is the answer: on to the phases store and transform. A status of 400 or
    /// more with no body goes to error handlers and error pages first.
    Answer,
    /// Go back to `Phase` with changed request data, at most
    /// [`crate::limits::RESTARTS_MAX`] times an exchange; then the answer is 500.
    Again(Phase),
    /// The URL is another one: go back to the first phase. Does not count among the restarts of
    /// [`Outcome::Again`]; the hook has a limit of its own.
    Rewritten,
    /// The request body is needed first: receive it into memory, as much as
    /// `server.max-request-size` allows, then call the same hook again. In any phase before the answer.
    /// Said by a [`Pending`], it begins the hook anew; one that wants to go on where it is calls
    /// [`RequestBody::want`](crate::body::RequestBody::want) and waits.
    NeedBody,
    /// A file that was asked for is on the disk ([`Exchange::look_up`] said `None`): call the same hook
    /// again when it is known. A hook changes nothing before it has seen all the files it needs. Said by a
    /// [`Pending`], it begins the hook anew.
    Cold,
    /// Waits: polled until it is ready, then its outcome counts.
    Later(Box<dyn Pending>),
}

/// Work of a hook that could not be finished at once.
pub trait Pending {
    /// Goes on with the work. Same contract as `Future::poll`, with the exchange lent.
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome>;
}
