//! The keeper's control socket: where it is, and what is said on it.
//!
//! A unix socket with mode 0600. One connection is one command: a line of words, [`COMMAND_BYTES_MAX`] bytes at most.
//! The answer is lines that begin with `out ` or `err `, for the two streams of the program that asked, and at last
//! `exit ` with its exit code. Nothing here waits: the keeper's loop polls the socket and its connections. What the
//! commands do is not known here.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::umask;

/// Where the control socket of a server is whose configuration is `file`: at `control_socket`
/// (`server.control-socket`), or beside `pid_file` (`server.pid-file`), or in the directory for such things of the user
/// who asks, under a name made of the path of `file`. `None`: that user has no such directory.
pub(crate) fn path_of(
    control_socket: Option<&Path>,
    pid_file: Option<&Path>,
    file: &Path,
) -> Option<PathBuf> {
    let named = match (control_socket, pid_file) {
        (Some(socket), _) => socket.to_owned(),
        (None, Some(pid_file)) => beside(pid_file),
        (None, None) => {
            let user = nix::unistd::geteuid();
            let directory = match user.is_root() {
                true => PathBuf::from("/run"),
                false => PathBuf::from(format!("/run/user/{user}")),
            };
            let hash = hash(file.as_os_str().as_encoded_bytes());
            directory
                .is_dir()
                .then(|| directory.join(format!("petrel-{hash:016x}.control")))?
        }
    };
    std::path::absolute(named).ok()
}

/// `petrel.control` beside `petrel.pid`.
fn beside(pid_file: &Path) -> PathBuf {
    let mut path = match pid_file.extension() {
        Some(extension) if extension == "pid" => pid_file.with_extension(""),
        _ => pid_file.to_owned(),
    }
    .into_os_string();
    path.push(".control");
    path.into()
}

