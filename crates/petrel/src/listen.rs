//! The listening sockets of a configuration. A reload keeps those that the new configuration has, too.
//!
//! Such a socket is never closed: the sets of both configurations share it. TCP sockets are bound first, and
//! [`ListenerSet::listen`] is a second step, so that no connection reaches a socket that no worker will
//! serve. The engine accepts the connections.

mod holder;
mod open;

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use config::{ListenAddress, Span};
use engine::server::BoundListener;
use engine::settings::ProcessSettings;
use engine::settings::process::ListenerSettings;

pub(crate) use holder::holder_of;
pub(crate) use open::{is_in_use, probe};

/// All listeners of one configuration.
#[derive(Clone, Default)]
pub(crate) struct ListenerSet {
    listeners: Vec<OpenListener>,
}

/// One address and its sockets.
#[derive(Clone)]
struct OpenListener {
    /// The address in canonical form.
    address: String,
    port: u16,
    backlog: u32,
    /// For TCP one socket per worker; a single one for a unix socket or for a socket that was passed to this
    /// process.
    sockets: Vec<Rc<ListenSocket>>,
    /// The socket was passed by the service manager, so no further ones can be bound beside it.
    inherited: bool,
}

/// A bound socket.
pub(crate) struct ListenSocket {
    descriptor: OwnedFd,
    is_listening: Cell<bool>,
    /// For TCP: the address that was bound, to bind further sockets to it.
    bound_to: Option<std::net::SocketAddr>,
    /// For a unix socket that this process made.
    _path: Option<SocketPath>,
}

/// Removes a unix socket's name when the process that made it stops listening there.
struct SocketPath {
    path: PathBuf,
    owner: u32,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // The name may have been removed already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub(crate) struct ListenError {
    /// What is wrong, as a sentence without a full stop.
    pub(crate) message: String,
    /// The place in the configuration that asked for the address.
    pub(crate) span: Option<Span>,
}

impl ListenerSet {
    /// The listeners of `process`. Those that `before` has, too, are shared with it. The rest come from
    /// `inherited` while it has any, and are opened otherwise.
    ///
    /// # Errors
    /// The first address that cannot be opened. Everything newly opened is closed again.
    pub(crate) fn open(
        process: &ProcessSettings,
        before: &ListenerSet,
        inherited: &ListenerSet,
    ) -> Result<ListenerSet, ListenError> {
        let mut set = ListenerSet::default();
        for wanted in &process.listeners {
            let address = wanted.address.to_string();
            let known = before.find(&address).or_else(|| inherited.find(&address));
            let Some(known) = known else {
                // The service manager's sockets replace the main address (`server.bind`, `server.port`).
                if !(wanted.is_default && inherited.is_some()) {
                    set.listeners
                        .push(open::open(wanted, process.workers.get())?);
                }
                continue;
            };
            let mut kept = known.clone();
            let told = kept.follow(wanted, process.workers.get());
            told.map_err(|error| open::explain(wanted, &error))?;
            set.listeners.push(kept);
        }
        let unclaimed = inherited
            .listeners
            .iter()
            .filter(|there| set.find(&there.address).is_none());
        let unclaimed: Vec<_> = unclaimed.cloned().collect();
        set.listeners.extend(unclaimed);
        Ok(set)
    }

    /// What to say when the service manager's sockets stand in for the main address and none of them has its port: a
    /// change of `server.port` alone has no effect then.
    pub(crate) fn differs(&self, process: &ProcessSettings) -> Option<String> {
        let main = process
            .listeners
            .iter()
            .find(|listener| listener.is_default)?;
        let port = match &main.address {
            ListenAddress::Ip(address) => address.port(),
            ListenAddress::Name { port, .. } => *port,
            ListenAddress::Unix(_) => return None,
        };
        let first = self.listeners.first()?;
        if self.listeners.iter().any(|listener| listener.port == port) {
            return None;
        }
        Some(format!(
            "the server listens on {} and not on {}, because the service manager has passed that socket: change \
             ListenStream= in its socket unit",
            first.address, main.address
        ))
    }

