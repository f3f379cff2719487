//! The pipes to a CGI program: its standard input and its standard output.
//!
//! Pipes and not a socket, because programs expect pipes: they can open /dev/stdin and /dev/stdout again, and
//! a program that ends without having read all of its input still ends its output in order, where a socket
//! would be reset.

use std::cell::RefCell;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// This server's ends of the pipes to a program.
#[derive(Debug)]
pub struct Pipes {
    /// The program's standard input; `None` when it is closed.
    input: RefCell<Option<pipe::Sender>>,
    /// The program's standard output.
    output: pipe::Receiver,
    /// The input stays open after the request body, because the program may change the protocol.
    keeps_input: bool,
    /// Notified when the client will send nothing more.
    end_of_client: Option<Rc<Notify>>,
}

impl Pipes {
    /// Takes the ends of two pipes. `end_of_client` is notified when the program is told that the client will
    /// send nothing more.
    ///
    /// # Errors
    /// As fcntl(2) and epoll_ctl(2).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(
        input: PipeWriter,
        output: PipeReader,
        keeps_input: bool,
        end_of_client: Option<Rc<Notify>>,
    ) -> io::Result<Pipes> {
        Ok(Pipes {
            input: RefCell::new(Some(pipe::Sender::from_owned_fd(OwnedFd::from(input))?)),
            output: pipe::Receiver::from_owned_fd(OwnedFd::from(output))?,
            keeps_input,
            end_of_client,
        })
    }

    /// Reads what the program has written; 0 is the end.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }

    /// Writes to the program's input as much as the pipe takes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.input.get_mut() {
            Some(input) => Pin::new(input).poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The request is written: closes the program's input, unless the program may change the protocol.
    pub(crate) fn request_is_sent(&self) {
        if !self.keeps_input {
            self.input.take();
        }
    }

    /// The client will send nothing more: closes the program's input, and notifies the task, which sends a
    /// signal if the configuration wants one.
    pub(crate) fn client_has_ended(&self) {
        self.input.take();
        if let Some(notify) = &self.end_of_client {
            notify.notify_one();
        }
    }
}
