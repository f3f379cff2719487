//! How it is started and ended.

use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use petrel_tests::{Magnet, PATIENCE, Tree, eventually, free_port, petrel, run};
use rustix::process::Signal;

fn magnet(arguments: &[&str]) -> petrel_tests::Finished {
    let mut command = Command::new(petrel());
    run(command.arg("fcgi-magnet").args(arguments), PATIENCE)
}

#[test]
fn a_socket_in_use_is_not_taken() {
    let mut first = Magnet::start(&[("a.lua", "print(1)")], &[]);
    let socket = first.path("magnet.sock");
    let mode = std::fs::metadata(&socket)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o666);
    let second = magnet(&["--socket", &socket]);
    assert_eq!(second.code(), 255);
    assert!(
        second.errors.contains("already in use"),
        "{}",
        second.errors
    );
    assert_eq!(first.get("a.lua").body(), "1");
    first.signal(Signal::TERM);
    assert_eq!(first.wait(), 0);
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn an_unused_socket_is_replaced_and_a_file_is_not() {
    let tree = Tree::new();
    let path = tree.path("s");
    drop(UnixListener::bind(&path).expect("bound"));
    let shown = path.display().to_string();
    let mut child = Command::new(petrel())
        .args(["fcgi-magnet", "--socket", &shown])
        .stdin(Stdio::null())
        .spawn()
        .expect("petrel is there");
    let listens = eventually(|| UnixStream::connect(&path).is_ok());
    child.kill().expect("it runs");
    child.wait().expect("it is our child");
    assert!(listens);
    std::fs::remove_file(&path).expect("it was killed");
    tree.write("s", "precious");
    assert_eq!(magnet(&["--socket", &shown]).code(), 255);
    assert_eq!(tree.text("s"), "precious");
}

#[test]
fn mistakes_are_told() {
    for (arguments, says) in [
        (&[][..], "no listening socket"),
        (
            &["--socket", "/tmp/x", "--listen", "127.0.0.1:1"],
            "cannot be used with",
        ),
        (&["--mode", "0660"], "--socket"),
        (
            &["--mode", "0660", "--listen", "127.0.0.1:0"],
            "cannot be used with",
        ),
        (&["--allow", "everything"], "ffi"),
        (
            &["--root", "/nonexistent", "--listen", "127.0.0.1:0"],
            "No such file",
        ),
        (&["--listen", "localhost"], "ADDR:PORT"),
        (&["--workers", "0"], "0 is not in"),
    ] {
        let finished = magnet(arguments);
        assert_eq!(finished.code(), 255, "{arguments:?}");
        assert!(
            finished.errors.contains(says),
            "{arguments:?}: {}",
            finished.errors
        );
    }
}

#[test]
fn requests_are_finished_before_it_ends() {
    let mut magnet = Magnet::start(&[("slow.lua", "petrel.sleep(3) print('done')")], &[]);
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "slow.lua", &[], b""));
    std::thread::sleep(Duration::from_secs(1));
    magnet.signal(Signal::USR1);
    assert_eq!(peer.reply(1).body(), "done");
    assert_eq!(magnet.wait(), 0);
    assert!(peer.is_closed());
}

#[test]
fn a_second_signal_is_not_waited_for() {
    let mut magnet = Magnet::start(&[("slow.lua", "petrel.sleep(30)")], &[]);
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "slow.lua", &[], b""));
    std::thread::sleep(Duration::from_secs(1));
    magnet.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(100));
    assert!(magnet.child.try_wait().expect("our child").is_none());
    magnet.signal(Signal::TERM);
    assert_eq!(magnet.wait(), 0);
}

#[test]
fn what_can_break_the_program_has_to_be_allowed() {
    let script = "print(tostring(package.loaded.ffi ~= nil or pcall(require, 'ffi')), type(os.exit), type(io.popen))";
    let scripts = [("a.lua", script)];
    let magnet = Magnet::start(&scripts, &[]);
    assert_eq!(magnet.get("a.lua").body(), "falsenilnil");
    let magnet = Magnet::start(&scripts, &["--allow", "ffi,os.exit,io.popen"]);
    assert_eq!(magnet.get("a.lua").body(), "truefunctionfunction");
}

#[test]
fn tcp_is_for_the_web_servers_that_are_named() {
    for (servers, is_served) in [("127.0.0.1, ::1", true), ("192.0.2.1", false)] {
        let port = free_port();
        let mut child = Command::new(petrel())
            .args(["fcgi-magnet", "--listen", &format!("127.0.0.1:{port}")])
            .env("FCGI_WEB_SERVER_ADDRS", servers)
            .stdin(Stdio::null())
            .spawn()
            .expect("petrel is there");
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        assert!(eventually(|| connect().is_ok()));
        let mut stream = connect().expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        use std::io::{Read, Write};
        // The program may have closed the connection already.
        let _ = stream.write_all(&petrel_tests::fastcgi_record(9, 0, b""));
        let mut answer = [0; 8];
        let read = stream.read(&mut answer).unwrap_or(0);
        child.kill().expect("it runs");
        child.wait().expect("it is our child");
        assert_eq!(read > 0, is_served, "{servers}");
    }
}

#[test]
fn workers_share_what_comes() {
    let script = "print(petrel.dict('d'):incr(tostring(env), 1, 0)) petrel.sleep(0.05)";
    let magnet = Magnet::start(&[("a.lua", script)], &["--workers", "4"]);
    let mut peers: Vec<_> = (0..16).map(|_| magnet.connect()).collect();
    for peer in &mut peers {
        peer.send(&magnet.request(1, "a.lua", &[], b""));
    }
    assert!(peers.iter_mut().all(|peer| peer.reply(1).body() == "1"));
    let threads = || std::fs::read_dir(format!("/proc/{}/task", magnet.child.id()));
    // The workers, the thread that waits for signals, the one that writes the log, and the watchdog.
    assert!(eventually(
        || threads().is_ok_and(|threads| threads.count() == 7)
    ));
}
