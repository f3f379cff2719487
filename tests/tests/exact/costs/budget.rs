//! The system calls of each route are those of its budget, exactly.

use std::time::Instant;

use petrel_tests::{Calls, Client, Server, Tracer};

use crate::alone;
use crate::costs::system_calls::{REQUESTS, expect};
use crate::routes::{BUDGETS, Route, RouteCase, cases, write_files};

/// It takes so long because strace stops a server of each route at each system call, and scripts run 5000 times before.
#[test]
fn each_route_makes_the_system_calls_of_its_budget() {
    let _alone = alone();
    for budget in BUDGETS {
        for case in cases(budget.route) {
            // A persistent connection to a backend belongs to one worker. With two workers it might be closed
            // for the other's sake.
            let server = Server::build()
                .tree(write_files)
                .config(&format!(
                    "server.max-keep-alive-requests = 65535\nserver.max-worker = 1\n{}",
                    case.config
                ))
                .start();
            for target in case.targets {
                eprintln!("{}, {target}: {:?}", budget.name, budget.calls);
                count(&server, &case, target, budget.calls);
            }
        }
    }
}

fn count(server: &Server, case: &RouteCase, target: &str, budget: &[(&str, u64)]) {
    let mut client = server.client();
    let is_script = case.config.contains("mod_magnet");
    // From the second request on, everything is as warm as at the last; but LuaJIT compiles what runs
    // often.
    ask(&mut client, case, target, if is_script { 5000 } else { 2 });
    let tracer = Tracer::attach(server);
    let begun = Instant::now();
    ask(&mut client, case, target, REQUESTS);
    // The watchdog looks once a millisecond at most.
    let looks = REQUESTS.max(begun.elapsed().as_millis() as u64);
    let mut calls = tracer.stop().without_waits();
    if is_script {
        for name in WATCHDOG {
            assert!(calls.count(name) < looks, "for each request: {calls:?}");
            calls.0.remove(*name);
        }
    }
    expect_budget(&calls, budget);
}

/// A heap that grows with the garbage of scripts takes an mprotect for every 4 KiB.
/// It takes so long because a script runs more than forty thousand times before its garbage has been collected twice.
#[test]
fn scripts_that_have_run_often_take_no_memory_from_the_kernel() {
    let _alone = alone();
    for case in cases(Route::Lua) {
        let server = Server::build()
            .tree(write_files)
            .config(&format!(
                "server.max-keep-alive-requests = 65535\nserver.max-worker = 1\n{}",
                case.config
            ))
            .start();
        let mut client = server.client();
        // Until the garbage has been collected twice.
        ask(&mut client, &case, case.targets[0], 40_000);
        let tracer = Tracer::attach(&server);
        let begun = Instant::now();
        ask(&mut client, &case, case.targets[0], 10_000);
        let calls = tracer.stop().without_waits();
        // What the worker does once a second may need a page.
        let seconds = begun.elapsed().as_secs();
        for name in ["mprotect", "mmap", "munmap", "madvise", "brk"] {
            assert!(calls.count(name) <= 2 + seconds, "{name}: {calls:?}");
        }
        // The watchdog looks every 2.5 ms while no script runs for long.
        let looks = begun.elapsed().as_micros() / 2500;
        let sleeps = u128::from(calls.count("clock_nanosleep"));
        assert!(sleeps <= looks + 2, "{looks} looks at most: {calls:?}");
    }
}

fn expect_budget(calls: &Calls, budget: &[(&str, u64)]) {
    let names: Vec<[&str; 1]> = budget.iter().map(|(name, _)| [*name]).collect();
    let expected: Vec<(&[&str], u64)> = names
        .iter()
        .zip(budget)
        .map(|(name, (_, count))| (&name[..], *count))
        .collect();
    expect(calls, &expected);
}

fn ask(client: &mut Client, case: &RouteCase, target: &str, times: u64) {
    for _ in 0..times {
        let response = client.request("GET", target, &[case.field]);
        assert_eq!(response.status, case.status, "{target}");
    }
}

/// What the watchdog of scripts calls every few milliseconds.
const WATCHDOG: &[&str] = &["clock_nanosleep", "clock_gettime", "preadv"];
