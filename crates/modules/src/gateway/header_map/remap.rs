//! The maps of `proxy.header`: hosts and path prefixes, applied forwards to requests and backwards to
//! replies.
//!
//! The rules are those of lighttpd. The first entry of a map that fits counts; paths are compared by prefix,
//! byte by byte, hosts as a whole. In a reply, the path entry that was used for the request is tried first:
//! if two prefixes lead to the same place, the client stays with the prefix that it used. That entry is not
//! remembered from the request but found again, because few replies have URLs in their heads.

use petrel_engine::Exchange;
use petrel_engine::exchange::Scheme;

use super::{HeaderMap, Substitution};
use crate::gateway::options::{BackendHost, shown};

impl HeaderMap {
    /// Whether request fields may be changed.
    pub(in crate::gateway) fn maps_requests(&self) -> bool {
        !self.paths.is_empty() || !self.request_hosts.is_empty() || self.https_remap
    }

    /// Whether reply fields may be changed. If not, [`HeaderMap::map_reply`] need not be called.
    pub(crate) fn maps_replies(&self) -> bool {
        !self.paths.is_empty() || !self.reply_hosts.is_empty() || self.https_remap
    }

    /// Appends the request target for the backend.
    pub(in crate::gateway) fn write_target(&self, target: &[u8], out: &mut Vec<u8>) {
        let pair = first_prefix(&self.paths, target, |pair| &pair.from);
        match pair {
            Some(pair) => replace_prefix(target, &pair.from, &pair.to, out),
            None => out.extend_from_slice(target),
        }
    }

    /// The host that the backend gets instead of the client's.
    pub(in crate::gateway) fn request_host<'a>(&'a self, host: &'a [u8]) -> &'a [u8] {
        self.forwards(host, host)
    }

