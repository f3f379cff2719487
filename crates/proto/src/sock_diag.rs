//! NETLINK_SOCK_DIAG (sock_diag(7)): questions to the kernel about one socket of this machine, and its
//! answers.
//!
//! The caller sends what [`SocketQuery::encode`] returns and gives what it receives to [`SocketAnswers`].
//! `modules/src/gateway/kernel_view` does so. All numbers are in the byte order of the machine, except ports
//! and addresses. Layouts are those of Linux's `linux/netlink.h`, `sock_diag.h`, `unix_diag.h` and
//! `inet_diag.h`.
//!
//! ```text
//!   0       4     6      8         12     16
//!   length  type  flags  sequence  port   content, then attributes: length (2), type (2), value
//! ```
//!
//! Messages and attributes begin at multiples of 4 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketQuery {
    /// Whether the kernel can answer for unix sockets: [`SocketAnswer::Done`] or [`SocketAnswer::Failed`].
    UnixSupport,
    /// Whether the kernel can answer for TCP: [`SocketAnswer::Done`] or [`SocketAnswer::Failed`].
    TcpSupport,
    /// The unix socket with this inode, which fstat(2) of its descriptor tells: one [`SocketAnswer::Unix`] without
    /// name and file.
    Unix {
        /// The inode.
        inode: u32,
    },
    /// All listening unix sockets of this network namespace, with their names and files: an [`SocketAnswer::Unix`]
    /// for each, then [`SocketAnswer::Done`].
    UnixListeners,
    /// A TCP socket of this network namespace: one [`SocketAnswer::Tcp`]. If no connection has these addresses, the
    /// answer is the socket that listens at `local`.
    Tcp {
        /// Its own address.
        local: SocketAddr,
        /// The address it is connected to.
        remote: SocketAddr,
    },
    /// The TCP socket that listens at this address, or at all addresses: one [`SocketAnswer::Tcp`]. Of several
    /// sockets that share the address (SO_REUSEPORT), it is one.
    TcpListener {
        /// The address.
        address: SocketAddr,
    },
}

/// One message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketAnswer {
    /// A unix socket.
    Unix(UnixSocket),
    /// A TCP socket.
    Tcp(TcpEndpoint),
    /// All answers have been given.
    Done,
    /// The kernel refuses, with this errno. ENOENT: there is no such socket, or the kernel has no diagnostics
    /// of this kind.
    Failed(i32),
}

/// What the kernel says of a unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its inode.
    pub inode: u32,
    /// Whether it listens.
    pub is_listening: bool,
    /// The path or abstract name that it is bound to. Empty unless asked for.
    pub name: Vec<u8>,
    /// The file that it is bound to. `None` unless asked for.
    pub file: Option<SocketFile>,
    /// The inode of the socket that it is connected to. 0: there is none, no process has accepted the
    /// connection yet, or the other side has closed it.
    pub peer_inode: u32,
    /// Bytes that can be read; of a listening socket, connections that can be accepted.
    pub receive_queue: u32,
    /// Memory of the bytes that were sent and that the other side has not read. 0 means that it has read
    /// all.
    pub send_queue: u32,
    /// Whether nothing can be sent or received any more: the other side has closed.
    pub is_shut_down: bool,
}

/// The file of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// The lower 32 bits of its inode number.
    pub inode: u32,
    /// The major number of its file system's device.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// What the kernel says of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpEndpoint {
    /// Its inode. 0: no process has it, because it was not accepted yet or was closed.
    pub inode: u32,
    /// Whether it listens.
    pub is_listening: bool,
    /// Whether its own address is unspecified: it listens at all addresses.
    pub is_unspecified: bool,
    /// Whether its process has ended the connection, or half of it.
    pub has_ended: bool,
    /// Bytes that can be read; of a listening socket, connections that can be accepted.
    pub receive_queue: u32,
}

/// The bytes are no message, or an incomplete one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedAnswer;

