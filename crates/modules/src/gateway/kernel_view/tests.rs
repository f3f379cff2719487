use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use super::super::stream::InTurn;
use super::*;
use crate::testing::Tree;

/// A connection to a listener.
trait Duplex: Read + Write + AsFd {}

impl<S: Read + Write + AsFd> Duplex for S {}

/// A listener, and how to connect to it.
trait TestListener {
    fn connect(&self) -> Box<dyn Duplex>;
    fn accept(&self) -> Box<dyn Duplex>;
    fn address(&self) -> SocketAddress;
}

struct UnixBackend {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixBackend {
    fn new(path: impl Into<PathBuf>) -> UnixBackend {
        let path = path.into();
        UnixBackend {
            listener: UnixListener::bind(&path).expect("a free path"),
            path,
        }
    }
}

impl TestListener for UnixBackend {
    fn connect(&self) -> Box<dyn Duplex> {
        Box::new(UnixStream::connect(&self.path).expect("it listens"))
    }

    fn accept(&self) -> Box<dyn Duplex> {
        Box::new(self.listener.accept().expect("a connection").0)
    }

    fn address(&self) -> SocketAddress {
        SocketAddress::Unix(self.path.clone())
    }
}

struct TcpBackend {
    listener: TcpListener,
    address: SocketAddr,
}

impl TcpBackend {
    /// Listens at `listening` and is connected to at `address`. `None` if this machine has no such address.
    fn new(listening: IpAddr, address: IpAddr) -> Option<TcpBackend> {
        let listener = TcpListener::bind((listening, 0)).ok()?;
        let port = listener.local_addr().expect("it listens").port();
        let address = SocketAddr::new(address, port);
        Some(TcpBackend { listener, address })
    }

    fn on_loopback() -> TcpBackend {
        let loopback = Ipv4Addr::LOCALHOST.into();
        TcpBackend::new(loopback, loopback).expect("a loopback address")
    }
}

impl TestListener for TcpBackend {
    fn connect(&self) -> Box<dyn Duplex> {
        Box::new(TcpStream::connect(self.address).expect("it listens"))
    }

    fn accept(&self) -> Box<dyn Duplex> {
        Box::new(self.listener.accept().expect("a connection").0)
    }

    fn address(&self) -> SocketAddress {
        SocketAddress::Ip(self.address)
    }
}

/// What the kernel says of one connection.
struct ConnectionWatcher<'v> {
    view: &'v KernelView,
    connection: WatchedConnection,
}

impl ConnectionWatcher<'_> {
    fn new<'v>(view: &'v KernelView, socket: &(impl AsFd + ?Sized)) -> ConnectionWatcher<'v> {
        let connection = view.watch(socket.as_fd());
        let connection = connection.unwrap_or_else(|| panic!("{:?}", view.why_not()));
        ConnectionWatcher { view, connection }
    }

    fn other_end(&self) -> OtherEnd {
        self.view.other_end(&self.connection)
    }

    #[track_caller]
    fn expect(&self, expected: OtherEnd) {
        expect(|| self.other_end(), expected);
    }
}

fn follow_one_connection(backend: &dyn TestListener) {
    let view = KernelView::open();
    let mut own = backend.connect();
    let watcher = ConnectionWatcher::new(&view, &*own);
    watcher.expect(OtherEnd::NotAccepted);
    own.write_all(b"12345").expect("there is room");
    assert_eq!(watcher.other_end(), OtherEnd::NotAccepted);
    let mut accepted = backend.accept();
    watcher.expect(OtherEnd::Accepted { unread: 5 });
    accepted.read_exact(&mut [0; 2]).expect("two bytes");
    assert_eq!(watcher.other_end(), OtherEnd::Accepted { unread: 3 });
    accepted.read_exact(&mut [0; 3]).expect("the rest");
    assert_eq!(watcher.other_end(), OtherEnd::Accepted { unread: 0 });
    own.write_all(b"6").expect("there is room");
    watcher.expect(OtherEnd::Accepted { unread: 1 });
    accepted.read_exact(&mut [0; 1]).expect("a byte");
    drop(accepted);
    watcher.expect(OtherEnd::Gone);
    assert!(view.why_not().is_none());
}

fn count_who_wait(backend: &dyn TestListener) {
    let view = KernelView::open();
    let address = backend.address();
    assert_eq!(view.queue_length(&address), Some(0));
    let connections: Vec<_> = (0..3).map(|_| backend.connect()).collect();
    for connection in &connections {
        ConnectionWatcher::new(&view, &**connection).expect(OtherEnd::NotAccepted);
    }
    expect_queue(&view, &address, 3);
    drop(backend.accept());
    assert_eq!(view.queue_length(&address), Some(2));
}

