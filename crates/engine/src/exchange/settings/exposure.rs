//! What protects is never ignored: directives that are known, not built, and whose absence would
//! expose something make their scope answer 503. So do those that give URLs to backends and scripts
//! ([`GATEWAYS`]) when nobody reads them, because their module is not in `server.modules`, and keys of
//! theirs with an empty list of backends: what they cover is source, or not for everybody.
//!
//! Where such a directive names the URLs it is about ([`MAPS_OF_URLS`], [`SUFFIXES`], [`RULES`],
//! [`PREFIXED`]), only those are closed; otherwise the whole scope is, also where the value holds
//! addresses or scripts.

use petrel_config::{Array, Config, Element, Entry, Pattern, Schema};

use super::Values;
use crate::module::ModuleSpec;

/// The URLs that are closed, and by which directive.
#[derive(Debug, Default)]
pub struct Exposure {
    closed: Vec<RefusesAll>,
}

#[derive(Debug)]
struct RefusesAll {
    directive: String,
    urls: Urls,
}

/// What a directive is about.
#[derive(Debug)]
enum Urls {
    /// Its whole scope.
    All,
    /// Paths with these prefixes and suffixes.
    Keys(Vec<Vec<u8>>),
    /// Targets that one of these rules leads elsewhere.
    Rules(Vec<Rule>),
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    /// It has no replacement: what it matches stays as it is, and no later rule is tried.
    leaves: bool,
}

impl Urls {
    fn of(entry: &Entry, values: &Values<'_>) -> Urls {
        let name = entry.name.as_str();
        if RULES.contains(&name) {
            return rules(entry).map_or(Urls::All, Urls::Rules);
        }
        let keys = match PREFIXED.iter().find(|(directive, _)| *directive == name) {
            Some((_, prefix)) => prefix_in(values, prefix),
            None => keys(entry),
        };
        keys.map_or(Urls::All, Urls::Keys)
    }

    fn contain(&self, path: &[u8], target: &[u8]) -> bool {
        match self {
            Urls::All => true,
            Urls::Keys(keys) => keys.iter().any(|key| covers(key, path)),
            Urls::Rules(rules) => rules
                .iter()
                .find(|rule| rule.pattern.may_match(target))
                .is_some_and(|rule| !rule.leaves || !rule.pattern.is_match(target)),
        }
    }

    /// Whether that is every URL there can be, as far as the configuration shows.
    fn are_all(&self) -> bool {
        match self {
            Urls::All => true,
            Urls::Keys(keys) => keys.iter().any(|key| key.is_empty() || key == b"/"),
            Urls::Rules(rules) => rules
                .first()
                .is_some_and(|rule| !rule.leaves && MATCHES_ALL.contains(&rule.pattern.as_str())),
        }
    }

    fn contain_suffix_of(&self, path: &[u8]) -> bool {
        let Urls::Keys(keys) = self else { return false };
        let is_suffix = |key: &&Vec<u8>| !key.is_empty() && key.first() != Some(&b'/');
        keys.iter().filter(is_suffix).any(|key| covers(key, path))
    }
}

impl Exposure {
    /// `modules`: those that take part.
    pub(super) fn new(values: &Values<'_>, modules: &[&ModuleSpec]) -> Exposure {
        let closed = values.exposing().iter().map(|entry| RefusesAll {
            directive: entry.name.clone(),
            urls: Urls::of(entry, values),
        });
        let mut closed: Vec<_> = closed.collect();
        for entry in GATEWAYS.iter().filter_map(|name| values.entry(name)) {
            let urls = match is_read(&entry.name, modules) {
                true => keys_without_backends(entry),
                false => entry.value.is_enabling().then(|| Urls::of(entry, values)),
            };
            closed.extend(urls.map(|urls| RefusesAll {
                directive: entry.name.clone(),
                urls,
            }));
        }
        Exposure { closed }
    }

    /// Closes every URL.
    pub(super) fn everything(directive: &str) -> Exposure {
        Exposure {
            closed: vec![RefusesAll {
                directive: directive.to_owned(),
                urls: Urls::All,
            }],
        }
    }

    /// The directive that closes the URL with the decoded `path` and the normalised `target`, which
    /// is path and query, if one does.
    #[inline]
    pub fn closes(&self, path: &[u8], target: &[u8]) -> Option<&str> {
        self.first(|urls| urls.contain(path, target))
    }

    /// The same for a physical path, where only suffixes mean anything.
    #[inline]
    pub(crate) fn closes_suffix(&self, path: &[u8]) -> Option<&str> {
        self.first(|urls| urls.contain_suffix_of(path))
    }

