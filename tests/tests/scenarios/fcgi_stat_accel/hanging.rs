//! Disks that do not answer, or answer with an error.

use petrel_tests::fastcgi::{ABORT_REQUEST, END_REQUEST, Reply};
use petrel_tests::{Operation, SlowFs, Tree, eventually, fastcgi_record};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::fcgi_stat_accel::accelerator::Accelerator;

/// Files on a disk of their own, `www/disk`.
fn slow_disk(test: &str, accelerator: &Accelerator) -> Option<SlowFs> {
    write_files(&accelerator.tree);
    SlowFs::mount_or_skip(test, &accelerator.tree.path("www/disk"))
}

fn write_files(tree: &Tree) {
    tree.write("www/a", "text");
    for number in 0..10 {
        tree.write(&format!("www/disk/{number}"), vec![b'x'; 300_000]);
    }
}

/// It takes the twenty seconds that the program waits for a disk that hangs.
#[test]
fn a_disk_that_hangs_delays_no_other_request() {
    let accelerator = Accelerator::start(&["--threads", "2", "--timeout", "20"]);
    let Some(disk) = slow_disk("a_disk_that_hangs_delays_no_other_request", &accelerator) else {
        return;
    };
    disk.hang();
    let mut peer = accelerator.connect();
    for (id, name) in [(1, "disk/1"), (2, "disk/2"), (3, "disk/1"), (4, "a")] {
        peer.send(&accelerator.request(id, name));
    }
    // Both threads hang. The last request comes after them, and is answered before them.
    let mut replies = peer.replies(&[1, 2, 3, 4]);
    let (first, id) = replies.remove(0);
    assert_eq!((id, first.text()), (4, accelerator.naming("a")));
    for (reply, id) in &replies {
        assert_eq!(reply.status(), 504, "{id}: {}", reply.text());
    }
    // One log line per path, however many requests there were.
    assert!(eventually(|| accelerator.log().lines().count() == 2));
    let log = accelerator.log();
    for name in ["disk/1", "disk/2"] {
        let line = format!(
            "open, stat or read: no answer in 20 s: {}",
            shown(&accelerator, name)
        );
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    // New requests are answered at once, because the path is known to hang.
    assert_eq!(accelerator.ask("disk/1").status(), 504);
    // Two threads that hang, one or two that replaced them, those for connections and the log, and the first
    // one.
    assert!(accelerator.threads() <= 7, "{}", accelerator.threads());
    assert_eq!(accelerator.ask("a").status(), 200);
    disk.release();
    assert!(
        eventually(|| accelerator.threads() == 5),
        "{}",
        accelerator.threads()
    );
    assert_eq!(
        accelerator.ask("disk/1").text(),
        accelerator.naming("disk/1")
    );
}

#[test]
fn an_error_of_the_disk_is_a_line_with_stage_cause_and_path() {
    let accelerator = Accelerator::start(&[]);
    let test = "an_error_of_the_disk_is_a_line_with_stage_cause_and_path";
    let Some(disk) = slow_disk(test, &accelerator) else {
        return;
    };
    for (number, (operation, error, status, says)) in [
        (
            Operation::Lookup,
            Errno::IO,
            500,
            "open: Input/output error (os error 5)",
        ),
        (
            Operation::Open,
            Errno::IO,
            500,
            "open: Input/output error (os error 5)",
        ),
        (
            Operation::Read,
            Errno::IO,
            500,
            "read: Input/output error (os error 5)",
        ),
        (
            Operation::Read,
            Errno::TIMEDOUT,
            504,
            "read: Connection timed out (os error 110)",
        ),
        (
            Operation::Open,
            Errno::NOMEM,
            503,
            "open: Cannot allocate memory (os error 12)",
        ),
        (
            Operation::Lookup,
            Errno::ACCESS,
            403,
            "open: Permission denied (os error 13)",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        disk.fail_on(&[operation], error);
        let name = format!("disk/{number}");
        let reply: Reply = accelerator.ask(&name);
        let line = format!("{says}: {}", shown(&accelerator, &name));
        assert_eq!(
            (reply.status(), reply.log.as_str()),
            (status, line.as_str())
        );
        let line = format!("petrel fcgi-stat-accel: {line}");
        assert!(
            eventually(|| accelerator.log().matches(&line).count() == 1),
            "{}",
            accelerator.log()
        );
        assert_eq!(accelerator.ask("a").status(), 200);
        disk.release();
        assert_eq!(accelerator.ask(&name).text(), accelerator.naming(&name));
    }
}

#[test]
fn the_beginning_of_a_file_is_read_and_no_more() {
    for (read_ahead, reads) in [("0", false), ("131072", true)] {
        let accelerator = Accelerator::start(&["--read-ahead", read_ahead]);
        let Some(disk) = slow_disk("the_beginning_of_a_file_is_read_and_no_more", &accelerator)
        else {
            return;
        };
        assert_eq!(accelerator.ask("disk/1").status(), 200);
        assert!(disk.count(Operation::Open) > 0);
        assert_eq!(disk.count(Operation::Read) > 0, reads, "{read_ahead}");
    }
}

#[test]
fn an_abort_leaves_what_hangs_behind() {
    let mut accelerator = Accelerator::start(&["--threads", "1"]);
    let Some(disk) = slow_disk("an_abort_leaves_what_hangs_behind", &accelerator) else {
        return;
    };
    disk.hang_on(&[Operation::Read]);
    let mut peer = accelerator.connect();
    peer.send(&accelerator.request(1, "disk/1"));
    disk.expect_hanging(1);
    peer.send(&fastcgi_record(ABORT_REQUEST, 1, b""));
    let record = peer.record().expect("an answer");
    assert_eq!((record.kind, record.id), (END_REQUEST, 1));
    // The id can be used again. The only thread hangs, and is replaced.
    peer.send(&accelerator.request(1, "a"));
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
    // No request waits for the disk any more, so the program can end.
    accelerator.signal(Signal::TERM);
    assert_eq!(accelerator.wait(), 0);
}

/// It takes the ten seconds that the program waits for a disk that hangs.
#[test]
fn a_file_is_found_when_another_file_system_is_mounted() {
    let test = "a_file_is_found_when_another_file_system_is_mounted";
    let accelerator = Accelerator::start(&["--threads", "2", "--timeout", "10"]);
    let Some(disk) = slow_disk(test, &accelerator) else {
        return;
    };
    disk.hang();
    let mut peer = accelerator.connect();
    for (id, name) in [(1, "disk/1"), (2, "disk/2")] {
        peer.send(&accelerator.request(id, name));
    }
    for (reply, id) in peer.replies(&[1, 2]) {
        assert_eq!(reply.status(), 504, "{id}");
    }
    disk.expect_hanging(2);
    let at = accelerator.tree.path("www/disk");
    unmount(&at, UnmountFlags::DETACH).expect("it was mounted");
    let Some(_replacement) = SlowFs::mount_or_skip(test, &at) else {
        return;
    };
    for name in ["disk/1", "disk/3"] {
        assert_eq!(accelerator.ask(name).text(), accelerator.naming(name));
    }
    assert_eq!(disk.hanging(), 2);
    disk.release();
    assert_eq!(
        accelerator.ask("disk/2").text(),
        accelerator.naming("disk/2")
    );
}

#[test]
fn thousands_that_ask_for_what_hangs_take_one_thread() {
    let accelerator = Accelerator::start(&[]);
    let test = "thousands_that_ask_for_what_hangs_take_one_thread";
    let Some(disk) = slow_disk(test, &accelerator) else {
        return;
    };
    disk.hang();
    let mut peers: Vec<_> = (0..32).map(|_| accelerator.connect()).collect();
    let ids: Vec<u16> = (1..=128).collect();
    for peer in &mut peers {
        let requests = ids.iter().map(|id| accelerator.request(*id, "disk/1"));
        peer.send(&requests.collect::<Vec<_>>().concat());
    }
    // The program takes 32 times 128 requests at the same time; one more gets FCGI_OVERLOADED.
    assert!(eventually(|| accelerator.ask("a").end == Some((0, 2))));
    // The thread of the job, those for connections and the log, and the first one. A request that arrived
    // before all others took another one.
    assert!(accelerator.threads() <= 5, "{}", accelerator.threads());
    disk.fail(Errno::IO);
    let mut lines = 0;
    for peer in &mut peers {
        for (reply, _) in peer.replies(&ids) {
            assert_eq!(reply.status(), 500);
            lines += reply.log.lines().count();
        }
    }
    assert_eq!(lines, 1);
    assert_eq!(accelerator.ask("a").status(), 200);
}

/// How a log line about a file in `www` ends.
fn shown(accelerator: &Accelerator, name: &str) -> String {
    format!(
        "\"{}\"\n",
        accelerator.tree.path("www").join(name).display()
    )
}
