//! The target of a log, as the configuration names it.

use std::fmt;
use std::path::PathBuf;

/// The target of a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// A file, opened for appending.
    File(PathBuf),
    /// The standard input of a command (`|command`).
    Pipe(String),
    /// syslog, with the facility of the registry and the level of the handle.
    Syslog,
}

impl LogTarget {
    /// Parses the value of `server.errorlog` or `accesslog.filename`.
    pub fn parse(text: &str) -> LogTarget {
        match text.strip_prefix('|') {
            Some(command) => LogTarget::Pipe(command.trim().to_owned()),
            None => LogTarget::File(text.into()),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogTarget::Stderr => f.write_str("standard error"),
            LogTarget::File(path) => write!(f, "{}", path.display()),
            LogTarget::Pipe(command) => write!(f, "|{command}"),
            LogTarget::Syslog => f.write_str("syslog"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_in_front_makes_it_a_command() {
        assert_eq!(
            LogTarget::parse("| cat >x"),
            LogTarget::Pipe("cat >x".into())
        );
        assert_eq!(
            LogTarget::parse("/var/log/x"),
            LogTarget::File("/var/log/x".into())
        );
        for target in ["|cat", "/var/log/x"] {
            assert_eq!(LogTarget::parse(target).to_string(), target);
        }
    }
}
