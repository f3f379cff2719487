//! A name server that answers late.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use petrel_tests::{Backend, Speaks, eventually, petrel};

use super::{PAUSE, asking, can_isolate, expect_holder, site};

/// Where the name server listens. resolv.conf names no port.
const ADDRESS: &str = "127.0.53.53:53";

/// Answers with 127.0.0.1 for every name, once `may_answer` is set. Ends with the test.
fn answer_late(socket: UdpSocket, may_answer: Arc<AtomicBool>) {
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a time");
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut query) {
            eventually(|| may_answer.load(Ordering::Relaxed));
            let _ = socket.send_to(&answer(&query[..length]), client);
        }
    });
}

/// The answer to `query` (RFC 1035, section 4): an address if it asks for one of IPv4, else nothing.
fn answer(query: &[u8]) -> Vec<u8> {
    let name = query[12..].iter().position(|byte| *byte == 0);
    let end = 12 + name.expect("the name ends") + 5;
    let asks_ipv4 = query[end - 4..end - 2] == [0, 1];
    let mut answer = query[..end].to_vec();
    // A reply without an error; one question; an answer or none.
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(asks_ipv4), 0, 0, 0, 0]);
    if asks_ipv4 {
        // The name of the question, A, IN, for a minute, 127.0.0.1.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    answer
}

#[test]
fn a_name_server_that_answers_late_is_told_with_the_name() {
    let test = "a_name_server_that_answers_late";
    if !can_isolate(test, &["unshare"]) {
        return;
    }
    // It may have to be built, which takes longer than the name server waits.
    let program = petrel();
    let Ok(socket) = UdpSocket::bind(ADDRESS) else {
        return petrel_tests::skip(test, "port 53 is in use");
    };
    let may_answer = Arc::new(AtomicBool::new(false));
    answer_late(socket, Arc::clone(&may_answer));
    let backend = Backend::start_on_tcp(Speaks::Http, |exchange| exchange.say("found"));
    let name = backend.name();
    let (_, port) = name.rsplit_once(':').expect("it has a port");
    let mut resolv_conf = String::new();
    let site = site()
        .file(
            "resolv.conf",
            "nameserver 127.0.53.53\noptions timeout:20\n",
        )
        .tree(|tree| resolv_conf = tree.path("resolv.conf").display().to_string())
        .config("server.modules += (\"mod_proxy\")")
        .config(&format!(
            "proxy.server = (\"/b/\" => (( \"host\" => \"app.petrel.test\", \"port\" => {port} )))"
        ));
    let script = "mount --bind \"$1\" /etc/resolv.conf\nshift\nexec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script, "sh"]);
    command.arg(resolv_conf).arg(program).arg("-D");
    let server = site.start_as(command);
    server.get("/");
    let mut client = asking(&server, "/b/x");
    thread::sleep(PAUSE);
    may_answer.store(true, Ordering::Relaxed);
    assert_eq!(client.response().text(), "found");
    let words = ["the name server had not answered", "app.petrel.test"];
    expect_holder(&server, "/b/x", "backend-queue", &words);
}
