//! How a stretch of a file gets to the socket: `server.network-backend`.
//!
//! One function a way, one line a backend in [`send`]. What is in memory does not come here; it
//! leaves together with the head. sendfile(2) costs 72 ms of CPU a GB, reading and writing 167.

use std::io;
use std::task::{Context, Poll};

use crate::body::Piece;
pub use crate::settings::process::NetworkBackend;
use crate::transport::Transport;

/// Sends up to `bytes_max` bytes from the front of a file piece. `Ok(0)`: the file has become
/// shorter than the piece.
pub(crate) fn send(
    transport: &mut Transport,
    backend: NetworkBackend,
    piece: &Piece,
    bytes_max: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match backend {
        NetworkBackend::Sendfile => sendfile(transport, piece, bytes_max, context),
        NetworkBackend::Writev | NetworkBackend::Write => {
            read_and_write(transport, piece, bytes_max, context)
        }
    }
}

fn sendfile(
    transport: &mut Transport,
    piece: &Piece,
    bytes_max: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let Piece::File { file, range } = piece else {
        return Poll::Ready(Ok(0));
    };
    let Some(descriptor) = file.descriptor() else {
        return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
    };
    let count = usize::try_from(range.end - range.start)
        .unwrap_or(usize::MAX)
        .min(bytes_max);
    transport.poll_send_with(context, |socket| {
        let mut offset = range.start;
        Ok(rustix::fs::sendfile(
            socket,
            descriptor,
            Some(&mut offset),
            count,
        )?)
    })
}

fn read_and_write(
    transport: &mut Transport,
    piece: &Piece,
    bytes_max: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let Piece::File { file, range } = piece else {
        return Poll::Ready(Ok(0));
    };
    let mut buffer = [0; READ_BYTES];
    let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let wanted = left.min(bytes_max).min(READ_BYTES);
    match file.read_at(&mut buffer[..wanted], range.start) {
        Ok(0) => Poll::Ready(Ok(0)),
        Ok(count) => transport.poll_write(context, &buffer[..count]),
        Err(error) => Poll::Ready(Err(error)),
    }
}

/// On the stack, so not more than this.
const READ_BYTES: usize = 64 * 1024;
