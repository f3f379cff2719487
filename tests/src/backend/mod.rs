//! Backends that follow a script, and can also do what no correct backend does: die, hang, trickle, lie.
//!
//! A [`Backend`] listens on a unix socket or a port and runs a script, which is a closure, for each request.
//! The script gets an [`Exchange`]: it reads as much of the request as it wants, and answers with whole
//! responses, in pieces, or with raw bytes. [`Backend::requests`] lists everything that the backend has
//! received.
//!
//! The framing is implemented again here on purpose: a codec shared with the server would share its mistakes.
//! Each connection is served by a thread of this process.

mod ajp13;
mod dialect;
mod exchange;
mod fastcgi;
mod http;
mod scgi;
mod wire;

pub use dialect::Speaks;
pub use exchange::{Exchange, Record};
pub use fastcgi::record as fastcgi_record;

use std::fmt;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use crate::stream::{Address, Stream};
use crate::{Tree, eventually, free_port};
use exchange::Session;

/// A listening backend. Dropping it closes everything.
pub struct Backend {
    speaks: Speaks,
    address: Address,
    script: Arc<Script>,
    books: Arc<Books>,
    listening: Option<JoinHandle<()>>,
    /// The directory of its socket.
    _tree: Option<Tree>,
}

/// What a backend does with a request.
type Script = dyn Fn(&mut Exchange<'_>) + Send + Sync;

/// What a backend records, also while it is stopped.
#[derive(Default)]
struct Books {
    requests: Mutex<Vec<Record>>,
    /// A second handle of each open connection, with its number.
    open: Mutex<Vec<(usize, Stream)>>,
    accepted: AtomicUsize,
    /// How many requests the gateway aborted (FCGI_ABORT_REQUEST).
    aborted: AtomicUsize,
    stopping: AtomicBool,
}

impl Backend {
    /// A backend on a unix socket in a directory of its own.
    pub fn start(
        speaks: Speaks,
        script: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static,
    ) -> Backend {
        let tree = Tree::new();
        let address = Address::Unix(tree.path("backend.sock"));
        Backend::start_at(speaks, address, Some(tree), script)
    }

    /// A backend on a port of 127.0.0.1.
    pub fn start_on_tcp(
        speaks: Speaks,
        script: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static,
    ) -> Backend {
        let address = Address::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        Backend::start_at(speaks, address, None, script)
    }

    fn start_at(
        speaks: Speaks,
        address: Address,
        tree: Option<Tree>,
        script: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static,
    ) -> Backend {
        let mut backend = Backend {
            speaks,
            address,
            script: Arc::new(script),
            books: Arc::default(),
            listening: None,
            _tree: tree,
        };
        backend.restart();
        backend
    }

    /// Its address as options of a host in lighttpd 1.4's maps.
    pub fn host(&self) -> String {
        match &self.address {
            Address::Unix(path) => format!("\"socket\" => \"{}\"", path.display()),
            Address::Ip(address) => {
                format!(
                    "\"host\" => \"{}\", \"port\" => {}",
                    address.ip(),
                    address.port()
                )
            }
        }
    }

    /// Its address as an entry of 1.5's `proxy-core.backends`.
    pub fn name(&self) -> String {
        match &self.address {
            Address::Unix(path) => format!("unix:{}", path.display()),
            Address::Ip(address) => address.to_string(),
        }
    }

    /// The directive that sends requests for `key` to this backend. `options` are further options of the
    /// host, such as `"check-local" => "disable"`.
    pub fn directive(&self, key: &str, options: &str) -> String {
        directive(self.speaks, key, &[self], options)
    }

    /// Stops listening, and closes all connections.
    pub fn stop(&mut self) {
        let Some(listening) = self.listening.take() else {
            return;
        };
        self.books.stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; it may have ended already.
        let _ = Stream::connect(&self.address);
        listening.join().expect("listening does not panic");
        self.hang_up();
        if let Address::Unix(path) = &self.address {
            // Even if this fails, connecting is refused.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Closes all connections, and continues to listen.
    pub fn hang_up(&self) {
        for (_, stream) in self.books.open().drain(..) {
            // The other side may have closed first.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Listens at the same address again.
    ///
    /// # Panics
    /// The address is taken.
    pub fn restart(&mut self) {
        self.stop();
        self.books.stopping.store(false, Ordering::SeqCst);
        let listener = Listener::bind(&self.address);
        let (books, script) = (Arc::clone(&self.books), Arc::clone(&self.script));
        let speaks = self.speaks;
        self.listening = Some(thread::spawn(move || {
            listener.serve(speaks, &books, &script);
        }));
    }

    /// The requests so far, in the order in which their heads arrived.
    pub fn requests(&self) -> Vec<Record> {
        self.books.requests().clone()
    }

    /// The latest request.
    ///
    /// # Panics
    /// There was none.
    #[track_caller]
    pub fn last(&self) -> Record {
        let last = self.books.requests().last().cloned();
        last.expect("the backend was asked nothing")
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.books.accepted.load(Ordering::SeqCst)
    }

    /// Connections that neither side has closed.
    pub fn open_connections(&self) -> usize {
        self.books.open().len()
    }

    /// How many requests the gateway aborted by FCGI_ABORT_REQUEST.
    pub fn aborted(&self) -> usize {
        self.books.aborted.load(Ordering::SeqCst)
    }

    /// Waits until there were `count` requests in all.
    ///
    /// # Panics
    /// They do not arrive.
    #[track_caller]
    pub fn expect_requests(&self, count: usize) {
        let came = || self.books.requests().len();
        assert!(
            eventually(|| came() >= count),
            "{} of {count} requests came",
            came()
        );
    }

    /// Waits until exactly `count` connections are open.
    ///
    /// # Panics
    /// That does not happen.
    #[track_caller]
    pub fn expect_open_connections(&self, count: usize) {
        let matches = eventually(|| self.open_connections() == count);
        assert!(
            matches,
            "{} connections are open, not {count}",
            self.open_connections()
        );
    }
}

/// A directive that sends requests for `key` to several backends with the same protocol.
pub fn directive(speaks: Speaks, key: &str, backends: &[&Backend], options: &str) -> String {
    let hosts: Vec<String> = backends
        .iter()
        .map(|backend| format!("    ( {}, {options} )", backend.host()))
        .collect();
    let hosts = hosts.join(",\n");
    let (module, directive, before) = speaks.directive();
    format!(
        "server.modules += ( \"{module}\" )\n{before}{directive} = ( \"{key}\" => (\n{hosts}\n) )"
    )
}

/// A unix socket or port where connections are never accepted and the queue is full, so that connecting
/// hangs.
#[derive(Debug)]
pub struct Deaf {
    listener: TcpListener,
    /// The connections that fill the queue.
    _waiting: Vec<Stream>,
}

impl Deaf {
    /// Fills the queue of a port of 127.0.0.1.
    ///
    /// # Panics
    /// The kernel accepts more and more connections.
    #[expect(
        clippy::new_without_default,
        reason = "it opens sockets, which a default should not"
    )]
    pub fn new() -> Deaf {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        // A second listen(2) shortens the queue.
        rustix::net::listen(&listener, 0).expect("it listens");
        let address = listener.local_addr().expect("it is bound");
        let mut waiting = Vec::new();
        let patience = std::time::Duration::from_millis(200);
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, patience) {
            waiting.push(Stream::Tcp(stream));
            assert!(waiting.len() < 10, "the queue does not fill");
        }
        Deaf {
            listener,
            _waiting: waiting,
        }
    }

    /// Its address as options of a host in lighttpd 1.4's maps.
    pub fn host(&self) -> String {
        let address = self.listener.local_addr().expect("it is bound");
        format!(
            "\"host\" => \"{}\", \"port\" => {}",
            address.ip(),
            address.port()
        )
    }
}

impl Books {
    fn requests(&self) -> MutexGuard<'_, Vec<Record>> {
        self.requests.lock().expect("no thread panics with it")
    }

    fn open(&self) -> MutexGuard<'_, Vec<(usize, Stream)>> {
        self.open.lock().expect("no thread panics with it")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Backend")
            .field("speaks", &self.speaks)
            .field("address", &self.address)
            .field("requests", &*self.books.requests())
            .finish_non_exhaustive()
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(address: &Address) -> Listener {
        match address {
            Address::Ip(address) => TcpListener::bind(address).map(Listener::Tcp),
            Address::Unix(path) => UnixListener::bind(path).map(Listener::Unix),
        }
        .unwrap_or_else(|error| panic!("{address:?}: {error}"))
    }

    fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => Stream::Tcp(listener.accept()?.0).without_delay(),
            Listener::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    /// Accepts until the backend is stopped. Open connections continue; their threads end when they are
    /// closed.
    fn serve(self, speaks: Speaks, books: &Arc<Books>, script: &Arc<Script>) {
        while let Ok(stream) = self.accept() {
            if books.stopping.load(Ordering::SeqCst) {
                return;
            }
            let number = books.accepted.fetch_add(1, Ordering::SeqCst);
            let handle = stream.try_clone().expect("a descriptor");
            books.open().push((number, handle));
            let (books, script) = (Arc::clone(books), Arc::clone(script));
            thread::spawn(move || {
                Session::new(stream, speaks, number, &books).run(&*script);
                books.open().retain(|(open, _)| *open != number);
            });
        }
    }
}
