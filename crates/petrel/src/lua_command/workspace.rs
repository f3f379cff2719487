//! The temporary files of `petrel lua`: the tracing script, its trace, and the log.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A temporary directory. Dropping the value removes it.
pub(crate) struct Workspace {
    directory: PathBuf,
}

impl Workspace {
    /// Makes a workspace with a script that traces the one at `script`.
    ///
    /// # Errors
    /// The directory or the script cannot be written.
    pub(crate) fn new(script: &str) -> io::Result<Workspace> {
        let template = std::env::temp_dir().join("petrel-lua-XXXXXX");
        let directory = nix::unistd::mkdtemp(&template)?;
        let workspace = Workspace { directory };
        let trace = workspace.path("trace");
        let paths = format!(
            "local script_path, trace_path = {}, {} ",
            lua_string(script.as_bytes()),
            lua_string(trace.as_os_str().as_encoded_bytes())
        );
        let text = paths + include_str!("trace.lua");
        fs::write(workspace.script_path(), text)?;
        Ok(workspace)
    }

    /// The path of the tracing script.
    pub(crate) fn script_path(&self) -> PathBuf {
        self.path("trace.lua")
    }

    /// The path of the error log.
    pub(crate) fn log_path(&self) -> PathBuf {
        self.path("error.log")
    }

    /// The trace.
    pub(crate) fn trace(&self) -> String {
        text(&self.path("trace"))
    }

    /// The content of the error log.
    pub(crate) fn log(&self) -> String {
        text(&self.log_path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // If this fails, a few files stay in the temporary directory and do no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The content of the file; empty if it does not exist.
fn text(path: &PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// A Lua string literal with each byte escaped as a number.
fn lua_string(bytes: &[u8]) -> String {
    let numbers = bytes.iter().map(|byte| format!("\\{byte:03}"));
    format!("\"{}\"", numbers.collect::<String>())
}
