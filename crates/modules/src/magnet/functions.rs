//! `lighty.c`: functions that do not need a request: digests, codecs, tokens, times, directories.
#![expect(clippy::disallowed_methods, reason = "scripts ask for the time")]

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel_engine::blocking;
use petrel_engine::proto::escape;
use petrel_lua::library::base64::{self, Alphabet, Padding};
use petrel_lua::library::hash::{self, Algorithm, Case};
use petrel_lua::library::random;
use petrel_lua::mlua::{self, BorrowedBytes, Function, Lua, LuaString, MultiValue, Table, Value};

use super::codec::{backslash, base64 as lenient, quoted, tokens, url, xml};
use crate::lua::{FilePatience, State};

/// Adds the table of functions.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let functions = lua.create_table()?;
    for (name, convert) in CODECS {
        functions.set(*name, codec(lua, *convert)?)?;
    }
    digests(lua, &functions)?;
    tables(lua, &functions)?;
    times(lua, &functions)?;
    directories(state, &functions)?;
    host.set("functions", functions)
}

/// Converts a text. `None`: the text is invalid.
type Convert = fn(&[u8]) -> Option<Vec<u8>>;

const CODECS: &[(&str, Convert)] = &[
    ("b64dec", |text| lenient::decode(text, Alphabet::Standard)),
    ("b64urldec", |text| lenient::decode(text, Alphabet::Url)),
    ("b64enc", |text| {
        Some(base64::encode(text, Alphabet::Standard, Padding::Left).into_bytes())
    }),
    ("b64urlenc", |text| {
        Some(base64::encode(text, Alphabet::Url, Padding::Left).into_bytes())
    }),
    ("hexdec", hash::unhex),
    ("hexenc", |text| {
        Some(hash::hex(text, Case::Upper).into_bytes())
    }),
    ("xmlenc", |text| Some(xml::encode(text))),
    ("urldec", |text| Some(url::decode(text))),
    ("urlenc", |text| Some(url::encode(text))),
    ("urlenc_normalize", |text| Some(url::normalize(text))),
    ("fspath_simplify", |text| Some(url::simplify_path(text))),
    ("quoteddec", quoted::decode),
    ("quotedenc", |text| Some(quoted::encode(text))),
    ("bsdec", |text| Some(backslash::decode(text))),
    ("bsenc", |text| {
        let mut encoded = Vec::with_capacity(text.len());
        escape::log(&mut encoded, text);
        Some(encoded)
    }),
    ("bsenc_json", |text| Some(backslash::encode_json(text))),
];

/// Wraps a conversion. All of them take `nil` for an empty text, as in lighttpd.
fn codec(lua: &Lua, convert: Convert) -> mlua::Result<Function> {
    lua.create_function(move |lua, text: Option<LuaString>| {
        let text = text.as_ref().map(LuaString::as_bytes);
        let converted = convert(text.as_deref().unwrap_or_default());
        converted.map(|text| lua.create_string(text)).transpose()
    })
}

fn digests(lua: &Lua, functions: &Table) -> mlua::Result<()> {
    functions.set(
        "md",
        lua.create_function(|_, arguments: MultiValue| {
            let [name, data] = texts("lighty.c.md(algo, data)", &arguments)?;
            let algorithm = Algorithm::named(&name.to_ascii_lowercase());
            Ok(algorithm.map(|algorithm| hash::hex(&algorithm.digest(&data), Case::Upper)))
        })?,
    )?;
    functions.set(
        "hmac",
        lua.create_function(|_, arguments: MultiValue| {
            let words = "lighty.c.hmac(algo, secret, data)";
            let [name, secret, data] = texts(words, &arguments)?;
            let algorithm = Algorithm::named(&name.to_ascii_lowercase());
            Ok(algorithm.map(|algorithm| hash::hex(&algorithm.hmac(&secret, &data), Case::Upper)))
        })?,
    )?;
    functions.set(
        "digest_eq",
        lua.create_function(|_, arguments: MultiValue| {
            let [one, other] = texts("lighty.c.digest_eq(digest1, digest2)", &arguments)?;
            let (one, other) = (hash::unhex(&one), hash::unhex(&other));
            Ok(matches!((one, other), (Some(one), Some(other)) if hash::is_equal(&one, &other)))
        })?,
    )?;
    functions.set(
        "secret_eq",
        lua.create_function(|_, arguments: MultiValue| {
            let [one, other] = texts("lighty.c.secret_eq(data1, data2)", &arguments)?;
            Ok(hash::is_equal(&one, &other))
        })?,
    )
}

