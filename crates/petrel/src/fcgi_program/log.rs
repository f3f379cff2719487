//! What a program says on standard error.
//!
//! That may be a pipe that nobody reads, or a file on a disk that hangs. So a thread of its own writes, and those who
//! have something to say never wait: what has no room is counted, and what cannot be written is lost.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::limits::UNWRITTEN_LOG_BYTES_MAX;

/// The log. Clones are the same one; its thread ends with the process.
#[derive(Clone)]
pub(crate) struct Log {
    /// What lines begin with.
    prefix: Arc<str>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or everything is written.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Lines that are to be written.
    lines: String,
    /// Lines that would have come behind them, and had no room.
    missing: u64,
    is_writing: bool,
}

impl Log {
    /// A log of the program `name`, which a thread writes to `output`.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(name: &str, output: impl Write + Send + 'static) -> io::Result<Log> {
        let log = Log {
            prefix: format!("petrel {name}: ").into(),
            shared: Arc::default(),
        };
        let writer = log.clone();
        let thread = std::thread::Builder::new().name("log".to_owned());
        let thread = thread.stack_size(STACK_BYTES);
        thread.spawn(move || writer.write(output))?;
        Ok(log)
    }

    /// A line. Never waits.
    pub(crate) fn line(&self, words: &str) {
        let mut state = self.shared.lock();
        let length = self.prefix.len() + words.len() + 1;
        // Behind what is missing comes nothing but the number, so that it stands where the lines would.
        if state.missing > 0 || state.lines.len() + length > UNWRITTEN_LOG_BYTES_MAX {
            state.missing += 1;
        } else {
            let lines = &mut state.lines;
            lines.extend([&*self.prefix, words, "\n"]);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, for `time` at most.
    pub(crate) fn finish(&self, time: Duration) {
        let state = self.shared.lock();
        let is_busy = |state: &mut State| state.is_writing || state.has_words();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, time, is_busy)
            .expect(NO_PANIC);
        drop(waited);
    }

    /// The life of the thread.
    fn write(&self, mut output: impl Write) {
        let mut state = self.shared.lock();
        loop {
            let is_idle = |state: &mut State| !state.has_words();
            state = self
                .shared
                .changed
                .wait_while(state, is_idle)
                .expect(NO_PANIC);
            let mut lines = std::mem::take(&mut state.lines);
            let missing = std::mem::take(&mut state.missing);
            state.is_writing = true;
            drop(state);
            if missing > 0 {
                lines += &format!("{}{missing} lines are missing here\n", self.prefix);
            }
            // There is nobody else to tell.
            let _ = output.write_all(lines.as_bytes());
            state = self.shared.lock();
            state.is_writing = false;
            self.shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(NO_PANIC)
    }
}

impl State {
    fn has_words(&self) -> bool {
        !self.lines.is_empty() || self.missing > 0
    }
}

const NO_PANIC: &str = "a panic ends the process";

/// It does nothing but write.
const STACK_BYTES: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Tells what is written, and says how that ended when it is told to.
    struct Output {
        written: Sender<String>,
        results: Receiver<io::Result<()>>,
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            // The test may be over.
            let _ = self.written.send(text);
            match self.results.recv() {
                Ok(result) => result.map(|()| bytes.len()),
                Err(_) => Ok(bytes.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log() -> (Log, Receiver<String>, Sender<io::Result<()>>) {
        let (written, is_written) = mpsc::channel();
        let (result, results) = mpsc::channel();
        let log = Log::start("test", Output { written, results }).expect("a thread");
        (log, is_written, result)
    }

    fn next(written: &Receiver<String>) -> String {
        written.recv_timeout(LONG).expect("it is written")
    }

    #[test]
    fn lines_that_have_no_room_are_counted_in_their_place() {
        let (log, written, result) = log();
        log.line("first");
        assert_eq!(next(&written), "petrel test: first\n");
        // It is still being written.
        let words = "x".repeat(UNWRITTEN_LOG_BYTES_MAX / 4);
        for _ in 0..5 {
            log.line(&words);
        }
        // Short as it is: it would stand before its time.
        log.line("short");
        result.send(Ok(())).expect("it waits");
        let text = next(&written);
        assert_eq!(text.matches(&words).count(), 3);
        assert!(text.ends_with("x\npetrel test: 3 lines are missing here\n"));
        result.send(Ok(())).expect("it waits");
        log.line("then");
        assert_eq!(next(&written), "petrel test: then\n");
    }

    #[test]
    fn what_cannot_be_written_is_lost_and_what_comes_then_is_not() {
        let (log, written, result) = log();
        log.line("lost");
        assert_eq!(next(&written), "petrel test: lost\n");
        result
            .send(Err(io::ErrorKind::BrokenPipe.into()))
            .expect("it waits");
        log.line("then");
        assert_eq!(next(&written), "petrel test: then\n");
    }

    #[test]
    fn the_end_waits_for_the_last_line_and_not_for_ever() {
        let (log, written, result) = log();
        log.finish(LONG);
        log.line("last");
        log.finish(Duration::ZERO);
        assert_eq!(next(&written), "petrel test: last\n");
        log.finish(Duration::from_millis(1));
        drop(result);
        log.finish(LONG);
        assert!(!log.shared.lock().is_writing);
    }
}
