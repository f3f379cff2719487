//! What a module is: a name, its directives, and a function that turns settings into hooks.
//!
//! A module never sees a socket. For every distinct set of merged settings a worker calls the module's
//! `configure`, which adds the hooks that have work to do for requests with those settings. If it adds none,
//! the module costs such requests nothing. The phase loop ([`crate::phase`]) calls the hooks and stamps the
//! ledger around them.

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
use crate::ledger::{Nanos, Stage};
use crate::log::LogRegistry;
use crate::metrics::Route;
use crate::settings::Values;
use crate::tls::TlsHost;
use crate::waits::HolderText;

/// A module; `modules/src/lib.rs` has the table of them.
pub struct ModuleSpec {
    /// The name in `server.modules`, as in lighttpd (`mod_expire`).
    pub name: &'static str,
    /// One or two sentences for the directive reference.
    pub doc: &'static str,
    /// When the module is used.
    pub loaded: Loaded,
    /// Every directive that the module reads. The schema is made of all these tables.
    pub directives: &'static [DirectiveSpec],
    /// Turns one set of merged settings into hooks. Start-up calls it for every block of the configuration,
    /// so that `-t` finds wrong values. Each worker calls it again when a request first has these settings.
    /// It must not touch sockets or wait.
    pub configure: fn(&mut Configure<'_>) -> Result<(), Diagnostic>,
}

/// When a module is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Always: it is part of the core, and its directives work without an entry in `server.modules`.
    Always,
    /// Only when `server.modules` lists it.
    Listed,
    /// If `server.modules` lists it, or if `server.compat-module-load` is on (mod_indexfile, mod_dirlisting,
    /// mod_staticfile).
    Compat,
}

/// The argument of `configure`: it reads values and adds hooks.
pub struct Configure<'a> {
    /// The merged values of the settings that are being built.
    pub values: &'a Values<'a>,
    /// Open logs by the name that the configuration gives them. During a check the handles write nowhere.
    pub logs: &'a LogRegistry,
    /// Whether the hooks will serve requests or the values are only checked.
    pub purpose: Purpose,
    pub(crate) handed: &'a Handed,
    /// The module that is being called.
    pub(crate) module: &'static str,
    /// The route of that module.
    pub(crate) route: Route,
    pub(crate) first_hooks: Vec<(Phase, InstalledHook)>,
    pub(crate) early_hooks: Vec<(Phase, InstalledHook)>,
    pub(crate) hooks: Vec<(Phase, InstalledHook)>,
    pub(crate) last_hooks: Vec<(Phase, InstalledHook)>,
    pub(crate) wants_local_address: bool,
    pub(crate) wants_whole_replies: bool,
    pub(crate) unread: Vec<TakesUnread>,
    pub(crate) next_names: Vec<LooksNext>,
    pub(crate) proxy_headers: Option<ProxyHeaders>,
    pub(crate) tls: Option<Rc<TlsHost>>,
}

/// Decides by the peer's address (`None`: a unix socket) whether a connection begins with a header of the
/// PROXY protocol.
pub type ProxyHeaders = Rc<dyn Fn(Option<IpAddr>) -> bool>;

/// Whether another process opens the file for a request; the arguments are the URL path and the physical
/// path.
pub type TakesUnread = Rc<dyn Fn(&[u8], &[u8]) -> bool>;

/// The names that a request will look up next to its physical path, so that one disk job can look them all
/// up.
pub type LooksNext = Rc<dyn Fn(&Exchange) -> Option<NextNames>>;

/// Why `configure` is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To find wrong values. The module must not open or create anything.
    Check,
    /// A worker is about to serve requests with these settings.
    Serve,
    /// A worker is about to make dry runs with these settings. The module adds the same hooks as for serving,
    /// and must not open or create anything.
    DryRun,
}

/// A hook, its module, and the route that its responses count for.
#[derive(Clone)]
pub(crate) struct InstalledHook {
    pub(crate) module: &'static str,
    pub(crate) route: Route,
    pub(crate) hook: Rc<dyn Hook>,
}

