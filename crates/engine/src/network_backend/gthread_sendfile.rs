//! `gthread-sendfile`: threads call sendfile(2), so that neither the worker waits nor bytes are copied. A call is
//! for what a connection may send in its turn ([`SEND_TURN_BYTES`](crate::limits::SEND_TURN_BYTES)).

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::counters::count_async;
use super::steps::ask_for;
use super::write::taken;
use super::{Sent, Stretch, linux_sendfile};
use crate::blocking::{self, Class, Running};
use crate::file_cache::FileEntry;
use crate::settings::core::NetworkBackend;
use crate::transport::Transport;

/// A call that a thread makes.
pub(super) struct Call {
    file: Rc<FileEntry>,
    offset: u64,
    running: Running<io::Result<Outcome>>,
    /// The thread's own, so that the connection may end while it is at it.
    socket: Arc<OwnedFd>,
    is_over: bool,
}

/// What the thread's call has come to.
enum Outcome {
    Bytes(usize),
    /// The socket was full: the worker waits until it is not.
    Full,
}

/// Sends the prefix, then lets a thread send from the file.
pub(super) fn send(
    call: &mut Option<Call>,
    transport: &mut Transport,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<Sent> {
    if !stretch.prefix.is_empty() {
        return taken(linux_sendfile::send_held_back(
            transport,
            stretch.prefix,
            context,
        ));
    }
    loop {
        let current = match call {
            Some(current) if current.is_for(stretch) => current,
            _ => match transport.poll_write_ready(context) {
                Poll::Ready(Ok(())) => call.insert(Call::begin(transport, stretch)?),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(Sent::WaitsForClient),
            },
        };
        let Poll::Ready(outcome) = Pin::new(&mut current.running).poll_result(context) else {
            return Ok(Sent::WaitsForDisk);
        };
        current.is_over = true;
        *call = None;
        match outcome? {
            Outcome::Bytes(0) => return Ok(Sent::Truncated),
            Outcome::Bytes(count) => {
                count_async(NetworkBackend::GthreadSendfile, count);
                return Ok(Sent::Bytes(count));
            }
            Outcome::Full => transport.clear_write_ready(),
        }
    }
}

impl Call {
    fn begin(transport: &Transport, stretch: &Stretch<'_>) -> io::Result<Call> {
        let socket = Arc::new(transport.duplicate()?);
        let shared = Arc::clone(&socket);
        let descriptor = stretch
            .file
            .share_descriptor()
            .ok_or(io::ErrorKind::NotFound)?;
        let (offset, length) = (stretch.range.start, stretch.file_bytes_max());
        let origin = stretch.file.origin(stretch.client, length);
        let running = blocking::run_for(Class::Read, origin, move || {
            ask_for(&*descriptor, offset..offset + length as u64);
            call_sendfile(&shared, &*descriptor, offset, length)
        });
        Ok(Call {
            file: Rc::clone(stretch.file),
            offset,
            running,
            socket,
            is_over: false,
        })
    }

    fn is_for(&self, stretch: &Stretch<'_>) -> bool {
        Rc::ptr_eq(&self.file, stretch.file) && self.offset == stretch.range.start
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_over {
            // The connection ends within an answer. The thread may hang for as long as the disk does, and its
            // descriptor would keep the connection open: the client is told now. It may have gone first.
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

fn call_sendfile(
    socket: &OwnedFd,
    file: impl std::os::fd::AsFd,
    offset: u64,
    length: usize,
) -> io::Result<Outcome> {
    let mut at = offset;
    match rustix::fs::sendfile(socket, file, Some(&mut at), length) {
        Ok(count) => Ok(Outcome::Bytes(count)),
        Err(rustix::io::Errno::AGAIN) => Ok(Outcome::Full),
        Err(errno) => Err(errno.into()),
    }
}

/// The two errors of a job in one.
trait PollResult<T> {
    fn poll_result(self, context: &mut Context<'_>) -> Poll<io::Result<T>>;
}

impl<T> PollResult<T> for Pin<&mut Running<io::Result<T>>> {
    fn poll_result(self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        Poll::Ready(
            ready!(std::future::Future::poll(self, context))
                .unwrap_or_else(|lost| Err(lost.into())),
        )
    }
}
