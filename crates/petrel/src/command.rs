//! `petrel reload`, `stop`, `reopen`, `status`, `why` and `top`: sends a command to a running server over its
//! keeper's control socket. [`crate::keeper::command_socket`] describes the protocol.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::LoadOptions;

use crate::cli::RunningServer;
use crate::keeper::command_socket;
use crate::load::{self, Origin};
use crate::terminal::{self, EXIT_FAILURE};

/// Asks the server for the memory of its recorder.
///
/// # Errors
/// What to tell the user: no server was reached, or it has no such memory.
pub(crate) fn recorder_of(server: &RunningServer) -> Result<File, String> {
    let path = socket_of("recorder", server)?;
    let asked = command_socket::ask_for_descriptor("recorder", &path, CONNECT_TIME);
    let (descriptor, rest) = asked.map_err(|error| not_reached(&path, &error))?;
    descriptor.map(File::from).ok_or_else(|| {
        let said = rest.lines().find_map(|line| line.strip_prefix("err "));
        said.unwrap_or("the server has no recorder").to_owned()
    })
}

fn not_reached(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("no server listens at {path} ({error}). {REMEDY}")
        }
        ErrorKind::WouldBlock => format!("the server at {path} does not answer"),
        _ => format!("the control socket {path}: {error}"),
    }
}

/// Sends `command` to the server and prints its reply. Returns the exit code that the server sent.
pub(crate) fn run(command: &str, server: &RunningServer) -> u8 {
    let print = |stream: Stream, text: &str| match stream {
        Stream::Out => writeln!(io::stdout(), "{text}"),
        Stream::Err => {
            terminal::complain(format_args!("{text}"));
            Ok(())
        }
    };
    let done = socket_of(command, server).and_then(|path| ask(command, &path, print));
    done.unwrap_or_else(|message| {
        terminal::complain(format_args!("petrel: {message}"));
        EXIT_FAILURE
    })
}

/// Sends `command` to the server at `path`. Returns what it answers for standard output.
///
/// # Errors
/// The server cannot be reached or refuses the command; the message says why.
pub(crate) fn fetch(command: &str, path: &Path) -> Result<String, String> {
    let (mut out, mut err) = (String::new(), String::new());
    let code = ask(command, path, |stream, text| {
        match stream {
            Stream::Out => out.push_str(text),
            Stream::Err => err.push_str(text),
        }
        Ok(())
    })?;
    match code {
        0 => Ok(out),
        _ => Err(err),
    }
}

/// Where the server says a line to.
#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

fn ask(
    command: &str,
    path: &Path,
    take: impl FnMut(Stream, &str) -> io::Result<()>,
) -> Result<u8, String> {
    talk(command, path, take).map_err(|error| not_reached(path, &error))
}

/// The path of the server's control socket.
///
/// # Errors
/// The configuration cannot be read, or the server has no control socket.
pub(crate) fn socket_of(command: &str, server: &RunningServer) -> Result<PathBuf, String> {
    if let Some(socket) = &server.socket {
        return Ok(socket.clone());
    }
    let file = &server.file;
    let file = std::path::absolute(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let loaded = match load::load(&Origin::File(file.clone())) {
        Ok(loaded) => loaded,
        Err(errors) => {
            load::print_errors(&errors);
            // Only a reload needs the whole file to be right. The other commands need the socket's path
            // alone.
            let path = match command.starts_with("reload") {
                true => None,
                false => socket_despite_mistakes(&file),
            };
            return path.ok_or_else(|| {
                "the configuration has an error, so the command was not sent; --socket names the server's control \
                 socket without it"
                    .to_owned()
            });
        }
    };
    let (named, pid_file) = (&loaded.process.control_socket, &loaded.process.pid_file);
    command_socket::path_of(named.as_deref(), pid_file.as_deref(), &file).ok_or_else(|| {
        format!(
            "the server has no control socket: neither server.control-socket nor server.pid-file is set, and there \
             is no /run/user directory for this user. {REMEDY}"
        )
    })
}

/// The path of the control socket, from a configuration file that has errors.
fn socket_despite_mistakes(file: &Path) -> Option<PathBuf> {
    let config = config::read_despite_mistakes(file, &LoadOptions::from_process());
    let named = |directive| {
        let value = config.global().entry(directive)?.value.as_str()?;
        (!value.is_empty()).then(|| Path::new(value))
    };
    match (named("server.control-socket"), named("server.pid-file")) {
        (None, None) => None,
        (socket, pid_file) => command_socket::path_of(socket, pid_file, file),
    }
}

fn talk(
    command: &str,
    path: &Path,
    mut take: impl FnMut(Stream, &str) -> io::Result<()>,
) -> io::Result<u8> {
    let mut stream = command_socket::connect(path, CONNECT_TIME)?;
    // The replies to the other commands come only when the requests under way have ended.
    if matches!(command, "status" | "reopen" | "snapshot") {
        stream.set_read_timeout(Some(ANSWER_TIME))?;
    }
    stream.write_all(format!("{command}\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("out", text)) => take(Stream::Out, text)?,
            Some(("err", text)) => take(Stream::Err, text)?,
            Some(("exit", code)) => {
                return code.parse().map_err(|_| ErrorKind::InvalidData.into());
            }
            _ => return Err(ErrorKind::InvalidData.into()),
        }
    }
    Err(io::Error::new(
        ErrorKind::UnexpectedEof,
        "the server ended before it answered",
    ))
}

/// What to try when the server does not listen at the control socket.
const REMEDY: &str = "If the file names another place than when the server started, or another user started it, say \
    where it listens by --socket, or send the signal. A server that is stopping takes no commands: TERM ends it at once";
/// How long the server may take to accept the connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long the server may take to reply to a command that it can answer at once.
const ANSWER_TIME: Duration = Duration::from_secs(30);
