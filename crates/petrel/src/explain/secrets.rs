//! What `petrel explain` does not print, because people show its output to others: passwords and keys that are
//! written in the configuration.

use config::value::Key;
use config::{Array, Element, Value};

/// The value of a directive, with … in place of each secret.
pub(super) fn without_secrets(directive: &str, value: &Value) -> Value {
    masked(value, SECRET_DIRECTIVES.contains(&directive))
}

/// A text in which URLs have … in place of user and password.
pub(super) fn without_passwords(text: &str) -> String {
    let mut pieces = text.split("://");
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let authority = piece.split(['/', '?', '#', '"', ' ', ',']).next();
        let user = authority.and_then(|authority| authority.rfind('@'));
        shown += "://";
        shown += user.map_or("", |_| MASK);
        shown += piece.get(user.unwrap_or(0)..).unwrap_or_default();
    }
    shown
}

fn masked(value: &Value, is_secret: bool) -> Value {
    match value {
        Value::Array(array) => {
            let mut changed = Array::default();
            for Element { key, value, span } in array {
                let is_secret = is_secret || key.as_ref().is_some_and(names_a_secret);
                // It cannot be refused: its keys are those of an array that had each once.
                let _ = changed.push(Element {
                    key: key.clone(),
                    value: masked(value, is_secret),
                    span: *span,
                });
            }
            Value::Array(changed)
        }
        _ if is_secret => Value::String(MASK.to_owned()),
        Value::String(text) => Value::String(without_passwords(text)),
        Value::Integer(number) => Value::Integer(*number),
    }
}

/// Whether the value behind this key is a secret: an option such as "nonce-secret", an environment variable or a
/// field of a request. Keys that are paths are none of these.
fn names_a_secret(Key { text, .. }: &Key) -> bool {
    let text = text.to_ascii_lowercase();
    !text.contains(['/', '.']) && SECRET_ENDS.iter().any(|end| text.ends_with(end))
}

/// Directives whose whole value is secret.
const SECRET_DIRECTIVES: &[&str] = &[
    "auth.backend.ldap.bind-pw",
    "auth.backend.mysql.pass",
    "mysql-vhost.pass",
    "otel.headers",
    "secdownload.secret",
    "sql-vhost.pass",
];
/// How the names of secrets end.
const SECRET_ENDS: &[&str] = &[
    "api-key",
    "api_key",
    "authorization",
    "pass",
    "passwd",
    "password",
    "pw",
    "secret",
    "secret_key",
    "token",
];
/// What is printed in place of a secret.
const MASK: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;
    use config::LoadOptions;

    #[test]
    fn secrets_are_not_shown_and_everything_else_is() {
        let text = r#"
            auth.backend.ldap.bind-pw = "hush"
            secdownload.secret = "hush"
            otel.headers = ( "X-Anything" => "hush" )
            setenv.add-environment = ( "DB_PASSWORD" => "hush", "DB_HOST" => "kept1" )
            auth.require = ( "/secret" => ( "method" => "digest", "realm" => "kept2", "require" => "kept3",
                "nonce-secret" => "hush" ) )
            auth.backend.ldap.hostname = "ldap://me:hush@kept4/"
            server.tag = "kept5""#;
        let schema = modules::schema();
        let config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
            .expect("a configuration");
        let mut shown = String::new();
        for entry in config.blocks.iter().flat_map(|block| &block.entries) {
            shown += &format!("{:?}\n", without_secrets(&entry.name, &entry.value));
        }
        assert!(!shown.contains("hush"), "{shown}");
        assert_eq!(shown.matches('…').count(), 6, "{shown}");
        for kept in ["kept1", "kept2", "kept3", "kept4", "kept5", "X-Anything"] {
            assert!(shown.contains(kept), "no {kept}: {shown}");
        }
    }

    #[test]
    fn urls_keep_everything_but_user_and_password() {
        for (text, shown) in [
            ("redis://:a@b@host:1/0", "redis://…@host:1/0"),
            ("http://a/b@c, http://u:p@d", "http://a/b@c, http://…@d"),
            ("user@example.org", "user@example.org"),
            ("://", "://"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
