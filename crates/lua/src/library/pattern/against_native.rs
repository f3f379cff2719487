//! Random patterns on random subjects: Petrel's matcher and LuaJIT's must agree.

use mlua::{Function, Lua, MultiValue, Value};
use proptest::prelude::*;

use super::super::Limits;
use super::super::strings;

/// Parts of patterns, valid and invalid, with few different letters so that many match.
fn part() -> impl Strategy<Value = String> {
    let single = prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just(".".to_owned()),
        Just("%a".to_owned()),
        Just("%d".to_owned()),
        Just("%S".to_owned()),
        Just("%W".to_owned()),
        Just("[ab]".to_owned()),
        Just("[^a]".to_owned()),
        Just("[%d-]".to_owned()),
        Just("[a-c%.]".to_owned()),
        Just("[]]".to_owned()),
        Just("%.".to_owned()),
        Just("%z".to_owned()),
        Just("[^%s%p]".to_owned()),
    ];
    let repeat =
        prop_oneof![4 => Just(""), 1 => Just("*"), 1 => Just("+"), 1 => Just("-"), 1 => Just("?")];
    prop_oneof![
        12 => (single, repeat).prop_map(|(single, repeat)| format!("{single}{repeat}")),
        1 => Just("%b()".to_owned()), 1 => Just("%bab".to_owned()), 1 => Just("%f[%a]".to_owned()), 1 => Just("%f[^b]".to_owned()),
        1 => Just("$".to_owned()), 1 => Just("^".to_owned()), 1 => Just("()".to_owned()),
        2 => Just("(".to_owned()), 2 => Just(")".to_owned()), 1 => Just("%1".to_owned()), 1 => Just("%2".to_owned()),
        1 => Just("(a*)".to_owned()), 1 => Just("(.-)".to_owned()), 1 => Just("(%w+)".to_owned()),
        1 => Just("[".to_owned()), 1 => Just("%".to_owned()), 1 => Just("%f".to_owned()), 1 => Just("%b".to_owned()), 1 => Just("-".to_owned()),
    ]
}

fn pattern() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(part(), 0..6);
    (prop::bool::weighted(0.2), parts).prop_map(|(anchored, parts)| {
        let head = if anchored { "^" } else { "" };
        format!("{head}{}", parts.concat())
    })
}

/// The results or the error of a call, without the position that LuaJIT adds.
fn shown(result: mlua::Result<MultiValue>) -> String {
    match result {
        Ok(values) => {
            let values = values.iter().map(|value| match value {
                Value::String(text) => format!("{:?}", text.as_bytes()),
                other => other.to_string().unwrap_or_default(),
            });
            values.collect::<Vec<_>>().join(" ")
        }
        Err(error) => format!(
            "error {}",
            error.to_string().lines().next().unwrap_or_default()
        ),
    }
}

/// The same for Petrel's functions, without the leading status.
fn ours(result: mlua::Result<MultiValue>, is_gsub: bool) -> String {
    let mut values = result.expect("faults are answers");
    let status = values.pop_front();
    // The offset of the next part is not a result.
    if values.len() == 3 && values.get(2).is_some_and(Value::is_nil) && is_gsub {
        values.pop_back();
    }
    let text = shown(Ok(values.clone()));
    match status {
        Some(Value::Boolean(true)) => text,
        _ => {
            let words = values
                .pop_front()
                .map(|words| words.to_string().unwrap_or_default());
            format!("error runtime error: {}", words.unwrap_or_default())
        }
    }
}

struct Both {
    /// Keeps the state alive, which `native` needs.
    _lua: Lua,
    native: [Function; 3],
    ours: [Function; 3],
}

impl Both {
    fn new() -> Both {
        let lua = Lua::new();
        let rust = lua.create_table().expect("memory");
        strings::add_to(&lua, &rust, &Limits::default()).expect("memory");
        let string: mlua::Table = lua.globals().get("string").expect("a library");
        let native = ["find", "match", "gsub"].map(|name| string.get(name).expect("a function"));
        let ours = ["string_find", "string_match", "string_gsub"]
            .map(|name| rust.get(name).expect("a function"));
        Both {
            _lua: lua,
            native,
            ours,
        }
    }
}

thread_local! {
    static BOTH: Both = Both::new();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn find_and_match_agree(pattern in pattern(), subject in "[ab1 .()\\-\\]^$\0]{0,12}", init in -14i32..14) {
        BOTH.with(|both| {
            for index in 0..2 {
                let native = shown(both.native[index].call((subject.as_str(), pattern.as_str(), init)));
                let mine = ours(both.ours[index].call((subject.as_str(), pattern.as_str(), init)), false);
                prop_assert_eq!(&native, &mine, "{} of {:?} in {:?}", index, pattern, subject);
            }
            Ok(())
        })?;
    }

    #[test]
    fn gsub_agrees(pattern in pattern(), subject in "[ab1 .()]{0,12}", replacement in prop::sample::select(vec!["", "x", "<%0>", "%1%2", "%%", "[%1]"]), count in prop::option::of(0i32..4)) {
        BOTH.with(|both| {
            let native = shown(match count {
                Some(count) => both.native[2].call((subject.as_str(), pattern.as_str(), replacement, count)),
                None => both.native[2].call((subject.as_str(), pattern.as_str(), replacement)),
            });
            let mine = ours(both.ours[2].call((subject.as_str(), pattern.as_str(), replacement, count)), true);
            prop_assert_eq!(native, mine, "{:?} in {:?}", pattern, subject);
            Ok(())
        })?;
    }
}
