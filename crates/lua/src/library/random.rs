//! Random bytes from the kernel (`getrandom(2)`), suitable for keys and tokens.

use mlua::{Lua, LuaString, Result, Table};

/// Fills `bytes` with random bytes.
///
/// # Errors
/// The kernel has no random numbers, which does not happen on a running system.
pub fn fill(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty())?;
        rest = rest.get_mut(count..).unwrap_or_default();
    }
    Ok(())
}

/// The most bytes of one call of `bytes`.
pub const BYTES_MAX: usize = 65_536;

/// The library as a table: `bytes(count)` returns a string of random bytes, `hex(count)` the same as
/// lower-case hexadecimal digits.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not open.
pub fn table(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    library.set("bytes", lua.create_function(bytes)?)?;
    let digits =
        |_: &Lua, count: f64| Ok(super::hash::hex(&draw(count)?, super::hash::Case::Lower));
    library.set("hex", lua.create_function(digits)?)?;
    super::plain_errors(lua, library)
}

fn bytes(lua: &Lua, count: f64) -> Result<LuaString> {
    lua.create_string(draw(count)?)
}

fn draw(count: f64) -> Result<Vec<u8>> {
    if !(0.0..=BYTES_MAX as f64).contains(&count) {
        let words = format!("random: a count is from 0 to {BYTES_MAX}");
        return Err(mlua::Error::runtime(words));
    }
    let mut drawn = vec![0; count as usize];
    fill(&mut drawn).map_err(mlua::Error::external)?;
    Ok(drawn)
}
