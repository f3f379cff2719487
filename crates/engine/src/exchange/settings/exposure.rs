//! Answers 503 where an ignored directive would leave something unprotected.
//!
//! lighttpd ignores the directives of a module that is not loaded. Here the scope of a directive answers 503
//! in these cases:
//!
//! - the directive is known but not implemented, and ignoring it would expose something;
//! - the directive protects something ([`PROTECTORS`]), and its module is not in `server.modules`; for the rules
//!   of mod_access not if that list is a whole one in the same file;
//! - a key of one of [`BACKENDS`] has an empty list of backends.
//!
//! If a directive gives URLs to backends or scripts ([`GATEWAYS`]) and its module is not loaded, only
//! requests that would send a file get 503, because that file may be source code.
//!
//! If the directive names the URLs that it applies to ([`MAPS_OF_URLS`], [`SUFFIXES`], [`PREFIXED`]), only
//! those are closed. Otherwise the whole scope is closed, also if the value holds addresses or scripts.

use petrel_config::{Array, Config, Element, Entry, Schema, Value};

use super::Values;
use crate::module::ModuleSpec;

/// The URLs that are closed, and the directive that closes each of them.
#[derive(Debug, Default)]
pub struct Exposure {
    closed: Vec<RefusesAll>,
}

#[derive(Debug)]
struct RefusesAll {
    directive: String,
    urls: Urls,
    closes: Closes,
}

/// Which requests get 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closes {
    /// Every request that the directive applies to.
    Requests,
    /// Such a request, if a file would be sent.
    Files,
}

/// Which URLs a directive applies to.
#[derive(Debug)]
enum Urls {
    /// All URLs of its scope.
    All,
    /// URLs whose path has one of these prefixes or suffixes.
    Keys(Vec<Vec<u8>>),
}

impl Urls {
    fn of(entry: &Entry, values: &Values<'_>) -> Urls {
        let name = entry.name.as_str();
        let keys = match PREFIXED.iter().find(|(directive, _)| *directive == name) {
            Some((_, prefix)) => prefix_in(values, prefix),
            None => keys(entry),
        };
        keys.map_or(Urls::All, Urls::Keys)
    }

    fn contain(&self, path: &[u8]) -> bool {
        match self {
            Urls::All => true,
            Urls::Keys(keys) => keys.iter().any(|key| covers(key, path)),
        }
    }

    /// Whether these are all URLs, as far as the configuration shows.
    fn are_all(&self) -> bool {
        match self {
            Urls::All => true,
            Urls::Keys(keys) => keys.iter().any(|key| key.is_empty() || key == b"/"),
        }
    }

    fn contain_suffix_of(&self, path: &[u8]) -> bool {
        let Urls::Keys(keys) = self else { return false };
        let is_suffix = |key: &&Vec<u8>| !key.is_empty() && key.first() != Some(&b'/');
        keys.iter().filter(is_suffix).any(|key| covers(key, path))
    }
}

impl Exposure {
    /// What `values` close; `modules` are the ones that are loaded.
    pub(super) fn new(values: &Values<'_>, modules: &[&ModuleSpec]) -> Exposure {
        let closed = values.exposing().iter().map(|entry| RefusesAll {
            directive: entry.name.clone(),
            urls: Urls::of(entry, values),
            closes: Closes::Requests,
        });
        let mut closed: Vec<_> = closed.collect();
        let is_built = |entry: &&Entry| closed.iter().all(|known| known.directive != entry.name);
        let names = GATEWAYS.iter().chain(PROTECTORS);
        let entries = names.filter_map(|name| values.entry(name)).filter(is_built);
        let found = entries.filter_map(|entry| {
            let (closes, urls) = match is_read(&entry.name, modules) {
                true => (Closes::Requests, keys_without_backends(entry)?),
                false => (
                    closed_unread(entry, values.config)?,
                    Urls::of(entry, values),
                ),
            };
            Some(RefusesAll {
                directive: entry.name.clone(),
                urls,
                closes,
            })
        });
        let found: Vec<_> = found.collect();
        closed.extend(found);
        Exposure { closed }
    }

    /// Closes every URL.
    pub(super) fn everything(directive: &str) -> Exposure {
        Exposure {
            closed: vec![RefusesAll {
                directive: directive.to_owned(),
                urls: Urls::All,
                closes: Closes::Requests,
            }],
        }
    }

