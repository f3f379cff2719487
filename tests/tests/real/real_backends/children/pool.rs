//! A fixed number of processes: all of them work, and a request that waits says for which others.

use std::thread;

use petrel_tests::{Tree, can_run, free_port};

use crate::real_backends::children::{FpmSocket, NOTED, Site, builder, can_run_fpm, site};

/// Children of php-fpm.
const CHILDREN: usize = 6;

/// Fast requests beside more and more slow ones, until these have all processes but one.
pub fn fast_beside_slow(site: &Site, children: usize) {
    assert_eq!(site.server.get("/fast.php").status, 200);
    let mut held = site.hold(children / 2, "end");
    site.load("/fast.php", 4, 25);
    held.extend(site.hold(children - 1 - held.len(), "end"));
    site.load("/fast.php", 4, 25);
    assert_eq!(site.count("fast"), 201, "each ran once");
    site.end("end");
    for mut client in held {
        assert_eq!(client.response().status, 200);
    }
}

/// Slow requests have all processes. A fast one waits until one of them ends, and says so. `note` is what it says of
/// so many processes.
pub fn fast_behind_slow(site: &Site, children: usize, stage: &str, note: impl Fn(usize) -> String) {
    let mut last = site.hold(1, "last");
    let mut held = site.hold(children - 1, "end");
    let mut fast = site.ask("/fast.php");
    site.expect_waiting(1);
    // A wait is noted if it takes so long.
    thread::sleep(NOTED);
    assert_eq!(site.count("fast"), 0, "no process is free");
    site.end("last");
    assert_eq!(fast.response().status, 200);
    assert_eq!(last[0].response().status, 200);
    site.end("end");
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!((site.count("fast"), site.count("slow")), (1, children));
    let logged = site.logged("/fast.php", 1);
    assert!(logged[0].stage(stage) > 0, "{:?}", logged[0].stages);
    let waits = &logged[0].waits;
    assert!(waits.contains(&format!("{stage} ")), "{waits}");
    // The requests are looked at for the last time up to 50 ms before the wait ends; one may have ended then.
    let is_told = |count: usize| waits.contains(&note(count));
    assert!(is_told(children) || is_told(children - 1), "{waits}");
}

/// What a request says that waits for so many processes.
pub fn says_busy(children: usize) -> String {
    format!("processes busy: {children}x /slow.php, oldest ")
}

fn both_on(socket: &FpmSocket) {
    let fpm = socket.start_static(CHILDREN);
    for workers in [1, 2] {
        fast_beside_slow(&site(socket, workers), CHILDREN);
        fast_behind_slow(
            &site(socket, workers),
            CHILDREN,
            "backend-accept",
            says_busy,
        );
    }
    drop(fpm);
}

#[test]
fn slow_requests_hold_up_others_only_when_they_have_all_children() {
    if !can_run_fpm("slow_requests_hold_up_others_only_when_they_have_all_children") {
        return;
    }
    let tree = Tree::new();
    both_on(&FpmSocket::in_tree(&tree));
}

#[test]
fn the_same_over_tcp() {
    if !can_run_fpm("the_same_over_tcp") {
        return;
    }
    both_on(&FpmSocket::Port(free_port()));
}

#[test]
fn the_same_with_php_cgi_that_the_server_starts() {
    if !can_run(
        "the_same_with_php_cgi_that_the_server_starts",
        &["/usr/bin/php-cgi"],
    ) {
        return;
    }
    let start = || {
        let directive = "server.modules += ( \"mod_fastcgi\" )\nfastcgi.server = ( \".php\" => (( \
             \"bin-path\" => \"/usr/bin/php-cgi\", \"socket\" => var.dir + \"/php.sock\", \
             \"max-procs\" => 1, \"bin-environment\" => ( \"PHP_FCGI_CHILDREN\" => \"4\" ) )) )";
        Site {
            server: builder(2).config(directive).start(),
        }
    };
    fast_beside_slow(&start(), 4);
    // The server knows how many there are, because it has started them.
    let says_full = |count| format!("php.sock-0\\\" full (4 of 4): {count}x /slow.php, oldest ");
    fast_behind_slow(&start(), 4, "backend-queue", says_full);
}

#[test]
fn sixty_four_clients_of_two_children_get_their_answers() {
    if !can_run_fpm("sixty_four_clients_of_two_children_get_their_answers") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(2);
    let site = site(&socket, 2);
    // All of them are sent while no child is free.
    let mut held = site.hold(2, "end");
    let mut clients: Vec<_> = (0..64).map(|_| site.ask("/fast.php")).collect();
    site.expect_waiting(64);
    site.end("end");
    for client in clients.iter_mut().chain(&mut held) {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(site.count("fast"), 64, "each ran once");
    site.load("/fast.php", 64, 3);
    assert_eq!(site.count("fast"), 4 * 64, "each ran once");
}

/// It takes so long because three times two scripts of 700 ms run one after the other.
#[test]
fn a_wait_for_a_child_is_not_told_as_its_work() {
    if !can_run_fpm("a_wait_for_a_child_is_not_told_as_its_work") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(2);
    let site = site(&socket, 2);
    let mut held = site.hold(2, "end");
    let clients: Vec<_> = (0..6).map(|_| site.ask("/timed.php")).collect();
    site.expect_waiting(6);
    site.end("end");
    let answers: Vec<_> = clients
        .into_iter()
        .map(|mut client| thread::spawn(move || client.response().text()))
        .collect();
    let times: Vec<u64> = answers
        .into_iter()
        .map(|answer| answer.join().expect("answered"))
        .map(|text| text.parse().expect("microseconds"))
        .collect();
    for client in &mut held {
        assert_eq!(client.response().status, 200);
    }
    let longest = times.iter().copied().max().expect("six");
    let logged = site.logged("/timed.php", 6);
    for request in &logged {
        let first_byte = request.stage("backend-first-byte");
        // A request that was written to a child with another script would have at least two of them.
        assert!(
            (690_000..longest + 600_000).contains(&first_byte),
            "{first_byte} us of {longest}; {}",
            request.waits
        );
    }
    let accept: u64 = logged
        .iter()
        .map(|request| request.stage("backend-accept"))
        .sum();
    // Two waited for two scripts, two for one. The kernel and the children may be asked up to 50 ms late.
    let least = 2 * 1_400_000 + 2 * 700_000 - 4 * 50_000;
    assert!(accept >= least, "{accept} us; {times:?}");
    let names = |request: &&_| -> bool {
        let request: &super::LoggedRequest = request;
        request.waits.contains("2 of 2 processes busy") && request.waits.contains("x /timed.php")
    };
    assert!(
        logged.iter().filter(names).count() >= 2,
        "{:?}",
        logged
            .iter()
            .map(|request| &request.waits)
            .collect::<Vec<_>>()
    );
}
