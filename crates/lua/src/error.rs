//! The ways in which a script can fail.

use std::fmt;
use std::time::Duration;

use crate::budget::{Budget, Excess};
use crate::syntax;

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The kind of failure.
    pub cause: Cause,
    /// Lua's message. It begins with file and line if Lua knows them.
    pub message: String,
    /// The stack at that time, one call per line; empty if it is unknown.
    pub stack: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The file is not text, or not Lua that LuaJIT understands.
    Syntax,
    /// The script, or a function that it called, raised an error.
    Error,
    /// It ran too long and was stopped.
    Time,
    /// It used too much memory and was stopped.
    Memory,
}

impl ScriptError {
    /// An error from Lua or a library while a script runs.
    pub(crate) fn of_run(error: &mlua::Error) -> ScriptError {
        let cause = match root(error) {
            mlua::Error::MemoryError(_) => Cause::Memory,
            _ => Cause::Error,
        };
        let (message, stack) = taken_apart(&without_wrapping(error));
        ScriptError {
            cause,
            message,
            stack,
        }
    }

    /// An error of the compiler about `source`.
    pub(crate) fn of_source(error: &mlua::Error, source: &[u8]) -> ScriptError {
        let (mut message, stack) = taken_apart(&without_wrapping(error));
        if let Some(construct) = syntax::explain(source) {
            message = format!("{message} ({construct})");
        }
        ScriptError {
            cause: Cause::Syntax,
            message,
            stack,
        }
    }

    /// A script that is not text.
    pub(crate) fn binary(name: &str) -> ScriptError {
        ScriptError {
            cause: Cause::Syntax,
            message: format!("{name}: binary chunks are not accepted, only source"),
            stack: String::new(),
        }
    }

    /// A script that was stopped at `place`.
    pub(crate) fn stopped(excess: Excess, budget: &Budget, name: &str, stack: &str) -> ScriptError {
        let (cause, message) = match excess {
            Excess::Time => (
                Cause::Time,
                format!(
                    "{name}: stopped, it ran for more than {} without a wait",
                    shown(budget.time)
                ),
            ),
            Excess::Memory => (
                Cause::Memory,
                format!(
                    "{name}: stopped, it used more than {} MiB of memory",
                    budget.growth_bytes >> 20
                ),
            ),
        };
        ScriptError {
            cause,
            message,
            stack: taken_apart(&format!("\n{}", stack.trim_start())).1,
        }
    }
}

impl ScriptError {
    /// The error of a script that has waited, in a state that has grown beyond `bytes`.
    pub(crate) fn overfull(bytes: usize, name: &str) -> ScriptError {
        ScriptError {
            cause: Cause::Memory,
            message: format!(
                "{name}: stopped, the Lua state it waited in has more than {} MiB of memory",
                bytes >> 20
            ),
            stack: String::new(),
        }
    }
}

impl From<&mlua::Error> for ScriptError {
    /// An error of Lua outside a run, such as a lack of memory.
    fn from(error: &mlua::Error) -> ScriptError {
        ScriptError::of_run(error)
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.stack.is_empty() {
            write!(f, "\n{}", self.stack)?;
        }
        Ok(())
    }
}

impl std::error::Error for ScriptError {}

/// The message without the stack, for a script that may catch the error.
pub(crate) fn message_of(error: &mlua::Error) -> String {
    taken_apart(&without_wrapping(root(error))).0
}

fn shown(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// The innermost error, without those that only tell where it passed through.
fn root(error: &mlua::Error) -> &mlua::Error {
    match error {
        mlua::Error::CallbackError { cause, .. } => root(cause),
        mlua::Error::WithContext { cause, .. } => root(cause),
        error => error,
    }
}

/// Lua's message without what mlua adds.
fn without_wrapping(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { traceback, cause } => {
            format!("{}\n{traceback}", without_wrapping(cause))
        }
        mlua::Error::WithContext { context, cause } => {
            format!("{context}: {}", without_wrapping(cause))
        }
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        error => error.to_string(),
    }
}

/// Splits a text into the message and the stack. Lines of Petrel's own driver are left out of the stack.
fn taken_apart(text: &str) -> (String, String) {
    let (message, stack) = match text.split_once("\nstack traceback:") {
        Some((message, stack)) => (message, stack),
        None => (text, ""),
    };
    let lines = stack.lines().map(str::trim).filter(|line| {
        !line.is_empty() && !line.contains("petrel/") && *line != "stack traceback:"
    });
    (
        message.trim_end().to_owned(),
        lines.collect::<Vec<_>>().join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_stack_are_told_apart() {
        let text = "a.lua:3: oh\nstack traceback:\n\ta.lua:3: in function 'f'\n\tpetrel/run.lua:9: in function <x>\n";
        let (message, stack) = taken_apart(text);
        assert_eq!(message, "a.lua:3: oh");
        assert_eq!(stack, "a.lua:3: in function 'f'");
        assert_eq!(taken_apart("x").0, "x");
    }
}
