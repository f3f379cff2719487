//! One request and its response on their way through the phases.
//!
//! When the first byte of a request has arrived, the connection takes an exchange from the worker's pool;
//! after the response it gives it back. The buffers in it stay allocated, so that a warm request allocates
//! nothing. Hooks get the exchange by `&mut` and change the parts that are theirs: the URL, the physical
//! path, the response.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use petrel_config::{BlockId, Captures, Subject};
use petrel_proto::header_block::HeaderBlock;
use petrel_proto::method::Method;
use petrel_proto::proxy_protocol::Extras;
use petrel_proto::request_head::{BodyFraming, HeadOptions, KnownField, RequestHead, Version};
use petrel_proto::status::Status;
use petrel_proto::url::Url;
use petrel_sys::pooled::GiveBack;

use crate::body::{ReadAhead, RequestBody};
use crate::cause::ErrorCause;
use crate::cold_files::ColdFiles;
use crate::deadlines::Deadlines;
use crate::file_cache::FileEntry;

use crate::ledger::{Ledger, Nanos, Stage, StageKind};
use crate::limits;
use crate::metrics::Route;
use crate::module::{Outcome, Phase};
use crate::request_id::RequestId;
use crate::response::Response;
use crate::settings::scope::ConditionValues;
use crate::settings::{ConnectionScope, HostScope, Settings, SettingsTable};
use crate::throttle::Bucket;
use crate::tls::TlsConnectionFacts;
use crate::waits::{HolderText, LongWait, ShownPath, Wait, Waits};
use crate::worker::Worker;

pub mod cold_files;
pub mod dry_run;
mod finished;
pub(crate) mod holders;
mod lineage;
mod listener_facts;
pub mod module;
mod progress;
mod run_state;
pub mod settings;
pub mod worker;

use dry_run::DryRun;
pub(crate) use lineage::Lineage;
pub use listener_facts::ListenerFacts;
pub(crate) use progress::{HandledError, WalkProgress};
pub use run_state::Interim;
use run_state::RunState;

/// One request and its response.
pub struct Exchange {
    /// Names the request in logs and on error pages. Subrequests have one of their own.
    pub id: RequestId,
    /// The worker that serves the request: file cache, clock, logs.
    pub worker: Rc<Worker>,
    /// The settings that apply to this request. [`Exchange::resettle`] chooses them again.
    pub settings: Rc<Settings>,
    /// The request.
    pub request: Request,
    /// The file or directory that the URL leads to.
    pub physical: Physical,
    /// The response, while hooks build it.
    pub response: Response,
    /// What is known of the client's connection.
    pub connection: ConnectionFacts,
    /// What modules set for backends, scripts and logs (setenv.add-environment, REMOTE_USER).
    pub environment: Environment,
    /// How long each stage of the exchange took.
    pub ledger: Ledger,
    waits: Waits,
    /// The script that runs or ran last for this request, if that was in the worker.
    pub script: Option<Rc<[u8]>>,
    /// The backend that was asked last.
    pub backend: Option<Rc<str>>,
    /// What was sent to the client, for logs.
    pub sent: SentBytes,
    /// The second in which a pending hook is polled again at the latest.
    pub(crate) wake_at_s: u32,
    /// The client has closed its sending side.
    pub(crate) is_half_closed: bool,
    kept: Vec<(&'static str, Rc<dyn Any>)>,
    marks: u64,
    pub(crate) scope: Option<Rc<HostScope>>,
    pub(crate) progress: WalkProgress,
    pub(crate) run_state: RunState,
    pub(crate) lineage: Lineage,
    /// Look-ups and reads of files that this request started, and their results.
    pub(crate) cold: ColdFiles,
    /// Set while this is a dry run.
    dry_run: Option<Box<DryRun>>,
}

/// The request as it is now; hooks may have changed it.
pub struct Request {
    /// Method, version and header fields.
    pub head: RequestHead,
    /// The target, parsed and normalised.
    pub url: Url,
    /// The target as a script wrote it, or as it was before a script changed the query. When the request
    /// begins again, this is parsed instead of `url`. Empty: the target of `url` counts.
    pub written_target: Vec<u8>,
    /// The original target as a script has written it. `None`: it is the one that the client sent.
    pub written_original_target: Option<Vec<u8>>,
    /// The head is complete, and its target has been parsed.
    pub(crate) has_begun: bool,
    /// The first line of a request head that was refused, cut to 1 KiB, for logs. It can hold any bytes.
    /// Empty for all other requests.
    pub refused_line: Vec<u8>,
    /// The body, as far as a hook asked for it and the client has sent it.
    pub body: RequestBody,
    /// How many bytes of the body the client has sent, whether a hook wanted them or not.
    pub body_bytes: u64,
    /// The method that hooks act on: HEAD or GET while `server.error-handler` runs.
    pub method: Method,
}

/// The file or directory that the URL leads to.
#[derive(Default)]
pub struct Physical {
    /// The document root, without a trailing slash unless a script has set one.
    pub document_root: Vec<u8>,
    /// Whether applications and scripts see the document root with a trailing slash. As in lighttpd they do
    /// if it is configured with one or if a module for virtual hosts has chosen it.
    pub shows_slash: bool,
    /// The server name that a module for virtual hosts has chosen in place of the requested host. Empty: none
    /// has.
    pub server_name: Vec<u8>,
    /// An index file was appended to the URL path.
    pub is_index: bool,
    /// The document root, or the target of the alias that the path is in.
    pub base: Vec<u8>,
    /// As `shows_slash`, for a `base` that is the target of an alias.
    pub base_shows_slash: bool,
    /// The URL path below the document root. An alias does not change it. Begins with a slash.
    pub relative: Vec<u8>,
    /// The whole path, which the server opens.
    pub path: Vec<u8>,
    /// The part of the URL path after the name of a file. Empty, or begins with a slash.
    pub path_info: Vec<u8>,
    /// `path_info` follows the name of a file that exists, and not just the part of the URL that a backend is
    /// configured for.
    pub(crate) is_info_behind_file: bool,
    /// A script has made the whole URL path the path-info, so it is the name of the program as well.
    pub info_is_whole: bool,
    /// The file or directory at `path`. Set between the phases Map and Resolved.
    pub file: Option<Rc<FileEntry>>,
    /// No hook needs to know which file is at `path`, because a backend answers anyway. `path` is still
    /// built, but the file is not looked up.
    pub is_virtual: bool,
}

/// What an exchange knows of the client's connection. TLS and the PROXY protocol, which come before the first
/// request, may add facts after the connection was accepted.
#[derive(Clone)]
pub struct ConnectionFacts {
    /// The client's address.
    pub peer: Peer,
    /// `https` if the client speaks TLS, else `http`.
    pub scheme: Scheme,
    /// The listening socket that the client connected to.
    pub listener: Rc<ListenerFacts>,
    /// The number of this request on its connection, from 1.
    pub request_number: u32,
    /// Identifies the connection within the process.
    pub id: u64,
    /// See [`ConnectionFacts::late`].
    pub(crate) late: Option<Rc<LateFacts>>,
}

/// Facts that few connections have, and that are not known yet when a connection is accepted.
#[derive(Clone, Default)]
pub struct LateFacts {
    /// The header of the PROXY protocol, if the connection began with one.
    pub proxied: Option<Proxied>,
    /// The local address of the connection. Set if the listener is a wildcard and a module wants to know the
    /// address.
    pub local_address: Option<SocketAddr>,
    /// What client and server agreed on in the TLS handshake.
    pub tls: Option<Rc<TlsConnectionFacts>>,
}

impl ConnectionFacts {
    /// The facts of a connection from `peer` that `listener` has accepted, at its first request.
    pub fn new(peer: Peer, scheme: Scheme, listener: Rc<ListenerFacts>) -> ConnectionFacts {
        ConnectionFacts {
            peer,
            scheme,
            listener,
            request_number: 1,
            id: 1,
            late: None,
        }
    }

