//! A program's log lines on standard error.
//!
//! Standard error may be a pipe that is never read, or a file on a disk that hangs. So a thread of its own
//! writes the lines, and logging never waits. Lines that find no room are counted, and lines that cannot be
//! written are lost.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::limits::UNWRITTEN_LOG_BYTES_MAX;

/// The log. Clones share one log. Its thread ends with the process.
#[derive(Clone)]
pub(crate) struct Log {
    /// The beginning of each line.
    prefix: Arc<str>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there is something to write, and when everything is written.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Lines waiting to be written.
    lines: String,
    /// How many lines were dropped after `lines` because there was no room.
    missing: u64,
    is_writing: bool,
}

impl Log {
    /// Starts the log of the program `name`, with a thread that writes to `output`.
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// Logs a line. Never waits.
    pub(crate) fn line(&self, words: &str) {
        let mut state = self.shared.lock();
        let length = self.prefix.len() + words.len() + 1;
        // After one dropped line all later ones are dropped, too, so that the message with their number
        // stands at the right place.
        if state.missing > 0 || state.lines.len() + length > UNWRITTEN_LOG_BYTES_MAX {
            state.missing += 1;
        } else {
            let lines = &mut state.lines;
            lines.extend([&*self.prefix, words, "\n"]);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, but no longer than `time`.
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

    /// The thread's loop.
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
                lines += &format!("{}{missing} lines were dropped here\n", self.prefix);
            }
            // There is no other place to report a failure to.
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

/// The thread only writes, so a small stack is enough.
const STACK_BYTES: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// An output that hands each write to the test, and returns the result that the test provides.
    struct Output {
        written: Sender<String>,
        results: Receiver<io::Result<()>>,
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            // The test may have ended.
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
        // The first line is still being written.
        let words = "x".repeat(UNWRITTEN_LOG_BYTES_MAX / 4);
        for _ in 0..5 {
            log.line(&words);
        }
        // This line would fit, but it would then stand before the dropped ones.
        log.line("short");
        result.send(Ok(())).expect("it waits");
        let text = next(&written);
        assert_eq!(text.matches(&words).count(), 3);
        assert!(text.ends_with("x\npetrel test: 3 lines were dropped here\n"));
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
