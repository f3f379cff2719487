//! `memcache_exists`, `memcache_get_string` and `memcache_get_long`: functions that wait for memcached.
//!
//! A missing value is `false`, and so is every value while the server is unreachable, so that a script falls
//! back to its `trigger_handler`. The log is told once when a server becomes unreachable.

use std::cell::OnceCell;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::Diagnostic;
use petrel_engine::settings::Values;
use petrel_engine::worker::Worker;
use petrel_lua::Lent;
use petrel_lua::mlua::{self, Lua, LuaString, Table, Value};

use super::request::options;
use crate::lua::State;
use crate::remote_store::{Memcached, MemcachedOptions, StoreAddress, StoreError, Stores};

/// The servers of `cml.memcache-hosts`.
pub(super) struct MemcacheServers {
    options: MemcachedOptions,
    client: OnceCell<Rc<Memcached>>,
}

impl MemcacheServers {
    /// Reads `cml.memcache-hosts` and `cml.memcache-namespace`.
    ///
    /// # Errors
    /// A host is no valid address, or the namespace is too long or contains a space.
    pub(crate) fn read(values: &Values<'_>) -> Result<Option<MemcacheServers>, Diagnostic> {
        let hosts = values.strings(HOSTS).into_iter();
        let addresses = hosts.map(|host| StoreAddress::parse(host, MemcachedOptions::PORT_DEFAULT));
        let addresses: Result<Vec<_>, String> = addresses.collect();
        let addresses = addresses.map_err(|message| values.error(HOSTS, message))?;
        if addresses.is_empty() {
            return Ok(None);
        }
        let mut options = MemcachedOptions::new(addresses);
        if let Some(namespace) = values.string(NAMESPACE) {
            let is_key = |byte: u8| byte.is_ascii_graphic() || !byte.is_ascii();
            if namespace.len() > NAMESPACE_BYTES_MAX || !namespace.bytes().all(is_key) {
                let message = format!(
                    "{NAMESPACE} becomes part of keys: {NAMESPACE_BYTES_MAX} bytes at most, without spaces"
                );
                return Err(values.error(NAMESPACE, message));
            }
            options.namespace = namespace.as_bytes().to_vec();
        }
        Ok(Some(MemcacheServers {
            options,
            client: OnceCell::new(),
        }))
    }

    fn client(&self, worker: &Rc<Worker>) -> Result<Rc<Memcached>, StoreError> {
        if let Some(client) = self.client.get() {
            return Ok(Rc::clone(client));
        }
        let client = Stores::of(worker).memcached(&self.options)?;
        Ok(Rc::clone(self.client.get_or_init(|| client)))
    }
}

/// Adds the functions.
pub(super) fn add(state: &Rc<State>, functions: &Table) -> mlua::Result<()> {
    add_one(state, functions, "memcache_exists", |_, found| {
        Ok(Value::Boolean(found.is_some()))
    })?;
    add_one(state, functions, "memcache_get_string", |lua, found| {
        found.map_or(Ok(Value::Boolean(false)), |bytes| {
            lua.create_string(bytes).map(Value::String)
        })
    })?;
    add_one(state, functions, "memcache_get_long", |_, found| {
        Ok(found.map_or(Value::Boolean(false), |bytes| Value::Number(long(bytes))))
    })
}

type Shown = fn(&Lua, Option<&[u8]>) -> mlua::Result<Value>;

fn add_one(
    state: &Rc<State>,
    functions: &Table,
    name: &'static str,
    shown: Shown,
) -> mlua::Result<()> {
    let lent = Rc::clone(state.lent());
    // Weak, because the state owns the function and must not be kept alive by it.
    let worker = std::rc::Weak::clone(state.worker());
    let function = state.machine().waiting(move |lua, key: LuaString| {
        let options = options(&lent);
        let servers = options
            .as_ref()
            .and_then(|options| options.memcache.as_ref())
            .ok_or_else(|| mlua::Error::runtime(format_args!("{name}: {HOSTS} is not set")))?;
        let worker = worker.upgrade();
        let client = worker.map(|worker| servers.client(&worker));
        let (key, lent, lua) = (key.as_bytes().to_vec(), Rc::clone(&lent), lua.clone());
        Ok(async move {
            let found = match client {
                Some(Ok(client)) => client.get(&key).await,
                Some(Err(error)) => Err(error),
                None => Ok(None),
            };
            let found = found.unwrap_or_else(|error| {
                tell(&lent, name, &error);
                None
            });
            shown(&lua, found.as_ref().map(|value| &value.data[..]))
        })
    })?;
    functions.set(name, function)
}

fn tell(lent: &Lent<Exchange>, name: &str, error: &StoreError) {
    if !error.is_repeated() {
        lent.with(|exchange| exchange.log_error("content", format_args!("{name}: {error}")));
    }
}

/// The number at the beginning of a text, as strtol(3) reads it; 0 if there is none.
fn long(text: &[u8]) -> f64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1.0, digits),
        [b'+', digits @ ..] => (1.0, digits),
        digits => (1.0, digits),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0_i64, |number, byte| {
        number
            .saturating_mul(10)
            .saturating_add(i64::from(byte - b'0'))
    });
    sign * number as f64
}

const HOSTS: &str = "cml.memcache-hosts";
const NAMESPACE: &str = "cml.memcache-namespace";

/// Leaves room for the key: both together may have 250 bytes.
const NAMESPACE_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        for (text, number) in [
            ("42", 42.0),
            (" -7 apples", -7.0),
            ("+1", 1.0),
            ("x", 0.0),
            ("", 0.0),
            ("99999999999999999999", i64::MAX as f64),
        ] {
            assert_eq!(long(text.as_bytes()), number, "{text:?}");
        }
    }
}
