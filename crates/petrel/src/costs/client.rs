//! The client of the private instance. It sends requests on one connection, and knows that a response is
//! complete when the instance reports the request.

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use engine::clock;
use engine::ledger::Nanos;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::instance::EntrancePlace;
use super::reporter::RequestReport;
use crate::keeper::signals::Signals;

/// A client with its connection.
pub(super) struct CostsClient<'a> {
    place: &'a EntrancePlace,
    request: &'a [u8],
    reports: &'a mut BufReader<PipeReader>,
    signals: &'a Signals,
    stream: Option<Box<dyn ClientStream>>,
}

trait ClientStream: Read + Write + AsFd + Send {}

impl<T: Read + Write + AsFd + Send> ClientStream for T {}

/// What ended a wait.
enum Woken {
    /// A report has come.
    Report,
    /// The connection has something to read, or room.
    Stream,
    /// A signal that is not for the client.
    Signal,
}

/// A request that was answered.
#[derive(Clone, Debug)]
pub(super) struct AnsweredRequest {
    /// What the instance reported.
    pub(super) report: RequestReport,
    /// From the beginning to when the instance was idle again.
    pub(super) window: (Nanos, Nanos),
}

impl<'a> CostsClient<'a> {
    /// A client that is not connected.
    pub(super) fn new(
        place: &'a EntrancePlace,
        request: &'a [u8],
        reports: &'a mut BufReader<PipeReader>,
        signals: &'a Signals,
    ) -> CostsClient<'a> {
        CostsClient {
            place,
            request,
            reports,
            signals,
            stream: None,
        }
    }

    /// Sends the request once, connecting first if the last response closed the connection.
    ///
    /// # Errors
    /// The instance ended or did not answer in time, or this process was told to stop.
    pub(super) fn ask(&mut self) -> io::Result<AnsweredRequest> {
        let begin = clock::thread_now();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.connect()?,
        };
        let mut unsent = self.request;
        let mut is_open = true;
        let mut answer = Vec::new();
        let mut silent_since = begin;
        let line = loop {
            while !unsent.is_empty() && is_open {
                match stream.write(unsent) {
                    Ok(count) => unsent = unsent.get(count..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The server may answer and close before it has read everything.
                    Err(_) => unsent = &[],
                }
            }
            let wants_room = !unsent.is_empty();
            let stream_fd = is_open.then(|| stream.as_fd());
            let woken = self.wait(stream_fd, wants_room, silent_since);
            match woken.map_err(|error| explained(error, is_open, &answer))? {
                Woken::Report => {
                    let mut line = String::new();
                    self.reports.read_line(&mut line)?;
                    break line;
                }
                Woken::Stream => {
                    is_open = takes_everything(&mut stream, &mut answer);
                    silent_since = clock::thread_now();
                }
                Woken::Signal => {}
            }
        };
        // What the worker does when it has sent the response: it closes, or returns to its wait.
        std::thread::sleep(SETTLING_TIME);
        if is_open && takes_everything(&mut stream, &mut answer) {
            self.stream = Some(stream);
        }
        let report = RequestReport::parse(line.trim_end());
        let report = report.ok_or_else(|| io::Error::other("the private instance has ended"))?;
        Ok(AnsweredRequest {
            report,
            window: (begin, clock::thread_now()),
        })
    }

    fn connect(&self) -> io::Result<Box<dyn ClientStream>> {
        Ok(match self.place {
            EntrancePlace::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            EntrancePlace::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }

    /// Waits for the response or the report. Nothing was heard of them since `silent_since`: signals, of which
    /// each stop of a traced thread sends one, do not make the wait longer.
    fn wait(
        &self,
        stream: Option<BorrowedFd<'_>>,
        wants_room: bool,
        silent_since: Nanos,
    ) -> io::Result<Woken> {
        if !self.reports.buffer().is_empty() {
            return Ok(Woken::Report);
        }
        let (reports, signals) = (self.reports.get_ref().as_fd(), self.signals.as_fd());
        let mut polled = vec![
            PollFd::new(&reports, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
        ];
        let wanted = match wants_room {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        polled.extend(stream.iter().map(|stream| PollFd::new(stream, wanted)));
        let patience = match stream {
            Some(_) => PATIENCE,
            None => PATIENCE_AFTER_CLOSE,
        };
        let silent = Duration::from_nanos(clock::thread_now().saturating_sub(silent_since));
        let left = patience.saturating_sub(silent);
        let limit = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut polled, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |position: usize| {
            let polled = polled.get(position);
            polled.is_some_and(|polled| !polled.revents().is_empty())
        };
        let woken = match (is_ready(0), is_ready(2)) {
            (true, _) => Woken::Report,
            (_, true) => Woken::Stream,
            _ if left.is_zero() => {
                let message = format!("no response within {} s", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            _ => Woken::Signal,
        };
        while let Some(received) = self.signals.next() {
            if matches!(
                received.signal,
                Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP
            ) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
            }
        }
        Ok(woken)
    }
}

/// The error of a wait. A head that the server refuses reaches no hook, so there is no report, and the server
/// closes the connection.
fn explained(error: io::Error, is_open: bool, answer: &[u8]) -> io::Error {
    if is_open || error.kind() != io::ErrorKind::TimedOut {
        return error;
    }
    let line = answer
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    io::Error::other(format!(
        "the server refuses the request before any rule looks at it: {:?}",
        String::from_utf8_lossy(line)
    ))
}

/// Reads what has arrived, and keeps the beginning in `answer`. Returns whether the connection is still open.
fn takes_everything(stream: &mut Box<dyn ClientStream>, answer: &mut Vec<u8>) -> bool {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => {
                let room = ANSWER_BYTES - answer.len();
                answer.extend(buffer.iter().take(count.min(room)));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// How long the instance gets to become idle after a response.
const SETTLING_TIME: Duration = Duration::from_millis(20);
/// How long it may send nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the report of a request may take once the server has closed the connection.
const PATIENCE_AFTER_CLOSE: Duration = Duration::from_secs(5);
/// How much of an answer is kept: its first line is in it.
const ANSWER_BYTES: usize = 128;
const BUFFER_BYTES: usize = 64 * 1024;
