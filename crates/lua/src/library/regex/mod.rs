//! Regular expressions for scripts: PCRE2, compiled to machine code, with limits.
//!
//! Every function takes the subject, the expression and flags: `i` ignores case, `m` makes `^` and `$` match
//! at lines, `s` makes the dot match line ends, `x` ignores blanks, `u` uses UTF-8. Without `u` everything is
//! bytes. Compiled expressions are cached.
//!
//! * `match(s, re [, flags [, init]])`: the groups, or the whole match if there are none; `nil` if nothing
//!   matches.
//! * `find(…)`: the positions of the first and last byte, then the groups.
//! * `captures(…)`: a table with the match at 0, the groups from 1 on, and named groups at their names.
//! * `gmatch(s, re [, flags])`: an iterator over the results of `match`.
//! * `gsub(s, re, replacement [, flags [, count]])`: the new text and the number of matches. In a string `$0`
//!   is the match, `$1` or `${1}` a group, `${name}` a named one, `$$` a dollar. A function is called with
//!   the groups, a table is indexed with the first one; `false` and `nil` keep the match.
//! * `split(s, re [, flags [, count]])`: an array of the parts between matches; empty matches split between
//!   bytes.
//!
//! A group that did not take part is `nil` among values, and missing in tables. These are errors that name
//! the function: an invalid expression, one that needs more steps than the limit (a step is an item of the
//! expression, or 16 bytes of the subject), and a subject longer than the limit. `engine.rs` describes how a
//! match is stopped.
#![expect(clippy::disallowed_methods, reason = "it limits the time of one call")]

mod engine;
mod replace;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, Value};

use self::engine::{Engine, Expression, First, Groups, MatchFault, Search};
use super::Limits;

/// The library as a table; see the module's documentation.
///
/// # Errors
/// Memory has run out.
pub(crate) fn table(lua: &Lua, limits: &Limits) -> Result<Table> {
    let engine = Engine::new().ok_or_else(|| mlua::Error::runtime("regex: no memory"))?;
    let expressions = Rc::new(Expressions {
        engine,
        kept: RefCell::default(),
        limits: *limits,
    });
    let rust = lua.create_table()?;
    let this = Rc::clone(&expressions);
    let find = lua.create_function(move |lua, args| this.find(lua, args))?;
    rust.set("find", find)?;
    let this = Rc::clone(&expressions);
    let captures = lua.create_function(move |lua, args| this.captures(lua, args))?;
    rust.set("captures", captures)?;
    let this = Rc::clone(&expressions);
    let gsub = lua.create_function(move |lua, args| this.gsub(lua, args))?;
    rust.set("gsub", gsub)?;
    let split = lua.create_function(move |lua, args| expressions.split(lua, args))?;
    rust.set("split", split)?;
    rust.set("string_bytes_max", limits.string_bytes_max)?;
    lua.load(include_str!("../lua/regex.lua"))
        .set_name("=petrel/regex.lua")
        .call(rust)
}

/// The most cached expressions. If scripts generate more, the cache is emptied.
const KEPT_MAX: usize = 256;

/// The longest expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 16_384;

/// How long a replacement or a split may match without counting steps.
const QUICK_TIME_MAX: Duration = Duration::from_millis(3);

type Key = (Box<[u8]>, Box<[u8]>);
/// Function, subject, expression, flags, position from one, and whether to skip an empty match there.
type RegexFindArguments = (
    LuaString,
    LuaString,
    LuaString,
    Option<LuaString>,
    Option<f64>,
    Option<bool>,
);
/// Subject, expression, replacement, flags, count.
type RegexGsubArguments = (
    LuaString,
    LuaString,
    LuaString,
    Option<LuaString>,
    Option<f64>,
);
/// Subject, expression, flags, count.
type SplitArguments = (LuaString, LuaString, Option<LuaString>, Option<f64>);

/// The cached expressions of one state.
struct Expressions {
    engine: Engine,
    kept: RefCell<HashMap<Key, Rc<Expression>>>,
    limits: Limits,
}