    /// The new value of a request field; `None`: unchanged.
    pub(in crate::gateway) fn request_field(
        &self,
        exchange: &Exchange,
        name: &str,
        value: &[u8],
    ) -> Option<Vec<u8>> {
        let is_url = ["Destination", "Content-Location"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known));
        if !is_url {
            return None;
        }
        let client_host = exchange.request.head.host();
        let url = Url::split(value)?;
        let mut out = Vec::with_capacity(value.len());
        if let Some((scheme, authority)) = url.origin {
            let is_remapped = self.remaps_https(exchange) && scheme == HTTPS;
            out.extend_from_slice(if is_remapped { HTTP } else { scheme });
            out.extend_from_slice(self.forwards(authority, client_host));
        }
        self.write_target(url.path, &mut out);
        (out != value).then_some(out)
    }

    /// The new value of a reply field for the client; `None`: unchanged. Changes Location, Content-Location,
    /// and the attributes Path and Domain of Set-Cookie.
    pub(crate) fn map_reply(
        &self,
        exchange: &Exchange,
        backend: &BackendHost,
        name: &str,
        value: &[u8],
    ) -> Option<Vec<u8>> {
        let mapped = match name.len() {
            8 if name.eq_ignore_ascii_case("Location") => {
                self.reply_url(exchange, backend, value)?
            }
            16 if name.eq_ignore_ascii_case("Content-Location") => {
                self.reply_url(exchange, backend, value)?
            }
            10 if name.eq_ignore_ascii_case("Set-Cookie") => self.cookie(exchange, value),
            _ => return None,
        };
        (mapped != value).then_some(mapped)
    }

    /// `None` also for the URL of another site, such as the log-in page of an identity provider. lighttpd
    /// maps the paths of those as well.
    fn reply_url(
        &self,
        exchange: &Exchange,
        backend: &BackendHost,
        value: &[u8],
    ) -> Option<Vec<u8>> {
        let url = Url::split(value)?;
        let mut out = Vec::with_capacity(value.len());
        let mut maps_path = true;
        if let Some((scheme, authority)) = url.origin {
            if !self.is_own_site(exchange, backend, scheme, authority) {
                return None;
            }
            let is_remapped = self.remaps_https(exchange) && scheme == HTTP;
            out.extend_from_slice(if is_remapped { HTTPS } else { scheme });
            out.extend_from_slice(self.backwards(exchange, authority));
            maps_path = self.maps_paths_of(exchange, authority);
        }
        match maps_path {
            true => self.write_reply_path(exchange, url.path, &mut out),
            false => out.extend_from_slice(url.path),
        }
        Some(out)
    }

    /// A cookie with mapped Path and Domain attributes.
    fn cookie(&self, exchange: &Exchange, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(value.len());
        let mut parts = value.split(|&byte| byte == b';');
        out.extend_from_slice(parts.next().unwrap_or_default());
        for part in parts {
            out.push(b';');
            match CookieAttribute::split(part) {
                Some(attribute) if attribute.is_named(b"path") => {
                    out.extend_from_slice(attribute.before);
                    self.write_reply_path(exchange, attribute.value, &mut out);
                    out.extend_from_slice(attribute.after);
                }
                Some(attribute) if attribute.is_named(b"domain") => {
                    let domain = attribute.value;
                    let (dot, host) = match domain {
                        [b'.', host @ ..] => (&b"."[..], host),
                        host => (&b""[..], host),
                    };
                    out.extend_from_slice(attribute.before);
                    out.extend_from_slice(dot);
                    out.extend_from_slice(self.backwards(exchange, host));
                    out.extend_from_slice(attribute.after);
                }
                _ => out.extend_from_slice(part),
            }
        }
        out
    }

    fn write_reply_path(&self, exchange: &Exchange, path: &[u8], out: &mut Vec<u8>) {
        let target = exchange.request.url.target();
        let used = first_prefix(&self.paths, target, |pair| &pair.from);
        let pair = used
            .filter(|pair| path.starts_with(&pair.to))
            .or_else(|| first_prefix(&self.paths, path, |pair| &pair.to));
        match pair {
            Some(pair) => replace_prefix(path, &pair.to, &pair.from, out),
            None => out.extend_from_slice(path),
        }
    }

    /// Maps a host in a request. The key `-` stands for `client_host`, the host that the client asked for,
    /// and so does the value `-`. An empty value means no change.
    fn forwards<'a>(&'a self, authority: &'a [u8], client_host: &'a [u8]) -> &'a [u8] {
        let pair = first_host(&self.request_hosts, authority, client_host);
        match pair.map(|pair| pair.to.as_slice()) {
            None | Some(b"") => authority,
            Some(b"-") => client_host,
            Some(other) => other,
        }
    }

    /// Maps a host in a reply. The key `-` stands for the host that was sent to the backend, the value `-`
    /// for the client's.
    fn backwards<'a>(&'a self, exchange: &'a Exchange, authority: &'a [u8]) -> &'a [u8] {
        let client_host = exchange.request.head.host();
        let backend_host = self.request_host(client_host);
        let pair = first_host(&self.reply_hosts, authority, backend_host);
        match pair.map(|pair| pair.to.as_slice()) {
            None | Some(b"") => authority,
            Some(b"-") => client_host,
            Some(other) => other,
        }
    }

    /// Whether `authority` is a name of this server or of the backend: the client's Host, the Host that the
    /// backend got, the backend's address, or a host that the configuration names.
    fn is_own_site(
        &self,
        exchange: &Exchange,
        backend: &BackendHost,
        scheme: &[u8],
        authority: &[u8],
    ) -> bool {
        let client_host = exchange.request.head.host();
        let mapped_host = self.request_host(client_host);
        let sent_host = match self.replace_http_host {
            true => backend.label.as_bytes(),
            false => mapped_host,
        };
        let address = shown(&backend.address);
        let authority = without_default_port(authority, scheme);
        let is = |host: &[u8]| without_default_port(host, scheme).eq_ignore_ascii_case(authority);
        [client_host, sent_host, address.as_bytes()]
            .into_iter()
            .any(is)
            || first_host(&self.reply_hosts, authority, mapped_host).is_some()
            || self.path_hosts.iter().any(|host| is(host))
    }

    /// Whether URLs with this host have paths of the backend, which have to be mapped.
    fn maps_paths_of(&self, exchange: &Exchange, authority: &[u8]) -> bool {
        let backend_host = self.request_host(exchange.request.head.host());
        let is_among = |hosts: &[Vec<u8>]| {
            hosts.iter().any(|host| {
                let host = if host == b"-" { backend_host } else { host };
                host.eq_ignore_ascii_case(authority)
            })
        };
        (self.path_hosts.is_empty() || is_among(&self.path_hosts))
            && !is_among(&self.path_hosts_excluded)
    }

    /// Whether the backend speaks http and the client https.
    fn remaps_https(&self, exchange: &Exchange) -> bool {
        self.https_remap && exchange.scheme() == Scheme::Https
    }
}

