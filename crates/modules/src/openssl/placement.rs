//! In which conditions `ssl.*` may stand. In the handshake the server knows the connection and the host that
//! the client asks for, but nothing of the request. A directive inside a condition on the request would leave
//! a listener in the clear, or protect nothing.

use petrel_engine::config::{Block, Config, Diagnostic, Entry, Subject};
use petrel_engine::settings::nested_tls::{is_known_before_tls, is_nested_listener};

use super::options::{self, ServerFiles};

/// An error for every directive in `config` whose condition is not known when the directive is needed.
/// `is_loaded`: a TLS module is loaded.
pub(super) fn errors(config: &Config, is_loaded: bool) -> Vec<Diagnostic> {
    if !options::is_used(config) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    for block in &config.blocks {
        let before_tls = is_known_before_tls(config, block) || is_nested_listener(config, block);
        let in_handshake = config.depends_only_on(block, &|subject| {
            use Subject::{Host, RemoteIp, Scheme, SocketAddress};
            matches!(subject, SocketAddress | RemoteIp | Scheme | Host)
        });
        for entry in &block.entries {
            errors.extend(match entry.name.as_str() {
                "ssl.engine" if entry.value.as_bool() != Some(true) => None,
                "ssl.engine" if !is_loaded => Some(not_loaded(entry)),
                "ssl.engine" if !before_tls => Some(too_late_to_begin(entry)),
                name if OF_THE_HANDSHAKE.contains(&name) && !in_handshake => Some(unseen(entry)),
                "ssl.verifyclient.activate"
                    if entry.value.as_bool() == Some(true) && others_are_let_in(config, block) =>
                {
                    Some(passed_by(entry))
                }
                _ => None,
            });
        }
    }
    errors
}

/// Whether `block` is a `$SERVER["socket"]` inside other conditions, and a certificate outside these
/// conditions lets the listener also serve clients that do not match them.
fn others_are_let_in(config: &Config, block: &Block) -> bool {
    let is_inside = |inner: &Block| {
        let mut around = std::iter::successors(Some(inner), |inner| config.block(inner.parent?));
        around.any(|around| around.id == block.id)
    };
    let has_certificate = |block: &Block| ServerFiles::of(block, "ssl.pemfile").is_some();
    is_nested_listener(config, block)
        && block.entry("ssl.engine").is_some()
        && config
            .blocks
            .iter()
            .any(|other| has_certificate(other) && !is_inside(other))
}

fn not_loaded(entry: &Entry) -> Diagnostic {
    let message = "ssl.engine: mod_openssl is not in server.modules, so the listener would speak in the clear";
    Diagnostic::error(message, entry.name_span).with_hint("add \"mod_openssl\" to server.modules")
}

fn too_late_to_begin(entry: &Entry) -> Diagnostic {
    let message =
        "ssl.engine belongs to a listener: in this condition the listener would speak in the clear";
    Diagnostic::error(message, entry.name_span)
        .with_hint("set it outside all conditions or in $SERVER[\"socket\"] == \"…\"")
}

fn unseen(entry: &Entry) -> Diagnostic {
    let message = format!(
        "{} counts in the handshake, before there is a request: its condition is not known then",
        entry.name
    );
    Diagnostic::error(message, entry.name_span)
        .with_hint("set it outside all conditions, in $SERVER[\"socket\"] or in $HTTP[\"host\"]")
}

fn passed_by(entry: &Entry) -> Diagnostic {
    let message = "ssl.verifyclient.activate: the listener would let in clients without a certificate, where the conditions \
                   around $SERVER[\"socket\"] are not true";
    Diagnostic::error(message, entry.name_span)
        .with_hint("put $SERVER[\"socket\"] outside all conditions, and the conditions inside")
}

/// Directives that the handshake needs. `ssl.verifyclient.username` and `ssl.verifyclient.exportcert` are not
/// among them: they are applied to each request.
const OF_THE_HANDSHAKE: [&str; 13] = [
    "ssl.pemfile",
    "ssl.privkey",
    "ssl.stapling-file",
    "ssl.acme-tls-1",
    "ssl.ca-file",
    "ssl.ca-dn-file",
    "ssl.ca-crl-file",
    "ssl.verifyclient.activate",
    "ssl.verifyclient.enforce",
    "ssl.verifyclient.depth",
    "ssl.verifyclient.ca-file",
    "ssl.verifyclient.ca-dn-file",
    "ssl.verifyclient.ca-crl-file",
];

#[cfg(test)]
mod tests {
    use petrel_engine::config::{LoadOptions, Shell, parse_str};

    fn refused(text: &str) -> Vec<String> {
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let config = parse_str("test", text, &crate::schema(), &options).expect("valid");
        let errors = crate::refusals(&config).into_iter();
        errors
            .map(|error| {
                assert!(error.span.is_some() && error.hint.is_some(), "{text}");
                error.message
            })
            .collect()
    }