type RegexResult<T> = std::result::Result<T, String>;

impl Expressions {
    /// Returns true, the first and last position, and groups; true and nil; or false and a message.
    fn find(&self, lua: &Lua, args: RegexFindArguments) -> Result<MultiValue> {
        let subject = args.1.clone();
        let bytes = subject.as_bytes();
        let groups = match self.search(&args) {
            Ok(Some((_, groups))) => groups,
            Ok(None) => return (true, Value::Nil).into_lua_multi(lua),
            Err(words) => return (false, words).into_lua_multi(lua),
        };
        let mut values = vec![Value::Boolean(true)];
        let (start, end) = whole(&groups);
        values.push(Value::Number((start + 1) as f64));
        values.push(Value::Number(end as f64));
        for group in groups.iter().skip(1) {
            values.push(text_of(lua, &bytes, *group)?);
        }
        Ok(MultiValue::from_vec(values))
    }

    /// Returns true and a table; true and nil; or false and a message.
    fn captures(&self, lua: &Lua, args: RegexFindArguments) -> Result<MultiValue> {
        let subject = args.1.clone();
        let bytes = subject.as_bytes();
        let (expression, groups) = match self.search(&args) {
            Ok(Some(found)) => found,
            Ok(None) => return (true, Value::Nil).into_lua_multi(lua),
            Err(words) => return (false, words).into_lua_multi(lua),
        };
        let shown = lua.create_table()?;
        for (index, group) in groups.iter().enumerate() {
            shown.raw_set(index, text_of(lua, &bytes, *group)?)?;
        }
        for (name, number) in expression.names() {
            let text = text_of(lua, &bytes, groups.get(*number).copied().flatten())?;
            if !text.is_nil() {
                shown.raw_set(lua.create_string(name)?, text)?;
            }
        }
        (true, shown).into_lua_multi(lua)
    }

    fn gsub(&self, lua: &Lua, args: RegexGsubArguments) -> Result<MultiValue> {
        let (subject, expression, replacement, flags, count) = args;
        let count_max = count.map_or(usize::MAX, |count| count.max(0.0) as usize);
        let work = || -> RegexResult<(Vec<u8>, usize)> {
            let bytes = subject.as_bytes();
            let expression = self.expression("gsub", &expression, flags.as_ref())?;
            let pieces = replace::pieces(&replacement.as_bytes(), expression.names())
                .and_then(|pieces| {
                    replace::check(&pieces, expression.group_count())?;
                    Ok(pieces)
                })
                .map_err(|words| format!("regex.gsub: {words}"))?;
            let mut result = Vec::with_capacity(bytes.len());
            let mut copied = 0;
            let count = self.each("gsub", &expression, &bytes, count_max, |groups| {
                let (start, end) = whole(groups);
                result.extend_from_slice(bytes.get(copied..start).unwrap_or_default());
                replace::write(&pieces, &bytes, groups, &mut result);
                copied = end.max(copied);
                self.check_length("gsub", result.len())
            })?;
            result.extend_from_slice(bytes.get(copied..).unwrap_or_default());
            self.check_length("gsub", result.len())?;
            Ok((result, count))
        };
        match work() {
            Ok((text, count)) => (true, lua.create_string(text)?, count).into_lua_multi(lua),
            Err(words) => (false, words).into_lua_multi(lua),
        }
    }

    fn split(&self, lua: &Lua, args: SplitArguments) -> Result<MultiValue> {
        let (subject, expression, flags, count) = args;
        let count_max = count.map_or(usize::MAX, |count| count.max(1.0) as usize);
        let bytes = subject.as_bytes();
        let mut parts = Vec::new();
        let mut copied = 0;
        let work = self
            .expression("split", &expression, flags.as_ref())
            .and_then(|expression| {
                self.each("split", &expression, &bytes, usize::MAX, |groups| {
                    let (start, end) = whole(groups);
                    // An empty match at either end splits nothing.
                    let divides = end > start || (start > copied && start < bytes.len());
                    if divides && parts.len() + 1 < count_max && start >= copied {
                        parts.push((copied, start));
                        copied = end;
                    }
                    Ok(())
                })
            });
        if let Err(words) = work {
            return (false, words).into_lua_multi(lua);
        }
        parts.push((copied, bytes.len()));
        let list = lua.create_table_with_capacity(parts.len(), 0)?;
        for part in parts {
            list.raw_push(text_of(lua, &bytes, Some(part))?)?;
        }
        (true, list).into_lua_multi(lua)
    }

