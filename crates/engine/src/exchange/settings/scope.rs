//! Which blocks are true, cached as long as the facts that they depend on stay the same.
//!
//! Conditions on the socket and on the client's address are evaluated once for each connection
//! ([`ConnectionScope`]), those on the host once for each host ([`HostScope`]). Only the others (URL, query,
//! header fields …) are evaluated for each request, and blocks inside a false block never are. The set of
//! true blocks is the key of shared [`Settings`]. So a request costs the same with 1,000 virtual hosts as
//! with one.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use petrel_config::{Block, BlockId, Condition, Config, Diagnostic, Entry, Op, Schema, Subject};

use super::process::Http2Offer;
use super::{MimeCache, Settings, Values, nested_tls};
use crate::exchange::Scheme;
use crate::exchange::dry_run::{Decision, Verdict};
use crate::handed::Handed;
use crate::limits;
use crate::log::LogRegistry;
use crate::metrics::Host;
use crate::metrics::Route;
use crate::module::{ModuleSpec, ProxyHeaders, Purpose};
use crate::tls::TlsHost;

/// The settings of one worker.
pub struct SettingsTable {
    config: Arc<Config>,
    schema: Arc<Schema>,
    modules: Vec<&'static ModuleSpec>,
    logs: Arc<LogRegistry>,
    mime: MimeCache,
    handed: Handed,
    purpose: Purpose,
    stability: Vec<Stability>,
    /// Blocks that are decided for each connection, in the order of the text.
    connection_blocks: Vec<BlockId>,
    /// Blocks that are decided for each host.
    host_blocks: Vec<BlockId>,
    /// Blocks that depend on both host and connection. They are decided for each request, because the scope
    /// of a host does not know the connection, and in a TLS handshake for its connection.
    mixed_blocks: Vec<BlockId>,
    /// Blocks that switch TLS on for a whole listener, even while they are false.
    nested_tls: Vec<BlockId>,
    asks_for_host: bool,
    /// The blocks whose condition names one host, for the metrics.
    named_hosts: Vec<BlockId>,
    /// Whether `debug.log-state-handling` is on for some requests.
    pub(crate) traces_states: bool,
    /// The scope of all connections, if no condition compares the socket or the address.
    any_connection: OnceCell<Rc<ConnectionScope>>,
    connections: RefCell<HashMap<Vec<u64>, Rc<ConnectionScope>>>,
    interned: RefCell<HashMap<Vec<u64>, Rc<Settings>>>,
    profiles: Cell<u32>,
}

/// The facts that decide whether a block is true: those of its own condition and of all blocks around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stability {
    Always,
    Connection,
    Host,
    /// Both host and connection.
    HostOnConnection,
    Request,
    /// The request and the physical path, which becomes known late.
    Physical,
}

/// What is decided once for a connection.
pub struct ConnectionScope {
    truths: Truths,
    hosts: RefCell<HashMap<Box<[u8]>, Rc<HostScope>, foldhash::fast::RandomState>>,
    /// The scope of all hosts, if no condition compares the host.
    any_host: Option<Rc<HostScope>>,
    proxy_headers: Option<ProxyHeaders>,
    /// Which versions of HTTP/2 clients may speak.
    pub(crate) http2: Http2Offer,
    /// Whether clients speak TLS.
    pub(crate) speaks_tls: bool,
}

/// What is decided once for a host on a connection.
pub struct HostScope {
    truths: Truths,
    /// Which of the hosts that the configuration names this is.
    pub(crate) name: Host,
    /// Blocks that are decided for each request, in the order of the text.
    candidates: Vec<BlockId>,
    uses_physical: bool,
    settings: RefCell<HashMap<Vec<u64>, Rc<Settings>, foldhash::fast::RandomState>>,
    only: Option<Rc<Settings>>,
    scratch: RefCell<Vec<u64>>,
}