    #[test]
    fn no_listener_that_was_to_speak_tls_speaks_in_the_clear() {
        let socket = "$SERVER[\"socket\"] == \":443\"";
        for text in [
            "server.compat-module-load = \"disable\"\nssl.engine = \"enable\"".to_owned(),
            format!("{socket} {{ $HTTP[\"host\"] == \"a\" {{ ssl.engine = \"enable\" }} }}"),
            "$HTTP[\"host\"] == \"a\" { $SERVER[\"socket\"] =~ \":443\" { ssl.engine = \"enable\" } }".to_owned(),
            "$HTTP[\"host\"] == \"a\" { } else { ssl.engine = \"enable\" }".to_owned(),
            // The scheme is "http" until TLS has begun.
            "$HTTP[\"scheme\"] == \"https\" { ssl.engine = \"enable\" }".to_owned(),
        ] {
            let errors = refused(&text);
            let [error] = &errors[..] else {
                panic!("{text}: {errors:?}")
            };
            assert!(error.contains("would speak in the clear"), "{error}");
        }
        for text in [
            "server.compat-module-load = \"disable\"\nssl.engine = \"disable\"".to_owned(),
            "server.compat-module-load = \"disable\"\nserver.modules = ( \"mod_gnutls\" )\nssl.engine = \"enable\""
                .to_owned(),
            format!("{socket} {{ ssl.engine = \"enable\" }}"),
            // As in lighttpd the whole listener speaks TLS.
            format!("$HTTP[\"host\"] == \"a\" {{ {socket} {{ ssl.engine = \"enable\" }} }}"),
            format!("$HTTP[\"scheme\"] == \"https\" {{ {socket} {{ ssl.engine = \"enable\" }} }}"),
            format!("$HTTP[\"url\"] == \"/\" {{ }} else {socket} {{ ssl.engine = \"enable\" }}"),
            format!("$HTTP[\"remoteip\"] == \"10.0.0.0/8\" {{ }} else {{ {socket} {{ ssl.engine = \"enable\" }} }}"),
            format!("{socket} {{ $HTTP[\"host\"] == \"a\" {{ ssl.engine = \"disable\" }} }}"),
        ] {
            assert!(refused(&text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_listener_in_a_condition_lets_no_client_pass_by_its_rule() {
        let with = |outside: &str, inside: &str| {
            refused(&format!(
                "{outside}\n$HTTP[\"host\"] == \"a\" {{ $SERVER[\"socket\"] == \":443\" {{
                    ssl.engine = \"enable\"
                    {inside}
                    $HTTP[\"host\"] == \"b\" {{ ssl.pemfile = \"/b\" }}
                }} }}"
            ))
        };
        let rule = "ssl.pemfile = \"/a\"\nssl.verifyclient.activate = \"enable\"";
        assert!(with("", rule).is_empty());
        assert!(with("ssl.pemfile = \"/c\"", "ssl.pemfile = \"/a\"").is_empty());
        for outside in [
            "ssl.pemfile = \"/c\"",
            "$HTTP[\"host\"] == \"c\" { ssl.pemfile = \"/c\" }",
        ] {
            let errors = with(outside, rule);
            assert_eq!(errors.len(), 1, "{outside}: {errors:?}");
            assert!(errors[0].contains("would let in"), "{errors:?}");
        }
    }

    #[test]
    fn certificates_stand_where_the_handshake_sees_them() {
        let with = |block: &str, name: &str, value: &str| {
            refused(&format!(
                "ssl.engine = \"enable\"\n{block} {{ {name} = \"{value}\" }}"
            ))
        };
        for (name, value) in [
            ("ssl.pemfile", "/a"),
            ("ssl.privkey", "/a"),
            ("ssl.ca-file", "/a"),
            ("ssl.verifyclient.activate", "enable"),
            ("ssl.verifyclient.enforce", "disable"),
        ] {
            for block in [
                "$HTTP[\"url\"] =^ \"/a\"",
                "$HTTP[\"cookie\"] == \"a\"",
                "$PHYSICAL[\"path\"] == \"/a\"",
                "$HTTP[\"url\"] =^ \"/a\" { } else $HTTP[\"host\"] == \"a\"",
            ] {
                let errors = with(block, name, value);
                assert_eq!(errors.len(), 1, "{block} {name}: {errors:?}");
                assert!(errors[0].starts_with(name), "{errors:?}");
            }
            for block in ["$HTTP[\"host\"] == \"a\"", "$HTTP[\"scheme\"] == \"https\""] {
                assert!(with(block, name, value).is_empty(), "{block} {name}");
            }
        }
        let block = "$HTTP[\"url\"] =^ \"/a\"";
        assert!(with(block, "ssl.verifyclient.username", "SSL_CLIENT_S_DN_CN").is_empty());
        assert!(refused(&format!("{block} {{ ssl.pemfile = \"/a\" }}")).is_empty());
    }
}
