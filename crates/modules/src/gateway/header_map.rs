//! Changes header fields and URLs on their way to an HTTP backend and back.
//!
//! [`HeaderMap`] is `proxy.header`, `proxy.forwarded` and `proxy.replace-http-host` of lighttpd 1.4: maps of
//! hosts and path prefixes that are applied forwards to requests and backwards to replies. [`Rewriting`] is
//! the regular expressions of lighttpd 1.5. Both are read once with the configuration; requests without them
//! cost nothing. They use the exchange, and know nothing of connections or protocols.

mod forwarding;
mod remap;
mod rewriting;
#[cfg(test)]
pub(in crate::gateway) mod testing;

use petrel_engine::config::{Array, Config, Diagnostic, Element};
use petrel_engine::settings::Values;

pub(crate) use rewriting::Rewriting;

use super::upgrade::Upgrades;

/// `proxy.header`, `proxy.forwarded`, `proxy.replace-http-host`.
#[derive(Debug, Default)]
pub(crate) struct HeaderMap {
    /// Send the label of the backend as Host.
    pub(crate) replace_http_host: bool,
    /// Send HTTP/1.0 requests, one per connection. HTTP/1.0 needs a body of known length; a request with a
    /// body of unknown length is sent as HTTP/1.1.
    pub(crate) force_http10: bool,
    /// Protocols that clients may upgrade to, in addition to those of the backend's own option.
    pub(crate) upgrade: Upgrades,
    /// Which parameters the Forwarded field gets. With none of them the field is passed on unchanged.
    forwarded: Forwarded,
    /// Clients that came over TLS see `https` where the backend writes `http`.
    https_remap: bool,
    /// Path prefixes: the client's and the backend's.
    paths: Vec<Substitution>,
    /// Hosts in requests and their replacements.
    request_hosts: Vec<Substitution>,
    /// Hosts in replies and their replacements.
    reply_hosts: Vec<Substitution>,
    /// Hosts whose URLs in replies have their path mapped; empty: all hosts.
    path_hosts: Vec<Vec<u8>>,
    /// Hosts whose URLs in replies keep their path.
    path_hosts_excluded: Vec<Vec<u8>>,
}

/// Which parameters the Forwarded field gets (RFC 7239, and lighttpd's remote_user).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Forwarded {
    by: bool,
    for_: bool,
    host: bool,
    proto: bool,
    remote_user: bool,
}

/// A text and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Substitution {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl HeaderMap {
    /// Reads the three directives.
    ///
    /// # Errors
    /// A key or value is not known.
    pub(crate) fn parse(values: &Values<'_>) -> Result<HeaderMap, Diagnostic> {
        let mut map = HeaderMap {
            replace_http_host: values.bool("proxy.replace-http-host").unwrap_or(false),
            ..HeaderMap::default()
        };
        for element in values.array("proxy.forwarded").into_iter().flatten() {
            map.forwarded.set(element)?;
        }
        for element in values.array("proxy.header").into_iter().flatten() {
            map.set(element)?;
        }
        Ok(map)
    }

    /// Whether this server writes the Forwarded field.
    pub(crate) fn writes_forwarded(&self) -> bool {
        self.forwarded != Forwarded::default()
    }

    fn set(&mut self, element: &Element) -> Result<(), Diagnostic> {
        match element.key().unwrap_or_default() {
            "https-remap" => self.https_remap = switch(element)?,
            "force-http10" => self.force_http10 = switch(element)?,
            "upgrade" => self.upgrade = upgrades(element)?,
            // Requests with the method CONNECT do not get this far, so the value is only checked; `warnings`
            // says so.
            "connect" => drop(switch(element)?),
            "map-urlpath" => self.paths = pairs(element)?,
            "map-host-request" => self.request_hosts = pairs(element)?,
            "map-host-response" => self.reply_hosts = pairs(element)?,
            "map-urlpath-resp-host-include" => self.path_hosts = hosts(element)?,
            "map-urlpath-resp-host-exclude" => self.path_hosts_excluded = hosts(element)?,
            key => return Err(unknown_key(element, "proxy.header", key, HEADER_KEYS)),
        }
        Ok(())
    }
}

