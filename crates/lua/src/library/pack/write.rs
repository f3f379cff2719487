//! Encodes values to bytes.

use mlua::{Lua, LuaString, MultiValue, Value};

use super::PackResult;
use super::format::{INTEGER_BYTES_MAX, PackFormat, PackItem};

/// Encodes the values by `format`.
pub(super) fn packed(
    lua: &Lua,
    format: &[u8],
    values: &mut MultiValue,
    bytes_max: usize,
) -> PackResult<Vec<u8>> {
    let mut format = PackFormat::new(format);
    let mut writer = PackWriter {
        lua,
        values,
        bytes: Vec::new(),
        bytes_max,
        little: true,
    };
    while let Some((item, padding)) = format.next(writer.bytes.len())? {
        writer.little = format.little;
        writer.zeros(padding)?;
        writer.item(item)?;
    }
    Ok(writer.bytes)
}

struct PackWriter<'a> {
    lua: &'a Lua,
    values: &'a mut MultiValue,
    bytes: Vec<u8>,
    bytes_max: usize,
    little: bool,
}

impl PackWriter<'_> {
    fn item(&mut self, item: PackItem) -> PackResult<()> {
        match item {
            PackItem::Signed(size) => {
                let number = self.integer()?;
                let limit = 2f64.powi(8 * size as i32 - 1);
                self.checked_integer(number, size, -limit..limit, "integer overflow")
            }
            PackItem::Unsigned(size) => {
                let number = self.integer()?;
                let least = if size < 8 { 0.0 } else { -(2f64.powi(63)) };
                let range = least..2f64.powi(8 * size as i32);
                self.checked_integer(number, size, range, "unsigned overflow")
            }
            PackItem::Float => {
                let number = self.number()? as f32;
                self.ordered(&number.to_le_bytes())
            }
            PackItem::Double => {
                let number = self.number()?;
                self.ordered(&number.to_le_bytes())
            }
            PackItem::Fixed(size) => {
                let text = self.string()?;
                let missing = size.checked_sub(text.as_bytes().len());
                self.append(&text.as_bytes())?;
                self.zeros(missing.ok_or("string longer than given size")?)
            }
            PackItem::Counted(size) => {
                let text = self.string()?;
                let length = text.as_bytes().len() as f64;
                let range = 0.0..2f64.powi(8 * size as i32);
                let words = "string length does not fit in given size";
                self.checked_integer(length, size, range, words)?;
                self.append(&text.as_bytes())
            }
            PackItem::Terminated => {
                let text = self.string()?;
                if text.as_bytes().contains(&0) {
                    return Err("string contains zeros".to_owned());
                }
                self.append(&text.as_bytes())?;
                self.zeros(1)
            }
            PackItem::Padding => self.zeros(1),
            PackItem::Align => Ok(()),
        }
    }

    /// The two's complement of a number in `size` bytes, if it is within `range`.
    fn checked_integer(
        &mut self,
        number: f64,
        size: usize,
        range: std::ops::Range<f64>,
        words: &str,
    ) -> PackResult<()> {
        if !range.contains(&number) {
            return Err(words.to_owned());
        }
        let digits = (number as i128).to_le_bytes();
        let digits = digits.get(..size.min(INTEGER_BYTES_MAX));
        self.ordered(digits.unwrap_or_default())
    }

    /// Appends bytes that are given least significant first, in the format's order.
    fn ordered(&mut self, digits: &[u8]) -> PackResult<()> {
        self.append(digits)?;
        if !self.little {
            let start = self.bytes.len() - digits.len();
            self.bytes[start..].reverse();
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> PackResult<()> {
        self.check_room(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn zeros(&mut self, count: usize) -> PackResult<()> {
        self.check_room(count)?;
        self.bytes.resize(self.bytes.len() + count, 0);
        Ok(())
    }

    fn check_room(&self, count: usize) -> PackResult<()> {
        match self.bytes.len().saturating_add(count) <= self.bytes_max {
            true => Ok(()),
            false => Err(format!(
                "the result is longer than {} bytes",
                self.bytes_max
            )),
        }
    }

    fn value(&mut self) -> Value {
        self.values.pop_front().unwrap_or(Value::Nil)
    }

    fn string(&mut self) -> PackResult<LuaString> {
        let value = self.value();
        string(self.lua, value)
    }

    fn number(&mut self) -> PackResult<f64> {
        let value = self.value();
        let kind = value.type_name();
        let number = self.lua.coerce_number(value).ok().flatten();
        number.ok_or_else(|| format!("number expected, got {kind}"))
    }

    fn integer(&mut self) -> PackResult<f64> {
        let number = self.number()?;
        match number.trunc() == number && number.abs() <= 2f64.powi(64) {
            true => Ok(number),
            false => Err("number has no integer representation".to_owned()),
        }
    }
}

/// A string, or a number as a string.
pub(super) fn string(lua: &Lua, value: Value) -> PackResult<LuaString> {
    let kind = value.type_name();
    let text = lua.coerce_string(value).ok().flatten();
    text.ok_or_else(|| format!("string expected, got {kind}"))
}
