//! Encodes Lua values as JSON text.

use mlua::{Table, Value};

use super::{DEPTH_MAX, Limits};

/// `value` as text. Tables with `mark` as their metatable are arrays.
pub(super) fn encode(value: &Value, mark: &Table, limits: &Limits) -> Result<Vec<u8>, String> {
    let mut writer = JsonWriter {
        text: Vec::new(),
        mark,
        depth: 0,
        limits,
    };
    writer.value(value)?;
    writer.check_length()?;
    Ok(writer.text)
}

struct JsonWriter<'a> {
    text: Vec<u8>,
    mark: &'a Table,
    depth: usize,
    limits: &'a Limits,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Nil => self.text.extend_from_slice(b"null"),
            null if *null == Value::NULL => self.text.extend_from_slice(b"null"),
            Value::Boolean(true) => self.text.extend_from_slice(b"true"),
            Value::Boolean(false) => self.text.extend_from_slice(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Table(table) => self.table(table)?,
            other => return Err(format!("json: a {} has no form in JSON", other.type_name())),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if !number.is_finite() {
            return Err("json: a number must be finite".to_owned());
        }
        // Up to 2^53 every integer is exact, and is written without an exponent.
        if number.trunc() == number && number.abs() <= 9_007_199_254_740_992.0 {
            self.write(&(number as i64));
        } else {
            self.write(&number);
        }
        Ok(())
    }

    /// Invalid UTF-8 becomes U+FFFD, because JSON is UTF-8 (RFC 8259 §8.1).
    fn string(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.text.len() + bytes.len() > self.limits.json_bytes_max {
            return Err(self.too_long());
        }
        self.write(String::from_utf8_lossy(bytes).as_ref());
        Ok(())
    }

    fn write<T: serde::Serialize + ?Sized>(&mut self, value: &T) {
        serde_json::to_writer(&mut self.text, value).expect("numbers and strings go into memory");
    }

    fn table(&mut self, table: &Table) -> Result<(), String> {
        self.check_length()?;
        self.depth += 1;
        if self.depth > self.limits.json_depth_max.min(DEPTH_MAX) {
            return Err(format!(
                "json: nesting is deeper than {}",
                self.limits.json_depth_max
            ));
        }
        match self.array_length(table)? {
            Some(length) => self.array(table, length)?,
            None => self.object(table)?,
        }
        self.depth -= 1;
        Ok(())
    }

    /// The length of a table that is an array: a marked one, or one whose keys are whole numbers from 1 on,
    /// with not many more holes than values.
    fn array_length(&self, table: &Table) -> Result<Option<usize>, String> {
        let marked = table.metatable().is_some_and(|meta| meta == *self.mark);
        let plain = table.raw_len();
        if !marked && plain == 0 && table.is_empty() {
            return Ok(None);
        }
        let (mut count, mut highest, mut whole) = (0usize, 0.0f64, true);
        table
            .for_each(|key: Value, _: Value| {
                count += 1;
                let index = key
                    .as_number()
                    .or_else(|| key.as_integer().map(|key| key as f64));
                match index {
                    Some(index) if index >= 1.0 && index.trunc() == index => {
                        highest = highest.max(index)
                    }
                    _ => whole = false,
                }
                Ok(())
            })
            .map_err(|error| format!("json: {error}"))?;
        let dense = highest <= (2 * count + 16) as f64;
        if whole && dense {
            return Ok(Some(highest as usize));
        }
        if marked {
            return Err("json: an array has keys that are not 1 to n".to_owned());
        }
        Ok(None)
    }

    fn array(&mut self, table: &Table, length: usize) -> Result<(), String> {
        self.text.push(b'[');
        for index in 1..=length {
            if index > 1 {
                self.text.push(b',');
            }
            let value: Value = table
                .raw_get(index)
                .map_err(|error| format!("json: {error}"))?;
            self.value(&value)?;
            self.check_length()?;
        }
        self.text.push(b']');
        Ok(())
    }

    fn object(&mut self, table: &Table) -> Result<(), String> {
        self.text.push(b'{');
        let mut fault = None;
        let mut first = true;
        let walked = table.for_each(|key: Value, value: Value| {
            if !std::mem::take(&mut first) {
                self.text.push(b',');
            }
            let done = self.member(&key, &value);
            done.map_err(|words| {
                fault = Some(words);
                mlua::Error::runtime("json")
            })
        });
        self.text.push(b'}');
        match (fault, walked) {
            (Some(words), _) => Err(words),
            (None, Err(error)) => Err(format!("json: {error}")),
            (None, Ok(())) => Ok(()),
        }
    }

    fn member(&mut self, key: &Value, value: &Value) -> Result<(), String> {
        match key {
            Value::String(key) => self.string(&key.as_bytes())?,
            Value::Number(_) | Value::Integer(_) => {
                self.text.push(b'"');
                self.value(key)?;
                self.text.push(b'"');
            }
            _ => return Err("json: a key must be a string or a number".to_owned()),
        }
        self.text.push(b':');
        self.value(value)?;
        self.check_length()
    }

    fn check_length(&self) -> Result<(), String> {
        if self.text.len() > self.limits.json_bytes_max {
            return Err(self.too_long());
        }
        Ok(())
    }

    fn too_long(&self) -> String {
        format!(
            "json: the text is longer than {} bytes",
            self.limits.json_bytes_max
        )
    }
}
