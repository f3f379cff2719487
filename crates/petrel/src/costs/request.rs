//! The request that `petrel costs` makes: what the URL and the options say, as bytes.

/// A request, and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CostsTarget {
    /// Method and URL, as they were given.
    pub(super) line: String,
    /// The port that the URL names, or the usual one of its scheme.
    pub(super) port: u16,
    /// The URL begins with `https://`.
    pub(super) is_https: bool,
    /// The whole request.
    pub(super) bytes: Vec<u8>,
    /// The method changes nothing, so that the request may be made a few times more.
    pub(super) is_repeatable: bool,
}

impl CostsTarget {
    /// Reads the URL: `http://HOST/PATH`, or a path alone for the host `localhost`.
    ///
    /// # Errors
    /// A part of the request is not allowed in one.
    pub(super) fn new(url: &str, method: &str, fields: &[String]) -> Result<CostsTarget, String> {
        let is_plain =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(url) {
            return Err(format!(
                "{url:?} is no URL: encode spaces and other characters as %XX"
            ));
        }
        if !is_plain(method) {
            return Err("-X is a word".to_owned());
        }
        let (usual_port, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (80, rest),
            (_, Some(rest)) => (443, rest),
            _ if url.starts_with('/') => (80, url),
            _ => return Err(format!("{url:?} is neither http://HOST/PATH nor a path")),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let target = target.split('#').next().unwrap_or_default();
        let target = match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        };
        let port = match authority.rsplit_once(':') {
            Some((_, digits)) if !digits.ends_with(']') => digits
                .parse()
                .map_err(|_| format!("{digits:?} is no port"))?,
            _ => usual_port,
        };
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        let is_given = |name: &str| {
            let mut names = fields.iter().filter_map(|field| field.split(':').next());
            names.any(|given| given.eq_ignore_ascii_case(name))
        };
        let is_repeatable = ["GET", "HEAD", "OPTIONS"].contains(&method);
        if !is_repeatable && !is_given("Content-Length") {
            head += "Content-Length: 0\r\n";
        }
        if !is_given("Host") {
            let host = if authority.is_empty() {
                "localhost"
            } else {
                authority
            };
            head += &format!("Host: {host}\r\n");
        }
        for field in fields {
            if !field.contains(':') || field.contains(char::is_control) {
                return Err(format!(
                    "-H \"{field}\" is no field such as \"Name: value\""
                ));
            }
            head += &format!("{field}\r\n");
        }
        head += "\r\n";
        Ok(CostsTarget {
            line: format!("{method} {url}"),
            port,
            is_https: url.starts_with("https://"),
            bytes: head.into_bytes(),
            is_repeatable,
        })
    }

    /// The whole request with one more field before the others: if the server refuses one of those, it still
    /// knows this one.
    pub(super) fn bytes_with(&self, name: &str, value: &str) -> Vec<u8> {
        let line = self.bytes.split_inclusive(|byte| *byte == b'\n').next();
        let (line, rest) = self.bytes.split_at(line.map_or(0, <[u8]>::len));
        [line, format!("{name}: {value}\r\n").as_bytes(), rest].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(url: &str, fields: &[&str]) -> String {
        let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
        let target = CostsTarget::new(url, "GET", &fields).expect(url);
        String::from_utf8(target.bytes).expect("text")
    }

    #[test]
    fn urls_become_requests() {
        assert_eq!(
            head("/a?b", &[]),
            "GET /a?b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
        assert_eq!(
            head("http://a.test", &[]),
            "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
        );
        assert_eq!(
            head("http://a.test?x=/", &[]),
            "GET /?x=/ HTTP/1.1\r\nHost: a.test\r\n\r\n"
        );
        assert_eq!(
            head("https://a.test:81/b#c", &["X: y", "host: z"]),
            "GET /b HTTP/1.1\r\nX: y\r\nhost: z\r\n\r\n"
        );
        let target = CostsTarget::new("/", "POST", &[]).expect("a request");
        let text = String::from_utf8_lossy(&target.bytes).into_owned();
        assert!(
            text.contains("\r\nContent-Length: 0\r\n") && !target.is_repeatable,
            "{text}"
        );
        assert_eq!(
            target.bytes_with("A", "b"),
            text.replacen("\r\n", "\r\nA: b\r\n", 1).as_bytes()
        );
        let port = |url| CostsTarget::new(url, "POST", &[]).map(|target| target.port);
        assert_eq!(port("http://[::1]/"), Ok(80));
        assert_eq!(port("http://[::1]:8080/"), Ok(8080));
        assert_eq!(port("https://a/"), Ok(443));
        assert_eq!(port("/a:9"), Ok(80));
    }

    #[test]
    fn nothing_else_gets_into_a_request() {
        for (url, method, field) in [
            ("a", "GET", "a: b"),
            ("", "GET", "a: b"),
            ("/a b", "GET", "a: b"),
            ("/\r\n", "GET", "a: b"),
            ("ftp://a/", "GET", "a: b"),
            ("http://a:b/", "GET", "a: b"),
            ("/", "A B", "a: b"),
            ("/", "GET", "a"),
            ("/", "GET", "a: b\r\nc: d"),
        ] {
            let made = CostsTarget::new(url, method, &[field.to_owned()]);
            assert!(made.is_err(), "{url:?} {method:?} {field:?}");
        }
    }
}
