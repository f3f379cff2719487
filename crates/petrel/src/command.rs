//! `petrel reload`, `stop`, `reopen` and `status`: a command for a running server, on the control socket of its
//! keeper. What is said there is described in [`crate::keeper::command_socket`].

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::cli::RunningServer;
use crate::keeper::command_socket;
use crate::load::{self, Origin};
use crate::{EXIT_FAILURE, terminal};

/// Sends `command` and shows the answer. The exit code is the server's.
pub fn run(command: &str, server: &RunningServer) -> u8 {
    let done = socket_of(server).and_then(|path| {
        ask(command, &path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!("no server listens at {} ({error})", path.display())
            }
            _ => format!("the control socket {}: {error}", path.display()),
        })
    });
    done.unwrap_or_else(|message| {
        terminal::complain(format_args!("petrel: {message}"));
        EXIT_FAILURE
    })
}

fn socket_of(server: &RunningServer) -> Result<PathBuf, String> {
    let file = match (&server.socket, &server.file) {
        (Some(socket), _) => return Ok(socket.clone()),
        (None, Some(file)) => file,
        (None, None) => return Err("name the server by -f or --socket".to_owned()),
    };
    let file = std::path::absolute(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let loaded = load::load(&Origin::File(file.clone())).map_err(|errors| {
        load::print_errors(&errors);
        "the configuration has a mistake, and the server was not asked for anything; --socket names it in \
         another way"
            .to_owned()
    })?;
    command_socket::path_of(&loaded.process, &file).ok_or_else(|| {
        "the server has no control socket: neither server.control-socket nor server.pid-file is set, and there \
         is no /run/user directory for this user"
            .to_owned()
    })
}

fn ask(command: &str, path: &Path) -> io::Result<u8> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("out", text)) => writeln!(io::stdout(), "{text}")?,
            Some(("err", text)) => terminal::complain(format_args!("{text}")),
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
