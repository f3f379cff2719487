//! Tells at start-up how files will be read, and why: the line `files: …` in the error log.
//!
//! The line says what the kernel can do, for each configured network backend whether it works and why, and
//! what it costs if the kernel cannot do something. Then it names each file system that has a document root.
//! Nothing is decided here: code that reads files finds out itself what works for each file. Checks that may
//! wait run on disk threads, and file systems that another machine or a program answers for are not accessed
//! at all. The server process calls this.

use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use petrel_config::{BlockId, Config};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::blocking::{self, Class, Origin};
use crate::file_cache::read::read_cached;
use crate::limits;
use crate::log::LogRegistry;
use crate::mounts::{self, DeviceNumber, Mount, Storage};
use crate::network_backend::{self, NetworkBackend};
use crate::paths::has_resolve_cached;
use crate::settings::ProcessSettings;
use crate::settings::core::absolute_root;
use crate::shared::lock;

/// Writes the line. Waits up to [`limits::ROOTS_TOLD_MS_MAX`] for the file systems.
pub fn tell(config: &Config, process: &ProcessSettings, logs: &LogRegistry) {
    let mut parts = of_server(config, process);
    parts.extend(of_mounts(&mounts_of(config)));
    logs.error(format_args!("files: {}", parts.join("; ")));
}

/// The document roots with their mounts; of several roots on one mount only the first.
fn mounts_of(config: &Config) -> Vec<(Vec<u8>, Mount)> {
    let mut mounts: Vec<(Vec<u8>, Mount)> = Vec::new();
    for root in roots(config) {
        if let Some(mount) = mounts::over_path(&root)
            && mounts.iter().all(|(_, known)| *known != mount)
        {
            mounts.push((root, mount));
        }
    }
    mounts
}

/// The parts of the line about file systems.
fn of_mounts(mounts: &[(Vec<u8>, Mount)]) -> Vec<String> {
    let answers = Arc::new(Mutex::new(vec![Nowait::Late; mounts.len()]));
    let (done, all_done) = mpsc::channel::<()>();
    for (number, (root, mount)) in mounts.iter().enumerate() {
        if mount.place.storage != Storage::Disk {
            continue;
        }
        let origin = Origin {
            device: mount.place.device,
            ..Origin::default()
        };
        let (answers, done, root) = (Arc::clone(&answers), done.clone(), root.clone());
        // If the queue is full, the file system counts as one that does not answer.
        let _ = blocking::start(Class::Stat, origin, move || {
            let answer = try_nowait(&root);
            lock(&answers)[number] = answer;
            drop(done);
        });
    }
    drop(done);
    // The channel closes when all jobs are done.
    let _ = all_done.recv_timeout(Duration::from_millis(limits::ROOTS_TOLD_MS_MAX));
    let answers = lock(&answers);
    let parts = mounts.iter().zip(&*answers);
    parts
        .map(|((root, mount), nowait)| {
            let part = MountReport {
                root,
                mount,
                nowait: *nowait,
            };
            part.to_string()
        })
        .collect()
}

/// The parts of the line that apply to all files.
fn of_server(config: &Config, process: &ProcessSettings) -> Vec<String> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = match kernel.trim() {
        "" => String::new(),
        version => format!(" (Linux {version})"),
    };
    let threads = process.threads;
    let mut parts = vec![format!(
        "openat2 RESOLVE_CACHED {}{kernel}, threads {}/{}/{} (stat/read/write)",
        yes_or_no(has_resolve_cached()),
        threads.stat,
        threads.read,
        threads.write,
    )];
    let backends = backends(config).into_iter();
    parts.extend(backends.map(|backend| of_backend(backend, threads.read)));
    if !has_resolve_cached() {
        parts.push(
            "the kernel cannot answer from its caches alone (RESOLVE_CACHED needs Linux 5.12, and a sandbox may \
             forbid openat2), so a disk thread does the first look-up of each path"
                .to_owned(),
        );
    }
    if !mounts_can_be_told() {
        parts.push(
            "file systems cannot be told apart (that needs /proc/self/mountinfo and the mount id of statx, Linux \
             5.8), so all count as remote: disk threads look files up, again every second"
                .to_owned(),
        );
    }
    parts
}

