//! The socket option that neither rustix nor socket2 has.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// TCP_DEFER_ACCEPT: a connection is accepted when its first byte is there, or after `seconds`
/// of waiting for it. 0 turns it off.
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_tcp_defer_accept(socket: impl AsFd, seconds: u16) -> io::Result<()> {
    let seconds = libc::c_int::from(seconds);
    let length = size_of_val(&seconds) as libc::socklen_t;
    let value = (&raw const seconds).cast();
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `length` bytes at `value` and keeps no pointer after the call;
    // `value` points at `seconds`, which has that size and lives until the function returns. The
    // descriptor is open: it is borrowed from `socket`.
    let result = unsafe {
        libc::setsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            value,
            length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defer_accept_takes_hold_and_a_file_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        set_tcp_defer_accept(&listener, 3).expect("an option of TCP sockets");
        let file = std::fs::File::open("/dev/null").expect("always there");
        let error = set_tcp_defer_accept(&file, 3).expect_err("no socket");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
