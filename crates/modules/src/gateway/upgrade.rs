//! Which protocols a client may upgrade its connection to (RFC 9110 7.8).
//!
//! In the tunnel that follows a 101 the server sees no more requests: no access rule, limit or cache applies,
//! and nothing is logged. So only protocols that the configuration names may be used, and never HTTP itself.

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Element, Value};
use petrel_engine::module::Outcome;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::{KnownField, Version};
use petrel_lua::library::base64::{self, Alphabet, Padding};
use petrel_lua::library::random;

use super::options::BackendHost;

/// The protocols that clients of a backend may upgrade to. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrades(Vec<String>);

impl Upgrades {
    /// The protocols that `"upgrade" => "enable"` allows.
    pub fn websocket() -> Upgrades {
        Upgrades(vec![WEBSOCKET.to_owned()])
    }

    /// Reads `"enable"`, `"disable"`, or a list of names.
    ///
    /// # Errors
    /// The value is something else, or names HTTP: a sentence without its subject.
    pub fn read(value: &Value) -> Result<Upgrades, String> {
        if let Some(is_on) = value.as_bool() {
            return Ok(match is_on {
                true => Upgrades::websocket(),
                false => Upgrades::default(),
            });
        }
        let name = |element: &Element| match element.key() {
            None => Some(element.value.as_str()?.to_owned()),
            Some(_) => None,
        };
        let names = value.as_array().map(|array| array.iter().map(name));
        let names: Option<Vec<String>> = names.and_then(Iterator::collect);
        let names = names.ok_or_else(|| EXPECTED.to_owned())?;
        for name in &names {
            if is_http(name.as_bytes()) {
                return Err(format!(
                    "does not allow {name:?}: no access rule, limit or log would see the requests in such a tunnel"
                ));
            }
            if name.is_empty() || name.bytes().any(|byte| byte <= b' ' || byte == b',') {
                return Err(EXPECTED.to_owned());
            }
        }
        Ok(Upgrades(names))
    }

    /// Adds the protocols of `other`.
    pub fn extend(&mut self, other: &Upgrades) {
        self.0.extend_from_slice(&other.0);
    }

    /// The protocol that the client offers and the backend is sent: the first allowed one in its Upgrade
    /// field. HTTP/1.0 has no Upgrade, and without `Connection: upgrade` the field is not meant for this
    /// server. In HTTP/2 it is the protocol of extended CONNECT.
    #[inline]
    pub fn offered<'e>(&self, exchange: &'e Exchange) -> Option<&'e [u8]> {
        match self.0.is_empty() {
            true => None,
            false => self.first_allowed(exchange),
        }
    }

    fn first_allowed<'e>(&self, exchange: &'e Exchange) -> Option<&'e [u8]> {
        let head = &exchange.request.head;
        if let Some(protocol) = head.protocol() {
            return self.allows(protocol).then_some(protocol);
        }
        let field = head.field(KnownField::Upgrade)?;
        if head.version() != Version::Http11 || !head.connection_has("upgrade") {
            return None;
        }
        let mut offers = field.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        offers.find(|offer| self.allows(offer))
    }

    /// Whether the backend's 101 in `head` opens the tunnel that the client asked for: all its Upgrade fields
    /// together name that protocol and no other.
    pub(crate) fn opens_tunnel(&self, exchange: &Exchange, head: &ReplyHead) -> bool {
        let Some(offered) = self.offered(exchange) else {
            return false;
        };
        let fields = head.fields();
        let chosen = fields.filter(|(name, _)| name.eq_ignore_ascii_case("Upgrade"));
        let mut chosen = chosen.map(|(_, value)| value.trim_ascii()).peekable();
        chosen.peek().is_some() && chosen.all(|name| name.eq_ignore_ascii_case(offered))
    }

    fn allows(&self, offer: &[u8]) -> bool {
        let mut names = self.0.iter();
        names.any(|name| name.as_bytes().eq_ignore_ascii_case(offer)) && !is_http(offer)
    }
}

