//! Reading what was recorded: by a program that has only the memory's descriptor, while workers write.
//!
//! Everything here may be wrong: of another version, cut short, half written, or overwritten by a process
//! with a defect. Whatever it is, the result is records or an error.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Acquire;

use petrel_sys::shared_memory::Words;

use super::memory::{
    AT_COUNT, AT_ENTRIES, AT_MAGIC, AT_VERSION, ENTRIES_MAX, ENTRY_COUNT, ENTRY_KIND, ENTRY_LAYOUT,
    ENTRY_OFFSET, ENTRY_OWNER, ENTRY_WORDS, HEADER_WORDS, LAYOUT_VERSION, MAGIC, REGIONS, RING,
};
use super::record::{Record, decode};
use super::ring::{RESERVED, STATE_WORDS, WRITTEN, read_back};
use super::writer::{
    AT_ERRORS_STATE, AT_NOW, AT_RECENT_STATE, AT_REFUSALS_STATE, AT_WORKER, Area, Areas, KEPT,
    NOW_ID, NOW_STARTED, NOW_TARGET, REGION_HEADER_WORDS, SLOT_WORDS, count_in_slot,
};
use crate::request_id::RequestId;

/// Memory that can be read word by word.
pub trait Source {
    /// How many bytes there are.
    ///
    /// # Errors
    /// It cannot be read.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads the words from number `at` on.
    ///
    /// # Errors
    /// It cannot be read, or ends before.
    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()>;
}

/// What the workers of a server have recorded.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// What each worker has recorded, in the order in which they were started.
    pub workers: Vec<WorkerRecording>,
}

/// What one worker, and before it perhaps workers of earlier server processes, have recorded.
#[derive(Clone, Debug, Default)]
pub struct WorkerRecording {
    /// The server process, or the last one.
    pub process: u32,
    /// The number of the worker in it.
    pub worker: u16,
    /// The last requests, the oldest first.
    pub recent: Vec<Record>,
    /// The last responses with a status of 500 or more, the oldest first.
    pub errors: Vec<Record>,
    /// The last responses of Petrel's own with a status from 400 to 499, the oldest first.
    pub refusals: Vec<Record>,
    /// The slowest requests of each host, in no order.
    pub slow: Vec<Record>,
    /// The request for which the worker worked last. `None`: that one has ended.
    pub now: Option<NowRecord>,
}

/// The request for which a worker worked last, which has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NowRecord {
    /// Its id.
    pub id: RequestId,
    /// When it began, in nanoseconds since 1970.
    pub started: u64,
    /// The beginning of its path.
    pub path: Box<[u8]>,
}

/// Why there are no records.
#[derive(Debug)]
pub enum ReadError {
    /// This is not the memory of a recorder.
    NoRecorder,
    /// It has a layout that this program does not know.
    OtherVersion(u64),
    /// It cannot be read, or is cut short.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NoRecorder => f.write_str("this is no recorder's memory"),
            ReadError::OtherVersion(version) => write!(
                f,
                "the recorder's memory has layout {version}, and this program reads layout {LAYOUT_VERSION}: use the \
                 program that the server was started with, or restart the server"
            ),
            ReadError::Io(error) => write!(f, "the recorder's memory: {error}"),
        }
    }
}

