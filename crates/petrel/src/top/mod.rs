//! `petrel top`: the status of a running server, in a terminal.
//!
//! It asks the keeper for the status once a second (`snapshot` on the control socket); the keeper hands the
//! connection to the server process, which answers with the JSON that the status page is made of.
//! [`view`] turns the status into lines, for the live display as for `--once`.

mod screen;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;

use modules::status::model::Status;

use crate::cli::Top;
use crate::command;
use crate::terminal::{fail, print};
use view::{Rates, View};

/// Runs the command. Returns its exit code.
pub(crate) fn run(options: &Top) -> u8 {
    let source = match command::socket_of("snapshot", &options.server) {
        Ok(socket) => Source { socket },
        Err(message) => return fail(&message),
    };
    let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if options.once || !has_terminal || is_dumb {
        return match source.fetch() {
            Ok(status) => print(once(&status).as_bytes()),
            Err(message) => fail(&message),
        };
    }
    // The first answer, before the terminal changes, so that a mistake shows as a plain line.
    let first = match source.fetch() {
        Ok(status) => status,
        Err(message) => return fail(&message),
    };
    match screen::run(source, first) {
        Ok(()) => 0,
        Err(error) => fail(&format!("the terminal: {error}")),
    }
}

/// Where the status comes from.
struct Source {
    socket: PathBuf,
}

impl Source {
    fn fetch(&self) -> Result<Status, String> {
        let json = command::fetch("snapshot", &self.socket)?;
        Status::parse(&json).map_err(|error| format!("the answer of the server: {error}"))
    }
}

/// All views as plain text.
fn once(status: &Status) -> String {
    let mut text = String::new();
    for view in View::ALL {
        for line in view.lines(status, &Rates::default(), ONCE_COLUMNS) {
            text.push_str(line.to_string().trim_end());
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

/// The width of the text of `--once`.
const ONCE_COLUMNS: usize = 110;
