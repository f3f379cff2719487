//! Makes the values that conditions of the configuration have set for a request part of its key.
//!
//! `$HTTP["remoteip"]` and other conditions may send requests for the same URL to different backends. So
//! directives that are set inside conditions and can change an answer are part of the key. Their values are
//! hashed, so that all workers, the server after a restart, and other machines with the same configuration
//! get the same bytes. Without conditions nothing is added.

use petrel_engine::config::Value;
use petrel_engine::settings::Values;
use sha2::{Digest, Sha256};

/// The length of the hash.
pub(super) const BYTES: usize = 16;

/// The hash for one set of settings; `None` if no condition has set a directive that matters.
pub(super) fn of(values: &Values<'_>) -> Option<[u8; BYTES]> {
    let mut digest = None;
    let mut set: Vec<_> = values
        .conditional()
        .filter(|(name, _)| matters(name))
        .collect();
    set.sort_unstable_by_key(|(name, _)| *name);
    for (name, value) in set {
        let digest = digest.get_or_insert_with(Sha256::new);
        feed_text(digest, name);
        feed(digest, value);
    }
    let bytes = digest?.finalize();
    bytes.get(..BYTES)?.try_into().ok()
}

/// Whether a directive can change what is stored. Directives that only allow or refuse were applied before
/// the lookup, and those that change answers after the cache are applied later.
fn matters(name: &str) -> bool {
    !LATER_OR_EARLIER
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

const LATER_OR_EARLIER: [&str; 14] = [
    "page-cache.",
    "access.",
    "accesslog.",
    "auth.",
    "compress.",
    "connection.",
    "debug.",
    "deflate.",
    "expire.",
    "server.kbytes-per-second",
    "setenv.add-response-header",
    "setenv.set-response-header",
    "status.",
    "url.access-",
];

fn feed(digest: &mut Sha256, value: &Value) {
    match value {
        Value::String(text) => {
            digest.update(b"s");
            feed_text(digest, text);
        }
        Value::Integer(number) => {
            digest.update(b"i");
            digest.update(number.to_le_bytes());
        }
        Value::Array(array) => {
            digest.update(b"a");
            digest.update((array.len() as u64).to_le_bytes());
            for element in array.iter() {
                feed_text(digest, element.key().unwrap_or_default());
                feed(digest, &element.value);
            }
        }
    }
}

fn feed_text(digest: &mut Sha256, text: &str) {
    digest.update((text.len() as u64).to_le_bytes());
    digest.update(text);
}

#[cfg(test)]
mod tests {
    use petrel_engine::config::{LoadOptions, parse_str};

    use petrel_engine::config::BlockId;

    use super::*;

    fn context(text: &str, blocks: &[u32]) -> Option<[u8; BYTES]> {
        let schema = crate::schema();
        let config = parse_str("test.conf", text, &schema, &LoadOptions::from_process())
            .unwrap_or_else(|errors| panic!("{errors}"));
        let blocks = std::iter::once(BlockId::GLOBAL).chain(blocks.iter().map(|id| BlockId(*id)));
        of(&Values::merge(&config, &schema, blocks))
    }

    #[test]
    fn only_what_conditions_set_counts() {
        let global =
            "server.document-root = \"/a\"\nproxy.server = (\"/\" => ((\"host\" => \"::1\")))\n";
        assert_eq!(context(global, &[]), None);
        let two = |root: &str| {
            format!(
                "{global}$HTTP[\"remoteip\"] == \"10.0.0.1\" {{ server.document-root = \"{root}\" }}"
            )
        };
        let (inside, other) = (context(&two("/b"), &[1]), context(&two("/c"), &[1]));
        assert!(inside.is_some() && other.is_some());
        assert_ne!(inside, other);
        assert_eq!(context(&two("/b"), &[]), None);
        assert_eq!(inside, context(&format!("# moved\n{}", two("/b")), &[1]));
    }

    #[test]
    fn what_comes_before_or_behind_the_cache_does_not_count() {
        for inner in [
            "expire.url = (\"/\" => \"access 1 days\")",
            "page-cache.enable = \"enable\"",
            "url.access-deny = (\"~\")",
            "setenv.add-response-header = (\"X-A\" => \"b\")",
        ] {
            let text = format!("$HTTP[\"host\"] == \"a\" {{ {inner} }}");
            assert_eq!(context(&text, &[1]), None, "{inner}");
        }
    }
}
