//! Connects [`super::pattern`] to Lua: `lua/string.lua` calls these functions for subjects that are too long
//! for LuaJIT's matcher.
//!
//! Errors are returned as `false, message`, so that the wrapper in Lua raises a plain string with the
//! script's line. Each state caches its compiled patterns.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, Value};

use super::Limits;
use super::pattern::{Capture, Found, Pattern, Stop, steps_for};

/// Adds the functions to `rust`.
pub(super) fn add_to(lua: &Lua, rust: &Table, limits: &Limits) -> Result<()> {
    rust.set(
        "native_subject_max",
        lua.create_function(|_, pattern: LuaString| Ok(native_subject_max(&pattern.as_bytes())))?,
    )?;
    rust.set(
        "capture_count",
        lua.create_function(|_, pattern: LuaString| {
            Ok(Pattern::new(&pattern.as_bytes()).capture_count())
        })?,
    )?;
    rust.set("string_find_plain", lua.create_function(find_plain)?)?;
    let matching = Rc::new(Matching::new(limits));
    let this = Rc::clone(&matching);
    let find = lua.create_function(move |lua, args: FindArguments| this.find(lua, args))?;
    rust.set("string_find", find)?;
    let this = Rc::clone(&matching);
    let function = lua.create_function(move |lua, args: FindArguments| this.first(lua, args))?;
    rust.set("string_match", function)?;
    let this = Rc::clone(&matching);
    let function = lua.create_function(move |lua, args: NextArguments| this.next(lua, args))?;
    rust.set("string_gmatch", function)?;
    let function = lua.create_function(move |lua, args: GsubArguments| matching.gsub(lua, args))?;
    rust.set("string_gsub", function)
}

/// The most steps for which LuaJIT's matcher is used: it does some 200 million per second.
const NATIVE_STEPS_MAX: f64 = 1_000_000.0;

/// The most cached patterns, and the longest cached one in bytes.
const KEPT_MAX: usize = 512;
const KEPT_BYTES_MAX: usize = 1024;

type FindArguments = (LuaString, LuaString, Option<f64>);
type NextArguments = (LuaString, LuaString, f64);
/// Subject, pattern, replacement, count, and the offset from which the subject is still to be processed.
type GsubArguments = (LuaString, LuaString, LuaString, Option<f64>, Option<f64>);

/// How many bytes of the subject one call replaces before it returns to Lua, where the budget is checked.
const GSUB_BYTES: usize = 128 << 10;

/// The length of the longest subject for which LuaJIT's matcher is fast enough. `^` counts as an anchor here,
/// which it is not for `gmatch`: see `lua/string.lua`.
fn native_subject_max(pattern: &[u8]) -> usize {
    if is_plain(pattern) {
        return (NATIVE_STEPS_MAX / pattern.len().max(1) as f64) as usize;
    }
    Pattern::new(pattern).native_subject_max(NATIVE_STEPS_MAX)
}

/// Whether `find` searches for the bytes as they are, as LuaJIT does if none of these bytes occurs.
fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// The cached patterns and the limits of one state.
struct Matching {
    kept: RefCell<HashMap<Box<[u8]>, Rc<Pattern>>>,
    steps_max: u64,
    bytes_max: usize,
}

impl Matching {
    fn new(limits: &Limits) -> Matching {
        Matching {
            kept: RefCell::default(),
            steps_max: limits.pattern_steps_max,
            bytes_max: limits.string_bytes_max,
        }
    }

    fn pattern(&self, text: &[u8]) -> Rc<Pattern> {
        if let Some(pattern) = self.kept.borrow().get(text) {
            return Rc::clone(pattern);
        }
        let pattern = Rc::new(Pattern::new(text));
        if text.len() <= KEPT_BYTES_MAX {
            let mut kept = self.kept.borrow_mut();
            if kept.len() >= KEPT_MAX {
                kept.clear();
            }
            kept.insert(text.into(), Rc::clone(&pattern));
        }
        pattern
    }

    /// `string.find`: true, the positions of the first and last byte, and captures; or true and nil.
    fn find(&self, lua: &Lua, (subject, pattern, init): FindArguments) -> Result<MultiValue> {
        if is_plain(&pattern.as_bytes()) {
            let mut found = find_plain(lua, (subject, pattern, init))?;
            found.push_front(Value::Boolean(true));
            return Ok(found);
        }
        self.search(
            lua,
            "string.find",
            (subject, pattern, init),
            |bytes, found, values| {
                values.extend([place(found.start + 1), place(found.end)]);
                push_captures(lua, bytes, found, values)
            },
        )
    }

