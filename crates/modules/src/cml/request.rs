//! What scripts can read of the request: `request`, `get`, `cookie` and `session`.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::proto::escape::form_decode;
use petrel_engine::proto::request_head::KnownField;
use petrel_lua::Lent;
use petrel_lua::mlua::{self, LuaString, Table};

use super::KEPT;
use super::options::CmlOptions;
use crate::lua::State;

/// Adds the functions from which `environment.lua` builds its tables about the request.
pub(super) fn add(state: &Rc<State>, native: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    add_look_up(state, native, "request", variable)?;
    let lent = Rc::clone(state.lent());
    native.set(
        "fill_request",
        lua.create_function(move |lua, table: Table| {
            let values = lent.with(|exchange| NAMES.map(|name| variable(exchange, name)));
            table.set_metatable(None)?;
            let values = NAMES.iter().zip(values.into_iter().flatten());
            for (name, value) in values {
                let Some(value) = value else { continue };
                // A value that the script has set itself is kept.
                let name = lua.create_string(name)?;
                if table.raw_get::<mlua::Value>(&name)?.is_nil() {
                    table.raw_set(name, lua.create_string(value)?)?;
                }
            }
            Ok(())
        })?,
    )?;
    add_filler(state, native, "fill_get", parameters)?;
    add_filler(state, native, "fill_cookie", cookies)?;
    add_look_up(state, native, "session", session)?;
    let lent = Rc::clone(state.lent());
    native.set(
        "print",
        lua.create_function(move |_, text: LuaString| {
            lent.with(|exchange| {
                exchange.log_error("content", format_args!("{}", text.to_string_lossy()));
            });
            Ok(())
        })?,
    )
}

/// The options that apply to the request, while a script of this module runs for it.
pub(super) fn options(lent: &Lent<Exchange>) -> Option<Rc<CmlOptions>> {
    lent.with(|exchange| exchange.kept::<CmlOptions>(KEPT))
        .flatten()
}

/// The directory that the request leads to, with a slash at its end. Relative paths start here.
pub(super) fn directory(exchange: &Exchange) -> &[u8] {
    up_to_slash(&exchange.physical.path)
}

/// The path up to its last slash, the slash included.
pub(super) fn up_to_slash(path: &[u8]) -> &[u8] {
    let end = memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1);
    path.get(..end).unwrap_or_default()
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Adds a function that returns the value of the request for a name.
fn add_look_up(
    state: &Rc<State>,
    native: &Table,
    function: &str,
    find: fn(&Exchange, &[u8]) -> Option<Vec<u8>>,
) -> mlua::Result<()> {
    let lent = Rc::clone(state.lent());
    let look_up = state
        .machine()
        .lua()
        .create_function(move |lua, name: mlua::Value| {
            let mlua::Value::String(name) = name else {
                return Ok(None);
            };
            let value = lent.with(|exchange| find(exchange, &name.as_bytes()));
            value
                .flatten()
                .map(|value| lua.create_string(value))
                .transpose()
        })?;
    native.set(function, look_up)
}

/// Adds a function that fills a table with everything that `pairs` returns. If a name comes several times,
/// the last value counts.
fn add_filler(
    state: &Rc<State>,
    native: &Table,
    name: &str,
    pairs: fn(&Exchange) -> Pairs,
) -> mlua::Result<()> {
    let lent = Rc::clone(state.lent());
    let fill = state
        .machine()
        .lua()
        .create_function(move |lua, table: Table| {
            table.set_metatable(None)?;
            for (name, value) in lent.with(|exchange| pairs(exchange)).unwrap_or_default() {
                table.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
            }
            Ok(())
        })?;
    native.set(name, fill)
}

const NAMES: [&[u8]; 9] = [
    b"REQUEST_URI",
    b"SCRIPT_NAME",
    b"SCRIPT_FILENAME",
    b"DOCUMENT_ROOT",
    b"PATH_INFO",
    b"QUERY_STRING",
    b"REQUEST_METHOD",
    b"CWD",
    b"BASEURL",
];

