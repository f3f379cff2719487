//! `string.pack`, `string.unpack` and `string.packsize` of Lua 5.3.
//!
//! Formats are those of Lua 5.3's manual, §6.4.2. Sizes are those of a 64-bit C: `l`, `j`, `T` and lengths of
//! strings have eight bytes, `i` has four. Numbers are doubles here, so integers beyond 2^53 are read to the
//! nearest double, and cannot be written exactly. Faults are messages; `lua/string.lua` raises them.

use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, Value};

use super::Limits;

/// Puts the functions into `rust`.
pub(super) fn add_to(lua: &Lua, rust: &Table, limits: &Limits) -> Result<()> {
    let bytes_max = limits.string_bytes_max;
    let function =
        lua.create_function(move |lua, values: MultiValue| pack(lua, values, bytes_max))?;
    rust.set("string_pack", function)?;
    rust.set("string_unpack", lua.create_function(unpack)?)?;
    rust.set("string_packsize", lua.create_function(packed_size)?)
}

type Outcome<T> = std::result::Result<T, String>;

/// One item of a format, with what aligns it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Item {
    Signed(usize),
    Unsigned(usize),
    Float,
    Double,
    /// So many bytes.
    Fixed(usize),
    /// A length of so many bytes, then the text.
    Counted(usize),
    /// A text and a zero byte.
    Terminated,
    /// One byte that means nothing.
    Padding,
    /// Nothing but the alignment.
    Align,
}

struct Format<'a> {
    rest: &'a [u8],
    little: bool,
    align_max: usize,
}

/// Most results of an unpack: a call in C has room for 8000.
const RESULTS_MAX: usize = 7_000;

/// Largest integer in bytes.
const INTEGER_BYTES_MAX: usize = 16;

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Format<'a> {
        Format {
            rest: text,
            little: cfg!(target_endian = "little"),
            align_max: 1,
        }
    }

    /// The next item, and the bytes before it that align it at `total`.
    fn next(&mut self, total: usize) -> Outcome<Option<(Item, usize)>> {
        loop {
            let [option, rest @ ..] = self.rest else {
                return Ok(None);
            };
            self.rest = rest;
            match option {
                b' ' => {}
                b'<' => self.little = true,
                b'>' => self.little = false,
                b'=' => self.little = cfg!(target_endian = "little"),
                b'!' => self.align_max = self.size(8)?,
                b'X' => {
                    let align = self.aligning_item()?;
                    return Ok(Some((Item::Align, self.padding(align, total)?)));
                }
                other => {
                    let (item, align) = self.item(*other)?;
                    return Ok(Some((item, self.padding(align, total)?)));
                }
            }
        }
    }

    /// The item of an option, and its natural alignment.
    fn item(&mut self, option: u8) -> Outcome<(Item, usize)> {
        Ok(match option {
            b'b' => (Item::Signed(1), 1),
            b'B' => (Item::Unsigned(1), 1),
            b'h' => (Item::Signed(2), 2),
            b'H' => (Item::Unsigned(2), 2),
            b'l' | b'j' => (Item::Signed(8), 8),
            b'L' | b'J' | b'T' => (Item::Unsigned(8), 8),
            b'i' => {
                let size = self.size(4)?;
                (Item::Signed(size), size)
            }
            b'I' => {
                let size = self.size(4)?;
                (Item::Unsigned(size), size)
            }
            b'f' => (Item::Float, 4),
            b'd' | b'n' => (Item::Double, 8),
            b's' => {
                let size = self.size(8)?;
                (Item::Counted(size), size)
            }
            b'c' => {
                let size = self.number().ok_or("missing size for format option 'c'")?;
                (Item::Fixed(size), 1)
            }
            b'z' => (Item::Terminated, 1),
            b'x' => (Item::Padding, 1),
            other => return Err(format!("invalid format option '{}'", char::from(other))),
        })
    }

    fn aligning_item(&mut self) -> Outcome<usize> {
        let invalid = || "invalid next option for option 'X'".to_owned();
        let [option, rest @ ..] = self.rest else {
            return Err(invalid());
        };
        self.rest = rest;
        match self.item(*option).map_err(|_| invalid())? {
            (Item::Fixed(_) | Item::Terminated | Item::Padding, _) => Err(invalid()),
            (_, align) => Ok(align),
        }
    }

    fn padding(&self, align: usize, total: usize) -> Outcome<usize> {
        let align = align.min(self.align_max);
        if align <= 1 {
            return Ok(0);
        }
        if !align.is_power_of_two() {
            return Err("format asks for alignment not power of 2".to_owned());
        }
        Ok(align.wrapping_sub(total) & (align - 1))
    }

    /// A size in bytes behind an option.
    fn size(&mut self, default: usize) -> Outcome<usize> {
        match self.number() {
            None => Ok(default),
            Some(size) if (1..=INTEGER_BYTES_MAX).contains(&size) => Ok(size),
            Some(size) => Err(format!(
                "integral size ({size}) out of limits [1,{INTEGER_BYTES_MAX}]"
            )),
        }
    }

    fn number(&mut self) -> Option<usize> {
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = number.iter().fold(0usize, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(usize::from(digit - b'0'))
        });
        (digits > 0).then_some(number)
    }
}