    /// The sockets that systemd, or another service manager with its protocol, passed to this process.
    ///
    /// # Errors
    /// A descriptor is no listening stream socket.
    pub(crate) fn from_service_manager() -> io::Result<ListenerSet> {
        let mut listeners = Vec::new();
        let mut passed = listenfd::ListenFd::from_env();
        for index in 0..passed.len() {
            // A descriptor that is no TCP socket stays in the list and is tried as another kind below.
            let tcp = passed
                .take_tcp_listener(index)
                .map(|found| found.map(OwnedFd::from));
            let descriptor = match tcp {
                Ok(found) => found,
                Err(_) => passed.take_unix_listener(index)?.map(OwnedFd::from),
            };
            listeners.extend(descriptor.map(open::adopt).transpose()?);
        }
        Ok(ListenerSet { listeners })
    }

    /// Makes all sockets accept connections from now on.
    ///
    /// # Errors
    /// Those of listen(2), as a sentence: another server may have taken the address in between.
    pub(crate) fn listen(&self) -> io::Result<()> {
        for listener in &self.listeners {
            for socket in &listener.sockets {
                if socket.is_listening.get() && listener.inherited {
                    continue;
                }
                socket.listen(listener.backlog).map_err(|error| {
                    io::Error::new(error.kind(), open::sentence(&listener.address, &error))
                })?;
            }
        }
        Ok(())
    }

    /// Duplicates of the sockets, for the engine.
    ///
    /// # Errors
    /// The process has too many open files.
    pub(crate) fn copies(&self) -> io::Result<Vec<BoundListener>> {
        let copy = |listener: &OpenListener| {
            let sockets = listener
                .sockets
                .iter()
                .map(|socket| socket.descriptor.try_clone());
            Ok(BoundListener {
                address: listener.address.clone(),
                port: listener.port,
                sockets: sockets.collect::<io::Result<_>>()?,
            })
        };
        self.listeners.iter().map(copy).collect()
    }

    fn find(&self, address: &str) -> Option<&OpenListener> {
        self.listeners
            .iter()
            .find(|listener| listener.address == address)
    }

    /// Their addresses in canonical form.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.iter().map(|listener| &*listener.address)
    }

    fn is_some(&self) -> bool {
        !self.listeners.is_empty()
    }
}

impl ListenSocket {
    /// Calling listen(2) on a socket that listens already changes its backlog.
    fn listen(&self, backlog: u32) -> io::Result<()> {
        rustix::net::listen(&self.descriptor, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        if self.bound_to.is_some() {
            // The first socket of an address is bound and listens without SO_REUSEPORT. That fails if another
            // server listens there, even one of the same user. Only then is SO_REUSEPORT set, so that the
            // sockets of further workers can be bound.
            rustix::net::sockopt::set_socket_reuseport(&self.descriptor, true)?;
        }
        self.is_listening.set(true);
        Ok(())
    }
}

impl OpenListener {
    /// Applies changed settings to an address that is open already, and opens sockets for additional workers.
    /// If there are fewer workers than before, they share all sockets: closing one would lose the connections
    /// in its queue.
    fn follow(&mut self, wanted: &ListenerSettings, workers: usize) -> io::Result<()> {
        self.backlog = wanted.backlog;
        for socket in &self.sockets {
            open::set_changeable_options(socket.descriptor.as_fd(), wanted)?;
        }
        let Some(address) = self.sockets.first().and_then(|socket| socket.bound_to) else {
            return Ok(());
        };
        while !self.inherited && self.sockets.len() < workers {
            self.sockets
                .push(Rc::new(open::bind_beside(address, wanted)?));
        }
        Ok(())
    }
}

/// The URL under which a browser reaches `address`; `None` for a unix socket.
pub(crate) fn url_of(address: &ListenAddress) -> Option<String> {
    match address {
        ListenAddress::Ip(address) => Some(format!("http://{address}/")),
        ListenAddress::Name { host, port } => Some(format!("http://{host}:{port}/")),
        ListenAddress::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests;
