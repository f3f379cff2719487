//! Reading what was recorded: by a program that has only the memory's descriptor, while workers write.
//!
//! Everything here may be wrong: of another version, cut short, half written, or overwritten by a process
//! with a defect. Whatever it is, the result is records or an error.

use std::fmt;
use std::io;

use super::layout::{
    AT_COUNT, AT_ENTRIES, AT_MAGIC, AT_VERSION, ENTRIES_MAX, ENTRY_COUNT, ENTRY_KIND, ENTRY_LAYOUT,
    ENTRY_OFFSET, ENTRY_OWNER, ENTRY_WORDS, HEADER_WORDS, LAYOUT_VERSION, MAGIC, REGIONS, RING,
};
use super::record::{Record, decode};
use super::region::{
    AT_ERRORS_STATE, AT_NOW, AT_RECENT_STATE, AT_REFUSALS_STATE, AT_WORKER, Area, Areas, NOW_ID,
    NOW_STARTED, NOW_TARGET, REGION_HEADER_WORDS, SLOT_WORDS, count_in_slot,
};
use super::request_id::RequestId;
use super::ring::{RESERVED, STATE_WORDS, WRITTEN, read_back};
use super::stage::Nanos;

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

/// Memory that was copied.
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

/// How long the slowest requests are kept, and shown.
pub const KEPT: Nanos = 3_600_000_000_000;
