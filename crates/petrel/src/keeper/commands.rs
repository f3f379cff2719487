//! What the commands on the control socket do. Each has the effect of a signal. The reply is sent when that
//! effect has been reached.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::command_socket::{self, Asked, CommandReply, CommandSocket, PeerId};
use super::generation::{self, Generation};
use super::process::{ServerProcess, ServerStage};
use super::{Keeper, Stopping};
use crate::load::Origin;
use crate::terminal::EXIT_FAILURE;
use config::Diagnostics;

/// A command that waits for its reply.
pub(crate) struct Waiting {
    peer: PeerId,
    is_for: For,
}

/// A reload that was successful, and whose reply waits for old server processes to stop accepting.
pub(crate) struct Replaced {
    number: u64,
    answer: CommandReply,
    /// When to reply even if an old server process still accepts connections.
    until: Instant,
}

/// What a command waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// The end of the reload with this number.
    Reload(u64),
    /// The end of the server.
    Stop,
    /// The counts from all server processes, but no longer than until this time.
    Counts(Instant),
}

impl Keeper {
    /// Carries out new commands, and replies to those that are done.
    pub(super) fn tend_commands(&mut self, now: Instant) {
        for asked in self.commands.tend(now) {
            self.obey(asked, now);
        }
        self.answer_status(now);
        self.answer_replaced(now);
        let commands = &self.commands;
        self.waiting.retain(|waiting| commands.has(waiting.peer));
    }

    fn obey(&mut self, asked: Asked, now: Instant) {
        let Asked {
            peer,
            command,
            sender,
        } = asked;
        let words: Vec<&str> = command.split_whitespace().collect();
        let is_for = match words.as_slice() {
            ["reload" | "reopen", ..] if self.stopping.is_some() => {
                return self.refuse_command(peer, "the server is stopping");
            }
            ["reload"] => For::Reload(self.reload(false)),
            ["reload", "now"] => For::Reload(self.reload(true)),
            ["reopen"] => return self.reopen_for(peer),
            ["stop"] => {
                if self.stopping.is_none() {
                    self.stop_gracefully(&format!("by {sender}"));
                }
                For::Stop
            }
            ["stop", "now"] => {
                self.stop_at_once(&sender);
                For::Stop
            }
            ["status"] => {
                for process in &mut self.processes {
                    process.count();
                }
                For::Counts(now + COUNT_TIME)
            }
            ["recorder"] => return self.hand_out_recorder(peer),
            ["snapshot"] => return self.pass_on(peer),
            _ => return self.refuse_command(peer, &format!("there is no command {command:?}")),
        };
        self.waiting.push(Waiting { peer, is_for });
    }

    /// Passes the descriptor by which the recorder's memory can be read.
    fn hand_out_recorder(&mut self, peer: PeerId) {
        match self.recorder.copy_of_descriptor() {
            Some(descriptor) => self.commands.answer_with(peer, descriptor),
            None => self.refuse_command(peer, "the server has no memory for a recorder"),
        }
    }

    /// Hands the connection to the server process that serves the current configuration, which replies.
    fn pass_on(&mut self, peer: PeerId) {
        let current = &self.current;
        // One that starts its workers reads the order when they run.
        let serves = |process: &&ServerProcess| {
            let is_there = matches!(process.stage, ServerStage::Starting | ServerStage::Serving);
            is_there && Rc::ptr_eq(&process.generation, current)
        };
        let Some(process) = self.processes.iter().find(serves) else {
            return self.refuse_command(peer, "no server process serves now");
        };
        let Some(stream) = self.commands.give_away(peer) else {
            return;
        };
        // If the process does not read its orders, the client sees the end of the connection.
        let _ = process.pass_on(stream.into());
    }

    fn refuse_command(&mut self, peer: PeerId, why: &str) {
        let answer = CommandReply::default().err(why);
        self.commands.answer(peer, &answer, EXIT_FAILURE);
    }

    fn reopen_for(&mut self, peer: PeerId) {
        match self.reopen_logs() {
            Ok(()) => {
                let answer = CommandReply::default().out("logs reopened");
                self.commands.answer(peer, &answer, 0);
            }
            Err(error) => self.refuse_command(peer, &error.to_string()),
        }
    }

    /// The current reload has ended: sends its messages to the commands that wait for it. After a success
    /// they are sent only when old server processes have stopped accepting, so that a client's next request
    /// meets the new configuration.
    pub(super) fn answer_reloads(&mut self, code: u8) {
        let number = self.reloads;
        let mut answer = CommandReply::default();
        for line in std::mem::take(&mut self.reload_says) {
            answer = match code {
                0 => answer.out(&line),
                _ => answer.err(&line),
            };
        }
        if code != 0 {
            return self.answer_all(&answer, code, |is_for| is_for == For::Reload(number));
        }
        self.replaced = Some(Replaced {
            number,
            answer,
            until: Instant::now() + LEAVING_TIME,
        });
    }