/// The messages in received bytes that answer one query. Messages that answer others are left out.
#[derive(Clone, Debug)]
pub struct SocketAnswers<'b> {
    rest: &'b [u8],
    sequence: u32,
}

impl SocketQuery {
    /// The query as a message. The answers bear the same `sequence`.
    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(QUERY_BYTES_MAX);
        let flags = match self {
            SocketQuery::UnixSupport | SocketQuery::TcpSupport | SocketQuery::UnixListeners => {
                REQUEST | DUMP
            }
            SocketQuery::Unix { .. }
            | SocketQuery::Tcp { .. }
            | SocketQuery::TcpListener { .. } => REQUEST,
        };
        out.extend([0; 4]);
        out.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        match *self {
            SocketQuery::UnixSupport => write_unix(&mut out, 0, 0, 0),
            SocketQuery::Unix { inode } => {
                write_unix(&mut out, ALL_STATES, inode, SHOW_PEER | SHOW_QUEUES);
            }
            SocketQuery::UnixListeners => {
                write_unix(&mut out, 1 << LISTEN, 0, SHOW_NAME | SHOW_FILE)
            }
            SocketQuery::TcpSupport => {
                let none = unspecified(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                write_tcp(&mut out, 0, none, none);
            }
            SocketQuery::Tcp { local, remote } => write_tcp(&mut out, ALL_STATES, local, remote),
            SocketQuery::TcpListener { address } => {
                write_tcp(&mut out, ALL_STATES, address, unspecified(address.ip()));
            }
        }
        let length = out.len() as u32;
        out[..4].copy_from_slice(&length.to_ne_bytes());
        out
    }
}

/// Appends a `unix_diag_req`.
fn write_unix(out: &mut Vec<u8>, states: u32, inode: u32, show: u32) {
    out.extend([AF_UNIX, 0, 0, 0]);
    for number in [states, inode, show, NO_COOKIE, NO_COOKIE] {
        out.extend(number.to_ne_bytes());
    }
}

/// Appends an `inet_diag_req_v2`.
fn write_tcp(out: &mut Vec<u8>, states: u32, local: SocketAddr, remote: SocketAddr) {
    let (family, interface) = match local {
        SocketAddr::V4(_) => (AF_INET, 0),
        SocketAddr::V6(address) => (AF_INET6, address.scope_id()),
    };
    out.extend([family, IPPROTO_TCP, 0, 0]);
    out.extend(states.to_ne_bytes());
    out.extend(local.port().to_be_bytes());
    out.extend(remote.port().to_be_bytes());
    for address in [local, remote] {
        match address.ip() {
            IpAddr::V4(address) => {
                out.extend(address.octets());
                out.extend([0; 12]);
            }
            IpAddr::V6(address) => out.extend(address.octets()),
        }
    }
    for number in [interface, NO_COOKIE, NO_COOKIE] {
        out.extend(number.to_ne_bytes());
    }
}

/// No address, of the family of `like`.
fn unspecified(like: IpAddr) -> SocketAddr {
    let address: IpAddr = match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, 0)
}

impl SocketAnswers<'_> {
    /// The answers in `bytes`, which one recv(2) has returned, to the query with this `sequence`.
    pub fn new(bytes: &[u8], sequence: u32) -> SocketAnswers<'_> {
        SocketAnswers {
            rest: bytes,
            sequence,
        }
    }
}

impl Iterator for SocketAnswers<'_> {
    type Item = Result<SocketAnswer, MalformedAnswer>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let Some((kind, sequence, content)) = take_message(&mut self.rest) else {
                self.rest = &[];
                return Some(Err(MalformedAnswer));
            };
            if sequence != self.sequence {
                continue;
            }
            let answer = match kind {
                NLMSG_ERROR => NativeFields(content).u32().map(end),
                // Old kernels say nothing more.
                NLMSG_DONE => Some(end(NativeFields(content).u32().unwrap_or(0))),
                SOCK_DIAG_BY_FAMILY => read_socket(content),
                _ => continue,
            };
            return Some(answer.ok_or(MalformedAnswer));
        }
        None
    }
}

