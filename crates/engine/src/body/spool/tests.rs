//! Spools on disks that are fast, slow, full and gone.

pub(super) mod gate;

use std::future::poll_fn;
use std::io::Write;
use std::task::Waker;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::limits;

const BLOCK: usize = limits::SPOOL_WRITE_BYTES;

fn directories() -> Vec<PathBuf> {
    vec![std::env::temp_dir()]
}

/// Bytes that contain their own offsets.
fn data(length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(4)).map(|number| (number as u32).to_be_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(length);
    bytes
}

/// A spool that begins with its first block on disk.
fn on_disk(bytes: &[u8]) -> Spool {
    let mut spool = Spool {
        place: SpoolPlace::Disk(Box::new(OnDisk::new(
            SpoolMemory::default(),
            0,
            &directories(),
            0,
        ))),
        ..Spool::default()
    };
    spool.push(bytes, &[], 0);
    spool
}

fn taken(spool: &mut Spool) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = spool.take() {
        read_piece(piece, &mut all);
    }
    all
}

fn read_piece(mut piece: Piece, into: &mut Vec<u8>) {
    let mut buffer = vec![0; 100_000];
    while piece.length() > 0 {
        let count = piece.read(&mut buffer).expect("it is there");
        into.extend_from_slice(&buffer[..count]);
    }
}

fn whole(body: Body) -> Vec<u8> {
    let mut all = Vec::new();
    match body {
        Body::Empty => {}
        Body::Piece(piece) => read_piece(piece, &mut all),
        Body::Pieces(pieces) => pieces
            .into_iter()
            .for_each(|piece| read_piece(piece, &mut all)),
        Body::Source(_) => panic!("everything is there"),
    }
    all
}

fn poll_room(spool: &mut Spool) -> Poll<io::Result<()>> {
    spool.poll_room(&mut Context::from_waker(Waker::noop()))
}

async fn room(spool: &mut Spool) -> io::Result<()> {
    poll_fn(|context| spool.poll_room(context)).await
}

async fn written(spool: &mut Spool) -> io::Result<()> {
    poll_fn(|context| spool.poll_written(context)).await
}

async fn read(spool: &mut Spool, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
    poll_fn(|context| {
        let read = spool.poll_read(offset, bytes_max, context)?;
        read.map(|bytes| Ok(bytes.to_vec()))
    })
    .await
}

async fn read_all(spool: &mut Spool, mut offset: u64) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = read(spool, offset, 50_000).await.expect("it is there");
        if bytes.is_empty() {
            return all;
        }
        offset += bytes.len() as u64;
        all.extend_from_slice(&bytes);
    }
}

async fn until(mut what: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not happen in a minute");
}

#[test]
fn small_amounts_stay_in_memory() {
    let mut spool = Spool::default();
    spool.push(b"hello ", &[], 0);
    spool.push(b"world", &[], 0);
    assert!(poll_room(&mut spool).is_ready() && spool.has_room());
    assert_eq!(spool.in_memory(6), Some(&b"world"[..]));
    let context = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(bytes)) = spool.poll_read(9, 4, context) else {
        panic!("memory does not wait");
    };
    assert_eq!(bytes, b"ld");
    spool.release(6);
    let released = spool.poll_read(0, 4, context);
    assert!(matches!(released, Poll::Ready(Err(_))));
    assert_eq!(taken(&mut spool), b"world");
    assert!(spool.is_empty());
}

#[test]
fn what_is_held_in_memory_counts_until_it_is_gone() {
    let before = memory::counted();
    let mut spool = Spool::default();
    let part = vec![1; limits::SPOOL_MEMORY_BYTES_MAX];
    spool.push(&part, &[], 0);
    assert_eq!(memory::counted(), before);
    spool.push(&part, &[], 0);
    assert_eq!(memory::counted(), before + 2 * part.len());
    let piece = spool.take().expect("it was pushed");
    assert_eq!(piece.length(), 2 * part.len() as u64);
    assert_eq!(
        memory::counted(),
        before + 2 * part.len(),
        "it is being sent"
    );
    drop(piece);
    assert_eq!(memory::counted(), before);
}

#[test]
fn without_a_budget_left_the_disk_is_used() {
    let part = vec![1; limits::SPOOL_LARGE_BYTES_MAX];
    let mut spools: Vec<Spool> = Vec::new();
    while spools.last().is_none_or(|spool| !spool.is_on_disk()) {
        assert!(spools.len() < 1000);
        let mut spool = Spool::default();
        spool.push(&part, &directories(), 0);
        spools.push(spool);
    }
    let in_memory = spools.len() - 1;
    assert_eq!(in_memory * part.len(), limits::SPOOL_BUDGET_BYTES_MAX);
    // After that, the unwritten bytes of a spool are limited to the minimum.
    let mut last = spools.pop().expect("there is one");
    last.clear();
    let mut spool = on_disk(&part[..BLOCK]);
    assert!(spool.has_room());
    spool.push(&part[..BLOCK], &[], 0);
    assert!(!spool.has_room());
    spools.clear();
    assert!(spool.has_room());
}

