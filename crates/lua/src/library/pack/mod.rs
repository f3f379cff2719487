//! `string.pack`, `string.unpack` and `string.packsize` of Lua 5.3.
//!
//! Formats are those of Lua 5.3's manual, §6.4.2. Sizes are those of 64-bit C: `l`, `j`, `T` and lengths of
//! strings have eight bytes, `i` has four. Numbers are doubles, so integers beyond 2^53 are read as the
//! nearest double, and cannot be written exactly. Errors are returned as messages; `lua/string.lua` raises
//! them.

mod format;
mod read;
mod write;

use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, Value};

use self::format::size_of;
use self::read::{Unpacked, unpacked};
use self::write::{packed, string};
use super::Limits;

/// Adds the functions to `rust`.
pub(super) fn add_to(lua: &Lua, rust: &Table, limits: &Limits) -> Result<()> {
    let bytes_max = limits.string_bytes_max;
    let function =
        lua.create_function(move |lua, values: MultiValue| pack(lua, values, bytes_max))?;
    rust.set("string_pack", function)?;
    rust.set("string_unpack", lua.create_function(unpack)?)?;
    rust.set("string_packsize", lua.create_function(packed_size)?)
}

type PackResult<T> = std::result::Result<T, String>;

fn pack(lua: &Lua, mut values: MultiValue, bytes_max: usize) -> Result<MultiValue> {
    let format = string(lua, values.pop_front().unwrap_or(Value::Nil));
    let packed = format.and_then(|format| packed(lua, &format.as_bytes(), &mut values, bytes_max));
    match packed {
        Ok(bytes) => (true, lua.create_string(bytes)?).into_lua_multi(lua),
        Err(words) => (false, format!("string.pack: {words}")).into_lua_multi(lua),
    }
}

