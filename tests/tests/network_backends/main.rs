//! How contents of files leave, by each backend: whole, in ranges, cut short, and where the kernel forbids
//! it.

mod cut_short;
mod forbidden;
mod serving;

use std::fs::File;
use std::sync::LazyLock;

use petrel_tests::{Builder, Server, Tree};
use rustix::fs::{Advice, fadvise};

/// All values of server.network-backend.
const BACKENDS: [&str; 9] = [
    "auto",
    "write",
    "writev",
    "linux-sendfile",
    "gthread-aio",
    "gthread-sendfile",
    "posix-aio",
    "linux-aio-sendfile",
    "io_uring",
];

/// The file they send: more than sockets and chunks hold, and no whole number of blocks.
const BYTES: usize = 24_000_123;

/// No block of it is like another.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..BYTES)
        .map(|place| (place * 7 + place / 251) as u8 | 1)
        .collect()
});

/// A server on the file, which has a name for each backend.
fn server() -> Builder {
    let scopes = BACKENDS.map(|name| {
        format!("$HTTP[\"url\"] == \"/{name}\" {{ server.network-backend = \"{name}\" }}\n")
    });
    let names = |tree: &Tree| {
        for name in BACKENDS {
            tree.symlink("large.bin", &format!("www/{name}"));
        }
    };
    Server::build()
        .file("www/large.bin", &*CONTENT)
        .tree(names)
        .config(&scopes.concat())
}

/// Takes the file out of the page cache, so that it has to be read.
fn evict(tree: &Tree, path: &str) {
    let file = File::open(tree.path(path)).expect("it was made");
    file.sync_all().expect("written");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advice about a file");
}
