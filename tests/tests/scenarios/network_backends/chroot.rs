//! A chroot seldom has a /proc, but network backends work in it as they do outside.

use petrel_tests::{Server, skip};

use super::{CONTENT, evict};

const CONFIG: &str = "server.network-backend = \"linux-aio-sendfile\"
server.modules += ( \"mod_status\" )
status.statistics-url = \"/counters\"";

/// Whether kernel AIO has read the file at `path` of the server's tree when the server served it.
fn reads_by_kernel_aio(server: &Server, path: &str) -> bool {
    evict(server.tree(), path);
    assert!(server.get("/large.bin").body == *CONTENT);
    let counters = server.get("/counters").text();
    let count = counters.lines().find_map(|line| {
        let count = line.strip_prefix("server.io.linux-aio-sendfile.async-bytes: ")?;
        count.parse::<u64>().ok()
    });
    count.expect("it is counted") > 0
}

#[test]
fn kernel_aio_reads_in_a_chroot_as_it_does_outside() {
    if !rustix::process::geteuid().is_root() {
        let test = "kernel_aio_reads_in_a_chroot_as_it_does_outside";
        return skip(test, "only root may change the root directory");
    }
    let server = Server::build()
        .file("www/large.bin", &*CONTENT)
        .config(CONFIG)
        .start();
    let does_outside = reads_by_kernel_aio(&server, "www/large.bin");
    let mut inside = String::new();
    let server = Server::build()
        .tree(|tree| {
            // The paths of the document root and the error log, as seen inside.
            inside = format!("jail{}/www/large.bin", tree.root().display());
            tree.write(&inside, &*CONTENT);
        })
        .config("server.chroot = var.dir + \"/jail\"")
        .config(CONFIG)
        .start();
    assert_eq!(reads_by_kernel_aio(&server, &inside), does_outside);
}
