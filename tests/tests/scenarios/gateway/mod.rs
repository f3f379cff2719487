//! Requests that backends answer, and backends that misbehave.

mod answers;
mod authorizers;
mod balance;
mod bodies;
mod cgi;
mod chaos;
mod counters;
mod crowds;
mod cut_short;
mod elsewhere;
mod environment;
mod errors;
mod fpm_status;
mod hanging_files;
mod hanging_programs;
mod http2;
mod kept;
mod lifecycle;
mod names;
mod nonsense;
mod overlapping;
mod protocols;
mod send_files;
mod shares;
mod shortage;
mod slow_disk;
mod snippets;
mod tls;
mod traces;
mod trailers;
mod tunnels;

use std::os::unix::fs::MetadataExt;

use petrel_tests::{Backend, Builder, Exchange, Server, Speaks, directive};

/// URLs under `/app` go to the backend.
const KEY: &str = "/app";

/// Options for all tests here: the URL need not exist in the document root.
const OPTIONS: &str = "\"check-local\" => \"disable\"";

/// A server in front of `backend`, with one worker, so that persistent connections can be counted.
fn in_front_of(backend: &Backend) -> Builder {
    in_front_of_with(backend, "")
}

/// The same with more options of the host, each followed by a comma.
fn in_front_of_with(backend: &Backend, options: &str) -> Builder {
    Server::build()
        .file("www/index.html", "hello")
        .config("server.max-worker = 1")
        .config(&backend.directive(KEY, &format!("{options}{OPTIONS}")))
}

/// A server in front of several backends with the same protocol.
fn in_front_of_all(speaks: Speaks, backends: &[&Backend], options: &str) -> Builder {
    Server::build()
        .file("www/index.html", "hello")
        .config("server.max-worker = 1")
        .config(&directive(
            speaks,
            KEY,
            backends,
            &format!("{options}{OPTIONS}"),
        ))
}

/// The part of a request's path after `/app/`.
fn name<'a>(exchange: &'a Exchange<'_>) -> &'a str {
    let target = exchange.target();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    path.rsplit('/').next().unwrap_or_default()
}

/// What [`in_flight`] needs.
const COUNTERS: &str =
    "server.modules += ( \"mod_status\" )\nstatus.statistics-url = \"/counters\"";

/// Returns a function that counts the server's file system jobs on the mount at a directory of its tree,
/// which must not hang at this moment.
fn in_flight(server: &Server, directory: &str) -> impl Fn() -> u64 {
    let mounted = std::fs::metadata(server.tree().path(directory)).expect("it is mounted");
    let (major, minor) = (
        rustix::fs::major(mounted.dev()),
        rustix::fs::minor(mounted.dev()),
    );
    let name = format!("server.io.device.{major}:{minor}.in-flight: ");
    move || {
        let counters = server.get("/counters").text();
        let mut counts = counters.lines().filter_map(|line| line.strip_prefix(&name));
        counts
            .next()
            .map_or(0, |count| count.parse().expect("a number"))
    }
}

/// A POST of a body with its length.
fn post(target: &str, body: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
