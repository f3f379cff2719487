//! The sockets of a configuration are kept at a reload, and released.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use super::*;
use crate::load::{Loaded, Origin, load};

fn loaded(text: &str) -> Loaded {
    let text = format!("server.document-root = \"/\"\n{text}");
    load(&Origin::Text { name: "test", text }).unwrap_or_else(|errors| panic!("{errors}"))
}

fn open(text: &str, before: &ListenerSet) -> Result<ListenerSet, ListenError> {
    ListenerSet::open(&loaded(text).process, before, &ListenerSet::default())
}

fn sockets(set: &ListenerSet) -> Vec<Rc<ListenSocket>> {
    set.listeners
        .iter()
        .flat_map(|listener| listener.sockets.clone())
        .collect()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("bound").port()
}

#[test]
fn a_second_server_is_refused_and_told_why() {
    let port = free_port();
    let text = format!("server.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.max-worker = 2");
    let set = open(&text, &ListenerSet::default()).expect("free");
    set.listen().expect("listening");
    assert_eq!(sockets(&set).len(), 2, "one a worker");
    let error = open(&text, &ListenerSet::default())
        .map(drop)
        .expect_err("in use");
    assert_eq!(
        error.message,
        format!("cannot listen on 127.0.0.1:{port}: it is in use, and something listens there")
    );
    assert!(error.span.is_some());
}

#[test]
fn every_socket_of_an_address_gets_connections() {
    let port = free_port();
    let text = format!("server.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.max-worker = 2");
    let set = open(&text, &ListenerSet::default()).expect("free");
    set.listen().expect("listening");
    let clients: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).expect("taken"))
        .collect();
    let accepted: Vec<usize> = sockets(&set)
        .iter()
        .map(|socket| {
            let listener: std::net::TcpListener =
                socket.descriptor.try_clone().expect("a copy").into();
            std::iter::from_fn(|| listener.accept().ok()).count()
        })
        .collect();
    assert_eq!(accepted.iter().sum::<usize>(), clients.len());
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn a_reload_keeps_sockets_and_adds_what_more_workers_need() {
    let port = free_port();
    let text = |workers: u8| {
        format!("server.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.max-worker = {workers}")
    };
    let one = open(&text(1), &ListenerSet::default()).expect("free");
    one.listen().expect("listening");
    let two = open(&text(2), &one).expect("ours");
    assert!(Rc::ptr_eq(&sockets(&one)[0], &sockets(&two)[0]));
    assert_eq!(sockets(&two).len(), 2);
    assert!(!sockets(&two)[1].is_listening.get(), "it is not served yet");
    let fewer = open(&text(1), &two).expect("ours");
    assert_eq!(sockets(&fewer).len(), 2, "closing one would lose its queue");
}

#[test]
fn a_unix_socket_has_its_mode_replaces_a_stale_one_and_goes_with_its_set() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("what a dead server leaves"));
    let text = format!(
        "server.bind = \"{}\"\nserver.socket-perms = \"0640\"",
        path.display()
    );
    let set = open(&text, &ListenerSet::default()).expect("stale");
    set.listen().expect("listening");
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    UnixStream::connect(&path).expect("taken");
    let error = open(&text, &ListenerSet::default())
        .map(drop)
        .expect_err("in use");
    assert!(
        error.message.ends_with("something listens there"),
        "{}",
        error.message
    );
    drop(set);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    fs::write(&path, "precious").expect("written");
    let text = format!("server.bind = \"{}\"", path.display());
    assert!(open(&text, &ListenerSet::default()).is_err());
    assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
}

#[test]
fn v6_and_v4_share_a_port_only_when_told_apart() {
    let port = free_port();
    let text = format!(
        "server.bind = \"0.0.0.0\"\nserver.port = {port}\n$SERVER[\"socket\"] == \"[::]:{port}\" {{}}"
    );
    let set = open(&text, &ListenerSet::default()).expect("IPV6_V6ONLY is the default");
    assert_eq!(set.listeners.len(), 2);
    let mapped = text.replace("{}", "{ server.set-v6only = \"disable\" }");
    drop(set);
    let set = open(&mapped, &ListenerSet::default()).expect("the address is free");
    assert!(
        set.listen().is_err(),
        "[::] with v4 has the port of 0.0.0.0"
    );
}

#[test]
fn two_servers_that_start_together_do_not_share_a_port() {
    let port = free_port();
    let text = format!("server.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.max-worker = 2");
    let one = open(&text, &ListenerSet::default()).expect("free");
    let other = open(&text, &ListenerSet::default()).expect("the address is free");
    one.listen().expect("first");
    let error = other.listen().expect_err("second");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn foreign_addresses_are_explained() {
    let error = open(
        "server.bind = \"192.0.2.1\"\nserver.port = 1025",
        &ListenerSet::default(),
    );
    let error = error.map(drop).expect_err("not ours");
    assert!(
        error.message.ends_with("it is no address of this machine"),
        "{}",
        error.message
    );
}
