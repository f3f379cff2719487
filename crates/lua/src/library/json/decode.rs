//! Decodes JSON text to Lua values.

use std::fmt;

use mlua::{IntoLua, Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{DEPTH_MAX, Limits};

/// The value of `text`. Arrays get `mark` as their metatable.
pub(super) fn decode(
    lua: &Lua,
    text: &[u8],
    mark: &Table,
    limits: &Limits,
) -> Result<Value, String> {
    if text.len() > limits.json_bytes_max {
        return Err(format!(
            "json: the text is longer than {} bytes",
            limits.json_bytes_max
        ));
    }
    // The parser has a fixed depth limit of its own. The script's limit is checked first, in one quick pass.
    if nesting(text) > limits.json_depth_max.min(DEPTH_MAX) {
        return Err(format!(
            "json: nesting is deeper than {}",
            limits.json_depth_max
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(text);
    reader.disable_recursion_limit();
    let seed = Seed { lua, mark };
    let value = seed.deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| format!("json: {error}"))
}

/// How deep brackets and braces nest outside strings. The text may be malformed.
fn nesting(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

/// Creates Lua values while the text is parsed.
#[derive(Clone, Copy)]
struct Seed<'a> {
    lua: &'a Lua,
    mark: &'a Table,
}

impl Seed<'_> {
    fn value<E: Error>(self, value: impl IntoLua) -> Result<Value, E> {
        value.into_lua(self.lua).map_err(E::custom)
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.value(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let array = self.lua.create_table().map_err(A::Error::custom)?;
        while let Some(value) = values.next_element_seed(self)? {
            array.raw_push(value).map_err(A::Error::custom)?;
        }
        let marked = array.set_metatable(Some(self.mark.clone()));
        marked.map_err(A::Error::custom)?;
        Ok(Value::Table(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let object = self.lua.create_table().map_err(A::Error::custom)?;
        while let Some(key) = members.next_key_seed(self)? {
            let value = members.next_value_seed(self)?;
            object.raw_set(key, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(object))
    }
}
