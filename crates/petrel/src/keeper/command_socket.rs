//! The keeper's control socket: where it is, and its protocol.
//!
//! It is a unix socket with mode 0600. One connection carries one command: a line of at most
//! [`COMMAND_BYTES_MAX`] bytes. The reply consists of lines that begin with `out ` or `err `, for standard
//! output and standard error of the program that sent the command, and a last line `exit ` with its exit
//! code. A descriptor may come with the first bytes of the reply. Nothing here blocks: the keeper's loop polls
//! the socket and its connections. This module does not know what the commands do.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::umask;

/// The path of the control socket of a server with the configuration `file`. It is `control_socket`
/// (`server.control-socket`) if that is set; else a file beside `pid_file` (`server.pid-file`); else a file
/// in the runtime directory of the calling user, named after the path of `file`. `None` if that user has no
/// such directory.
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

/// FNV-1a, because it gives the same result in every version of the program and needs no seed.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Connects to the socket at `path`. If the server's queue is full, waits up to `patience`. Writes to the
/// connection have the same time limit, reads have none.
///
/// # Errors
/// `WouldBlock` if the time is over; else those of connect(2).
pub(crate) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let flags = match patience.is_zero() {
        true => SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        false => SocketFlags::CLOEXEC,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    if !patience.is_zero() {
        // Linux applies the write timeout to connect(2), too.
        stream.set_write_timeout(Some(patience))?;
    }
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// Sends `command` to the server at `path`. Returns the descriptor that came with the reply, and the reply's lines.
///
/// # Errors
/// As [`connect`], or those of the socket.
pub(crate) fn ask_for_descriptor(
    command: &str,
    path: &Path,
    patience: Duration,
) -> io::Result<(Option<OwnedFd>, String)> {
    let mut stream = connect(path, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut first = [0; COMMAND_BYTES_MAX];
    let received = recvmsg(
        &stream,
        &mut [IoSliceMut::new(&mut first)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptor = None;
    for ancillary in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut passed) = ancillary {
            descriptor = passed.next();
        }
    }
    let mut reply = first[..received.bytes].to_vec();
    stream.read_to_end(&mut reply)?;
    Ok((descriptor, String::from_utf8_lossy(&reply).into_owned()))
}

/// The listening socket. Its name is removed when the process that made it drops the value.
pub(crate) struct CommandSocket {
    listener: UnixListener,
    path: PathBuf,
    owner: u32,
    /// Device and inode of the socket's name, until the name is removed.
    named: Option<(u64, u64)>,
}

impl CommandSocket {
    /// Listens at `path`. Replaces a socket on which no server listens.
    ///
    /// # Errors
    /// The path is another kind of file, or a server listens there; else those of bind(2).
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
                // `WouldBlock` means that a server listens and its queue is full.
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {
                    return Err(io::Error::new(
                        ErrorKind::AddrInUse,
                        "another server listens there",
                    ));
                }
            }
        }
        // bind(2) takes the mode from the umask. The keeper has one thread, so no other file is made
        // meanwhile.
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

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the name, so that another server can use it. Open connections stay open.
    pub(crate) fn remove_name(&mut self) {
        let Some(named) = self.named.take() else {
            return;
        };
        // An administrator may have removed the name, and another server may have put its own socket there.
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

/// The control socket, if there is one, and its connections.
#[derive(Default)]
pub(crate) struct Commands {
    /// The listening socket.
    pub(crate) socket: Option<CommandSocket>,
    peers: Vec<Peer>,
    last_id: u64,
    /// No connection is accepted before this time: accept(2) failed, probably because there are no
    /// descriptors left. The socket stays readable meanwhile, so polling it would spin.
    accepts_again: Option<Instant>,
}

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerId(u64);

struct Peer {
    id: PeerId,
    stream: UnixStream,
    state: PeerState,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Goes with the first bytes of the output.
    descriptor: Option<OwnedFd>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    /// The client may send its command until this time.
    Asks(Instant),
    /// The command is being carried out.
    Waits,
    /// The client may read the reply until this time.
    IsAnswered(Instant),
    Gone,
}

/// A command that was received.
pub(crate) struct Asked {
    /// The connection to reply to.
    pub(crate) peer: PeerId,
    /// The command, without its line end.
    pub(crate) command: String,
    /// The client's user and process, for the log.
    pub(crate) sender: String,
}

/// The reply to a command.
#[derive(Debug, Default)]
pub(crate) struct CommandReply {
    lines: String,
}

impl CommandReply {
    /// Adds a line for standard output.
    pub(crate) fn out(mut self, line: &str) -> CommandReply {
        self.push("out", line);
        self
    }

    /// Adds a line for standard error.
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
    /// The descriptors to poll.
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

    /// When the next connection times out or accepting resumes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = |peer: &Peer| match peer.state {
            PeerState::Asks(until) | PeerState::IsAnswered(until) => Some(until),
            PeerState::Waits | PeerState::Gone => None,
        };
        let peers = self.peers.iter().filter_map(due);
        peers.chain(self.accepts_again).min()
    }

    /// Accepts connections, reads and writes, as far as possible without blocking. Returns the complete
    /// commands.
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

    /// Sends the reply to a command, if the connection is still open.
    pub(crate) fn answer(&mut self, peer: PeerId, answer: &CommandReply, code: u8) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) {
            peer.output = format!("{}exit {code}\n", answer.lines).into_bytes();
            peer.state = PeerState::IsAnswered(Instant::now() + PEER_TIME);
            peer.write();
        }
        self.close_gone();
    }

    /// Replies to a command with a descriptor.
    pub(crate) fn answer_with(&mut self, peer: PeerId, descriptor: OwnedFd) {
        if let Some(peer) = self.peers.iter_mut().find(|known| known.id == peer) {
            peer.descriptor = Some(descriptor);
        }
        self.answer(peer, &CommandReply::default(), 0);
    }

    /// Takes a connection out, for another process to reply to its command.
    pub(crate) fn give_away(&mut self, peer: PeerId) -> Option<UnixStream> {
        let index = self.peers.iter().position(|known| known.id == peer)?;
        Some(self.peers.swap_remove(index).stream)
    }

    fn close_gone(&mut self) {
        self.peers.retain(|peer| peer.state != PeerState::Gone);
    }

    /// Whether the connection is still open.
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
                descriptor: None,
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

    /// The command, once it is complete. While a client waits for its reply, reading only detects that it
    /// disconnects.
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
        match self.send() {
            Ok(count) if count > 0 => {
                self.descriptor = None;
                self.output.drain(..count);
            }
            Err(error) if is_for_later(&error) => return,
            _ => self.output.clear(),
        }
        if self.output.is_empty() {
            self.state = PeerState::Gone;
        }
    }
}

