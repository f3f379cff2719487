//! Where backends are that the configuration names: host names and SRV records, and their changes.
//!
//! A [`Resolver`] is a thread of its own with a small runtime. It asks for each name that is watched,
//! again when the answer's time to live is over, and publishes lists of addresses. Workers hold a
//! [`Resolved`] each and look at one number ([`Resolved::generation`]) to see that nothing changed;
//! they never wait for a name server, but the first request for a name may
//! ([`Resolved::poll_answered`]). Knows nothing of connections or of what a backend speaks.
//!
//! What is published stays in use until there is something newer. A name server that does not
//! answer, or says that a name has gone, changes nothing; it is asked again after a pause that
//! doubles, and the log says so once.
//!
//! /etc/resolv.conf and /etc/hosts are read once, by [`NameServers::of_system`], before a chroot hides them. A
//! reload makes a new server process, which reads them anew.

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

/// An address that requests can be sent to, with what an SRV record says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// The smallest is used first: RFC 2782. 0 without SRV record.
    pub priority: u16,
    /// Share among those with the same priority; at least 1, and 1 without SRV record.
    pub weight: u16,
}

/// What a name stands for at present. Shared by all workers.
#[derive(Debug)]
pub struct Resolved {
    /// How often the endpoints have changed.
    generation: AtomicU64,
    published: Mutex<Published>,
}

#[derive(Debug)]
struct Published {
    endpoints: Arc<[Endpoint]>,
    /// Who waits for the first answer; `None`: it has come.
    waiting: Option<Vec<Waker>>,
}

/// Looks names up, for all workers of a process.
#[derive(Debug)]
pub(crate) struct Resolver {
    watched: Mutex<HashMap<HostAddress, Weak<Resolved>>>,
    /// When this is dropped, the thread ends.
    names: mpsc::UnboundedSender<Watch>,
}

/// A name to be followed as long as a worker holds its answers.
struct Watch {
    address: HostAddress,
    resolved: Weak<Resolved>,
}

/// No request waits for an answer that cannot come any more.
impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(resolved) = self.resolved.upgrade() {
            resolved.answered();
        }
    }
}

/// The names that a server process follows. Its thread starts when a name is first asked for.
#[derive(Default)]
pub struct FollowedNames {
    /// The name servers, if they were read before.
    servers: Mutex<Option<NameServers>>,
    resolver: Mutex<Option<Resolver>>,
}

impl FollowedNames {
    /// Those of the server process.
    pub fn of(shared: &Shared) -> Arc<FollowedNames> {
        shared.belonging(FollowedNames::default)
    }

    /// Sets which name servers are asked. To be called before the first name is watched, where a chroot hides those of
    /// the system.
    pub fn prepare(&self, servers: NameServers) {
        *lock(&self.servers) = Some(servers);
    }

    /// The addresses of `address`: see [`Resolver::watch`]. `log` is told about names that cannot be resolved.
    ///
    /// # Errors
    /// The kernel refuses a thread.
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

    /// Ends the look-ups: what names stand for stays as it is. A name that is asked for the first time is still looked
    /// up.
    pub fn stop(&self) {
        lock(&self.resolver).take();
    }
}

/// Looks up `addresses` now, and says what is wrong with those that lead to nothing: for a check of
/// the configuration. Waits for name servers.
///
/// # Errors
/// There is no runtime to be had, for lack of memory or descriptors.
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

/// Where `address` leads without a look-up: a unix socket, or the number that it states, also in brackets.
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
    /// The kernel refuses a thread.
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

    /// The addresses of `address`, kept up to date as long as a worker holds them. Those of one
    /// name are the same for all who ask.
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
        // If the thread has ended, which only a panic in it can bring about, the error drops the watch.
        let _ = self.names.send(watch);
        resolved
    }
}

impl Resolved {
    /// How often the endpoints have changed: look at this, and at [`Resolved::current`] only when it
    /// is another number than last time. 0 as long as the name has never been resolved.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The endpoints, by priority and then by address, IPv4 first. Empty before the first answer.
    pub fn current(&self) -> Arc<[Endpoint]> {
        Arc::clone(&lock(&self.published).endpoints)
    }

    /// Ready when the name has been looked up once, also if that failed: what [`Resolved::current`]
    /// says then is all there is for now. Takes at most [`Pace::lookup_max`].
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

    /// Makes `endpoints` the current ones, if they are others. Wakes who waits for an answer.
    fn publish(&self, endpoints: Vec<Endpoint>) {
        let mut published = lock(&self.published);
        if published.endpoints[..] != endpoints[..] {
            published.endpoints = endpoints.into();
            self.generation.fetch_add(1, Ordering::Release);
        }
        drop(published);
        self.answered();
    }

    /// The first look-up is over.
    fn answered(&self) {
        let waiting = lock(&self.published).waiting.take();
        for waker in waiting.into_iter().flatten() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
