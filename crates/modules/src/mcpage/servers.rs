//! The memcached servers of one set of settings, and the operations on them.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::log::LogHandle;
use petrel_engine::worker::Worker;

use super::options::{Debug, McpageOptions};
use crate::remote_store::{Memcached, MemcachedOptions, StoreError, Stores};

/// The options and their clients.
pub(super) struct Servers {
    pub(crate) options: McpageOptions,
    clients: OnceCell<Clients>,
}

/// The clients of one worker.
#[derive(Clone)]
pub(super) struct Clients {
    shared: Option<Rc<Memcached>>,
    local: Option<Rc<Memcached>>,
    expire_s: u32,
    local_expire_s: u32,
    log: LogHandle,
    under_way: Rc<UnderWay>,
}

/// The pages that a worker is storing.
#[derive(Default)]
pub(super) struct UnderWay {
    bytes: Cell<usize>,
}

/// How many bytes may be on their way to memcached. Further pages are not stored.
const UNDER_WAY_BYTES_MAX: usize = 32 << 20;

impl Servers {
    pub(crate) fn new(options: McpageOptions) -> Servers {
        Servers {
            options,
            clients: OnceCell::new(),
        }
    }

    /// The clients for the worker of `exchange`.
    pub(crate) fn clients(&self, exchange: &Exchange) -> Clients {
        let clients = self.clients.get_or_init(|| {
            let worker = &exchange.worker;
            let log = exchange.settings.core.error_log.clone();
            let client = |options: &MemcachedOptions| {
                let made = Stores::of(worker).memcached(options);
                made.inspect_err(|error| tell(&log, error)).ok()
            };
            Clients {
                shared: self.options.shared.as_ref().and_then(client),
                local: self.options.local.as_ref().and_then(client),
                expire_s: self.options.expire_s,
                local_expire_s: self.options.local_expire_s,
                under_way: under_way(worker),
                log: log.clone(),
            }
        });
        clients.clone()
    }

    /// Logs a line about a page if `mcpage.debug` is at least `level`.
    pub(crate) fn trace(&self, exchange: &Exchange, level: Debug, what: &str, url: &[u8]) {
        if self.options.debug >= level {
            let url = String::from_utf8_lossy(url);
            exchange.log_error("content", format_args!("mcpage: {what} url={url:?}"));
        }
    }
}

impl Clients {
    /// The value of `key`. A value from the shared servers is stored on the local one as well.
    pub(crate) async fn get(&self, key: &[u8]) -> Option<Bytes> {
        if let Some(found) = self.get_from(&self.local, key).await {
            return Some(found);
        }
        let found = self.get_from(&self.shared, key).await?;
        if let Some(local) = &self.local {
            self.put_later(local, key.to_vec(), found.clone(), self.local_expire_s);
        }
        Some(found)
    }

    /// Stores `value` on all servers, in the background; for at most `lifetime_s` seconds if the page states
    /// a lifetime.
    pub(crate) fn put(&self, key: &[u8], value: Bytes, lifetime_s: Option<u32>) {
        let places = [
            (&self.shared, self.expire_s),
            (&self.local, self.local_expire_s),
        ];
        for (client, expire_s) in places {
            let Some(client) = client else { continue };
            let lives_s = match (expire_s, lifetime_s) {
                (0, Some(own)) => own,
                (configured, Some(own)) => configured.min(own),
                (configured, None) => configured,
            };
            self.put_later(client, key.to_vec(), value.clone(), lives_s);
        }
    }

    async fn get_from(&self, client: &Option<Rc<Memcached>>, key: &[u8]) -> Option<Bytes> {
        match client.as_ref()?.get(key).await {
            Ok(found) => found.map(|value| value.data),
            Err(error) => {
                tell(&self.log, &error);
                None
            }
        }
    }

    fn put_later(&self, client: &Rc<Memcached>, key: Vec<u8>, value: Bytes, ttl_s: u32) {
        let under_way = Rc::clone(&self.under_way);
        let bytes = under_way.bytes.get() + value.len();
        if bytes > UNDER_WAY_BYTES_MAX {
            return;
        }
        under_way.bytes.set(bytes);
        let (client, log) = (Rc::clone(client), self.log.clone());
        tokio::task::spawn_local(async move {
            let stored = client.set(&key, &value, 0, ttl_s.into()).await;
            under_way.bytes.set(under_way.bytes.get() - value.len());
            if let Err(error) = stored {
                tell(&log, &error);
            }
        });
    }
}

fn under_way(worker: &Rc<Worker>) -> Rc<UnderWay> {
    worker.belonging(UnderWay::default)
}

fn tell(log: &LogHandle, error: &StoreError) {
    if !error.is_repeated() {
        log.error(format_args!("(content) mcpage: {error}"));
    }
}