    /// The facts that few connections have, for changing. Exchanges that have begun keep the earlier ones.
    pub fn late(&mut self) -> &mut LateFacts {
        Rc::make_mut(self.late.get_or_insert_default())
    }

    /// Which conditions of `table` are true for all requests on this connection.
    pub fn scope(&self, table: &SettingsTable) -> Rc<ConnectionScope> {
        table.connection_scope(&self.listener.address, self.peer.ip(), self.scheme)
    }

    /// The key under which this client takes turns at the disk
    /// ([`Origin::client`](crate::blocking::Origin::client)). All connections from one IPv4 address share a
    /// key. So do all from one IPv6 /64 network, because a client there can use every address of it. Behind a
    /// trusted proxy the key is that of the client, not of the proxy. A unix socket has no peer address, so
    /// there each connection has its own key.
    ///
    /// All these keys differ from each other and from the server's own, 0: those of IPv4 addresses and of
    /// connections lie in parts of the IPv6 space where no host has an address (RFC 4291 section 2.4).
    pub fn client_key(&self) -> u64 {
        match self.peer.ip() {
            Some(IpAddr::V4(ip)) => IPV4_KEYS | u64::from(ip.to_bits()),
            Some(IpAddr::V6(ip)) => ((ip.to_bits() >> 64) as u64).max(LOOPBACK_KEY),
            None => CONNECTION_KEYS | self.id & (CONNECTION_KEYS - 1),
        }
    }
}

/// The client that has the key `key` ([`ConnectionFacts::client_key`]), in words: an IPv4 address, an IPv6
/// network, or `unix:`.
pub fn client_of_key(key: u64) -> String {
    ClientOfKey(key).to_string()
}

/// Shows what [`client_of_key`] returns, without an allocation.
#[derive(Clone, Copy, Debug)]
pub struct ClientOfKey(pub u64);

impl std::fmt::Display for ClientOfKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ClientOfKey(key) = *self;
        match key {
            0 => f.write_str("none"),
            LOOPBACK_KEY => f.write_str("::1"),
            IPV4_KEYS..CONNECTION_KEYS if key >> 32 == 1 => {
                write!(f, "{}", std::net::Ipv4Addr::from_bits(key as u32))
            }
            CONNECTION_KEYS.. if key < CONNECTION_KEYS << 1 => f.write_str("unix:"),
            _ => {
                let network = std::net::Ipv6Addr::from_bits(u128::from(key) << 64);
                write!(f, "{network}/64")
            }
        }
    }
}

/// Whether these are the names of one module. Mostly they are one text in memory, which is seen without comparing
/// it.
#[inline]
fn is_same(one: &'static str, other: &'static str) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// The key of `::1`, whose upper 64 bits are 0.
const LOOPBACK_KEY: u64 = 1;

/// Added to an IPv4 address, this makes a key that no IPv6 network has.
const IPV4_KEYS: u64 = 1 << 32;

/// The same for the number of a connection.
const CONNECTION_KEYS: u64 = 1 << 48;

/// The address of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client over TCP.
    Ip(SocketAddr),
    /// A client over a unix socket.
    Unix,
}

/// Whether clients speak TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP without TLS.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
}

/// What a trusted proxy told about a connection by the PROXY protocol. [`ConnectionFacts::peer`] is the
/// client that the proxy named.
#[derive(Clone, Debug)]
pub struct Proxied {
    /// The address of the proxy itself.
    pub sender: Peer,
    /// The other fields of its header.
    pub extras: Extras,
}

/// Variables for backends, scripts and logs. There are few, so this is a list.
#[derive(Default)]
pub struct Environment {
    /// The first `count` are set. The buffers behind them are those of earlier requests, and wait to be used
    /// again.
    variables: Vec<(String, Vec<u8>)>,
    count: usize,
}

/// What was sent to the client for one exchange.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentBytes {
    /// Bytes of the head and of the body.
    pub bytes: u64,
    /// Bytes of the body, without transfer coding.
    pub body_bytes: u64,
    /// Bytes of the response head.
    pub head_bytes: u64,
    /// Whether the connection stays open.
    pub keep_alive: bool,
    /// The whole response was handed to the kernel.
    pub is_complete: bool,
}

impl Exchange {
    pub(crate) fn new(worker: Rc<Worker>, connection: ConnectionFacts) -> Exchange {
        Exchange {
            id: worker.next_request_id(),
            settings: worker.base_settings(),
            worker,
            request: Request::default(),
            physical: Physical::default(),
            response: Response::default(),
            connection,
            environment: Environment::default(),
            ledger: Ledger::default(),
            waits: Waits::default(),
            script: None,
            backend: None,
            sent: SentBytes::default(),
            wake_at_s: Deadlines::NEVER,
            is_half_closed: false,
            kept: Vec::new(),
            marks: 0,
            scope: None,
            progress: WalkProgress::default(),
            run_state: RunState::default(),
            lineage: Lineage::default(),
            cold: ColdFiles::default(),
            dry_run: None,
        }
    }

