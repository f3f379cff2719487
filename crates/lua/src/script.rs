//! Compiled scripts, and coroutines to run them again.

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
use crate::syntax;

/// The most scripts of one state. Names come from configurations and document roots; a directory full of
/// scripts must not fill the memory.
const SCRIPTS_MAX: usize = 4096;

/// The most coroutines of one script that are kept for reuse.
const IDLE_MAX: usize = 64;

/// A compiled script. While one request waits in it, other requests may enter it, each with a function of its
/// own. So the script keeps a factory for such functions.
pub struct Script {
    name: String,
    make: Function,
    /// Whether its environments may be used again: nothing refers to them when it has ended.
    is_plain: bool,
    /// Coroutines that have run it to its end, each with the environment function that it is for.
    idle: RefCell<Vec<(*const c_void, Box<Coroutine>)>>,
}

/// A Lua function that makes the globals of a script's run.
///
/// It is called with the table of an earlier run, or false if something may still refer to that, then with the
/// third value that it has returned for that run, and with whether nothing will refer to its result when the
/// script has ended. If it returns a second value, that is a handler: it is called with the third value and the
/// script's return values, and the results of the run are what the handler returns.
pub struct GlobalsMaker {
    function: Function,
    /// Asking Lua for it would take longer than finding a coroutine.
    identity: *const c_void,
}

impl From<Function> for GlobalsMaker {
    fn from(function: Function) -> GlobalsMaker {
        let identity = function.to_pointer();
        GlobalsMaker { function, identity }
    }
}

impl GlobalsMaker {
    pub(crate) fn function(&self) -> &Function {
        &self.function
    }

    pub(crate) fn identity(&self) -> *const c_void {
        self.identity
    }
}

/// The identity and state of a file when it was read. Two equal stamps mean the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file system.
    pub device: u64,
    /// The inode.
    pub inode: u64,
    /// The size in bytes.
    pub size: u64,
    /// When the content was last changed.
    pub modified: SystemTime,
    /// When the inode was last changed, in nanoseconds since 1970.
    pub changed_ns: i128,
}

/// A cache of the script files of one state, by path. An entry `S` is valid as long as its stamp `F` is
/// current.
pub struct Scripts<F, S = Rc<Script>> {
    known: RefCell<HashMap<Vec<u8>, (F, S), RandomState>>,
}

impl Script {
    /// Compiles `source`. `name` is its name in messages, usually a path.
    ///
    /// # Errors
    /// `source` is not text, or not Lua that LuaJIT understands.
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
        // First it is compiled by itself, to make sure that it is complete and that messages refer to it.
        load(source).map_err(|error| ScriptError::of_source(&error, source))?;
        let mut factory = Vec::with_capacity(source.len() + 32);
        factory.extend_from_slice(b"return function(...) ");
        factory.extend_from_slice(source);
        factory.extend_from_slice(b"\nend");
        let make = load(&factory).map_err(|error| ScriptError::of_source(&error, source))?;
        Ok(Script {
            name: name.to_owned(),
            make,
            is_plain: syntax::is_plain(source),
            idle: RefCell::default(),
        })
    }

    /// The name of the script in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether nothing refers to its environments when it has ended.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// A new function for one run.
    pub(crate) fn function(&self) -> mlua::Result<Function> {
        self.make.call(())
    }

    /// A coroutine that has run the script with globals of `maker` and can do so again.
    pub(crate) fn take_idle(&self, maker: &GlobalsMaker) -> Option<Box<Coroutine>> {
        let mut idle = self.idle.borrow_mut();
        // There is usually only one, because a script belongs either to mod_magnet or to mod_cml.
        let place = idle
            .iter()
            .rposition(|(identity, _)| *identity == maker.identity)?;
        Some(idle.swap_remove(place).1)
    }

    /// Keeps a coroutine whose run is over.
    pub(crate) fn give_back(&self, maker: *const c_void, thread: Box<Coroutine>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push((maker, thread));
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
    /// The entry for `path`, if `is_same` confirms that the file has not changed.
    pub fn get(&self, path: &[u8], is_same: impl FnOnce(&F) -> bool) -> Option<S> {
        let known = self.known.borrow();
        let (_, script) = known.get(path).filter(|(file, _)| is_same(file))?;
        Some(script.clone())
    }

    /// Stores `script` for `path`. If there are [`SCRIPTS_MAX`] entries, all others are dropped.
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

/// Removes a first line like `#!/usr/bin/lua`, which is allowed but is no Lua. Its line break stays, for the
/// line numbers.
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