impl std::error::Error for ReadError {}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl Recording {
    /// Reads all records from `source`.
    ///
    /// # Errors
    /// There is no recorder's memory of this version. Damaged parts are left out.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Recording, ReadError> {
        Recording::read_parts(source, Parts::All)
    }

    /// Reads from `source` only the slowest requests and those for which the workers work: a quarter of the memory
    /// of a worker, and most of the time less.
    ///
    /// # Errors
    /// As for [`Recording::read`].
    pub fn read_slowest(source: &(impl Source + ?Sized)) -> Result<Recording, ReadError> {
        Recording::read_parts(source, Parts::Slowest)
    }

    fn read_parts(source: &(impl Source + ?Sized), parts: Parts) -> Result<Recording, ReadError> {
        let mut header = [0; HEADER_WORDS];
        source.read(0, &mut header)?;
        if header[AT_MAGIC] != MAGIC {
            return Err(ReadError::NoRecorder);
        }
        if header[AT_VERSION] != LAYOUT_VERSION {
            return Err(ReadError::OtherVersion(header[AT_VERSION]));
        }
        let words = source.bytes()? / 8;
        let count = usize::try_from(header[AT_COUNT].min(words)).unwrap_or(usize::MAX);
        let used = usize::try_from(header[AT_ENTRIES]).unwrap_or(usize::MAX);
        let mut directory = vec![0; used.min(ENTRIES_MAX) * ENTRY_WORDS];
        source.read(HEADER_WORDS, &mut directory)?;
        let (entries, _) = directory.as_chunks::<ENTRY_WORDS>();
        let mut rings: Vec<_> = entries
            .iter()
            .filter(|entry| entry[ENTRY_KIND] == RING)
            .collect();
        rings.sort_by_key(|entry| entry[ENTRY_LAYOUT]);
        let mut workers = Vec::new();
        // Regions that lie over each other would be read again and again.
        let mut left = count;
        for entry in rings {
            let number = |at: usize| usize::try_from(entry[at]).ok();
            let (Some(at), Some(size)) = (number(ENTRY_OFFSET), number(ENTRY_COUNT)) else {
                continue;
            };
            let is_inside = at >= REGIONS && at.checked_add(size).is_some_and(|end| end <= count);
            if !is_inside || size > left || size < REGION_HEADER_WORDS {
                continue;
            }
            left -= size;
            let process = entry[ENTRY_OWNER] as u32;
            workers.extend(worker(source, at, size, process, parts)?);
        }
        Ok(Recording { workers })
    }

    /// The slowest requests of the hour before `now`, in nanoseconds since 1970: the slowest first, each with the
    /// number of its worker. Slots keep older ones until others come.
    pub fn slowest(&self, now: u64) -> Vec<(u16, &Record)> {
        let since = now.saturating_sub(KEPT);
        let workers = self.workers.iter();
        let mut slowest: Vec<_> = workers
            .flat_map(|worker| worker.slow.iter().map(|record| (worker.worker, record)))
            .filter(|(_, record)| record.started.saturating_add(record.total) >= since)
            .collect();
        slowest.sort_by_key(|(_, record)| std::cmp::Reverse((record.total, record.id.to_bits())));
        slowest
    }

    /// All records once, the oldest first.
    pub fn all(&self) -> Vec<&Record> {
        let workers = self.workers.iter();
        once(workers.flat_map(WorkerRecording::all).collect())
    }
}

impl WorkerRecording {
    fn all(&self) -> impl Iterator<Item = &Record> {
        let errors = self.errors.iter().chain(&self.refusals);
        self.recent.iter().chain(errors).chain(&self.slow)
    }

    /// All records of the worker once, the oldest first.
    pub fn all_once(&self) -> Vec<&Record> {
        once(self.all().collect())
    }
}

/// The same request may be in several areas.
fn once(mut records: Vec<&Record>) -> Vec<&Record> {
    records.sort_by_key(|record| (record.started, record.id.to_bits()));
    records.dedup_by_key(|record| record.id);
    records
}

/// What is read of a region.
#[derive(Clone, Copy)]
enum Parts {
    All,
    Slowest,
}

/// The records in a region, if it has any.
fn worker(
    source: &(impl Source + ?Sized),
    at: usize,
    size: usize,
    process: u32,
    parts: Parts,
) -> io::Result<Option<WorkerRecording>> {
    let mut before = [0; REGION_HEADER_WORDS];
    source.read(at, &mut before)?;
    let Some(areas) = Areas::read(&before, size) else {
        return Ok(None);
    };
    let ring = |area: Area, state: usize| -> io::Result<Vec<Record>> {
        let mut words = vec![0; area.count];
        let mut first = [0; STATE_WORDS];
        source.read(at + state, &mut first)?;
        source.read(at + area.at, &mut words)?;
        let mut then = [0; STATE_WORDS];
        source.read(at + state, &mut then)?;
        let mut records = Vec::new();
        read_back(&words, first[WRITTEN], then[RESERVED], |words| {
            records.extend(decode(words));
            true
        });
        records.reverse();
        Ok(records)
    };
    let mut recording = WorkerRecording {
        process,
        worker: before[AT_WORKER] as u16,
        slow: slots(source, at + areas.slow.at, areas.slow.count)?,
        now: now(&before),
        ..WorkerRecording::default()
    };
    if let Parts::All = parts {
        recording.recent = ring(areas.recent, AT_RECENT_STATE)?;
        recording.errors = ring(areas.errors, AT_ERRORS_STATE)?;
        recording.refusals = ring(areas.refusals, AT_REFUSALS_STATE)?;
    }
    Ok(Some(recording))
}

