use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use petrel_proto::method::Method;
use petrel_proto::recording::layout::{AT_VERSION, REGIONS};
use petrel_proto::recording::{KEPT, ReadError, Record, RecordFlag, Recording};

use super::memory::SharedMemory;
use super::record::Finished;
use super::source::FileSource;
use super::writer::{Recorder, RecorderSize};
use crate::ledger::{Ledger, Nanos, Stage};
use crate::request_id::RequestId;

const SIZE: RecorderSize = RecorderSize {
    bytes: 256 << 10,
    slowest: 4,
};

fn recorder(memory: &SharedMemory) -> Recorder {
    let recorder = Recorder::new(memory, SIZE, 0).expect("it is on");
    recorder.tick(1_000_000_000_000, 0);
    recorder
}

/// Reads the memory as a program does that has its descriptor.
fn read(descriptor: OwnedFd) -> Result<Recording, ReadError> {
    Recording::read(&FileSource(&File::from(descriptor)))
}

fn add(recorder: &Recorder, id: u64, host: &str, status: u16, took: Nanos) {
    let mut ledger = Ledger::default();
    ledger.start(id * 1_000_000);
    ledger.stamp(Stage::Stat, id * 1_000_000 + took);
    let finished = Finished {
        id: RequestId::from_bits(id),
        ledger: &ledger,
        method: Method::Get,
        status,
        cause: 0,
        flags: RecordFlag::Own as u8,
        client: 7,
        sent_bytes: 100,
        host: host.as_bytes(),
        path: b"/x",
        answered_by: b"",
    };
    let note = [(Stage::Stat, took, "/mnt hangs")];
    let waits = if took > 1_000_000_000 { &note[..] } else { &[] };
    recorder.add(&finished, waits.iter().copied());
}

fn ids(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.id.to_bits()).collect()
}

#[test]
fn a_flood_of_404_leaves_the_5xx_and_the_slow_ones() {
    let (memory, descriptor) = SharedMemory::create(SIZE.bytes).expect("memfd");
    let recorder = recorder(&memory.beside(vec![]));
    add(&recorder, 1, "a.example", 503, 10);
    add(&recorder, 2, "a.example", 200, 2_000_000_000);
    add(&recorder, 3, "b.example", 200, 20);
    for id in 4..20_000 {
        add(&recorder, id, "c.example", 404, 10 + id % 7);
    }
    let recording = read(descriptor).expect("it is one");
    let [worker] = recording.workers.as_slice() else {
        panic!("one worker")
    };
    assert_eq!((worker.process, worker.worker), (std::process::id(), 0));
    assert_eq!(ids(&worker.errors), [1]);
    assert_eq!(ids(&worker.refusals).last(), Some(&19_999));
    assert!(worker.recent.len() > 500 && worker.refusals.len() > 100);
    let in_order = ids(&worker.recent)
        .windows(2)
        .all(|two| two[0] + 1 == two[1]);
    assert!(in_order && ids(&worker.recent).last() == Some(&19_999));
    let of = |host: &str| -> Vec<u64> {
        let of_host = |record: &&Record| *record.host == *host.as_bytes();
        let mut found: Vec<_> = worker.slow.iter().filter(of_host).collect();
        found.sort_by_key(|record| std::cmp::Reverse(record.total));
        found.iter().map(|record| record.total).collect()
    };
    assert_eq!(of("a.example"), [2_000_000_000, 10]);
    assert_eq!((of("b.example"), of("c.example")), (vec![20], vec![16; 4]));
    let all = recording.all();
    let slowest = memory.slowest();
    assert_eq!(slowest.workers[0].slow, worker.slow);
    assert!(slowest.workers[0].recent.is_empty());
    let slow = all
        .iter()
        .find(|record| record.id.to_bits() == 2)
        .expect("it is kept");
    assert_eq!(*slow.waits[0].holder, *b"/mnt hangs");
    assert_eq!(slow.started, 1_000_002_000_000);
}

