//! A request costs the same with a thousand virtual hosts as with a few.

use std::process::Command;

use petrel_tests::{Builder, PATIENCE, Server, Tree, is_installed, petrel, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::alone;

const HOSTS: usize = 500;
/// Enough that the host is looked up in the same table as with [`HOSTS`].
const FEW_HOSTS: usize = 10;
/// Pairs of requests that are counted.
const PAIRS: usize = 100;

fn builder(hosts: usize) -> Builder {
    let mut config =
        String::from("server.max-keep-alive-requests = 65535\nserver.max-worker = 1\n");
    for number in 0..hosts {
        config.push_str(&format!(
            "$HTTP[\"host\"] == \"host{number}.test\" {{ server.document-root = var.dir + \"/sites/{number}\" }}\n\
             $HTTP[\"host\"] =~ \"^(www\\.)?site{number}\\.test$\" {{ server.document-root = var.dir + \"/sites/{number}\" }}\n"
        ));
    }
    Server::build()
        .file("www/index.html", "hello")
        .file("sites/7/index.html", "seven")
        .config(&config)
}

#[test]
fn each_host_gets_its_own() {
    let _alone = alone();
    let server = builder(HOSTS).start();
    let get = |host: &str| {
        server
            .exchange(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .text()
    };
    assert_eq!(get("host7.test"), "seven");
    assert_eq!(get("www.site7.test"), "seven");
    assert_eq!(get("HOST7.test"), "seven");
    assert_eq!(get("site77777.test"), "hello");
}

/// It takes so long because valgrind counts each instruction that loads a large configuration.
#[test]
fn twice_as_many_hosts_take_twice_the_work_to_load() {
    let _alone = alone();
    if !is_installed("valgrind") {
        let test = "twice_as_many_hosts_take_twice_the_work_to_load";
        return skip(test, "valgrind is not installed");
    }
    let none = instructions_to_load(0);
    let [half, all] = [HOSTS / 2, HOSTS].map(|hosts| instructions_to_load(hosts) - none);
    println!("{half} instructions to load half of the hosts, {all} for all");
    assert!(all * 2 < half * 5, "{half} for half, {all} for all");
}

fn instructions_to_load(hosts: usize) -> i64 {
    let counts = Tree::new();
    let checked = builder(hosts).check_as(counting(&counts, &[]), &["-t"]);
    assert_eq!(checked.code(), 0, "{}", checked.errors);
    counted(&counts)
}

/// It takes so long because valgrind runs two servers, and one of them loads a large configuration.
#[test]
fn a_thousand_hosts_cost_no_instructions() {
    let _alone = alone();
    if !is_installed("valgrind") {
        let test = "a_thousand_hosts_cost_no_instructions";
        return skip(test, "valgrind is not installed");
    }
    let few = instructions_a_request(FEW_HOSTS);
    let thousand = instructions_a_request(HOSTS);
    let more = thousand - few;
    println!("{few} instructions with a few hosts, {thousand} with a thousand: {more} more");
    // A comparison with each of the hosts would take a hundred thousand in the program under test, which is not
    // optimised. The set of true conditions has a bit for each, which takes two instructions. On a busy machine each
    // request also notes what it waited for, which takes up to 28,000.
    assert!(
        more < 50_000,
        "{few} with a few hosts, {thousand} with a thousand"
    );
}

/// What the worker does for the requests of one connection, half of which ask for a host that is compared, and half
/// for one that is matched. What the worker does at its start, once a second and for the first request of a host is
/// not counted: a new connection sets the count to zero.
fn instructions_a_request(hosts: usize) -> i64 {
    let counts = Tree::new();
    let mut command = counting(
        &counts,
        &[
            "--toggle-collect=<petrel_engine::connection::Connection as core::future::future::Future>::poll",
            "--zero-before=petrel_engine::connection::Connection::new",
        ],
    );
    command.arg("-D");
    let mut server = builder(hosts).start_as(command);
    for pairs in [1, PAIRS] {
        let mut client = server.client();
        for host in ["host7.test", "site7.test"].repeat(pairs) {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(client.response().text(), "seven");
        }
    }
    let pid = i32::try_from(server.pid())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id");
    kill_process(pid, Signal::INT).expect("it is running");
    server.wait(PATIENCE).expect("it ends");
    let requests = 2 * i64::try_from(PAIRS).expect("it is small");
    let instructions = counted(&counts) / requests;
    assert!(instructions > 1000, "{instructions}");
    instructions
}

/// A command that runs Petrel, and writes the instructions of each of its processes to a file in `tree`.
fn counting(tree: &Tree, options: &[&str]) -> Command {
    let mut command = Command::new("valgrind");
    let files = tree.path("callgrind.%p").display().to_string();
    command
        .args(["--tool=callgrind", "--trace-children=yes"])
        .arg(format!("--callgrind-out-file={files}"))
        .args(options)
        .arg(petrel());
    command
}

/// The instructions of the process that executed most.
fn counted(tree: &Tree) -> i64 {
    let outputs = tree.names(".").into_iter();
    let totals = outputs.filter_map(|name| {
        let text = tree.text(&name);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("summary: "))?;
        line.trim().parse::<i64>().ok()
    });
    totals.max().expect("callgrind wrote a summary")
}
