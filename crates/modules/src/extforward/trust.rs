//! `extforward.forwarder`: which proxies are trusted.

use std::net::IpAddr;

use petrel_engine::config::{AddressRange, Config, Diagnostic, Element};
use petrel_engine::settings::Values;

/// The addresses that are trusted.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// The entry `all`, which overrides every other entry: trusted, or not.
    everybody: Option<bool>,
    ranges: Vec<AddressRange>,
    /// The key `""`: clients on unix sockets are trusted.
    unix: bool,
}

impl Trust {
    pub(crate) fn parse(values: &Values<'_>) -> Trust {
        let mut trust = Trust::default();
        for element in values.array("extforward.forwarder").into_iter().flatten() {
            trust.add(element);
        }
        trust
    }

    /// Whether no address is trusted.
    pub(super) fn is_empty(&self) -> bool {
        match self.everybody {
            Some(everybody) => !everybody,
            None => self.ranges.is_empty() && !self.unix,
        }
    }

    /// Whether a client that connects from `peer` (`None`: from a unix socket) is trusted.
    pub(crate) fn includes(&self, peer: Option<IpAddr>) -> bool {
        match (self.everybody, peer) {
            (Some(everybody), _) => everybody,
            (None, Some(address)) => self.names(address),
            (None, None) => self.unix,
        }
    }

    /// Whether an address that a trusted proxy has named is itself a trusted proxy. With `all` no proxy is
    /// known individually, so the first address that is named is the client, as in lighttpd.
    pub(super) fn names(&self, address: IpAddr) -> bool {
        self.everybody.is_none() && self.ranges.iter().any(|range| range.contains(address))
    }

    fn add(&mut self, element: &Element) {
        let is_trusted = is_trusted(element);
        match element.key() {
            Some("all") => self.everybody = Some(is_trusted),
            Some("") => self.unix = is_trusted,
            Some(text) if is_trusted => self.ranges.extend(AddressRange::parse(text)),
            _ => {}
        }
    }
}

fn is_trusted(element: &Element) -> bool {
    let value = element.value.as_str();
    value.is_some_and(|value| value.eq_ignore_ascii_case("trust"))
}

/// Warns about keys that are no address and therefore match no client.
pub(super) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let forwarders = entries
        .filter(|entry| entry.name == "extforward.forwarder")
        .filter_map(|entry| entry.value.as_array())
        .flatten();
    forwarders
        .filter(|element| is_trusted(element))
        .filter_map(|element| {
            let text = element.key().unwrap_or_default();
            if matches!(text, "" | "all") {
                return None;
            }
            let why = AddressRange::parse(text).err()?;
            let span = element.key.as_ref().map_or(element.span, |key| key.span);
            let message = format!("extforward.forwarder: {text:?} matches no proxy: {why}");
            Some(Diagnostic::warning(message, span))
        })
        .collect()
}
