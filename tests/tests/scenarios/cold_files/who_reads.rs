//! Which thread reads which part of a file that is not in memory, according to the counters.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use engine::settings::core::NetworkBackend;
use petrel_tests::{Operation, Server, SlowFs, eventually, skip};
use rustix::fs::{Advice, fadvise};

use super::{asking, content, site};

const COUNTERS: &str =
    "server.modules += ( \"mod_status\" )\nstatus.statistics-url = \"/counters\"\n";

/// Larger than what workers keep in memory, but not more than a lookup job reads.
const BYTES: usize = 100_000;

/// The counters `server.io.…`, keyed by the rest of their names.
fn counters(server: &Server) -> BTreeMap<String, u64> {
    let page = server.get("/counters");
    let text = page.text();
    let counts = text.lines().filter_map(|line| {
        let (name, count) = line.strip_prefix("server.io.")?.split_once(": ")?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    counts.collect()
}

/// A site on which each network backend sends the file of its name.
fn one_file_each(test: &str) -> Option<(Server, SlowFs)> {
    let file = content(BYTES);
    let names = NetworkBackend::ALL.map(NetworkBackend::name);
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &*file)).collect();
    let scopes = names.map(|name| {
        format!("$HTTP[\"url\"] == \"/slow/{name}\" {{ server.network-backend = \"{name}\" }}\n")
    });
    site(test, &files, &format!("{COUNTERS}{}", scopes.concat()))
}

#[test]
fn contents_are_read_by_the_backend_that_was_chosen() {
    let Some((server, _slow)) = one_file_each("contents_are_read_by_the_backend_that_was_chosen")
    else {
        return;
    };
    for backend in NetworkBackend::ALL {
        let name = backend.name();
        let before = counters(&server);
        assert!(server.get(&format!("/slow/{name}")).body == content(BYTES));
        // A lookup job reads the first bytes only if threads are to read the file.
        let (reader, by_look_up) = match backend {
            NetworkBackend::Auto | NetworkBackend::GthreadAio => ("gthread-aio.async-bytes", true),
            NetworkBackend::Write | NetworkBackend::Writev | NetworkBackend::LinuxSendfile => {
                (&*format!("{name}.sync-bytes"), true)
            }
            NetworkBackend::GthreadSendfile => ("gthread-sendfile.async-bytes", false),
            // Queues are used for disks; on the file system of a program, threads read.
            _ => ("gthread-aio.async-bytes", false),
        };
        let of_all: Vec<String> = NetworkBackend::ALL
            .iter()
            .flat_map(|backend| {
                ["sync", "async"].map(|kind| format!("{}.{kind}-bytes", backend.name()))
            })
            .collect();
        let seen = || {
            let after = counters(&server);
            let more = |name: &str| after[name] - before[name];
            let bytes = of_all.iter().map(|name| more(name)).sum::<u64>();
            (more(reader), bytes, more("read.jobs") == 0)
        };
        // A thread's bytes are counted before the client has all of them.
        let expected = (BYTES as u64, BYTES as u64, by_look_up);
        assert!(
            eventually(|| seen() == expected),
            "{name}: {:?} {reader}",
            seen()
        );
    }
}

/// Drops a file from the page cache. Returns whether that was certainly successful.
fn is_evicted(path: &Path) -> bool {
    let file = File::open(path).expect("it was written");
    file.sync_all().expect("written");
    // Only what was written to a disk can be dropped.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    let found = sys::page_cache::residency(&file, 0..COLD_BYTES as u64);
    found.is_ok_and(|found| found.cached == 0)
}

/// Far more than the kernel reads ahead.
const COLD_BYTES: usize = 8 << 20;

#[test]
fn what_is_not_in_the_page_cache_is_read_by_threads() {
    let test = "what_is_not_in_the_page_cache_is_read_by_threads";
    for name in ["auto", "gthread-aio", "gthread-sendfile"] {
        let server = Server::build()
            .file("www/file", content(COLD_BYTES))
            .config(COUNTERS)
            .config("server.max-worker = 1")
            .config(&format!("server.network-backend = \"{name}\""))
            .start();
        let file = server.tree().path("www/file");
        let reader = match name {
            "gthread-sendfile" => "gthread-sendfile.async-bytes",
            _ => "gthread-aio.async-bytes",
        };
        let worker = format!("{name}.sync-bytes");
        let read_by_thread_and_worker = || {
            let before = counters(&server);
            if !is_evicted(&file) {
                return None;
            }
            assert!(server.get("/file").body == content(COLD_BYTES));
            let more = || {
                let after = counters(&server);
                (
                    after[reader] - before[reader],
                    after[&worker] - before[&worker],
                )
            };
            let is_counted = || more().0 + more().1 == COLD_BYTES as u64;
            assert!(eventually(is_counted), "{name}: {:?}", counters(&server));
            Some(more())
        };
        // The kernel starts to read from the disk when the worker asks what is in memory. What it has read before
        // the worker goes on is not left for a thread.
        let mut tries = (0..20).map(|_| read_by_thread_and_worker());
        match tries.find(|read| read.is_none_or(|(by_thread, _)| by_thread > 0)) {
            Some(Some(_)) => {}
            Some(None) => {
                return skip(
                    test,
                    "files stay in memory here, or the kernel does not tell",
                );
            }
            None => panic!("{name}: the worker reads the file: {:?}", counters(&server)),
        }
    }
}

