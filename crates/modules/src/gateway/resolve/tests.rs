//! Tests against a name server of our own on loopback: with real packets, and without waits other than for
//! its answers.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use petrel_engine::log::{LogRegistry, LogTarget};

use super::*;

type Table = HashMap<(String, u16), (u32, Vec<Vec<u8>>)>;

/// A name server. It runs until the process ends.
struct Server {
    address: SocketAddr,
    table: Arc<Mutex<Table>>,
    asked: Arc<AtomicU64>,
}

impl Resolved {
    /// A name with these addresses.
    pub(in crate::gateway) fn of(addresses: &[SocketAddr]) -> Resolved {
        let resolved = Resolved::unknown();
        let endpoint = |address: &SocketAddr| Endpoint {
            address: *address,
            priority: 0,
            weight: 2,
        };
        resolved.publish(addresses.iter().map(endpoint).collect());
        resolved
    }
}

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

impl Server {
    fn start() -> Server {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let server = Server {
            address: socket.local_addr().expect("an address"),
            table: Arc::default(),
            asked: Arc::default(),
        };
        let (table, asked) = (Arc::clone(&server.table), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut packet) {
                asked.fetch_add(1, Ordering::Relaxed);
                let reply = reply(&packet[..length], &lock(&table));
                socket.send_to(&reply, client).expect("loopback takes it");
            }
        });
        server
    }

    fn set(&self, name: &str, kind: u16, ttl_s: u32, records: Vec<Vec<u8>>) {
        lock(&self.table).insert((name.to_owned(), kind), (ttl_s, records));
    }

    fn set_a(&self, name: &str, ttl_s: u32, addresses: &[[u8; 4]]) {
        let records = addresses.iter().map(|address| address.to_vec()).collect();
        self.set(name, A, ttl_s, records);
    }

    fn forget(&self) {
        lock(&self.table).clear();
    }

    fn resolver(&self) -> Resolver {
        self.resolver_with_log(LogHandle::default())
    }

    fn resolver_with_log(&self, log: LogHandle) -> Resolver {
        let servers = NameServers::only(self.address);
        Resolver::start(servers, QUICK, log).expect("a thread")
    }
}

/// A reply after RFC 1035 section 4.1, with as little as is needed.
fn reply(question: &[u8], table: &Table) -> Vec<u8> {
    let mut name = String::new();
    let mut rest = &question[12..];
    while rest[0] != 0 {
        let (label, behind) = rest[1..].split_at(rest[0].into());
        name.push_str(&String::from_utf8_lossy(label).to_lowercase());
        name.push('.');
        rest = behind;
    }
    let kind = u16::from_be_bytes([rest[1], rest[2]]);
    let end = question.len() - rest.len() + 5;
    let is_known = table.keys().any(|(known, _)| *known == name);
    let (ttl_s, records) = table.get(&(name, kind)).cloned().unwrap_or_default();

    let mut out = question[..2].to_vec();
    out.extend([0x85, if is_known { 0x80 } else { 0x83 }, 0, 1]);
    out.extend((records.len() as u16).to_be_bytes());
    out.extend([0; 4]);
    out.extend(&question[12..end]);
    for record in records {
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(ttl_s.to_be_bytes());
        out.extend((record.len() as u16).to_be_bytes());
        out.extend(record);
    }
    out
}

fn srv(priority: u8, weight: u8, port: u16, target: &str) -> Vec<u8> {
    let mut record = vec![0, priority, 0, weight];
    record.extend(port.to_be_bytes());
    for label in target.split('.') {
        record.push(label.len() as u8);
        record.extend(label.as_bytes());
    }
    record
}

/// An answer with a TTL of 0 expires at once here, and one with a TTL of a second expires after a second.
const QUICK: Pace = Pace {
    ttl_min: Duration::from_millis(10),
    ttl_max: Duration::from_secs(3600),
    retry_min: Duration::from_millis(10),
    retry_max: Duration::from_millis(20),
    lookup_max: Duration::from_secs(10),
};

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn tcp(name: &str) -> HostAddress {
    HostAddress::Tcp(name.to_owned(), 8080)
}

fn answered(resolved: &Resolved) {
    let task = std::future::poll_fn(|context| resolved.poll_answered(context));
    let runtime = follow::runtime().expect("a runtime");
    let answer =
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), task).await });
    answer.expect("the first look-up ends");
}

