//! The servers under comparison: one file each, and one table.
//!
//! A peer defines how it is installed, configured for a [`Site`] and started in the foreground. [`process`]
//! starts and ends it and finds all of its processes. All configurations aim at the same: two workers,
//! persistent connections without limit, no access log, and the server's caches switched on. Every value that
//! is not self-evident has its reason beside it.

mod apache;
mod caddy;
mod floor;
mod h2o;
mod haproxy;
mod lighttpd;
mod nginx;
pub mod petrel;
pub mod process;

use crate::backend::{Address, Route};
use crate::workload::passwords::{self, Login};
use crate::workload::scripts::{self, InServer};
use crate::workload::stories::Way;
use crate::workload::{Http, Reuse, Service, Urls, Workload};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All servers, in the order of tables and plots. To add one, add a file and a line here.
pub static PEERS: &[Peer] = &[
    petrel::PEER,
    nginx::PEER,
    nginx::WITHOUT_SENDFILE,
    nginx::WITH_THREADS,
    lighttpd::PEER,
    h2o::PEER,
    apache::PEER,
    caddy::PEER,
    haproxy::PEER,
    floor::PEER,
];

/// One server.
pub struct Peer {
    /// Name on the command line, in tables and in the JSON.
    pub name: &'static str,
    /// Where its program comes from.
    pub program: Program,
    /// Arguments that make it print its version.
    pub version: &'static [&'static str],
    /// What it can do.
    pub serves: &'static [Service],
    /// Whether it runs when no servers are named.
    pub choice: Choice,
    /// What it sends for different paths.
    pub bodies: Bodies,
    /// Writes its configuration for a site; returns the command that serves it in the foreground.
    pub prepare: fn(&Path, &Site<'_>) -> io::Result<Command>,
}

/// Where a program comes from.
pub enum Program {
    /// Installed on the machine, from the Debian package of that name.
    Packaged {
        program: &'static str,
        package: &'static str,
    },
    /// Built in this workspace.
    Petrel,
    /// This very program.
    Ourselves,
}

/// Whether a server runs if no servers are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Always, if it is installed.
    Default,
    /// Only if it is named, because it is a variant of another.
    OnRequest,
}

/// What a server sends for requests for different files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// The requested file.
    AsAsked,
    /// The workload's first file, for every request.
    FirstOnly,
}

/// What a server shall serve, and where.
pub struct Site<'a> {
    /// The document root.
    pub root: &'a Path,
    /// Certificate and key in one file, if clients use TLS.
    pub pem: Option<&'a Path>,
    /// A directory for the server's own files: configuration, pid file, error log.
    pub directory: &'a Path,
    /// Port on 127.0.0.1.
    pub port: u16,
    /// The workload. Only the floor server needs it, because it has only one reply.
    pub workload: &'a Workload,
    /// A directory in memory, for the server's caches.
    pub memory: &'a Path,
    /// The backend for requests.
    pub upstream: Option<Upstream<'a>>,
    /// The backend that scripts use, whether the server also sends requests there or not.
    pub store: Option<&'a Address>,
    /// How the server shall read files.
    pub reading: FileReading<'a>,
    /// Whether the server logs requests.
    pub logging: Logging,
}

/// Whether a server logs requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logging {
    /// It does not.
    Off,
    /// Petrel writes [`STAGES_LOG`] into its directory; other servers cannot.
    Stages,
}

/// The access log with stage times.
pub const STAGES_LOG: &str = "stages.log";

/// How a server shall read files, as far as it does not decide that itself. Settings that a server does not
/// have are ignored.
#[derive(Clone, Copy, Debug)]
pub struct FileReading<'a> {
    /// Clients that wait for files at the same time; a server with a thread for each needs this many.
    pub clients: u16,
    /// The network backend (Petrel).
    pub backend: Option<&'a str>,
    /// How much of a file is read at a time, in KiB (Petrel, nginx).
    pub chunk_kib: Option<u32>,
    /// How many threads wait for the disk (nginx), or look files up, and as many read (Petrel).
    pub threads: Option<u16>,
    /// The prefix of URLs whose files a FastCGI program looks up first, and the address of that program
    /// (Petrel, lighttpd).
    pub stat_accelerator: Option<(&'a str, &'a Address)>,
}