#[test]
fn chunks_are_as_large_as_they_are_wanted() {
    const LENGTH: usize = 4 << 20;
    let test = "chunks_are_as_large_as_they_are_wanted";
    for kib in [64, 256, 1024] {
        let config = format!(
            "{COUNTERS}server.io-chunk-size = {kib}\n\
             server.network-backend = \"gthread-aio\"\n\
             $HTTP[\"url\"] == \"/slow/io_uring\" {{ server.network-backend = \"io_uring\" }}\n"
        );
        let file = content(LENGTH);
        let files: [(&str, &[u8]); 2] = [("gthread-aio", &file), ("io_uring", &file)];
        let Some((server, _slow)) = site(test, &files, &config) else {
            return;
        };
        for (name, read_by_look_up) in [("gthread-aio", 128 << 10), ("io_uring", 0)] {
            let before = counters(&server);
            assert!(server.get(&format!("/slow/{name}")).body == file);
            let after = counters(&server);
            let more = |name: &str| after[name] - before[name];
            assert_eq!(more("gthread-aio.async-bytes"), LENGTH as u64);
            let chunks = (LENGTH - read_by_look_up).div_ceil(kib << 10) as u64;
            let reads = chunks + u64::from(read_by_look_up > 0);
            assert_eq!(
                more("gthread-aio.async-read"),
                reads,
                "{name} {kib}: {after:?}"
            );
        }
    }
}

#[test]
fn threads_are_as_many_as_are_wanted() {
    let test = "threads_are_as_many_as_are_wanted";
    let names: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    for most in [1, 3] {
        let config = format!("{COUNTERS}server.max-stat-threads = {most}");
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"x"[..])).collect();
        let Some((server, slow)) = site(test, &files, &config) else {
            return;
        };
        slow.hang_on(&[Operation::Lookup]);
        let clients: Vec<_> = names
            .iter()
            .map(|name| asking(&server, &format!("/slow/{name}")))
            .collect();
        slow.expect_hanging(most);
        let counts = counters(&server);
        // Threads that hang for long are replaced by new ones.
        let at_work = counts["stat.threads"] - counts["stat.stuck"];
        assert!(at_work <= most as u64, "{most}: {counts:?}");
        assert!(counts["stat.threads"] >= most as u64, "{most}: {counts:?}");
        slow.release();
        for mut client in clients {
            assert_eq!(client.response().status, 200);
        }
    }
}

/// Expects that at most `most` threads of `class` work for `files` whose operations hang.
#[track_caller]
fn expect_at_work(server: &Server, class: &str, most: u64, files: u64) {
    let seen = || {
        let counts = counters(server);
        let of = |what: &str| counts[&format!("{class}.{what}")];
        let are_all_there = of("running") + of("queued") == files;
        (are_all_there && of("running") >= most).then(|| {
            // Threads that hang for long are replaced by new ones.
            (of("threads"), of("stuck"))
        })
    };
    assert!(eventually(|| seen().is_some()), "{:?}", counters(server));
    let (threads, stuck) = seen().expect("nothing has gone on");
    assert!(threads - stuck <= most, "{class} {most}: {threads} {stuck}");
}

#[test]
fn threads_that_read_are_as_many_as_are_wanted() {
    let test = "threads_that_read_are_as_many_as_are_wanted";
    let names: Vec<String> = (0..12).map(|number| number.to_string()).collect();
    // Neither the workers' memory nor lookups have read any of it.
    let large = content(40_000);
    for most in [1, 3] {
        let config = format!(
            "{COUNTERS}server.network-backend = \"gthread-sendfile\"\nserver.max-read-threads = {most}"
        );
        let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &*large)).collect();
        let Some((server, slow)) = site(test, &files, &config) else {
            return;
        };
        slow.hang_on(&[Operation::Read]);
        let ask = |name: &String| asking(&server, &format!("/slow/{name}"));
        let clients: Vec<_> = names.iter().map(ask).collect();
        expect_at_work(&server, "read", most, 12);
        slow.release();
        for mut client in clients {
            assert!(client.response().body == large);
        }
    }
}

#[test]
fn threads_that_write_are_as_many_as_are_wanted() {
    let test = "threads_that_write_are_as_many_as_are_wanted";
    let script = "local name = lighty.env['uri.path']:match('^/write/(%d+)$')
        if not name then return end
        petrel.file.write(lighty.env['physical.doc-root'] .. '/slow/' .. name, name)
        lighty.content = { 'written' }
        return 200";
    for most in [1, 3] {
        let config = format!(
            "{COUNTERS}server.max-write-threads = {most}
            server.modules += ( \"mod_magnet\" )
            lua.max-run-time = 1000
            magnet.attract-physical-path-to = ( var.dir + \"/write.lua\" )"
        );
        let Some((server, slow)) = site(test, &[("there", b"")], &config) else {
            return;
        };
        server.tree().write("write.lua", script);
        slow.hang_on(&[Operation::Create]);
        let ask = |number: u32| asking(&server, &format!("/write/{number}"));
        let clients: Vec<_> = (0..12).map(ask).collect();
        expect_at_work(&server, "write", most, 12);
        slow.release();
        for mut client in clients {
            assert_eq!(client.response().text(), "written");
        }
        assert_eq!(
            std::fs::read(slow.beneath().join("7")).expect("it was written"),
            b"7"
        );
    }
}