fn pack(lua: &Lua, mut values: MultiValue, bytes_max: usize) -> Result<MultiValue> {
    let format = string(lua, values.pop_front());
    let packed = format.and_then(|format| packed(lua, &format.as_bytes(), &mut values, bytes_max));
    match packed {
        Ok(bytes) => (true, lua.create_string(bytes)?).into_lua_multi(lua),
        Err(words) => (false, format!("string.pack: {words}")).into_lua_multi(lua),
    }
}

fn packed(lua: &Lua, format: &[u8], values: &mut MultiValue, bytes_max: usize) -> Outcome<Vec<u8>> {
    let mut format = Format::new(format);
    let mut bytes = Vec::new();
    while let Some((item, padding)) = format.next(bytes.len())? {
        bytes.resize(bytes.len() + padding, 0);
        let mut text = || string(lua, values.pop_front());
        let (needed, text) = match item {
            Item::Fixed(size) => (size, Some(text()?)),
            Item::Counted(_) | Item::Terminated => {
                let text = text()?;
                (text.as_bytes().len() + INTEGER_BYTES_MAX, Some(text))
            }
            _ => (INTEGER_BYTES_MAX, None),
        };
        if bytes.len().saturating_add(needed) > bytes_max {
            return Err(format!("the result is longer than {bytes_max} bytes"));
        }
        let text = text.as_ref().map(|text| text.as_bytes());
        let text = text.as_deref().unwrap_or_default();
        match item {
            Item::Signed(size) => {
                let number = integer(lua, values.pop_front())?;
                let limit = 2f64.powi(8 * size as i32 - 1);
                if !(-limit..limit).contains(&number) {
                    return Err("integer overflow".to_owned());
                }
                push_integer(&mut bytes, number, size, format.little);
            }
            Item::Unsigned(size) => {
                let number = integer(lua, values.pop_front())?;
                let least = if size < 8 { 0.0 } else { -(2f64.powi(63)) };
                if !(least..2f64.powi(8 * size as i32)).contains(&number) {
                    return Err("unsigned overflow".to_owned());
                }
                push_integer(&mut bytes, number, size, format.little);
            }
            Item::Float => {
                let number = number(lua, values.pop_front())? as f32;
                push_ordered(&mut bytes, &number.to_le_bytes(), format.little);
            }
            Item::Double => {
                let number = number(lua, values.pop_front())?;
                push_ordered(&mut bytes, &number.to_le_bytes(), format.little);
            }
            Item::Fixed(size) => {
                if text.len() > size {
                    return Err("string longer than given size".to_owned());
                }
                bytes.extend_from_slice(text);
                bytes.resize(bytes.len() + size - text.len(), 0);
            }
            Item::Counted(size) => {
                let length = text.len() as f64;
                if size < 8 && length >= 2f64.powi(8 * size as i32) {
                    return Err("string length does not fit in given size".to_owned());
                }
                push_integer(&mut bytes, length, size, format.little);
                bytes.extend_from_slice(text);
            }
            Item::Terminated => {
                if text.contains(&0) {
                    return Err("string contains zeros".to_owned());
                }
                bytes.extend_from_slice(text);
                bytes.push(0);
            }
            Item::Padding => bytes.push(0),
            Item::Align => {}
        }
    }
    Ok(bytes)
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

enum Unpacked<'a> {
    Number(f64),
    Text(&'a [u8]),
}

fn unpacked<'a>(
    format: &[u8],
    data: &'a [u8],
    start: usize,
) -> Outcome<(Vec<Unpacked<'a>>, usize)> {
    let mut format = Format::new(format);
    let mut place = start;
    let mut items = Vec::new();
    while let Some((item, padding)) = format.next(place)? {
        if items.len() >= RESULTS_MAX {
            return Err("too many results".to_owned());
        }
        take(data, &mut place, padding)?;
        match item {
            Item::Signed(size) => {
                let bytes = take(data, &mut place, size)?;
                items.push(Unpacked::Number(read_integer(bytes, format.little, true)?));
            }
            Item::Unsigned(size) => {
                let bytes = take(data, &mut place, size)?;
                items.push(Unpacked::Number(read_integer(bytes, format.little, false)?));
            }
            Item::Float => {
                let bits = read_bits(take(data, &mut place, 4)?, format.little);
                items.push(Unpacked::Number(f64::from(f32::from_bits(bits as u32))));
            }
            Item::Double => {
                let bits = read_bits(take(data, &mut place, 8)?, format.little);
                items.push(Unpacked::Number(f64::from_bits(bits as u64)));
            }
            Item::Fixed(size) => items.push(Unpacked::Text(take(data, &mut place, size)?)),
            Item::Counted(size) => {
                let bytes = take(data, &mut place, size)?;
                let length = read_integer(bytes, format.little, false)?;
                if length > data.len() as f64 {
                    return Err(TOO_SHORT.to_owned());
                }
                items.push(Unpacked::Text(take(data, &mut place, length as usize)?));
            }
            Item::Terminated => {
                let rest = data.get(place..).unwrap_or_default();
                let length = memchr::memchr(0, rest).ok_or("unfinished string for format 'z'")?;
                items.push(Unpacked::Text(take(data, &mut place, length)?));
                place += 1;
            }
            Item::Padding => {
                take(data, &mut place, 1)?;
            }
            Item::Align => {}
        }
    }
    Ok((items, place))
}

