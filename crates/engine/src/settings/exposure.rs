//! What protects is never ignored: directives that are known, not built, and whose absence would
//! expose something make their scope answer 503.
//!
//! Where such a directive maps URL prefixes or suffixes (`auth.require`, `fastcgi.server`,
//! `cgi.assign`), only those URLs are closed; otherwise the whole scope is.

use petrel_config::Value;

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
            keys: keys(&entry.value),
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

fn keys(value: &Value) -> Option<Vec<Vec<u8>>> {
    let keys = value
        .as_array()?
        .iter()
        .map(|element| Some(element.key()?.as_bytes().to_vec()));
    keys.collect()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn nothing_set_closes_nothing() {
        assert_eq!(Exposure::default().closes(b"/"), None);
    }
}