    /// Whether everything is open.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_empty()
    }

    /// The directive that closes the URL with the decoded `path`. `None`: it is open.
    #[inline]
    pub fn closes(&self, path: &[u8]) -> Option<&str> {
        self.first(Closes::Requests, |urls| urls.contain(path))
    }

    /// The directive that keeps the file `physical` from being sent for the URL `path`. `None`: it may be
    /// sent.
    #[inline]
    pub fn closes_file(&self, path: &[u8], physical: &[u8]) -> Option<&str> {
        self.first(Closes::Files, |urls| {
            urls.contain(path) || urls.contain_suffix_of(physical)
        })
    }

    /// Like [`Exposure::closes`] for a physical path, which only suffixes apply to.
    #[inline]
    pub(crate) fn closes_suffix(&self, path: &[u8]) -> Option<&str> {
        self.first(Closes::Requests, |urls| urls.contain_suffix_of(path))
    }

    #[inline]
    fn first(&self, what: Closes, closes: impl Fn(&Urls) -> bool) -> Option<&str> {
        let mut closed = self.closed.iter().filter(|closed| closed.closes == what);
        let found = closed.find(|closed| closes(&closed.urls));
        found.map(|closed| closed.directive.as_str())
    }
}

/// The entries outside all conditions that close every URL. Leaves out a directive that a condition sets to
/// another value.
pub fn of_every_request<'c>(
    config: &'c Config,
    schema: &Schema,
    modules: &[&ModuleSpec],
) -> Vec<&'c Entry> {
    let global = config.global();
    let values = Values::merge(config, schema, std::iter::once(global.id));
    let closed = Exposure::new(&values, modules).closed;
    let mut closing = global.entries.iter().collect::<Vec<_>>();
    closing.retain(|entry| {
        let is_closing = |closed: &RefusesAll| {
            let closes_all = closed.closes == Closes::Requests && closed.urls.are_all();
            closed.directive == entry.name && closes_all
        };
        let mut others = config.blocks.iter().filter(|block| block.id != global.id);
        closed.iter().any(is_closing) && others.all(|block| block.entry(&entry.name).is_none())
    });
    closing
}

/// What `entry` closes if no loaded module reads it.
pub fn closed_unread(entry: &Entry, config: &Config) -> Option<Closes> {
    let name = entry.name.as_str();
    if !entry.value.is_enabling() || is_left_out_on_purpose(entry, config) {
        return None;
    }
    if PROTECTORS.contains(&name) || runs_for_every_request(name) || has_authorizer(entry) {
        return Some(Closes::Requests);
    }
    GATEWAYS.contains(&name).then_some(Closes::Files)
}

/// Whether `entry` is a rule of mod_access, and the list of modules in the same file is complete: it was written
/// for these rules to have no effect, as they have none in lighttpd. A list of parts, or in another file, may lack
/// the module by mistake.
fn is_left_out_on_purpose(entry: &Entry, config: &Config) -> bool {
    let Some(modules) = config.global().entry("server.modules") else {
        return false;
    };
    let list = modules.value_span;
    let is_written_here = |module: &Element| {
        let span = module.span;
        span.file == list.file && list.start <= span.start && span.end <= list.end
    };
    OF_MOD_ACCESS.contains(&entry.name.as_str())
        && entry.name_span.file == list.file
        && modules
            .value
            .as_array()
            .is_some_and(|array| array.iter().all(is_written_here))
}

/// Whether the scripts of `directive` may decide which clients get a URL.
fn runs_for_every_request(directive: &str) -> bool {
    directive.starts_with("magnet.") || directive == "cml.power-magnet"
}

/// Whether a backend of `entry` is an authorizer, which decides which clients get a URL.
fn has_authorizer(entry: &Entry) -> bool {
    fn elements(value: &Value) -> impl Iterator<Item = &Element> {
        value.as_array().into_iter().flatten()
    }
    let is_authorizer = |backend: &Element| {
        let mode = backend.value.as_array().and_then(|map| map.get("mode"));
        mode.is_some_and(|mode| mode.value.as_str() == Some("authorizer"))
    };
    BACKENDS.contains(&entry.name.as_str())
        && elements(&entry.value).any(|key| elements(&key.value).any(is_authorizer))
}

/// Whether one of `modules` reads `directive`.
fn is_read(directive: &str, modules: &[&ModuleSpec]) -> bool {
    let mut directives = modules.iter().flat_map(|module| module.directives);
    directives.any(|spec| spec.name == directive)
}