/// Over TCP a connection may be complete a moment before it is in the queue.
#[track_caller]
fn expect_queue(view: &KernelView, address: &SocketAddress, expected: u32) {
    expect(|| view.queue_length(address), Some(expected));
}

/// Asks until the answer is as expected: the kernel may have to bring packets over the loopback interface.
#[track_caller]
fn expect<T: PartialEq + std::fmt::Debug>(ask: impl Fn() -> T, expected: T) {
    for _ in 0..6000 {
        if ask() == expected {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(ask(), expected);
}

fn tcp_backends() -> Vec<TcpBackend> {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let any_v6 = Ipv6Addr::UNSPECIFIED.into();
    let listening = [
        (v4, v4),
        (Ipv4Addr::UNSPECIFIED.into(), v4),
        // These are left out where IPv6 is off.
        (v6, v6),
        (any_v6, v6),
    ];
    let backends = listening.map(|(listening, address)| TcpBackend::new(listening, address));
    backends.into_iter().flatten().collect()
}

#[test]
fn a_connection_to_a_unix_socket() {
    let tree = Tree::new(&[]);
    follow_one_connection(&UnixBackend::new(tree.path("app.sock")));
}

#[test]
fn a_connection_over_tcp() {
    for backend in tcp_backends() {
        follow_one_connection(&backend);
    }
}

#[test]
fn a_queue_at_a_unix_socket() {
    let tree = Tree::new(&[]);
    count_who_wait(&UnixBackend::new(tree.path("app.sock")));
}

#[test]
fn a_queue_over_tcp() {
    for backend in tcp_backends() {
        count_who_wait(&backend);
    }
}

#[test]
fn a_listener_that_closes_has_not_accepted() {
    let view = KernelView::open();
    let tree = Tree::new(&[]);
    let backend = UnixBackend::new(tree.path("app.sock"));
    let own = backend.connect();
    let watcher = ConnectionWatcher::new(&view, &*own);
    assert_eq!(watcher.other_end(), OtherEnd::NotAccepted);
    drop(backend);
    assert_eq!(watcher.other_end(), OtherEnd::Gone);

    let backend = TcpBackend::on_loopback();
    let own = backend.connect();
    let watcher = ConnectionWatcher::new(&view, &*own);
    drop(backend);
    watcher.expect(OtherEnd::Gone);
}

#[test]
fn a_connection_whose_sending_side_is_shut() {
    let view = KernelView::open();
    let tree = Tree::new(&[]);
    let backend = UnixBackend::new(tree.path("app.sock"));
    let own = UnixStream::connect(&backend.path).expect("it listens");
    own.shutdown(Shutdown::Write).expect("it is connected");
    let watcher = ConnectionWatcher::new(&view, &own);
    assert_eq!(watcher.other_end(), OtherEnd::NotAccepted);
    let _accepted = backend.accept();
    assert_eq!(watcher.other_end(), OtherEnd::Accepted { unread: 0 });

    let backend = TcpBackend::on_loopback();
    let mut own = TcpStream::connect(backend.address).expect("it listens");
    own.write_all(b"1").expect("there is room");
    own.shutdown(Shutdown::Write).expect("it is connected");
    let watcher = ConnectionWatcher::new(&view, &own);
    watcher.expect(OtherEnd::NotAccepted);
    let mut accepted = backend.accept();
    watcher.expect(OtherEnd::Accepted { unread: 1 });
    accepted.read_to_end(&mut Vec::new()).expect("the end");
    watcher.expect(OtherEnd::Accepted { unread: 0 });
}

#[test]
fn a_tcp_connection_that_was_reset() {
    let view = KernelView::open();
    let backend = TcpBackend::on_loopback();
    let mut own = backend.connect();
    own.write_all(b"unread").expect("there is room");
    let watcher = ConnectionWatcher::new(&view, &*own);
    let accepted = backend.accept();
    watcher.expect(OtherEnd::Accepted { unread: 6 });
    // Closing a socket with unread bytes resets the connection.
    drop(accepted);
    watcher.expect(OtherEnd::Gone);
}

#[test]
fn a_path_that_another_listener_takes() {
    let view = KernelView::open();
    let tree = Tree::new(&[]);
    let first = UnixBackend::new(tree.path("app.sock"));
    let _one = first.connect();
    assert_eq!(view.queue_length(&first.address()), Some(1));
    fs::remove_file(&first.path).expect("it is there");
    assert_eq!(view.queue_length(&first.address()), None);
    let second = UnixBackend::new(tree.path("app.sock"));
    assert_eq!(view.queue_length(&second.address()), Some(0));
    let _two = [second.connect(), second.connect()];
    assert_eq!(view.queue_length(&second.address()), Some(2));
    drop(second);
    assert_eq!(view.queue_length(&first.address()), None, "it is closed");
    // A file that may have the inode number of the one before.
    fs::remove_file(&first.path).expect("it is there");
    let third = UnixBackend::new(tree.path("app.sock"));
    assert_eq!(view.queue_length(&third.address()), Some(0));
}

#[test]
fn one_listener_among_many() {
    let view = KernelView::open();
    let tree = Tree::new(&[]);
    let backends: Vec<_> = (0..100)
        .map(|number| UnixBackend::new(tree.path(&format!("{number}.sock"))))
        .collect();
    let connections: Vec<_> = backends.iter().map(UnixBackend::connect).collect();
    let (backend, own) = (&backends[50], &connections[50]);
    let watcher = ConnectionWatcher::new(&view, &**own);
    assert_eq!(watcher.other_end(), OtherEnd::NotAccepted);
    assert_eq!(view.queue_length(&backend.address()), Some(1));
    let _accepted = backend.accept();
    assert_eq!(watcher.other_end(), OtherEnd::Accepted { unread: 0 });
    assert_eq!(view.queue_length(&backend.address()), Some(0));
    for backend in backends.iter().skip(80) {
        assert_eq!(view.queue_length(&backend.address()), Some(1));
    }
}

#[test]
fn a_host_with_several_addresses() {
    let view = KernelView::open();
    let backend = TcpBackend::on_loopback();
    let own = backend.connect();
    ConnectionWatcher::new(&view, &*own).expect(OtherEnd::NotAccepted);
    let host = InTurn::new("app:1".to_owned(), [backend.address].into());
    assert_eq!(view.queue_length(&SocketAddress::Several(host)), Some(1));
}

/// The kernel drops the packets of a connection that finds the queue full, as a network may.
#[test]
fn a_connection_whose_other_end_is_not_here_is_unknown() {
    let view = KernelView::open();
    let backend = TcpBackend::on_loopback();
    rustix::net::listen(&backend.listener, 0).expect("it listens already");
    let queued = backend.connect();
    expect_queue(&view, &backend.address(), 1);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.expect("a socket");
    let connected = rustix::net::connect(&socket, &backend.address);
    assert_eq!(connected, Err(rustix::io::Errno::INPROGRESS));
    let own = getsockname(&socket).expect("an address");
    let connection = WatchedConnection::Tcp {
        own: own.try_into().expect("an address of IPv4"),
        backend: backend.address,
    };
    assert_eq!(view.other_end(&connection), OtherEnd::Unknown);
    drop((socket, queued));
}

#[test]
fn what_is_no_connection_is_not_watched() {
    let view = KernelView::open();
    let nowhere = SocketAddress::Unix("/nonexistent/app.sock".into());
    assert_eq!(view.queue_length(&nowhere), None);
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    assert_eq!(view.watch(reader.as_fd()), None);
    let unconnected = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    assert_eq!(view.watch(unconnected.as_fd()), None);
}

#[test]
fn a_listener_at_all_addresses_is_not_that_of_another_machine() {
    let view = KernelView::open();
    let any = Ipv4Addr::UNSPECIFIED.into();
    let backend = TcpBackend::new(any, Ipv4Addr::LOCALHOST.into()).expect("a port");
    assert_eq!(view.queue_length(&backend.address()), Some(0));
    let far = SocketAddr::from(([192, 0, 2, 1], backend.address.port()));
    assert_eq!(view.queue_length(&SocketAddress::Ip(far)), None);
}

#[test]
fn without_netlink_nothing_is_known() {
    let view = KernelView {
        socket: Err(io::ErrorKind::Unsupported.into()),
        ..KernelView::open()
    };
    let tree = Tree::new(&[]);
    let backend = UnixBackend::new(tree.path("app.sock"));
    let own = backend.connect();
    assert_eq!(view.watch(own.as_fd()), None);
    assert_eq!(view.queue_length(&backend.address()), None);
    let unwatched = WatchedConnection::Unix { inode: 1 };
    assert_eq!(view.other_end(&unwatched), OtherEnd::Unknown);
    assert!(view.why_not().is_some());
}

#[test]
fn a_kernel_without_diagnostics_is_asked_once() {
    let view = KernelView::open();
    let missing = || Err(io::Error::from(io::ErrorKind::NotFound));
    view.unix.set(missing()).expect("not asked yet");
    view.tcp.set(missing()).expect("not asked yet");
    let tree = Tree::new(&[]);
    let backends: [Box<dyn TestListener>; 2] = [
        Box::new(UnixBackend::new(tree.path("app.sock"))),
        Box::new(TcpBackend::on_loopback()),
    ];
    for backend in backends {
        let own = backend.connect();
        assert_eq!(view.watch(own.as_fd()), None);
        assert_eq!(view.queue_length(&backend.address()), None);
    }
    assert_eq!(view.sequence.get(), 0, "there was no query");
    assert!(view.why_not().is_some());
}

/// The answer to an earlier query is still in the socket.
#[test]
fn answers_that_were_not_read() {
    let view = KernelView::open();
    let tree = Tree::new(&[]);
    let backend = UnixBackend::new(tree.path("app.sock"));
    let own = backend.connect();
    let watcher = ConnectionWatcher::new(&view, &*own);
    let socket = view.socket.as_ref().expect("netlink");
    for inode in [1, 2] {
        let query = SocketQuery::Unix { inode }.encode(u32::MAX);
        send(socket, &query, SendFlags::empty()).expect("it is sent");
    }
    assert_eq!(watcher.other_end(), OtherEnd::NotAccepted);
}

/// A view whose kernel has sent `answers` before it was asked.
fn view_of(answers: &[&[u8]]) -> (KernelView, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, kernel) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .expect("a pair");
    for answer in answers {
        send(&kernel, answer, SendFlags::empty()).expect("there is room");
    }
    let view = KernelView {
        socket: Ok(ours),
        ..KernelView::open()
    };
    (view, kernel)
}

/// A message of the kernel that answers the query with this number.
fn message(kind: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
    let length = (16 + content.len()) as u32;
    let numbers = [length, u32::from(kind), sequence, 0];
    let header = numbers.iter().flat_map(|number| number.to_ne_bytes());
    header.chain(content.iter().copied()).collect()
}

/// NLMSG_ERROR.
const ERROR: u16 = 2;
/// SOCK_DIAG_BY_FAMILY.
const DIAGNOSTICS: u16 = 20;

#[test]
fn a_kernel_that_answers_nonsense_says_nothing() {
    let refused = message(ERROR, 1, &(-1_i32).to_ne_bytes());
    let of_unix = message(
        DIAGNOSTICS,
        1,
        &[1, 1, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    let mut longer = of_unix.clone();
    longer[0] = 200;
    let long = message(DIAGNOSTICS, 1, &[1; 2 * ANSWER_BYTES_MAX]);
    let cut = &of_unix[..20];
    let earlier = message(ERROR, 0, &0_i32.to_ne_bytes());
    let many = vec![&earlier[..]; READS_MAX];
    // An error, a longer message than it is, one that does not fit, one that was cut, nothing, and answers to
    // other queries without end.
    let all: [&[&[u8]]; 8] = [
        &[&refused],
        &[&longer],
        &[&long],
        &[cut],
        &[],
        &[&[]],
        &[b"?"],
        &many,
    ];
    let connections = [
        WatchedConnection::Unix { inode: 5 },
        WatchedConnection::Tcp {
            own: ([127, 0, 0, 1], 1).into(),
            backend: ([127, 0, 0, 1], 2).into(),
        },
    ];
    for answers in all {
        for connection in &connections {
            let (view, _kernel) = view_of(answers);
            assert_eq!(view.other_end(connection), OtherEnd::Unknown, "{answers:?}");
        }
    }
}

/// The answer comes when the next query has been made.
#[test]
fn a_late_answer_is_not_taken_for_another_one() {
    let (view, kernel) = view_of(&[]);
    let connection = WatchedConnection::Unix { inode: 5 };
    assert_eq!(view.other_end(&connection), OtherEnd::Unknown);
    let not_accepted = |sequence| {
        // Family, type, state, padding, inode, cookie, and the inode of the other end.
        let content = [1, 1, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        message(DIAGNOSTICS, sequence, &content)
    };
    send(&kernel, &not_accepted(1), SendFlags::empty()).expect("there is room");
    assert_eq!(view.other_end(&connection), OtherEnd::Unknown);
    send(&kernel, &not_accepted(3), SendFlags::empty()).expect("there is room");
    assert_eq!(view.other_end(&connection), OtherEnd::NotAccepted);
}
