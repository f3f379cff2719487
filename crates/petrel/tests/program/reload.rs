//! SIGUSR1: a reload must not fail a single request.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{Client, SOON, Server, Site, fetch, free_port, header, signal_to, wait_until};

/// Clients that send requests until they are stopped, and record every failure.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts two clients with persistent connections, and two that open a connection for each request.
    fn start(port: u16) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(AtomicU64::new(0));
        let client = |keeps: bool| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            thread::spawn(move || {
                let mut wrong = Vec::new();
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    match fetch_once(port, keeps, &mut kept) {
                        Ok(()) => {
                            answers.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => wrong.push(format!("keeps={keeps}: {error}")),
                    }
                }
                wrong
            })
        };
        let clients = [true, true, false, false].map(client).into();
        Load {
            stop,
            answers,
            clients,
        }
    }

    /// The number of responses, and the failures.
    fn end(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let clients = self.clients.into_iter();
        let wrong = clients.flat_map(|client| client.join().expect("a client does not panic"));
        let wrong = wrong.collect();
        (self.answers.load(Ordering::Relaxed), wrong)
    }
}

fn fetch_once(port: u16, keeps: bool, kept: &mut Option<Client>) -> io::Result<()> {
    let mut client = match kept.take() {
        Some(client) => client,
        None => Client::connect(port)?,
    };
    let (head, body) = client.request("/hello.txt", if keeps { "keep-alive" } else { "close" })?;
    if !head.starts_with("HTTP/1.1 200 ") || body != b"hello\n" {
        return Err(io::Error::other(format!("a wrong answer: {head}")));
    }
    let ends = header(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    if keeps && !ends {
        *kept = Some(client);
    }
    Ok(())
}

/// Sends SIGUSR1 with a new configuration and waits until it is served.
fn reload(site: &Site, server: &Server, generation: u32, more: &str) {
    site.configure(&format!("server.tag = \"generation-{generation}\"\n{more}"));
    server.signal(Signal::USR1);
    let tag = format!("generation-{generation}");
    wait_until(&tag, &mut || {
        fetch(site.port, "/hello.txt").is_ok_and(|(head, _)| header(&head, "server") == Some(&tag))
    });
}

#[test]
fn twenty_reloads_under_load_lose_nothing() {
    let site = Site::new();
    let server = site.start("");
    let load = Load::start(site.port);
    for generation in 1..=20 {
        // The configuration's last value counts. The number of workers goes 2, 1, 2, 3 and so on.
        let workers = [1, 2, 3, 2][generation as usize % 4];
        reload(
            &site,
            &server,
            generation,
            &format!("server.max-worker := {workers}"),
        );
    }
    let (answers, wrong) = load.end();
    assert!(
        wrong.is_empty(),
        "{} of {answers} failed: {:?}",
        wrong.len(),
        &wrong[..wrong.len().min(5)]
    );
    assert!(answers > 500, "{answers} answers are no load");
    server.wait_for("the old processes to end", || server.children().len() == 1);
}

#[test]
fn signals_in_quick_succession_end_in_the_newest_configuration() {
    let site = Site::new();
    let server = site.start("");
    for generation in 1..=10 {
        site.configure(&format!("server.tag = \"generation-{generation}\""));
        server.signal(Signal::USR1);
    }
    wait_until("the newest", &mut || {
        fetch(site.port, "/hello.txt")
            .is_ok_and(|(head, _)| header(&head, "server") == Some("generation-10"))
    });
    server.wait_for("one process", || server.children().len() == 1);
    assert!(!site.error_log().contains("failed"), "{}", site.error_log());
}

#[test]
fn a_bad_file_changes_nothing_and_the_log_says_why() {
    let site = Site::new();
    let server = site.start("");
    let child = server.only_child();
    for (more, word) in [
        ("server.port = = 1", "petrel.conf:6:"),
        (
            "$SERVER[\"socket\"] == \"192.0.2.1:8001\" {}",
            "192.0.2.1:8001",
        ),
        ("server.chroot = \"/nonexistent\"", "/nonexistent"),
    ] {
        if more.contains("chroot") && !crate::harness::is_root() {
            continue;
        }
        let before = site.error_log().len();
        site.configure(more);
        server.signal(Signal::USR1);
        server.wait_for(word, || {
            let log = site.error_log();
            let new = log.get(before..).unwrap_or_default();
            new.contains("the old configuration stays") && new.contains(word)
        });
        server.wait_for("the old process alone", || server.children() == [child]);
        fetch(site.port, "/hello.txt").expect("served as before");
    }
    reload(&site, &server, 1, "");
}

#[test]
fn commands_in_the_configuration_run_at_start_and_at_reload() {
    let site = Site::new();
    fs::write(site.path("tag"), "server.tag = \"one\"\n").expect("written");
    let line = format!("include_shell \"cat {}\"", site.path("tag").display());
    let server = site.start(&line);
    let served = |tag: &str| {
        fetch(site.port, "/hello.txt").is_ok_and(|(head, _)| header(&head, "server") == Some(tag))
    };
    assert!(served("one"));
    fs::write(site.path("tag"), "server.tag = \"two\"\n").expect("written");
    server.signal(Signal::USR1);
    wait_until("the new output", &mut || served("two"));
}

#[test]
fn a_file_that_hangs_its_reader_delays_no_client() {
    let site = Site::new();
    let server = site.start("");
    let child = server.only_child();
    site.configure("include_shell \"sleep 100\"");
    server.signal(Signal::USR1);
    server.wait_for("the reader", || server.children().len() == 2);
    // The keeper still handles a crash during the reload, and an order to stop.
    signal_to(child, Signal::KILL);
    server.wait_for("another process", || {
        !server.children().contains(&child) && fetch(site.port, "/hello.txt").is_ok()
    });
    let asked = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

#[test]
fn a_reload_that_fails_late_loses_no_connection() {
    if !crate::harness::is_root_or_skip("a_reload_that_fails_late_loses_no_connection") {
        return;
    }
    let site = Site::new();
    let server = site.start("server.max-worker := 1");
    let load = Load::start(site.port);
    for round in 1..=5 {
        // This address is bound for the new server process, and released when that cannot change its root.
        let root = format!("/nonexistent-{round}");
        site.configure(&format!(
            "server.chroot = \"{root}\"\nserver.max-worker := 2"
        ));
        server.signal(Signal::USR1);
        server.wait_for("the failure", || site.error_log().contains(&root));
    }
    let (answers, wrong) = load.end();
    assert!(
        wrong.is_empty(),
        "{} of {answers} failed: {:?}",
        wrong.len(),
        wrong.first()
    );
}

#[test]
fn listeners_come_and_go() {
    let site = Site::new();
    let server = site.start("");
    let other = free_port();
    let socket = format!("$SERVER[\"socket\"] == \"127.0.0.1:{other}\" {{}}");
    reload(&site, &server, 1, &socket);
    wait_until("the new address", &mut || {
        fetch(other, "/hello.txt").is_ok()
    });
    reload(&site, &server, 2, "");
    wait_until("the address to be given up", &mut || {
        TcpStream::connect(("127.0.0.1", other)).is_err()
    });
    // The address can be bound again.
    reload(&site, &server, 3, &socket);
    wait_until("the new address", &mut || {
        fetch(other, "/hello.txt").is_ok()
    });
}

#[test]
fn what_a_removed_listener_has_queued_is_served() {
    let site = Site::new();
    let other = free_port();
    let socket = format!("$SERVER[\"socket\"] == \"127.0.0.1:{other}\" {{}}");
    let server = site.start(&socket);
    for generation in 0..5 {
        wait_until("the other address", &mut || {
            fetch(other, "/hello.txt").is_ok()
        });
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // Connects until connecting fails. Every connection that was made must be answered.
        let client = thread::spawn(move || {
            let mut lost = Vec::new();
            let mut made = 0;
            while !stopped.load(Ordering::Relaxed) {
                let Ok(mut client) = Client::connect(other) else {
                    break;
                };
                made += 1;
                if let Err(error) = client.request("/hello.txt", "close") {
                    lost.push(error.to_string());
                }
            }
            (made, lost)
        });
        reload(&site, &server, generation * 2 + 1, "");
        wait_until("the address to be given up", &mut || {
            TcpStream::connect(("127.0.0.1", other)).is_err()
        });
        stop.store(true, Ordering::Relaxed);
        let (made, lost) = client.join().expect("no panic");
        // close(2) resets a connection whose handshake completes after the last accept: the one connection
        // that this client had under way then, once for the socket of each of the two workers.
        assert!(
            lost.len() <= 2,
            "{} of {made} lost: {:?}",
            lost.len(),
            lost.first()
        );
        reload(&site, &server, generation * 2 + 2, &socket);
    }
}

#[test]
fn a_transfer_goes_on_over_a_reload() {
    let site = Site::new();
    let size = 16 * 1024 * 1024;
    fs::write(site.path("root/big"), vec![b'x'; size]).expect("a file");
    let server = site.start("");
    let mut slow = Client::connect(site.port).expect("taken");
    slow.send("/big", "close").expect("sent");
    let before = server.only_child();
    reload(&site, &server, 1, "");
    assert_eq!(
        server.children().len(),
        2,
        "the old process is still needed"
    );
    let (_, body) = slow.receive().expect("all of it");
    assert_eq!(body.len(), size);
    server.wait_for("the old process to end", || {
        !server.children().contains(&before)
    });
}
