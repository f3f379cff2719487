//! The addresses of backends that the configuration gives by host name or SRV record, and the changes of
//! these addresses.
//!
//! A [`Resolver`] is a thread with a small runtime. It looks up each name that is watched, again when the
//! time to live of the answer is over, and publishes the addresses. A worker holds a [`Resolved`] for each
//! name and compares one number ([`Resolved::generation`]) to see whether the addresses have changed. Workers
//! never wait for a name server; only the first request for a name may ([`Resolved::poll_answered`]). This
//! module knows nothing of connections or protocols.
//!
//! Published addresses stay in use until there are newer ones. A name server that does not answer, or answers
//! that the name does not exist, changes nothing: it is asked again after a pause that doubles each time, and
//! the log says so once.
//!
//! /etc/resolv.conf and /etc/hosts are read once, by [`NameServers::of_system`], before a chroot hides them.
//! A reload starts a new server process, which reads them again.

mod follow;
mod lookup;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use petrel_engine::log::LogHandle;
use petrel_engine::shared::{Shared, lock};
use tokio::sync::mpsc;

use super::options::HostAddress;
use super::stream::SocketAddress;

pub use follow::Pace;
pub use lookup::NameServers;

/// An address that requests can be sent to, with its priority and weight from an SRV record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Endpoints with the smallest priority are used first (RFC 2782). 0 without an SRV record.
    pub priority: u16,
    /// The share of requests among endpoints with the same priority: at least 1, and 1 without an SRV record.
    pub weight: u16,
}

/// The present addresses of a name. Shared by all workers.
#[derive(Debug)]
pub struct Resolved {
    /// How often the endpoints have changed.
    generation: AtomicU64,
    published: Mutex<Published>,
}

#[derive(Debug)]
struct Published {
    endpoints: Arc<[Endpoint]>,
    /// The tasks that wait for the first answer; `None` once it has come.
    waiting: Option<Vec<Waker>>,
}

/// Looks names up, for all workers of a process.
#[derive(Debug)]
pub(crate) struct Resolver {
    watched: Mutex<HashMap<HostAddress, Weak<Resolved>>>,
    /// Closing this channel ends the thread.
    names: mpsc::UnboundedSender<Watch>,
}

/// A name to look up again and again, as long as a worker holds the [`Resolved`].
struct Watch {
    address: HostAddress,
    resolved: Weak<Resolved>,
}

/// When a watch ends, requests must not go on waiting for its first answer.
impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(resolved) = self.resolved.upgrade() {
            resolved.answered();
        }
    }
}

/// The names that a server process follows. The thread starts with the first name.
#[derive(Default)]
pub struct FollowedNames {
    /// The name servers, if [`FollowedNames::prepare`] has set them.
    servers: Mutex<Option<NameServers>>,
    resolver: Mutex<Option<Resolver>>,
}

impl FollowedNames {
    /// The followed names of the server process.
    pub fn of(shared: &Shared) -> Arc<FollowedNames> {
        shared.belonging(FollowedNames::default)
    }

    /// Sets the name servers. To be called before the first name is watched if a chroot hides the system's
    /// files.
    pub fn prepare(&self, servers: NameServers) {
        *lock(&self.servers) = Some(servers);
    }

    /// The addresses of `address`: see [`Resolver::watch`]. Names that cannot be resolved are reported to
    /// `log`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch(&self, address: &HostAddress, log: &LogHandle) -> io::Result<Arc<Resolved>> {
        let mut resolver = lock(&self.resolver);
        if let Some(resolver) = &*resolver {
            return Ok(resolver.watch(address));
        }
        let servers = lock(&self.servers).take();
        let servers = servers.unwrap_or_else(NameServers::of_system);
        let started = Resolver::start(servers, Pace::default(), log.clone())?;
        Ok(resolver.insert(started).watch(address))
    }

    /// Ends the repeated look-ups: the addresses of names stay as they are. A name that is watched for the
    /// first time is still looked up.
    pub fn stop(&self) {
        lock(&self.resolver).take();
    }
}

