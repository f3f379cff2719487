//! `write` and `writev`: the worker reads and writes, and waits for the disk if the file is not in memory.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::{SendResult, Stretch};
use crate::transport::ClientSocket;

/// Sends the prefix, then the file.
pub(super) fn write(
    socket: &mut ClientSocket,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<SendResult> {
    if !stretch.prefix.is_empty() {
        return taken(socket.poll_write(context, stretch.prefix));
    }
    writev(socket, stretch, context)
}

/// Sends the prefix and the beginning of the file with one call.
pub(super) fn writev(
    socket: &mut ClientSocket,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<SendResult> {
    let mut buffer = [0; READ_BYTES];
    let wanted = stretch.file_bytes_max().min(READ_BYTES);
    let count = stretch
        .file
        .read_at(&mut buffer[..wanted], stretch.range.start)?;
    if count == 0 && wanted > 0 {
        return Ok(SendResult::Truncated);
    }
    send(socket, stretch.prefix, &buffer[..count], context)
}

/// Sends two byte slices with one call.
pub(super) fn send(
    socket: &mut ClientSocket,
    prefix: &[u8],
    bytes: &[u8],
    context: &mut Context<'_>,
) -> io::Result<SendResult> {
    taken(match prefix.is_empty() {
        true => socket.poll_write(context, bytes),
        false => socket.poll_write_vectored(context, &[IoSlice::new(prefix), IoSlice::new(bytes)]),
    })
}

/// Turns the result of a write to the socket into a [`SendResult`].
pub(super) fn taken(polled: Poll<io::Result<usize>>) -> io::Result<SendResult> {
    match polled {
        Poll::Ready(count) => Ok(SendResult::Bytes(count?)),
        Poll::Pending => Ok(SendResult::WaitsForClient),
    }
}

/// The buffer is on the stack, so it must be small.
const READ_BYTES: usize = 64 * 1024;