/// The values of a request that conditions compare.
pub trait ConditionValues {
    /// Calls `with` with the value of `subject`; with an empty one if the request has none.
    fn with_value(&self, subject: &Subject, with: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

impl SettingsTable {
    /// The table of one worker.
    pub fn new(
        config: Arc<Config>,
        schema: Arc<Schema>,
        modules: Vec<&'static ModuleSpec>,
        logs: Arc<LogRegistry>,
    ) -> SettingsTable {
        let stability = stabilities(&config);
        let blocks_of = |wanted: &[Stability]| -> Vec<BlockId> {
            let is_wanted = |block: &&Block| wanted.contains(&stability[block.id.index()]);
            config
                .blocks
                .iter()
                .filter(is_wanted)
                .map(|block| block.id)
                .collect()
        };
        let nested_tls = config
            .blocks
            .iter()
            .filter(|block| nested_tls::switches_on(&config, block))
            .map(|block| block.id)
            .collect();
        let asks_for_host = config
            .blocks
            .iter()
            .any(|block| subject(block) == Some(&Subject::Host));
        let named_hosts = config
            .blocks
            .iter()
            .filter(|block| is_host_name(block))
            .map(|block| block.id)
            .collect();
        let traces_states = config
            .blocks
            .iter()
            .flat_map(|block| &block.entries)
            .any(|entry| entry.name == "debug.log-state-handling" && entry.value.is_enabling());
        SettingsTable {
            connection_blocks: blocks_of(&[Stability::Always, Stability::Connection]),
            host_blocks: blocks_of(&[Stability::Host]),
            mixed_blocks: blocks_of(&[Stability::HostOnConnection]),
            nested_tls,
            asks_for_host,
            named_hosts,
            traces_states,
            any_connection: OnceCell::new(),
            config,
            schema,
            modules,
            logs,
            mime: MimeCache::default(),
            handed: Handed::default(),
            purpose: Purpose::Serve,
            stability,
            connections: RefCell::default(),
            interned: RefCell::default(),
            profiles: Cell::new(0),
        }
    }

    /// Adds what modules made before the server process was started.
    #[must_use]
    pub fn with_handed(mut self, handed: Handed) -> SettingsTable {
        self.handed = handed;
        self
    }

    /// The settings of this table are for dry runs.
    #[must_use]
    pub fn for_dry_runs(mut self) -> SettingsTable {
        self.purpose = Purpose::DryRun;
        self
    }

    /// What a module made before the server process was started. `None`: it made nothing.
    pub fn handed<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.handed.get()
    }

    /// Builds the settings of every block together with the blocks around it, to find wrong values.
    ///
    /// # Errors
    /// The first wrong value.
    pub fn check(
        config: &Config,
        schema: &Schema,
        modules: &[&'static ModuleSpec],
    ) -> Result<(), Diagnostic> {
        let logs = LogRegistry::discarding();
        let mime = MimeCache::default();
        for block in &config.blocks {
            let mut chain = vec![block.id];
            let mut around = block.parent;
            while let Some(id) = around {
                chain.push(id);
                around = config.block(id).and_then(|block| block.parent);
            }
            chain.reverse();
            let values = Values::merge(config, schema, chain.into_iter());
            let handed = Handed::default();
            Settings::build(&values, modules, &logs, &mime, &handed, Purpose::Check, 0)?;
        }
        Ok(())
    }

    /// The configuration that the table was made from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The names of the loaded modules, in the order of their hooks.
    pub fn module_names(&self) -> impl Iterator<Item = &'static str> {
        self.modules.iter().map(|module| module.name)
    }

    /// The name of the module that answers for `route`, which is no part of a module. Empty: there is none.
    #[inline]
    pub(crate) fn module_of(&self, route: Route) -> &'static str {
        let index = route.module_index();
        let module = index.and_then(|index| self.modules.get(index));
        module.map_or("", |module| module.name)
    }

    /// The hosts that conditions of the configuration name (`$HTTP["host"] == "NAME"`). A host with several
    /// blocks is there several times.
    pub(crate) fn host_names(&self) -> impl Iterator<Item = &str> {
        let conditions = self.blocks(&self.named_hosts).map(|block| &block.condition);
        conditions.flatten().map(|condition| &*condition.pattern)
    }