    fn answer_replaced(&mut self, now: Instant) {
        let current = &self.current;
        let has_left =
            |process: &ServerProcess| Rc::ptr_eq(&process.generation, current) || process.has_left;
        let have_left = self.processes.iter().all(has_left);
        let is_due = |replaced: &mut Replaced| have_left || replaced.until <= now;
        if let Some(replaced) = self.replaced.take_if(is_due) {
            self.answer_all(
                &replaced.answer,
                0,
                |is_for| matches!(is_for, For::Reload(of) if of <= replaced.number),
            );
        }
    }

    /// The server has ended: replies to the commands that wait for that.
    pub(super) fn answer_stops(&mut self) {
        self.commands.socket = None;
        let answer = CommandReply::default().out("server stopped");
        self.answer_all(&answer, 0, |is_for| is_for == For::Stop);
    }

    fn answer_status(&mut self, now: Instant) {
        let is_complete = !self.processes.iter().any(ServerProcess::is_counting);
        let is_due = |is_for| match is_for {
            For::Counts(until) => is_complete || until <= now,
            For::Reload(_) | For::Stop => false,
        };
        if self.waiting.iter().any(|waiting| is_due(waiting.is_for)) {
            let answer = self.status(now);
            self.answer_all(&answer, 0, is_due);
        }
    }

    fn answer_all(&mut self, answer: &CommandReply, code: u8, is_due: impl Fn(For) -> bool) {
        let due = self
            .waiting
            .extract_if(.., |waiting| is_due(waiting.is_for));
        for waiting in due {
            self.commands.answer(waiting.peer, answer, code);
        }
    }

    fn status(&self, now: Instant) -> CommandReply {
        let file = self.origin.to_string();
        let state = match self.stopping {
            Some(Stopping::Gracefully) => "stopping",
            Some(Stopping::AtOnce) => "stopping-now",
            None if self.next.is_some() => "reloading",
            None => "running",
        };
        let mut answer = CommandReply::default().out(&format!(
            "keeper pid={} state={state} age_s={} file={file}",
            std::process::id(),
            now.saturating_duration_since(self.started).as_secs(),
        ));
        for process in &self.processes {
            answer = answer.out(&line_of(process, now));
        }
        match self.program.newer() {
            Some(path) => answer.err(&format!(
                "{} is newer than the program that runs: a restart starts it, a reload does not",
                path.display()
            )),
            None => answer,
        }
    }

    /// When the next command must be replied to at the latest.
    pub(super) fn commands_due(&self) -> Option<Instant> {
        let counts = self
            .waiting
            .iter()
            .filter_map(|waiting| match waiting.is_for {
                For::Counts(until) => Some(until),
                For::Reload(_) | For::Stop => None,
            });
        let replaced = self.replaced.as_ref().map(|replaced| replaced.until);
        counts.chain(replaced).min()
    }

    /// Opens the control socket where the configuration wants it. A reload may move it.
    ///
    /// # Errors
    /// The path of `server.control-socket` cannot be used. If a default path cannot be used, the result is a
    /// warning instead: the server then serves without a control socket, and signals still work.
    pub(super) fn open_command_socket(&mut self) -> Result<Option<String>, Diagnostics> {
        let Origin::File(file) = &self.origin else {
            return Ok(None);
        };
        let process = &self.current.loaded.process;
        let (named, pid_file) = (&process.control_socket, &process.pid_file);
        let Some(path) = command_socket::path_of(named.as_deref(), pid_file.as_deref(), file)
        else {
            self.commands.socket = None;
            return Ok(None);
        };
        if self.commands.socket.as_ref().map(CommandSocket::path) == Some(&path) {
            return Ok(None);
        }
        match CommandSocket::open(&path) {
            Ok(socket) => {
                self.commands.socket = Some(socket);
                Ok(None)
            }
            Err(error) => {
                let message = format!("the control socket {}: {error}", path.display());
                match process.control_socket {
                    Some(_) => Err(generation::refuse(&self.current.loaded, message, None)),
                    None => Ok(Some(format!(
                        "{message}; petrel reload, stop, reopen and status cannot reach this server"
                    ))),
                }
            }
        }
    }
}

/// The line of `petrel status` about a server process.
fn line_of(process: &ServerProcess, now: Instant) -> String {
    let Generation { number, .. } = &*process.generation;
    let state = match process.stage {
        ServerStage::Preparing | ServerStage::Starting => "starting",
        ServerStage::Serving => "serving",
        ServerStage::Draining => "draining",
        ServerStage::Stopping => "stopping",
    };
    let age_s = now.saturating_duration_since(process.started).as_secs();
    let id = process.id();
    let mut line = format!("generation={number} pid={id} state={state} age_s={age_s}");
    if let (ServerStage::Draining, Some(until)) = (process.stage, process.drains_until) {
        let left_s = until.saturating_duration_since(now).as_secs();
        line.push_str(&format!(" cut_in_s={left_s}"));
    }
    match process.open() {
        Some((connections, requests)) => {
            line.push_str(&format!(" connections={connections} requests={requests}"));
        }
        None => line.push_str(" connections=? requests=?"),
    }
    line
}

/// How long a server process may take to report its counts.
const COUNT_TIME: Duration = Duration::from_secs(1);
/// How long old server processes may take to stop accepting connections.
const LEAVING_TIME: Duration = Duration::from_secs(5);