fn unpack(
    lua: &Lua,
    (format, data, start): (LuaString, LuaString, Option<f64>),
) -> Result<MultiValue> {
    let data = data.as_bytes();
    let start = start.unwrap_or(1.0).trunc();
    let start = if start < 0.0 {
        data.len() as f64 + start
    } else {
        start - 1.0
    };
    let result = if (0.0..=data.len() as f64).contains(&start) {
        unpacked(&format.as_bytes(), &data, start as usize)
    } else {
        Err("initial position out of string".to_owned())
    };
    let (items, place) = match result {
        Ok(result) => result,
        Err(words) => return (false, format!("string.unpack: {words}")).into_lua_multi(lua),
    };
    let mut values = vec![Value::Boolean(true)];
    for item in items {
        values.push(match item {
            Unpacked::Number(number) => Value::Number(number),
            Unpacked::Text(text) => Value::String(lua.create_string(text)?),
        });
    }
    values.push(Value::Number((place + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

fn packed_size(lua: &Lua, format: LuaString) -> Result<MultiValue> {
    match size_of(&format.as_bytes()) {
        Ok(size) => (true, size).into_lua_multi(lua),
        Err(words) => (false, format!("string.packsize: {words}")).into_lua_multi(lua),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run, state};

    fn hex(script: &str) -> String {
        run(
            &state(),
            &format!(
                "return ({script}):gsub('.', function(c) return ('%02x'):format(c:byte()) end)"
            ),
        )
    }

    #[test]
    fn values_are_packed_as_lua_does() {
        for (call, answer) in [
            ("string.pack('<i4', 1)", "01000000 4"),
            ("string.pack('>i4', -2)", "fffffffe 4"),
            ("string.pack('<I3', 0xABCDEF)", "efcdab 3"),
            ("string.pack('>s2', 'abc')", "0003616263 5"),
            ("string.pack('z', 'ab')", "616200 3"),
            ("string.pack('<d', 1.5)", "000000000000f83f 8"),
            ("string.pack('>f', -2)", "c0000000 4"),
            ("string.pack('<!4 b i4', 1, 2)", "0100000002000000 8"),
            ("string.pack('c5', 'ab')", "6162000000 5"),
            ("string.pack('<bXi2h', 1, 2)", "010200 3"),
            ("string.pack('<!bXi2h', 1, 2)", "01000200 4"),
            (
                "string.pack('<i16', -1)",
                "ffffffffffffffffffffffffffffffff 16",
            ),
            ("string.pack('>j', -1)", "ffffffffffffffff 8"),
        ] {
            assert_eq!(hex(call), answer, "{call}");
        }
    }

    #[test]
    fn values_are_read_back() {
        for (script, answer) in [
            (
                "return string.unpack('<i2 >I2 z s1 d', string.pack('<i2 >I2 z s1 d', -5, 65535, 'ab', 'c', 0.1))",
                "-5 65535 ab c 0.1 18",
            ),
            ("return string.unpack('B', 'abc', 2)", "98 3"),
            ("return string.unpack('B', 'abc', -1)", "99 4"),
            ("return string.unpack('<j', ('\\255'):rep(8))", "-1 9"),
            ("return string.unpack('<i16', ('\\255'):rep(16))", "-1 17"),
            (
                "return string.packsize('<!8 b d i4'), string.packsize('')",
                "20 0",
            ),
            ("return ('<h'):pack(7):byte(1, -1)", "7 0"),
        ] {
            assert_eq!(run(&state(), script), answer, "{script}");
        }
    }

    #[test]
    fn faults_are_errors_of_the_script() {
        for (call, words) in [
            (
                "string.pack('i17', 1)",
                "string.pack: integral size (17) out of limits [1,16]",
            ),
            ("string.pack('b', 128)", "string.pack: integer overflow"),
            ("string.pack('B', -1)", "string.pack: unsigned overflow"),
            (
                "string.pack('i4', 1.5)",
                "string.pack: number has no integer representation",
            ),
            ("string.pack('i4')", "string.pack: number expected, got nil"),
            (
                "string.pack('c1', 'ab')",
                "string.pack: string longer than given size",
            ),
            (
                "string.pack('z', 'a\\0b')",
                "string.pack: string contains zeros",
            ),
            (
                "string.pack('s1', ('x'):rep(256))",
                "string.pack: string length does not fit in given size",
            ),
            (
                "string.pack('c99999999999', 'a')",
                "string.pack: the result is longer than 16777216 bytes",
            ),
            (
                "string.pack('q', 1)",
                "string.pack: invalid format option 'q'",
            ),
            (
                "string.pack('X', 1)",
                "string.pack: invalid next option for option 'X'",
            ),
            (
                "string.pack('!3 i4', 1)",
                "string.pack: format asks for alignment not power of 2",
            ),
            (
                "string.unpack('i4', 'abc')",
                "string.unpack: data string too short",
            ),
            (
                "string.unpack('s8', ('\\255'):rep(8))",
                "string.unpack: data string too short",
            ),
            (
                "string.unpack('c99999999999999999999', 'a')",
                "string.unpack: data string too short",
            ),
            (
                "string.unpack('z', 'abc')",
                "string.unpack: unfinished string for format 'z'",
            ),
            (
                "string.unpack('b', 'abc', 9)",
                "string.unpack: initial position out of string",
            ),
            (
                "string.unpack(('b'):rep(9000), ('x'):rep(9000))",
                "string.unpack: too many results",
            ),
            (
                "string.unpack('I16', ('\\255'):rep(16))",
                "string.unpack: 16-byte integer does not fit into Lua Integer",
            ),
            (
                "string.packsize('s')",
                "string.packsize: variable-length format",
            ),
            (
                "string.packsize('c2147483647c1')",
                "string.packsize: format result too large",
            ),
        ] {
            let told = run(&state(), &format!("local x = {call}"));
            assert_eq!(told, format!("error: script:1: {words}"), "{call}");
        }
    }
}