#[tokio::test(flavor = "local")]
async fn large_amounts_go_to_a_file_and_come_back_in_order() {
    let mut spool = Spool::default();
    let data = data(3_000_000);
    for part in data.chunks(10_007) {
        spool.push(part, &directories(), 0);
        room(&mut spool).await.expect("a temporary file");
    }
    assert!(spool.is_on_disk());
    written(&mut spool).await.expect("written");
    let bytes = read(&mut spool, 150_000, 1000).await.expect("disk");
    assert_eq!(bytes, data[150_000..151_000]);
    assert_eq!(read_all(&mut spool, 0).await, data);
    spool.release(1);
    assert!(matches!(spool.take(), Some(Piece::File { range, .. }) if range.start == 1));
    let rest = taken(&mut spool);
    assert_eq!(rest, &data[data.len() - rest.len()..]);
    assert!(!spool.is_on_disk(), "the file is given back");
    spool.push(b"again", &[], 0);
    assert_eq!(taken(&mut spool), b"again");
}

#[tokio::test(flavor = "local")]
async fn taking_and_pushing_alternate_in_both_places() {
    let mut spool = Spool::default();
    let part = vec![7; limits::SPOOL_LARGE_BYTES_MAX];
    let mut count = 0;
    for round in 0..6 {
        spool.push(&part, &directories(), 0);
        spool.push(b"x", &directories(), 0);
        if round % 2 == 0 {
            written(&mut spool).await.expect("written");
        }
        count += taken(&mut spool).len();
    }
    assert_eq!(count, 6 * (part.len() + 1));
    assert_eq!(spool.pushed(), count as u64);
}