impl Default for FileReading<'_> {
    /// The servers' defaults.
    fn default() -> Self {
        Self {
            clients: 64,
            backend: None,
            chunk_kib: None,
            threads: None,
            stat_accelerator: None,
        }
    }
}

/// A backend of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// Its protocol, and which requests it gets.
    pub route: Route,
    /// Where it listens.
    pub address: &'a Address,
    /// Whether connections to it are persistent.
    pub keep: Reuse,
    /// Whether it may name files below [`TEMPORARY`] for the server to send and remove.
    pub sends_files: bool,
    /// Whether the server shall cache cacheable responses.
    pub cached: bool,
}

/// A server that will be run.
pub struct Chosen {
    /// The table's entry.
    pub peer: &'static Peer,
    /// Its program.
    pub path: PathBuf,
}

impl Site<'_> {
    /// Whether clients use HTTP/2.
    fn is_http2(&self) -> bool {
        matches!(self.workload.protocol.http, Http::Two { .. })
    }

    /// The script that the server itself shall run.
    fn script(&self) -> Option<&'static InServer> {
        match self.workload.urls {
            Urls::InServer(script) => Some(script),
            Urls::Story(story) if story.way == Way::Script => Some(&scripts::STORY),
            _ => None,
        }
    }

    /// Writes a text of that script, and its module beside it. They are separate from files that are written
    /// while the server runs, because some servers watch the directories of scripts.
    fn write_script(&self, script: &InServer, suffix: &str, text: &str) -> io::Result<PathBuf> {
        let port = match self.store {
            Some(Address::Tcp(port)) => Some(*port),
            _ => None,
        };
        std::fs::create_dir_all(self.directory.join(SCRIPTS))?;
        if let Some((name, text)) = script.module {
            let text = script.complete(text, port);
            self.write(&format!("{SCRIPTS}/{name}.lua"), text.as_bytes())?;
        }
        let text = script.complete(text, port);
        self.write(
            &format!("{SCRIPTS}/{}.{suffix}", script.name),
            text.as_bytes(),
        )
    }

    /// The path on which Lua looks for modules.
    fn lua_path(&self) -> String {
        format!("{}/{SCRIPTS}/?.lua;;", self.directory.display())
    }

    /// How the server may treat log-ins, and the file with the user, which is written here; `None` if the
    /// workload has no passwords.
    fn login(&self) -> io::Result<Option<(Login, PathBuf)>> {
        let login = passwords::login(self.workload);
        let file = login.map(|_| self.write("users", passwords::USERS.as_bytes()));
        Ok(login.zip(file.transpose()?))
    }

    fn configure(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        self.write(name, text.as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let path = self.directory.join(name);
        std::fs::write(&path, bytes)?;
        Ok(path)
    }
}

/// The named servers, or all that can provide any of `services`; of those, the installed ones. Prints which
/// are missing. The only error is that none is left.
pub fn choose(
    names: &[String],
    petrel: Option<&Path>,
    services: &[Service],
) -> Result<Vec<Chosen>, String> {
    let mut chosen = Vec::new();
    for peer in able(names, services)? {
        match peer.program.find(petrel) {
            Ok(path) => chosen.push(Chosen { peer, path }),
            Err(missing) => eprintln!("petrel-bench: without {}: {missing}", peer.name),
        }
    }
    if chosen.is_empty() {
        Err("no server to run".to_owned())
    } else {
        Ok(chosen)
    }
}

/// The named servers, or all; of those, the ones that can provide any of `services`.
pub fn able(names: &[String], services: &[Service]) -> Result<Vec<&'static Peer>, String> {
    let mut peers = named(names)?;
    peers.retain(|peer| services.iter().any(|service| peer.serves.contains(service)));
    Ok(peers)
}

