//! Options for reading a configuration.

use std::path::PathBuf;

use crate::value::Value;

/// What reading a configuration may use besides its text.
pub struct LoadOptions<'a> {
    /// Predefined variables with their full names, such as `var.PID` and `var.CWD`.
    pub variables: Vec<(String, Value)>,
    /// Returns the value of `env.NAME`.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Whether `include_shell` may run its command.
    pub shell: Shell,
    /// The directory that relative includes of a text without a file start from, and that commands run in.
    pub directory: PathBuf,
}

/// Whether `include_shell` may run its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// The command runs with `/bin/sh -c`.
    Run,
    /// `include_shell` is an error.
    Refuse,
}

impl LoadOptions<'static> {
    /// The options of the server: `var.PID` and `var.CWD`, the environment of the process, and commands may
    /// run.
    #[must_use]
    pub fn from_process() -> LoadOptions<'static> {
        let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        LoadOptions {
            variables: vec![
                (
                    "var.PID".to_owned(),
                    Value::Integer(i64::from(std::process::id())),
                ),
                (
                    "var.CWD".to_owned(),
                    Value::String(directory.display().to_string()),
                ),
            ],
            environment: &|name| std::env::var(name).ok(),
            shell: Shell::Run,
            directory,
        }
    }
}
