//! `petrel top`: the status of a running server, in a terminal.
//!
//! It asks the keeper for the status once a second (`snapshot` on the control socket); the keeper hands the
//! connection to the server process, which answers with the JSON that the status page is made of.
//! [`view`] turns the status into lines, for the live display as for `--once`.

mod screen;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

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
        return match source.fetch_all() {
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

    /// As [`Source::fetch`], for a reader who comes only once: the server asks php-fpm when a reader comes.
    fn fetch_all(&self) -> Result<Status, String> {
        let status = self.fetch()?;
        let mut asked = status
            .backends
            .iter()
            .filter_map(|backend| backend.fpm.as_ref());
        if asked.all(|fpm| fpm.age_ms.is_some_and(|age_ms| age_ms < FPM_AGE_MS_MAX)) {
            return Ok(status);
        }
        std::thread::sleep(FPM_PAUSE);
        self.fetch()
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

/// An older answer of php-fpm is replaced by a new one.
const FPM_AGE_MS_MAX: u64 = 5_000;

/// The time in which php-fpm usually answers.
const FPM_PAUSE: Duration = Duration::from_millis(500);

/// The width of the text of `--once`.
const ONCE_COLUMNS: usize = 110;
