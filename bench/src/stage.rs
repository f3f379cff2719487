//! A server on its cores with its backend, ready for requests.
//!
//! Knows how the parts are started and stopped, not what is measured.

use crate::backend::{Address, Backend, Kind};
use crate::certificate::Certificate;
use crate::cli::Placement;
use crate::peers::process::Running;
use crate::peers::{self, Chosen, FileReading, Logging, Site, TEMPORARY, Upstream};
use crate::workload::{Service, Workload};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A running server, and its backend.
pub struct Stage {
    /// The server.
    pub served: Served,
    /// Its backend. It follows the server here because it must be dropped later.
    pub backend: Option<Backend>,
    /// The backend's own files.
    _directory: TempDir,
}

/// A server that runs.
pub struct Served {
    /// Its processes.
    pub server: Running,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Its own files. Dropped last, because the server still writes to it.
    pub directory: TempDir,
    /// The same in memory.
    _memory: TempDir,
}

impl Stage {
    /// Starts what a workload needs.
    pub fn new(place: &Place, chosen: &Chosen, workload: &Workload) -> Result<Self, String> {
        Self::logging(place, chosen, workload, Logging::Off)
    }

    /// The same with a server that logs.
    pub fn logging(
        place: &Place,
        chosen: &Chosen,
        workload: &Workload,
        logging: Logging,
    ) -> Result<Self, String> {
        let directory = place.directory()?;
        let backend = workload
            .backend
            .map(|kind| place.backend(kind, directory.path()));
        let backend = backend.transpose()?;
        Ok(Self {
            served: Served::logging(
                place,
                chosen,
                workload,
                backend.as_ref().map(|it| &it.address),
                logging,
            )?,
            backend,
            _directory: directory,
        })
    }
}

impl Served {
    /// Starts a server in front of a backend that other servers may use, too.
    pub fn new(
        place: &Place,
        chosen: &Chosen,
        workload: &Workload,
        backend: Option<&Address>,
    ) -> Result<Self, String> {
        Self::logging(place, chosen, workload, backend, Logging::Off)
    }

    fn logging(
        place: &Place,
        chosen: &Chosen,
        workload: &Workload,
        backend: Option<&Address>,
        logging: Logging,
    ) -> Result<Self, String> {
        let port = peers::free_port().map_err(|error| error.to_string())?;
        let directory = place.directory()?;
        let memory = open_directory(Path::new(TEMPORARY)).map_err(|error| error.to_string())?;
        let site = Site {
            root: &place.root,
            pem: workload
                .protocol
                .tls
                .map(|_| place.certificate.pem.as_path()),
            directory: directory.path(),
            port,
            workload,
            memory: memory.path(),
            upstream: backend.zip(workload.backend.and_then(Kind::route)).map(
                |(address, route)| Upstream {
                    route,
                    address,
                    keep: workload.backend_reuse,
                    sends_files: workload.needs == Service::SendTempfile,
                    cached: matches!(workload.needs, Service::PageCache(_)),
                },
            ),
            store: backend,
            reading: FileReading::default(),
            logging,
        };
        let server = place.start(|| Running::start(chosen, &site))?;
        Ok(Self {
            server,
            port,
            directory,
            _memory: memory,
        })
    }
}

/// Where servers run: directories and cores.
pub struct Place {
    directory: TempDir,
    /// The document root.
    pub root: PathBuf,
    /// The certificate of all servers.
    pub certificate: Certificate,
    /// The path of Petrel, if it was given: Petrel can be a backend, too.
    petrel: Option<PathBuf>,
    /// The number of cores in all.
    pub all_cores: usize,
    /// The cores of servers and backends.
    pub server_cores: CpuSet,
    client_cores: CpuSet,
}

/// A directory that every user can enter: Apache and php-fpm run as the user nobody.
pub fn open_directory(parent: &Path) -> io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut builder = tempfile::Builder::new();
    let readable = std::fs::Permissions::from_mode(0o755);
    builder
        .prefix("petrel-bench-")
        .permissions(readable)
        .tempdir_in(parent)
}

impl Place {
    /// Makes the directories and divides the cores.
    pub fn new(placement: Placement, petrel: Option<&Path>) -> io::Result<Self> {
        let directory = open_directory(&std::env::temp_dir())?;
        let root = directory.path().join("root");
        std::fs::create_dir(&root)?;
        let certificate = Certificate::new(directory.path())?;
        let all = sched_getaffinity(None)?;
        let all_cores = std::thread::available_parallelism()?.get();
        let (server_cores, client_cores) = match placement {
            Placement::Shared => (all, all),
            Placement::Apart => apart(all),
        };
        Ok(Self {
            directory,
            root,
            certificate,
            petrel: petrel.map(Path::to_owned),
            all_cores,
            server_cores,
            client_cores,
        })
    }

    /// A new directory for the files of a server or backend.
    pub fn directory(&self) -> Result<TempDir, String> {
        open_directory(self.directory.path()).map_err(|error| error.to_string())
    }

    /// Starts a backend whose own files go to `directory`.
    pub fn backend(&self, kind: Kind, directory: &Path) -> Result<Backend, String> {
        self.start(|| Backend::start(kind, directory, self.petrel.as_deref()))
    }

    /// Starts something on the server's cores: a child inherits the affinity.
    pub fn start<T>(&self, start: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let set = |cores| sched_setaffinity(None, cores).map_err(|errno| errno.to_string());
        set(&self.server_cores)?;
        let started = start();
        set(&self.client_cores)?;
        started
    }
}

/// The last core for the client, the others for the server; a single core for both.
pub fn apart(all: CpuSet) -> (CpuSet, CpuSet) {
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| all.is_set(*core));
    let (Some(last), true) = (last, all.count() > 1) else {
        return (all, all);
    };
    let (mut server, mut client) = (all, CpuSet::new());
    server.unset(last);
    client.set(last);
    (server, client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_server_share_no_core_when_apart() {
        let mut all = CpuSet::new();
        all.set(0);
        all.set(1);
        all.set(3);
        let (server, client) = apart(all);
        assert!(server.is_set(0) && server.is_set(1) && !server.is_set(3));
        assert!(client.is_set(3) && client.count() == 1);
    }

    #[test]
    fn a_single_core_is_shared() {
        let mut one = CpuSet::new();
        one.set(2);
        assert!(apart(one) == (one, one));
    }
}
