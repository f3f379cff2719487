//! A module that answers every request as a test has told it to.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, BodySource, Piece};
use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;

/// The module.
pub static BACKEND: ModuleSpec = ModuleSpec {
    name: "mod_test_backend",
    doc: "Answers as a test wants.",
    loaded: Loaded::Listed,
    directives: &[],
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    configure.add_last(Phase::Authorize, Claim);
    configure.add(Phase::Content, Says);
    Ok(())
}

/// The next answer, and the requests so far.
#[derive(Default)]
struct Script {
    status: u16,
    fields: Vec<(String, String)>,
    parts: Vec<String>,
    way: Way,
    asked: Vec<String>,
}

/// How the body is delivered.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Way {
    /// At once.
    #[default]
    Whole,
    /// Piece by piece.
    Streamed,
    /// Piece by piece, and broken off before the end.
    Broken,
    /// At once, with the head of the request appended.
    Reflecting,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

/// From now on the backend answers like this; `fields` are lines.
pub fn say(status: u16, fields: &str, body: &str) {
    say_in_parts(status, fields, &[body], Way::Whole);
}

/// As [`say`], with the body in parts.
pub(crate) fn say_in_parts(status: u16, fields: &str, parts: &[&str], way: Way) {
    let pair = |line: &str| {
        let (name, value) = line.split_once(':').expect("a field");
        (name.trim().to_owned(), value.trim().to_owned())
    };
    SCRIPT.with_borrow_mut(|script| {
        script.status = status;
        script.fields = fields
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(pair)
            .collect();
        script.parts = parts.iter().map(|part| (*part).to_owned()).collect();
        script.way = way;
    });
}

/// Forgets the answer and the requests.
pub fn forget() {
    SCRIPT.with_borrow_mut(|script| *script = Script::default());
}

/// The heads of the requests it got.
pub fn asked() -> Vec<String> {
    SCRIPT.with_borrow(|script| script.asked.clone())
}

struct Claim;

impl Hook for Claim {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        exchange.physical.is_virtual = true;
        Outcome::Next
    }
}

struct Says;

impl Hook for Says {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        SCRIPT.with_borrow_mut(|script| {
            let head = &exchange.request.head;
            let mut asked = String::from_utf8_lossy(exchange.request.url.target()).into_owned();
            for (name, value) in head.iter() {
                asked.push_str(&format!(
                    "\n{}: {}",
                    String::from_utf8_lossy(name).to_ascii_lowercase(),
                    String::from_utf8_lossy(value)
                ));
            }
            script.asked.push(asked.clone());
            exchange.response.answer_as_told(Status(script.status));
            // An error without a body is the server's, as when no backend can be reached.
            exchange.response.is_final = !script.parts.iter().all(String::is_empty);
            for (name, value) in &script.fields {
                exchange.response.append(name, value.as_bytes());
            }
            let parts = script.parts.iter().cloned();
            exchange.response.body = match script.way {
                Way::Whole => Body::from(parts.collect::<String>().into_bytes()),
                Way::Reflecting => Body::from((parts.collect::<String>() + &asked).into_bytes()),
                way => Body::Source(Box::new(Parts {
                    parts: parts.filter(|part| !part.is_empty()).collect(),
                    breaks: way == Way::Broken,
                })),
            };
            Outcome::Answer
        })
    }
}

struct Parts {
    parts: std::collections::VecDeque<String>,
    breaks: bool,
}

impl BodySource for Parts {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Poll::Ready(match self.parts.pop_front() {
            Some(part) => Some(Ok(Piece::Bytes(Bytes::from(part)))),
            None if self.breaks => {
                // The body ends once before the error, so that a test can collect what came before.
                self.breaks = false;
                Some(Err(io::ErrorKind::ConnectionReset.into()))
            }
            None => None,
        })
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}
