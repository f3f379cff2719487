//! JSON (RFC 8259) as a library for scripts.
//!
//! `decode(text)` returns tables, strings, numbers and booleans. `null` becomes `json.null`, to distinguish
//! it from a missing field. A decoded array keeps a mark, so that an empty array is written as `[]` again;
//! `json.array(t)` sets the same mark on a table of the script. `encode(value)` writes a table as an array if
//! it has the mark or the keys 1 to n, and as an object otherwise.
//!
//! Both return `nil` and a message if they fail: for text that is not JSON, for nesting deeper than the limit
//! (including a table inside itself), for a value that JSON cannot represent, and for a result that is too
//! long. Numbers are doubles: integers beyond 2^53 lose digits.

mod decode;
mod encode;

use mlua::{Lua, LuaString, Result, Table, Value};

use super::Limits;

/// The library as a table: `encode(value)`, `decode(text)`, `array(t)`, `null`.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not open.
pub fn table(lua: &Lua, limits: &Limits) -> Result<Table> {
    let limits = *limits;
    let mark = array_mark(lua)?;
    let library = lua.create_table()?;
    library.set("null", Value::NULL)?;
    let arrays = mark.clone();
    let encode = lua.create_function(move |lua, value: Value| {
        match encode::encode(&value, &arrays, &limits) {
            Ok(text) => Ok((Some(lua.create_string(text)?), None)),
            Err(words) => Ok((None, Some(words))),
        }
    })?;
    library.set("encode", encode)?;
    let arrays = mark.clone();
    let decode = lua.create_function(move |lua, text: LuaString| {
        match decode::decode(lua, &text.as_bytes(), &arrays, &limits) {
            Ok(value) => Ok((value, None)),
            Err(words) => Ok((Value::Nil, Some(words))),
        }
    })?;
    library.set("decode", decode)?;
    let array = lua.create_function(move |_, table: Table| {
        if table.metatable().is_some_and(|meta| meta != mark) {
            return Err(mlua::Error::runtime(
                "json.array: the table has a metatable already",
            ));
        }
        table.set_metatable(Some(mark.clone()))?;
        Ok(table)
    })?;
    library.set("array", array)?;
    super::plain_errors(lua, library)
}

/// The metatable of arrays. A script sees a string instead of it, and cannot change it.
fn array_mark(lua: &Lua) -> Result<Table> {
    let kept: Option<Table> = lua.named_registry_value(ARRAY_MARK)?;
    if let Some(mark) = kept {
        return Ok(mark);
    }
    let mark = lua.create_table()?;
    mark.raw_set("__metatable", "json.array")?;
    lua.set_named_registry_value(ARRAY_MARK, &mark)?;
    Ok(mark)
}

/// The deepest nesting that a limit may allow: the stack of a thread must be large enough for it.
pub(crate) const DEPTH_MAX: usize = 1000;

const ARRAY_MARK: &str = "petrel.json.array";

#[cfg(test)]
mod tests {
    use super::super::tests::{run, state};
    use super::*;

    fn eval(script: &str) -> String {
        let lua = state();
        let library = table(&lua, &Limits::default()).expect("a library");
        lua.globals().set("json", library).expect("set");
        run(&lua, script)
    }

    #[test]
    fn values_survive_both_ways() {
        for text in [
            "null",
            "true",
            "0",
            "-1.5",
            "1e+300",
            "0.1",
            "\"\"",
            "[]",
            "{}",
            "[[],{}]",
            "[1,null,\"a\"]",
            "{\"a\":[true]}",
            "9007199254740991",
            "\"\\\"\\\\\\n\u{e4}\u{20ac}\"",
            "5e-324",
        ] {
            let script = format!("return (json.encode(json.decode([==[{text}]==])))");
            assert_eq!(eval(&script), text);
        }
    }

    #[test]
    fn tables_are_arrays_or_objects() {
        for (value, text) in [
            ("{}", "{}"),
            ("json.array({})", "[]"),
            ("{1, 2}", "[1,2]"),
            ("{1, nil, 3}", "[1,null,3]"),
            ("{[2] = 'b'}", "[null,\"b\"]"),
            ("{[1000] = 'b'}", "{\"1000\":\"b\"}"),
            ("{[1.5] = 'b'}", "{\"1.5\":\"b\"}"),
            ("json.array({[3] = 1})", "[null,null,1]"),
            ("json.null", "null"),
            ("nil", "null"),
            ("'\\1\\200'", "\"\\u0001\u{fffd}\""),
        ] {
            assert_eq!(
                eval(&format!("return (json.encode({value}))")),
                text,
                "{value}"
            );
        }
        assert_eq!(
            eval("return (json.encode({1, a = 2}):gsub('[^%w]', ''))"),
            "11a2"
        );
    }

    #[test]
    fn what_json_has_no_form_for_is_refused() {
        for (value, words) in [
            ("0/0", "nil json: a number must be finite"),
            ("1/0", "nil json: a number must be finite"),
            ("{f = print}", "nil json: a function has no form in JSON"),
            (
                "{[true] = 1}",
                "nil json: a key must be a string or a number",
            ),
        ] {
            assert_eq!(
                eval(&format!("return json.encode({value})")),
                words,
                "{value}"
            );
        }
        let inside_itself = "local t = {} t.t = t return json.encode(t)";
        assert_eq!(eval(inside_itself), "nil json: nesting is deeper than 128");
    }

    #[test]
    fn deep_text_is_refused() {
        let deep = "return json.decode(('['):rep(1e6))";
        assert_eq!(eval(deep), "nil json: nesting is deeper than 128");
        let deep = "return json.decode(('{\"a\":'):rep(1e5))";
        assert_eq!(eval(deep), "nil json: nesting is deeper than 128");
        let allowed = "return type(json.decode(('['):rep(128) .. (']'):rep(128)))";
        assert_eq!(eval(allowed), "table");
    }

    #[test]
    fn broken_text_is_refused_with_its_place() {
        for text in [
            "",
            "[1,]",
            "{\"a\"}",
            "[1 2]",
            "nul",
            "\"a",
            "01",
            "\"\\x\"",
            "1 2",
            "\"\\ud800\"",
            "{1:2}",
            "'a'",
        ] {
            let told = eval(&format!("return json.decode([==[{text}]==])"));
            assert!(
                told.starts_with("nil json: ") && told.contains("line 1"),
                "{text}: {told}"
            );
        }
        assert!(eval("return json.decode('\"\\255\"')").starts_with("nil json: "));
    }

    #[test]
    fn marks_of_arrays_stay_closed() {
        assert_eq!(eval("return getmetatable(json.decode('[]'))"), "json.array");
        assert!(eval("setmetatable(json.array({}), {})").contains("protected metatable"));
        assert!(eval("json.array(setmetatable({}, {}))").contains("metatable already"));
    }

    #[test]
    fn results_are_limited() {
        let lua = state();
        let limits = Limits {
            json_bytes_max: 100,
            ..Limits::default()
        };
        lua.globals()
            .set("json", table(&lua, &limits).expect("a library"))
            .expect("set");
        let words = "nil json: the text is longer than 100 bytes";
        assert_eq!(run(&lua, "return json.encode(('x'):rep(101))"), words);
        assert_eq!(
            run(
                &lua,
                "local t = {} for i = 1, 60 do t[i] = i end return json.encode(t)"
            ),
            words
        );
        assert_eq!(run(&lua, "return json.decode((' '):rep(101))"), words);
    }
}
