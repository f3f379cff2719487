//! The directives of the Lua states as typed options.

use std::time::Duration;

use petrel_engine::config::{Config, Diagnostic, DirectiveSpec};
use petrel_engine::settings::Values;
use petrel_engine::settings::directives::Effect::Works;
use petrel_lua::budget::Budget;
use petrel_lua::library::LibraryOptions;

pub(super) static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "lua.max-run-time", Int, Server, "100", Works,
        "Milliseconds of processor time, 1 to 60000, that a script may use without waiting for something. A script that uses more is stopped and named in the error log, and its request gets 500. The log also names scripts that use more than 10. Petrel's own.";
    "lua.max-run-memory", Int, Server, "65536", Works,
        "KiB by which a script may make its Lua state grow before it waits or ends. A script that uses more is stopped. Petrel's own.";
    "lua.max-state-memory", Int, Server, "131072", Works,
        "The largest size in KiB that a worker's Lua state may have between two scripts. If it is larger, the next script gets a new state; scripts that wait go on in the old one. Petrel's own.";
    "lua.max-program-time", Int, Server, "60", Works,
        "Seconds, 1 to 86400, that a program of os.execute or io.popen may run, and that a script waits for its pipe. A program that runs for longer is ended. Petrel's own.";
    "lua.dictionaries", Map, Server, "()", Works,
        "The sizes in KiB of the dictionaries that scripts share through petrel.dict(NAME), by name. The default size is 1024. Petrel's own.";
    "lua.allow", List, Server, "( \"io.popen\" )", Works,
        "Parts of Lua that scripts may use only if they are named here. \"ffi\", \"jit\", \
         \"debug\" and \"os.exit\" can break the server. \"io.popen\" and \"os.execute\", which \
         are one, start programs; without this directive scripts have them, as in lighttpd. \
         lua.allow = () switches everything off. Petrel's own.";
};

/// How Lua states are made.
#[derive(Clone, Debug)]
pub struct LuaOptions {
    /// Limits and libraries.
    pub machine: petrel_lua::MachineOptions,
    /// How long a program of a script may run.
    pub program_time_max: Duration,
    /// The shared dictionaries and their sizes in bytes.
    pub dictionaries: Vec<(String, usize)>,
}

impl LuaOptions {
    /// Reads them from the settings that are being built.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn read(values: &Values<'_>) -> Result<LuaOptions, Diagnostic> {
        let mut machine = petrel_lua::MachineOptions::default();
        let time = values.unsigned("lua.max-run-time", 100);
        if !(1..=60_000).contains(&time) {
            return Err(values.error(
                "lua.max-run-time",
                "lua.max-run-time is a number of milliseconds from 1 to 60000",
            ));
        }
        machine.budget = Budget {
            time: Duration::from_millis(u64::from(time)),
            growth_bytes: bytes(values, "lua.max-run-memory", 64 << 10)?,
        };
        machine.state_bytes_max = bytes(values, "lua.max-state-memory", 128 << 10)?;
        machine.library.io_popen = values.array(ALLOW).is_none();
        for part in values.strings(ALLOW) {
            if !allow(&mut machine.library, part) {
                let error = values.error(
                    ALLOW,
                    format!("\"{part}\" is not a part of Lua that lua.allow can name"),
                );
                return Err(
                    error.with_hint("\"ffi\", \"jit\", \"debug\", \"os.exit\" or \"io.popen\"")
                );
            }
        }
        let program_time_s = values.unsigned("lua.max-program-time", 60);
        if !(1..=86_400).contains(&program_time_s) {
            return Err(values.error(
                "lua.max-program-time",
                "lua.max-program-time is a number of seconds from 1 to 86400",
            ));
        }
        Ok(LuaOptions {
            machine,
            program_time_max: Duration::from_secs(program_time_s.into()),
            dictionaries: dictionaries(values)?,
        })
    }
}

/// Whether scripts may use a part of Lua that `lua.allow` can name.
pub(crate) fn is_allowed(config: &Config, part: &str) -> bool {
    let Some(entry) = config.global().entry(ALLOW) else {
        return part == "io.popen";
    };
    let named = entry.value.as_strings().unwrap_or_default();
    named.contains(&part) || part == "io.popen" && named.contains(&"os.execute")
}

const ALLOW: &str = "lua.allow";

fn dictionaries(values: &Values<'_>) -> Result<Vec<(String, usize)>, Diagnostic> {
    let name = "lua.dictionaries";
    let Some(array) = values.array(name) else {
        return Ok(Vec::new());
    };
    let mut dictionaries = Vec::new();
    for element in array.iter() {
        let size = element.value.as_integer();
        let kib = size
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| *size > 0);
        let (Some(key), Some(kib)) = (element.key(), kib) else {
            let error = values.error(name, "a dictionary has a name and a size in KiB");
            return Err(error.with_hint("write lua.dictionaries = ( \"counters\" => 1024 )"));
        };
        dictionaries.push((key.to_owned(), kib.saturating_mul(1024)));
    }
    Ok(dictionaries)
}

/// Gives scripts a part of Lua's library. False if there is no such part.
fn allow(library: &mut LibraryOptions, part: &str) -> bool {
    match part {
        "ffi" => library.ffi = true,
        "jit" => library.jit = true,
        "debug" => library.debug = true,
        "os.exit" => library.os_exit = true,
        "io.popen" | "os.execute" => library.io_popen = true,
        _ => return false,
    }
    true
}

/// A state takes about 300 KiB before its first script.
const MEMORY_KIB_MIN: u32 = 1024;

fn bytes(values: &Values<'_>, name: &str, default: u32) -> Result<usize, Diagnostic> {
    let kib = values.unsigned(name, default);
    if kib < MEMORY_KIB_MIN {
        let message = format!("{name} is a number of KiB, {MEMORY_KIB_MIN} at least");
        return Err(values.error(name, message));
    }
    Ok(usize::try_from(kib)
        .unwrap_or(usize::MAX)
        .saturating_mul(1024))
}
