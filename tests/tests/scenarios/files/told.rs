//! What the server says about how it reads files: in the log at its start, and in counters.

use petrel_tests::Server;
use rustix::process::Signal;

#[test]
fn the_log_says_how_files_are_read() {
    let server = Server::start(
        "$HTTP[\"host\"] == \"b\" { server.network-backend = \"write\" server.document-root = \"/proc\" }",
    );
    server.expect_log("files: openat2 RESOLVE_CACHED ");
    server.expect_log("; network backend auto: what is in memory is sent at once");
    server.expect_log("; network backend write: the worker waits for the disk");
    server.expect_log("; \"/proc\" is on proc at \"/proc\" (");
    let root = server.tree().path("www");
    server.expect_log(&format!("; {root:?} is on "));
    // It is served nevertheless.
    assert_eq!(server.get("/none").status, 404);
    // It is one line, and a reload does not repeat it.
    server.signal(Signal::USR1);
    server.expect_log("configuration reloaded");
    assert_eq!(server.log().matches("files: ").count(), 1);
}

#[test]
fn the_log_says_why_a_directory_is_forbidden() {
    let server = Server::start("index-file.names = ()");
    assert_eq!(server.get("/").status, 403);
    server.expect_log("403 for a directory: index-file.names is not set");
    // With names it may be meant, and crawlers would fill the log.
    let server = Server::start("index-file.names = (\"none.html\")");
    assert_eq!(server.get("/").status, 403);
    server.get("/none");
    assert!(!server.log().contains("403 for a directory"));
}

// A single worker sees its own counts at once; other workers see them within a second.
const COUNTERS: &str = "
server.max-worker = 1
server.modules += ( \"mod_status\", \"mod_magnet\" )
lua.max-run-time = 1000
status.statistics-url = \"/counters\"
$HTTP[\"url\"] == \"/io\" { magnet.attract-raw-url-to = ( var.dir + \"/io.lua\" ) }";

/// The sum of some counters of mod_status.
fn sum(server: &Server, names: &[&str]) -> u64 {
    let page = server.get("/counters");
    let text = page.text();
    let value = |name: &&str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(*name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{name}: {text}"))
            .parse::<u64>()
            .expect("a number")
    };
    names.iter().map(value).sum()
}

#[test]
fn counters_tell_who_has_read_a_file() {
    const LOOK_UPS: [&str; 2] = ["server.io.lookup.cached", "server.io.lookup.disk"];
    // On a file system without RWF_NOWAIT, threads read first.
    const READS: [&str; 2] = [
        "server.io.auto.sync-read",
        "server.io.gthread-aio.async-read",
    ];
    const BYTES: [&str; 2] = [
        "server.io.auto.sync-bytes",
        "server.io.gthread-aio.async-bytes",
    ];
    let script = "lighty.content = { lighty.status['server.io.lookup.cached'] } return 200";
    let server = Server::build()
        .file("www/large.bin", vec![7; 300_000])
        .file("io.lua", script)
        .config(COUNTERS)
        .start();
    // The script's own file counts as well.
    let first: u64 = server.get("/io").text().parse().expect("a number");
    assert!(first <= sum(&server, &LOOK_UPS));
    let of_script = sum(&server, &BYTES);
    let before = (sum(&server, &LOOK_UPS), sum(&server, &READS));
    assert_eq!(server.get("/large.bin").body.len(), 300_000);
    let after = (sum(&server, &LOOK_UPS), sum(&server, &READS));
    assert!(
        after.0 > before.0 && after.1 > before.1,
        "{before:?} {after:?}"
    );
    assert_eq!(server.get("/large.bin").body.len(), 300_000);
    // Bytes count once, even if the socket took several calls.
    assert_eq!(sum(&server, &BYTES) - of_script, 600_000);
    // Files that the worker has cached are not looked up.
    assert_eq!(sum(&server, &LOOK_UPS), after.0);
}
