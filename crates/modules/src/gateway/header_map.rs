//! Header fields and URLs changed on the way to an HTTP backend and back.
//!
//! [`HeaderMap`] is `proxy.header`, `proxy.forwarded` and `proxy.replace-http-host` of lighttpd 1.4:
//! maps of hosts and path prefixes, applied forwards to requests and backwards to replies.
//! [`Rewriting`] is the regular expressions of 1.5. Both are typed once when the
//! configuration is read; requests without them pay nothing. They know the exchange and nothing of
//! connections or protocols.

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
    /// The label of the backend is sent as Host.
    pub(crate) replace_http_host: bool,
    /// Requests are HTTP/1.0, one a connection. A body must have a known length for that: with
    /// one of unknown length the request is HTTP/1.1.
    pub(crate) force_http10: bool,
    /// The protocols that clients may change to, besides those of the backend's own option.
    pub(crate) upgrade: Upgrades,
    /// What the Forwarded field says; nothing at all leaves it alone.
    forwarded: Forwarded,
    /// Clients that came over TLS see `https` where the backend says `http`.
    https_remap: bool,
    /// Path prefixes: the client's, the backend's.
    paths: Vec<Substitution>,
    /// Authorities in requests and what becomes of them.
    request_hosts: Vec<Substitution>,
    /// Authorities in replies and what becomes of them.
    reply_hosts: Vec<Substitution>,
    /// Authorities whose URLs in replies have their path mapped; empty: all.
    path_hosts: Vec<Vec<u8>>,
    /// Authorities whose URLs in replies keep their path.
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

/// A text and what is put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Substitution {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl HeaderMap {
    /// Reads the three directives.
    ///
    /// # Errors
    /// A key or a value that has no meaning.
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

    /// Whether the Forwarded field is written.
    pub(crate) fn writes_forwarded(&self) -> bool {
        self.forwarded != Forwarded::default()
    }

    fn set(&mut self, element: &Element) -> Result<(), Diagnostic> {
        match element.key().unwrap_or_default() {
            "https-remap" => self.https_remap = switch(element)?,
            "force-http10" => self.force_http10 = switch(element)?,
            "upgrade" => self.upgrade = upgrades(element)?,
            // Requests with this method never get so far; `warnings` says so.
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

/// What is set and does nothing: `proxy.header = ( "connect" => "enable" )`.
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
    // They go into request lines and fields, where a blank would end them.
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