    /// `string.match`: true, then the captures or the whole match; or true and nil.
    fn first(&self, lua: &Lua, arguments: FindArguments) -> Result<MultiValue> {
        self.search(lua, "string.match", arguments, |bytes, found, values| {
            push_match(lua, bytes, found, values)
        })
    }

    /// Returns true and the values that `push` adds for the first match; or true and nil. `name` is the
    /// function's name for messages.
    fn search(
        &self,
        lua: &Lua,
        name: &str,
        (subject, pattern, init): FindArguments,
        push: impl FnOnce(&[u8], &Found, &mut Vec<Value>) -> Result<std::result::Result<(), Stop>>,
    ) -> Result<MultiValue> {
        let bytes = subject.as_bytes();
        let mut steps = steps_for(self.steps_max, bytes.len());
        let found = start_of(init, bytes.len()).map(|from| {
            self.pattern(&pattern.as_bytes())
                .find(&bytes, from, &mut steps)
        });
        let found = match found.transpose() {
            Ok(found) => found.flatten(),
            Err(stop) => return self.fault(lua, name, stop, bytes.len()),
        };
        let Some(found) = found else {
            return (true, Value::Nil).into_lua_multi(lua);
        };
        let mut values = vec![Value::Boolean(true)];
        match push(&bytes, &found, &mut values)? {
            Ok(()) => Ok(MultiValue::from_vec(values)),
            Err(stop) => self.fault(lua, name, stop, bytes.len()),
        }
    }

    /// One step of `string.gmatch` from `position` (from one) on: true, where to continue, and the values for
    /// the loop; or true and nil.
    fn next(&self, lua: &Lua, (subject, pattern, position): NextArguments) -> Result<MultiValue> {
        let bytes = subject.as_bytes();
        let mut steps = steps_for(self.steps_max, bytes.len());
        let text = pattern.as_bytes();
        let pattern = match text.first() {
            Some(b'^') => Rc::new(Pattern::literal(&text)),
            _ => self.pattern(&text),
        };
        let found = match start_of(Some(position), bytes.len())
            .map(|from| pattern.find(&bytes, from, &mut steps))
            .transpose()
        {
            Ok(found) => found.flatten(),
            Err(stop) => return self.fault(lua, "string.gmatch", stop, bytes.len()),
        };
        let Some(found) = found else {
            return (true, Value::Nil).into_lua_multi(lua);
        };
        // After an empty match the search continues one byte later, so that the loop ends.
        let onwards = found.end + usize::from(found.end == found.start) + 1;
        let mut values = vec![Value::Boolean(true), place(onwards)];
        match push_match(lua, &bytes, &found, &mut values)? {
            Ok(()) => Ok(MultiValue::from_vec(values)),
            Err(stop) => self.fault(lua, "string.gmatch", stop, bytes.len()),
        }
    }

    /// A part of `string.gsub` with a string as replacement: true, the result of this part, the number of its
    /// matches, and the offset of the next part, if there is one.
    fn gsub(&self, lua: &Lua, args: GsubArguments) -> Result<MultiValue> {
        let (subject, pattern, replacement, count_max, from) = args;
        let from = from.unwrap_or(0.0) as usize;
        let bytes = subject.as_bytes();
        let pattern = self.pattern(&pattern.as_bytes());
        let mut work = Substitution {
            subject: &bytes,
            replacement: &replacement.as_bytes(),
            result: Vec::new(),
            bytes_max: self.bytes_max,
        };
        let count_max = count_max.map_or(usize::MAX, |count| count.max(0.0) as usize);
        let mut steps = steps_for(self.steps_max, bytes.len());
        match work.run(&pattern, from, count_max, &mut steps) {
            Ok((count, onwards)) => {
                let result = lua.create_string(&work.result)?;
                (true, result, count, onwards).into_lua_multi(lua)
            }
            Err(StringFault::Stop(stop)) => self.fault(lua, "string.gsub", stop, bytes.len()),
            Err(StringFault::TooLong) => {
                let words = format!(
                    "string.gsub: the result is longer than {} bytes",
                    self.bytes_max
                );
                (false, words).into_lua_multi(lua)
            }
        }
    }

    fn fault(&self, lua: &Lua, function: &str, stop: Stop, bytes: usize) -> Result<MultiValue> {
        let words = match stop {
            Stop::Steps => format!(
                "{function}: the pattern needs more than {} steps",
                steps_for(self.steps_max, bytes)
            ),
            other => other.message().to_owned(),
        };
        (false, words).into_lua_multi(lua)
    }
}

/// A `gsub` in progress.
struct Substitution<'a> {
    subject: &'a [u8],
    replacement: &'a [u8],
    result: Vec<u8>,
    bytes_max: usize,
}

enum StringFault {
    Stop(Stop),
    TooLong,
}

