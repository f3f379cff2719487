//! The backends of gateways: this program's own responders, php-fpm, and Petrel running Lua.
//!
//! The responders answer with few instructions, so that the measurement shows the cost of the gateway. They
//! count connections and requests; `tally` reads the counts over a separate socket. A backend is a process
//! beside the server and never one of its children, so that their CPU times can be separated.

mod fastcgi;
mod http;
mod magnet;
mod php;
mod responder;
mod script;
mod slow_redis;

pub use fastcgi::request as fastcgi_request;
pub use php::{Cgi, Pool};
pub use script::install_flup;

use crate::cli::BackendOptions;
use crate::install::Package;
use crate::peers::process::Running;
use crate::workload::files;
use std::fmt;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The protocol and program of a backend. Those that do not say otherwise use a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// FastCGI, by this program's own responder.
    FastCgi,
    /// The same on a TCP port.
    FastCgiTcp,
    /// HTTP/1.1, by this program's own responder, on a TCP port.
    Http,
    /// The same with replies of this many bytes, which caches may store for an hour.
    Cacheable(u64),
    /// php-fpm with OPcache.
    PhpFpm,
    /// The same on a TCP port.
    PhpFpmTcp,
    /// php-fpm with OPcache, recording how long each request occupied a worker.
    PhpFpmTimed,
    /// php-cgi, as it was used before php-fpm existed.
    PhpCgi(Cgi),
    /// Perl's FCGI.
    Perl,
    /// Python's flup.
    Python,
    /// Ruby's fcgi.
    Ruby,
    /// `petrel fcgi-magnet`: Lua.
    FcgiMagnet,
    /// A slow Redis, on a TCP port. Scripts use it, not gateways.
    SlowRedis,
}

/// Which requests go to a backend, and by which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// All below `/fcgi`, by FastCGI.
    FastCgi,
    /// All below `/http`, by HTTP.
    Http,
    /// `*.php`, by FastCGI.
    Php,
    /// `*.lua`, by FastCGI.
    Lua,
}

impl Kind {
    /// How requests get to the backend; `None` if not through a gateway.
    pub const fn route(self) -> Option<Route> {
        Some(match self {
            Self::FastCgi | Self::FastCgiTcp | Self::Perl | Self::Python | Self::Ruby => {
                Route::FastCgi
            }
            Self::Http | Self::Cacheable(_) => Route::Http,
            Self::PhpFpm | Self::PhpFpmTcp | Self::PhpFpmTimed | Self::PhpCgi(_) => Route::Php,
            Self::FcgiMagnet => Route::Lua,
            Self::SlowRedis => return None,
        })
    }

    /// The packages it needs.
    pub fn packages(self) -> &'static [Package] {
        match self {
            Self::FastCgi
            | Self::FastCgiTcp
            | Self::Http
            | Self::Cacheable(_)
            | Self::FcgiMagnet
            | Self::SlowRedis => &[],
            Self::PhpFpm | Self::PhpFpmTcp | Self::PhpFpmTimed => &[php::FPM],
            Self::PhpCgi(_) => &[php::CGI],
            Self::Perl => &[script::PERL],
            Self::Python => &[script::PYTHON, script::PIP],
            Self::Ruby => &[script::RUBY],
        }
    }
}

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A port on 127.0.0.1.
    Tcp(u16),
}

/// A running backend. Dropping it ends the backend.
pub struct Backend {
    /// Its processes.
    pub running: Running,
    /// Where it listens.
    pub address: Address,
    tally: Tally,
}

/// How a backend reports what it has done.
enum Tally {
    /// It does not.
    None,
    /// This program's own responder: it writes the numbers of connections and requests to each connection to
    /// this socket.
    Control(PathBuf),
    /// php-fpm: scripts append a line per request with the microseconds it took.
    Times(PathBuf),
}

impl Backend {
    /// Starts a backend whose own files go to `directory`, which servers of any user must be able to enter.
    /// `petrel` is the path of that program, if it was given.
    pub fn start(kind: Kind, directory: &Path, petrel: Option<&Path>) -> Result<Self, String> {
        let socket = || Address::Unix(directory.join("backend.sock"));
        let port = || {
            let port = crate::peers::free_port().map_err(|error| error.to_string())?;
            Ok::<_, String>(Address::Tcp(port))
        };
        match kind {
            Kind::FastCgi => Self::ourselves(&["fastcgi"], socket(), directory),
            Kind::FastCgiTcp => Self::ourselves(&["fastcgi"], port()?, directory),
            Kind::Http => Self::ourselves(&["http"], port()?, directory),
            Kind::Cacheable(bytes) => {
                let bytes = bytes.to_string();
                let arguments = ["http", "--bytes", &bytes, "--max-age", MAX_AGE];
                Self::ourselves(&arguments, port()?, directory)
            }
            Kind::SlowRedis => {
                let delay = SLOW_REDIS_DELAY.as_millis().to_string();
                Self::ourselves(&["slow-redis", "--delay-ms", &delay], port()?, directory)
            }
            Kind::FcgiMagnet => {
                let address = socket();
                let command = magnet::command(petrel, &address)?;
                Self::run(command, address, Tally::None, directory)
            }
            Kind::PhpFpm => Self::php_fpm(&Pool::default(), socket(), directory),
            Kind::PhpFpmTcp => Self::php_fpm(&Pool::default(), port()?, directory),
            Kind::PhpFpmTimed => Self::php_fpm(&Pool::timed(), socket(), directory),
            Kind::PhpCgi(cgi) => Self::on_standard_input(cgi.command()?, directory),
            Kind::Perl => Self::on_standard_input(script::perl(directory)?, directory),
            Kind::Python => Self::on_standard_input(script::python(directory)?, directory),
            Kind::Ruby => Self::on_standard_input(script::ruby(directory)?, directory),
        }
    }

