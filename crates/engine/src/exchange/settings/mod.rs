//! From the configuration tree to the settings of a request.
//!
//! [`Values`] merges the entries of all blocks that are true. [`Settings`] is made from that: typed values
//! and the hooks of all modules that have work. [`scope::SettingsTable`] decides which blocks are true and
//! caches the results, so that requests do not merge options each time.

pub mod core;
pub mod directives;
pub mod exposure;
pub mod mime;
pub mod nested_tls;
pub mod process;
pub mod scope;

use std::rc::Rc;

use hashbrown::HashMap;
use petrel_config::{Array, BlockId, Config, Diagnostic, Effect, Entry, Op, Schema, Span, Value};

use crate::handed::Handed;
use crate::log::LogRegistry;
use crate::metrics::Route;
use crate::module::{
    Configure, InstalledHook, Loaded, LooksNext, ModuleSpec, Phase, ProxyHeaders, Purpose,
    TakesUnread,
};
use crate::tls::TlsHost;
pub use core::{CoreSettings, ReplyStreaming};
pub(crate) use exposure::Exposure;
pub(crate) use mime::MimeCache;
pub use process::ProcessSettings;
pub use scope::{ConnectionScope, HostScope, SettingsTable};

/// The settings for one set of true blocks. Built once and shared by all requests that have the same set.
pub struct Settings {
    /// A number that no other `Settings` of this worker has, for use as a key in caches.
    pub profile: u32,
    /// The core's per-request directives, typed.
    pub core: CoreSettings,
    /// The URLs that answer 503 because a directive that protects them has no effect.
    pub exposure: Exposure,
    /// Whether a hook needs the local address of the connection.
    pub(crate) wants_local_address: bool,
    /// Whether a hook needs replies of backends as a whole ([`Configure::want_whole_replies`]).
    ///
    /// [`Configure::want_whole_replies`]: crate::module::Configure::want_whole_replies
    pub wants_whole_replies: bool,
    /// Files that hooks get even if this process may not read them.
    pub(crate) unread: Vec<TakesUnread>,
    pub(crate) next_names: Vec<LooksNext>,
    /// Which peers begin their connections with a header of the PROXY protocol.
    pub(crate) proxy_headers: Option<ProxyHeaders>,
    /// The certificates, and the rules for clients that speak TLS.
    pub(crate) tls: Option<Rc<TlsHost>>,
    /// Whether clients must speak TLS. If `tls` is `None`, their handshakes fail with an alert.
    pub(crate) speaks_tls: bool,
    hooks: [Vec<InstalledHook>; Phase::COUNT],
}

impl Settings {
    /// The hooks of `phase`, in the order of `server.modules`.
    #[inline]
    pub(crate) fn hooks(&self, phase: Phase) -> &[InstalledHook] {
        &self.hooks[phase as usize]
    }

