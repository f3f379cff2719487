//! A Redis that delays every reply to GET by a given time.
//!
//! It understands enough of RESP for client libraries: it receives arrays of bulk strings, replies to GET
//! with a value when its time has come, in order, and to all other commands with an error at once. One queue
//! holds all waiting requests, because each waits equally long.

use super::responder::{accept_one, tell};
use memchr::memchr;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Serves until the process is ended. `control` reports connections and GETs, including those that still
/// wait.
pub fn serve(
    listener: &OwnedFd,
    control: Option<&OwnedFd>,
    delay: Duration,
) -> rustix::io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |socket: &OwnedFd, key| {
        let data = epoll::EventData::new_u64(key);
        epoll::add(&epoll, socket, data, epoll::EventFlags::IN)
    };
    add(listener, LISTENER)?;
    if let Some(control) = control {
        add(control, CONTROL)?;
    }
    let mut store = Store {
        connections: HashMap::new(),
        waiting: VecDeque::new(),
        delay,
        gets: 0,
    };
    let (mut events, mut key_next) = (Vec::with_capacity(EVENTS_MAX), CONNECTION_FIRST);
    loop {
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&epoll, room, store.timeout().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => {
                    while let Some(socket) = accept_one(listener)? {
                        add(&socket, key_next)?;
                        store.connections.insert(key_next, (socket, Vec::new()));
                        key_next += 1;
                    }
                }
                CONTROL => tell(control, key_next - CONNECTION_FIRST, store.gets)?,
                key => store.drive(key),
            }
        }
        store.answer_what_is_due();
    }
}

struct Store {
    /// Sockets, each with the beginning of an incomplete command.
    connections: HashMap<u64, (OwnedFd, Vec<u8>)>,
    /// Connections to reply to, and when.
    waiting: VecDeque<(Instant, u64)>,
    delay: Duration,
    gets: u64,
}

impl Store {
    fn drive(&mut self, key: u64) {
        let Some((socket, pending)) = self.connections.get_mut(&key) else {
            return;
        };
        let mut buffer = [0; 4096];
        match net::recv(&*socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, got)) if got > 0 && pending.len() < PENDING_BYTES_MAX => {
                pending.extend_from_slice(&buffer[..got]);
            }
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => {
                self.connections.remove(&key);
                return;
            }
        }
        while let Some((used, is_get)) = command(pending) {
            pending.drain(..used);
            if is_get {
                self.gets += 1;
                self.waiting.push_back((Instant::now() + self.delay, key));
            } else {
                let _asker_left = net::send(&*socket, UNKNOWN, SendFlags::NOSIGNAL);
            }
        }
    }

    fn answer_what_is_due(&mut self) {
        let now = Instant::now();
        while let Some((_, key)) = self.waiting.pop_front_if(|(due, _)| *due <= now) {
            if let Some((socket, _)) = self.connections.get(&key) {
                let _asker_left = net::send(socket, VALUE, SendFlags::NOSIGNAL);
            }
        }
    }

    /// The time until the next reply is due.
    fn timeout(&self) -> Option<Timespec> {
        let (due, _) = self.waiting.front()?;
        let left = due.saturating_duration_since(Instant::now());
        Timespec::try_from(left).ok()
    }
}

/// The length of the command at the start of `bytes`, if it is complete, and whether it is a GET. Anything
/// but an array of bulk strings counts as a command of one line.
fn command(bytes: &[u8]) -> Option<(usize, bool)> {
    let (mut at, words) = line(bytes, 0)?;
    let Some(words) = number(words, b'*') else {
        return Some((at, false));
    };
    let mut is_get = false;
    for place in 0..words {
        let (begin, length) = line(bytes, at)?;
        let length = number(length, b'$').unwrap_or(0);
        let word = bytes.get(begin..begin + length)?;
        is_get |= place == 0 && word.eq_ignore_ascii_case(b"GET");
        at = begin + length + 2;
    }
    (at <= bytes.len()).then_some((at, is_get))
}

/// The end of the line that begins at `from`, and its text.
fn line(bytes: &[u8], from: usize) -> Option<(usize, &[u8])> {
    let rest = bytes.get(from..)?;
    let end = memchr(b'\n', rest)?;
    Some((from + end + 1, rest[..end].trim_ascii_end()))
}

/// Parses a number below a thousand after a mark, which is enough for these commands.
fn number(line: &[u8], mark: u8) -> Option<usize> {
    let digits = line.strip_prefix(&[mark])?;
    let number: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (number < 1000).then_some(number)
}

const VALUE: &[u8] = b"$3\r\n123\r\n";
const UNKNOWN: &[u8] = b"-ERR unknown command\r\n";
const LISTENER: u64 = 0;
const CONTROL: u64 = 1;
const CONNECTION_FIRST: u64 = 2;
const EVENTS_MAX: usize = 512;
/// A longer incomplete command is an error.
const PENDING_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_taken_when_it_is_whole() {
        let get = b"*2\r\n$3\r\nget\r\n$1\r\nk\r\n";
        for cut in 0..get.len() {
            assert_eq!(command(&get[..cut]), None, "cut at {cut}");
        }
        let more = [&get[..], b"*1"].concat();
        assert_eq!(command(&more), Some((get.len(), true)));
    }

    #[test]
    fn a_get_is_answered_when_its_time_has_come_and_other_commands_at_once() {
        use std::io::{Read as _, Write as _};
        let port = crate::peers::free_port().unwrap();
        let listener = super::super::responder::listen_tcp(port).unwrap();
        let delay = Duration::from_millis(60);
        std::thread::spawn(move || serve(&listener, None, delay));
        let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let patience = Some(Duration::from_secs(5));
        client.set_read_timeout(patience).unwrap();
        let asked = Instant::now();
        client
            .write_all(b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
            .unwrap();
        let mut answers = vec![0; UNKNOWN.len() + VALUE.len()];
        client.read_exact(&mut answers[..UNKNOWN.len()]).unwrap();
        client.read_exact(&mut answers[UNKNOWN.len()..]).unwrap();
        assert!(asked.elapsed() >= delay);
        assert_eq!(answers, [UNKNOWN, VALUE].concat());
    }

    #[test]
    fn other_commands_are_none_of_its_business() {
        assert_eq!(
            command(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n"),
            Some((22, false))
        );
        assert_eq!(command(b"PING\r\n"), Some((6, false)));
    }
}