/// FNV-1a: the same in every version of the program, and without a seed.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Connects to the socket at `path`. A server that does not accept, and whose queue is full, gets `patience` to do so.
/// Reading has no limit, and writing the same one.
///
/// # Errors
/// `WouldBlock` when that time is over, or those of connect(2).
pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = match patience.is_zero() {
        true => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        false => SocketFlags::CLOEXEC,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    if !patience.is_zero() {
        // The kernel lets connect(2) wait that long, too.
        stream.set_write_timeout(Some(patience))?;
    }
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// The socket that listens. Its name goes with the value, in the process that made it.
pub(crate) struct CommandSocket {
    listener: UnixListener,
    path: PathBuf,
    owner: u32,
    /// Device and inode of the name, until that is removed.
    named: Option<(u64, u64)>,
}

impl CommandSocket {
    /// Listens at `path`. A socket that nothing listens on is replaced.
    ///
    /// # Errors
    /// Something else has the name, a server listens there, or those of bind(2).
    pub(crate) fn open(path: &Path) -> io::Result<CommandSocket> {
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                return Err(io::Error::new(
                    ErrorKind::AlreadyExists,
                    "what is there is no socket",
                ));
            }
            match connect(path, Duration::ZERO) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path)?;
                }
                // `WouldBlock`: a server listens, and the queue of its connections is full.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {
                    return Err(io::Error::new(
                        ErrorKind::AddrInUse,
                        "another server listens there",
                    ));
                }
            }
        }
        // The mode of a socket is set by bind(2). The keeper has one thread: nothing else makes a file meanwhile.
        let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = bound?;
        let socket = CommandSocket {
            listener,
            path: path.to_owned(),
            owner: std::process::id(),
            named: Some(inode(path)?),
        };
        socket.listener.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Its name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the name, so that another server can take it. Clients that are connected stay so.
    pub(crate) fn remove_name(&mut self) {
        let Some(named) = self.named.take() else {
            return;
        };
        // An administrator may have removed it, and another server may have made one of its own there.
        if inode(&self.path).is_ok_and(|there| there == named) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for CommandSocket {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.remove_name();
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let data = fs::symlink_metadata(path)?;
    Ok((data.dev(), data.ino()))
}

/// The socket, if there is one, and its connections.
#[derive(Default)]
pub(crate) struct Commands {
    /// The socket.
    pub(crate) socket: Option<CommandSocket>,
    peers: Vec<Peer>,
    last_id: u64,
    /// Until then no connection is taken: accept(2) failed, most likely for lack of descriptors, and the socket stays
    /// readable meanwhile.
    accepts_again: Option<Instant>,
}

/// Names a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerId(u64);

struct Peer {
    id: PeerId,
    stream: UnixStream,
    state: PeerState,
    input: Vec<u8>,
    output: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    /// Its command is to come until then.
    Asks(Instant),
    /// Its command is worked on.
    Waits,
    /// It takes the answer, until then.
    IsAnswered(Instant),
    Gone,
}

/// A command that has come.
pub(crate) struct Asked {
    /// Whom to answer.
    pub(crate) peer: PeerId,
    /// The line, without its end.
    pub(crate) command: String,
    /// Who asks: user and process, for the log.
    pub(crate) sender: String,
}

/// What a command has come to.
#[derive(Debug, Default)]
pub(crate) struct CommandReply {
    lines: String,
}

impl CommandReply {
    /// A line for standard output.
    pub(crate) fn out(mut self, line: &str) -> CommandReply {
        self.push("out", line);
        self
    }

    /// A line for standard error.
    pub(crate) fn err(mut self, line: &str) -> CommandReply {
        self.push("err", line);
        self
    }

    fn push(&mut self, stream: &str, text: &str) {
        for line in text.lines() {
            self.lines.push_str(&format!("{stream} {line}\n"));
        }
    }
}

impl Commands {
    /// What to wait for.
    pub(crate) fn polled(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut polled: Vec<_> = self
            .peers
            .iter()
            .map(|peer| match peer.state {
                PeerState::IsAnswered(_) => (peer.stream.as_fd(), PollFlags::OUT),
                _ => (peer.stream.as_fd(), PollFlags::IN),
            })
            .collect();
        if let Some(socket) = &self.socket
            && self.peers.len() < PEERS_MAX
            && self.accepts_again.is_none()
        {
            polled.push((socket.listener.as_fd(), PollFlags::IN));
        }
        polled
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = |peer: &Peer| match peer.state {
            PeerState::Asks(until) | PeerState::IsAnswered(until) => Some(until),
            PeerState::Waits | PeerState::Gone => None,
        };
        let peers = self.peers.iter().filter_map(due);
        peers.chain(self.accepts_again).min()
    }

    /// Takes new connections, reads and writes, as far as that goes without waiting. The commands that are complete.
    pub(crate) fn tend(&mut self, now: Instant) -> Vec<Asked> {
        self.accept(now);
        let mut asked = Vec::new();
        for peer in &mut self.peers {
            peer.check_deadline(now);
            asked.extend(peer.read());
            peer.write();
        }
        self.close_gone();
        asked
    }

    /// Answers a command, if its connection is there still.
    pub(crate) fn answer(&mut self, peer: PeerId, answer: &CommandReply, code: u8) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) {
            peer.output = format!("{}exit {code}\n", answer.lines).into_bytes();
            peer.state = PeerState::IsAnswered(Instant::now() + PEER_TIME);
            peer.write();
        }
        self.close_gone();
    }

    fn close_gone(&mut self) {
        self.peers.retain(|peer| peer.state != PeerState::Gone);
    }

    /// Whether the connection is there still.
    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.peers.iter().any(|known| known.id == peer)
    }

    fn accept(&mut self, now: Instant) {
        if self.accepts_again.is_some_and(|at| now < at) {
            return;
        }
        self.accepts_again = None;
        let Some(socket) = &self.socket else { return };
        while self.peers.len() < PEERS_MAX {
            let stream = match socket.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_for_later(&error) => return,
                Err(_) => {
                    self.accepts_again = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.last_id += 1;
            self.peers.push(Peer {
                id: PeerId(self.last_id),
                stream,
                state: PeerState::Asks(now + PEER_TIME),
                input: Vec::new(),
                output: Vec::new(),
            });
        }
    }
}