fn slots(source: &(impl Source + ?Sized), at: usize, count: usize) -> io::Result<Vec<Record>> {
    let mut words = vec![0; count];
    source.read(at, &mut words)?;
    let mut records = Vec::new();
    for (number, slot) in words.as_chunks::<SLOT_WORDS>().0.iter().enumerate() {
        let Some(count) = count_in_slot(slot[0]) else {
            continue;
        };
        // The worker may have changed it while it was copied.
        let mut state = [0];
        source.read(at + number * SLOT_WORDS, &mut state)?;
        if state[0] == slot[0] {
            records.extend(slot.get(1..1 + count).and_then(decode));
        }
    }
    Ok(records)
}

fn now(header: &[u64; REGION_HEADER_WORDS]) -> Option<NowRecord> {
    let now = &header[AT_NOW..];
    let target = [now[NOW_TARGET], now[NOW_TARGET + 1]].map(u64::to_le_bytes);
    let target = target.as_flattened();
    let is_path = |byte: &u8| *byte != 0 && *byte != b'?';
    let length = target.iter().take_while(|byte| is_path(byte)).count();
    (now[NOW_ID] != 0).then(|| NowRecord {
        id: RequestId::from_bits(now[NOW_ID]),
        started: now[NOW_STARTED],
        path: target[..length].into(),
    })
}

impl Source for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()> {
        let mut bytes = [0; 64 * 1024];
        let mut position = at as u64 * 8;
        for part in into.chunks_mut(bytes.len() / 8) {
            let bytes = &mut bytes[..part.len() * 8];
            self.read_exact_at(bytes, position)?;
            position += bytes.len() as u64;
            for (word, bytes) in part.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }
}

/// The memory itself, in a process that has it.
impl Source for Words {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64 * 8)
    }

    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()> {
        let words = at.checked_add(into.len()).and_then(|end| self.get(at..end));
        let words = words.ok_or(io::ErrorKind::UnexpectedEof)?;
        for (into, word) in into.iter_mut().zip(words) {
            // What is read later is not older: a reader looks again at what tells whether a record is whole.
            *into = word.load(Acquire);
        }
        Ok(())
    }
}

/// Memory that is not shared, for tests.
impl Source for [u8] {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()> {
        let bytes = self.get(at.saturating_mul(8)..).unwrap_or_default();
        let (words, _) = bytes.as_chunks();
        let words = words
            .get(..into.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        for (word, bytes) in into.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::method::Method;

    use super::super::memory::SharedMemory;
    use super::super::record::{Finished, RecordFlag};
    use super::super::writer::{Recorder, RecorderSize};
    use super::*;
    use crate::ledger::{Ledger, Nanos, Stage};

    const SIZE: RecorderSize = RecorderSize {
        bytes: 256 << 10,
        slowest: 4,
    };

    fn recorder(memory: &SharedMemory) -> Recorder {
        let recorder = Recorder::new(memory, SIZE, 0).expect("it is on");
        recorder.tick(1_000_000_000_000, 0);
        recorder
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
        let recording = Recording::read(&File::from(descriptor)).expect("it is one");
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
        let recording = Recording::read(&File::from(descriptor)).expect("it is one");
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
        let recording = Recording::read(&File::from(descriptor)).expect("it is one");
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
            let recording = Recording::read(&File::from(descriptor)).expect("it is one");
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
}
