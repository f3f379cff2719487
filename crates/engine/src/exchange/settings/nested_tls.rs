//! `$SERVER["socket"]` blocks with `ssl.engine` inside conditions on requests. As in lighttpd the whole
//! listener speaks TLS: a listener opens whatever conditions are around its block, and TLS begins before
//! there is a request to evaluate them for.

use petrel_config::{Block, Config, Op, Schema, Scope, Subject};

use super::Values;

/// Whether it is known before TLS begins if `block` is true. Conditions on the scheme are not: the scheme is
/// "http" until then.
pub fn is_known_before_tls(config: &Config, block: &Block) -> bool {
    config.depends_only_on(block, &|subject| {
        matches!(subject, Subject::SocketAddress | Subject::RemoteIp)
    })
}

/// Whether `block` is a block for a listener, inside a condition that is not known before TLS begins.
pub fn is_nested_listener(config: &Config, block: &Block) -> bool {
    let is_listener = block.condition.as_ref().is_some_and(|condition| {
        condition.subject == Subject::SocketAddress && condition.op == Op::Eq
    });
    is_listener && !is_known_before_tls(config, block)
}

/// Whether `block` is such a block and sets `ssl.engine`.
pub(super) fn switches_on(config: &Config, block: &Block) -> bool {
    let entry = block.entry("ssl.engine");
    entry.is_some_and(|entry| entry.value.as_bool() == Some(true))
        && is_nested_listener(config, block)
}

/// Adds the TLS settings of `block` to the values of a listener's requests, even if `block` is not true for
/// them. Other true blocks may change them, but cannot switch TLS off.
pub(super) fn add<'c>(values: &mut Values<'c>, block: &'c Block, schema: &Schema) {
    for entry in &block.entries {
        let name = entry.name.as_str();
        let spec = schema.get(name);
        let is_of_listener = spec.is_some_and(|spec| spec.scope == Scope::Socket);
        if name == "ssl.engine" {
            values.chosen.insert(name, (block.id, entry));
        } else if name.starts_with("ssl.") && is_of_listener {
            values.chosen.entry(name).or_insert((block.id, entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use petrel_config::{BlockId, Effect, LoadOptions, parse_str};

    use super::*;

    #[test]
    fn what_the_listener_offers_counts_where_no_true_block_says_otherwise() {
        let schema = Schema::new(&[crate::directives! {
            "ssl.engine", Bool, Socket, "disable", Effect::Works, "For tests.";
            "ssl.cipher-list", String, Socket, "unset", Effect::Works, "For tests.";
            "ssl.pemfile", String, Request, "unset", Effect::Works, "For tests.";
            "server.socket-perms", String, Socket, "unset", Effect::Works, "For tests.";
        }]);
        for (outside, ciphers) in [("", "A"), ("ssl.cipher-list = \"B\"", "B")] {
            let text = format!(
                "ssl.engine = \"disable\"\n{outside}\n$HTTP[\"host\"] == \"a\" {{ $SERVER[\"socket\"] == \":443\" {{
                    ssl.engine = \"enable\"
                    ssl.cipher-list = \"A\"
                    ssl.pemfile = \"a\"
                    server.socket-perms = \"0600\"
                }} }}"
            );
            let config = parse_str("test.conf", &text, &schema, &LoadOptions::from_process());
            let config = config.expect("valid");
            let block = config.blocks.last().expect("that of the listener");
            assert!(switches_on(&config, block));
            let mut values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
            add(&mut values, block, &schema);
            assert_eq!(values.bool("ssl.engine"), Some(true));
            assert_eq!(values.string("ssl.cipher-list"), Some(ciphers));
            assert_eq!(values.string("ssl.pemfile"), None);
            assert_eq!(values.string("server.socket-perms"), None);
        }
    }
}