impl Configure<'_> {
    /// What this module made before the server process was started. `None`: it made nothing.
    pub fn handed<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.handed.get()
    }

    /// Adds `hook` to `phase`. Hooks of one phase run in the order of `server.modules`.
    pub fn add(&mut self, phase: Phase, hook: impl Hook + 'static) {
        let hook = self.installed(hook);
        self.hooks.push((phase, hook));
    }

    /// Adds `hook` to `phase` before those of [`Configure::add_early`] and [`Configure::add`], wherever its
    /// module stands in `server.modules`. For facts that the other hooks rely on.
    pub fn add_first(&mut self, phase: Phase, hook: impl Hook + 'static) {
        let hook = self.installed(hook);
        self.first_hooks.push((phase, hook));
    }

    /// Adds `hook` to `phase` after the hooks of [`Configure::add_first`], which find out who the client is and
    /// which URL the request is for, and before those of [`Configure::add`].
    pub fn add_early(&mut self, phase: Phase, hook: impl Hook + 'static) {
        let hook = self.installed(hook);
        self.early_hooks.push((phase, hook));
    }

    /// Adds `hook` to `phase` after all hooks of [`Configure::add`]. For rules that must see what the others
    /// have changed.
    pub fn add_last(&mut self, phase: Phase, hook: impl Hook + 'static) {
        let hook = self.installed(hook);
        self.last_hooks.push((phase, hook));
    }

    fn installed(&self, hook: impl Hook + 'static) -> InstalledHook {
        InstalledHook {
            module: self.module,
            route: self.route,
            hook: Rc::new(hook),
        }
    }

    /// Makes [`Exchange::local_address`] known on wildcard listeners, too. This costs a system call for each
    /// connection.
    pub fn want_local_address(&mut self) {
        self.wants_local_address = true;
    }

    /// Where `server.stream-response-body` is not set, backends' replies are completed before the hooks of the phases
    /// store and transform see them: as pieces, with a length, and as an error if they are not whole.
    pub fn want_whole_replies(&mut self) {
        self.wants_whole_replies = true;
    }

    /// Passes regular files for which `takes` is true on to the hooks even if this process may not read them:
    /// the backend opens them itself, as another user. Their kind stays
    /// [`FileKind::Denied`](crate::file_cache::FileKind::Denied), and the response is 403 if no hook answers.
    pub fn take_unread(&mut self, takes: TakesUnread) {
        self.unread.push(takes);
    }

    /// Names the files that a request will look up next if the disk has to be read for its physical path,
    /// such as index files and precompressed siblings. The same disk job looks them up.
    pub fn look_next(&mut self, names: LooksNext) {
        self.next_names.push(names);
    }

    /// Connections whose peer address `from` accepts begin with a header of the PROXY protocol. The worker
    /// decides this when it accepts the connection, so only settings that apply to all its requests count.
    pub fn expect_proxy_headers(&mut self, from: ProxyHeaders) {
        self.proxy_headers = Some(from);
    }

    /// Clients speak TLS. Whether a connection does is decided when it is accepted, by the settings that
    /// apply to all its requests. The name in the ClientHello then selects the host.
    pub fn speak_tls(&mut self, host: Rc<TlsHost>) {
        self.tls = Some(host);
    }
}

/// The phases of an exchange, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Finds out who the client is and which URL the request is for: extforward, rewrite, limit.
    Translate,
    /// Decides by the URL, before any file is looked up: access rules, authentication, redirects, scripts,
    /// setenv, status pages, and gateways that need no file. The order of `server.modules` says what an
    /// access rule guards, as in lighttpd's hook handle_uri_clean.
    Authorize,
    /// Chooses the document root: simple-vhost, evhost.
    DocumentRoot,
    /// Turns the URL path into a physical path: alias.
    Map,
    /// The file was looked up: index files, and rules about the physical path.
    Resolved,
    /// One hook makes the response: static file, directory listing, gateway, Lua.
    Content,
    /// The response is as its hook made it; caches store it. No hook of this phase answers or waits.
    Store,
    /// The response head is complete; hooks change headers and wrap the body.
    Transform,
    /// The last byte was sent, or the client is gone.
    Log,
    /// The head of the request was refused, so that none of the phases before [`Phase::Store`] runs: limit. The settings
    /// may be those outside all conditions. Hooks cannot wait.
    Refused,
}

impl Phase {
    /// How many phases there are.
    pub const COUNT: usize = 10;
}

/// The work of one module in one phase, for one set of settings.
pub trait Hook {
    /// Looks at the exchange and returns what happens next. The worker's thread calls this, so it must not
    /// wait: work that waits belongs into [`Outcome::Later`].
    fn run(&self, exchange: &mut Exchange) -> Outcome;

    /// Called instead of [`Hook::run`] in a dry run ([`crate::exchange::dry_run`]). A hook that reaches other
    /// programs, runs scripts, hashes passwords, counts clients or stores anything does none of that here. It
    /// says by [`Exchange::note`] what it would do.
    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        self.run(exchange)
    }
}

/// What happens after a hook.
pub enum Outcome {
    /// The next hook runs.
    Next,
    /// `exchange.response` is the response: go to the phases store and transform. If its status is 400 or
    /// more and it has no body, error handlers and error pages come first.
    Answer,
    /// Go back to `Phase`, because the hook has changed the request. After [`crate::limits::RESTARTS_MAX`]
    /// restarts of one exchange the response is 500.
    Again(Phase),
    /// The hook has changed the URL: go back to the first phase. This does not count as a restart of
    /// [`Outcome::Again`]; the hook has a limit of its own.
    Rewritten,
    /// Receive the request body into memory, up to `server.max-request-size`, then call the same hook again.
    /// Allowed in every phase before the response. If a [`Pending`] returns this, the hook begins from the
    /// start; a pending hook that wants to continue calls
    /// [`RequestBody::want`](crate::body::RequestBody::want) and waits.
    NeedBody,
    /// The disk has to be read for a file ([`Exchange::look_up`] returned `None`): call the same hook again
    /// when the file is known. A hook must not change anything before it has seen all files that it needs. If
    /// a [`Pending`] returns this, the hook begins from the start.
    Cold,
    /// The hook waits. The phase loop polls this until it is ready with an outcome.
    Later(Box<dyn Pending>),
}

/// The unfinished work of a hook.
pub trait Pending {
    /// Continues the work. Like `Future::poll`, with the exchange as an argument.
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome>;

    /// The stage of the ledger for the wait that has just begun. The phase loop stamps it. `None`: the work
    /// stamps its waits itself, or their time belongs to the phase.
    fn waits_in(&self) -> Option<Stage> {
        None
    }

    /// The client has left while the work waited. Work that stamps its waits itself stamps this one; its time would
    /// belong to the phase otherwise. The work is dropped then.
    fn abandon(&mut self, exchange: &mut Exchange) {
        let _ = exchange;
    }

    /// Says what held the request up in the wait that began at `since`. Called after the poll that ended the
    /// wait, if it was long.
    fn holder(&self, exchange: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        let _ = (exchange, since, text);
    }
}
