//! The directives of mod_mcpage as typed options.

use petrel_engine::config::Diagnostic;
use petrel_engine::settings::Values;

use crate::remote_store::{Distribution, HashName, KeyForm, MemcachedOptions, StoreAddress, Wire};

/// The options that apply to a request, if the module is enabled.
#[derive(Clone, Debug)]
pub(super) struct McpageOptions {
    /// The memcached servers that all machines share.
    pub(crate) shared: Option<MemcachedOptions>,
    /// The memcached server of this machine.
    pub(crate) local: Option<MemcachedOptions>,
    /// Seconds that a page lives in [`McpageOptions::shared`]; 0: forever.
    pub(crate) expire_s: u32,
    /// Seconds that a page lives in [`McpageOptions::local`]; 0: forever.
    pub(crate) local_expire_s: u32,
    /// The size of the smallest page that is stored.
    pub(crate) bytes_min: usize,
    /// Whether pages are stored.
    pub(crate) puts: bool,
    /// Whether answers say where they come from.
    pub(crate) announces: bool,
    /// What is logged.
    pub(crate) debug: Debug,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Debug {
    /// Errors.
    Off,
    /// Also what is found and stored.
    On,
    /// Also why a page is not looked up or stored.
    Verbose,
}

/// Milliseconds that a page from memcached may take. The backend is not asked before.
const TIMEOUT_MS: u64 = 1000;

/// Milliseconds to connect.
const CONNECT_TIMEOUT_MS: u64 = 500;

/// The largest length of namespace and prefix together: 32 hexadecimal digits have to fit after them.
const BEFORE_KEYS_BYTES_MAX: usize = 128;

impl McpageOptions {
    /// Reads the directives; `None` if the module is not enabled.
    ///
    /// # Errors
    /// A value is invalid.
    pub(crate) fn read(values: &Values<'_>) -> Result<Option<McpageOptions>, Diagnostic> {
        let switch = |name: &str, default: bool| values.bool(name).unwrap_or(default);
        if !switch("mcpage.enable", false) {
            return Ok(None);
        }
        let hosts = values.strings("mcpage.memcached-hosts").into_iter();
        let shared = client(values, "mcpage.memcached-hosts", hosts.collect())?;
        let local = match switch("mcpage.localmc-enable", false) {
            true => {
                let socket = values.string("mcpage.localmc-socket");
                let (name, address) = match socket {
                    Some(socket) => ("mcpage.localmc-socket", socket),
                    None => {
                        let address = values.string("mcpage.localmc-addr");
                        ("mcpage.localmc-addr", address.unwrap_or("127.0.0.1"))
                    }
                };
                client(values, name, vec![address])?
            }
            false => None,
        };
        if shared.is_none() && local.is_none() {
            let message = "mcpage.enable needs mcpage.memcached-hosts or mcpage.localmc-enable";
            return Err(values.error("mcpage.enable", message));
        }
        let verbose = switch("mcpage.debug-verbose", false);
        Ok(Some(McpageOptions {
            shared,
            local,
            expire_s: values.unsigned("mcpage.memcached-expire", 0),
            local_expire_s: values.unsigned("mcpage.localmc-expire", 0),
            bytes_min: values.unsigned("mcpage.memcached-minsize", 0) as usize * 1024,
            puts: switch("mcpage.memcached-put", true),
            announces: switch("mcpage.announce", true),
            debug: match (verbose, switch("mcpage.debug", false)) {
                (true, _) => Debug::Verbose,
                (false, true) => Debug::On,
                (false, false) => Debug::Off,
            },
        }))
    }
}

/// A client of the servers at `addresses`, which come from the directive `name`.
fn client(
    values: &Values<'_>,
    name: &str,
    addresses: Vec<&str>,
) -> Result<Option<MemcachedOptions>, Diagnostic> {
    let addresses = addresses
        .into_iter()
        .map(|text| StoreAddress::parse(text, MemcachedOptions::PORT_DEFAULT));
    let addresses: Result<Vec<_>, String> = addresses.collect();
    let addresses = addresses.map_err(|message| values.error(name, message))?;
    if addresses.is_empty() {
        return Ok(None);
    }
    let mut options = MemcachedOptions::new(addresses);
    options.timeout_ms = TIMEOUT_MS;
    options.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    options.namespace = before_keys(values, "mcpage.memcached-namespace")?;
    options.prefix = before_keys(values, "mcpage.memcached-keyprefix")?;
    options.key_form = match values.bool("mcpage.md5") {
        Some(true) => KeyForm::Hashed,
        _ => KeyForm::HashedIfNeeded,
    };
    if let Some(text) = values.string("mcpage.memcached-behavior") {
        options.distribution = Distribution::from_name(text).ok_or_else(|| {
            let message =
                format!("{text:?} is none of modula, consistent, ketama, ketama_weighted");
            values.error("mcpage.memcached-behavior", message)
        })?;
    }
    if let Some(text) = values.string("mcpage.memcached-hashing") {
        options.hash = Some(HashName::from_name(text).ok_or_else(|| {
            let names: Vec<&str> = HashName::names().collect();
            let message = format!("{text:?} is none of {}", names.join(", "));
            values.error("mcpage.memcached-hashing", message)
        })?);
    }
    if values.bool("mcpage.memcached-binary") == Some(true) {
        options.wire = Wire::Binary;
    }
    Ok(Some(options))
}

fn before_keys(values: &Values<'_>, name: &str) -> Result<Vec<u8>, Diagnostic> {
    let text = values.string(name).unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_graphic() || !byte.is_ascii();
    if text.len() > BEFORE_KEYS_BYTES_MAX / 2 || !text.bytes().all(is_allowed) {
        let bytes_max = BEFORE_KEYS_BYTES_MAX / 2;
        let message = format!("{name} becomes part of keys: {bytes_max} bytes at most, no spaces");
        return Err(values.error(name, message));
    }
    Ok(text.as_bytes().to_vec())
}