/// Warns that `proxy.header = ( "connect" => "enable" )` has no effect.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let maps = entries
        .filter(|entry| entry.name == "proxy.header")
        .filter_map(|entry| entry.value.as_array());
    maps.filter_map(|map| map.get("connect"))
        .filter(|element| element.value.is_enabling())
        .map(|element| {
            let message = "\"connect\" has no effect: CONNECT is refused, as no tunnels are opened";
            Diagnostic::warning(message, element.span)
        })
        .collect()
}

const HEADER_KEYS: &str = "map-urlpath, map-host-request, map-host-response, \
                           map-urlpath-resp-host-include, map-urlpath-resp-host-exclude, \
                           https-remap, upgrade, connect and force-http10";

const FORWARDED_KEYS: &str = "by, for, host, proto and remote_user";

impl Forwarded {
    fn set(&mut self, element: &Element) -> Result<(), Diagnostic> {
        let parameter = match element.key().unwrap_or_default() {
            "by" => &mut self.by,
            "for" => &mut self.for_,
            "host" => &mut self.host,
            "proto" => &mut self.proto,
            "remote_user" => &mut self.remote_user,
            key => return Err(unknown_key(element, "proxy.forwarded", key, FORWARDED_KEYS)),
        };
        *parameter = switch(element)?;
        Ok(())
    }
}

fn switch(element: &Element) -> Result<bool, Diagnostic> {
    element.value.as_bool().ok_or_else(|| {
        let key = element.key().unwrap_or_default();
        Diagnostic::error(
            format!("{key:?} takes \"enable\" or \"disable\""),
            element.span,
        )
    })
}

fn upgrades(element: &Element) -> Result<Upgrades, Diagnostic> {
    Upgrades::read(&element.value).map_err(|message| {
        let key = element.key().unwrap_or_default();
        Diagnostic::error(format!("{key:?} {message}"), element.span)
    })
}

/// A map of strings.
fn pairs(element: &Element) -> Result<Vec<Substitution>, Diagnostic> {
    // The strings become part of request lines and fields, where a space would end them.
    let part = |text: &str| -> Option<Vec<u8>> {
        let is_sound = text.bytes().all(|byte| byte > b' ' && byte != 0x7f);
        is_sound.then(|| text.into())
    };
    let pair = |inner: &Element| {
        Some(Substitution {
            from: part(inner.key()?)?,
            to: part(inner.value.as_str()?)?,
        })
    };
    let expected = "a map of strings without blanks: ( \"from\" => \"to\" )";
    in_array(element, expected, pair)
}

/// A list of strings.
fn hosts(element: &Element) -> Result<Vec<Vec<u8>>, Diagnostic> {
    in_array(element, "a list of hosts: ( \"a.example\" )", |inner| {
        Some(inner.value.as_str()?.into())
    })
}

fn in_array<T>(
    element: &Element,
    expected: &str,
    read: impl Fn(&Element) -> Option<T>,
) -> Result<Vec<T>, Diagnostic> {
    let key = element.key().unwrap_or_default();
    let wrong = |span| Diagnostic::error(format!("{key:?} takes {expected}"), span);
    let array: &Array = element
        .value
        .as_array()
        .ok_or_else(|| wrong(element.span))?;
    array
        .iter()
        .map(|inner| read(inner).ok_or_else(|| wrong(inner.span)))
        .collect()
}

fn unknown_key(element: &Element, directive: &str, key: &str, known: &str) -> Diagnostic {
    let span = element.key.as_ref().map_or(element.span, |key| key.span);
    let message = match key {
        "" => format!("{directive} takes a map: ( \"key\" => value )"),
        _ => format!("{directive} has no key {key:?}"),
    };
    Diagnostic::error(message, span).with_hint(format!("there are {known}"))
}

#[cfg(test)]
mod tests;