/// `error` is 0 or a negative errno.
fn end(error: u32) -> SocketAnswer {
    match error as i32 {
        0 => SocketAnswer::Done,
        error => SocketAnswer::Failed(error.saturating_neg()),
    }
}

/// Removes the first message, and returns its type, its sequence number and its content. `None`: there is no
/// whole one.
fn take_message<'b>(rest: &mut &'b [u8]) -> Option<(u16, u32, &'b [u8])> {
    let mut fields = NativeFields(rest);
    let length = fields.u32()? as usize;
    let kind = fields.u16()?;
    let _flags = fields.u16()?;
    let sequence = fields.u32()?;
    let content = rest.get(HEADER_BYTES..length)?;
    *rest = after(rest, length);
    Some((kind, sequence, content))
}

fn read_socket(content: &[u8]) -> Option<SocketAnswer> {
    match *content.first()? {
        AF_UNIX => read_unix(content).map(SocketAnswer::Unix),
        AF_INET | AF_INET6 => read_tcp(content).map(SocketAnswer::Tcp),
        _ => None,
    }
}

/// Reads a `unix_diag_msg` with its attributes.
fn read_unix(content: &[u8]) -> Option<UnixSocket> {
    let mut fields = NativeFields(content);
    let [_family, _kind, state, _padding] = fields.bytes()?;
    let mut socket = UnixSocket {
        inode: fields.u32()?,
        is_listening: state == LISTEN,
        ..UnixSocket::default()
    };
    let _cookie: [u8; 8] = fields.bytes()?;
    let mut rest = fields.0;
    while !rest.is_empty() {
        let (kind, value) = take_attribute(&mut rest)?;
        let mut value = NativeFields(value);
        match kind {
            UNIX_DIAG_NAME => {
                // The kernel ends a path with a NUL. An abstract name begins with one.
                let name = value.0.strip_suffix(&[0]).unwrap_or(value.0);
                socket.name = name.to_vec();
            }
            UNIX_DIAG_VFS => {
                let inode = value.u32()?;
                let device = value.u32()?;
                socket.file = Some(SocketFile {
                    inode,
                    major: device >> KERNEL_MINOR_BITS,
                    minor: device & ((1 << KERNEL_MINOR_BITS) - 1),
                });
            }
            UNIX_DIAG_PEER => socket.peer_inode = value.u32()?,
            UNIX_DIAG_RQLEN => {
                socket.receive_queue = value.u32()?;
                socket.send_queue = value.u32()?;
            }
            UNIX_DIAG_SHUTDOWN => {
                let [directions] = value.bytes()?;
                socket.is_shut_down = directions & SHUTDOWN_BOTH == SHUTDOWN_BOTH;
            }
            _ => {}
        }
    }
    Some(socket)
}

/// Reads an `inet_diag_msg`.
fn read_tcp(content: &[u8]) -> Option<TcpEndpoint> {
    let mut fields = NativeFields(content);
    let [_family, state, _timer, _retransmits] = fields.bytes()?;
    let _ports: [u8; 4] = fields.bytes()?;
    let address: [u8; 16] = fields.bytes()?;
    let _remote_address: [u8; 16] = fields.bytes()?;
    let _interface_and_cookie: [u8; 12] = fields.bytes()?;
    let _expires = fields.u32()?;
    let queue = fields.u32()?;
    let _send_queue = fields.u32()?;
    let _user = fields.u32()?;
    let inode = fields.u32()?;
    // The kernel counts the end of the stream as a byte until it is read.
    let ends = matches!(state, CLOSE_WAIT | LAST_ACK | CLOSING);
    Some(TcpEndpoint {
        inode,
        is_listening: state == LISTEN,
        is_unspecified: address == [0; 16],
        has_ended: !matches!(
            state,
            ESTABLISHED | SYN_RECV | NEW_SYN_RECV | CLOSE_WAIT | LISTEN
        ),
        receive_queue: queue.saturating_sub(u32::from(ends)),
    })
}

