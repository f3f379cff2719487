//! Compiled scripts, and where they wait to be run again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;
use std::time::SystemTime;

use foldhash::fast::RandomState;
use mlua::chunk::ChunkMode;
use mlua::{Function, Lua};

use crate::error::ScriptError;
use crate::raw::Coroutine;

/// Scripts of one state at most. Names come from configurations and document roots; a directory full of
/// scripts must not fill memory.
const SCRIPTS_MAX: usize = 4096;

/// Coroutines of one script that wait to be used again.
const IDLE_MAX: usize = 64;

/// A script, compiled. A script that waits is entered again by other requests, each time by a
/// function of its own: what is kept is what makes such functions.
pub struct Script {
    name: String,
    make: Function,
    /// Coroutines that have run it to its end, and the environment each is for.
    idle: RefCell<Vec<(*const c_void, Coroutine)>>,
}

/// What a file was when it was read. Two stamps that are equal stand for the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file system.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When the content was changed.
    pub modified: SystemTime,
    /// When anything about the inode was changed, in nanoseconds since 1970.
    pub changed_ns: i128,
}

/// What was made of the script files of one state, by path: `S`, as long as the file is the same by `F`.
pub struct Scripts<F, S = Rc<Script>> {
    known: RefCell<HashMap<Vec<u8>, (F, S), RandomState>>,
}

impl Script {
    /// Compiles `source`. `name` is what messages call it, a path as a rule.
    ///
    /// # Errors
    /// `source` is not text or not the Lua that LuaJIT understands.
    pub(crate) fn compile(lua: &Lua, name: &str, source: &[u8]) -> Result<Script, ScriptError> {
        let source = without_first_line_of_programs(source);
        if source.first() == Some(&0x1b) {
            return Err(ScriptError::binary(name));
        }
        let chunk_name = format!("@{name}");
        let load = |source: &[u8]| {
            lua.load(source)
                .set_name(&chunk_name)
                .set_mode(ChunkMode::Text)
                .into_function()
        };
        // By itself first: it must be whole, and messages must be about it.
        load(source).map_err(|error| ScriptError::of_source(&error, source))?;
        let mut factory = Vec::with_capacity(source.len() + 32);
        factory.extend_from_slice(b"return function(...) ");
        factory.extend_from_slice(source);
        factory.extend_from_slice(b"\nend");
        let make = load(&factory).map_err(|error| ScriptError::of_source(&error, source))?;
        Ok(Script {
            name: name.to_owned(),
            make,
            idle: RefCell::default(),
        })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A function that runs it and that no other run has.
    pub(crate) fn function(&self) -> mlua::Result<Function> {
        self.make.call(())
    }

    /// A coroutine that has run it in what `environment` makes, and can do so again.
    pub(crate) fn take_idle(&self, environment: &Function) -> Option<Coroutine> {
        let wanted = environment.to_pointer();
        let mut idle = self.idle.borrow_mut();
        // One environment, as a rule: a script is mod_magnet's or mod_cml's.
        let place = idle
            .iter()
            .rposition(|(environment, _)| *environment == wanted)?;
        Some(idle.swap_remove(place).1)
    }

    /// Takes back a coroutine whose run is over.
    pub(crate) fn give_back(&self, environment: *const c_void, thread: Coroutine) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push((environment, thread));
        }
    }
}

impl<F, S> Default for Scripts<F, S> {
    fn default() -> Scripts<F, S> {
        Scripts {
            known: RefCell::default(),
        }
    }
}

impl<F, S: Clone> Scripts<F, S> {
    /// What was made of the file at `path`, if `is_same` says that it is still the same.
    pub fn get(&self, path: &[u8], is_same: impl FnOnce(&F) -> bool) -> Option<S> {
        let known = self.known.borrow();
        let (_, script) = known.get(path).filter(|(file, _)| is_same(file))?;
        Some(script.clone())
    }

    /// Keeps `script` for the file at `path`. Where [`SCRIPTS_MAX`] are kept, all others go.
    pub fn put(&self, path: &[u8], file: F, script: S) {
        let mut known = self.known.borrow_mut();
        if known.len() >= SCRIPTS_MAX && !known.contains_key(path) {
            known.clear();
        }
        known.insert(path.to_vec(), (file, script));
    }
}

impl Stamp {
    /// The stamp of a file.
    pub fn of(metadata: &std::fs::Metadata) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed_ns: i128::from(metadata.ctime()) * 1_000_000_000
                + i128::from(metadata.ctime_nsec()),
        }
    }
}

/// `#!/usr/bin/lua` is no Lua, but may stand first. The line break stays, for the line numbers.
fn without_first_line_of_programs(source: &[u8]) -> &[u8] {
    let source = source.strip_prefix(b"\xef\xbb\xbf").unwrap_or(source);
    if !source.starts_with(b"#") {
        return source;
    }
    let end = source.iter().position(|byte| *byte == b'\n');
    source
        .get(end.unwrap_or(source.len())..)
        .unwrap_or_default()
}
