//! Socket calls that rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// TCP_DEFER_ACCEPT: a connection is accepted when its first byte has arrived, or after `seconds` without
/// one. 0 turns it off.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_tcp_defer_accept(socket: impl AsFd, seconds: u16) -> io::Result<()> {
    set_tcp(socket, libc::TCP_DEFER_ACCEPT, seconds.into())
}

/// TCP_NOTSENT_LOWAT: the kernel takes no more bytes while it has `bytes` that it has not sent yet. 0: the
/// system's default (`net.ipv4.tcp_notsent_lowat`).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_tcp_unsent_max(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_tcp(socket, libc::TCP_NOTSENT_LOWAT, bytes)
}

fn set_tcp(socket: impl AsFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    let pointer = (&raw const value).cast();
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes at `pointer` and keeps no pointer after the call. `pointer`
    // points to `value`, which has that size and lives until the function returns. The descriptor is borrowed
    // from `socket`, so it is open.
    let result =
        unsafe { libc::setsockopt(descriptor, libc::IPPROTO_TCP, option, pointer, length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many sent bytes the other side has not acknowledged, including those that the kernel has not sent yet
/// (SIOCOUTQ). For a unix socket: what the other side has not read, plus the kernel's own overhead.
///
/// # Errors
/// `socket` is not a socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: for this request, which is TIOCOUTQ under another name, the kernel writes an int to the place
    // that the pointer points to, and keeps no pointer after the call. The descriptor is borrowed from
    // `socket`, so it is open.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    match result {
        0 => Ok(u64::try_from(count).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel knows of the way to the other side of a TCP connection (TCP_INFO, tcp(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpPath {
    /// The smoothed round-trip time, in microseconds.
    pub rtt_us: u32,
    /// Segments that were sent so far.
    pub segments: u32,
    /// Segments that were sent again.
    pub retransmitted: u32,
}

/// Asks the kernel for the way of a TCP connection. One system call.
///
/// # Errors
/// `socket` is not a TCP socket.
pub fn tcp_path(socket: impl AsFd) -> io::Result<TcpPath> {
    // The beginning of struct tcp_info (linux/tcp.h), which never changes: eight bytes, then u32 fields.
    // `tcpi_segs_out` came with Linux 4.2; an older kernel leaves it 0.
    let mut info = [0_u32; 48];
    let mut length = size_of_val(&info) as libc::socklen_t;
    let pointer = info.as_mut_ptr().cast();
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes at `pointer`, which points to that many, and keeps no
    // pointer after the call. Every bit pattern is a valid u32. The descriptor is borrowed from `socket`.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            pointer,
            &raw mut length,
        )
    };
    match result {
        0 => Ok(TcpPath {
            rtt_us: info[RTT_FIELD],
            segments: info[SEGMENTS_FIELD],
            retransmitted: info[RETRANSMITTED_FIELD],
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The place of `tcpi_rtt` in struct tcp_info, counted in u32.
const RTT_FIELD: usize = std::mem::offset_of!(libc::tcp_info, tcpi_rtt) / 4;
/// The place of `tcpi_total_retrans`.
const RETRANSMITTED_FIELD: usize = std::mem::offset_of!(libc::tcp_info, tcpi_total_retrans) / 4;
/// The place of `tcpi_segs_out`: after `tcpi_total_retrans` there are two u64 of pacing rates, two u64 of
/// byte counts, and then this field.
const SEGMENTS_FIELD: usize = (RETRANSMITTED_FIELD + 1).next_multiple_of(2) + 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn the_kernel_tells_the_way_of_a_tcp_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("it is bound");
        let mut sender = std::net::TcpStream::connect(address).expect("it listens");
        let (mut reader, _) = listener.accept().expect("a connection");
        sender.write_all(b"abc").expect("it is open");
        reader.read_exact(&mut [0; 3]).expect("it came");
        let path = tcp_path(&sender).expect("a TCP socket");
        assert!((1..1_000_000).contains(&path.rtt_us), "{path:?}");
        // At least the SYN and the bytes; on the loopback nothing is lost.
        assert!((2..100).contains(&path.segments), "{path:?}");
        assert_eq!(path.retransmitted, 0);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(tcp_path(&unix).is_err());
    }

    #[test]
    fn what_the_other_side_has_not_taken_is_unacknowledged() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("it is bound");
        let mut sender = std::net::TcpStream::connect(address).expect("it listens");
        let (mut reader, _) = listener.accept().expect("a connection");
        assert_eq!(unacknowledged(&sender).ok(), Some(0));
        sender.set_nonblocking(true).expect("a socket");
        let (bytes, mut sent) = (vec![0; 1 << 20], 0);
        while let Ok(count) = sender.write(&bytes) {
            sent += count as u64;
        }
        let queued = unacknowledged(&sender).expect("a socket");
        assert!((1..=sent).contains(&queued), "{queued} of {sent}");
        sender
            .shutdown(std::net::Shutdown::Write)
            .expect("it is open");
        let read = reader
            .read_to_end(&mut Vec::new())
            .expect("it is all there");
        assert_eq!(read as u64, sent);
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while unacknowledged(&sender).is_ok_and(|queued| queued > 0) {
            assert!(std::time::Instant::now() < patience);
            std::thread::yield_now();
        }
        let file = std::fs::File::open("/dev/null").expect("always there");
        unacknowledged(&file).expect_err("no socket");
    }

    #[test]
    fn options_take_hold_and_a_file_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        set_tcp_defer_accept(&listener, 3).expect("an option of TCP sockets");
        set_tcp_unsent_max(&listener, 1000).expect("an option of TCP sockets");
        let file = std::fs::File::open("/dev/null").expect("always there");
        let error = set_tcp_defer_accept(&file, 3).expect_err("no socket");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