    /// Starts a program whose standard input is the listening socket, as the FastCGI specification defines.
    pub fn on_standard_input(mut command: Command, directory: &Path) -> Result<Self, String> {
        let path = directory.join("backend.sock");
        let listener = responder::listen_unix_blocking(&path).map_err(|errno| errno.to_string())?;
        command.stdin(listener).current_dir("/");
        Self::run(command, Address::Unix(path), Tally::None, directory)
    }

    /// Starts php-fpm.
    pub fn php_fpm(pool: &Pool, address: Address, directory: &Path) -> Result<Self, String> {
        let mut command = pool.command(&address, directory)?;
        command.stdin(Stdio::null());
        let tally = match pool.timed {
            true => Tally::Times(pool.times(directory)),
            false => Tally::None,
        };
        Self::run(command, address, tally, directory)
    }

    fn run(
        mut command: Command,
        address: Address,
        tally: Tally,
        directory: &Path,
    ) -> Result<Self, String> {
        let running = Running::launch(&mut command, &directory.join("backend.log"), &address)
            .map_err(|error| format!("backend: {error}"))?;
        Ok(Self {
            running,
            address,
            tally,
        })
    }

    /// What it has done since its start; `None` if the backend does not count.
    pub fn counts(&self) -> Option<Counts> {
        let mut words = String::new();
        let Tally::Control(path) = &self.tally else {
            return None;
        };
        UnixStream::connect(path)
            .ok()?
            .read_to_string(&mut words)
            .ok()?;
        let (accepted, requests) = words.trim().split_once(' ')?;
        Some(Counts {
            accepted: accepted.parse().ok()?,
            requests: requests.parse().ok()?,
        })
    }

    /// How long requests have occupied workers since the start; `None` if that is not recorded.
    pub fn occupied(&self) -> Option<Duration> {
        let Tally::Times(path) = &self.tally else {
            return None;
        };
        let text = std::fs::read_to_string(path).ok()?;
        let microseconds: u64 = text
            .lines()
            .filter_map(|line| line.parse::<u64>().ok())
            .sum();
        Some(Duration::from_micros(microseconds))
    }

    /// Starts this program as a backend. `arguments` are the protocol and its parameters.
    fn ourselves(arguments: &[&str], address: Address, directory: &Path) -> Result<Self, String> {
        let control = directory.join("control.sock");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("backend").args(arguments);
        match &address {
            Address::Unix(path) => command.arg("--socket").arg(path),
            Address::Tcp(port) => command.arg("--port").arg(port.to_string()),
        };
        command.arg("--control").arg(&control).stdin(Stdio::null());
        Self::run(command, address, Tally::Control(control), directory)
    }
}

/// What this program's own responder has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Requests received.
    pub requests: u64,
}

impl Address {
    /// Whether a server listens there.
    pub fn answers(&self) -> bool {
        self.connect().is_ok()
    }

    /// Connects, for reading and writing.
    pub fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Self::Tcp(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(port) => write!(f, "127.0.0.1:{port}"),
        }
    }
}

/// A blocking connection of either kind.
#[derive(Debug)]
pub enum Stream {
    /// To a unix socket.
    Unix(UnixStream),
    /// To a port.
    Tcp(TcpStream),
}

impl Stream {
    /// How long a read may take.
    pub fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Unix(stream) => stream.into(),
            Stream::Tcp(stream) => stream.into(),
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers until the process is ended.
pub fn serve(options: &BackendOptions) -> io::Result<()> {
    responder::serve(options)
}

/// The body of every reply of this program's own responders.
pub fn body(bytes: u64) -> Vec<u8> {
    files::content("backend", bytes)
}

/// Its default length.
pub const BODY_BYTES: u64 = 100;
/// How long the slow Redis takes to reply.
pub const SLOW_REDIS_DELAY: Duration = Duration::from_secs(10);
/// How long caches may store a cacheable reply, in seconds.
const MAX_AGE: &str = "3600";