    /// Builds the settings for `values`. `mime` must belong to the same configuration.
    ///
    /// # Errors
    /// The first value that the core or its module refuses.
    pub fn build(
        values: &Values<'_>,
        modules: &[&'static ModuleSpec],
        logs: &LogRegistry,
        mime: &MimeCache,
        handed: &Handed,
        purpose: Purpose,
        profile: u32,
    ) -> Result<Settings, Diagnostic> {
        let core = CoreSettings::new(values, logs, mime)?;
        let mut configure = Configure {
            values,
            logs,
            purpose,
            handed,
            module: "",
            route: Route::CORE,
            first_hooks: Vec::new(),
            early_hooks: Vec::new(),
            hooks: Vec::new(),
            last_hooks: Vec::new(),
            wants_local_address: false,
            wants_whole_replies: false,
            unread: Vec::new(),
            next_names: Vec::new(),
            proxy_headers: None,
            tls: None,
        };
        for (index, module) in modules.iter().enumerate() {
            configure.module = module.name;
            configure.route = Route::of_module(index);
            (module.configure)(&mut configure)?;
        }
        let wants_local_address = configure.wants_local_address;
        let wants_whole_replies = configure.wants_whole_replies;
        let (proxy_headers, tls) = (configure.proxy_headers, configure.tls);
        let unread = configure.unread;
        let next_names = configure.next_names;
        let outer = configure
            .first_hooks
            .into_iter()
            .chain(configure.early_hooks);
        let inner = configure.hooks.into_iter().chain(configure.last_hooks);
        let mut hooks: [Vec<InstalledHook>; Phase::COUNT] = Default::default();
        for (phase, hook) in outer.chain(inner) {
            hooks[phase as usize].push(hook);
        }
        Ok(Settings {
            profile,
            core,
            exposure: Exposure::new(values, modules),
            wants_local_address,
            wants_whole_replies,
            unread,
            next_names,
            proxy_headers,
            speaks_tls: tls.is_some(),
            tls,
            hooks,
        })
    }

    /// Settings that answer every request with 503, because those for `wanted` could not be built. If
    /// `wanted` says TLS, clients still have to speak TLS, so that nothing is sent in the clear by mistake.
    fn unavailable(
        wanted: &Values<'_>,
        schema: &Schema,
        logs: &LogRegistry,
        profile: u32,
    ) -> Settings {
        let defaults = Values::merge(wanted.config, schema, std::iter::empty());
        let core =
            CoreSettings::new(&defaults, logs, &MimeCache::default()).expect("defaults are valid");
        Settings {
            profile,
            core,
            exposure: Exposure::everything("the configuration"),
            wants_local_address: false,
            wants_whole_replies: false,
            unread: Vec::new(),
            next_names: Vec::new(),
            proxy_headers: None,
            tls: None,
            speaks_tls: wanted.bool("ssl.engine") == Some(true),
            hooks: Default::default(),
        }
    }
}

/// Whether `server.feature-flags` offers HTTP/2 to clients that speak TLS.
pub fn offers_http2(values: &Values<'_>) -> bool {
    process::Http2Offer::read(values).over_tls
}

/// The modules that are used, in the order of their hooks: those that are always used, those in
/// `server.modules`, and those that lighttpd adds itself while `server.compat-module-load` is on.
pub fn loaded_modules(config: &Config, known: &[&'static ModuleSpec]) -> Vec<&'static ModuleSpec> {
    let global = config.global();
    let listed = global
        .entry("server.modules")
        .and_then(|entry| entry.value.as_strings());
    let listed = listed.unwrap_or_default();
    let compat = global
        .entry("server.compat-module-load")
        .and_then(|entry| entry.value.as_bool())
        .unwrap_or(true);
    let find = |name: &str| {
        // As in lighttpd since 1.4.56, where mod_deflate replaced mod_compress.
        let name = match name {
            "mod_compress" => "mod_deflate",
            "mod_boringssl" | "mod_gnutls" | "mod_mbedtls" | "mod_nss" | "mod_wolfssl" => {
                "mod_openssl"
            }
            _ => name,
        };
        known.iter().copied().find(|module| module.name == name)
    };
    let mut loaded: Vec<&'static ModuleSpec> = Vec::new();
    // As in lighttpd, which puts mod_auth in front of a list that names a part of it first.
    let of_auth = listed.iter().find(|name| name.starts_with("mod_auth"));
    if compat && of_auth.is_some_and(|name| *name != "mod_auth") {
        loaded.extend(find("mod_auth"));
    }
    let unlisted = known.iter().copied().filter(|module| {
        module.loaded == Loaded::Always || (module.loaded == Loaded::Compat && compat)
    });
    for module in listed.iter().filter_map(|name| find(name)).chain(unlisted) {
        if !loaded.iter().any(|there| there.name == module.name) {
            loaded.push(module);
        }
    }
    loaded
}

/// The merged values of all true blocks.
pub struct Values<'c> {
    config: &'c Config,
    chosen: HashMap<&'c str, (BlockId, &'c Entry)>,
    exposing: Vec<&'c Entry>,
}

impl<'c> Values<'c> {
    /// Merges the blocks `true_blocks`, which must come in the order of the text.
    pub fn merge(
        config: &'c Config,
        schema: &Schema,
        true_blocks: impl Iterator<Item = BlockId>,
    ) -> Values<'c> {
        let mut values = Values {
            config,
            chosen: HashMap::new(),
            exposing: Vec::new(),
        };
        for block in true_blocks.filter_map(|id| config.block(id)) {
            for entry in &block.entries {
                let name = match schema.get(&entry.name).map(|spec| spec.effect) {
                    Some(Effect::Renamed(name)) => name,
                    _ => entry.name.as_str(),
                };
                values.chosen.insert(name, (block.id, entry));
            }
        }
        let exposes = |entry: &Entry| {
            let effect = schema.get(&entry.name).map(|spec| spec.effect);
            matches!(effect, Some(Effect::Exposes(_))) && entry.value.is_enabling()
        };
        values.exposing = values
            .chosen
            .values()
            .map(|(_, entry)| *entry)
            .filter(|entry| exposes(entry))
            .collect();
        values
    }