    /// Which of [`SettingsTable::host_names`] `host` is.
    fn name_of(&self, host: &[u8]) -> Host {
        let mut conditions = self.blocks(&self.named_hosts).map(|block| &block.condition);
        let is_it = |condition: &Option<Condition>| {
            condition
                .as_ref()
                .is_some_and(|condition| condition.matcher.matches(host))
        };
        conditions.position(is_it).map_or(Host::OTHER, Host::named)
    }

    /// Decides the blocks for a connection that `listener` (its address in canonical form) accepted from
    /// `peer`, which speaks `scheme`.
    pub(crate) fn connection_scope(
        &self,
        listener: &str,
        peer: Option<IpAddr>,
        scheme: Scheme,
    ) -> Rc<ConnectionScope> {
        if let Some(scope) = self.any_connection.get() {
            return Rc::clone(scope);
        }
        let blocks = self.config.blocks.len();
        let mut truths = Truths::new(blocks + self.nested_tls.len());
        for block in self.blocks(&self.connection_blocks) {
            truths.decide(&self.config, block, || {
                block
                    .condition
                    .as_ref()
                    .is_none_or(|condition| holds_for_connection(condition, listener, peer, scheme))
            });
        }
        for (number, block) in self.blocks(&self.nested_tls).enumerate() {
            let condition = block.condition.as_ref();
            let is_its_listener = condition
                .is_some_and(|condition| holds_for_connection(condition, listener, peer, scheme));
            truths.set(blocks + number, is_its_listener);
        }
        if let Some(scope) = self.connections.borrow().get(&truths.bits) {
            return Rc::clone(scope);
        }
        let settings = self.intern(&truths);
        let proxy_headers = settings.proxy_headers.clone();
        let http2 = settings.core.http2;
        let speaks_tls = settings.speaks_tls;
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= limits::HOST_SCOPES_MAX {
            connections.clear();
        }
        let any_host = (!self.asks_for_host).then(|| self.host_scope_of(&truths, b""));
        let key = truths.bits.clone();
        let scope = Rc::new(ConnectionScope {
            truths,
            hosts: RefCell::default(),
            any_host,
            proxy_headers,
            http2,
            speaks_tls,
        });
        connections.insert(key, Rc::clone(&scope));
        if !self.stability.contains(&Stability::Connection) && self.nested_tls.is_empty() {
            let _ = self.any_connection.set(Rc::clone(&scope));
        }
        scope
    }

    /// Decides the blocks for requests to `host` on such a connection.
    #[inline]
    pub(crate) fn host_scope(&self, connection: &ConnectionScope, host: &[u8]) -> Rc<HostScope> {
        match &connection.any_host {
            Some(scope) => Rc::clone(scope),
            None => self.host_scope_of_name(connection, host),
        }
    }

    fn host_scope_of_name(&self, connection: &ConnectionScope, host: &[u8]) -> Rc<HostScope> {
        if let Some(scope) = connection.hosts.borrow().get(host) {
            return Rc::clone(scope);
        }
        let scope = self.host_scope_of(&connection.truths, host);
        let mut hosts = connection.hosts.borrow_mut();
        if hosts.len() >= limits::HOST_SCOPES_MAX {
            hosts.clear();
        }
        hosts.insert(host.into(), Rc::clone(&scope));
        scope
    }

    /// The settings outside all conditions on requests.
    pub(crate) fn unconditional(&self, connection: &ConnectionScope) -> Rc<Settings> {
        self.intern(&connection.truths)
    }

