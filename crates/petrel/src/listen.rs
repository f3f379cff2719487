//! The listening sockets of the configuration: opened, kept from one configuration to the next,
//! given away at last.
//!
//! A socket that stays is never closed: sets of two configurations share it. TCP sockets are
//! bound, and [`ListenerSet::listen`] is a second step, so that no connection lands on a socket
//! that nobody will serve. Accepts nothing; the engine does.

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

pub(crate) use open::probe;

/// All listeners of one configuration.
#[derive(Clone, Default)]
pub(crate) struct ListenerSet {
    listeners: Vec<OpenListener>,
}

/// One address with its sockets.
#[derive(Clone)]
struct OpenListener {
    /// The canonical form of the address.
    address: String,
    port: u16,
    backlog: u32,
    /// Several for TCP, one a worker; one for a unix socket, or for what was handed to us.
    sockets: Vec<Rc<ListenSocket>>,
    /// A socket from the service manager: it exists once.
    inherited: bool,
}

/// A bound socket.
pub(crate) struct ListenSocket {
    descriptor: OwnedFd,
    is_listening: Cell<bool>,
    /// For TCP: the address that bind(2) was given, for more sockets of the same.
    bound_to: Option<std::net::SocketAddr>,
    /// For a unix socket that we made.
    _path: Option<SocketPath>,
}

/// Removes a unix socket's name when the process that made it no longer listens there.
struct SocketPath {
    path: PathBuf,
    owner: u32,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // Somebody else may have removed it already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub(crate) struct ListenError {
    /// What is wrong, in a sentence without a full stop.
    pub(crate) message: String,
    /// The place in the configuration that asked for the address.
    pub(crate) span: Option<Span>,
}

impl ListenerSet {
    /// The listeners of `process`. What `before` has already is shared with it, the rest is opened,
    /// after those of `inherited` were used up.
    ///
    /// # Errors
    /// The first address that cannot be had. Then nothing stays open that was not before.
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
                // The service manager's sockets stand in for the main address.
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

    /// The sockets that systemd, or whoever speaks its protocol, has passed to this very process.
    ///
    /// # Errors
    /// A descriptor that is no listening stream socket.
    pub(crate) fn from_service_manager() -> io::Result<ListenerSet> {
        let mut listeners = Vec::new();
        let mut passed = listenfd::ListenFd::from_env();
        for index in 0..passed.len() {
            // What is no TCP socket stays where it is, to be taken as what it is.
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

    /// Lets all sockets take connections from now on.
    ///
    /// # Errors
    /// Those of listen(2), in a sentence: another server may have been faster.
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

    /// Copies of the sockets, in the form the engine takes.
    ///
    /// # Errors
    /// The process has no descriptor left.
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

    fn is_some(&self) -> bool {
        !self.listeners.is_empty()
    }
}

impl ListenSocket {
    /// Once more on a socket that listens changes its backlog.
    fn listen(&self, backlog: u32) -> io::Result<()> {
        rustix::net::listen(&self.descriptor, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        if self.bound_to.is_some() {
            // The first socket of an address begins to listen without it, which fails when another
            // server, even one of the same user, listens there. Only then it lets its own in.
            rustix::net::sockopt::set_socket_reuseport(&self.descriptor, true)?;
        }
        self.is_listening.set(true);
        Ok(())
    }
}

impl OpenListener {
    /// Takes over what `wanted` says of an address that is open already, and makes sockets for
    /// more workers. Fewer workers share all sockets: closing one would lose its queue.
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

/// Where `address` can be reached by a browser; none for a unix socket.
pub(crate) fn url_of(address: &ListenAddress) -> Option<String> {
    match address {
        ListenAddress::Ip(address) => Some(format!("http://{address}/")),
        ListenAddress::Name { host, port } => Some(format!("http://{host}:{port}/")),
        ListenAddress::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests;
