//! Reads the text of scripts without parsing it: why LuaJIT refused one, and what one cannot do.
//!
//! LuaJIT's own message for `a // b` is "unexpected symbol near '/'", which does not help the author.
//! [`explain`] looks for the first such construct, outside strings and comments, so that the message can name
//! it and say what to write instead. It reads tokens, and is used only for chunks that LuaJIT has already
//! refused, to find a better message.
//!
//! [`missing_parts`] finds the functions that a script uses although it does not have them.

/// A construct of a later Lua version, and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Construct {
    /// Its line, counted from one.
    pub(crate) line: usize,
    /// Its text, `//` for example.
    pub(crate) token: &'static str,
    /// What it is and what to write instead.
    advice: &'static str,
}

impl std::fmt::Display for Construct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: `{}` is {}", self.line, self.token, self.advice)
    }
}

/// The first construct in `source` that LuaJIT does not support, if there is one.
#[must_use]
pub(crate) fn explain(source: &[u8]) -> Option<Construct> {
    let mut reader = Reader {
        rest: source,
        line: 1,
    };
    while !reader.rest.is_empty() {
        if let Some((token, advice)) = reader.step() {
            return Some(Construct {
                line: reader.line,
                token,
                advice,
            });
        }
    }
    None
}

/// Counts the words that become jumps, and labels: `and`, `or`, `elseif`, `break`, `goto` and `::`. Counts
/// them in strings and comments, too.
#[must_use]
pub(crate) fn count_jumps(source: &[u8]) -> usize {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let words = source.split(|byte| !is_part(byte));
    let jumps = words.filter(|word| {
        matches!(*word, b"and" | b"or" | b"elseif" | b"break" | b"goto") || glued_to_a_number(word)
    });
    jumps.count() + memchr::memmem::find_iter(source, "::").count()
}

/// LuaJIT reads `1or` as a number and a word.
fn glued_to_a_number(word: &[u8]) -> bool {
    word.first().is_some_and(u8::is_ascii_digit)
        && [&b"and"[..], b"or", b"elseif", b"break", b"goto"]
            .iter()
            .any(|jump| word.ends_with(jump))
}

/// Whether a script certainly leaves no reference to its table of globals, nor to the table `lighty` in it,
/// when it has ended: it makes no functions, runs no code that could see its globals, and uses `lighty` only
/// for what is in it. Words count in strings and comments, too.
#[must_use]
pub(crate) fn is_plain(source: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let mut rest = source;
    while let Some(start) = rest.iter().position(is_part) {
        let word_on = &rest[start..];
        let end = word_on.iter().position(|byte| !is_part(byte));
        let (word, after) = word_on.split_at(end.unwrap_or(word_on.len()));
        // LuaJIT reads `1or` as a number and a word.
        let is = |name: &str| match word.first() {
            Some(first) if first.is_ascii_digit() => word.ends_with(name.as_bytes()),
            _ => word == name.as_bytes(),
        };
        if is("lighty") && !matches!(after.first(), Some(b'.' | b'[')) {
            return false;
        }
        if KEEPERS.iter().any(|name| is(name)) {
            return false;
        }
        rest = after;
    }
    true
}

/// A function or library that a script names and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// The line of the script, counted from one.
    pub line: usize,
    /// What the script has written: `os.exit`.
    pub name: String,
    /// What would have to be allowed. `None`: no script has it.
    pub allowed_by: Option<&'static str>,
}

/// The functions and libraries that `source` names, outside strings and comments, and that scripts do not have if they
/// have the parts for which `is_allowed` is true. Only usual names are found: `local o = os o.exit()` is not.
#[must_use]
pub fn missing_parts(source: &[u8], is_allowed: impl Fn(&str) -> bool) -> Vec<MissingPart> {
    let mut reader = Reader {
        rest: source,
        line: 1,
    };
    let (mut found, mut is_field) = (Vec::new(), false);
    while !reader.rest.is_empty() {
        let name = reader.name();
        if name.is_empty() {
            is_field =
                matches!(reader.rest, [b'.' | b':', next, ..] if next != &b'.' && next != &b':');
            if reader.rest.starts_with(b"..") || reader.rest.starts_with(b"::") {
                reader.skip(2);
            } else if reader.step().is_some() {
                reader.skip(1);
            }
            continue;
        }
        let line = reader.line;
        reader.skip(name.len());
        if std::mem::take(&mut is_field) {
            continue;
        }
        let name = match name {
            b"require" => reader.required(),
            name => name,
        };
        let name = String::from_utf8_lossy(name).into_owned();
        if let Some(allowed_by) = part_of(&name)
            && !allowed_by.is_some_and(&is_allowed)
        {
            found.push(MissingPart {
                line,
                name,
                allowed_by,
            });
        }
    }
    found
}