/// Turns an HTTP/2 request for a tunnel (RFC 8441) into the HTTP/1.1 request that a backend understands: a
/// GET with Upgrade, and with a key, which WebSocket demands. `Some(outcome)`: `host` may not open such a
/// tunnel, and the client is told so.
pub(crate) fn prepare_connect(
    exchange: &mut Exchange,
    host: Option<&BackendHost>,
) -> Option<Outcome> {
    if exchange.request.method != Method::Connect {
        return None;
    }
    if host
        .and_then(|host| host.upgrade.offered(exchange))
        .is_none()
    {
        return Some(exchange.fail(CauseCode::TunnelRefused));
    }
    exchange.request.method = Method::Get;
    if exchange.request.head.value_of(KEY_FIELD).is_none() {
        // RFC 6455 section 4.1 wants a random one. It protects nothing here: this server does not check the backend's
        // answer to it.
        let mut key = [0; 16];
        if random::fill(&mut key).is_err() {
            return Some(exchange.fail(CauseCode::TunnelRefused));
        }
        let key = base64::encode(&key, Alphabet::Standard, Padding::Filled);
        exchange
            .request
            .head
            .append_field(KEY_FIELD, key.as_bytes());
    }
    None
}

const KEY_FIELD: &str = "Sec-WebSocket-Key";

/// Whether a token of the Upgrade field is a version of HTTP: `h2c`, `h2`, `HTTP/2.0`.
fn is_http(token: &[u8]) -> bool {
    let name = token.split(|&byte| byte == b'/').next().unwrap_or_default();
    let names: [&[u8]; 4] = [b"h2c", b"h2", b"h3", b"HTTP"];
    names.iter().any(|http| http.eq_ignore_ascii_case(name))
}

const WEBSOCKET: &str = "websocket";

const EXPECTED: &str = "takes \"enable\" (for websocket), \"disable\", or a list of protocols: \
                        ( \"websocket\", \"my-protocol\" )";

#[cfg(test)]
mod tests {
    use petrel_engine::testing::{Answer, Site};

    use super::super::header_map::testing::config;
    use super::*;

    fn read(value: &str) -> Result<Upgrades, String> {
        let text = format!("proxy.header = ( \"upgrade\" => {value} )");
        let config = config(&text);
        let entry = config.global().entry("proxy.header").expect("it is there");
        let map = entry.value.as_array().expect("it is a map");
        Upgrades::read(&map.get("upgrade").expect("it is there").value)
    }

    fn asked(fields: &str) -> Answer {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        site.request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
    }

    fn offered(upgrades: &Upgrades, fields: &str) -> Option<String> {
        let answer = asked(fields);
        let offered = upgrades.offered(answer.exchange());
        offered.map(|token| String::from_utf8_lossy(token).into_owned())
    }

    #[test]
    fn enable_means_websocket_and_a_list_names_others() {
        assert_eq!(read("\"enable\""), Ok(Upgrades::websocket()));
        assert_eq!(read("\"disable\""), Ok(Upgrades::default()));
        let both = Upgrades(vec!["websocket".to_owned(), "mine/1".to_owned()]);
        assert_eq!(read("( \"websocket\", \"mine/1\" )"), Ok(both));
        for wrong in [
            "\"websocket\"",
            "( \"a b\" )",
            "( \"a,b\" )",
            "( 1 )",
            "( \"a\" => \"b\" )",
        ] {
            let refused = read(wrong).expect_err("it is no list of names");
            assert!(refused.contains("a list of protocols"), "{refused}");
        }
        for http in ["h2c", "H2C", "h2", "HTTP/2.0", "http/1.1", "HTTP"] {
            let refused = read(&format!("( \"{http}\" )")).expect_err("it is HTTP");
            assert!(refused.contains("no access rule"), "{refused}");
        }
    }

    #[test]
    fn only_what_is_listed_and_properly_asked_for_is_offered() {
        let websocket = Upgrades::websocket();
        for (fields, expected) in [
            (
                "Connection: Upgrade\r\nUpgrade: websocket\r\n",
                Some("websocket"),
            ),
            (
                "Connection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\n",
                Some("WebSocket"),
            ),
            (
                "Connection: upgrade\r\nUpgrade: h2c, websocket\r\n",
                Some("websocket"),
            ),
            ("Upgrade: websocket\r\n", None),
            ("Connection: keep-alive\r\nUpgrade: websocket\r\n", None),
            ("Connection: upgrade\r\nUpgrade: h2c\r\n", None),
            ("Connection: upgrade\r\nUpgrade: websocket2\r\n", None),
            ("Connection: upgrade\r\nUpgrade: websocket/13\r\n", None),
            ("Connection: upgrade\r\n", None),
        ] {
            assert_eq!(offered(&websocket, fields).as_deref(), expected, "{fields}");
            assert_eq!(offered(&Upgrades::default(), fields), None, "{fields}");
        }
        let mine = Upgrades(vec!["mine/1".to_owned()]);
        let fields = "Connection: upgrade\r\nUpgrade: websocket, Mine/1\r\n";
        assert_eq!(offered(&mine, fields).as_deref(), Some("Mine/1"));
    }
}
