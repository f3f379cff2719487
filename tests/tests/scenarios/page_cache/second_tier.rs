//! Two servers that share a Redis or a memcached.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use petrel_tests::{Server, Tree, eventually, free_port, is_installed, skip};

use crate::page_cache::{Counted, ask, counter, status};

/// A store. Dropping it kills the store.
struct Store {
    child: Child,
    config: String,
    _tree: Tree,
}

impl Store {
    fn start(kind: &str) -> Store {
        let tree = Tree::new();
        let port = free_port();
        let mut command = match kind {
            "redis" => {
                let mut command = Command::new("redis-server");
                command.args([
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--port",
                ]);
                command
            }
            _ => {
                let mut command = Command::new("memcached");
                command.args(["-l", "127.0.0.1", "-u", "nobody", "-U", "0", "-p"]);
                command
            }
        };
        let child = command
            .arg(port.to_string())
            .current_dir(tree.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let listens = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        assert!(eventually(listens), "{kind} does not listen");
        Store {
            child,
            config: format!("page-cache.second-tier = \"{kind}:127.0.0.1:{port}\""),
            _tree: tree,
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `test` with each kind of store that is installed.
fn with_each(test: fn(&Store)) {
    for (kind, program) in [("redis", "redis-server"), ("memcached", "memcached")] {
        match is_installed(program) {
            true => test(&Store::start(kind)),
            false => skip(
                "page_cache second_tier",
                &format!("{program} is not installed"),
            ),
        }
    }
}

fn server(counted: &Counted, store: &Store) -> Server {
    counted
        .cached()
        .config(&store.config)
        .config("page-cache.purge = (\"127.0.0.1\")")
        .config("page-cache.tags-header = \"Cache-Tag\"")
        .start()
}

/// Pages that are fresh for a minute, have the tag `t`, and vary by language under `/app/v`.
fn tagged() -> Counted {
    Counted::start(|exchange, number| {
        let mut fields = vec![("Cache-Control", "max-age=60"), ("Cache-Tag", "t")];
        let varies = exchange.target().starts_with("/app/v");
        if varies {
            fields.push(("Vary", "Accept-Language"));
        }
        exchange.answer(200, &fields, format!("page {number}"));
    })
}

#[test]
fn what_one_server_has_fetched_another_sends() {
    with_each(|store| {
        let counted = tagged();
        let (one, two) = (server(&counted, store), server(&counted, store));
        let first = ask(&one, "/app/x", "").text();
        let stores = || counter(&one, "page-cache.second-tier.stores");
        assert!(eventually(|| stores() == 1));
        let other = ask(&two, "/app/x", "");
        assert_eq!(
            (other.text(), status(&other)),
            (first, "petrel; hit".into())
        );
        assert_eq!(counted.asked(), 1);
        assert_eq!(counter(&two, "page-cache.second-tier.hits"), 1);
    });
}

#[test]
fn variants_are_shared_as_well() {
    with_each(|store| {
        let counted = tagged();
        let (one, two) = (server(&counted, store), server(&counted, store));
        let de = ask(&one, "/app/v", "Accept-Language: de\r\n").text();
        assert!(eventually(|| counter(
            &one,
            "page-cache.second-tier.stores"
        ) == 2));
        assert_eq!(ask(&two, "/app/v", "Accept-Language: de\r\n").text(), de);
        assert_ne!(ask(&two, "/app/v", "Accept-Language: en\r\n").text(), de);
        assert_eq!(counted.asked(), 2);
    });
}

#[test]
fn a_purge_on_one_server_counts_for_what_others_would_take_from_the_store() {
    with_each(|store| {
        for (target, purge) in [
            ("/app/x", "PURGE /app/x HTTP/1.1\r\nHost: a\r\n"),
            ("/app/y", "PURGE / HTTP/1.1\r\nHost: a\r\nCache-Tag: t\r\n"),
        ] {
            let counted = tagged();
            let (one, two) = (server(&counted, store), server(&counted, store));
            let old = ask(&one, target, "").text();
            assert!(eventually(|| counter(
                &one,
                "page-cache.second-tier.stores"
            ) == 1));
            let purged = one.exchange(format!("{purge}Connection: close\r\n\r\n"));
            assert_eq!((purged.status, purged.text()), (200, "purged: 1\n".into()));
            // Gives the record time to arrive.
            std::thread::sleep(Duration::from_secs(1));
            assert_ne!(ask(&two, target, "").text(), old, "{purge}");
            assert_eq!(counted.asked(), 2, "{purge}");
        }
    });
}

#[test]
fn a_store_that_goes_away_is_slower_and_never_wrong() {
    with_each(|store| {
        let counted = tagged();
        let (one, two) = (server(&counted, store), server(&counted, store));
        ask(&one, "/app/x", "");
        assert!(eventually(|| counter(
            &one,
            "page-cache.second-tier.stores"
        ) == 1));
        let process = i32::try_from(store.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let process = process.expect("a process has a number");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it is ours");
        for number in 0..5 {
            let target = format!("/app/{number}");
            assert!(ask(&two, &target, "").text().starts_with("page "));
        }
        assert!(
            ask(&one, "/app/x", "").text().starts_with("page "),
            "it is in memory"
        );
        assert!(counter(&two, "page-cache.second-tier.errors") > 0);
    });
}
