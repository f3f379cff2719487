//! Turns errors of Rust functions into errors that scripts can handle.

use mlua::{Error, Function, Lua, Result, Table, Value};

/// Makes the functions in `library` raise plain strings that begin with the script's file and line, as Lua's
/// own functions do. Without it, `pcall` gives a script an object of mlua, which it can neither search nor
/// concatenate.
///
/// This is only for functions that call nothing back and do not wait. Returns `library`.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not [open](super::open()).
pub(crate) fn plain_errors(lua: &Lua, library: Table) -> Result<Table> {
    let function: Function = lua.named_registry_value("petrel.plain_errors")?;
    function.call(library)
}

/// The message of a Rust error. Nil for other values, and for a lack of memory, which is passed on unchanged.
pub(super) fn words_of(_: &Lua, value: Value) -> Result<Option<String>> {
    match value {
        Value::Error(error) => Ok(words(&error)),
        _ => Ok(None),
    }
}

fn words(error: &Error) -> Option<String> {
    match error {
        Error::CallbackError { cause, .. } => words(cause),
        Error::WithContext { context, cause } => Some(format!("{context}: {}", words(cause)?)),
        Error::BadArgument { pos, cause, .. } => {
            Some(format!("bad argument #{pos} ({})", words(cause)?))
        }
        Error::FromLuaConversionError { from, to, .. } => {
            Some(format!("{} expected, got {from}", kind(to)))
        }
        Error::RuntimeError(words) => Some(words.clone()),
        Error::MemoryError(_) => None,
        other => Some(other.to_string()),
    }
}

/// Lua's name for a Rust type.
fn kind(name: &str) -> &str {
    match name {
        "LuaString" | "String" | "string" => "string",
        "Table" | "table" => "table",
        "f64" | "i64" | "u32" | "usize" | "number" => "number",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run, state};
    use super::super::{hash, random};

    #[test]
    fn errors_of_rust_are_strings_with_a_line() {
        let lua = state();
        lua.globals()
            .set("hash", hash::table(&lua).expect("a library"))
            .expect("set");
        lua.globals()
            .set("random", random::table(&lua).expect("a library"))
            .expect("set");
        for (script, answer) in [
            (
                "return pcall(function() local x = hash.md5({}) end)",
                "false script:1: bad argument #1 (string expected, got table)",
            ),
            (
                "\nlocal x = hash.hmac('crc', 'k', 'v')",
                "error: script:2: hmac: the algorithms are md5, sha1, sha256, sha384 and sha512",
            ),
            (
                "local ok, words = pcall(random.bytes, -1) return words:match('a count is')",
                "a count is",
            ),
            (
                "return #random.bytes(16), #random.hex(16), random.hex(8) ~= random.hex(8)",
                "16 32 true",
            ),
            (
                "return hash.sha1('abc'):sub(1, 6), #hash.sha1('', 'raw'), hash.unhex('6g')",
                "a9993e 20 nil",
            ),
        ] {
            assert_eq!(run(&lua, script), answer, "{script}");
        }
    }
}
