//! mod_usertrack: gives a client without the cookie one of random digits, which the client sends with all
//! later requests.
//!
//! The cookie is set after the caches, so that no stored page has one.

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::escape;
use petrel_engine::proto::request_head::KnownField;
use petrel_lua::library::random;

use crate::cookies::cookies_of;

/// mod_usertrack.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_usertrack",
    doc: "Gives each client without one a cookie of random digits.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "usertrack.cookie-name", String, Request, "TRACKID", Effect::Works,
            "The name of the cookie: letters only.";
        "usertrack.cookie-max-age", Int, Request, "0", Effect::Works,
            "For how many seconds the browser keeps the cookie. 0: until it is closed.";
        "usertrack.cookie-domain", String, Request, "unset", Effect::Works,
            "The domain of the cookie.";
        "usertrack.cookie-attrs", String, Request, "unset", Effect::Works,
            "All attributes of the cookie, such as \"; Path=/; Secure\", in place of the usual ones.";
        "usertrack.cookiename", Any, Request, "gone", Effect::Removed("usertrack.cookie-name"),
            "Old name.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let check = |name, is_allowed: fn(u8) -> bool| {
        let text = values.string(name).unwrap_or_default();
        match text.bytes().all(is_allowed) {
            true => Ok(text),
            false => {
                let message = format!("{text:?} has a character that {name} cannot have");
                Err(values.error(name, message))
            }
        }
    };
    let name = check("usertrack.cookie-name", |byte| byte.is_ascii_alphabetic())?;
    let domain = check("usertrack.cookie-domain", |byte| {
        byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')
    })?;
    let attributes = check("usertrack.cookie-attrs", |byte| !byte.is_ascii_control())?;
    let name = match name {
        "" => "TRACKID",
        name => name,
    };
    let attributes = match attributes {
        "" => attributes_of(domain, values.unsigned("usertrack.cookie-max-age", 0)),
        attributes => attributes.into(),
    };
    let cookie = TrackingCookie {
        name: name.into(),
        attributes,
    };
    configure.add(Phase::Transform, cookie);
    Ok(())
}

/// The attributes as lighttpd writes them.
fn attributes_of(domain: &str, max_age_s: u32) -> Vec<u8> {
    let mut attributes = b"; Path=/; Version=1".to_vec();
    if !domain.is_empty() {
        attributes.extend_from_slice(b"; Domain=");
        escape::percent_encode_path(&mut attributes, domain.as_bytes());
    }
    if max_age_s > 0 {
        attributes.extend_from_slice(format!("; max-age={max_age_s}").as_bytes());
    }
    attributes
}

struct TrackingCookie {
    name: Box<str>,
    /// Beginning with a semicolon.
    attributes: Vec<u8>,
}

impl Hook for TrackingCookie {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let request = &exchange.request;
        // A request without a path was refused while it was read.
        let is_refused = request.url.path().is_empty();
        if exchange.is_subrequest()
            || is_refused
            || self.is_in(request.head.field(KnownField::Cookie))
        {
            return Outcome::Next;
        }
        let mut drawn = [0; 16];
        if random::fill(&mut drawn).is_ok() {
            let value = format!("{}={:032x}", self.name, u128::from_ne_bytes(drawn));
            let cookie = [value.as_bytes(), &self.attributes].concat();
            exchange.response.append("Set-Cookie", &cookie);
        }
        Outcome::Next
    }
}

impl TrackingCookie {
    /// Whether the client has the cookie. A shorter value was not set by this module.
    fn is_in(&self, cookies: Option<&[u8]>) -> bool {
        cookies_of(cookies.unwrap_or_default())
            .any(|(name, value)| name == self.name.as_bytes() && value.len() >= 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};

    /// The cookies in the answer to a request with these fields.
    fn cookies(config: &str, target: &str, fields: &str) -> Vec<String> {
        let tree = Tree::new(&[("a.txt", "a")]);
        let modules = [&MODULE, &crate::setenv::MODULE, &crate::static_file::MODULE];
        let site = tree.site(config, &modules);
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        let answer = site.request(&request);
        let fields = answer.fields();
        let cookies = fields
            .lines()
            .filter_map(|line| line.strip_prefix("Set-Cookie: "));
        cookies.map(str::to_owned).collect()
    }

    /// The cookie in the answer, without its digits.
    #[track_caller]
    fn form(config: &str) -> String {
        let cookies = cookies(config, "/a.txt", "");
        let [cookie] = &cookies[..] else {
            panic!("{cookies:?}");
        };
        let (name, rest) = cookie.split_once('=').expect("a cookie");
        let (digits, attributes) = rest.split_at(32);
        let is_lower = |digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        assert!(digits.bytes().all(is_lower), "{cookie}");
        format!("{name}={attributes}")
    }

    // Written as in lighttpd 1.4.67.
    #[test]
    fn a_client_without_the_cookie_gets_one() {
        assert_eq!(form(""), "TRACKID=; Path=/; Version=1");
        assert_eq!(
            form(
                "usertrack.cookie-name = \"USER\"\nusertrack.cookie-max-age = 31536000\nusertrack.cookie-domain = \".example.org\""
            ),
            "USER=; Path=/; Version=1; Domain=.example.org; max-age=31536000"
        );
        assert_eq!(
            form("usertrack.cookie-attrs = \"; Secure\"\nusertrack.cookie-max-age = 5"),
            "TRACKID=; Secure"
        );
        let one = cookies("", "/a.txt", "");
        assert_ne!(one, cookies("", "/a.txt", ""));
    }

    #[test]
    fn a_client_that_has_it_gets_none() {
        let value = "0123456789abcdef0123456789abcdef";
        for (field, count) in [
            (format!("TRACKID={value}"), 0),
            (format!("a=b; TRACKID = {value}; c=d"), 0),
            (format!("TRACKID={}", &value[1..]), 1),
            (format!("XTRACKID={value}"), 1),
            (format!("a=TRACKID={value}"), 1),
            ("TRACKID".to_owned(), 1),
        ] {
            let found = cookies("", "/a.txt", &format!("Cookie: {field}\r\n"));
            assert_eq!(found.len(), count, "{field}");
        }
    }

    #[test]
    fn cookies_of_others_stay() {
        let config = "setenv.add-response-header = (\"Set-Cookie\" => \"a=b\")";
        assert_eq!(cookies(config, "/a.txt", "").len(), 2);
    }

    #[test]
    fn characters_that_would_end_the_value_are_refused() {
        for wrong in [
            "usertrack.cookie-name = \"A_B\"",
            "usertrack.cookie-name = \"a1\"",
            "usertrack.cookie-domain = \"a b\"",
            "usertrack.cookie-domain = \"a\\\\b\"",
            "usertrack.cookie-attrs = \"; a\nSet-Cookie: b\"",
        ] {
            let message = refusal(wrong, &[&MODULE]);
            assert!(message.contains("has a character"), "{wrong}: {message}");
        }
    }
}