/// The text arguments of a function. `words` is a call of it, for error messages.
fn texts<const COUNT: usize>(
    words: &str,
    arguments: &MultiValue,
) -> mlua::Result<[Vec<u8>; COUNT]> {
    let wrong = |what: &str| mlua::Error::runtime(format_args!("{words}: {what}"));
    let text = |value: &Value| match value {
        Value::Nil => Some(Vec::new()),
        other => super::content::text_of(other),
    };
    let texts: Option<Vec<_>> = arguments.iter().map(text).collect();
    let texts = texts.ok_or_else(|| wrong("all arguments are strings"))?;
    <[Vec<u8>; COUNT]>::try_from(texts).map_err(|_| wrong("incorrect number of arguments"))
}

fn tables(lua: &Lua, functions: &Table) -> mlua::Result<()> {
    functions.set(
        "cookie_tokens",
        lua.create_function(|lua, text: Option<BorrowedBytes>| {
            pairs(lua, tokens::cookies(text.as_deref().unwrap_or_default()))
        })?,
    )?;
    functions.set(
        "urldec_query",
        lua.create_function(|lua, text: Option<BorrowedBytes>| {
            pairs(lua, url::decode_query(text.as_deref().unwrap_or_default()))
        })?,
    )?;
    functions.set(
        "header_tokens",
        lua.create_function(|lua, text: Option<BorrowedBytes>| {
            let list = lua.create_table()?;
            for token in tokens::of_header(text.as_deref().unwrap_or_default()) {
                list.raw_push(lua.create_string(token)?)?;
            }
            Ok(list)
        })?,
    )?;
    functions.set(
        "urlenc_query",
        lua.create_function(|lua, query: Value| {
            let mut encoded = Vec::new();
            if let Value::Table(query) = query {
                for pair in query.pairs::<Value, Value>() {
                    let (name, value) = pair?;
                    let name = super::content::text_of(&name).unwrap_or_default();
                    let value = super::content::text_of(&value).unwrap_or_default();
                    url::encode_parameter(&name, &value, &mut encoded);
                }
            }
            lua.create_string(encoded)
        })?,
    )
}

fn pairs(lua: &Lua, pairs: Vec<(Vec<u8>, Vec<u8>)>) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, pairs.len())?;
    for (name, value) in pairs {
        table.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
    }
    Ok(table)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn times(lua: &Lua, functions: &Table) -> mlua::Result<()> {
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    };
    functions.set(
        "time",
        lua.create_function(move |_, ()| Ok(now().as_secs() as f64))?,
    )?;
    functions.set(
        "hrtime",
        lua.create_function(move |_, ()| {
            let now = now();
            Ok((now.as_secs() as f64, now.subsec_nanos()))
        })?,
    )?;
    functions.set(
        "rand",
        lua.create_function(|_, _: MultiValue| {
            let mut bytes = [0; 4];
            random::fill(&mut bytes)?;
            Ok(u32::from_ne_bytes(bytes) >> 1)
        })?,
    )
}

/// The largest number of names that a directory may have.
const NAMES_MAX: usize = 100_000;

/// The functions for directories. They wait for the file system on threads of the blocking pool.
fn directories(state: &Rc<State>, functions: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let waits = FilePatience::of(state);
    let waiting = waits.clone();
    let list = state.machine().waiting(move |lua, path: LuaString| {
        let (path, waits) = (path_of(&path), waiting.clone());
        let weak = lua.weak();
        Ok(async move {
            let entries = blocking::read_directory(&path, NAMES_MAX, waits.client());
            let Some(entries) = waits.wait_for_there(&path, entries).await? else {
                return Ok(None);
            };
            let Some(lua) = weak.try_upgrade() else {
                return Ok(None);
            };
            let names = lua.create_table_with_capacity(entries.len(), 0)?;
            for entry in entries {
                names.raw_push(lua.create_string(entry.name.as_bytes())?)?;
            }
            Ok(Some(names))
        })
    })?;
    let iterate: Function = lua
        .load(
            "local list = ...\n\
             return function(path)\n\
               local names = list(path or '')\n\
               if not names then return nil end\n\
               local index = 0\n\
               return function() index = index + 1 return names[index] end\n\
             end",
        )
        .set_name("=petrel/magnet.lua")
        .call(list)?;
    functions.set("readdir", iterate)?;
    let readlink = state.machine().waiting(move |_, path: Option<LuaString>| {
        let path = path.as_ref().map(path_of).unwrap_or_default();
        let waits = waits.clone();
        Ok(async move {
            let target = blocking::read_link(&path, waits.client());
            let target = waits.wait_for_there(&path, target).await?;
            Ok(target.map(|target| mlua::BString::from(target.into_os_string().into_vec())))
        })
    })?;
    functions.set("readlink", readlink)
}

fn path_of(path: &LuaString) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(&path.as_bytes()))
}
