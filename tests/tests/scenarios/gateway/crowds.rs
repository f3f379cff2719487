//! More requests than a backend can handle: queues and their limits, slow clients beside fast ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use petrel_tests::{Backend, Client, Server, Speaks, eventually};

use crate::gateway::{in_front_of_with, name, post};

/// A slow backend, and the most requests that it handled at the same time.
fn slow(speaks: Speaks, time: Duration) -> (Backend, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let now = AtomicUsize::new(0);
    let seen = Arc::clone(&most);
    let backend = Backend::start(speaks, move |exchange| {
        let present = now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(present, Ordering::SeqCst);
        exchange.read_body();
        exchange.pause(time);
        let body = match name(exchange) {
            "large" => vec![b'l'; 3_000_000],
            _ => b"done".to_vec(),
        };
        now.fetch_sub(1, Ordering::SeqCst);
        exchange.answer(200, &[], body);
    });
    (backend, most)
}

/// A backend that answers no request until the test says so.
pub fn held() -> (Backend, Arc<AtomicBool>) {
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        while !may_go_on.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        exchange.say("done");
    });
    (backend, go_on)
}

/// The statuses that many concurrent clients get.
fn crowd(server: &Server, count: usize) -> Vec<u16> {
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let statuses = clients.iter_mut().map(|client| client.response().status);
    statuses.collect()
}

#[test]
fn max_connections_is_kept_and_every_client_gets_an_answer() {
    for speaks in Speaks::ALL {
        let (backend, most) = slow(speaks, Duration::from_millis(10));
        let server = in_front_of_with(&backend, "\"max-connections\" => 2, ").start();
        let statuses = crowd(&server, 30);
        assert_eq!(statuses, vec![200; 30], "{speaks:?}");
        assert!(most.load(Ordering::SeqCst) <= 2, "{speaks:?}: {most:?}");
    }
}

#[test]
fn every_client_gets_an_answer_though_the_backend_closes_each_connection() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.pause(Duration::from_millis(2));
        exchange.say("done");
        exchange.close();
    });
    let server = in_front_of_with(&backend, "\"max-connections\" => 2, ").start();
    let statuses = crowd(&server, 100);
    assert_eq!(statuses, vec![200; 100]);
}

#[test]
fn who_finds_the_queue_full_is_told_at_once() {
    let (backend, go_on) = held();
    let options = "\"max-connections\" => 1, \"backlog-size\" => 2, ";
    let server = in_front_of_with(&backend, options).start();
    let (told, statuses) = channel();
    for _ in 0..8 {
        let (mut client, told) = (server.client(), told.clone());
        client.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
        thread::spawn(move || told.send(client.try_response().map(|answer| answer.status)));
    }
    let next = |count| -> Vec<_> {
        let some = (0..count).map(|_| statuses.recv().expect("a thread for each"));
        some.collect()
    };
    assert_eq!(next(5), vec![Ok(503); 5]);
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(next(3), vec![Ok(200); 3]);
    server.expect_log("backend.sock");
    assert_eq!(server.get("/app/x").status, 200);
}

#[test]
fn who_waits_for_too_long_is_told() {
    let (backend, go_on) = held();
    let options = "\"max-connections\" => 1, \"backlog-timeout\" => 1, ";
    let server = in_front_of_with(&backend, options).start();
    let mut first = server.client();
    first.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(1);
    let waiting = server.get("/app/x");
    assert_eq!(waiting.status, 504, "{waiting}");
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(first.response().status, 200);
    assert_eq!(
        backend.requests().len(),
        1,
        "no client waits for the other one any more"
    );
}

#[test]
fn slow_clients_do_not_slow_fast_ones() {
    let (backend, _) = slow(Speaks::FastCgi, Duration::from_millis(2));
    let server = in_front_of_with(&backend, "\"max-connections\" => 2, ")
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .start();
    let request = post("/app/x", &"u".repeat(200_000));
    let mut uploaders: Vec<Client> = (0..64).map(|_| server.client()).collect();
    let mut readers: Vec<Client> = (0..64)
        .map(|_| server.client().with_receive_buffer(4096))
        .collect();
    for client in &mut uploaders {
        client.send(&request[..150_000]);
    }
    for client in &mut readers {
        client.send("GET /app/large HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    // All 64 large responses are ready, and no client has read any of them.
    backend.expect_requests(64);
    let mut client = server.client();
    for _ in 0..100 {
        assert_eq!(client.get("/app/x").text(), "done");
    }
    for client in &mut uploaders {
        client.send(&request[150_000..]);
    }
    for mut client in uploaders {
        assert_eq!(client.response().text(), "done");
    }
    drop(readers);
    assert!(eventually(|| server.tree().names("upload").is_empty()));
}

#[test]
fn a_backend_that_serves_few_connections_is_not_starved_by_kept_ones() {
    // As php-fpm with two children: a connection that is not accepted waits in the kernel's queue.
    let (backend, _) = slow(Speaks::FastCgi, Duration::from_millis(3));
    let backend = Scarce::in_front_of(backend);
    let servers: Vec<Server> = (0..2)
        .map(|_| {
            Server::build()
                .config("server.modules += ( \"mod_fastcgi\" )")
                .config(&format!(
                    "fastcgi.server = ( \"/app\" => (( \"socket\" => \"{}\", \
                     \"check-local\" => \"disable\" )) )",
                    backend.path()
                ))
                .start()
        })
        .collect();
    let loads: Vec<petrel_tests::Load> = servers
        .iter()
        .map(|server| petrel_tests::Load::start(server.address(), "/app/x", 12, 0))
        .collect();
    thread::sleep(Duration::from_secs(3));
    loads.iter().for_each(|load| load.wait_for(10));
    for load in loads {
        let result = load.stop();
        assert_eq!(result.failures, Vec::<String>::new());
    }
}

/// A socket with two serving threads, each of which serves one connection until it is closed.
struct Scarce {
    tree: petrel_tests::Tree,
    _backend: Backend,
}

impl Scarce {
    fn in_front_of(backend: Backend) -> Scarce {
        let tree = petrel_tests::Tree::new();
        let listener =
            std::os::unix::net::UnixListener::bind(tree.path("scarce.sock")).expect("a socket");
        let target = backend.name().trim_start_matches("unix:").to_owned();
        for _ in 0..2 {
            let (listener, target) = (listener.try_clone().expect("a descriptor"), target.clone());
            // The threads end with the process.
            thread::spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    let Ok(other) = std::os::unix::net::UnixStream::connect(&target) else {
                        return;
                    };
                    relay(stream, other);
                }
            });
        }
        Scarce {
            tree,
            _backend: backend,
        }
    }

    fn path(&self) -> String {
        self.tree.path("scarce.sock").display().to_string()
    }
}

/// Forwards bytes in both directions until one side closes.
fn relay(one: std::os::unix::net::UnixStream, other: std::os::unix::net::UnixStream) {
    let copy = |from: &std::os::unix::net::UnixStream, to: &std::os::unix::net::UnixStream| {
        let (mut from, mut to) = (
            from.try_clone().expect("a descriptor"),
            to.try_clone().expect("a descriptor"),
        );
        thread::spawn(move || {
            // Either side may close at any time.
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
            let _ = from.shutdown(std::net::Shutdown::Both);
        })
    };
    let (there, back) = (copy(&one, &other), copy(&other, &one));
    for thread in [there, back] {
        thread.join().expect("copying does not panic");
    }
}