    #[inline]
    fn first(&self, closes: impl Fn(&Urls) -> bool) -> Option<&str> {
        let found = self.closed.iter().find(|closed| closes(&closed.urls));
        found.map(|closed| closed.directive.as_str())
    }
}

/// The entries outside all conditions that close every URL, where no condition sets the directive otherwise.
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
        let is_closing =
            |closed: &RefusesAll| closed.directive == entry.name && closed.urls.are_all();
        let mut others = config.blocks.iter().filter(|block| block.id != global.id);
        closed.iter().any(is_closing) && others.all(|block| block.entry(&entry.name).is_none())
    });
    closing
}

/// Whether `directive` gives URLs to backends, so that its scope is closed when nobody reads it.
pub fn is_gateway(directive: &str) -> bool {
    GATEWAYS.contains(&directive)
}

/// Whether one of `modules` knows `directive`.
fn is_read(directive: &str, modules: &[&ModuleSpec]) -> bool {
    let mut directives = modules.iter().flat_map(|module| module.directives);
    directives.any(|spec| spec.name == directive)
}

/// The keys of a map of backends that have none.
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

/// lighttpd's rule for keys: a prefix when it begins with a slash, otherwise a suffix of the path
/// or of any part of it that path-info may follow. Letter case is ignored, so that a case-insensitive
/// file system opens nothing.
fn covers(key: &[u8], path: &[u8]) -> bool {
    if key.first() == Some(&b'/') {
        return path.len() >= key.len() && path[..key.len()].eq_ignore_ascii_case(key);
    }
    let ends = |part: &[u8]| {
        part.len() >= key.len() && part[part.len() - key.len()..].eq_ignore_ascii_case(key)
    };
    ends(path) || memchr::memchr_iter(b'/', path).any(|slash| ends(&path[..slash]))
}

/// The prefixes and suffixes that `entry` is about; none when it is about everything in its scope.
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

/// The rules of `entry`; none when one of them is no regular expression.
fn rules(entry: &Entry) -> Option<Vec<Rule>> {
    let elements = entry.value.as_array()?.iter();
    let rules = elements.map(|element| {
        Some(Rule {
            pattern: Pattern::compile(element.key()?).ok()?,
            leaves: element.value.as_str() == Some(""),
        })
    });
    rules.collect()
}

/// The URL prefix that the directive `name` holds; none when it is not set or is no prefix.
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

/// Of these, those that have a list of backends behind each key.
const BACKENDS: &[&str] = &[
    "ajp13.server",
    "fastcgi.server",
    "proxy.server",
    "scgi.server",
];

/// Directives whose value is one suffix, or a list of them.
const SUFFIXES: &[&str] = &["ssi.extension", "cml.extension"];

/// Directives whose value is a map with regular expressions as keys. As lighttpd has it, they are
/// about path and query together, and letter case counts.
const RULES: &[&str] = &[
    "url.rewrite-once",
    "url.rewrite",
    "url.rewrite-final",
    "url.rewrite-repeat",
    "url.rewrite-if-not-file",
    "url.rewrite-repeat-if-not-file",
];

/// How rules that are about every URL begin.
const MATCHES_ALL: &[&str] = &[
    "", "^", "^/", ".*", "^.*", "^.*$", "^/.*", "^/.*$", "(.*)", "^(.*)", "^(.*)$", "^/(.*)",
    "^/(.*)$",
];