/// The entries for `names`, or all that run by default.
fn named(names: &[String]) -> Result<Vec<&'static Peer>, String> {
    if names.is_empty() {
        return Ok(PEERS
            .iter()
            .filter(|peer| peer.choice == Choice::Default)
            .collect());
    }
    let find = |name: &String| {
        PEERS.iter().find(|peer| peer.name == name).ok_or_else(|| {
            let all: Vec<_> = PEERS.iter().map(|peer| peer.name).collect();
            format!("no server {name}; there are {}", all.join(", "))
        })
    };
    names.iter().map(find).collect()
}

/// A free port on 127.0.0.1.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

impl Program {
    /// The program's path, or why there is none.
    pub fn find(&self, petrel: Option<&Path>) -> Result<PathBuf, String> {
        match self {
            Self::Packaged { program, package } => in_path(program)
                .ok_or_else(|| format!("{program} is not installed (Debian package {package})")),
            Self::Petrel => {
                let path = petrel.map_or_else(|| beside_us("petrel"), |path| Ok(path.to_owned()));
                let path = path.map_err(|error| error.to_string())?;
                let missing = || format!("{} is not there; build it first", path.display());
                path.canonicalize().map_err(|_| missing())
            }
            Self::Ourselves => std::env::current_exe().map_err(|error| error.to_string()),
        }
    }
}

/// The path of a program, including programs in administrators' directories, and those whose name ends in a
/// version (`php-fpm8.2`).
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let directories = || std::env::split_paths(&path).chain(administrators.clone());
    let mut exact = directories().map(|directory| directory.join(program));
    let versioned = || {
        let entries = directories().filter_map(|directory| directory.read_dir().ok());
        let mut paths = entries.flatten().flatten().map(|entry| entry.path());
        paths.find(|path| path.is_file() && is_version_of(path, program))
    };
    exact
        .find(|candidate| candidate.is_file())
        .or_else(versioned)
}

fn is_version_of(path: &Path, program: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let version = name.and_then(|name| name.strip_prefix(program));
    version.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn beside_us(program: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(program))
}

/// Where scripts put files for the server to send and remove: in memory.
pub const TEMPORARY: &str = "/dev/shm";

/// The services of a server that can do everything.
const ALL_SERVICES: &[Service] = &[
    Service::Files,
    Service::Gateway(Route::FastCgi),
    Service::Gateway(Route::Http),
    Service::Gateway(Route::Php),
    Service::LargeAnswers,
];
/// The directory of scripts, in a server's own directory.
const SCRIPTS: &str = "scripts";

/// Workers of every server: processes or threads that accept.
const WORKERS: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (n, one) in PEERS.iter().enumerate() {
            assert!(
                PEERS[n + 1..].iter().all(|other| other.name != one.name),
                "{}",
                one.name
            );
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = named(&["iis".to_owned()]).err().unwrap();
        assert!(
            error.contains("iis") && error.contains("lighttpd"),
            "{error}"
        );
    }

    #[test]
    fn variants_run_only_when_named() {
        let unasked = named(&[]).unwrap();
        assert!(unasked.iter().all(|peer| peer.name != "nginx-nosendfile"));
        assert!(unasked.iter().all(|peer| peer.name != "nginx-aio"));
        assert_eq!(named(&["nginx-nosendfile".to_owned()]).unwrap().len(), 1);
    }

    #[test]
    fn a_version_may_stand_behind_a_name() {
        assert!(is_version_of(Path::new("/usr/sbin/php-fpm8.2"), "php-fpm"));
        assert!(!is_version_of(Path::new("/usr/bin/perfect"), "perf"));
    }

    #[test]
    fn a_missing_petrel_is_told_with_its_path() {
        let error = Program::Petrel
            .find(Some(Path::new("/no/petrel")))
            .unwrap_err();
        assert!(error.contains("/no/petrel"), "{error}");
    }
}
