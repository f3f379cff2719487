//! Files on disks that are slow, hang, fail, or change while the server looks them up and sends them.
//!
//! There is one worker, so that a wait for a file in the worker's thread would delay all other requests.

mod bytes;
mod changes;
mod crowds;
mod ends;
mod failures;
mod filtered;
mod hanging;
mod kept_files;
mod listings;
mod modules;
mod mounts;
mod overlays;
mod scripts;
mod who_reads;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use engine::settings::core::NetworkBackend;
use petrel_tests::{Client, Holdings, Server, SlowFs, eventually};
use rustix::mount::{MountFlags, UnmountFlags};

/// The names of the network backends that never make the worker wait for a file.
fn reading_elsewhere() -> impl Iterator<Item = &'static str> {
    let waits = ["write", "writev", "linux-sendfile"];
    let names = NetworkBackend::ALL.into_iter().map(NetworkBackend::name);
    names.filter(move |name| !waits.contains(name))
}

/// Requests of [`asking`] and [`failures::begun`] wait this many seconds for a file system. All other
/// requests wait a minute, so that they are served even on a slow machine.
fn impatient(seconds: u32) -> String {
    format!("$HTTP[\"host\"] == \"a\" {{ server.max-file-wait = {seconds} }}\n")
}

/// A server with one worker, with `files` in `/slow/`, a file system that hangs when a test asks for it, and
/// with `/hot.txt` elsewhere. Drop the server last.
fn site(test: &str, files: &[(&str, &[u8])], config: &str) -> Option<(Server, SlowFs)> {
    let mut server = Server::build().file("www/hot.txt", "hot");
    for (path, content) in files {
        server = server.file(&format!("www/slow/{path}"), content);
    }
    let mut slow = None;
    let server = server
        .tree(|tree| {
            tree.directory("www/slow");
            slow = SlowFs::mount_or_skip(test, &tree.path("www/slow"));
        })
        .config(&format!("server.max-worker = 1\n{config}"));
    let slow = slow?;
    Some((server.start(), slow))
}

/// Expects that other requests are served: for a file that the worker has in memory, and for one that it has
/// never seen.
#[track_caller]
fn expect_others_served(server: &Server) {
    assert_eq!(server.get("/hot.txt").text(), "hot");
    let number = server.tree().names("www").len();
    let name = format!("new-{number}.txt");
    server.tree().write(&format!("www/{name}"), &name);
    assert_eq!(server.get(&format!("/{name}")).text(), name);
}

/// A client that has sent a request for `target` and reads nothing.
fn asking(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

/// Makes the kernel drop the cached content of a file that hangs later, by opening it anew. The server still
/// has it open.
fn forget_content(server: &Server, path: &str) {
    drop(fs::File::open(server.tree().path(path)).expect("it is there"));
}

/// The content of the test's files: each four bytes tell their position.
fn content(length: usize) -> Vec<u8> {
    static LONGEST: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let words = 0..u32::try_from(failures::LARGE / 4).expect("small");
        words.flat_map(u32::to_be_bytes).collect()
    });
    LONGEST[..length].to_vec()
}

/// Waits until the server holds the same as `before`. Of files, only those count whose paths `counts`
/// accepts.
#[track_caller]
fn expect_holdings(server: &Server, before: &Holdings, counts: fn(&str) -> bool, what: &str) {
    let counted = |holdings: &Holdings| {
        let mut counted = holdings.clone();
        let descriptors = &mut counted.descriptors;
        descriptors.retain(|name, _| !name.starts_with('/') || counts(name));
        counted
    };
    let before = counted(before);
    assert!(
        eventually(|| counted(&server.holdings()).are_as(&before)),
        "{what}: before {before:#?} after {:#?}",
        server.holdings()
    );
}

/// Whether a file is none of those that [`expect_others_served`] leaves open.
fn was_there(path: &str) -> bool {
    !path.contains("/new-")
}

/// Threads of the server's processes.
fn threads(server: &Server) -> usize {
    let count = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    server.processes().pids.iter().map(count).sum()
}

/// Something mounted; dropping this unmounts it.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(
        kind: &str,
        at: PathBuf,
        options: &str,
    ) -> Result<Mounted, rustix::io::Errno> {
        let options = std::ffi::CString::new(options).expect("no NUL");
        rustix::mount::mount(kind, &at, kind, MountFlags::empty(), &*options)?;
        Ok(Mounted(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // There is nothing to be done about a mount that stays.
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}