const HTTP: &[u8] = b"http://";
const HTTPS: &[u8] = b"https://";

/// A URL with or without its origin.
struct Url<'a> {
    /// The scheme with `://`, and the host.
    origin: Option<(&'a [u8], &'a [u8])>,
    /// The rest; empty, or beginning with a slash.
    path: &'a [u8],
}

impl<'a> Url<'a> {
    /// `None` if the text is neither a path nor an http or https URL with a host.
    fn split(text: &'a [u8]) -> Option<Url<'a>> {
        // `//host/path` has a host too, but lighttpd does not change such URLs either.
        if text.starts_with(b"/") {
            let is_path = !text.starts_with(b"//");
            return is_path.then_some(Url {
                origin: None,
                path: text,
            });
        }
        let scheme = [HTTP, HTTPS]
            .into_iter()
            .find(|scheme| starts_with_ignoring_case(text, scheme))?;
        let rest = text.get(scheme.len()..)?;
        let end = rest
            .iter()
            .position(|byte| matches!(byte, b'/' | b'?' | b'#'))
            .unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        (!authority.is_empty()).then_some(Url {
            origin: Some((scheme, authority)),
            path,
        })
    }
}

/// An attribute of a cookie, such as ` Path="/a" `, in parts.
struct CookieAttribute<'a> {
    name: &'a [u8],
    /// All that comes before the value, with an opening quotation mark.
    before: &'a [u8],
    value: &'a [u8],
    /// All that comes after the value.
    after: &'a [u8],
}

impl<'a> CookieAttribute<'a> {
    fn split(part: &'a [u8]) -> Option<CookieAttribute<'a>> {
        let equals = part.iter().position(|&byte| byte == b'=')?;
        let is_edge = |byte: &u8| matches!(byte, b' ' | b'\t' | b'"');
        let start = equals
            + 1
            + part
                .get(equals + 1..)?
                .iter()
                .take_while(|b| is_edge(b))
                .count();
        let rest = part.get(start..)?;
        let length = rest.len() - rest.iter().rev().take_while(|byte| is_edge(byte)).count();
        Some(CookieAttribute {
            name: part.get(..equals)?.trim_ascii(),
            before: part.get(..start)?,
            value: rest.get(..length)?,
            after: rest.get(length..)?,
        })
    }

    fn is_named(&self, name: &[u8]) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// `authority` without the port that `scheme` has anyway.
fn without_default_port<'a>(authority: &'a [u8], scheme: &[u8]) -> &'a [u8] {
    let port: &[u8] = if scheme == HTTPS { b":443" } else { b":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

fn first_prefix<'m>(
    pairs: &'m [Substitution],
    path: &[u8],
    prefix: impl Fn(&Substitution) -> &Vec<u8>,
) -> Option<&'m Substitution> {
    pairs.iter().find(|pair| path.starts_with(prefix(pair)))
}

/// The first entry for `authority`; the key `-` stands for `own`.
fn first_host<'m>(
    pairs: &'m [Substitution],
    authority: &[u8],
    own: &[u8],
) -> Option<&'m Substitution> {
    pairs.iter().find(|pair| {
        let key = if pair.from == b"-" { own } else { &pair.from };
        key.eq_ignore_ascii_case(authority)
    })
}

/// Appends `path` with its prefix replaced. The result begins with a slash in any case.
fn replace_prefix(path: &[u8], prefix: &[u8], with: &[u8], out: &mut Vec<u8>) {
    let rest = path.get(prefix.len()..).unwrap_or_default();
    if with.is_empty() && rest.first() != Some(&b'/') {
        out.push(b'/');
    }
    out.extend_from_slice(with);
    out.extend_from_slice(rest);
}

fn starts_with_ignoring_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
