//! Standard error that is blocked or closed.

use std::fs::OpenOptions;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::symlink;

use petrel_tests::{Tree, eventually};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;

use crate::fcgi_stat_accel::accelerator::Accelerator;

/// A tree with a file that is served, and one that is refused with a log line.
fn tree() -> Tree {
    let tree = Tree::new();
    tree.write("www/a", "text");
    symlink("../elsewhere", tree.path("www/out")).expect("made");
    tree.write("elsewhere", "text");
    tree
}

/// Expects that requests are answered although there are log lines to write, and that a signal ends the
/// program.
#[track_caller]
fn expect_serving(accelerator: &mut Accelerator, refusals: usize) {
    let mut peer = accelerator.connect();
    for _ in 0..refusals {
        peer.send(&accelerator.request(1, "out"));
        assert_eq!(peer.reply(1).status(), 403);
    }
    peer.send(&accelerator.request(1, "a"));
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
    accelerator.signal(Signal::TERM);
    assert_eq!(accelerator.wait(), 0);
}

#[test]
fn a_log_on_a_full_disk_does_not_end_the_program() {
    let full = OpenOptions::new().write(true).open("/dev/full");
    let full = full.expect("it is there");
    expect_serving(&mut Accelerator::start_saying(&[], tree(), full), 3);
}

#[test]
fn a_logger_that_has_gone_does_not_end_the_program() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    expect_serving(&mut Accelerator::start_saying(&[], tree(), writer), 3);
}

/// It takes so long because it sends 5000 requests one after the other.
#[test]
fn a_logger_that_reads_nothing_delays_no_request() {
    let (_reader, writer) = full_pipe();
    // More lines than the program buffers.
    expect_serving(&mut Accelerator::start_saying(&[], tree(), writer), 5000);
}

#[test]
fn lines_that_had_no_room_are_counted() {
    let (mut reader, writer) = full_pipe();
    let accelerator = Accelerator::start_saying(&[], tree(), writer);
    let mut peer = accelerator.connect();
    for _ in 0..5000 {
        peer.send(&accelerator.request(1, "out"));
        assert_eq!(peer.reply(1).status(), 403);
    }
    let (said, all) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let _ = said.send(text);
        }
    });
    let mut text = String::new();
    let is_whole = || {
        text.extend(all.try_iter());
        text.ends_with(" lines were dropped here\n")
    };
    assert!(eventually(is_whole), "{} bytes", text.len());
    let count = |line: &str| line.split(' ').nth(2).and_then(|word| word.parse().ok());
    let missing: usize = text.lines().last().and_then(count).expect("a number");
    let written = text.matches("it leads out of the document root").count();
    assert_eq!(written + missing, 5000, "{missing}");
}

/// A pipe that blocks until it is read.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("set");
    let end = loop {
        if let Err(error) = writer.write(&[b'\n'; 4096]) {
            break error;
        }
    };
    assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
    ioctl_fionbio(&writer, false).expect("set");
    (reader, writer)
}
