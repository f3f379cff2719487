//! The changes that scripts can make to a request: URL, host, scheme, method, fields, file.
//!
//! Each change follows the rules for the client's own request, or is not made: no script can split a head,
//! leave the document root by `..`, or make server and client disagree about the end of a response. A change
//! of host or scheme chooses the settings again at once. Other changes do that when the caller returns
//! [`Outcome::Again`](crate::module::Outcome::Again) or calls [`Exchange::resettle`].

use petrel_proto::escape;
use petrel_proto::request_head::KnownField;
use petrel_proto::url::{Url, UrlError, UrlOptions};

use crate::exchange::{Exchange, Scheme};
use crate::limits;

impl Exchange {
    /// Makes `target` the URL: a path and perhaps `?` and a query, percent-encoded as a client sends it.
    /// Spaces and control characters are encoded. The client's target stays available as
    /// [`original_target`](crate::exchange::Request::original_target).
    ///
    /// # Errors
    /// Those of a client's target. The URL does not change then.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), UrlError> {
        let options = self.worker.process().url_options;
        let mut url = self.request.url.clone();
        url.set_path_and_query(&encode_unsafe(target, b""), &options)?;
        self.request.url = url;
        self.request.written_target.clear();
        Ok(())
    }

    /// Makes `path` the decoded path, which rules compare and files are looked up by. Adds a missing slash in
    /// front, and resolves `.` and `..`. Does not change the target and the query, nor the URL that HTTP
    /// backends get; [`Exchange::set_target`] does.
    pub fn set_url_path(&mut self, path: &[u8]) {
        let mut encoded = Vec::with_capacity(path.len() + 1);
        if path.first() != Some(&b'/') {
            encoded.push(b'/');
        }
        escape::percent_encode_path(&mut encoded, path);
        // Without normalisation no path is refused; the decoded path is made safe in any case.
        let options = UrlOptions {
            normalize: false,
            ..UrlOptions::default()
        };
        let mut url = Url::new();
        let safe = match url.set_path_and_query(&encoded, &options) {
            Ok(()) => url.path(),
            Err(_) => b"/",
        };
        self.request.url.set_path(safe);
    }

    /// Makes `query` the query of the URL, without `?`. The rules are those of [`Exchange::set_target`].
    ///
    /// # Errors
    /// Those of a client's query, and one for `OPTIONS *`. The URL does not change then.
    pub fn set_url_query(&mut self, query: &[u8]) -> Result<(), UrlError> {
        let options = self.worker.process().url_options;
        let before = &self.request.url;
        let mut target = before.path_raw().to_vec();
        if !query.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&encode_unsafe(query, b"#"));
        }
        let mut url = before.clone();
        url.set_path_and_query(&target, &options)?;
        // An index file may have changed the decoded path: keep it.
        url.set_path(before.path());
        self.request.url = url;
        Ok(())
    }

    /// Makes `authority` the host and the value of Host, and chooses the settings again. Returns false and
    /// changes nothing if it is malformed.
    pub fn set_authority(&mut self, authority: &[u8]) -> bool {
        let options = self.head_options();
        let is_replaced = self.request.head.replace_host(authority, &options);
        if is_replaced {
            self.set_client(self.connection.peer, self.scheme());
        }
        is_replaced
    }

    /// Treats the request as one over `scheme`, and chooses the settings again.
    pub fn set_scheme(&mut self, scheme: Scheme) {
        self.set_client(self.connection.peer, scheme);
    }

    /// Sets the request field `name`, for conditions, backends and scripts; an empty value removes it. For
    /// Host this is [`Exchange::set_authority`].
    ///
    /// Returns false and changes nothing in these cases: `name` is malformed, or `value` is for Host; the
    /// field belongs to the framing (Content-Length, Transfer-Encoding); the field is about the client's
    /// connection (Upgrade, Expect and the like) and `value` is not empty; the fields have become too long
    /// ([`limits::CHANGED_FIELDS_BYTES_MAX`]).
    pub fn set_request_field(&mut self, name: &str, value: &[u8]) -> bool {
        match KnownField::from_name(name.as_bytes()) {
            Some(KnownField::Host) => return self.set_authority(value),
            Some(KnownField::ContentLength | KnownField::TransferEncoding) => return false,
            Some(known) if !value.is_empty() && known.is_written_by_sender() => return false,
            _ => {}
        }
        let head = &mut self.request.head;
        if value.is_empty() {
            head.remove_field(name);
            return true;
        }
        let added = head.field_bytes() + name.len() + value.len();
        if added
            > self.worker.process().head_options.head_bytes_max + limits::CHANGED_FIELDS_BYTES_MAX
        {
            return false;
        }
        head.set_field(name, value);
        head.value_of(name).is_some()
    }
}

