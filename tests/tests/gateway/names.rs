//! Backends that the configuration calls by name.

use std::net::{IpAddr, Ipv4Addr};

use petrel_tests::{Backend, Exchange, Server, Speaks, skip};

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
    // Nobody listens on ::1 there, if the name leads there as well.
    let (_backend, port) = on_a_port();
    let server = Server::build().config(&proxy("localhost", &port)).start();
    for _ in 0..3 {
        assert_eq!(server.get("/app/").text(), "found");
    }
}

/// A name that only the hosts file of this machine leads to 127.0.0.1.
fn name_of_this_machine() -> Option<String> {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    hosts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let is_here = address == IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut names = words.filter(|name| is_here && !name.starts_with("localhost"));
        names.next().map(str::to_owned)
    })
}

#[test]
fn names_lead_somewhere_from_inside_a_chroot() {
    let (Some(name), true) = (name_of_this_machine(), rustix::process::geteuid().is_root()) else {
        let test = "names_lead_somewhere_from_inside_a_chroot";
        return skip(test, "it needs root and a name in /etc/hosts");
    };
    let (_backend, port) = on_a_port();
    let server = Server::build()
        // Where the error log is, seen from inside.
        .tree(|tree| {
            tree.directory(&format!("jail{}", tree.root().display()));
        })
        .config("server.chroot = var.dir + \"/jail\"")
        .config(&proxy(&name, &port))
        .start();
    assert_eq!(server.get("/app/").text(), "found");
}

#[test]
fn a_check_tells_names_that_lead_nowhere() {
    let config = proxy("nowhere.invalid", "80");
    let checked = Server::build().config(&config).check(&["-tt"]);
    assert!(checked.status.success(), "{checked:?}");
    let told = "the name of this backend leads nowhere: ";
    assert!(checked.errors.contains(told), "{checked:?}");
    let config = proxy("127.0.0.1", "80");
    let checked = Server::build().config(&config).check(&["-tt"]);
    assert!(!checked.errors.contains(told), "{checked:?}");
}