fn variable(exchange: &Exchange, name: &[u8]) -> Option<Vec<u8>> {
    let (request, physical) = (&exchange.request, &exchange.physical);
    let value: &[u8] = match name {
        b"REQUEST_URI" => request.original_target(),
        b"SCRIPT_NAME" => script_name(exchange),
        b"SCRIPT_FILENAME" => &physical.path,
        b"DOCUMENT_ROOT" => return Some(document_root(exchange)),
        b"PATH_INFO" if physical.path_info.is_empty() => return None,
        b"PATH_INFO" => &physical.path_info,
        b"QUERY_STRING" => request.url.query(),
        b"REQUEST_METHOD" => request.head.method_bytes(),
        b"CWD" => directory(exchange),
        b"BASEURL" => up_to_slash(script_name(exchange)),
        _ => return None,
    };
    Some(value.to_vec())
}

/// The URL path without path-info.
pub(super) fn script_name(exchange: &Exchange) -> &[u8] {
    let path = exchange.request.url.path();
    let info = &exchange.physical.path_info;
    path.strip_suffix(info.as_slice()).unwrap_or(path)
}

/// The document root, with a slash at its end if it was configured with one: scripts append names to it.
fn document_root(exchange: &Exchange) -> Vec<u8> {
    let mut root = exchange.physical.document_root.clone();
    let options = exchange.kept::<CmlOptions>(KEPT);
    let written = options
        .as_ref()
        .and_then(|options| options.root_with_slash.as_deref());
    if written == Some(&root) {
        root.push(b'/');
    }
    root
}

/// The parameters of the query, decoded as in forms (`+` is a space).
fn parameters(exchange: &Exchange) -> Pairs {
    let query = exchange.request.url.query();
    let parts = query
        .split(|byte| *byte == b'&')
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let equals = memchr::memchr(b'=', part).unwrap_or(part.len());
            let (name, value) = part.split_at(equals);
            let decoded = |text| form_decode(text).into_owned();
            (decoded(name), decoded(value.get(1..).unwrap_or_default()))
        })
        .collect()
}

/// The cookies of the request, as they were sent.
fn cookies(exchange: &Exchange) -> Pairs {
    let fields = exchange
        .request
        .head
        .fields_named(KnownField::Cookie.name());
    let parts = fields.flat_map(|field| field.split(|byte| *byte == b';'));
    parts
        .filter_map(|part| {
            let part = part.trim_ascii();
            let equals = memchr::memchr(b'=', part)?;
            let (name, value) = part.split_at(equals);
            Some((name.to_vec(), value.get(1..)?.to_vec()))
        })
        .collect()
}

/// The session id in the cookie with this name, or in the query parameter. The name `id` means PHP's default
/// name. The value must look like an id, because it may become part of a file name or a key.
fn session(exchange: &Exchange, name: &[u8]) -> Option<Vec<u8>> {
    let name = match name {
        b"id" => b"PHPSESSID",
        name => name,
    };
    let in_cookies = cookies(exchange).into_iter();
    let all = in_cookies.chain(parameters(exchange));
    let mut values = all
        .filter(|(known, _)| known == name)
        .map(|(_, value)| value);
    values.find(|value| is_session_id(value))
}

fn is_session_id(value: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-,_".contains(byte);
    (1..=SESSION_ID_BYTES_MAX).contains(&value.len()) && value.iter().all(is_allowed)
}

/// The longest id that PHP makes (session.sid_length).
const SESSION_ID_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_is_no_path() {
        assert!(is_session_id(b"abc-DEF,09_"));
        for value in [&b""[..], b"../x", b"a/b", b"a b", b"a\0"] {
            assert!(!is_session_id(value), "{value:?}");
        }
        assert!(!is_session_id(&[b'a'; 257]));
    }
}