    /// Calls `use_match` for each match, up to `count_max`. Returns how many there were.
    fn each(
        &self,
        function: &str,
        expression: &Expression,
        subject: &[u8],
        count_max: usize,
        mut use_match: impl FnMut(&Groups) -> RegexResult<()>,
    ) -> RegexResult<usize> {
        self.check_subject(function, subject.len())?;
        let mut steps = self.steps_for(subject.len());
        let (mut from, mut not_empty, mut count) = (0, false, 0);
        let started = Instant::now();
        while count < count_max {
            // The sum of many quick matches, whose steps are not counted, must be limited, too.
            let first = match started.elapsed() < QUICK_TIME_MAX {
                true => First::Quick,
                false => First::Counted,
            };
            let search = Search {
                subject,
                from,
                not_empty,
                first,
            };
            let found = self.engine.find(expression, search, &mut steps);
            let Some(groups) =
                found.map_err(|fault| self.words(function, &fault, subject.len()))?
            else {
                break;
            };
            use_match(&groups)?;
            count += 1;
            let (start, end) = whole(&groups);
            // An empty match counts once. `\K` can end a match before the position where the search began.
            let stuck = not_empty && end <= from;
            from = end.max(from) + usize::from(stuck);
            not_empty = start == end || end < from;
        }
        Ok(count)
    }

    fn search(&self, args: &RegexFindArguments) -> RegexResult<Option<(Rc<Expression>, Groups)>> {
        let (function, subject, expression, flags, init, not_empty) = args;
        let function = function.to_string_lossy();
        let bytes = subject.as_bytes();
        self.check_subject(&function, bytes.len())?;
        let expression = self.expression(&function, expression, flags.as_ref())?;
        let Some(from) = super::strings::start_of(*init, bytes.len()) else {
            return Ok(None);
        };
        let search = Search {
            subject: &bytes,
            from,
            not_empty: not_empty.unwrap_or(false),
            first: First::Quick,
        };
        let mut steps = self.steps_for(bytes.len());
        let found = self.engine.find(&expression, search, &mut steps);
        let groups = found.map_err(|fault| self.words(&function, &fault, bytes.len()))?;
        Ok(groups.map(|groups| (expression, groups)))
    }

    fn expression(
        &self,
        function: &str,
        text: &LuaString,
        flags: Option<&LuaString>,
    ) -> RegexResult<Rc<Expression>> {
        let text = text.as_bytes();
        let flags: Box<[u8]> = flags
            .map(|flags| flags.as_bytes().as_ref().into())
            .unwrap_or_default();
        let key = (text.as_ref().into(), flags);
        if let Some(kept) = self.kept.borrow().get(&key) {
            return Ok(Rc::clone(kept));
        }
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "regex.{function}: the expression is longer than {EXPRESSION_BYTES_MAX} bytes"
            ));
        }
        let made = Expression::new(&key.0, &key.1);
        let made = Rc::new(made.map_err(|fault| self.words(function, &fault, 0))?);
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(key, Rc::clone(&made));
        Ok(made)
    }

    /// Steps for reading the subject once are added, because that is legitimate.
    fn steps_for(&self, subject_bytes: usize) -> u64 {
        u64::from(self.limits.regex_steps_max) + subject_bytes as u64
    }

    fn check_subject(&self, function: &str, bytes: usize) -> RegexResult<()> {
        let limit = self.limits.regex_subject_bytes_max;
        match bytes <= limit {
            true => Ok(()),
            false => Err(format!(
                "regex.{function}: the subject is longer than {limit} bytes"
            )),
        }
    }

    fn check_length(&self, function: &str, bytes: usize) -> RegexResult<()> {
        let limit = self.limits.string_bytes_max;
        match bytes <= limit {
            true => Ok(()),
            false => Err(format!(
                "regex.{function}: the result is longer than {limit} bytes"
            )),
        }
    }

    fn words(&self, function: &str, fault: &MatchFault, subject_bytes: usize) -> String {
        match fault {
            MatchFault::Syntax(words, offset) => {
                format!(
                    "regex.{function}: {words} at byte {} of the expression",
                    offset + 1
                )
            }
            MatchFault::Steps => format!(
                "regex.{function}: the expression needs more than {} steps",
                self.steps_for(subject_bytes)
            ),
            MatchFault::Other(words) => format!("regex.{function}: {words}"),
        }
    }
}