    /// All entries that count, with the names of their directives and their blocks, in no order.
    pub(crate) fn chosen(self) -> impl Iterator<Item = (&'c str, BlockId, &'c Entry)> {
        let chosen = self.chosen.into_iter();
        chosen.map(|(name, (block, entry))| (name, block, entry))
    }

    /// The configuration the values come from.
    pub fn config(&self) -> &'c Config {
        self.config
    }

    /// The entry of `name` that counts.
    pub fn entry(&self, name: &str) -> Option<&'c Entry> {
        self.chosen.get(name).map(|(_, entry)| *entry)
    }

    /// The value of `name`. `None`: it is not set.
    pub fn value(&self, name: &str) -> Option<&'c Value> {
        self.entry(name).map(|entry| &entry.value)
    }

    /// The value of a string directive. `None`: it is not set or empty.
    pub fn string(&self, name: &str) -> Option<&'c str> {
        self.value(name)?.as_str().filter(|text| !text.is_empty())
    }

    /// The value of a switch.
    pub fn bool(&self, name: &str) -> Option<bool> {
        self.value(name)?.as_bool()
    }

    /// The value of an integer directive.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.value(name)?.as_integer()
    }

    /// The value of a number, at least 0, or `default` if it is not set.
    pub fn unsigned(&self, name: &str, default: u32) -> u32 {
        match self.integer(name) {
            Some(number) => u32::try_from(number.max(0)).unwrap_or(u32::MAX),
            None => default,
        }
    }

    /// The value of a list or map.
    pub fn array(&self, name: &str) -> Option<&'c Array> {
        self.value(name)?.as_array()
    }

    /// The values of a list of strings; empty if it is not set.
    pub fn strings(&self, name: &str) -> Vec<&'c str> {
        self.value(name)
            .and_then(Value::as_strings)
            .unwrap_or_default()
    }

    /// The block with the entry of `name` that counts.
    pub fn block_of(&self, name: &str) -> Option<BlockId> {
        self.chosen.get(name).map(|(block, _)| *block)
    }

    /// The values that are set inside conditions, with their directives, in no order.
    pub fn conditional(&self) -> impl Iterator<Item = (&'c str, &'c Value)> {
        let set = self.chosen.iter();
        let conditional = set.filter(|(_, (block, _))| *block != BlockId::GLOBAL);
        conditional.map(|(name, (_, entry))| (*name, &entry.value))
    }

    /// The block whose captures `%0` to `%9` mean in the directive `name`: the innermost block around it with
    /// a regular expression. If there is none, the innermost one that compares with a text.
    pub fn condition_of(&self, name: &str) -> Option<BlockId> {
        let first = self.config.block(self.chosen.get(name)?.0);
        let with_one_of = |ops: &[Op]| {
            let around = std::iter::successors(first, |block| self.config.block(block.parent?));
            let mut conditional =
                around.filter_map(|block| Some((block.id, block.condition.as_ref()?)));
            conditional.find_map(|(id, condition)| ops.contains(&condition.op).then_some(id))
        };
        with_one_of(&[Op::Match]).or_else(|| with_one_of(&[Op::Eq, Op::Prefix, Op::Suffix]))
    }

    /// An error message that points at the value of `name`.
    pub fn error(&self, name: &str, message: impl Into<String>) -> Diagnostic {
        match self.entry(name) {
            Some(entry) => Diagnostic::error(message, entry.value_span),
            None => Diagnostic::error_anywhere(message),
        }
    }

    /// The place of the value of `name` in the text.
    pub fn span(&self, name: &str) -> Option<Span> {
        self.entry(name).map(|entry| entry.value_span)
    }

    pub(crate) fn exposing(&self) -> &[&'c Entry] {
        &self.exposing
    }
}