impl Peer {
    fn send(&self) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = self.descriptor.iter().map(AsFd::as_fd).collect();
        if !descriptors.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            assert!(fits, "the space is made for one descriptor");
        }
        let output = [IoSlice::new(&self.output)];
        let sent = sendmsg(&self.stream, &output, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(sent)
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The longest command, in bytes.
const COMMAND_BYTES_MAX: usize = 256;
/// Connections at the same time. Further ones wait in the kernel's queue.
const PEERS_MAX: usize = 16;
/// How long a client may take to send its command, and how long to read the reply.
const PEER_TIME: Duration = Duration::from_secs(10);
/// How long to wait after accept(2) has failed.
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
    fn a_descriptor_comes_with_the_reply() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut commands = socket_in(directory.path());
        let path = directory.path().join("control");
        let client = std::thread::spawn(move || {
            ask_for_descriptor("recorder", &path, Duration::from_secs(20)).expect("a reply")
        });
        let asked = loop {
            if let Some(asked) = commands.tend(Instant::now()).pop() {
                break asked;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let (mut reader, writer) = io::pipe().expect("a pipe");
        commands.answer_with(asked.peer, writer.into());
        let (descriptor, reply) = client.join().expect("no panic");
        assert_eq!(
            (asked.command.as_str(), reply.as_str()),
            ("recorder", "exit 0\n")
        );
        let mut writer = fs::File::from(descriptor.expect("it came"));
        writer.write_all(b"x").expect("the pipe is open");
        drop(writer);
        let mut read = String::new();
        reader
            .read_to_string(&mut read)
            .expect("the only writer is closed");
        assert_eq!(read, "x");
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