/// Looks up `addresses` now and reports those that cannot be resolved, for a check of the configuration.
/// Blocks until the name servers have answered.
///
/// # Errors
/// The runtime cannot be made, for lack of memory or descriptors.
pub fn check(
    servers: &NameServers,
    addresses: &[HostAddress],
) -> io::Result<Vec<(HostAddress, String)>> {
    let runtime = follow::runtime()?;
    let client = servers.client();
    let mut wrong = Vec::new();
    for address in addresses.iter().filter(|address| fixed(address).is_none()) {
        let answer = follow::look_up_in_time(&client, address, Pace::default().lookup_max);
        if let Err(reason) = runtime.block_on(answer) {
            wrong.push((address.clone(), reason));
        }
    }
    Ok(wrong)
}

/// The address, if `address` needs no look-up: a unix socket, or a numeric address, also in brackets.
pub(crate) fn fixed(address: &HostAddress) -> Option<SocketAddress> {
    match address {
        HostAddress::Unix(path) => {
            let path = PathBuf::from(OsStr::from_bytes(path));
            Some(SocketAddress::Unix(path))
        }
        HostAddress::Tcp(host, port) => {
            let inner = host
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            let ip: IpAddr = inner.unwrap_or(host).parse().ok()?;
            Some(SocketAddress::Ip(SocketAddr::new(ip, *port)))
        }
        HostAddress::Srv(_) => None,
    }
}

impl Resolver {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(servers: NameServers, pace: Pace, log: LogHandle) -> io::Result<Resolver> {
        let (names, watches) = mpsc::unbounded_channel();
        let runtime = follow::runtime()?;
        let thread = std::thread::Builder::new().name("petrel-names".to_owned());
        thread.spawn(move || runtime.block_on(follow::follow_all(watches, servers, pace, log)))?;
        Ok(Resolver {
            watched: Mutex::default(),
            names,
        })
    }

    /// The addresses of `address`, kept up to date as long as a worker holds the result. All callers with the
    /// same name get the same one.
    pub(crate) fn watch(&self, address: &HostAddress) -> Arc<Resolved> {
        debug_assert!(
            fixed(address).is_none(),
            "{address:?} leads there without a look-up"
        );
        let mut watched = lock(&self.watched);
        if let Some(resolved) = watched.get(address).and_then(Weak::upgrade) {
            return resolved;
        }
        watched.retain(|_, resolved| resolved.strong_count() > 0);
        let resolved = Arc::new(Resolved::unknown());
        watched.insert(address.clone(), Arc::downgrade(&resolved));
        let watch = Watch {
            address: address.clone(),
            resolved: Arc::downgrade(&resolved),
        };
        // Only a panic in the thread can have ended it. Then the send fails and drops the watch, which wakes
        // the requests that wait.
        let _ = self.names.send(watch);
        resolved
    }
}

impl Resolved {
    /// How often the endpoints have changed. The caller compares it with the number it saw last, and calls
    /// [`Resolved::current`] only if it differs. 0 as long as the name has never been resolved.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The endpoints, by priority and then by address, IPv4 first. Empty before the first answer.
    pub fn current(&self) -> Arc<[Endpoint]> {
        Arc::clone(&lock(&self.published).endpoints)
    }

    /// Ready when the name has been looked up once, even if that failed: [`Resolved::current`] then has all
    /// that is known. Takes at most [`Pace::lookup_max`].
    pub(crate) fn poll_answered(&self, context: &mut Context<'_>) -> Poll<()> {
        match &mut lock(&self.published).waiting {
            None => Poll::Ready(()),
            Some(waiting) => {
                let waker = context.waker();
                if !waiting.iter().any(|known| known.will_wake(waker)) {
                    waiting.push(waker.clone());
                }
                Poll::Pending
            }
        }
    }

    fn unknown() -> Resolved {
        Resolved {
            generation: AtomicU64::new(0),
            published: Mutex::new(Published {
                endpoints: Arc::new([]),
                waiting: Some(Vec::new()),
            }),
        }
    }

    /// Makes `endpoints` the current ones, if they differ, and wakes the requests that wait for a first
    /// answer.
    fn publish(&self, endpoints: Vec<Endpoint>) {
        let mut published = lock(&self.published);
        if published.endpoints[..] != endpoints[..] {
            published.endpoints = endpoints.into();
            self.generation.fetch_add(1, Ordering::Release);
        }
        drop(published);
        self.answered();
    }

    /// Notes that the first look-up is over.
    fn answered(&self) {
        let waiting = lock(&self.published).waiting.take();
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