/// Removes the first attribute. `None`: it is incomplete.
fn take_attribute<'b>(rest: &mut &'b [u8]) -> Option<(u16, &'b [u8])> {
    let mut fields = NativeFields(rest);
    let length = usize::from(fields.u16()?);
    let kind = fields.u16()? & ATTRIBUTE_TYPE_MASK;
    let value = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
    *rest = after(rest, length);
    Some((kind, value))
}

/// What follows the first `length` bytes and their padding.
fn after(bytes: &[u8], length: usize) -> &[u8] {
    let next = length.checked_next_multiple_of(4);
    next.and_then(|next| bytes.get(next..)).unwrap_or_default()
}

/// Bytes that are read from the front.
struct NativeFields<'b>(&'b [u8]);

impl NativeFields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }
}

const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The longest query: `inet_diag_req_v2` after the header.
const QUERY_BYTES_MAX: usize = HEADER_BYTES + 56;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST.
const REQUEST: u16 = 1;
/// NLM_F_DUMP.
const DUMP: u16 = 0x300;
/// NLA_TYPE_MASK.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// INET_DIAG_NOCOOKIE: the socket is found by the other fields alone.
const NO_COOKIE: u32 = u32::MAX;
const ALL_STATES: u32 = u32::MAX;

/// UDIAG_SHOW_NAME, _VFS, _PEER and _RQLEN.
const SHOW_NAME: u32 = 1;
const SHOW_FILE: u32 = 2;
const SHOW_PEER: u32 = 4;
const SHOW_QUEUES: u32 = 0x10;

const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_RQLEN: u16 = 4;
const UNIX_DIAG_SHUTDOWN: u16 = 6;
/// RCV_SHUTDOWN and SEND_SHUTDOWN.
const SHUTDOWN_BOTH: u8 = 3;
/// The kernel's own device numbers, which `udiag_vfs_dev` is, have the minor number in the lower 20 bits.
/// Those of stat(2) do not.
const KERNEL_MINOR_BITS: u32 = 20;