fn packed_size(lua: &Lua, format: LuaString) -> Result<MultiValue> {
    match size_of(&format.as_bytes()) {
        Ok(size) => (true, size).into_lua_multi(lua),
        Err(words) => (false, format!("string.packsize: {words}")).into_lua_multi(lua),
    }
}

fn size_of(format: &[u8]) -> Outcome<usize> {
    let mut format = Format::new(format);
    let mut total = 0usize;
    while let Some((item, padding)) = format.next(total)? {
        let size = match item {
            Item::Signed(size) | Item::Unsigned(size) | Item::Fixed(size) => size,
            Item::Float => 4,
            Item::Double => 8,
            Item::Padding => 1,
            Item::Align => 0,
            Item::Counted(_) | Item::Terminated => return Err("variable-length format".to_owned()),
        };
        total = total
            .checked_add(padding)
            .and_then(|total| total.checked_add(size))
            .filter(|total| *total <= i32::MAX as usize)
            .ok_or("format result too large")?;
    }
    Ok(total)
}

/// Why an unpack finds no more.
const TOO_SHORT: &str = "data string too short";

fn take<'a>(data: &'a [u8], place: &mut usize, count: usize) -> Outcome<&'a [u8]> {
    let end = place.checked_add(count).ok_or(TOO_SHORT)?;
    let taken = data.get(*place..end).ok_or(TOO_SHORT)?;
    *place = end;
    Ok(taken)
}

fn string(lua: &Lua, value: Option<Value>) -> Outcome<LuaString> {
    let value = value.unwrap_or(Value::Nil);
    let kind = value.type_name();
    let text = lua.coerce_string(value).ok().flatten();
    text.ok_or_else(|| format!("string expected, got {kind}"))
}

fn number(lua: &Lua, value: Option<Value>) -> Outcome<f64> {
    let value = value.unwrap_or(Value::Nil);
    let kind = value.type_name();
    let number = lua.coerce_number(value).ok().flatten();
    number.ok_or_else(|| format!("number expected, got {kind}"))
}

fn integer(lua: &Lua, value: Option<Value>) -> Outcome<f64> {
    let number = number(lua, value)?;
    match number.trunc() == number && number.abs() <= 2f64.powi(64) {
        true => Ok(number),
        false => Err("number has no integer representation".to_owned()),
    }
}

/// Appends the two's complement of an integer that fits.
fn push_integer(bytes: &mut Vec<u8>, number: f64, size: usize, little: bool) {
    let digits = (number as i128).to_le_bytes();
    push_ordered(bytes, digits.get(..size).unwrap_or(&digits), little);
}

/// Appends bytes that have the least significant one first.
fn push_ordered(bytes: &mut Vec<u8>, digits: &[u8], little: bool) {
    if little {
        bytes.extend_from_slice(digits);
    } else {
        bytes.extend(digits.iter().rev());
    }
}

fn read_bits(bytes: &[u8], little: bool) -> u128 {
    let add = |number: u128, byte: &u8| number << 8 | u128::from(*byte);
    match little {
        true => bytes.iter().rev().fold(0, add),
        false => bytes.iter().fold(0, add),
    }
}

/// An integer that Lua 5.3 could hold, which has eight bytes there.
fn read_integer(bytes: &[u8], little: bool, signed: bool) -> Outcome<f64> {
    let bits = read_bits(bytes, little);
    let unused = 128 - 8 * bytes.len() as u32;
    if signed {
        let number = ((bits << unused) as i128) >> unused;
        if i64::try_from(number).is_ok() {
            return Ok(number as f64);
        }
    } else if u64::try_from(bits).is_ok() {
        return Ok(bits as f64);
    }
    let size = bytes.len();
    Err(format!("{size}-byte integer does not fit into Lua Integer"))
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
