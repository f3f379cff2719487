//! The server and the path that a script's URL names.

use crate::remote_store::StoreAddress;

/// Identifies a server; connections to it are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServerKey {
    pub(crate) address: StoreAddress,
    /// The name that its certificate must have; `None` without TLS.
    pub(crate) tls_name: Option<String>,
}

/// A server, and the path to request from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpTarget {
    pub(crate) server: ServerKey,
    /// The value of the Host field.
    pub(crate) host: String,
    /// The path with its query.
    pub(crate) path: Vec<u8>,
}

impl HttpTarget {
    /// Parses `http://host[:port]/path?query` or `http://unix:/path/of/socket:/path?query`, or the same with
    /// `https`.
    ///
    /// # Errors
    /// The URL has neither form: a sentence.
    pub(crate) fn parse(url: &[u8]) -> Result<HttpTarget, String> {
        let shown = || url.escape_ascii().to_string();
        if !url.iter().all(|byte| *byte > b' ' && *byte != 0x7f) {
            return Err(format!("\"{}\" has to be percent-encoded", shown()));
        }
        let url_text =
            std::str::from_utf8(url).map_err(|_| format!("\"{}\" is no URL", shown()))?;
        let (rest, is_tls) = match url_text.split_once("://") {
            Some(("http", rest)) => (rest, false),
            Some(("https", rest)) => (rest, true),
            _ => {
                return Err(format!(
                    "\"{url_text}\" begins with neither http://, https:// nor a slash"
                ));
            }
        };
        let rest = rest.split('#').next().unwrap_or_default();
        if let Some(socket) = rest.strip_prefix("unix:") {
            let (socket, path) = socket.split_once(':').unwrap_or((socket, "/"));
            let host = "localhost".to_owned();
            return Ok(HttpTarget {
                server: ServerKey {
                    address: StoreAddress::parse(socket, 0)?,
                    tls_name: is_tls.then(|| host.clone()),
                },
                host,
                path: with_slash(path),
            });
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err("a user name in a URL is not sent: use an Authorization field".to_owned());
        }
        let address = StoreAddress::parse(authority, if is_tls { 443 } else { 80 })?;
        let name = address.host_and_port().map(|(host, _)| host.to_owned());
        Ok(HttpTarget {
            server: ServerKey {
                address,
                tls_name: name.filter(|_| is_tls),
            },
            host: authority.to_owned(),
            path: with_slash(path),
        })
    }
}

fn with_slash(path: &str) -> Vec<u8> {
    match path.starts_with('/') {
        true => path.as_bytes().to_vec(),
        false => format!("/{path}").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (url, address, host, path) in [
            (
                "http://a.example/x?y=1#z",
                "a.example:80",
                "a.example",
                "/x?y=1",
            ),
            (
                "http://127.0.0.1:8080",
                "127.0.0.1:8080",
                "127.0.0.1:8080",
                "/",
            ),
            ("http://a.example?q", "a.example:80", "a.example", "/?q"),
            ("http://[::1]:81/", "[::1]:81", "[::1]:81", "/"),
            (
                "http://unix:/run/a.sock:/p?q",
                "unix:/run/a.sock",
                "localhost",
                "/p?q",
            ),
        ] {
            let target = HttpTarget::parse(url.as_bytes()).expect(url);
            assert_eq!(target.server.address.to_string(), address);
            assert_eq!(target.server.tls_name, None);
            assert_eq!(target.host, host);
            assert_eq!(target.path, path.as_bytes());
        }
    }

    #[test]
    fn https_urls_have_the_name_for_the_certificate() {
        for (url, address, name, host) in [
            (
                "https://a.example/x",
                "a.example:443",
                "a.example",
                "a.example",
            ),
            (
                "https://a.example:8443",
                "a.example:8443",
                "a.example",
                "a.example:8443",
            ),
            ("https://[::1]/", "[::1]:443", "::1", "[::1]"),
            (
                "https://unix:/run/a.sock:/p",
                "unix:/run/a.sock",
                "localhost",
                "localhost",
            ),
        ] {
            let target = HttpTarget::parse(url.as_bytes()).expect(url);
            assert_eq!(target.server.address.to_string(), address);
            assert_eq!(target.server.tls_name.as_deref(), Some(name));
            assert_eq!(target.host, host);
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for url in [
            "",
            "a.example/",
            "http://",
            "http:///x",
            "http://u@a.example/",
            "http://a.example/a b",
            "http://a.example/\r\nX: y",
            "ftp://a.example/",
            "http://unix:x:/",
        ] {
            assert!(HttpTarget::parse(url.as_bytes()).is_err(), "{url}");
        }
    }
}
