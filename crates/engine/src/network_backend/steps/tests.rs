use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::sync::{Arc, Mutex};

use super::*;

const STEP: u64 = READ_AHEAD_STEP_BYTES as u64;

#[test]
fn steps_lie_where_those_of_other_reads_lie() {
    let all: Vec<_> = steps(STEP / 4..2 * STEP + 1).collect();
    assert_eq!(
        all,
        [STEP / 4..STEP, STEP..2 * STEP, 2 * STEP..2 * STEP + 1]
    );
    assert_eq!(steps(7..7).count(), 0);
    assert_eq!(steps(u64::MAX - 1..u64::MAX).count(), 1);
}

/// A queue whose reads end when the test says so. Waiting for it always works.
struct Scripted {
    /// Which of the reads under way ends next, counted from the one that began last.
    next: fn(usize) -> usize,
    flying: Vec<Read>,
    begun: Arc<Mutex<Vec<u64>>>,
    readable: PipeReader,
    _writer: PipeWriter,
}

impl Scripted {
    fn new(next: fn(usize) -> usize) -> (Scripted, Arc<Mutex<Vec<u64>>>) {
        let begun = Arc::default();
        let (readable, mut writer) = pipe().expect("a pipe");
        writer.write_all(b"!").expect("room");
        let queue = Scripted {
            next,
            flying: Vec::new(),
            begun: Arc::clone(&begun),
            readable,
            _writer: writer,
        };
        (queue, begun)
    }
}

impl ReadQueue for Scripted {
    fn submit(&mut self, read: Read) -> Result<(), (Read, io::Error)> {
        self.begun.lock().expect("no panic").push(read.offset);
        self.flying.push(read);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    fn completed(&mut self, done: &mut Vec<Done>) {
        let ends = (self.next)(self.flying.len());
        let read = self.flying.remove(self.flying.len() - 1 - ends);
        // Marks in the list of begun reads when a read ended.
        self.begun.lock().expect("no panic").push(u64::MAX);
        done.push(Done {
            token: read.token,
            buffer: read.buffer,
            result: Ok(1),
        });
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn capacity(&self) -> usize {
        READ_AHEAD_STEPS
    }
}

fn some_file(content: &[u8]) -> SharedDescriptor {
    let path = std::env::temp_dir().join(format!(
        "petrel-steps-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&path, content).expect("there is room");
    let file = File::open(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is there");
    Arc::new(file)
}

#[test]
fn the_next_step_is_asked_for_when_any_has_come() {
    // The read that began last ends first, as if the disk's head came from behind.
    let (queue, begun) = Scripted::new(|_| 0);
    let mut watch = StepWatch::with(Box::new(queue)).expect("memory");
    let range = 0..4 * STEP;
    watch.bring(&some_file(b"short"), range).expect("brought");
    let begun = begun.lock().expect("no panic").clone();
    let [a, b, c, d] = [STEP - 1, 2 * STEP - 1, 3 * STEP - 1, 4 * STEP - 1];
    const END: u64 = u64::MAX;
    assert_eq!(begun, [a, b, END, c, END, d, END, END]);
}

#[test]
fn a_watch_is_used_again_and_again() {
    let (queue, begun) = Scripted::new(|flying| flying - 1);
    let mut watch = StepWatch::with(Box::new(queue)).expect("memory");
    for _ in 0..3 {
        watch
            .bring(&some_file(b""), 5..2 * STEP + 9)
            .expect("brought");
    }
    let reads = begun.lock().expect("no panic").clone();
    assert_eq!(reads.iter().filter(|read| **read != u64::MAX).count(), 9);
    assert_eq!(watch.buffers.len(), READ_AHEAD_STEPS);
}

#[test]
fn what_is_read_is_what_is_there_in_both_ways() {
    let content: Vec<u8> = (0..5_000_000_u32)
        .map(|place| u8::try_from((place / 251 + place) % 256).expect("a byte"))
        .collect();
    let file = some_file(&content);
    let lengths = [
        1,
        100_000,
        READ_AHEAD_STEP_BYTES,
        2 * READ_AHEAD_STEP_BYTES + 1,
        3_000_000,
        6_000_000,
    ];
    for offset in [0, 1, 131_072, 4_999_999, 5_000_000, 9_000_000] {
        for length in lengths {
            let from = content.get(offset..).unwrap_or_default();
            let expected = from.get(..length).unwrap_or(from);
            for is_local in [true, false] {
                let chunk = read_chunk(&Arc::default(), &file, offset as u64, length, is_local)
                    .expect("read");
                assert!(
                    chunk.offset == offset as u64 && chunk.bytes == expected,
                    "{offset} {length} {is_local}: {} bytes",
                    chunk.bytes.len()
                );
            }
        }
    }
}