#[test]
fn records_of_a_process_that_has_ended_are_found_after_it() {
    let (memory, descriptor) = SharedMemory::create(SIZE.bytes).expect("memfd");
    add(&recorder(&memory.beside(vec![])), 1, "a", 200, 10);
    // To this test the region's owner is this process itself, so the next one takes another region.
    let second = recorder(&memory.beside(vec![]));
    add(&second, 2, "a", 200, 10);
    second.works_for(RequestId::from_bits(3), 5, b"/long/path/of/a/file.html");
    let recording = read(descriptor).expect("it is one");
    assert_eq!(recording.all().len(), 2);
    let now = recording.workers[1].now.as_ref().expect("a request");
    assert_eq!(
        (now.id.to_bits(), &*now.path),
        (3, &b"/long/path/of/a/"[..])
    );
    second.works_for(RequestId::from_bits(4), 5, b"/");
    let now = || memory.slowest().workers[1].now.clone();
    assert_eq!(now().map(|now| now.id.to_bits()), Some(4));
    second.ended(RequestId::from_bits(3));
    assert_eq!(now().map(|now| now.id.to_bits()), Some(4), "it goes on");
    second.ended(RequestId::from_bits(4));
    assert_eq!(now(), None);
}

#[test]
fn slow_requests_are_forgotten_after_an_hour() {
    let (memory, descriptor) = SharedMemory::create(SIZE.bytes).expect("memfd");
    let recorder = recorder(&memory.beside(vec![]));
    (1..=4).for_each(|id| add(&recorder, id, "a", 200, 1_000_000));
    add(&recorder, 5, "a", 200, 10);
    recorder.tick(0, 3_700_000_000_000);
    add(&recorder, 6, "a", 200, 10);
    let recording = read(descriptor).expect("it is one");
    let slow = ids(&recording.workers[0].slow);
    assert!(slow.contains(&6) && !slow.contains(&5), "{slow:?}");
    let shown = |now: u64| recording.slowest(now).len();
    let ended = 1_000_000_000_000;
    assert_eq!(
        (
            shown(ended),
            shown(ended + KEPT / 2),
            shown(ended + 2 * KEPT)
        ),
        (4, 4, 0)
    );
}

#[test]
fn the_smallest_size_and_no_slots_work_and_0_is_off() {
    for (bytes, slowest) in [(1, 8), (1, 0), (64 << 10, 0), (64 << 10, 60_000)] {
        let (memory, descriptor) = SharedMemory::create(bytes).expect("memfd");
        let size = RecorderSize { bytes, slowest };
        let recorder = Recorder::new(&memory.beside(vec![]), size, 4096).expect("it is on");
        (1..2000).for_each(|id| add(&recorder, id, "a", 500, id));
        let recording = read(descriptor).expect("it is one");
        let worker = &recording.workers[0];
        assert_eq!(ids(&worker.recent).last(), Some(&1999));
        assert_eq!(ids(&worker.errors).last(), Some(&1999));
    }
    let size = RecorderSize {
        bytes: 0,
        slowest: 8,
    };
    assert!(Recorder::new(&SharedMemory::private(), size, 0).is_none());
}

#[test]
fn another_version_a_cut_file_and_damage_are_told_or_left_out() {
    let (memory, descriptor) = SharedMemory::create(SIZE.bytes).expect("memfd");
    let recorder = recorder(&memory.beside(vec![]));
    (1..500).for_each(|id| add(&recorder, id, "a.example", 200 + id as u16, id));
    let file = File::from(descriptor);
    let used = (REGIONS + 2 * SIZE.bytes / 8) * 8;
    let mut bytes = vec![0; used];
    file.read_exact_at(&mut bytes, 0).expect("it is there");
    assert!(
        !Recording::read(bytes.as_slice())
            .expect("whole")
            .all()
            .is_empty()
    );
    for end in (0..bytes.len()).step_by(4093) {
        let _ = Recording::read(&bytes[..end]);
    }
    assert!(matches!(
        Recording::read(&bytes[..0]),
        Err(ReadError::Io(_))
    ));
    let mut other = bytes.clone();
    other[AT_VERSION * 8] = 99;
    let error = Recording::read(other.as_slice()).expect_err("another version");
    assert!(matches!(error, ReadError::OtherVersion(99)));
    other[0] = b'x';
    let error = Recording::read(other.as_slice()).expect_err("another file");
    assert!(matches!(error, ReadError::NoRecorder));
    let mut state = 1_u64;
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        for _ in 0..20 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Header and directory matter most.
            let range = if state >> 63 == 0 { 256 } else { used as u64 };
            damaged[((state >> 20) % range) as usize] = (state >> 52) as u8;
        }
        let _ = Recording::read(damaged.as_slice());
    }
}
