//! `gthread-sendfile`: disk threads call sendfile(2). So the worker does not wait, and no bytes are copied.
//! One call sends what a connection may send in its turn
//! ([`SEND_TURN_BYTES`](crate::limits::SEND_TURN_BYTES)).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::file_reader::FileReader;
use super::steps::ask_for;
use super::write::taken;
use super::{NetworkBackend, SendResult, Stretch};
use crate::blocking::{self, Class, RunningJob};
use crate::file_cache::FileEntry;
use crate::transport::{ClientSocket, FileSender};

/// A call that a thread is making.
pub(super) struct Call {
    file: Rc<FileEntry>,
    offset: u64,
    running: RunningJob<io::Result<usize>>,
    sender: Arc<FileSender>,
    is_over: bool,
}

/// Sends the prefix, then lets a thread send from the file. `reader` knows the client and has the deadline.
pub(super) fn send(
    call: &mut Option<Call>,
    reader: &mut FileReader,
    socket: &mut ClientSocket,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<SendResult> {
    if !stretch.prefix.is_empty() {
        return taken(socket.poll_write_ahead(context, stretch.prefix));
    }
    loop {
        let current = match call {
            Some(current) if current.is_for(stretch) => current,
            _ => match socket.poll_write_ready(context) {
                Poll::Ready(Ok(())) => call.insert(Call::begin(socket, stretch, reader.client())?),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(SendResult::WaitsForClient),
            },
        };
        let polled = Pin::new(&mut current.running).poll(context);
        let polled = polled.map(|sent| sent.unwrap_or_else(|lost| Err(lost.into())));
        let is_over = polled.is_ready();
        let Poll::Ready(sent) = reader.limit(polled, context) else {
            return Ok(SendResult::WaitsForDisk);
        };
        if is_over {
            current.is_over = true;
            *call = None;
        }
        match sent {
            Ok(0) => return Ok(SendResult::Truncated),
            Ok(count) => {
                let accounts = &stretch.readers.accounts;
                accounts.count_async(NetworkBackend::GthreadSendfile, count);
                return Ok(SendResult::Bytes(count));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.clear_write_ready();
            }
            Err(error) => return Err(error),
        }
    }
}

impl Call {
    fn begin(socket: &ClientSocket, stretch: &Stretch<'_>, client: u64) -> io::Result<Call> {
        let sender = Arc::new(socket.file_sender()?);
        let shared = Arc::clone(&sender);
        let descriptor = stretch
            .file
            .share_descriptor()
            .ok_or(io::ErrorKind::NotFound)?;
        let (offset, length) = (stretch.range.start, stretch.file_bytes_max());
        let origin = stretch.file.origin(client, length);
        let running = blocking::run_for(Class::Read, origin, move || {
            ask_for(&*descriptor, offset..offset + length as u64);
            shared.send(&*descriptor, offset, length)
        });
        Ok(Call {
            file: Rc::clone(stretch.file),
            offset,
            running,
            sender,
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
            // The connection ends before the response is complete. The thread may hang as long as the disk
            // does, and its duplicate of the socket would keep the connection open. So shut the socket down
            // now.
            self.sender.shut_down();
        }
    }
}
