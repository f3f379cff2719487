//! Sending the contents of files with each network backend: whole, in ranges, slowly, and where the kernel
//! forbids it.

mod chroot;
mod forbidden;
mod serving;
mod slow_clients;

use std::fs::File;
use std::sync::LazyLock;

use engine::settings::core::NetworkBackend;
use petrel_tests::{Builder, Server, Tree, eventually};
use rustix::fs::{Advice, fadvise};

/// All values of server.network-backend.
fn backends() -> impl Iterator<Item = &'static str> {
    NetworkBackend::ALL.into_iter().map(NetworkBackend::name)
}

/// The size of the file: more than sockets and chunks hold, and not a multiple of the block size.
const BYTES: usize = 24_000_123;

/// No two blocks of it are equal.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..BYTES)
        .map(|place| (place * 7 + place / 251) as u8 | 1)
        .collect()
});

/// A server with the file, which has one name per network backend.
fn server() -> Builder {
    let scopes = backends().map(|name| {
        format!("$HTTP[\"url\"] == \"/{name}\" {{ server.network-backend = \"{name}\" }}\n")
    });
    let names = |tree: &Tree| {
        for name in backends() {
            tree.symlink("large.bin", &format!("www/{name}"));
        }
    };
    Server::build()
        .file("www/large.bin", &*CONTENT)
        .tree(names)
        .config(&scopes.collect::<String>())
}

/// What the server logged about a backend: how it works, or why it is not available here.
fn told(server: &Server, backend: &str) -> Result<String, String> {
    let works = format!("network backend {backend}: ");
    let fails = format!("network backend {backend} is not possible: ");
    let said = |log: &str, what: &str| {
        let line = log.lines().find_map(|line| line.split_once(what));
        line.map(|(_, rest)| rest.split("; ").next().unwrap_or(rest).to_owned())
    };
    let find = || {
        let log = server.log();
        said(&log, &works).map(Ok).or(said(&log, &fails).map(Err))
    };
    let mut found = None;
    eventually(|| {
        found = find();
        found.is_some()
    });
    found.unwrap_or_else(|| panic!("nothing of {backend}:\n{}", server.log()))
}

/// Drops the file from the page cache, so that it must be read.
fn evict(tree: &Tree, path: &str) {
    let file = File::open(tree.path(path)).expect("it was made");
    file.sync_all().expect("written");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advice about a file");
}