    /// Whether the buffers are small enough to be kept in the pool.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.request.head.capacity() <= limits::POOLED_BUFFER_BYTES_MAX
    }

    /// Forgets the last request. Like the other `clear` functions, this one names all fields, so that it does
    /// not compile until a new field is cleared, too. Building a new exchange around the old buffers instead
    /// would copy the whole struct for each request.
    pub(crate) fn clear(&mut self) {
        let Exchange {
            // The worker stays; id, connection, ledger and settings are written when the next request begins.
            worker: _,
            id: _,
            connection: _,
            ledger: _,
            settings: _,
            waits,
            script,
            backend,
            request,
            physical,
            response,
            environment,
            sent,
            wake_at_s,
            is_half_closed,
            kept,
            marks,
            scope,
            progress,
            run_state,
            lineage,
            cold,
            dry_run,
        } = self;
        waits.clear();
        *script = None;
        *backend = None;
        request.clear();
        physical.clear();
        response.clear();
        environment.clear();
        *sent = SentBytes::default();
        *wake_at_s = Deadlines::NEVER;
        *is_half_closed = false;
        kept.clear();
        *marks = 0;
        *scope = None;
        *progress = WalkProgress::default();
        run_state.clear();
        *lineage = Lineage::default();
        cold.clear();
        *dry_run = None;
    }

    /// Makes an error response, with the status of `cause`. An error handler or error page may still replace
    /// it.
    pub fn fail(&mut self, cause: impl Into<ErrorCause>) -> Outcome {
        self.response.fail(cause);
        Outcome::Answer
    }

    /// Makes an error response with `status` and its error page or error file. No error handler runs, because
    /// it may be a script or a backend, which requests like this one must not reach.
    pub fn fail_by_page(&mut self, cause: impl Into<ErrorCause>, status: Status) -> Outcome {
        self.response.fail_with_status(cause, status);
        self.progress.error = Some(HandledError::standing(&self.response));
        Outcome::Answer
    }

    /// Makes a response with `status`, which the configuration or a script has chosen. An error that the
    /// server makes by itself has a cause: see [`Exchange::fail`].
    pub fn answer_as_told(&mut self, status: Status) -> Outcome {
        self.response.answer_as_told(status);
        Outcome::Answer
    }

    /// Chooses the settings for the request as it is now. Call this after a change to a value that conditions
    /// look at.
    pub(crate) fn resettle(&mut self) {
        let Some(scope) = &self.scope else { return };
        self.settings = self.worker.settings_table().settings(scope, &*self);
        self.record_decisions();
    }

    /// Chooses the settings that change the response. As in lighttpd, conditions on the URL now see the path
    /// of the index file, and do not see the path-info after the name of a file. If a backend answers for a
    /// part of the URL space, they see the whole path; otherwise they could not tell its pages apart.
    pub(crate) fn settle_for_answer(&mut self) {
        if self.physical.is_index || self.physical.is_info_behind_file {
            self.resettle();
        }
    }

    /// The URL path that conditions compare.
    fn condition_path(&self) -> &[u8] {
        let path = self.request.url.path();
        match self.physical.is_info_behind_file && self.progress.phase() >= Phase::Transform {
            true => {
                let script = path.strip_suffix(&*self.physical.path_info);
                script.unwrap_or(path)
            }
            false => path,
        }
    }

    /// Believes a trusted proxy: for this request the client is `peer` and speaks `scheme`, and the host is
    /// the one that the head names now. All conditions are evaluated again. If [`Exchange::settings`] change
    /// by that, the calling hook returns [`Outcome::Again`]. If it goes on instead, its phase begins again with the
    /// hooks of the new settings, so that their access rules and backends count; only the calling module's hooks do
    /// not run again.
    pub fn set_client(&mut self, peer: Peer, scheme: Scheme) {
        self.connection.peer = peer;
        self.connection.scheme = scheme;
        let connection = self.connection.scope(self.worker.settings_table());
        let before = Rc::clone(&self.settings);
        self.settle(&connection);
        let phase = self.progress.phase();
        if (Phase::Authorize..Phase::Content).contains(&phase)
            && !Rc::ptr_eq(&before, &self.settings)
        {
            if phase == Phase::Authorize {
                // A gateway of the other host has claimed the request.
                self.physical.clear();
                self.backend = None;
            }
            self.progress.pass();
        }
    }

    /// Whether the client speaks TLS, to this server or to a trusted proxy in front of it.
    pub fn scheme(&self) -> Scheme {
        self.connection.scheme
    }

    /// What client and server agreed on in the TLS handshake. `None`: the client does not speak TLS.
    pub fn tls(&self) -> Option<&Rc<TlsConnectionFacts>> {
        self.connection.late.as_ref()?.tls.as_ref()
    }

    /// What a trusted proxy told about the connection, if it began with a header of the PROXY protocol.
    pub fn proxied(&self) -> Option<&Proxied> {
        self.connection.late.as_ref()?.proxied.as_ref()
    }

    /// The outcome for a hook that has changed the physical path. If a condition looks at that path, the
    /// phase begins again with the settings that apply now; otherwise the next hook runs.
    pub fn physical_path_changed(&self) -> Outcome {
        match &self.scope {
            Some(scope) if scope.uses_physical() => Outcome::Again(Phase::Resolved),
            _ => Outcome::Next,
        }
    }

    /// Whether hooks get `file` although it is a regular file that this process may not read, because a
    /// module has declared so for `path`: see
    /// [`Configure::take_unread`](crate::module::Configure::take_unread).
    pub fn is_taken_unread(&self, path: &[u8], file: &FileEntry) -> bool {
        let (settings, url_path) = (&self.settings, self.request.url.path());
        file.is_unreadable_file() && settings.unread.iter().any(|takes| takes(url_path, path))
    }

    /// For a pending hook: polls it again when the worker's clock reaches `second`, or earlier if it is
    /// woken.
    pub fn wake_at(&mut self, second: u32) {
        self.wake_at_s = second;
    }

    /// How the request head announces the body.
    pub fn body_framing(&self) -> BodyFraming {
        self.request.head.framing()
    }

    /// Whether the client has closed its sending side. It still gets its response.
    pub fn is_half_closed(&self) -> bool {
        self.is_half_closed
    }

    /// Sends an interim response (1xx) before the response, if the client's version of HTTP has them (RFC
    /// 9110 15.2). Drops it if too many wait for the client to read.
    pub fn inform(&mut self, status: Status, fields: HeaderBlock) {
        let is_understood = self.request.head.version() >= Version::Http11;
        if is_understood && !self.progress.is_over() {
            self.run_state.keep_interim(Interim { status, fields });
        }
    }

    /// The response is 101: from now on the request body is every byte that the client sends, and the
    /// response body every byte that it gets, until both sides close (RFC 9110 7.8).
    pub fn become_tunnel(&mut self, ahead: ReadAhead) {
        // This ends the request body proper; the bytes of the tunnel are a new body.
        self.request.body.clear();
        self.request.body.stream(ahead);
        self.run_state.is_tunnel = true;
        self.response.close = true;
    }

    /// Whether the client's bytes are passed on unchanged; see [`Exchange::become_tunnel`].
    #[inline]
    pub fn is_tunnel(&self) -> bool {
        self.run_state.is_tunnel
    }

    /// Stores `what` for `module` until the end of the request. Restarts and error handlers do not clear it.
    pub fn keep(&mut self, module: &'static str, what: Rc<dyn Any>) {
        match self
            .kept
            .iter_mut()
            .find(|(owner, _)| is_same(owner, module))
        {
            Some((_, kept)) => *kept = what,
            None => self.kept.push((module, what)),
        }
    }

    /// The value that `module` stored with [`Exchange::keep`].
    #[inline]
    pub fn kept<T: Any>(&self, module: &'static str) -> Option<Rc<T>> {
        let mut kept = self.kept.iter();
        let (_, what) = kept.find(|(owner, _)| is_same(owner, module))?;
        Rc::clone(what).downcast().ok()
    }

    /// Sets bits that last as long as values of [`Exchange::keep`]. mod_limit has one bit for each of its
    /// first 64 rules: that rule has counted the request. [`Exchange::keep`] would take ten times as many
    /// instructions.
    #[inline]
    pub fn mark(&mut self, bits: u64) {
        self.marks |= bits;
    }

    /// The bits that are set.
    #[inline]
    pub fn marks(&self) -> u64 {
        self.marks
    }

    /// The response is sent only as fast as `bucket` allows, beside its other limits. This lasts as long as
    /// values of [`Exchange::keep`].
    pub fn limit_bandwidth(&mut self, bucket: Arc<Bucket>) {
        self.run_state.client_buckets.push(bucket);
    }

    /// Chooses the host scope and the settings. `connection` holds the conditions that are true for the
    /// connection.
    pub(crate) fn settle(&mut self, connection: &ConnectionScope) {
        let scope = self
            .worker
            .settings_table()
            .host_scope(connection, self.request.head.host());
        if scope.has_candidates() && self.scope.is_none() {
            self.stamp(Stage::Parse);
        }
        self.settings = self.worker.settings_table().settings(&scope, &*self);
        self.scope = Some(scope);
        self.record_decisions();
    }

    /// Whether a condition of the configuration names the requested host (`$HTTP["host"] == "NAME"`), with or
    /// without the port.
    pub fn is_for_named_host(&self) -> bool {
        let head = &self.request.head;
        let asked = [head.host(), head.host_without_port()];
        let mut names = self.worker.settings_table().host_names();
        names.any(|name| asked.contains(&name.as_bytes()))
    }

    /// The captures of the condition of `block`, and the text that their ranges point into.
    pub fn captures_of(&self, block: BlockId) -> (Captures, Vec<u8>) {
        let mut captures = Captures::new();
        let mut text = Vec::new();
        if let Some(condition) = self.worker.settings_table().condition(block) {
            self.with_value(&condition.subject, &mut |value| {
                text.extend_from_slice(value);
                condition.matcher.captures(value, &mut captures)
            });
        }
        (captures, text)
    }

    /// What the response counts for in the metrics.
    pub fn route(&self) -> Route {
        self.progress.route()
    }

    /// For a hook that answers: the response counts for `route`, a part of its module
    /// ([`Exchange::detailed_route`]).
    #[inline]
    pub fn set_route(&mut self, route: Route) {
        self.progress.set_route(route);
    }

    /// For a hook: the route of the part `detail` of its module. Takes a lock, so use it once and keep the
    /// result.
    pub fn detailed_route(&self, detail: &str) -> Route {
        let metrics = self.worker.shared().metrics();
        metrics.detailed_route(self.progress.module, detail)
    }

    /// For a hook that took only some nanoseconds: its time goes to the next stage unless another hook of the
    /// phase did work. Reading the clock would take longer than the hook.
    #[inline]
    pub fn took_no_time(&mut self) {
        if self.progress.hook == 1 {
            self.progress.worked = false;
        }
    }

    /// For a hook: its time counts for `stage`, not for the stage of its phase.
    #[inline]
    pub fn count_as(&mut self, stage: Stage) {
        if self.progress.hook > 1 && self.progress.counts_as.is_none() {
            // The time until now is that of earlier hooks.
            self.stamp(self.progress.stage_of_phase());
        }
        self.progress.counts_as = Some(stage);
    }

    /// Reads the clock and gives the time since the last stamp to `stage`.
    #[inline]
    pub fn stamp(&mut self, stage: Stage) {
        let clock = self.worker.clock();
        let now = clock.now();
        if clock.gap() >= limits::HOG_NANOS && stage.kind() == StageKind::Work {
            self.has_hogged(stage, now);
        }
        self.ledger.stamp(stage, now);
    }

    /// This request kept the worker busy until `now` for so long that others may have lagged.
    #[cold]
    fn has_hogged(&mut self, stage: Stage, now: Nanos) {
        let run = self
            .worker
            .note_hog(Some(stage), |text| self.tell_work(stage, text));
        let mut ran = run.ran;
        if run.without_processor >= limits::NOTED_WAIT_NANOS.max(run.ran / 2) {
            ran -= run.without_processor;
            let worked_until = now - run.without_processor;
            self.ledger.stamp_part(stage, worked_until, now);
            self.ledger.stamp(Stage::Lag, now);
            self.note_wait(Stage::Lag, run.without_processor, |_, text| {
                text.write_str("up to this long the worker had no processor");
            });
        }
        if ran >= limits::NOTED_WAIT_NANOS {
            self.note_wait(stage, ran, |exchange, text| {
                // Nothing held this request up: its own work took so long.
                match exchange.script_of(stage) {
                    Some(script) => text.write_str(&String::from_utf8_lossy(script)),
                    None => text.write_str("this request"),
                }
                text.write_str(" kept the worker busy");
                run.tell_processor(text);
            });
        }
    }

    /// Says what the worker did for this request in `stage`: the script, or method and path.
    fn tell_work(&self, stage: Stage, text: &mut HolderText<'_>) {
        match self.script_of(stage) {
            Some(script) => text.write_str(&String::from_utf8_lossy(script)),
            None => write!(
                text,
                "{} {}",
                self.request.method.as_str(),
                self.waits_path()
            ),
        }
    }

    /// The script that works in `stage`.
    fn script_of(&self, stage: Stage) -> Option<&[u8]> {
        self.script.as_deref().filter(|_| stage == Stage::Lua)
    }

    /// The path of the request as notes about waits show it: without the query, and cut.
    pub fn waits_path(&self) -> ShownPath<'_> {
        ShownPath(self.asked_path())
    }

    /// The end of a wait: gives the time since the last stamp to `stage`, and the time in which the worker
    /// ran other tasks to [`Stage::Lag`]. If the wait was long ([`limits::NOTED_WAIT_NANOS`]), `holder` says
    /// what held the request up. Returns the wait without the lag.
    #[inline]
    pub fn stamp_wait(
        &mut self,
        stage: Stage,
        holder: impl FnOnce(&Exchange, &mut HolderText<'_>),
    ) -> Nanos {
        let now = self.worker.clock().now();
        self.stamp_wait_at(stage, now, holder)
    }

    /// Like [`Exchange::stamp_wait`], for the phase loop, which asks for the holder later. Returns a wait that
    /// was long.
    pub(crate) fn stamp_pending(&mut self, stage: Stage) -> Option<LongWait> {
        let now = self.worker.clock().now();
        let since = self.ledger.last();
        let nanos = self.stamp_without_holder(stage, now);
        let noted = LongWait {
            stage,
            since,
            nanos,
        };
        (nanos >= limits::NOTED_WAIT_NANOS).then_some(noted)
    }

    /// Like [`Exchange::stamp_wait`], with the time that was read last; see [`Exchange::stamp_latest`].
    #[inline]
    pub fn stamp_wait_latest(
        &mut self,
        stage: Stage,
        holder: impl FnOnce(&Exchange, &mut HolderText<'_>),
    ) {
        let now = self.worker.clock().latest();
        self.stamp_wait_at(stage, now, holder);
    }

    /// A part of a wait that ended at `until`; what comes after it belongs to another stage.
    pub fn stamp_wait_part(
        &mut self,
        stage: Stage,
        until: Nanos,
        holder: impl FnOnce(&Exchange, &mut HolderText<'_>),
    ) {
        let before = self.ledger.last();
        let now = self.worker.clock().latest();
        self.ledger.stamp_part(stage, until, now);
        let waited = self.ledger.last().saturating_sub(before);
        if waited >= limits::NOTED_WAIT_NANOS {
            self.note_wait(stage, waited, holder);
        }
    }

    #[inline]
    fn stamp_wait_at(
        &mut self,
        stage: Stage,
        now: Nanos,
        holder: impl FnOnce(&Exchange, &mut HolderText<'_>),
    ) -> Nanos {
        let waited = self.stamp_without_holder(stage, now);
        if waited >= limits::NOTED_WAIT_NANOS {
            self.note_wait(stage, waited, holder);
        }
        waited
    }

    /// Like [`Exchange::stamp_wait`] for one of many short waits, whose holder is noted at their end.
    #[inline]
    pub(crate) fn stamp_wait_unnoted(&mut self, stage: Stage) {
        let now = self.worker.clock().now();
        self.stamp_without_holder(stage, now);
    }

    /// Stamps the end of a wait, and notes what the worker did if it was late. Returns the wait without the
    /// lag.
    #[inline]
    fn stamp_without_holder(&mut self, stage: Stage, now: Nanos) -> Nanos {
        let clock = self.worker.clock();
        let before = self.ledger.last();
        let (turn, since) = (clock.turn(), clock.news_since(before));
        // While the worker was busy, the end of the wait may have come at any time. A wait that began meanwhile keeps
        // one nanosecond: the ledger counts no lag for a wait that was over when it began.
        let ready = match since < turn && before < turn {
            true => since.max(before + 1),
            false => turn,
        };
        let waited = self.ledger.stamp_wait(stage, ready, now);
        let lag = now.saturating_sub(before).saturating_sub(waited);
        if lag >= limits::NOTED_LAG_NANOS {
            self.note_lag(lag, since < turn);
        }
        waited
    }

    #[inline]
    pub(crate) fn note_if_lagged(&mut self, nanos: Nanos) {
        if nanos >= limits::NOTED_LAG_NANOS {
            self.note_lag(nanos, false);
        }
    }

    /// Starts the ledger of a request whose first bytes were read at `now`, in this turn of the worker.
    #[inline]
    pub(crate) fn start_ledger(&mut self, now: Nanos) {
        let clock = self.worker.clock();
        let (turn, earlier) = (clock.turn(), clock.earlier_turn());
        self.ledger.start_late(turn, now, earlier);
        self.note_if_lagged(now.saturating_sub(turn));
        if earlier >= limits::NOTED_LAG_NANOS {
            self.note_in_kernel(earlier);
        }
        self.count_handshake();
    }

    /// The TLS handshake counts for the first request on its connection.
    #[inline]
    pub(crate) fn count_handshake(&mut self) {
        if self.connection.request_number == 1
            && let Some(nanos) = self.tls().map(|tls| tls.handshake_nanos)
            && nanos > 0
        {
            self.ledger.add_before(Stage::Tls, nanos);
            if nanos >= limits::NOTED_WAIT_NANOS {
                self.note_wait(Stage::Tls, nanos, |_, text| {
                    text.write_str("the client and this server made their TLS handshake");
                });
            }
        }
    }

    /// Notes what held the request up in `stage`; `holder` says it.
    #[cold]
    pub fn note_wait(
        &mut self,
        stage: Stage,
        nanos: Nanos,
        holder: impl FnOnce(&Exchange, &mut HolderText<'_>),
    ) {
        let mut waits = std::mem::take(&mut self.waits);
        waits.add(stage, nanos, |text| holder(self, text));
        self.waits = waits;
    }

    #[cold]
    fn note_lag(&mut self, nanos: Nanos, is_bound: bool) {
        let now = self.worker.clock().latest();
        self.note_wait(Stage::Lag, nanos, |exchange, text| {
            let since = now.saturating_sub(nanos);
            if is_bound {
                text.write_str("up to this long in the kernel's queue: ");
            }
            exchange.worker.tell_hog_between(since, now, text);
        });
    }

    #[cold]
    fn note_in_kernel(&mut self, nanos: Nanos) {
        let turn = self.worker.clock().turn();
        self.note_wait(Stage::Lag, nanos, |exchange, text| {
            text.write_str("up to this long in the kernel's queue before the request began: ");
            let since = turn.saturating_sub(nanos);
            exchange.worker.tell_hog_between(since, turn, text);
        });
    }

    /// The waits of this request that were long enough to be noted.
    pub fn waits(&self) -> &[Wait] {
        self.waits.all()
    }

    /// Like [`Exchange::stamp`], with the time that was read last. For code that has just received data, when
    /// that time is fresh.
    #[inline]
    pub fn stamp_latest(&mut self, stage: Stage) {
        let latest = self.worker.clock().latest();
        self.ledger.stamp(stage, latest);
    }

    /// The local address of the connection; `None` for a unix socket. On a wildcard listener the address is
    /// known only if a module called
    /// [`Configure::want_local_address`](crate::module::Configure::want_local_address).
    #[inline]
    pub fn local_address(&self) -> Option<SocketAddr> {
        let late = self.connection.late.as_ref();
        late.and_then(|late| late.local_address)
            .or(self.connection.listener.local_address)
    }

    /// Whether an error handler answers this exchange. Its response stands for an error.
    #[inline]
    pub fn handles_error(&self) -> bool {
        self.progress.error.is_some()
    }

    /// Whether the answer keeps the status of an error whatever its handler says (`server.error-handler`), so
    /// that conditions and ranges of the request do not apply to it.
    pub fn keeps_error_status(&self) -> bool {
        self.progress.error.is_some_and(|error| error.keeps_status)
    }

    /// Whether the server made this request itself, as a [`Subrequest`](crate::subrequest::Subrequest), for a
    /// request of the client that [`Exchange::connection`] names.
    #[inline]
    pub fn is_subrequest(&self) -> bool {
        self.subrequest_depth() > 0
    }

    /// The method of the client's request that this subrequest belongs to. `None`: this is no subrequest.
    pub fn client_method(&self) -> Option<Method> {
        self.lineage.client_method
    }

    /// 0 for a client's request, 1 for its subrequests, 2 for their subrequests; at most
    /// [`limits::SUBREQUEST_DEPTH_MAX`].
    #[inline]
    pub fn subrequest_depth(&self) -> u8 {
        self.lineage.depth
    }

    /// How strictly request heads on a connection with this scheme are parsed.
    pub fn head_options(&self) -> HeadOptions {
        HeadOptions {
            default_port: self.scheme().default_port(),
            ..self.worker.process().head_options
        }
    }

    /// The name of this server for use in responses. The first of these that there is: `server.name`, the
    /// host of the request, the name that the client gave to TLS, the address of the listener.
    pub fn server_name(&self) -> &[u8] {
        match (
            &self.settings.core.name,
            self.request.head.host_without_port(),
        ) {
            _ if !self.physical.server_name.is_empty() => &self.physical.server_name,
            (Some(name), _) => name,
            (None, b"") => {
                let late = self.connection.late.as_ref();
                let tls_name = late.and_then(|late| late.tls.as_deref()?.server_name.as_deref());
                let name = tls_name.unwrap_or(&self.connection.listener.address);
                name.as_bytes()
            }
            (None, host) => host,
        }
    }

    /// The host part of absolute URLs, with the port unless it is the default of the scheme. This is the host
    /// that the client asked for, or else [`Exchange::server_name`].
    pub fn authority(&self) -> &[u8] {
        match self.request.head.host() {
            b"" => self.server_name(),
            host => host,
        }
    }

    /// Appends scheme and authority of this server, such as `https://www.example.org`, to `out`.
    pub fn write_origin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.scheme().as_str().as_bytes());
        out.extend_from_slice(b"://");
        out.extend_from_slice(self.authority());
    }

    /// Writes a line about this exchange to its error log. The line names the client without its port, so
    /// that the log can count identical lines that one client causes on many connections. Lines that differ
    /// only in the id of the request are identical.
    pub fn log_error(&self, stage: &str, cause: std::fmt::Arguments<'_>) {
        self.log_line(stage, cause, self.response.cause());
    }

    /// Like [`Exchange::log_error`], about a failure for which the client may not get an error: the request
    /// may be tried again.
    pub fn log_failure(&self, stage: &str, failure: ErrorCause, what: std::fmt::Arguments<'_>) {
        self.log_line(stage, what, Some(failure));
    }

    /// Writes a line about a failed log-in as lighttpd writes it: fail2ban's filter for lighttpd wants its name of the
    /// source file at the beginning and the client's address at the end. Such lines are never counted together,
    /// because the filter counts them.
    pub fn log_login_failure(
        &self,
        failure: ErrorCause,
        what: std::fmt::Arguments<'_>,
        end: std::fmt::Arguments<'_>,
    ) {
        let log = &self.settings.core.error_log;
        let (details, particulars) = (self.details(), self.particulars(Some(failure)));
        let address = self.connection.peer.address_text();
        log.error(format_args!(
            "(mod_auth.c.853) {what}{details}{particulars}{end} IP: {address}"
        ));
        self.record_line("mod_auth.c.853", what, end);
    }

    fn log_line(&self, stage: &str, what: std::fmt::Arguments<'_>, why: Option<ErrorCause>) {
        let log = &self.settings.core.error_log;
        let line = format_args!("({stage}) {what}{}", self.details());
        log.common_error(line, format_args!("{}", self.particulars(why)));
        self.record_line(stage, what, format_args!(""));
    }

    /// Like [`Exchange::log_error`], for an error that very many requests may have. Each second the log
    /// writes one line for each cause, with the number of suppressed ones.
    pub fn log_common_error(&self, stage: &str, cause: std::fmt::Arguments<'_>) {
        self.log_common_error_of(stage, cause, format_args!(""));
    }

    /// Like [`Exchange::log_common_error`]. `particulars` of this request follow the cause in the line; lines
    /// that differ only in them still count as one cause.
    pub fn log_common_error_of(
        &self,
        stage: &str,
        cause: std::fmt::Arguments<'_>,
        particulars: std::fmt::Arguments<'_>,
    ) {
        let log = &self.settings.core.error_log;
        let own = self.particulars(self.response.cause());
        let details = format_args!("{particulars}{}{own}", self.details());
        log.common_error(format_args!("({stage}) {cause}"), details);
        self.record_line(stage, cause, particulars);
    }

    fn record_line(
        &self,
        stage: &str,
        cause: std::fmt::Arguments<'_>,
        particulars: std::fmt::Arguments<'_>,
    ) {
        if let Some(dry_run) = &self.dry_run {
            dry_run.log(format!("({stage}) {cause}{particulars}"));
        }
    }

    /// The end of a log line: why the request failed, and its id. Lines that differ only in it repeat each
    /// other.
    fn particulars(&self, why: Option<ErrorCause>) -> impl std::fmt::Display + use<> {
        let id = self.id;
        std::fmt::from_fn(move |f| {
            if let Some(why) = why {
                write!(f, " cause={why}")?;
            }
            write!(f, " id={id}")
        })
    }

    /// The part of a log line before it, which says what request it is about. It is only built when it is
    /// written.
    fn details(&self) -> impl std::fmt::Display + '_ {
        std::fmt::from_fn(|f| {
            let client = self.connection.peer.without_port();
            let host = self.request.head.host();
            let host = String::from_utf8_lossy(cut(host, limits::LOGGED_HOST_BYTES_MAX));
            let (host, request) = (host.escape_debug(), self.request.shown());
            write!(f, " client={client} host={host} request=\"{request}\"")
        })
    }
}

/// At most the first `bytes_max` bytes of `text`.
fn cut(text: &[u8], bytes_max: usize) -> &[u8] {
    text.get(..bytes_max).unwrap_or(text)
}

impl GiveBack for Exchange {
    fn give_back(mut self: Box<Self>) {
        self.clear();
        let worker = Rc::clone(&self.worker);
        worker.give_exchange(self);
    }
}

impl ConditionValues for Exchange {
    fn with_value(&self, subject: &Subject, with: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let head = &self.request.head;
        let field = |field: KnownField| head.field(field).unwrap_or_default();
        match subject {
            Subject::SocketAddress => with(self.connection.listener.address.as_bytes()),
            Subject::Host => with(head.host()),
            Subject::Url => with(self.condition_path()),
            Subject::Query => with(self.request.url.query()),
            Subject::Scheme => with(self.scheme().as_str().as_bytes()),
            Subject::Referer => with(field(KnownField::Referer)),
            Subject::Cookie => with(field(KnownField::Cookie)),
            Subject::UserAgent => with(field(KnownField::UserAgent)),
            Subject::RemoteIp => with(self.connection.peer.address_text().as_bytes()),
            Subject::RequestMethod => with(self.request.method_for_rules().as_str().as_bytes()),
            Subject::Language => with(field(KnownField::AcceptLanguage)),
            Subject::RequestHeader(name) => with(head.value_of(name).unwrap_or_default()),
            Subject::PhysicalPath => with(&self.physical.path),
            Subject::PhysicalExistingPath => match &self.physical.file {
                Some(file) if file.kind().exists() => with(&self.physical.path),
                _ => with(b""),
            },
        }
    }
}

impl Default for Request {
    fn default() -> Request {
        Request {
            head: RequestHead::new(),
            url: Url::new(),
            written_target: Vec::new(),
            written_original_target: None,
            has_begun: false,
            refused_line: Vec::new(),
            body: RequestBody::default(),
            body_bytes: 0,
            method: Method::Get,
        }
    }
}

impl Request {
    /// The method that conditions, scripts and authorizers see. An extended CONNECT (RFC 8441) counts as the GET
    /// that opens the same tunnel over HTTP/1, also before a gateway makes that GET of it.
    pub fn method_for_rules(&self) -> Method {
        match self.method {
            Method::Connect => Method::Get,
            method => method,
        }
    }

    /// The target, which applications get as REDIRECT_URI and scripts as `request.uri`.
    pub fn target(&self) -> &[u8] {
        match self.written_target.is_empty() {
            true => self.url.target(),
            false => &self.written_target,
        }
    }

    /// The target as the client sent it, for logs and the original path. Empty before the head is complete.
    #[inline]
    pub fn original_target(&self) -> &[u8] {
        match &self.written_original_target {
            Some(written) => written,
            None if self.has_begun => self.head.target(),
            None => b"",
        }
    }

    /// Keeps the first line of a refused head for logs. `bytes` is all of the head that was received.
    pub(crate) fn keep_refused_line(&mut self, bytes: &[u8]) {
        let bytes = bytes.trim_ascii_start();
        let bytes = bytes.get(..limits::REFUSED_LINE_BYTES_MAX).unwrap_or(bytes);
        let line = bytes
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        self.refused_line.clear();
        self.refused_line
            .extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
    }

    /// Method and target, or the first line of a refused head, escaped so that it cannot forge log lines.
    fn shown(&self) -> String {
        if !self.refused_line.is_empty() {
            return self.refused_line.escape_ascii().to_string();
        }
        if self.original_target().is_empty() {
            return String::new();
        }
        let target = cut(self.original_target(), limits::LOGGED_TARGET_BYTES_MAX);
        let target = String::from_utf8_lossy(target);
        format!("{} {}", self.head.method().as_str(), target.escape_debug())
    }

    fn clear(&mut self) {
        let Request {
            head,
            url,
            written_target,
            written_original_target,
            has_begun,
            refused_line,
            body,
            body_bytes,
            method,
        } = self;
        head.clear();
        url.clear();
        written_target.clear();
        *written_original_target = None;
        *has_begun = false;
        refused_line.clear();
        body.clear();
        *body_bytes = 0;
        *method = Method::Get;
    }
}

impl Physical {
    pub(crate) fn clear(&mut self) {
        let Physical {
            document_root,
            shows_slash,
            server_name,
            is_index,
            base,
            base_shows_slash,
            relative,
            path,
            path_info,
            is_info_behind_file,
            info_is_whole,
            file,
            is_virtual,
        } = self;
        document_root.clear();
        *shows_slash = false;
        server_name.clear();
        *is_index = false;
        base.clear();
        *base_shows_slash = false;
        relative.clear();
        path.clear();
        path_info.clear();
        *is_info_behind_file = false;
        *info_is_whole = false;
        *file = None;
        *is_virtual = false;
    }

    /// The slash, or nothing, that applications and scripts see after `root`.
    pub fn slash_behind(&self, root: &[u8]) -> &'static [u8] {
        let is_shown = self.shows_slash && root == self.document_root
            || self.base_shows_slash && root == self.base;
        match is_shown {
            true => b"/",
            false => b"",
        }
    }

    /// How many bytes of `path` are the base: 0 if a script has set a path that is not below it.
    pub fn base_length(&self) -> usize {
        match self.path.starts_with(&self.base) {
            true => self.base.len(),
            false => 0,
        }
    }

    /// Makes `root` the document root, and builds the physical path of `url_path` below it.
    pub fn map(&mut self, root: &[u8], url_path: &[u8]) {
        self.document_root.clear();
        self.document_root.extend_from_slice(root);
        self.map_below_root(url_path);
    }

    /// Builds the physical path of `url_path` below the present document root.
    #[inline]
    pub(crate) fn map_below_root(&mut self, url_path: &[u8]) {
        self.base.clear();
        self.base.extend_from_slice(&self.document_root);
        self.base_shows_slash = false;
        self.relative.clear();
        self.relative.extend_from_slice(url_path);
        self.path.clear();
        self.path.extend_from_slice(&self.document_root);
        self.path.extend_from_slice(url_path);
    }
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that URLs of this scheme may leave out.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

impl Peer {
    /// The address without the port; empty for a unix socket.
    pub fn address_text(&self) -> String {
        self.ip().map(|ip| ip.to_string()).unwrap_or_default()
    }

    /// The address for logs: without the port, or `unix:`.
    pub(crate) fn without_port(&self) -> String {
        match self.ip() {
            Some(ip) => ip.to_string(),
            None => self.to_string(),
        }
    }

    /// The IP address. An IPv4-mapped IPv6 address is returned as IPv4.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Ip(address) => Some(address.ip().to_canonical()),
            Peer::Unix => None,
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Ip(address) => write!(f, "{address}"),
            Peer::Unix => f.write_str("unix:"),
        }
    }
}

