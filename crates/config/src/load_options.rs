//! What a configuration is read with.

use std::path::PathBuf;

use crate::value::Value;

/// What reading a configuration may know and do beyond its text.
pub struct LoadOptions<'a> {
    /// Variables that are there from the start, such as `var.PID` and `var.CWD`, with their full names.
    pub variables: Vec<(String, Value)>,
    /// Answers `env.NAME`.
    pub environment: &'a dyn Fn(&str) -> Option<String>,
    /// Whether `include_shell` may run its command.
    pub shell: Shell,
    /// The directory relative includes of a text without a file start from, and where commands run.
    pub directory: PathBuf,
}

/// Whether `include_shell` may run its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// It runs by `/bin/sh -c`.
    Run,
    /// It is an error.
    Refuse,
}

impl LoadOptions<'static> {
    /// What the server itself uses: `var.PID` and `var.CWD`, the process's environment, commands run.
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