fn addresses(resolved: &Resolved) -> Vec<String> {
    let current = resolved.current();
    current
        .iter()
        .map(|endpoint| endpoint.address.to_string())
        .collect()
}

#[test]
fn a_name_is_resolved_to_addresses_of_both_families() {
    let server = Server::start();
    server.set_a("app.test.", 60, &[[192, 0, 2, 9], [192, 0, 2, 1]]);
    let ipv6 = "2001:db8::5"
        .parse::<std::net::Ipv6Addr>()
        .expect("an address");
    server.set("app.test.", AAAA, 60, vec![ipv6.octets().to_vec()]);
    let resolver = server.resolver();
    let resolved = resolver.watch(&tcp("app.test"));
    answered(&resolved);
    let expected = ["192.0.2.1:8080", "192.0.2.9:8080", "[2001:db8::5]:8080"];
    assert_eq!(addresses(&resolved), expected);
    assert_eq!(resolved.generation(), 1);
}

#[test]
fn it_is_resolved_again_when_its_time_is_over() {
    let server = Server::start();
    server.set_a("app.test.", 0, &[[192, 0, 2, 1], [192, 0, 2, 2]]);
    let resolver = server.resolver();
    let resolved = resolver.watch(&tcp("app.test"));
    answered(&resolved);
    // A different order and a different TTL are no change.
    server.set_a("app.test.", 0, &[[192, 0, 2, 2], [192, 0, 2, 1]]);
    let asked = server.asked.load(Ordering::Relaxed);
    wait_for("it is asked again", || {
        server.asked.load(Ordering::Relaxed) > asked + 4
    });
    assert_eq!(resolved.generation(), 1);
    server.set_a("app.test.", 0, &[[192, 0, 2, 3]]);
    wait_for("the change is published", || resolved.generation() == 2);
    assert_eq!(addresses(&resolved), ["192.0.2.3:8080"]);
}

#[test]
fn a_time_to_live_is_respected() {
    let server = Server::start();
    server.set_a("app.test.", 1, &[[192, 0, 2, 1]]);
    let resolver = server.resolver();
    let start = Instant::now();
    let resolved = resolver.watch(&tcp("app.test"));
    answered(&resolved);
    server.set_a("app.test.", 1, &[[192, 0, 2, 2]]);
    wait_for("the second answer", || resolved.generation() == 2);
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_millis(900), "{elapsed:?}");
}

#[test]
fn a_failure_keeps_the_last_addresses() {
    let server = Server::start();
    server.set_a("app.test.", 0, &[[192, 0, 2, 1]]);
    let resolver = server.resolver();
    let resolved = resolver.watch(&tcp("app.test"));
    answered(&resolved);
    server.forget();
    let asked = server.asked.load(Ordering::Relaxed);
    wait_for("it fails some times", || {
        server.asked.load(Ordering::Relaxed) > asked + 6
    });
    assert_eq!(addresses(&resolved), ["192.0.2.1:8080"]);
    assert_eq!(resolved.generation(), 1);
    server.set_a("app.test.", 60, &[[192, 0, 2, 2]]);
    wait_for("it recovers", || resolved.generation() == 2);
}