/// What has to be allowed for `name`, if scripts do not have it in any case. `Some(None)`: no script has it.
fn part_of(name: &str) -> Option<Option<&'static str>> {
    Some(match name.split_once('.').unwrap_or((name, "")) {
        ("os", "execute") | ("io", "popen") => Some("io.popen"),
        ("os", "exit") => Some("os.exit"),
        ("debug", "" | "traceback" | "getinfo") => return None,
        ("debug", _) => Some("debug"),
        ("jit", _) => Some("jit"),
        ("ffi", _) | ("string", "buffer") => Some("ffi"),
        ("newproxy", _) | ("package", "loadlib") => None,
        _ => return None,
    })
}

/// With these words a script may keep its globals, or give them away.
const KEEPERS: &[&str] = &[
    "function",
    "_G",
    "getfenv",
    "setfenv",
    "load",
    "loadstring",
    "loadfile",
    "dofile",
    "require",
    "module",
    "package",
    "debug",
    "jit",
    "ffi",
];

/// Longer ones come before those that they begin with.
const CONSTRUCTS: &[(&str, &str)] = &[
    ("//", "integer division of Lua 5.3; use math.floor(a / b)"),
    ("<<", "a shift of Lua 5.3; use bit.lshift(a, n)"),
    (">>", "a shift of Lua 5.3; use bit.rshift(a, n)"),
    ("<const>", "an attribute of Lua 5.4; leave it out"),
    (
        "<close>",
        "an attribute of Lua 5.4; call the closing function yourself",
    ),
    ("&", "a bitwise operator of Lua 5.3; use bit.band(a, b)"),
    ("|", "a bitwise operator of Lua 5.3; use bit.bor(a, b)"),
    (
        "~",
        "a bitwise operator of Lua 5.3; use bit.bxor(a, b) or bit.bnot(a)",
    ),
];

