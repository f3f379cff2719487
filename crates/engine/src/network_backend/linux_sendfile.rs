//! `linux-sendfile`: the kernel sends from the page cache, and waits where the file is not there.
//!
//! The cheapest way for what is in the page cache: sendfile(2) costs 72 ms of CPU a GB, reading and writing
//! 167. `auto` uses it for stretches that were just seen to be there.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use super::write::taken;
use super::{Sent, Stretch};
use crate::transport::Transport;

/// Sends the prefix held back, then the file.
pub(super) fn sendfile(
    transport: &mut Transport,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<Sent> {
    if !stretch.prefix.is_empty() {
        return taken(send_held_back(transport, stretch.prefix, context));
    }
    let Some(descriptor) = stretch.file.descriptor() else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let (offset, count) = (stretch.range.start, stretch.file_bytes_max());
    send_range(transport, descriptor, offset, count, context)
}

/// Sends `count` bytes of a file.
pub(super) fn send_range(
    transport: &mut Transport,
    file: BorrowedFd<'_>,
    offset: u64,
    count: usize,
    context: &mut Context<'_>,
) -> io::Result<Sent> {
    let sent = transport.poll_send_with(context, |socket| {
        let mut offset = offset;
        Ok(rustix::fs::sendfile(
            socket,
            file,
            Some(&mut offset),
            count,
        )?)
    });
    match taken(sent)? {
        Sent::Bytes(0) if count > 0 => Ok(Sent::Truncated),
        other => Ok(other),
    }
}

/// Sends bytes that the kernel may hold back until the file behind them comes.
pub(super) fn send_held_back(
    transport: &mut Transport,
    prefix: &[u8],
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    transport.poll_send_with(context, |socket| {
        let flags = rustix::net::SendFlags::MORE | rustix::net::SendFlags::NOSIGNAL;
        Ok(rustix::net::send(socket, prefix, flags)?)
    })
}