/// The position of the whole match. With `\K` in a lookahead there is none; it counts as empty at the start.
fn whole(groups: &Groups) -> (usize, usize) {
    groups.first().copied().flatten().unwrap_or((0, 0))
}

fn text_of(lua: &Lua, subject: &[u8], group: Option<(usize, usize)>) -> Result<Value> {
    let text = group.and_then(|(start, end)| subject.get(start..end));
    match text {
        Some(text) => Ok(Value::String(lua.create_string(text)?)),
        None => Ok(Value::Nil),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{run, state};
    use super::*;

    fn eval(script: &str) -> String {
        let lua = state();
        let library = table(&lua, &Limits::default()).expect("a library");
        lua.globals().set("regex", library).expect("set");
        run(&lua, script)
    }

    #[test]
    fn matches_answer_with_their_groups() {
        for (script, answer) in [
            (
                "return regex.match('key=value', [[(\\w+)=(\\w+)]])",
                "key value",
            ),
            ("return regex.match('abc', 'B', 'i')", "b"),
            ("return regex.match('abc', 'x')", "nil"),
            ("return regex.find('abc', '(b)(x)?')", "2 2 b nil"),
            (
                "return regex.find('aXbX', 'X', '', 3), regex.find('abc', 'b', nil, 9)",
                "4 nil",
            ),
            ("return regex.find('a\\nb', '^b$', 'm')", "3 3"),
            (
                "local c = regex.captures('2026-11', [[(?<year>\\d+)-(?<month>\\d+)]]) return c[0], c[1], c.year, c.month",
                "2026-11 2026 2026 11",
            ),
            (
                "return regex.match('äö', '^..$', 'u'), regex.match('äö', '^..$')",
                "äö nil",
            ),
        ] {
            assert_eq!(eval(script), answer, "{script}");
        }
    }

    #[test]
    fn iterations_end_also_with_empty_matches() {
        for (script, answer) in [
            (
                "local t = {} for k, v in regex.gmatch('a=1,b=2', [[(\\w)=(\\w)]]) do t[#t + 1] = k .. v end return table.concat(t, ' ')",
                "a1 b2",
            ),
            (
                "local n = 0 for _ in regex.gmatch('abc', 'x*') do n = n + 1 end return n",
                "4",
            ),
            (
                "return table.concat(regex.split('a, b,c', [[,\\s*]]), '|')",
                "a|b|c",
            ),
            (
                "return table.concat(regex.split('a,b,c', ',', '', 2), '|')",
                "a|b,c",
            ),
            ("return table.concat(regex.split('abc', ''), '|')", "a|b|c"),
            ("return table.concat(regex.split(',a,', ','), '|')", "|a|"),
            ("return #regex.split('', ',')", "1"),
        ] {
            assert_eq!(eval(script), answer, "{script}");
        }
    }

    #[test]
    fn replacements_are_texts_functions_and_tables() {
        for (script, answer) in [
            (
                "return regex.gsub('hello world', [[(\\w+)]], '<$1>')",
                "<hello> <world> 2",
            ),
            ("return regex.gsub('abc', 'x*', '-')", "-a-b-c- 4"),
            (
                "return regex.gsub('a1b2', [[(?<d>\\d)]], '${d}${0}$$', '', 1)",
                "a11$b2 1",
            ),
            ("return regex.gsub('abc', '[ac]', { a = 1 })", "1bc 2"),
            (
                "return regex.gsub('abc', '(.)(.)?', function(a, b) return b and b .. a end)",
                "bac 2",
            ),
            (
                "return regex.gsub('abc', '', function() return '-' end)",
                "-a-b-c- 4",
            ),
            ("return regex.gsub('äx', '.', '_', 'u')", "__ 2"),
            ("return regex.gsub('abab', 'a(?=b)', 'X')", "XbXb 2"),
        ] {
            assert_eq!(eval(script), answer, "{script}");
        }
        let waits = "local run = coroutine.wrap(function() return (regex.gsub('a-b', [[\\w]], function(c) return coroutine.yield(c) end)) end)
            run() run('1') return run('2')";
        assert_eq!(eval(waits), "1-2");
    }

    #[test]
    fn faults_name_the_function_and_the_line() {
        for (script, answer) in [
            (
                "local x = regex.match('a', '(')",
                "script:1: regex.match: missing closing parenthesis at byte 2 of the expression",
            ),
            (
                "local x = regex.find('a', 'a', 'q')",
                "script:1: regex.find: flags are i, m, s, x and u",
            ),
            (
                "local x = regex.gsub('a', 'a', '$9')",
                "script:1: regex.gsub: the replacement names a group that is not there",
            ),
            (
                "local x = regex.gsub('a', 'a', '${b}')",
                "script:1: regex.gsub: the replacement names a group that is not there",
            ),
            (
                "local x = regex.match(('a'):rep(2000000), 'a')",
                "script:1: regex.match: the subject is longer than 1048576 bytes",
            ),
            (
                "local x = regex.match('a', ('a'):rep(20000))",
                "script:1: regex.match: the expression is longer than 16384 bytes",
            ),
            (
                "local x = regex.gsub('a', 'a', function() return {} end)",
                "script:1: invalid replacement value (a table)",
            ),
        ] {
            assert_eq!(eval(script), format!("error: {answer}"), "{script}");
        }
    }

    #[test]
    fn catastrophes_are_errors() {
        for script in [
            "return regex.match(('a'):rep(40) .. '!', '(a+)+$')",
            "return regex.gsub(('a'):rep(100000) .. '~', '(?:a*[bd]|a)*[cd]', '')",
            "return regex.split(('a'):rep(1000000), 'x?(a+)+[bc]')",
            "for _ in regex.gmatch(('a'):rep(1000000), '(?:a|a)*[bc]') do end",
        ] {
            let told = eval(script);
            assert!(
                told.contains("the expression needs more than") || told.contains("JIT stack"),
                "{script}: {told}"
            );
        }
        let long = "local s = ('x'):rep(1000000) return regex.gsub(s, '', s)";
        assert!(eval(long).contains("regex.gsub: the result is longer than"));
    }

    #[test]
    fn many_costly_matches_do_not_add_up() {
        for (expression, bytes) in [
            ("a(?=(?:a*[bd]|a)*[cd]|)", 4_000),
            ("a(?=(?:a*[bd]|a)*[cd]|)", 300),
            ("a(?=a*a*[bd]|)", 1_000),
        ] {
            let started = Instant::now();
            eval(&format!(
                "return regex.gsub(('a'):rep({bytes}), [[{expression}]], '')"
            ));
            let taken = started.elapsed();
            assert!(taken < Duration::from_secs(20), "{expression}: {taken:?}");
        }
    }

    #[test]
    fn many_expressions_do_not_pile_up() {
        let script = "for i = 1, 1000 do regex.match('a', 'a' .. i) end return 'done'";
        assert_eq!(eval(script), "done");
    }
}