/// How a network backend works, or why it does not.
fn of_backend(backend: NetworkBackend, read_threads: usize) -> String {
    let name = backend.name();
    match network_backend::check(backend, read_threads) {
        Ok(how) => format!("network backend {name}: {how}"),
        Err(why) => format!(
            "network backend {name} is not possible: {why}; up to {read_threads} threads read instead (gthread-aio)"
        ),
    }
}

/// The configured backends without duplicates, with that of the global block first.
fn backends(config: &Config) -> Vec<NetworkBackend> {
    let mut named = vec![NetworkBackend::default()];
    for block in &config.blocks {
        let entry = block.entry("server.network-backend");
        let name = entry.and_then(|entry| entry.value.as_str());
        let Some(backend) = name.and_then(NetworkBackend::named) else {
            continue;
        };
        if block.id == BlockId::GLOBAL {
            named[0] = backend;
        } else if !named.contains(&backend) {
            named.push(backend);
        }
    }
    named
}

fn mounts_can_be_told() -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty());
    root.is_ok_and(|root| mounts::of_descriptor(root).device != 0)
}

/// All values of `server.document-root` without duplicates, up to [`limits::ROOTS_TOLD_MAX`].
fn roots(config: &Config) -> Vec<Vec<u8>> {
    let mut roots: Vec<Vec<u8>> = Vec::new();
    for block in &config.blocks {
        let entry = block.entry("server.document-root");
        let named = entry.and_then(|entry| entry.value.as_str());
        let Some(root) = named.filter(|root| !root.is_empty()).map(absolute_root) else {
            continue;
        };
        let root = match &*root {
            b"" => b"/",
            other => other,
        };
        if !roots.iter().any(|known| known == root) {
            roots.push(root.to_vec());
        }
        if roots.len() >= limits::ROOTS_TOLD_MAX {
            break;
        }
    }
    roots
}

/// Whether a file system supports a read that must not wait (RWF_NOWAIT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowait {
    Yes,
    No,
    /// There was no file to try.
    Unknown,
    /// The file system did not answer in time.
    Late,
}

/// Tries such a read on the first file in a directory that can be opened.
fn try_nowait(directory: &[u8]) -> Nowait {
    let path = Path::new(std::ffi::OsStr::from_bytes(directory));
    let Ok(entries) = std::fs::read_dir(path) else {
        return Nowait::Unknown;
    };
    let mut tried = entries
        .flatten()
        .take(limits::NAMES_TRIED_MAX)
        .filter_map(|entry| {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let file = is_file.then(|| open(&entry.path()))??;
            match read_cached(&file, &mut [0], 0) {
                Ok(_) | Err(Errno::AGAIN) => Some(Nowait::Yes),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Some(Nowait::No),
                Err(_) => None,
            }
        });
    tried.next().unwrap_or(Nowait::Unknown)
}

fn open(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty());
    Some(File::from(opened.ok()?))
}

/// The part of the line about a file system.
struct MountReport<'a> {
    root: &'a [u8],
    mount: &'a Mount,
    nowait: Nowait,
}

impl fmt::Display for MountReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mount { point, kind, place } = self.mount;
        write!(
            f,
            "{:?} is on {kind} at {:?} ({}), ",
            String::from_utf8_lossy(self.root),
            String::from_utf8_lossy(point),
            DeviceNumber(place.device)
        )?;
        f.write_str(match (place.storage, self.nowait) {
            (Storage::Memory, _) => "in memory: read at once",
            (Storage::Remote, _) => {
                "remote: disk threads look up and read files, and requests wait at most server.max-file-wait for them"
            }
            (Storage::Disk, Nowait::Yes) => "a disk, RWF_NOWAIT yes: what is in the page cache is read at once",
            (Storage::Disk, Nowait::No) => {
                "a disk, RWF_NOWAIT no: disk threads read each file once, even from the page cache"
            }
            (Storage::Disk, Nowait::Unknown) => {
                "a disk, RWF_NOWAIT unknown: there is no file in the document root to try it on"
            }
            (Storage::Disk, Nowait::Late) => "a disk that has not answered yet",
        })
    }
}

