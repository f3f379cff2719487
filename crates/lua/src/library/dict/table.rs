//! A dictionary as a table for scripts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Error, FromLua, Function, Lua, LuaString, MultiValue, Result, Table, Value};

use super::{DICTS_MAX, Dict, DictItem, Dicts, Lifetime, NotCounted, When, Written};
use crate::library::protect;

/// The most keys that `keys` returns by default, and the length of the longest key in bytes.
const KEYS_MAX: usize = 1024;
const KEY_BYTES_MAX: usize = 65_536;

/// A function that returns the table of the dictionary with the given name.
///
/// # Errors
/// Memory has run out.
pub fn opener(lua: &Lua, dicts: Arc<Dicts>) -> Result<Function> {
    let known: RefCell<HashMap<String, Table>> = RefCell::default();
    lua.create_function(move |lua, name: String| {
        if let Some(table) = known.borrow().get(&name) {
            return Ok(table.clone());
        }
        let dict = dicts.open(&name).ok_or_else(|| {
            Error::runtime(format_args!("petrel.dict: there are {DICTS_MAX} already"))
        })?;
        let table = protect(lua, &table(lua, dict)?)?;
        known.borrow_mut().insert(name, table.clone());
        Ok(table)
    })
}

/// The dictionary as a table of methods; `d.get(key)` and `d:get(key)` are the same.
///
/// * `get(key)`: the value, or `nil`.
/// * `set(key, value [, seconds])`: `true`; `nil` as the value removes the key. `add` writes only if the key
///   does not exist, `replace` only if it exists; otherwise they return `false`. `nil, "too large"` if the
///   value can never fit.
/// * `incr(key [, by [, first [, seconds]]])`: the sum, where `by` is 1 by default. A missing key starts with
///   `first`; without `first`: `nil, "not found"`. `nil, "not a number"` for other values.
/// * `delete(key)`: whether the key existed. `flush()` removes everything.
/// * `keys([count])`: up to `count` keys, or 1024 by default.
/// * `ttl(key)`: the remaining seconds, `math.huge` if it does not expire, `nil` if it does not exist.
/// * `expire(key [, seconds])`: whether the key exists; without seconds it does not expire any more.
/// * `stats()`: a table of the counters, see [`Counters`](super::Counters), and `bytes_max`.
///
/// Seconds may have a fraction; 0 means that the item does not expire.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not open.
pub fn table(lua: &Lua, dict: Arc<Dict>) -> Result<Table> {
    let library = lua.create_table()?;
    let add = |name: &str, method: Method| -> Result<()> {
        let dict = Arc::clone(&dict);
        let function = lua.create_function(move |lua, mut arguments: MultiValue| {
            if matches!(arguments.front(), Some(Value::Table(_))) {
                arguments.pop_front();
            }
            method(lua, &dict, &mut Arguments { lua, arguments })
        })?;
        library.set(name, function)
    };
    add("get", get)?;
    add("set", |lua, dict, arguments| {
        write(lua, dict, arguments, When::Always)
    })?;
    add("add", |lua, dict, arguments| {
        write(lua, dict, arguments, When::Absent)
    })?;
    add("replace", |lua, dict, arguments| {
        write(lua, dict, arguments, When::Present)
    })?;
    add("incr", increment)?;
    add("delete", |_, dict, arguments| {
        let key = arguments.key()?;
        Ok(one(Value::Boolean(dict.delete(&key.as_bytes()))))
    })?;
    add("flush", |_, dict, _| {
        dict.flush();
        Ok(MultiValue::new())
    })?;
    add("keys", keys)?;
    add("ttl", lifetime)?;
    add("expire", |_, dict, arguments| {
        let key = arguments.key()?;
        let lifetime = arguments.lifetime()?;
        Ok(one(Value::Boolean(dict.expire(&key.as_bytes(), lifetime))))
    })?;
    add("stats", stats)?;
    super::super::plain_errors(lua, library)
}

type Method = fn(&Lua, &Dict, &mut Arguments<'_>) -> Result<MultiValue>;

/// The arguments of a method, taken from the front.
struct Arguments<'a> {
    lua: &'a Lua,
    arguments: MultiValue,
}

impl Arguments<'_> {
    fn next<T: FromLua>(&mut self) -> Result<T> {
        let value = self.arguments.pop_front().unwrap_or(Value::Nil);
        T::from_lua(value, self.lua)
    }

    fn key(&mut self) -> Result<LuaString> {
        let key: Option<LuaString> = self.next()?;
        key.filter(|key| key.as_bytes().len() <= KEY_BYTES_MAX)
            .ok_or_else(|| fault(&format!("a key is a string of up to {KEY_BYTES_MAX} bytes")))
    }

    fn lifetime(&mut self) -> Result<Lifetime> {
        let seconds: Option<f64> = self.next()?;
        match seconds {
            None => Ok(None),
            Some(seconds) if seconds == 0.0 || seconds == f64::INFINITY => Ok(None),
            Some(seconds) if seconds > 0.0 => Ok(Duration::try_from_secs_f64(seconds).ok()),
            Some(_) => Err(fault("seconds must not be negative")),
        }
    }
}

fn get(lua: &Lua, dict: &Dict, arguments: &mut Arguments<'_>) -> Result<MultiValue> {
    let key = arguments.key()?;
    let item = dict.get(&key.as_bytes());
    Ok(one(match item {
        None => Value::Nil,
        Some(DictItem::Text(text)) => Value::String(lua.create_string(&text)?),
        Some(DictItem::Number(number)) => Value::Number(number),
        Some(DictItem::Boolean(value)) => Value::Boolean(value),
    }))
}

