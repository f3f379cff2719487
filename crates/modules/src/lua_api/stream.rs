//! `petrel.stream`: an answer that a script goes on writing after its head was sent.
//!
//! `petrel.stream(function(write) … end)` gives the answer a body that the function produces. Each
//! `write(text)` passes a piece on, and waits while the client has a certain amount left to read. The
//! function may wait for anything, but it cannot use the request, which is over for scripts by then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, BodySource, Piece};
use petrel_engine::log::LogHandle;
use petrel_lua::mlua::{self, BorrowedBytes, Function, Table};
use petrel_lua::{Lent, Machine, Progress, Run, ScriptError};

use crate::lua::State;

/// `write` waits while more bytes than this were written and not sent.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// The key under which an exchange keeps the body until the answer takes it.
const KEPT: &str = "petrel.stream";

/// Adds `petrel.stream`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let lent = Rc::clone(state.lent());
    // Weak, because the state owns the function and must not be kept alive by it.
    let machine = Rc::downgrade(state.machine());
    let stream = state
        .machine()
        .lua()
        .create_function(move |_, write: Function| {
            let machine = machine.upgrade().ok_or_else(super::no_request)?;
            let streamed = Rc::new(Streamed {
                machine,
                function: write,
                lent: Rc::clone(&lent),
            });
            lent.with(|exchange| exchange.keep(KEPT, streamed))
                .ok_or_else(super::no_request)
        })?;
    petrel.set("stream", stream)
}

/// A body that a script has asked to be streamed.
struct Streamed {
    machine: Rc<Machine>,
    function: Function,
    /// While the body is polled, the lent request is not that of this script: it belongs to a script that
    /// waits for the answer.
    lent: Rc<Lent<Exchange>>,
}

/// The body that a script has set with `petrel.stream`, if it has. Called by the module that makes the
/// answer.
pub(crate) fn take_body(exchange: &mut Exchange) -> Option<Body> {
    let streamed = exchange.kept::<Streamed>(KEPT)?;
    // Replaces the body that is kept, so that it is not taken twice.
    exchange.keep(KEPT, Rc::new(()));
    Some(Body::Source(Box::new(StreamBody {
        streamed,
        pipe: Rc::default(),
        run: StreamStage::Begins,
        log: exchange.settings.core.error_log.clone(),
    })))
}

/// The pieces on their way from the function to the connection.
#[derive(Default)]
struct Pipe {
    pieces: RefCell<VecDeque<Bytes>>,
    bytes: Cell<usize>,
    /// The task of the run, while `write` waits for room.
    writer: RefCell<Option<Waker>>,
}

struct StreamBody {
    streamed: Rc<Streamed>,
    pipe: Rc<Pipe>,
    run: StreamStage,
    log: LogHandle,
}

enum StreamStage {
    Begins,
    Runs(Run),
    Over,
}

impl BodySource for StreamBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        let lent = Rc::clone(&self.streamed.lent);
        lent.without(|| self.poll_next(context))
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

impl StreamBody {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        loop {
            if let Some(bytes) = self.pipe.take() {
                return Poll::Ready(Some(Ok(Piece::Bytes(bytes))));
            }
            let result = match &mut self.run {
                StreamStage::Over => return Poll::Ready(None),
                StreamStage::Begins => match self.begin() {
                    Ok(Progress::Waits(run)) => {
                        self.run = StreamStage::Runs(run);
                        continue;
                    }
                    Ok(Progress::Ended(_)) => Ok(()),
                    Err(error) => Err(error),
                },
                StreamStage::Runs(run) => match run.poll(context) {
                    Poll::Ready(result) => result.map(drop),
                    // The function may have written before it waited.
                    Poll::Pending if self.pipe.bytes.get() > 0 => continue,
                    Poll::Pending => return Poll::Pending,
                },
            };
            self.run = StreamStage::Over;
            if let Err(error) = result {
                self.log
                    .error(format_args!("(lua) while an answer is streamed: {error}"));
                return Poll::Ready(Some(Err(io::Error::other("the script failed"))));
            }
        }
    }

    /// Calls the function for the first time.
    fn begin(&self) -> Result<Progress, ScriptError> {
        let Streamed {
            machine, function, ..
        } = &*self.streamed;
        let write =
            write_function(machine, &self.pipe).map_err(|error| ScriptError::from(&error))?;
        Run::call(machine, "petrel.stream", function, write)
    }
}

/// The function `write(text)` of one stream.
fn write_function(machine: &Machine, pipe: &Rc<Pipe>) -> mlua::Result<Function> {
    let pipe = Rc::clone(pipe);
    machine.waiting(move |_, text: BorrowedBytes| {
        pipe.put(&text);
        let pipe = Rc::clone(&pipe);
        Ok(std::future::poll_fn(move |context| {
            if pipe.bytes.get() <= AHEAD_BYTES_MAX {
                return Poll::Ready(Ok(()));
            }
            pipe.writer.replace(Some(context.waker().clone()));
            Poll::Pending
        }))
    })
}

impl Pipe {
    fn put(&self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        self.bytes.set(self.bytes.get() + text.len());
        self.pieces
            .borrow_mut()
            .push_back(Bytes::copy_from_slice(text));
    }

    fn take(&self) -> Option<Bytes> {
        let bytes = self.pieces.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - bytes.len());
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Some(bytes)
    }
}