/// Directives about the URLs below the prefix that another directive holds.
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
        for (value, is_all) in [
            ("( \"^/(.*)$\" => \"/index.php?$1\" )", true),
            ("( \"^/a\" => \"/b\", \".*\" => \"/\" )", false),
            ("( \".*\" => \"\" )", false),
        ] {
            let found = all(&["url.rewrite-once"], ValueKind::StringMap, value);
            assert_eq!(found, is_all, "{value}");
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

    /// What `text` closes, when the first directive in it exposes and the rest are of the same kind.
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

    /// What `name = value` closes.
    fn one(name: &'static &'static str, kind: ValueKind, value: &str) -> Exposure {
        exposure(
            std::slice::from_ref(name),
            kind,
            &format!("{name} = {value}"),
        )
    }

    fn closes(exposure: &Exposure, path: &str) -> bool {
        exposure.closes(path.as_bytes(), path.as_bytes()).is_some()
    }

    #[test]
    fn a_map_of_urls_closes_these() {
        let text = "( \"/private/\" => \"x\", \".php\" => \"y\" )";
        let closed = one(&"fastcgi.server", ValueKind::Map, text);
        assert_eq!(closed.closes(b"/private/x", b""), Some("fastcgi.server"));
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

    /// The first directive is another one, so that these are built.
    fn gateway(text: &str, modules: &[&ModuleSpec]) -> Exposure {
        const NAMES: &[&str] = &["t.exposes", "fastcgi.server", "proxy-core.backends"];
        exposure_with(NAMES, ValueKind::Any, text, modules)
    }

    #[test]
    fn a_gateway_that_nobody_reads_closes_its_urls() {
        let text = "fastcgi.server = ( \".php\" => (( \"socket\" => \"/s\" )), \"/app\" => () )";
        let closed = gateway(text, &[]);
        assert!(closes(&closed, "/a.php") && closes(&closed, "/app/x"));
        assert!(!closes(&closed, "/a.html"));
        assert!(closed.closes_suffix(b"/srv/index.php").is_some());
        let everything = gateway("proxy-core.backends = ( \"a:1\" )", &[]);
        assert!(closes(&everything, "/a.html"));
        for off in ["fastcgi.server = ()", "proxy-core.backends = ()"] {
            assert!(!closes(&gateway(off, &[]), "/a.php"), "{off}");
        }
    }

    #[test]
    fn a_key_without_backends_is_closed_also_when_somebody_reads_it() {
        let text = "fastcgi.server = ( \".php\" => (( \"socket\" => \"/s\" )), \"/app\" => () )";
        let closed = gateway(text, &[&FASTCGI]);
        assert!(!closes(&closed, "/a.php"), "its backends answer");
        assert!(closes(&closed, "/app/x"));
    }

    #[test]
    fn a_list_of_suffixes_closes_these() {
        let closed = one(&"ssi.extension", ValueKind::List, "( \".shtml\" )");
        assert_eq!(closed.closes(b"/a.shtml", b""), Some("ssi.extension"));
        assert_eq!(
            closed.closes_suffix(b"/srv/index.shtml"),
            Some("ssi.extension")
        );
        assert!(!closes(&closed, "/a.html"));
    }

    #[test]
    fn rules_close_the_targets_they_match() {
        for name in RULES {
            let rules = "( \"^/old/(\\d+)$\" => \"/new\", \"\\?page=\" => \"/page\" )";
            let closed = one(name, ValueKind::StringMap, rules);
            assert_eq!(closed.closes(b"/old/12", b"/old/12"), Some(*name));
            assert_eq!(closed.closes(b"/x", b"/x?page=1"), Some(*name));
            assert!(!closes(&closed, "/old/x"));
            assert_eq!(closed.closes(b"/old/12", b"/old/12?a"), None);
            assert!(!closes(&closed, "/OLD/12"));
            assert_eq!(closed.closes_suffix(b"/srv/old/12"), None);
        }
    }

    #[test]
    fn a_match_that_explodes_closes() {
        let rules = "( \"^/(a+)+$\" => \"/b\" )";
        let closed = one(&"url.rewrite-once", ValueKind::StringMap, rules);
        assert!(closes(&closed, &format!("/{}!", "a".repeat(60))));
        assert!(!closes(&closed, "/b"));
    }

    #[test]
    fn a_rule_without_a_replacement_leaves_what_it_matches_open() {
        let rules = "( \"^/a/b\" => \"/c\", \"^/a/(x+x+)*$|^/a/y\" => \"\", \"^/\" => \"/d\" )";
        let closed = one(&"url.rewrite-once", ValueKind::StringMap, rules);
        assert!(!closes(&closed, "/a/y"));
        assert!(!closes(&closed, "/a/xx"));
        assert!(closes(&closed, "/a/b"));
        assert!(closes(&closed, "/e"));
        let in_doubt = format!("/a/{}!", "x".repeat(60));
        assert!(closes(&closed, &in_doubt));
    }

    #[test]
    fn a_rule_that_does_not_compile_closes_everything() {
        let rules = "( \"^/a\" => \"/b\", \"^/(\" => \"/c\" )";
        let closed = one(&"url.rewrite-once", ValueKind::StringMap, rules);
        assert!(closes(&closed, "/x"));
    }

    #[test]
    fn signed_links_close_what_is_below_their_prefix() {
        const NAMES: &[&str] = &["secdownload.secret", "secdownload.uri-prefix"];
        let closed = |prefix: &str| {
            let text = format!("secdownload.secret = \"s\"\n{prefix}");
            exposure(NAMES, ValueKind::String, &text)
        };
        let some = closed("secdownload.uri-prefix = \"/dl/\"");
        assert_eq!(some.closes(b"/dl/x", b"/dl/x"), Some("secdownload.secret"));
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
        let closed = one(&"url.rewrite-once", ValueKind::StringMap, "()");
        assert!(!closes(&closed, "/"));
        assert!(!closes(&Exposure::default(), "/"));
    }
}