impl Peer {
    fn check_deadline(&mut self, now: Instant) {
        if let PeerState::Asks(until) | PeerState::IsAnswered(until) = self.state
            && until <= now
        {
            self.state = PeerState::Gone;
        }
    }

    /// The command, when it is complete. One that waits for its answer has nothing more to say but that it leaves.
    fn read(&mut self) -> Option<Asked> {
        if !matches!(self.state, PeerState::Asks(_) | PeerState::Waits) {
            return None;
        }
        let mut buffer = [0; COMMAND_BYTES_MAX];
        match self.stream.read(&mut buffer) {
            Ok(count) if count > 0 => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if is_for_later(&error) => return None,
            _ => {
                self.state = PeerState::Gone;
                return None;
            }
        }
        let end = self.input.iter().position(|byte| *byte == b'\n');
        let is_too_long = self.input.len() > COMMAND_BYTES_MAX;
        let (PeerState::Asks(_), false, Some(end)) = (self.state, is_too_long, end) else {
            if is_too_long || self.state == PeerState::Waits {
                self.state = PeerState::Gone;
            }
            return None;
        };
        self.state = PeerState::Waits;
        let command = String::from_utf8_lossy(&self.input[..end]).into_owned();
        Some(Asked {
            peer: self.id,
            command,
            sender: self.sender(),
        })
    }

    fn sender(&self) -> String {
        match rustix::net::sockopt::socket_peercred(&self.stream) {
            Ok(sender) => format!(
                "UID = {} PID = {}",
                sender.uid.as_raw(),
                sender.pid.as_raw_nonzero()
            ),
            Err(error) => format!("an unknown process ({error})"),
        }
    }

    fn write(&mut self) {
        if !matches!(self.state, PeerState::IsAnswered(_)) {
            return;
        }
        match self.stream.write(&self.output) {
            Ok(count) if count > 0 => drop(self.output.drain(..count)),
            Err(error) if is_for_later(&error) => return,
            _ => self.output.clear(),
        }
        if self.output.is_empty() {
            self.state = PeerState::Gone;
        }
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Bytes of a command.
const COMMAND_BYTES_MAX: usize = 256;
/// Connections at a time; more wait in the kernel's queue.
const PEERS_MAX: usize = 16;
/// How long a connection may take to send its command, and to take the answer.
const PEER_TIME: Duration = Duration::from_secs(10);
/// How long no connection is taken after accept(2) has failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn socket_in(directory: &Path) -> Commands {
        let socket = CommandSocket::open(&directory.join("control")).expect("a socket");
        Commands {
            socket: Some(socket),
            ..Commands::default()
        }
    }

    #[test]
    fn the_socket_is_beside_the_pid_file() {
        let beside = |path: &str| beside(Path::new(path)).display().to_string();
        assert_eq!(beside("/run/petrel.pid"), "/run/petrel.control");
        assert_eq!(beside("/run/petrel"), "/run/petrel.control");
        assert_eq!(beside("/run/a.1"), "/run/a.1.control");
    }

    #[test]
    fn it_is_the_owners_and_replaces_a_stale_socket_but_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        fs::write(&path, "precious").expect("a file");
        assert!(CommandSocket::open(&path).is_err());
        assert_eq!(fs::read_to_string(&path).expect("there"), "precious");
        fs::remove_file(&path).expect("there");

