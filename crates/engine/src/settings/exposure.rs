//! What protects is never ignored: directives that are known, not built, and whose absence would
//! expose something make their scope answer 503.
//!
//! Where such a directive names the URLs it is about ([`MAPS_OF_URLS`], [`SUFFIXES`]), only those are
//! closed; otherwise the whole scope is, also where the value holds patterns, addresses or scripts.

use petrel_config::Entry;

use super::Values;

/// The URLs that are closed, and by which directive.
#[derive(Debug, Default)]
pub struct Exposure {
    closed: Vec<Closed>,
}

#[derive(Debug)]
struct Closed {
    directive: String,
    /// `None`: everything.
    keys: Option<Vec<Vec<u8>>>,
}

impl Exposure {
    pub(super) fn new(values: &Values<'_>) -> Exposure {
        let closed = values.exposing().iter().map(|entry| Closed {
            directive: entry.name.clone(),
            keys: keys(entry),
        });
        Exposure {
            closed: closed.collect(),
        }
    }

    /// Closes every URL.
    pub(super) fn everything(directive: &str) -> Exposure {
        Exposure {
            closed: vec![Closed {
                directive: directive.to_owned(),
                keys: None,
            }],
        }
    }

    /// The directive that closes `path` (a URL path or a physical path), if one does.
    #[inline]
    pub fn closes(&self, path: &[u8]) -> Option<&str> {
        if self.closed.is_empty() {
            return None;
        }
        let closes = |closed: &&Closed| match &closed.keys {
            None => true,
            Some(keys) => keys.iter().any(|key| covers(key, path)),
        };
        self.closed
            .iter()
            .find(closes)
            .map(|closed| closed.directive.as_str())
    }

    /// The same for a physical path, where only suffixes mean anything.
    #[inline]
    pub fn closes_suffix(&self, path: &[u8]) -> Option<&str> {
        let is_suffix = |key: &&Vec<u8>| !key.is_empty() && key.first() != Some(&b'/');
        let closes = |closed: &&Closed| {
            closed
                .keys
                .iter()
                .flatten()
                .filter(is_suffix)
                .any(|key| covers(key, path))
        };
        self.closed
            .iter()
            .find(closes)
            .map(|closed| closed.directive.as_str())
    }
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

/// Directives whose value is one suffix, or a list of them.
const SUFFIXES: &[&str] = &["ssi.extension", "cml.extension"];

#[cfg(test)]
mod tests {
    use petrel_config::{
        BlockId, DirectiveSpec, Effect, LoadOptions, Schema, Scope, Shell, ValueKind, parse_str,
    };

    use super::*;

    #[test]
    fn keys_are_prefixes_or_suffixes() {
        assert!(covers(b"/private/", b"/private/x"));
        assert!(!covers(b"/private/", b"/public/private/"));
        assert!(covers(b".php", b"/a.php"));
        assert!(covers(b".php", b"/a.PHP/path/info"));
        assert!(!covers(b".php", b"/a.phps"));
        assert!(covers(b"", b"/anything"));
    }

    /// What `text` closes, when `name` exposes.
    fn exposure(name: &'static str, kind: ValueKind, text: &str) -> Exposure {
        let spec = DirectiveSpec {
            name,
            kind,
            scope: Scope::Request,
            default: "()",
            effect: Effect::Exposes("a test"),
            doc: "A test.",
        };
        let table: &'static [DirectiveSpec] = Box::leak(Box::new([spec]));
        let schema = Schema::new(&[table]);
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let text = format!("{name} = {text}");
        let config = parse_str("test", &text, &schema, &options).expect("valid configuration");
        let values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
        Exposure::new(&values)
    }

    #[test]
    fn a_map_of_urls_closes_these() {
        let text = "( \"/private/\" => \"x\", \".php\" => \"y\" )";
        let closed = exposure("fastcgi.server", ValueKind::Map, text);
        assert_eq!(closed.closes(b"/private/x"), Some("fastcgi.server"));
        assert_eq!(closed.closes(b"/a.php"), Some("fastcgi.server"));
        assert_eq!(closed.closes(b"/a.html"), None);
        assert_eq!(
            closed.closes_suffix(b"/srv/index.php"),
            Some("fastcgi.server")
        );
        assert_eq!(closed.closes_suffix(b"/private/x"), None);
    }

    #[test]
    fn a_list_of_suffixes_closes_these() {
        let closed = exposure("ssi.extension", ValueKind::List, "( \".shtml\" )");
        assert_eq!(closed.closes(b"/a.shtml"), Some("ssi.extension"));
        assert_eq!(
            closed.closes_suffix(b"/srv/index.shtml"),
            Some("ssi.extension")
        );
        assert_eq!(closed.closes(b"/a.html"), None);
    }

    #[test]
    fn patterns_addresses_and_scripts_close_everything() {
        let rewrite = "( \"^/old\" => \"/new\" )";
        let closed = exposure("url.rewrite-once", ValueKind::StringMap, rewrite);
        assert_eq!(closed.closes(b"/x"), Some("url.rewrite-once"));
        let forwarder = "( \"10.0.0.1\" => \"trust\" )";
        let closed = exposure("extforward.forwarder", ValueKind::StringMap, forwarder);
        assert_eq!(closed.closes(b"/x"), Some("extforward.forwarder"));
        let scripts = "( \"/etc/a.lua\" )";
        let closed = exposure("magnet.attract-raw-url-to", ValueKind::List, scripts);
        assert_eq!(closed.closes(b"/x"), Some("magnet.attract-raw-url-to"));
    }

    #[test]
    fn nothing_set_closes_nothing() {
        let closed = exposure("url.rewrite-once", ValueKind::StringMap, "()");
        assert_eq!(closed.closes(b"/"), None);
        assert_eq!(Exposure::default().closes(b"/"), None);
    }
}