    /// The TLS settings for clients that name `host` in the handshake on such a connection. Only conditions
    /// on the host are evaluated, because the request is not known yet. `None`: clients do not speak TLS.
    pub(crate) fn tls_host(
        &self,
        connection: &ConnectionScope,
        host: &[u8],
        listener: &str,
        peer: Option<IpAddr>,
    ) -> Option<Rc<TlsHost>> {
        let scope = self.host_scope(connection, host);
        if self.mixed_blocks.is_empty() {
            return self.intern(&scope.truths).tls.clone();
        }
        let mut truths = scope.truths.clone();
        for block in self.blocks(&self.mixed_blocks) {
            truths.decide(&self.config, block, || match &block.condition {
                None => true,
                Some(condition) if condition.subject == Subject::Host => {
                    condition.matcher.matches(host)
                }
                Some(condition) => holds_for_connection(condition, listener, peer, Scheme::Https),
            });
        }
        self.intern(&truths).tls.clone()
    }

    /// The settings for a request in `scope`.
    #[inline]
    pub fn settings(&self, scope: &HostScope, request: &dyn ConditionValues) -> Rc<Settings> {
        match &scope.only {
            Some(settings) => Rc::clone(settings),
            None => self.decide(scope, request),
        }
    }

    /// The blocks that are true for a request in `scope`, in the order of the text, without the global one.
    /// For tracing: the result is not cached.
    pub fn true_blocks(&self, scope: &HostScope, request: &dyn ConditionValues) -> Vec<&Block> {
        let truths = self.truths_for(scope, request);
        let is_true = |block: &&Block| block.id != BlockId::GLOBAL && truths.is_true(block.id);
        self.config.blocks.iter().filter(is_true).collect()
    }

    /// The entries that count where these blocks are true. For dry runs: the result is not cached.
    pub(crate) fn entries_of(
        &self,
        true_blocks: impl Iterator<Item = BlockId>,
    ) -> Vec<(&str, BlockId, &Entry)> {
        let values = Values::merge(&self.config, &self.schema, true_blocks);
        values.chosen().collect()
    }

    /// How each condition is decided for a request in `scope`, in the order of the text. For dry runs.
    pub(crate) fn decisions(
        &self,
        scope: &HostScope,
        request: &dyn ConditionValues,
    ) -> Vec<Decision> {
        let truths = self.truths_for(scope, request);
        let blocks = self.config.blocks.iter();
        let decision = |block: &Block| {
            let around = block.parent.is_none_or(|parent| truths.is_true(parent));
            let verdict = match (around, truths.is_true(block.id)) {
                (false, _) => Verdict::OuterFails,
                (true, true) => Verdict::Holds,
                (true, false) if truths.an_earlier_branch_is_true(&self.config, block) => {
                    Verdict::EarlierBranchHolds
                }
                (true, false) => Verdict::Fails,
            };
            let is_compared = matches!(verdict, Verdict::Holds | Verdict::Fails);
            let subject = subject(block).filter(|_| is_compared);
            let value = subject.map(|subject| {
                let mut text = Vec::new();
                request.with_value(subject, &mut |value| {
                    text.extend_from_slice(value);
                    true
                });
                text
            });
            Decision {
                block: block.id,
                verdict,
                value,
            }
        };
        blocks.skip(1).map(decision).collect()
    }

    fn truths_for(&self, scope: &HostScope, request: &dyn ConditionValues) -> Truths {
        let mut truths = scope.truths.clone();
        self.decide_candidates(scope, request, &mut truths);
        truths
    }

    /// The condition of a block.
    pub fn condition(&self, block: BlockId) -> Option<&petrel_config::Condition> {
        self.config.block(block)?.condition.as_ref()
    }

    fn decide(&self, scope: &HostScope, request: &dyn ConditionValues) -> Rc<Settings> {
        let mut scratch = scope.scratch.borrow_mut();
        let mut truths = Truths {
            bits: std::mem::take(&mut *scratch),
        };
        truths.bits.clear();
        truths.bits.extend_from_slice(&scope.truths.bits);
        self.decide_candidates(scope, request, &mut truths);
        let found = scope.settings.borrow().get(&truths.bits).map(Rc::clone);
        let settings = found.unwrap_or_else(|| {
            let settings = self.intern(&truths);
            let mut known = scope.settings.borrow_mut();
            if known.len() >= limits::SETTINGS_PER_HOST_MAX {
                known.clear();
            }
            known.insert(truths.bits.clone(), Rc::clone(&settings));
            settings
        });
        *scratch = truths.bits;
        settings
    }

