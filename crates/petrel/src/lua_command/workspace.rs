//! The temporary files of a trial: the script that runs in place of the one under test, its trace, the log.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A directory of its own, gone with the value.
pub(crate) struct Workspace {
    directory: PathBuf,
}

impl Workspace {
    /// With a script that traces the one at `script`.
    ///
    /// # Errors
    /// Those of the file system.
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

    /// The script that traces.
    pub(crate) fn script_path(&self) -> PathBuf {
        self.path("trace.lua")
    }

    /// The error log.
    pub(crate) fn log_path(&self) -> PathBuf {
        self.path("error.log")
    }

    /// What was traced.
    pub(crate) fn trace(&self) -> String {
        text(&self.path("trace"))
    }

    /// What was logged.
    pub(crate) fn log(&self) -> String {
        text(&self.log_path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Whatever is left of a temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Nothing, if there is no such file.
fn text(path: &PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// A string of Lua, each byte by its number.
fn lua_string(bytes: &[u8]) -> String {
    let numbers = bytes.iter().map(|byte| format!("\\{byte:03}"));
    format!("\"{}\"", numbers.collect::<String>())
}