#[tokio::test(flavor = "local")]
async fn without_a_directory_the_failure_is_told_and_nothing_is_lost() {
    let mut spool = Spool::default();
    let much = data(limits::SPOOL_LARGE_BYTES_MAX + 1);
    spool.push(&much, &["/nonexistent".into()], 0);
    for _ in 0..2 {
        let error = room(&mut spool).await.expect_err("no directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("/nonexistent"), "{error}");
        assert!(!spool.has_room());
    }
    assert_eq!(read_all(&mut spool, 0).await, much);
    assert_eq!(whole(spool.into_body()), much);
}

#[tokio::test(flavor = "local")]
async fn a_body_made_of_it_has_its_length() {
    let mut spool = Spool::default();
    let much = data(limits::SPOOL_LARGE_BYTES_MAX * 3);
    spool.push(&much, &directories(), 0);
    room(&mut spool).await.expect("written");
    spool.push(b"tail", &[], 0);
    spool.release(10);
    let body = spool.into_body();
    assert_eq!(body.length(), Some(much.len() as u64 - 6));
    assert_eq!(whole(body), [&much[10..], b"tail"].concat());
}

#[tokio::test(flavor = "local")]
async fn nothing_waits_for_a_slow_disk_but_who_pushes() {
    let gate = gate::close();
    let bytes = data(20 * BLOCK);
    let mut spool = Spool::default();
    let mut pushed = 0;
    let mut parts = bytes.chunks(10_000);
    while poll_room(&mut spool).is_ready() {
        let part = parts.next().expect("the room is limited");
        spool.push(part, &directories(), 0);
        pushed += part.len();
    }
    // All bytes are in memory, one job is under way, and the spool took as much as it should.
    let most = limits::SPOOL_LARGE_BYTES_MAX + limits::SPOOL_UNWRITTEN_BYTES_MAX;
    assert!((BLOCK..=most + 10_000).contains(&pushed), "{pushed}");
    until(|| gate.arrived() == 1).await;
    assert_eq!(read_all(&mut spool, 0).await, &bytes[..pushed]);
    assert!(poll_room(&mut spool).is_pending());
    gate.pass_one();
    room(&mut spool).await.expect("the disk has taken some");
    assert_eq!(read_all(&mut spool, 0).await, &bytes[..pushed]);
    assert!(matches!(spool.take(), Some(Piece::File { .. })));
    drop(gate);
}

#[tokio::test(flavor = "local")]
async fn one_write_at_a_time_is_on_its_way() {
    let gate = gate::close();
    let mut spool = on_disk(&data(BLOCK));
    for _ in 0..3 {
        assert!(
            spool
                .poll_written(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        spool.push(&[1; BLOCK], &[], 0);
    }
    until(|| gate.arrived() == 1).await;
    gate.pass_one();
    until(|| {
        let _ = poll_room(&mut spool);
        gate.arrived() == 2
    })
    .await;
    gate.pass_one();
    written(&mut spool).await.expect("both are written");
    assert_eq!(gate.arrived(), 2, "what waited went together");
    assert_eq!(taken(&mut spool).len(), 4 * BLOCK);
}

/// What a test does to a spool that has a block on its way to the disk and bytes after it.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Take,
    ReleaseSome,
    ReleaseMuch,
    Read,
    /// The write at the gate succeeds.
    Done,
    /// The write at the gate fails.
    Fail,
}

/// Tries all orders of three steps, and compares with a plain vector after each.
#[tokio::test(flavor = "local")]
async fn every_order_of_steps_and_completions_keeps_the_bytes() {
    use Step::{Done, Fail, Push, Read, ReleaseMuch, ReleaseSome, Take};
    let steps = [Push, Take, ReleaseSome, ReleaseMuch, Read, Done, Fail];
    for first in steps {
        for second in steps {
            for third in steps {
                let order = [first, second, third];
                Model::new().await.run(&order).await;
            }
        }
    }
}

struct Model {
    gate: gate::ClosedGate,
    spool: Spool,
    /// The bytes that were pushed, and how many of them were released.
    all: Vec<u8>,
    gone: usize,
    /// How many writes were let through the gate.
    ended: usize,
    has_failed: bool,
}

impl Model {
    async fn new() -> Model {
        let gate = gate::close();
        let mut model = Model {
            gate,
            spool: on_disk(&[]),
            all: Vec::new(),
            gone: 0,
            ended: 1,
            has_failed: false,
        };
        model.push(BLOCK + 5);
        // One block is in the file, one is at the gate, and there are bytes after it.
        model.gate.pass_one();
        written(&mut model.spool).await.expect("written");
        model.push(BLOCK + 7);
        assert!(poll_written(&mut model.spool).is_pending());
        model.push(100);
        model
    }

    fn push(&mut self, count: usize) {
        let begin = self.all.len();
        let bytes: Vec<u8> = (begin..begin + count).map(|at| (at % 251) as u8).collect();
        self.spool.push(&bytes, &directories(), 0);
        self.all.extend_from_slice(&bytes);
    }

    async fn run(mut self, order: &[Step]) {
        for step in order {
            self.step(*step).await;
            assert_eq!(self.spool.pushed(), self.all.len() as u64, "{order:?}");
            assert_eq!(
                self.spool.held(),
                (self.all.len() - self.gone) as u64,
                "{order:?}"
            );
            let rest = read_all(&mut self.spool, self.gone as u64).await;
            assert!(rest == self.all[self.gone..], "{order:?} at {step:?}");
        }
        drop(self.gate);
        if !self.has_failed {
            written(&mut self.spool).await.expect("nothing failed");
        }
        let rest = read_all(&mut self.spool, self.gone as u64).await;
        assert!(rest == self.all[self.gone..], "{order:?} at the end");
        let body = whole(self.spool.into_body());
        assert!(body == self.all[self.gone..], "{order:?} as a body");
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Push => self.push(BLOCK / 2),
            Step::Take => {
                if let Some(piece) = self.spool.take() {
                    let mut bytes = Vec::new();
                    read_piece(piece, &mut bytes);
                    assert!(bytes == self.all[self.gone..self.gone + bytes.len()]);
                    self.gone += bytes.len();
                }
            }
            Step::ReleaseSome => self.release(3),
            Step::ReleaseMuch => self.release(BLOCK + 6),
            Step::Read => {
                let middle = (self.gone + self.all.len()) / 2;
                let rest = read_all(&mut self.spool, middle as u64).await;
                assert!(rest == self.all[middle..]);
            }
            Step::Done => self.end_write(None).await,
            Step::Fail => self.end_write(Some(Errno::NOSPC)).await,
        }
    }

    fn release(&mut self, count: usize) {
        self.gone = (self.gone + count).min(self.all.len());
        self.spool.release(self.gone as u64);
    }

    /// Lets one write end, if one is under way.
    async fn end_write(&mut self, errno: Option<Errno>) {
        let SpoolPlace::Disk(disk) = &self.spool.place else {
            return;
        };
        if !disk.is_writing() {
            return;
        }
        let ended = self.ended;
        until(|| self.gate.arrived() > ended).await;
        match errno {
            None => self.gate.pass_one(),
            Some(errno) => self.gate.fail_one(errno),
        }
        self.ended += 1;
        for _ in 0..60_000 {
            match poll_written(&mut self.spool) {
                Poll::Ready(Ok(())) => return,
                Poll::Ready(Err(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    self.has_failed = true;
                    return;
                }
                // The next write has reached the gate.
                Poll::Pending if self.gate.arrived() > self.ended => return,
                Poll::Pending => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        panic!("the write does not end");
    }
}

fn poll_written(spool: &mut Spool) -> Poll<io::Result<()>> {
    spool.poll_written(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(flavor = "local")]
async fn a_full_disk_is_told_at_the_first_block_and_at_later_ones() {
    for blocks_before in 0..3 {
        let gate = gate::close();
        let mut spool = on_disk(&[]);
        for _ in 0..blocks_before {
            spool.push(&[1; BLOCK], &[], 0);
            gate.pass_one();
            written(&mut spool).await.expect("there is room");
        }
        spool.push(&[2; BLOCK], &[], 0);
        gate.fail_one(Errno::NOSPC);
        let error = written(&mut spool).await.expect_err("the disk is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let error = room(&mut spool).await.expect_err("for good");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        spool.push(b"the last", &[], 0);
        let all = taken(&mut spool);
        assert_eq!(all.len(), (blocks_before + 1) * BLOCK + 8);
        assert!(all.ends_with(b"the last"));
        assert!(
            !spool.is_on_disk() && spool.has_room(),
            "all is gone, and with it the failure"
        );
    }
}

#[tokio::test(flavor = "local")]
async fn a_disk_that_is_really_full_is_told_as_such() {
    let directory = std::env::temp_dir().join(format!("petrel-spool-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "petrel-spool"])
        .arg(&directory)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        let test = "a_disk_that_is_really_full_is_told_as_such";
        // Directly to stdout, because the test harness captures `println!`.
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED {test}: no small tmpfs can be mounted"
        );
        let _ = std::fs::remove_dir(&directory);
        return;
    }
    let mut spool = Spool::default();
    let places = [directory.clone()];
    let result = loop {
        spool.push(&[3; 100_000], &places, 0);
        if let Err(error) = room(&mut spool).await {
            break error;
        }
        assert!(spool.pushed() < 10_000_000);
    };
    assert_eq!(result.kind(), io::ErrorKind::StorageFull);
    assert!(read_all(&mut spool, 0).await.iter().all(|byte| *byte == 3));
    drop(spool);
    // A disk thread closes the file, so unmounting may have to wait a moment.
    let mut unmounted = false;
    for _ in 0..2400 {
        let done = std::process::Command::new("umount")
            .arg(&directory)
            .output();
        unmounted = done.is_ok_and(|output| output.status.success());
        if unmounted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let _ = std::fs::remove_dir(&directory);
    assert!(unmounted, "something of it is still open");
}

#[tokio::test(flavor = "local")]
async fn a_spool_that_is_dropped_while_it_is_written_leaves_nothing_open() {
    const LENGTH: usize = 2 * BLOCK + 4321;
    let gate = gate::close();
    let before = memory::counted();
    let mut spool = on_disk(&data(LENGTH));
    assert!(poll_written(&mut spool).is_pending());
    until(|| gate.arrived() == 1).await;
    assert_eq!(memory::counted(), before + LENGTH);
    drop(spool);
    assert_eq!(memory::counted(), before);
    let at_gate = gate.watch();
    drop(gate);
    until(|| at_gate.strong_count() == 0).await;
    let is_open = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("it is there");
        let stats = descriptors.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
        // Other tests run at the same time, but no other file has this length.
        stats.into_iter().any(|stat| stat.len() == LENGTH as u64)
    };
    until(|| !is_open()).await;
}

#[tokio::test(flavor = "local")]
async fn everything_can_be_had_in_memory_again() {
    let bytes = data(limits::SPOOL_LARGE_BYTES_MAX + 300_000);
    let before = memory::counted();
    let mut spool = Spool::default();
    for part in bytes.chunks(100_000) {
        spool.push(part, &directories(), 0);
        room(&mut spool).await.expect("written");
    }
    spool.release(7);
    let recalled = poll_fn(|context| spool.poll_recall(context)).await;
    recalled.expect("it is there");
    assert!(!spool.is_on_disk());
    assert_eq!(spool.in_memory(7), Some(&bytes[7..]));
    assert_eq!(memory::counted(), before + bytes.len() - 7);
    assert_eq!(taken(&mut spool), &bytes[7..]);
    assert_eq!(memory::counted(), before);
}

#[tokio::test(flavor = "local")]
async fn what_is_passed_on_at_once_needs_neither_room_nor_a_file() {
    let gate = gate::close();
    let mut spool = on_disk(&data(BLOCK));
    assert!(poll_written(&mut spool).is_pending());
    for _ in 0..50 {
        spool.push(&[1; BLOCK / 2], &[], 0);
        spool.push(b"stays", &[], 0);
        // The block, too, is not needed any more.
        spool.release(spool.pushed() - 5);
        assert!(poll_room(&mut spool).is_ready());
    }
    assert_eq!(taken(&mut spool), b"stays");
    assert!(!spool.is_on_disk());
    drop(gate);
}