#[test]
fn the_log_says_once_that_it_fails_and_once_that_it_is_over() {
    let name = format!("petrel-names-{}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let target = LogTarget::File(path.clone());
    let logs = LogRegistry::open([target.clone()]).expect("a file");
    let server = Server::start();
    let resolver = server.resolver_with_log(logs.error_log(Some(target)));
    let resolved = resolver.watch(&tcp("late.test"));
    let is_asked_again = || server.asked.load(Ordering::Relaxed) > 12;
    wait_for("it fails some times", is_asked_again);
    server.set_a("late.test.", 60, &[[192, 0, 2, 1]]);
    wait_for("it is found", || resolved.generation() == 1);
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::remove_file(&path).expect("it was there");
    let expected = [
        "the name late.test of a backend cannot be resolved: there is no such name; \
            requests to it are answered 503 until it can",
        "the name late.test of a backend can be resolved again",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    assert!(
        lines
            .iter()
            .zip(expected)
            .all(|(line, said)| line.contains(said)),
        "{text}"
    );
}

#[test]
fn a_name_that_appears_later_is_found() {
    let server = Server::start();
    let resolver = server.resolver();
    let resolved = resolver.watch(&tcp("late.test"));
    answered(&resolved);
    assert!(addresses(&resolved).is_empty());
    assert_eq!(resolved.generation(), 0);
    server.set_a("late.test.", 60, &[[192, 0, 2, 1]]);
    wait_for("it is found", || resolved.generation() == 1);
}

#[test]
fn srv_records_bring_ports_priorities_and_weights() {
    let server = Server::start();
    let records = vec![
        srv(20, 5, 8082, "b.test."),
        srv(10, 0, 8081, "a.test."),
        srv(10, 3, 8080, "a.test."),
        srv(10, 3, 8080, "gone.test."),
    ];
    server.set("_http._tcp.app.test.", SRV, 60, records);
    server.set_a("a.test.", 60, &[[192, 0, 2, 1]]);
    server.set_a("b.test.", 60, &[[192, 0, 2, 2], [192, 0, 2, 3]]);
    let name = HostAddress::Srv("_http._tcp.app.test".to_owned());
    let resolver = server.resolver();
    let resolved = resolver.watch(&name);
    answered(&resolved);
    let current = resolved.current();
    let found: Vec<_> = current
        .iter()
        .map(|one| (one.address.to_string(), one.priority, one.weight))
        .collect();
    let expected = [
        ("192.0.2.1:8080".to_owned(), 10, 3),
        ("192.0.2.1:8081".to_owned(), 10, 1),
        ("192.0.2.2:8082".to_owned(), 20, 5),
        ("192.0.2.3:8082".to_owned(), 20, 5),
    ];
    assert_eq!(found, expected);
}

#[test]
fn all_who_watch_a_name_share_its_answers() {
    let server = Server::start();
    server.set_a("app.test.", 60, &[[192, 0, 2, 1]]);
    let resolver = server.resolver();
    let one = resolver.watch(&tcp("app.test"));
    assert!(Arc::ptr_eq(&one, &resolver.watch(&tcp("app.test"))));
    let with_other_port = HostAddress::Tcp("app.test".to_owned(), 81);
    assert!(!Arc::ptr_eq(&one, &resolver.watch(&with_other_port)));
    drop(one);
    // The thread holds an answer while it publishes it.
    wait_for("an unused name is forgotten", || {
        resolver.watch(&tcp("other.test"));
        lock(&resolver.watched).len() == 1
    });
}

#[test]
fn no_request_waits_for_a_resolver_that_has_ended() {
    let server = Server::start();
    let resolved = server.resolver().watch(&tcp("app.test"));
    answered(&resolved);
    assert!(addresses(&resolved).is_empty());
}

#[test]
fn numbers_never_get_to_a_name_server() {
    let expected = [
        ("127.0.0.1", "127.0.0.1:8080"),
        ("::1", "[::1]:8080"),
        ("[::1]", "[::1]:8080"),
    ];
    for (host, address) in expected {
        let fixed = fixed(&tcp(host)).expect("it is a number");
        assert_eq!(fixed.to_string(), address);
    }
    assert!(fixed(&HostAddress::Unix(b"/run/app.sock".to_vec())).is_some());
    assert!(fixed(&tcp("app.test")).is_none());
}

#[test]
fn localhost_needs_no_name_server() {
    let server = Server::start();
    let resolver = server.resolver();
    let resolved = resolver.watch(&tcp("localhost"));
    answered(&resolved);
    assert_eq!(addresses(&resolved), ["127.0.0.1:8080", "[::1]:8080"]);
    assert_eq!(server.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_check_tells_what_is_wrong() {
    let server = Server::start();
    server.set_a("good.test.", 60, &[[192, 0, 2, 1]]);
    server.set("empty.test.", AAAA + 1, 60, Vec::new());
    let servers = NameServers::only(server.address);
    let service = HostAddress::Srv("_http._tcp.empty.test".to_owned());
    let asked = [
        tcp("good.test"),
        tcp("bad.test"),
        tcp("empty.test"),
        tcp("127.0.0.1"),
        service.clone(),
        tcp("not a name..."),
    ];
    let wrong = check(&servers, &asked).expect("a runtime");
    let (names, reasons): (Vec<HostAddress>, Vec<String>) = wrong.into_iter().unzip();
    let expected = [
        tcp("bad.test"),
        tcp("empty.test"),
        service,
        tcp("not a name..."),
    ];
    assert_eq!(names, expected);
    assert_eq!(reasons[0], "there is no such name");
    assert_eq!(reasons[1], "it has no A record");
    assert_eq!(reasons[2], "there is no such name");
}
