//! Lua scripts in a whole server: their cost, their waits, and their isolation from each other.
//!
//! The tests start real programs (redis-server, memcached, php-fpm) where they are installed, and end them.
//! Where a peer has to misbehave, the test provides it.

mod budgets;
mod changes;
mod dictionaries;
mod files;
mod isolation;
mod programs;
mod reload;
mod requests;
mod stores;
mod streams;
mod unreliable;
mod waits;

use petrel_tests::scripts::{ask, says, site, site_with_budgets};
use petrel_tests::{Response, Server};

/// The lines of the error log that are about scripts.
fn lua_lines(server: &Server) -> Vec<String> {
    let log = server.tree().text("error.log");
    log.lines()
        .filter(|line| line.contains("(lua)"))
        // Which scripts are slow depends on the machine.
        .filter(|line| !line.contains("of processor time without a wait"))
        .map(str::to_owned)
        .collect()
}

/// Waits until `count` lines about scripts are in the log, and returns them.
#[track_caller]
fn expect_lua_lines(server: &Server, count: usize) -> Vec<String> {
    let logged = petrel_tests::eventually(|| lua_lines(server).len() >= count);
    let lines = lua_lines(server);
    assert!(logged && lines.len() == count, "{count} lines: {lines:#?}");
    lines
}

/// A counter of the server; 0 if there is none.
fn counter(server: &Server, name: &str) -> u64 {
    let text = server.get("/counters").text();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The number of threads of the server process.
fn threads(server: &Server) -> usize {
    let pid = server.processes().busiest();
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The server's private memory, in bytes.
fn memory(server: &Server) -> u64 {
    server.processes().private_dirty_bytes()
}

/// Measures memory after each `round`, until one round needs at most `slack` more. Fails if that does not
/// happen within `rounds`.
#[track_caller]
fn expect_flat_memory(server: &Server, rounds: usize, slack: u64, mut round: impl FnMut()) {
    let mut sizes = Vec::new();
    for _ in 0..rounds {
        round();
        sizes.push(memory(server));
        let flat = sizes.len() >= 3
            && sizes
                .windows(2)
                .rev()
                .take(2)
                .all(|two| two[1] <= two[0] + slack);
        if flat {
            return;
        }
    }
    panic!("memory goes on growing: {sizes:?}");
}

/// Whether a response is the error page of a failed script.
fn is_script_error(response: &Response) -> bool {
    matches!(response.status, 500 | 503)
}