/// Percent-encodes the characters that a target must not contain: spaces, control characters and those in
/// `also`.
fn encode_unsafe(text: &[u8], also: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for &byte in text {
        if byte <= b' ' || byte == 0x7f || also.contains(&byte) {
            encoded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            encoded.push(byte);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ExchangeRun, Site};

    fn exchange(config: &str, request: &str) -> ExchangeRun {
        Site::new(config, &[]).unanswered(request)
    }

    fn get(target: &str) -> ExchangeRun {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\nX-A: 1\r\n\r\n");
        exchange("", &request)
    }

    fn shown(exchange: &Exchange) -> (String, String, String) {
        let url = &exchange.request.url;
        let [target, path, query] = [url.target(), url.path(), url.query()]
            .map(|part| String::from_utf8_lossy(part).into_owned());
        (target, path, query)
    }

    #[test]
    fn a_new_target_takes_the_place_of_what_a_script_has_written() {
        let mut exchange = get("/old");
        exchange.request.written_target = b"/written".to_vec();
        assert_eq!(exchange.request.target(), b"/written");
        assert!(exchange.set_target(b"/a/\0").is_err());
        assert_eq!(exchange.request.target(), b"/written");
        exchange.set_target(b"/rewritten").expect("it is sound");
        assert_eq!(exchange.request.target(), b"/rewritten");
    }

    #[test]
    fn a_target_is_replaced_as_a_client_would_have_sent_it() {
        for (target, expected) in [
            ("/b?c=d", ("/b?c=d", "/b", "c=d")),
            ("/b c?d e", ("/b%20c?d%20e", "/b c", "d%20e")),
            ("/x/../../etc", ("/etc", "/etc", "")),
            ("/%2e%2e/a#frag", ("/a", "/a", "")),
            ("//b", ("/b", "/b", "")),
        ] {
            let mut exchange = get("/old?q");
            exchange.set_target(target.as_bytes()).expect("it is sound");
            let (target, path, query) = shown(&exchange);
            assert_eq!((&*target, &*path, &*query), expected);
            assert_eq!(exchange.request.original_target(), b"/old?q");
        }
    }

    #[test]
    fn a_target_that_is_refused_leaves_the_url_alone() {
        for target in ["", "b", "http://b/", "/a\r\nX: 1", "/%00"] {
            let mut exchange = get("/old?q");
            assert!(
                exchange.set_target(target.as_bytes()).is_err(),
                "{target:?}"
            );
            assert_eq!(shown(&exchange).0, "/old?q");
        }
        let mut exchange = get("/old?q");
        assert!(exchange.set_url_query(b"a\nb").is_err());
        assert_eq!(shown(&exchange).0, "/old?q");
    }

    #[test]
    fn a_path_is_taken_as_it_is_and_made_safe() {
        for (path, expected) in [
            ("/a b?c#d%41", "/a b?c#d%41"),
            ("x", "/x"),
            ("/../../etc//passwd", "/etc/passwd"),
            ("/a/\n", "/a/_"),
            ("", "/"),
        ] {
            let mut exchange = get("/old?q");
            exchange.set_url_path(path.as_bytes());
            let (target, path, query) = shown(&exchange);
            assert_eq!((&*target, &*path, &*query), ("/old?q", expected, "q"));
        }
    }

    #[test]
    fn a_query_is_replaced_and_the_path_stays() {
        let mut exchange = get("/old?q");
        exchange.set_url_path(b"/index.html");
        exchange.set_url_query(b"a=b#c d").expect("sound");
        let (target, path, query) = shown(&exchange);
        assert_eq!(target, "/old?a=b%23c%20d");
        assert_eq!((&*path, &*query), ("/index.html", "a=b%23c%20d"));
        exchange.set_url_query(b"").expect("sound");
        assert_eq!(shown(&exchange).0, "/old");
    }

    #[test]
    fn settings_follow_host_and_scheme() {
        let config = "$HTTP[\"host\"] == \"b.example\" { server.name = \"b\" }\n\
                      $HTTP[\"scheme\"] == \"https\" { server.tag = \"s\" }";
        let mut exchange = exchange(config, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert!(!exchange.set_authority(b"a/b") && !exchange.set_authority(b"b\r\nX: 1"));
        assert_eq!(exchange.request.head.host(), b"a.example");
        assert!(exchange.set_request_field("host", b"B.example:80"));
        assert_eq!(exchange.settings.core.name.as_deref(), Some(&b"b"[..]));
        let line = exchange.settings.core.server_line.to_vec();
        exchange.set_scheme(Scheme::Https);
        assert_ne!(line, exchange.settings.core.server_line.to_vec());
        assert_eq!(exchange.settings.core.name.as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn request_fields_are_set_and_removed_but_for_the_framing() {
        let mut exchange = get("/");
        let value = |exchange: &Exchange, name: &str| {
            let value = exchange.request.head.value_of(name);
            value.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        assert!(exchange.set_request_field("x-a", b"2\r\nX-B: 3"));
        assert_eq!(value(&exchange, "X-A").as_deref(), Some("2  X-B: 3"));
        assert!(exchange.set_request_field("Cookie", b"a=b"));
        assert!(exchange.set_request_field("x-a", b""));
        assert_eq!(value(&exchange, "X-A"), None);
        assert_eq!(
            exchange.request.head.field(KnownField::Cookie),
            Some(&b"a=b"[..])
        );
        for name in [
            "Content-Length",
            "transfer-encoding",
            "Upgrade",
            "EXPECT",
            "a b",
            "",
        ] {
            assert!(!exchange.set_request_field(name, b"1"), "{name}");
            assert_eq!(value(&exchange, name), None);
        }
        assert!(exchange.set_request_field("upgrade", b""));
    }

    #[test]
    fn a_script_cannot_make_the_head_grow_for_ever() {
        let mut exchange = get("/");
        let long = vec![b'x'; 10_000];
        let sets = (0..10_000).take_while(|_| exchange.set_request_field("X-Long", &long));
        let sets = sets.count();
        assert!((2..100).contains(&sets), "{sets}");
        assert_eq!(exchange.request.head.value_of("x-long"), Some(&long[..]));
    }
}