fn write(lua: &Lua, dict: &Dict, arguments: &mut Arguments<'_>, when: When) -> Result<MultiValue> {
    let key = arguments.key()?;
    let value: Value = arguments.next()?;
    let lifetime = arguments.lifetime()?;
    let item = match value {
        Value::Nil if when == When::Always => {
            dict.delete(&key.as_bytes());
            return Ok(one(Value::Boolean(true)));
        }
        Value::String(text) => DictItem::Text(text.as_bytes().as_ref().into()),
        Value::Number(number) => DictItem::Number(number),
        Value::Integer(number) => DictItem::Number(number as f64),
        Value::Boolean(value) => DictItem::Boolean(value),
        other => {
            let words = format!(
                "a value is a string, a number or a boolean, not a {}",
                other.type_name()
            );
            return Err(fault(&words));
        }
    };
    match dict.set(&key.as_bytes(), item, lifetime, when) {
        Written::Done => Ok(one(Value::Boolean(true))),
        Written::Unchanged => Ok(one(Value::Boolean(false))),
        Written::TooLarge => refusal(lua, "too large"),
    }
}

fn increment(lua: &Lua, dict: &Dict, arguments: &mut Arguments<'_>) -> Result<MultiValue> {
    let key = arguments.key()?;
    let by: Option<f64> = arguments.next()?;
    let first: Option<f64> = arguments.next()?;
    let lifetime = arguments.lifetime()?;
    match dict.increment(&key.as_bytes(), by.unwrap_or(1.0), first, lifetime) {
        Ok(sum) => Ok(one(Value::Number(sum))),
        Err(NotCounted::Absent) => refusal(lua, "not found"),
        Err(NotCounted::NotANumber) => refusal(lua, "not a number"),
        Err(NotCounted::TooLarge) => refusal(lua, "too large"),
    }
}

fn keys(lua: &Lua, dict: &Dict, arguments: &mut Arguments<'_>) -> Result<MultiValue> {
    let count: Option<f64> = arguments.next()?;
    let count = count.map_or(KEYS_MAX, |count| count.max(0.0) as usize);
    let list = lua.create_table()?;
    for key in dict.keys(count) {
        list.raw_push(lua.create_string(&key)?)?;
    }
    Ok(one(Value::Table(list)))
}

fn lifetime(_: &Lua, dict: &Dict, arguments: &mut Arguments<'_>) -> Result<MultiValue> {
    let key = arguments.key()?;
    Ok(one(match dict.lifetime(&key.as_bytes()) {
        None => Value::Nil,
        Some(None) => Value::Number(f64::INFINITY),
        Some(Some(left)) => Value::Number(left.as_secs_f64()),
    }))
}

fn stats(lua: &Lua, dict: &Dict, _: &mut Arguments<'_>) -> Result<MultiValue> {
    let counters = dict.counters();
    let shown = lua.create_table_from([
        ("entries", counters.entries as f64),
        ("bytes", counters.bytes as f64),
        ("bytes_max", dict.bytes_max() as f64),
        ("hits", counters.hits as f64),
        ("misses", counters.misses as f64),
        ("evicted", counters.evicted as f64),
        ("expired", counters.expired as f64),
        ("refused", counters.refused as f64),
    ])?;
    Ok(one(Value::Table(shown)))
}

fn one(value: Value) -> MultiValue {
    MultiValue::from_vec(vec![value])
}

fn refusal(lua: &Lua, words: &str) -> Result<MultiValue> {
    let words = Value::String(lua.create_string(words)?);
    Ok(MultiValue::from_vec(vec![Value::Nil, words]))
}

fn fault(words: &str) -> mlua::Error {
    mlua::Error::runtime(format!("dict: {words}"))
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{run, state};
    use super::*;

    #[test]
    fn scripts_use_it_with_a_dot_or_a_colon() {
        let lua = state();
        let library = table(&lua, Arc::new(Dict::new(10_000))).expect("a library");
        lua.globals().set("d", library).expect("set");
        for (script, answer) in [
            (
                "return d:set('a', 'x'), d.set('b', 1.5), d:set('c', false)",
                "true true true",
            ),
            (
                "return d:get('a'), d.get('b'), d:get('c'), d:get('none')",
                "x 1.5 false nil",
            ),
            (
                "return d:add('a', 1), d:add('n', 1), d:replace('m', 1), d:replace('n', 2)",
                "false true false true",
            ),
            (
                "return d:incr('n'), d:incr('n', 5), d:incr('z'), d:incr('a')",
                "3 8 nil nil not a number",
            ),
            ("return d:incr('z')", "nil not found"),
            ("return d:incr('z', 1, 10), d:incr('z', -1)", "11 10"),
            (
                "return d:ttl('a'), d:ttl('none'), d:expire('a', 100), d:ttl('a') > 99, d:expire('none', 1)",
                "inf nil true true false",
            ),
            (
                "return d:delete('a'), d:delete('a'), d:set('b', nil), d:get('b')",
                "true false true nil",
            ),
            ("return d:set('big', ('x'):rep(20000))", "nil too large"),
            (
                "local k = d:keys() table.sort(k) return table.concat(k, ','), #d:keys(1)",
                "c,n,z 1",
            ),
            (
                "local s = d:stats() return s.entries, s.hits, s.refused, s.bytes_max",
                "3 3 1 10000",
            ),
            ("d:flush() return #d:keys()", "0"),
        ] {
            assert_eq!(run(&lua, script), answer, "{script}");
        }
        for script in [
            "d:set('a', {})",
            "d:set({}, 1)",
            "d:set('a', 1, -1)",
            "d:get()",
            "d:set('a', 1, 0/0)",
        ] {
            assert!(run(&lua, script).starts_with("error"), "{script}");
        }
    }
}
