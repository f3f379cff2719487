//! The made-up request of `petrel explain`: its head, and the connection that it comes by.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use config::ListenAddress;
use engine::exchange::{ConnectionFacts, ListenerFacts, Peer, Scheme};
use engine::settings::ProcessSettings;

use crate::cli;

/// A request that no client has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MadeUpRequest {
    /// The method.
    pub(crate) method: String,
    /// The URL.
    pub(crate) url: String,
    /// The head in HTTP/1.1.
    pub(crate) head: Vec<u8>,
    /// The client.
    pub(crate) client: IpAddr,
    /// The address of the listener that takes it.
    pub(crate) listener: String,
    /// No listener has the port of the URL, so the first one was taken.
    pub(crate) is_listener_assumed: bool,
    port: u16,
    scheme: Scheme,
}

/// The parts of a URL that a request needs.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts<'u> {
    scheme: Scheme,
    /// The host, with a port if it is not the usual one.
    host: &'u str,
    port: u16,
    target: String,
}

impl MadeUpRequest {
    /// The request for `url` that `options` describe.
    ///
    /// # Errors
    /// The URL, the method or a field is no valid one, in a sentence.
    pub(crate) fn new(
        url: &str,
        options: &cli::Explain,
        process: &ProcessSettings,
    ) -> Result<MadeUpRequest, String> {
        let parts = parts_of(url)?;
        let method = &options.method;
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{method:?} is no method"));
        }
        let mut head = format!("{method} {} HTTP/1.1\r\n", parts.target);
        for field in &options.header {
            if !field.contains(':') || field.contains(char::is_control) {
                return Err(format!("-H {field:?} is no field such as \"Name: value\""));
            }
            head += &format!("{field}\r\n");
        }
        let is_given = |name: &str| {
            let names = options
                .header
                .iter()
                .filter_map(|field| field.split(':').next());
            names
                .into_iter()
                .any(|given| given.eq_ignore_ascii_case(name))
        };
        if !is_given("Host") {
            head += &format!("Host: {}\r\n", parts.host);
        }
        if method == "POST" && !is_given("Content-Length") {
            head += "Content-Length: 0\r\n";
        }
        head += "\r\n";
        let of_port = process
            .listeners
            .iter()
            .find(|listener| port_of(&listener.address) == parts.port);
        let listener = of_port.or(process.listeners.first());
        let listener = &listener.ok_or("the configuration has no listener")?.address;
        Ok(MadeUpRequest {
            method: method.clone(),
            url: url.to_owned(),
            head: head.into_bytes(),
            client: options.client,
            listener: listener.to_string(),
            is_listener_assumed: of_port.is_none() && !url.starts_with('/'),
            port: port_of(listener),
            scheme: parts.scheme,
        })
    }

    /// The connection that it comes by.
    pub(crate) fn connection(&self) -> ConnectionFacts {
        let listener = ListenerFacts::new(self.listener.clone(), self.port);
        let peer = Peer::Ip(SocketAddr::new(self.client, CLIENT_PORT));
        ConnectionFacts::new(peer, self.scheme, Rc::new(listener))
    }
}

fn parts_of(url: &str) -> Result<UrlParts<'_>, String> {
    let error = |what: &str| Err(format!("{url:?} is no URL: {what}"));
    if url
        .chars()
        .any(|char| char.is_whitespace() || char.is_control())
    {
        return error("spaces in it are written %20");
    }
    let (scheme, behind) = if let Some(behind) = url.strip_prefix("http://") {
        (Scheme::Http, behind)
    } else if let Some(behind) = url.strip_prefix("https://") {
        (Scheme::Https, behind)
    } else if url.starts_with('/') || url == "*" {
        return Ok(UrlParts {
            scheme: Scheme::Http,
            host: "localhost",
            port: Scheme::Http.default_port(),
            target: without_fragment(url).to_owned(),
        });
    } else {
        return error("it begins with http://, https:// or /");
    };
    let end = behind.find(['/', '?', '#']).unwrap_or(behind.len());
    let (authority, rest) = behind.split_at(end);
    if authority.contains('@') {
        return error("a password is given by -H 'Authorization: ...'");
    }
    let (host, port) = match authority.rsplit_once(':') {
        // A colon within brackets belongs to an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.is_empty() {
        return error("it has no host");
    }
    let port = match port.map(str::parse) {
        None => scheme.default_port(),
        Some(Ok(port)) if port != 0 => port,
        Some(_) => return error("its port is no number from 1 to 65535"),
    };
    let target = without_fragment(rest);
    Ok(UrlParts {
        scheme,
        // As browsers do.
        host: match port == scheme.default_port() {
            true => host,
            false => authority,
        },
        port,
        target: match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        },
    })
}

/// Clients do not send the part behind `#`.
fn without_fragment(target: &str) -> &str {
    target.split('#').next().unwrap_or_default()
}

fn port_of(address: &ListenAddress) -> u16 {
    match address {
        ListenAddress::Ip(address) => address.port(),
        ListenAddress::Name { port, .. } => *port,
        ListenAddress::Unix(_) => 0,
    }
}

/// Clients choose any port above 1023.
const CLIENT_PORT: u16 = 40_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_as_clients_do() {
        for (url, scheme, host, port, target) in [
            ("/a?b#c", Scheme::Http, "localhost", 80, "/a?b"),
            ("*", Scheme::Http, "localhost", 80, "*"),
            ("http://a.example", Scheme::Http, "a.example", 80, "/"),
            ("http://a.example:80/x", Scheme::Http, "a.example", 80, "/x"),
            ("https://a:8443?q#f", Scheme::Https, "a:8443", 8443, "/?q"),
            ("https://[::1]/", Scheme::Https, "[::1]", 443, "/"),
            ("http://[::1]:81/", Scheme::Http, "[::1]:81", 81, "/"),
        ] {
            let target = target.to_owned();
            let expected = UrlParts {
                scheme,
                host,
                port,
                target,
            };
            assert_eq!(parts_of(url), Ok(expected), "{url}");
        }
        for wrong in [
            "",
            "a.example/x",
            "ftp://a/",
            "http://",
            "http://:80/",
            "http://a:0/",
            "http://a:x/",
            "http://a:65536/",
            "http://u:p@a/",
            "/a b",
            "/a\r\nb",
        ] {
            assert!(parts_of(wrong).is_err(), "{wrong:?}");
        }
    }
}