    /// Decides the blocks that `scope` leaves to each request.
    #[inline]
    fn decide_candidates(
        &self,
        scope: &HostScope,
        request: &dyn ConditionValues,
        truths: &mut Truths,
    ) {
        for block in self.blocks(&scope.candidates) {
            truths.decide(&self.config, block, || match &block.condition {
                None => true,
                Some(condition) => request.with_value(&condition.subject, &mut |value| {
                    condition.matcher.matches(value)
                }),
            });
        }
    }

    fn host_scope_of(&self, connection: &Truths, host: &[u8]) -> Rc<HostScope> {
        let mut truths = connection.clone();
        for block in self.blocks(&self.host_blocks) {
            truths.decide(&self.config, block, || match &block.condition {
                None => true,
                Some(condition) => condition.matcher.matches(host),
            });
        }
        let mut candidates: Vec<BlockId> = Vec::new();
        for block in &self.config.blocks {
            let around_may_be = block
                .parent
                .is_none_or(|parent| truths.is_true(parent) || candidates.contains(&parent));
            let earlier_may_not_be = !truths.an_earlier_branch_is_true(&self.config, block);
            let left = self.stability_of(block) > Stability::Host;
            if left && around_may_be && earlier_may_not_be {
                candidates.push(block.id);
            }
        }
        let uses_physical = candidates
            .iter()
            .filter_map(|id| self.stability.get(id.index()))
            .any(|stability| *stability == Stability::Physical);
        let only = candidates.is_empty().then(|| self.intern(&truths));
        Rc::new(HostScope {
            truths,
            name: self.name_of(host),
            candidates,
            uses_physical,
            settings: RefCell::default(),
            only,
            scratch: RefCell::default(),
        })
    }

    fn blocks(&self, ids: &[BlockId]) -> impl Iterator<Item = &Block> {
        ids.iter().filter_map(|id| self.config.block(*id))
    }

    fn stability_of(&self, block: &Block) -> Stability {
        self.stability
            .get(block.id.index())
            .copied()
            .unwrap_or(Stability::Physical)
    }

    /// The settings for this set of true blocks, from the cache or new.
    fn intern(&self, truths: &Truths) -> Rc<Settings> {
        if let Some(settings) = self.interned.borrow().get(&truths.bits) {
            return Rc::clone(settings);
        }
        let profile = self.profiles.get() + 1;
        self.profiles.set(profile);
        let true_blocks = self
            .config
            .blocks
            .iter()
            .map(|block| block.id)
            .filter(|id| truths.is_true(*id));
        let mut values = Values::merge(&self.config, &self.schema, true_blocks);
        let mut nested = self.blocks(&self.nested_tls).enumerate();
        // As in lighttpd, the first one in the text counts.
        if let Some((_, block)) =
            nested.find(|(number, _)| truths.is_set(self.config.blocks.len() + number))
        {
            nested_tls::add(&mut values, block, &self.schema);
        }
        let (modules, logs, mime) = (&self.modules, &self.logs, &self.mime);
        let handed = &self.handed;
        let built = Settings::build(&values, modules, logs, mime, handed, self.purpose, profile);
        let settings = Rc::new(built.unwrap_or_else(|diagnostic| {
            // Start-up has checked every block. If building fails now, it is because of a combination of
            // blocks, or because of a passing problem. Serving no request is the safe reaction.
            self.logs.error(format_args!(
                "settings: {diagnostic:?}; requests with them get 503"
            ));
            Settings::unavailable(&values, &self.schema, &self.logs, profile)
        }));
        let mut interned = self.interned.borrow_mut();
        if interned.len() >= limits::SETTINGS_PER_HOST_MAX {
            interned.clear();
        }
        interned.insert(truths.bits.clone(), Rc::clone(&settings));
        settings
    }
}