impl Environment {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut all = self.iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// Sets or replaces `name`. It is the last of all variables then.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        let index = self.iter().position(|(known, _)| known == name);
        match index {
            Some(index) => self.variables[index..self.count].rotate_left(1),
            None if self.count == self.variables.len() => {
                self.variables.push((name.to_owned(), Vec::new()));
                self.count += 1;
            }
            None => self.count += 1,
        }
        let (last, content) = &mut self.variables[self.count - 1];
        last.clear();
        last.push_str(name);
        content.clear();
        content.extend_from_slice(value);
    }

    /// Keeps only the variables whose names `stays` accepts.
    pub fn retain(&mut self, stays: impl Fn(&str) -> bool) {
        let mut index = 0;
        while index < self.count {
            if stays(&self.variables[index].0) {
                index += 1;
            } else {
                self.variables[index..self.count].rotate_left(1);
                self.count -= 1;
            }
        }
    }

    /// All variables, in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let set = self.variables[..self.count].iter();
        set.map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// Unsets all variables. Keeps the buffers of a few small ones, so that a warm request that sets them
    /// allocates nothing.
    fn clear(&mut self) {
        let Environment { variables, count } = self;
        if std::mem::take(count) > 0 {
            variables.truncate(limits::POOLED_VARIABLES_MAX);
            variables.retain(|(name, value)| {
                name.capacity() + value.capacity() <= limits::POOLED_VARIABLE_BYTES_MAX
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_of_a_test_is_gone_with_its_site() {
        let site = crate::testing::Site::new("", &[]);
        let worker = Rc::downgrade(site.worker());
        let answer = site.get("/");
        drop(site.get("/"));
        drop(site);
        drop(answer);
        assert!(worker.upgrade().is_none());
    }

    #[test]
    fn buffers_of_a_long_request_do_not_wait_in_the_pool() {
        let config = "server.max-request-field-size = 65536";
        let site = crate::testing::Site::new(config, &[]);
        for (length, is_kept) in [(100, true), (40_000, false)] {
            let long = "x".repeat(length);
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {long}\r\n\r\n");
            let mut exchange = site.request(&request).into_exchange();
            exchange.clear();
            assert_eq!(exchange.is_worth_keeping(), is_kept, "{length}");
        }
    }

    #[test]
    fn variables_keep_their_order_and_small_buffers_serve_the_next_request() {
        let mut environment = Environment::default();
        let shown = |environment: &Environment| -> String {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let all = environment.iter();
            all.map(|(name, value)| format!("{name}={} ", text(value)))
                .collect()
        };
        environment.set("A", b"1");
        environment.set("B", b"2");
        environment.set("C", b"3");
        environment.set("A", b"4");
        assert_eq!(shown(&environment), "B=2 C=3 A=4 ");
        environment.retain(|name| name != "C");
        assert_eq!(shown(&environment), "B=2 A=4 ");
        assert_eq!(environment.get("C"), None);
        environment.set("D", &[b'x'; 5000]);
        environment.clear();
        assert_eq!(
            (shown(&environment).as_str(), environment.get("A")),
            ("", None)
        );
        let kept: Vec<_> = environment
            .variables
            .iter()
            .map(|(_, value)| value.as_ptr())
            .collect();
        assert_eq!(kept.len(), 2, "the large one is not kept");
        environment.set("E", b"5");
        assert_eq!(shown(&environment), "E=5 ");
        assert_eq!(environment.variables[0].1.as_ptr(), kept[0]);
        for number in 0..1000 {
            environment.set(&number.to_string(), b"x");
        }
        environment.clear();
        assert!(environment.variables.len() <= limits::POOLED_VARIABLES_MAX);
    }

    #[test]
    fn clients_share_a_turn_at_the_disk_by_their_addresses() {
        let site = crate::testing::Site::new("", &[]);
        let mut facts = site.get("/").exchange().connection.clone();
        let mut key = |peer: &str, id: u64| {
            facts.peer = match peer {
                "unix" => Peer::Unix,
                ip => Peer::Ip(SocketAddr::new(ip.parse().expect("an address"), 1)),
            };
            facts.id = id;
            facts.client_key()
        };
        // Two connections of the same client.
        for (one, other) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "::ffff:192.0.2.1"),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff"),
        ] {
            assert_eq!(key(one, 1), key(other, 2), "{one} {other}");
        }
        let mut others = vec![
            0,
            key("192.0.2.1", 1),
            key("192.0.2.2", 1),
            key("0.0.0.0", 1),
            key("255.255.255.255", 1),
            key("::1", 1),
            key("2001:db8:0:1::1", 1),
            key("2001:db8:0:2::1", 1),
            key("unix", 0),
            key("unix", 1),
            key("unix", 1 << 32),
        ];
        let count = others.len();
        others.sort_unstable();
        others.dedup();
        assert_eq!(others.len(), count);
    }

    #[test]
    fn of_a_refused_head_the_first_line_is_kept_and_told() {
        let mut request = Request::default();
        assert_eq!(request.shown(), "");
        for (bytes, shown) in [
            (&b"GET / HTTP/3.0\r\nHost: h\r\n\r\n"[..], "GET / HTTP/3.0"),
            (
                b"\r\n\r\nG\"T /\xff\x1b[2J x y\n",
                "G\\\"T /\\xff\\x1b[2J x y",
            ),
            (b"GET /half", "GET /half"),
            (b"\x16\x03\x01\x02", "\\x16\\x03\\x01\\x02"),
            (b"", ""),
        ] {
            request.keep_refused_line(bytes);
            assert_eq!(request.shown(), shown);
        }
        request.keep_refused_line(&[b'a'; 10_000]);
        assert_eq!(request.refused_line.len(), limits::REFUSED_LINE_BYTES_MAX);
        request.clear();
        assert_eq!(request.shown(), "");
    }

    #[test]
    fn conditions_on_the_client_follow_the_client_that_is_named() {
        let config = "$HTTP[\"remoteip\"] == \"192.0.2.7\" { server.tag = \"named\" }\n\
                      $HTTP[\"scheme\"] == \"https\" { server.name = \"safe\" }";
        let site = crate::testing::Site::new(config, &[]);
        let mut exchange = site.get("/").into_exchange();
        let before = Rc::clone(&exchange.settings);
        let named = Peer::Ip(SocketAddr::from(([192, 0, 2, 7], 0)));
        exchange.set_client(named, Scheme::Http);
        assert!(!Rc::ptr_eq(&exchange.settings, &before));
        assert!(exchange.settings.core.name.is_none());
        exchange.set_client(Peer::Unix, Scheme::Https);
        assert!(exchange.settings.core.name.is_some());
        drop(exchange);
        assert_eq!(site.get("/").exchange().scheme(), Scheme::Http);
    }

    #[test]
    fn mapping_below_a_root_that_is_set_uses_the_buffers_it_has() {
        let mut physical = Physical::default();
        physical.map(b"/srv/www", b"/a/long/enough/path.html");
        let places = |physical: &Physical| {
            let buffers = [
                &physical.document_root,
                &physical.base,
                &physical.relative,
                &physical.path,
            ];
            buffers.map(|buffer| (buffer.as_ptr(), buffer.capacity()))
        };
        let before = places(&physical);
        physical.clear();
        physical.document_root.extend_from_slice(b"/srv/v");
        physical.map_below_root(b"/b.html");
        assert_eq!(physical.path, b"/srv/v/b.html");
        assert_eq!(physical.base, b"/srv/v");
        assert_eq!(physical.relative, b"/b.html");
        assert_eq!(places(&physical), before);
    }
}