        drop(UnixListener::bind(&path).expect("a stale socket"));
        let socket = CommandSocket::open(&path).expect("it is replaced");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(CommandSocket::open(&path).is_err(), "one that is in use");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_never_accepts_holds_neither_server_nor_command_up() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let full = UnixListener::bind(&path).expect("a socket");
        rustix::net::listen(&full, 0).expect("its queue is cut to one connection");
        let queued = UnixStream::connect(&path).expect("it fits");
        let error = CommandSocket::open(&path).err().expect("it is in use");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let error = connect(&path, Duration::from_millis(20)).expect_err("there is no room");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        drop(queued);
    }

    #[test]
    fn a_name_that_another_server_took_over_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        let mut old = CommandSocket::open(&path).expect("a socket");
        old.remove_name();
        assert!(!path.exists());
        let new = CommandSocket::open(&path).expect("the name is free");
        drop(old);
        assert!(path.exists());
        fs::remove_file(&path).expect("there");
        let newest = CommandSocket::open(&path).expect("the name is free");
        drop(new);
        assert!(path.exists());
        drop(newest);
        assert!(!path.exists());
    }

    #[test]
    fn a_failed_accept_is_tried_again_a_second_later() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut commands = socket_in(directory.path());
        let now = Instant::now();
        commands.accepts_again = Some(now + ACCEPT_PAUSE);
        let client = UnixStream::connect(directory.path().join("control")).expect("queued");
        commands.tend(now);
        assert!(commands.peers.is_empty() && commands.polled().is_empty());
        assert_eq!(commands.deadline(), Some(now + ACCEPT_PAUSE));
        commands.tend(now + ACCEPT_PAUSE);
        assert_eq!((commands.peers.len(), commands.polled().len()), (1, 2));
        drop(client);
    }

    #[test]
    fn a_command_in_pieces_is_answered() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut commands = socket_in(directory.path());
        let mut client = UnixStream::connect(directory.path().join("control")).expect("taken");
        client.write_all(b"sta").expect("sent");
        assert!(commands.tend(Instant::now()).is_empty());
        client.write_all(b"tus\n").expect("sent");
        let asked = commands.tend(Instant::now());
        assert_eq!(asked[0].command, "status");
        let answer = CommandReply::default().out("one\ntwo").err("three");
        commands.answer(asked[0].peer, &answer, 7);
        let lines: Vec<_> = io::BufReader::new(&client)
            .lines()
            .map_while(Result::ok)
            .take(4)
            .collect();
        assert_eq!(lines, ["out one", "out two", "err three", "exit 7"]);
        assert!(commands.peers.is_empty(), "it is closed at once");
    }

    #[test]
    fn who_says_too_much_or_too_little_or_leaves_is_let_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut commands = socket_in(directory.path());
        let path = directory.path().join("control");
        let now = Instant::now();
        let mut talkative = UnixStream::connect(&path).expect("taken");
        talkative
            .write_all(&[b'x'; 2 * COMMAND_BYTES_MAX])
            .expect("sent");
        commands.tend(now);
        commands.tend(now);
        assert!(commands.peers.is_empty());

        let silent = UnixStream::connect(&path).expect("taken");
        commands.tend(now);
        assert_eq!(commands.deadline(), Some(now + PEER_TIME));
        commands.tend(now + PEER_TIME);
        assert!(commands.peers.is_empty());
        drop(silent);

        let mut leaves = UnixStream::connect(&path).expect("taken");
        leaves.write_all(b"reload\n").expect("sent");
        let asked = commands.tend(now);
        assert!(commands.has(asked[0].peer));
        drop(leaves);
        commands.tend(now);
        assert!(!commands.has(asked[0].peer));
    }

    #[test]
    fn no_more_connections_are_taken_than_may_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut commands = socket_in(directory.path());
        let path = directory.path().join("control");
        let clients: Vec<_> = (0..PEERS_MAX + 4)
            .map(|_| UnixStream::connect(&path).expect("taken"))
            .collect();
        commands.tend(Instant::now());
        assert_eq!(
            (commands.peers.len(), commands.polled().len()),
            (PEERS_MAX, PEERS_MAX)
        );
        drop(clients);
    }
}