struct Reader<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Reader<'a> {
    /// Skips one token, or returns a construct.
    fn step(&mut self) -> Option<(&'static str, &'static str)> {
        match self.rest {
            [b'\n', ..] => {
                self.line += 1;
                self.skip(1);
            }
            [b'-', b'-', ..] => self.comment(),
            [b'[', b'[' | b'=', ..] => {
                let length = self.long_bracket().unwrap_or(1);
                self.skip_lines(length);
            }
            [quote @ (b'"' | b'\''), ..] => self.string(*quote),
            [b'~', b'=', ..] | [b'<' | b'>', b'=', ..] => self.skip(2),
            [b'<', ..] => {
                if let Some(attribute) = self.attribute() {
                    return Some(attribute);
                }
                return self.operator();
            }
            _ => return self.operator(),
        }
        None
    }

    fn operator(&mut self) -> Option<(&'static str, &'static str)> {
        let found = CONSTRUCTS
            .iter()
            .find(|(token, _)| self.rest.starts_with(token.as_bytes()));
        if found.is_none() {
            self.skip(1);
        }
        found.copied()
    }

    /// The name that begins here, with the fields behind it: `io.popen`. Empty if there is none.
    fn name(&self) -> &'a [u8] {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
        let mut end = 0;
        while let Some(byte) = self.rest.get(end) {
            let next = self.rest.get(end + 1);
            let is_dot = *byte == b'.' && end > 0 && next.is_some_and(|next| is_part(*next));
            if !is_part(*byte) && !is_dot {
                break;
            }
            end += 1;
        }
        &self.rest[..end]
    }

    /// The library that a call of `require` names here, if that is a plain string.
    fn required(&self) -> &'a [u8] {
        let open = [b' ', b'(', b'"', b'\''];
        let start = self
            .rest
            .iter()
            .take_while(|byte| open.contains(byte))
            .count();
        let rest = &self.rest[start..];
        let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\''));
        match (start, end) {
            (1.., Some(end)) => &rest[..end],
            _ => &[],
        }
    }

    /// Matches `<const>` and `<close>`, with optional blanks inside.
    fn attribute(&self) -> Option<(&'static str, &'static str)> {
        let inside = self.rest.get(1..)?.trim_ascii_start();
        CONSTRUCTS
            .iter()
            .find(|(token, _)| {
                token
                    .strip_prefix('<')
                    .and_then(|token| token.strip_suffix('>'))
                    .filter(|name| name.len() > 1)
                    .and_then(|name| inside.strip_prefix(name.as_bytes()))
                    .is_some_and(|after| after.trim_ascii_start().first() == Some(&b'>'))
            })
            .copied()
    }

    fn comment(&mut self) {
        self.skip(2);
        match self.long_bracket() {
            Some(length) => self.skip_lines(length),
            None => {
                let length = memchr::memchr(b'\n', self.rest).unwrap_or(self.rest.len());
                self.skip(length);
            }
        }
    }

    /// The length of the `[==[ … ]==]` that begins here.
    fn long_bracket(&self) -> Option<usize> {
        let after = self.rest.strip_prefix(b"[")?;
        let level = after.iter().take_while(|byte| **byte == b'=').count();
        if after.get(level) != Some(&b'[') {
            return None;
        }
        let mut closing = vec![b'='; level + 2];
        closing[0] = b']';
        closing[level + 1] = b']';
        let start = level + 2;
        let text = self.rest.get(start..)?;
        let end = memchr::memmem::find(text, &closing).unwrap_or(text.len());
        Some((start + end + closing.len()).min(self.rest.len()))
    }

    fn string(&mut self, quote: u8) {
        self.skip(1);
        loop {
            match self.rest {
                [] | [b'\n', ..] => return,
                [b'\\', b'z', ..] => {
                    self.skip(2);
                    let blanks = self.rest.len() - self.rest.trim_ascii_start().len();
                    self.skip_lines(blanks);
                }
                [b'\\', _, ..] => self.skip_lines(2),
                [byte, ..] if *byte == quote => return self.skip(1),
                _ => self.skip(1),
            }
        }
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// Skips bytes that may contain line ends.
    fn skip_lines(&mut self, count: usize) {
        let skipped = self.rest.get(..count).unwrap_or(self.rest);
        self.line += memchr::memchr_iter(b'\n', skipped).count();
        self.skip(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Option<String> {
        explain(source.as_bytes()).map(|construct| construct.to_string())
    }

    #[test]
    fn constructs_of_later_versions_are_named_with_their_line() {
        let integer_division = "line 2: `//` is integer division of Lua 5.3; use math.floor(a / b)";
        assert_eq!(
            words("local a = 1\nreturn a // 2").as_deref(),
            Some(integer_division)
        );
        for (source, token) in [
            ("return a & b", "&"),
            ("return a | b", "|"),
            ("return ~a", "~"),
            ("return a << 1", "<<"),
            ("return a >> 1", ">>"),
            ("local x <const> = 1", "<const>"),
            ("local x < close > = f()", "<close>"),
        ] {
            assert_eq!(
                explain(source.as_bytes()).map(|found| found.token),
                Some(token),
                "{source}"
            );
        }
    }

    #[test]
    fn strings_and_comments_are_passed_over() {
        assert_eq!(words("-- a // b\nlocal s = 'a // b' .. \"\\\" & |\""), None);
        assert_eq!(words("--[==[ // ]] & \n ]==] local s = [[ a | b ]]"), None);
        assert_eq!(
            words("x = a ~= b and a <= b and a < b goto done ::done::"),
            None
        );
        let after = words("local s = [[\n\n]] --[[\n]]\nx = 'a\\\nb'\nreturn 1 // 2");
        assert!(after.is_some_and(|words| words.starts_with("line 7:")));
    }

    #[test]
    fn functions_that_are_switched_off_are_found_with_their_line() {
        let source = "-- os.exit()\nlocal ffi_ = 'io.popen' .. [[os.exit]]\nos.exit(1)\n\
            local f = require \"ffi\" local p = require('posix')\nreturn x..os.execute('true'),\n\
            debug.getregistry, debug.traceback, a.os.exit, a:newproxy(), newproxy, my.jit";
        let found = |is_allowed: fn(&str) -> bool| {
            let found = missing_parts(source.as_bytes(), is_allowed);
            let of = |part: &MissingPart| (part.line, part.name.clone(), part.allowed_by);
            found.iter().map(of).collect::<Vec<_>>()
        };
        let of = |line, name: &str, by| (line, name.to_owned(), by);
        let all = [
            of(3, "os.exit", Some("os.exit")),
            of(4, "ffi", Some("ffi")),
            of(5, "os.execute", Some("io.popen")),
            of(6, "debug.getregistry", Some("debug")),
            of(6, "newproxy", None),
        ];
        assert_eq!(found(|_| false), all);
        assert_eq!(found(|_| true), all[4..]);
        assert_eq!(
            found(|part| part != "os.exit"),
            [&all[..1], &all[4..]].concat()
        );
        for broken in ["'", "os.", ".", "require(", "[==[", "x::", "a // b | c"] {
            assert!(
                missing_parts(broken.as_bytes(), |_| false).is_empty(),
                "{broken}"
            );
        }
    }

    #[test]
    fn plain_scripts_keep_nothing() {
        for plain in [
            "",
            "lighty.header['A'] = 1 lighty.content = { lighty['r'].req_attr['uri.path'] } return 200",
            "functional = 1 local my_lighty, loads = 2, 3",
        ] {
            assert!(is_plain(plain.as_bytes()), "{plain}");
        }
        for other in [
            "keep(lighty)",
            "local l = lighty",
            "lighty:keep()",
            "x = 1lighty",
            "return 1function() end",
            "x = _G",
            "load 'x = 1'",
            "require('m').keep()",
            "x = getfenv()",
        ] {
            assert!(!is_plain(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn broken_text_ends_the_search() {
        for source in ["'abc", "[==[ abc", "--[[", "\"a\\", "[=", "<", "--"] {
            assert_eq!(words(source), None, "{source}");
        }
    }
}