impl From<Stop> for StringFault {
    fn from(stop: Stop) -> StringFault {
        StringFault::Stop(stop)
    }
}

impl Substitution<'_> {
    /// Returns how many matches there were, and where the next part begins.
    fn run(
        &mut self,
        pattern: &Pattern,
        from: usize,
        count_max: usize,
        steps: &mut u64,
    ) -> std::result::Result<(usize, Option<usize>), StringFault> {
        let (mut at, mut copied, mut count) = (from, from, 0);
        while count < count_max && at <= self.subject.len() {
            if at - from >= GSUB_BYTES {
                self.copy(copied, at)?;
                return Ok((count, Some(at)));
            }
            let Some(found) = pattern.find(self.subject, at, steps)? else {
                break;
            };
            count += 1;
            self.copy(copied, found.start)?;
            self.replace(&found)?;
            copied = found.end;
            at = found.end + usize::from(found.end == found.start);
            if pattern.is_anchored() {
                break;
            }
        }
        self.copy(copied, self.subject.len())?;
        Ok((count, None))
    }

    /// Writes the replacement of one match: `%0` is the match, `%1` to `%9` are captures.
    fn replace(&mut self, found: &Found) -> std::result::Result<(), StringFault> {
        let mut bytes = self.replacement.iter();
        while let Some(byte) = bytes.next() {
            if *byte != b'%' {
                self.push(&[*byte])?;
                continue;
            }
            match bytes.next() {
                Some(b'0') => self.copy(found.start, found.end)?,
                Some(digit @ b'1'..=b'9') => match found.capture(usize::from(digit - b'1'))? {
                    Capture::Text(start, end) => self.copy(start, end)?,
                    Capture::Position(at) | Capture::Unfinished(at) => {
                        self.push((at + 1).to_string().as_bytes())?;
                    }
                },
                Some(other) => self.push(&[*other])?,
                // LuaJIT reads the zero byte after its strings here.
                None => self.push(&[0])?,
            }
        }
        Ok(())
    }

    fn copy(&mut self, start: usize, end: usize) -> std::result::Result<(), StringFault> {
        let text: &[u8] = self.subject;
        self.push(text.get(start..end).unwrap_or_default())
    }

    fn push(&mut self, bytes: &[u8]) -> std::result::Result<(), StringFault> {
        if self.result.len() + bytes.len() > self.bytes_max {
            return Err(StringFault::TooLong);
        }
        self.result.extend_from_slice(bytes);
        Ok(())
    }
}

/// `string.find` for a fixed text, in linear time: the first and last position, or nil.
fn find_plain(lua: &Lua, (subject, text, init): FindArguments) -> Result<MultiValue> {
    let (bytes, text) = (subject.as_bytes(), text.as_bytes());
    let found = start_of(init, bytes.len()).and_then(|from| {
        let rest = bytes.get(from..)?;
        Some(from + memchr::memmem::find(rest, &text)?)
    });
    match found {
        Some(start) => (place(start + 1), place(start + text.len())).into_lua_multi(lua),
        None => Value::Nil.into_lua_multi(lua),
    }
}

/// The offset at which a search with `init` begins; `None` if that is after the end.
pub(super) fn start_of(init: Option<f64>, bytes: usize) -> Option<usize> {
    let init = init.unwrap_or(1.0).trunc();
    let start = if init < 0.0 {
        (bytes as f64 + init).max(0.0)
    } else {
        (init - 1.0).max(0.0)
    };
    (start <= bytes as f64).then_some(start as usize)
}

fn place(place: usize) -> Value {
    Value::Number(place as f64)
}

/// Appends the captures, or the whole match if the pattern has none.
fn push_match(
    lua: &Lua,
    subject: &[u8],
    found: &Found,
    values: &mut Vec<Value>,
) -> Result<std::result::Result<(), Stop>> {
    if found.captures().is_empty() {
        let text = subject.get(found.start..found.end).unwrap_or_default();
        values.push(Value::String(lua.create_string(text)?));
        return Ok(Ok(()));
    }
    push_captures(lua, subject, found, values)
}

fn push_captures(
    lua: &Lua,
    subject: &[u8],
    found: &Found,
    values: &mut Vec<Value>,
) -> Result<std::result::Result<(), Stop>> {
    for capture in found.captures() {
        values.push(match capture {
            Capture::Text(start, end) => {
                let text = subject.get(*start..*end).unwrap_or_default();
                Value::String(lua.create_string(text)?)
            }
            Capture::Position(at) => place(at + 1),
            Capture::Unfinished(_) => return Ok(Err(Stop::UnfinishedCapture)),
        });
    }
    Ok(Ok(()))
}