/// The keys of a map of backends that have an empty list.
fn keys_without_backends(entry: &Entry) -> Option<Urls> {
    if !BACKENDS.contains(&entry.name.as_str()) {
        return None;
    }
    let is_empty = |element: &&Element| element.value.as_array().is_some_and(Array::is_empty);
    let elements = entry.value.as_array()?.iter().filter(is_empty);
    let keys: Vec<_> = elements
        .filter_map(|element| Some(element.key()?.as_bytes().to_vec()))
        .collect();
    (!keys.is_empty()).then_some(Urls::Keys(keys))
}

/// lighttpd's rule for keys: a key that begins with a slash is a prefix of the path. Any other key is a
/// suffix of the path, or of a part of it after which path-info may follow. Letter case is ignored, so that a
/// case-insensitive file system does not open what a key closes.
fn covers(key: &[u8], path: &[u8]) -> bool {
    if key.first() == Some(&b'/') {
        return path.len() >= key.len() && path[..key.len()].eq_ignore_ascii_case(key);
    }
    let ends = |part: &[u8]| {
        part.len() >= key.len() && part[part.len() - key.len()..].eq_ignore_ascii_case(key)
    };
    ends(path) || memchr::memchr_iter(b'/', path).any(|slash| ends(&path[..slash]))
}

/// The prefixes and suffixes that `entry` applies to. `None`: it applies to its whole scope.
fn keys(entry: &Entry) -> Option<Vec<Vec<u8>>> {
    let name = entry.name.as_str();
    if MAPS_OF_URLS.contains(&name) {
        let elements = entry.value.as_array()?.iter();
        let keys = elements.map(|element| Some(element.key()?.as_bytes().to_vec()));
        return keys.collect();
    }
    let suffixes = SUFFIXES.contains(&name).then(|| entry.value.as_strings());
    let suffixes = suffixes.flatten()?.into_iter();
    Some(suffixes.map(|suffix| suffix.as_bytes().to_vec()).collect())
}

/// The URL prefix in the directive `name`. `None`: it is not set, or its value is no prefix.
fn prefix_in(values: &Values<'_>, name: &str) -> Option<Vec<Vec<u8>>> {
    let prefix = values.string(name).filter(|text| text.starts_with('/'))?;
    Some(vec![prefix.as_bytes().to_vec()])
}

/// Directives whose value is a map with URL prefixes or suffixes as keys.
const MAPS_OF_URLS: &[&str] = &[
    "auth.require",
    "cgi.assign",
    "fastcgi.server",
    "fastcgi.map-extensions",
    "scgi.server",
    "scgi.map-extensions",
    "proxy.server",
    "proxy.map-extensions",
    "ajp13.server",
    "ajp13.map-extensions",
    "wstunnel.server",
    "wstunnel.map-extensions",
];

/// Directives that give URLs to backends, programs or scripts.
const GATEWAYS: &[&str] = &[
    "ajp13.map-extensions",
    "ajp13.server",
    "cgi.assign",
    "cml.extension",
    "cml.power-magnet",
    "fastcgi.map-extensions",
    "fastcgi.server",
    "magnet.attract-physical-path-to",
    "magnet.attract-raw-url-to",
    "magnet.attract-response-header-to",
    "magnet.attract-response-start-to",
    "proxy-core.backends",
    "proxy.map-extensions",
    "proxy.server",
    "scgi.map-extensions",
    "scgi.server",
];

/// Directives that decide which clients get a URL, or which address the server takes for the client's.
const PROTECTORS: &[&str] = &[
    "auth.require",
    "evasive.max-conns-per-ip",
    "extforward.forwarder",
    "limit.rules",
    "secdownload.secret",
    "trigger-before-download.download-url",
    "url.access-allow",
    "url.access-deny",
];

/// Those of [`PROTECTORS`] that hide files of a kind, and ask no client who it is.
const OF_MOD_ACCESS: &[&str] = &["url.access-allow", "url.access-deny"];

/// The gateways that have a list of backends for each key.
const BACKENDS: &[&str] = &[
    "ajp13.server",
    "fastcgi.server",
    "proxy.server",
    "scgi.server",
];

/// Directives whose value is one suffix, or a list of them.
const SUFFIXES: &[&str] = &["ssi.extension", "cml.extension", "url.access-deny"];

/// Directives that apply to the URLs below a prefix, with the directive that holds the prefix.
const PREFIXED: &[(&str, &str)] = &[("secdownload.secret", "secdownload.uri-prefix")];

#[cfg(test)]
mod tests {
    use petrel_config::{
        BlockId, DirectiveSpec, Effect, LoadOptions, Scope, Shell, ValueKind, parse_str,
    };

    use super::*;
    use crate::module::Loaded;