// States of TCP, in part also of unix sockets.
const ESTABLISHED: u8 = 1;
const SYN_RECV: u8 = 3;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const LISTEN: u8 = 10;
const CLOSING: u8 = 11;
const NEW_SYN_RECV: u8 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: u32 = 7;

    /// A message of the kernel with padding.
    fn message(kind: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(((HEADER_BYTES + content.len()) as u32).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(0_u16.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend(content);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(((ATTRIBUTE_HEADER_BYTES + value.len()) as u16).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    fn unix(state: u8, inode: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let head = [&[AF_UNIX, 1, state, 0][..], &numbers(&[inode, 8, 9])].concat();
        [head, attributes.concat()].concat()
    }

    fn tcp(state: u8, queue: u32, inode: u32) -> Vec<u8> {
        let head = [AF_INET, state, 0, 0];
        [
            &head[..],
            &[0xff; 48],
            &numbers(&[1, queue, 2, 3, inode]),
            &attribute(15, &[0; 8]),
        ]
        .concat()
    }

    fn answers(bytes: &[u8]) -> Vec<Result<SocketAnswer, MalformedAnswer>> {
        SocketAnswers::new(bytes, SEQUENCE).collect()
    }

    fn tcp_answer(state: u8, queue: u32, inode: u32) -> TcpEndpoint {
        let bytes = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &tcp(state, queue, inode));
        match answers(&bytes).as_slice() {
            [Ok(SocketAnswer::Tcp(endpoint))] => *endpoint,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_query_for_a_unix_socket() {
        let expected = [
            &numbers(&[40])[..],
            &20_u16.to_ne_bytes(),
            &1_u16.to_ne_bytes(),
            &numbers(&[SEQUENCE, 0]),
            &[1, 0, 0, 0],
            &numbers(&[u32::MAX, 99, 0x14, u32::MAX, u32::MAX]),
        ];
        let query = SocketQuery::Unix { inode: 99 };
        assert_eq!(query.encode(SEQUENCE), expected.concat());
    }

    #[test]
    fn a_query_for_tcp_has_ports_and_addresses_in_network_order() {
        let query = SocketQuery::Tcp {
            local: "192.0.2.1:80".parse().expect("an address"),
            remote: "192.0.2.2:4660".parse().expect("an address"),
        };
        let bytes = query.encode(SEQUENCE);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..4], 72_u32.to_ne_bytes());
        assert_eq!(bytes[16..20], [2, 6, 0, 0]);
        assert_eq!(bytes[24..28], [0, 80, 0x12, 0x34]);
        assert_eq!(bytes[28..32], [192, 0, 2, 1]);
        assert_eq!(bytes[44..48], [192, 0, 2, 2]);
        assert_eq!(bytes[60..], numbers(&[0, u32::MAX, u32::MAX]));
        let query = SocketQuery::TcpListener {
            address: "[fe80::1%3]:80".parse().expect("an address"),
        };
        let bytes = query.encode(SEQUENCE);
        assert_eq!(bytes[16..18], [10, 6]);
        assert_eq!(bytes[24..28], [0, 80, 0, 0]);
        assert_eq!(bytes[28..30], [0xfe, 0x80]);
        assert_eq!(bytes[44..60], [0; 16]);
        assert_eq!(bytes[60..64], 3_u32.to_ne_bytes());
    }

    #[test]
    fn a_connected_unix_socket() {
        let content = unix(
            ESTABLISHED,
            5,
            &[
                attribute(UNIX_DIAG_PEER, &numbers(&[6])),
                attribute(99, b"unknown"),
                attribute(UNIX_DIAG_RQLEN, &numbers(&[10, 768])),
                attribute(UNIX_DIAG_SHUTDOWN, &[3]),
            ],
        );
        let expected = UnixSocket {
            inode: 5,
            peer_inode: 6,
            receive_queue: 10,
            send_queue: 768,
            is_shut_down: true,
            ..UnixSocket::default()
        };
        let bytes = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &content);
        assert_eq!(answers(&bytes), [Ok(SocketAnswer::Unix(expected))]);
    }

    #[test]
    fn listeners_until_the_end() {
        let named = |inode, name: &[u8]| {
            let attributes = [
                attribute(UNIX_DIAG_NAME, name),
                attribute(UNIX_DIAG_VFS, &numbers(&[77, (254 << 20) | 3])),
                attribute(UNIX_DIAG_SHUTDOWN, &[1]),
            ];
            let content = unix(LISTEN, inode, &attributes);
            message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &content)
        };
        let bytes = [
            named(1, b"/run/a\0"),
            named(2, b"\0abstract"),
            message(NLMSG_DONE, SEQUENCE, &numbers(&[0])),
        ]
        .concat();
        let expected = |inode, name: &[u8]| UnixSocket {
            inode,
            is_listening: true,
            name: name.to_vec(),
            file: Some(SocketFile {
                inode: 77,
                major: 254,
                minor: 3,
            }),
            ..UnixSocket::default()
        };
        let expected = [
            Ok(SocketAnswer::Unix(expected(1, b"/run/a"))),
            Ok(SocketAnswer::Unix(expected(2, b"\0abstract"))),
            Ok(SocketAnswer::Done),
        ];
        assert_eq!(answers(&bytes), expected);
    }

    #[test]
    fn states_of_tcp() {
        let endpoint = tcp_answer(ESTABLISHED, 5, 3);
        assert!(!endpoint.is_unspecified);
        assert_eq!((endpoint.receive_queue, endpoint.inode), (5, 3));
        assert!(!endpoint.has_ended && !endpoint.is_listening);
        assert!(tcp_answer(LISTEN, 2, 3).is_listening);
        for state in [ESTABLISHED, SYN_RECV, NEW_SYN_RECV, CLOSE_WAIT, LISTEN] {
            assert!(!tcp_answer(state, 0, 0).has_ended, "{state}");
        }
        for state in [2, 4, 5, 6, 7, LAST_ACK, CLOSING, 200] {
            assert!(tcp_answer(state, 0, 0).has_ended, "{state}");
        }
    }

    #[test]
    fn a_listener_at_all_addresses() {
        let mut content = tcp(LISTEN, 1, 3);
        content[8..24].fill(0);
        let bytes = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &content);
        let found = answers(&bytes);
        assert!(matches!(found[..], [Ok(SocketAnswer::Tcp(endpoint))] if endpoint.is_unspecified));
    }

    #[test]
    fn the_end_of_a_tcp_stream_is_no_unread_byte() {
        for (queue, unread) in [(0, 0), (1, 0), (6, 5)] {
            assert_eq!(tcp_answer(CLOSE_WAIT, queue, 3).receive_queue, unread);
        }
    }

    #[test]
    fn errors_and_the_end() {
        let error = |number: i32| {
            let content = [&number.to_ne_bytes()[..], &[0; 16]].concat();
            answers(&message(NLMSG_ERROR, SEQUENCE, &content))
        };
        assert_eq!(error(-2), [Ok(SocketAnswer::Failed(2))]);
        assert_eq!(error(i32::MIN), [Ok(SocketAnswer::Failed(i32::MAX))]);
        assert_eq!(error(0), [Ok(SocketAnswer::Done)]);
        let done = |content: &[u8]| answers(&message(NLMSG_DONE, SEQUENCE, content));
        assert_eq!(done(b""), [Ok(SocketAnswer::Done)]);
        assert_eq!(done(&(-2_i32).to_ne_bytes()), [Ok(SocketAnswer::Failed(2))]);
    }

    #[test]
    fn answers_to_other_queries_and_unknown_messages_are_left_out() {
        let bytes = [
            message(NLMSG_DONE, SEQUENCE - 1, &numbers(&[0])),
            message(SOCK_DIAG_BY_FAMILY, SEQUENCE + 1, b"?"),
            message(99, SEQUENCE, b"unknown"),
            message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &tcp(LISTEN, 3, 4)),
        ]
        .concat();
        let found = answers(&bytes);
        assert!(
            matches!(found[..], [Ok(SocketAnswer::Tcp(endpoint))] if endpoint.receive_queue == 3),
            "{found:?}"
        );
        assert_eq!(SocketAnswers::new(&bytes, SEQUENCE + 9).count(), 0);
    }

    #[test]
    fn what_is_cut_off_is_malformed() {
        let attributes = [
            attribute(UNIX_DIAG_PEER, &numbers(&[6])),
            attribute(UNIX_DIAG_RQLEN, &numbers(&[10, 768])),
        ];
        let contents = [unix(ESTABLISHED, 5, &attributes), tcp(ESTABLISHED, 1, 2)];
        for content in contents {
            let bytes = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &content);
            for end in 1..bytes.len() {
                assert_eq!(answers(&bytes[..end]), [Err(MalformedAnswer)], "{end}");
            }
        }
        // The message is whole and its content is not.
        for content in [
            &b""[..],
            &[AF_UNIX, 1, 1, 0],
            &[AF_INET; 71],
            &[99; 100],
            &unix(1, 5, &[numbers(&[0])]),
            &unix(1, 5, &[attribute(UNIX_DIAG_RQLEN, &numbers(&[1]))]),
            &unix(1, 5, &[attribute(UNIX_DIAG_PEER, &[])]),
        ] {
            let bytes = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, content);
            assert_eq!(answers(&bytes), [Err(MalformedAnswer)], "{content:?}");
        }
        assert_eq!(
            answers(&numbers(&[15, 0, SEQUENCE, 0])),
            [Err(MalformedAnswer)]
        );
        assert_eq!(answers(&[0xff; 32]), [Err(MalformedAnswer)]);
    }
}
