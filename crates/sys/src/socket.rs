//! Socket options of TCP that rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// TCP_DEFER_ACCEPT: a connection is accepted when its first byte is there, or after `seconds`
/// of waiting for it. 0 turns it off.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_tcp_defer_accept(socket: impl AsFd, seconds: u16) -> io::Result<()> {
    set_tcp(socket, libc::TCP_DEFER_ACCEPT, seconds.into())
}

/// TCP_NOTSENT_LOWAT: the kernel takes no more from us while it holds `bytes` that it has not sent to the peer yet.
/// 0: as many as the system's default allows (`net.ipv4.tcp_notsent_lowat`).
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
    // SAFETY: the kernel reads `length` bytes at `pointer` and keeps no pointer after the call;
    // `pointer` points at `value`, which has that size and lives until the function returns. The
    // descriptor is open: it is borrowed from `socket`.
    let result =
        unsafe { libc::setsockopt(descriptor, libc::IPPROTO_TCP, option, pointer, length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