    #[test]
    fn some_values_close_every_url() {
        let all = |names: &'static [&'static str], kind, value: &str| {
            let exposure = exposure(names, kind, &format!("{} = {value}", names[0]));
            exposure.closed.iter().any(|closed| closed.urls.are_all())
        };
        assert!(all(&["evasive.max-conns-per-ip"], ValueKind::Int, "5"));
        assert!(!all(&["evasive.max-conns-per-ip"], ValueKind::Int, "0"));
        for (value, is_all) in [
            ("( \"/\" => \"x\" )", true),
            ("( \"/a\" => \"x\", \"\" => \"y\" )", true),
            ("( \"/a\" => \"x\", \".php\" => \"y\" )", false),
        ] {
            assert_eq!(
                all(&["auth.require"], ValueKind::Map, value),
                is_all,
                "{value}"
            );
        }
    }

    #[test]
    fn keys_are_prefixes_or_suffixes() {
        assert!(covers(b"/private/", b"/private/x"));
        assert!(!covers(b"/private/", b"/public/private/"));
        assert!(covers(b".php", b"/a.php"));
        assert!(covers(b".php", b"/a.PHP/path/info"));
        assert!(!covers(b".php", b"/a.phps"));
        assert!(covers(b"", b"/anything"));
    }

    /// What `text` closes. Its first directive exposes something; the others have the same type.
    fn exposure(names: &'static [&'static str], kind: ValueKind, text: &str) -> Exposure {
        exposure_with(names, kind, text, &[])
    }

    fn exposure_with(
        names: &'static [&'static str],
        kind: ValueKind,
        text: &str,
        modules: &[&ModuleSpec],
    ) -> Exposure {
        let spec = |name: &&'static str| DirectiveSpec {
            name,
            kind,
            scope: Scope::Request,
            default: "()",
            effect: match *name == names[0] {
                true => Effect::Exposes("a test"),
                false => Effect::NotYet("a test"),
            },
            doc: "A test.",
        };
        let table: &'static [DirectiveSpec] =
            Box::leak(names.iter().map(spec).collect::<Vec<_>>().into());
        let schema = Schema::new(&[table]);
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let config = parse_str("test", text, &schema, &options).expect("valid configuration");
        let values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
        Exposure::new(&values, modules)
    }

    /// What the line `name = value` closes.
    fn one(name: &'static &'static str, kind: ValueKind, value: &str) -> Exposure {
        exposure(
            std::slice::from_ref(name),
            kind,
            &format!("{name} = {value}"),
        )
    }

    fn closes(exposure: &Exposure, path: &str) -> bool {
        exposure.closes(path.as_bytes()).is_some()
    }

    fn closes_file(exposure: &Exposure, path: &str) -> bool {
        let path = path.as_bytes();
        exposure.closes_file(path, b"/srv").is_some()
    }

    #[test]
    fn a_map_of_urls_closes_these() {
        let text = "( \"/private/\" => \"x\", \".php\" => \"y\" )";
        let closed = one(&"fastcgi.server", ValueKind::Map, text);
        assert_eq!(closed.closes(b"/private/x"), Some("fastcgi.server"));
        assert!(closes(&closed, "/a.php"));
        assert!(!closes(&closed, "/a.html"));
        assert_eq!(
            closed.closes_suffix(b"/srv/index.php"),
            Some("fastcgi.server")
        );
        assert_eq!(closed.closes_suffix(b"/private/x"), None);
    }

    static FASTCGI: ModuleSpec = ModuleSpec {
        name: "mod_test",
        doc: "A test.",
        loaded: Loaded::Listed,
        directives: &[DirectiveSpec {
            name: "fastcgi.server",
            kind: ValueKind::Map,
            scope: Scope::Request,
            default: "()",
            effect: Effect::Works,
            doc: "A test.",
        }],
        configure: |_| Ok(()),
    };

    /// What `text` closes if gateways are implemented: `exposure_with` treats only the first name as not
    /// implemented.
    fn gateway(text: &str, modules: &[&ModuleSpec]) -> Exposure {
        const NAMES: &[&str] = &["t.exposes", "fastcgi.server", "proxy-core.backends"];
        exposure_with(NAMES, ValueKind::Any, text, modules)
    }

    #[test]
    fn a_gateway_whose_module_is_not_loaded_closes_its_urls() {
        let text = "fastcgi.server = ( \".php\" => (( \"socket\" => \"/s\" )), \"/app\" => () )";
        let closed = gateway(text, &[]);
        assert!(closes_file(&closed, "/a.php") && closes_file(&closed, "/app/x"));
        assert!(!closes_file(&closed, "/a.html"));
        let index = closed.closes_file(b"/", b"/srv/index.php");
        assert!(index.is_some());
        assert!(
            !closes(&closed, "/a.php"),
            "lighttpd's answer, where there is no file"
        );
        let everything = gateway("proxy-core.backends = ( \"a:1\" )", &[]);
        assert!(closes_file(&everything, "/a.html"));
        for off in ["fastcgi.server = ()", "proxy-core.backends = ()"] {
            assert!(!closes_file(&gateway(off, &[]), "/a.php"), "{off}");
        }
    }

    #[test]
    fn what_decides_who_gets_something_closes_its_scope_unread() {
        let text = "fastcgi.server = ( \"/in/\" => (( \"socket\" => \"/s\", \"mode\" => \"authorizer\" )) )";
        let closed = gateway(text, &[]);
        assert!(closes(&closed, "/in/x") && !closes(&closed, "/out"));
        const NAMES: &[&str] = &[
            "t.exposes",
            "url.access-deny",
            "extforward.forwarder",
            "server.modules",
        ];
        let protector = |text: &str| exposure_with(NAMES, ValueKind::Any, text, &[]);
        let closed = protector("url.access-deny = ( \"~\", \".inc\" )");
        assert!(closes(&closed, "/a.inc") && closes(&closed, "/a~") && !closes(&closed, "/a"));
        let modules = "server.modules = ( \"mod_alias\" )\n";
        let rule = "url.access-deny = ( \"~\" )";
        let left_out = protector(&format!("{modules}{rule}"));
        assert!(!closes(&left_out, "/a~"), "on purpose, says the list");
        let parts = protector(&format!(
            "{modules}server.modules += ( \"mod_status\" )\n{rule}"
        ));
        assert!(closes(&parts, "/a~"), "it may have been forgotten");
        let closed = protector("extforward.forwarder = ( \"10.0.0.1\" => \"trust\" )");
        assert!(closes(&closed, "/"));
    }

    #[test]
    fn a_key_without_backends_is_closed_even_if_its_module_is_loaded() {
        let text = "fastcgi.server = ( \".php\" => (( \"socket\" => \"/s\" )), \"/app\" => () )";
        let closed = gateway(text, &[&FASTCGI]);
        assert!(!closes(&closed, "/a.php"), "its backends answer");
        assert!(closes(&closed, "/app/x"));
    }

    #[test]
    fn a_list_of_suffixes_closes_these() {
        let closed = one(&"ssi.extension", ValueKind::List, "( \".shtml\" )");
        assert_eq!(closed.closes(b"/a.shtml"), Some("ssi.extension"));
        assert_eq!(
            closed.closes_suffix(b"/srv/index.shtml"),
            Some("ssi.extension")
        );
        assert!(!closes(&closed, "/a.html"));
    }

    #[test]
    fn signed_links_close_what_is_below_their_prefix() {
        const NAMES: &[&str] = &["secdownload.secret", "secdownload.uri-prefix"];
        let closed = |prefix: &str| {
            let text = format!("secdownload.secret = \"s\"\n{prefix}");
            exposure(NAMES, ValueKind::String, &text)
        };
        let some = closed("secdownload.uri-prefix = \"/dl/\"");
        assert_eq!(some.closes(b"/dl/x"), Some("secdownload.secret"));
        assert!(!closes(&some, "/x/dl/"));
        for prefix in [
            "",
            "secdownload.uri-prefix = \"\"",
            "secdownload.uri-prefix = \"dl\"",
        ] {
            assert!(closes(&closed(prefix), "/x"), "{prefix}");
        }
        let unset = exposure(
            NAMES,
            ValueKind::String,
            "secdownload.uri-prefix = \"/dl/\"",
        );
        assert!(!closes(&unset, "/dl/x"));
    }

    #[test]
    fn addresses_and_scripts_close_everything() {
        let forwarder = "( \"10.0.0.1\" => \"trust\" )";
        let closed = one(&"extforward.forwarder", ValueKind::StringMap, forwarder);
        assert!(closes(&closed, "/x"));
        let scripts = "( \"/etc/a.lua\" )";
        let closed = one(&"magnet.attract-raw-url-to", ValueKind::List, scripts);
        assert!(closes(&closed, "/x"));
    }

    #[test]
    fn nothing_set_closes_nothing() {
        let closed = one(&"auth.require", ValueKind::Map, "()");
        assert!(!closes(&closed, "/"));
        assert!(!closes(&Exposure::default(), "/"));
    }
}