impl ConnectionScope {
    /// Whether a connection from `peer` begins with a header of the PROXY protocol.
    pub(crate) fn expects_proxy_header(&self, peer: Option<IpAddr>) -> bool {
        self.proxy_headers.as_ref().is_some_and(|from| from(peer))
    }
}

impl HostScope {
    /// Whether there are conditions that are evaluated for each request.
    #[inline]
    pub(crate) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Whether the settings may change when the physical path becomes known.
    #[inline]
    pub(crate) fn uses_physical(&self) -> bool {
        self.uses_physical
    }
}

/// One bit for each block, then one for each of [`SettingsTable::nested_tls`]: whether the connection came in
/// by that listener.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Truths {
    bits: Vec<u64>,
}

impl Truths {
    fn new(count: usize) -> Truths {
        Truths {
            bits: vec![0; count.div_ceil(64)],
        }
    }

    fn is_true(&self, id: BlockId) -> bool {
        self.is_set(id.index())
    }

    fn is_set(&self, index: usize) -> bool {
        self.bits
            .get(index / 64)
            .is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Decides `block`; all blocks before it must be decided. `holds` evaluates its own condition.
    fn decide(&mut self, config: &Config, block: &Block, holds: impl FnOnce() -> bool) {
        let around = block.parent.is_none_or(|parent| self.is_true(parent));
        let is_true = around && !self.an_earlier_branch_is_true(config, block) && holds();
        self.set(block.id.index(), is_true);
    }

    fn set(&mut self, index: usize, is_true: bool) {
        if let Some(word) = self.bits.get_mut(index / 64) {
            *word &= !(1 << (index % 64));
            *word |= u64::from(is_true) << (index % 64);
        }
    }

    fn an_earlier_branch_is_true(&self, config: &Config, block: &Block) -> bool {
        let mut branch = block.previous_branch;
        while let Some(id) = branch {
            if self.is_true(id) {
                return true;
            }
            branch = config.block(id).and_then(|block| block.previous_branch);
        }
        false
    }
}

/// Whether a condition on the socket, the address or the scheme holds for a connection.
fn holds_for_connection(
    condition: &Condition,
    listener: &str,
    peer: Option<IpAddr>,
    scheme: Scheme,
) -> bool {
    match (&condition.subject, peer) {
        (Subject::RemoteIp, Some(peer)) => condition.matcher.matches_ip(peer),
        (Subject::RemoteIp, None) => condition.matcher.matches(b""),
        (Subject::Scheme, _) => condition.matcher.matches(scheme.as_str().as_bytes()),
        _ => condition.matcher.matches(listener.as_bytes()),
    }
}

fn subject(block: &Block) -> Option<&Subject> {
    block.condition.as_ref().map(|condition| &condition.subject)
}

fn is_host_name(block: &Block) -> bool {
    block.condition.as_ref().is_some_and(|condition| {
        condition.subject == Subject::Host
            && condition.op == Op::Eq
            && !condition.pattern.is_empty()
    })
}

fn stabilities(config: &Config) -> Vec<Stability> {
    let mut all: Vec<Stability> = Vec::with_capacity(config.blocks.len());
    for block in &config.blocks {
        let of = |id: BlockId| all.get(id.index()).copied().unwrap_or(Stability::Always);
        let own = match subject(block) {
            None => Stability::Always,
            Some(Subject::SocketAddress | Subject::RemoteIp | Subject::Scheme) => {
                Stability::Connection
            }
            Some(Subject::Host) => Stability::Host,
            Some(Subject::PhysicalPath | Subject::PhysicalExistingPath) => Stability::Physical,
            Some(_) => Stability::Request,
        };
        let around = block.parent.map_or(Stability::Always, of);
        let before = block.previous_branch.map_or(Stability::Always, of);
        let outside = around.max(before);
        let mixed = own == Stability::Connection && outside == Stability::Host;
        all.push(if mixed {
            Stability::HostOnConnection
        } else {
            own.max(outside)
        });
    }
    all
}

#[cfg(test)]
mod tests;
