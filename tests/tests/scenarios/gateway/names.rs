//! Backends whose addresses are host names in the configuration.

use std::path::Path;
use std::process::Command;

use petrel_tests::{Backend, Exchange, Server, Speaks, Tree, is_installed, petrel, skip};

/// A backend on a port of 127.0.0.1, and that port.
fn on_a_port() -> (Backend, String) {
    let backend = Backend::start_on_tcp(Speaks::Http, |exchange: &mut Exchange<'_>| {
        exchange.say("found");
    });
    let name = backend.name();
    let (_, port) = name.rsplit_once(':').expect("it has a port");
    let port = port.to_owned();
    (backend, port)
}

fn proxy(host: &str, port: &str) -> String {
    format!(
        "server.modules += ( \"mod_proxy\" )
        proxy.server = ( \"/app\" => (( \"host\" => \"{host}\", \"port\" => {port} )) )"
    )
}

#[test]
fn a_name_with_several_addresses_is_one_backend() {
    // If the name also resolves to ::1, connecting there is refused.
    let (_backend, port) = on_a_port();
    let server = Server::build().config(&proxy("localhost", &port)).start();
    for _ in 0..3 {
        assert_eq!(server.get("/app/").text(), "found");
    }
}

/// Runs Petrel with `hosts` in the place of the machine's hosts file.
fn with_hosts(hosts: &Tree) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$1\" /etc/hosts\nshift\nexec \"$@\"";
    command
        .args(["--mount", "sh", "-euc", script, "sh"])
        .arg(hosts.path("hosts"))
        .arg(petrel())
        .arg("-D");
    command
}

#[test]
fn names_lead_somewhere_from_inside_a_chroot() {
    let is_there = Path::new("/etc/hosts").exists() && is_installed("unshare");
    if !is_there || !rustix::process::geteuid().is_root() {
        let test = "names_lead_somewhere_from_inside_a_chroot";
        return skip(
            test,
            "it needs root, unshare, and a hosts file to put another one over",
        );
    }
    let hosts = Tree::new();
    hosts.write("hosts", "127.0.0.1 localhost backend.petrel.test\n");
    let (_backend, port) = on_a_port();
    let server = Server::build()
        // The path of the error log, as seen inside the chroot.
        .tree(|tree| {
            tree.directory(&format!("jail{}", tree.root().display()));
        })
        .config("server.chroot = var.dir + \"/jail\"")
        .config(&proxy("backend.petrel.test", &port))
        .start_as(with_hosts(&hosts));
    assert_eq!(server.get("/app/").text(), "found");
}

#[test]
fn a_check_tells_names_that_lead_nowhere() {
    let config = proxy("nowhere.invalid", "80");
    let checked = Server::build().config(&config).check(&["-tt"]);
    assert!(checked.status.success(), "{checked:?}");
    let told = "the host name of this backend cannot be resolved: ";
    assert!(checked.errors.contains(told), "{checked:?}");
    let config = proxy("127.0.0.1", "80");
    let checked = Server::build().config(&config).check(&["-tt"]);
    assert!(!checked.errors.contains(told), "{checked:?}");
}