fn yes_or_no(is_so: bool) -> &'static str {
    match is_so {
        true => "yes",
        false => "no",
    }
}

#[cfg(test)]
mod tests {
    use petrel_config::{LoadOptions, Schema, parse_str};

    use super::*;
    use crate::mounts::MountedPlace;
    use crate::settings::directives::DIRECTIVES;

    fn config(text: &str) -> Config {
        let schema = Schema::new(&[DIRECTIVES]);
        parse_str("test.conf", text, &schema, &LoadOptions::from_process()).expect("it is right")
    }

    #[test]
    fn each_backend_and_each_root_is_named_once() {
        let config = config(
            "server.document-root = \"/a/\"
            $HTTP[\"host\"] == \"b\" { server.document-root = \"/b\" server.network-backend = \"write\" }
            $HTTP[\"host\"] == \"c\" { server.document-root = \"/a\" server.network-backend = \"write\" }
            $HTTP[\"host\"] == \"d\" { server.document-root = \"/\" }",
        );
        assert_eq!(roots(&config), [&b"/a"[..], b"/b", b"/"]);
        assert_eq!(
            backends(&config),
            [NetworkBackend::Auto, NetworkBackend::Write]
        );
        let config = self::config(
            "server.network-backend = \"sendfile\"
            $HTTP[\"host\"] == \"b\" { server.network-backend = \"linux-sendfile\" }",
        );
        assert_eq!(backends(&config), [NetworkBackend::LinuxSendfile]);
        let many: String = (0..100)
            .map(|number| {
                format!(
                    "$HTTP[\"host\"] == \"{number}\" {{ server.document-root = \"/{number}\" }}\n"
                )
            })
            .collect();
        assert_eq!(roots(&self::config(&many)).len(), limits::ROOTS_TOLD_MAX);
    }

    #[test]
    fn a_line_says_what_a_file_system_is_and_what_follows() {
        let line = |storage, nowait| {
            let mount = Mount {
                point: b"/srv".to_vec(),
                kind: "kind".to_owned(),
                place: MountedPlace {
                    storage,
                    device: 8 << 32 | 1,
                },
            };
            let root = b"/srv/a\n";
            MountReport {
                root,
                mount: &mount,
                nowait,
            }
            .to_string()
        };
        let disk = line(Storage::Disk, Nowait::No);
        assert_eq!(
            disk,
            "\"/srv/a\\n\" is on kind at \"/srv\" (8:1), a disk, RWF_NOWAIT no: disk threads read each file once, \
             even from the page cache"
        );
        assert!(line(Storage::Disk, Nowait::Yes).contains("RWF_NOWAIT yes"));
        assert!(line(Storage::Memory, Nowait::Unknown).ends_with("in memory: read at once"));
        assert!(line(Storage::Remote, Nowait::Unknown).contains("remote: disk threads look up"));
    }

    #[test]
    fn a_directory_without_files_says_nothing() {
        let name = format!("petrel-file-report-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("inner")).expect("mkdir");
        let bytes = directory.as_os_str().as_bytes();
        assert_eq!(try_nowait(bytes), Nowait::Unknown);
        std::fs::write(directory.join("file"), "x").expect("written");
        assert_ne!(try_nowait(bytes), Nowait::Unknown);
        std::fs::remove_dir_all(&directory).expect("it is ours");
        assert_eq!(try_nowait(bytes), Nowait::Unknown);
    }
}
