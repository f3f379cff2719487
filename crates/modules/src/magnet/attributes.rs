//! `lighty.r.req_attr`: attributes of the request, under lighttpd's names.
//!
//! Attributes that belong to the connection, or say how far the request is, cannot be changed: writing them
//! does nothing, as in lighttpd. A value that the engine refuses (such as an invalid host) is an error.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::exchange::{Peer, Scheme};
use petrel_lua::DirectAnswer;
use petrel_lua::mlua::{self, LuaString, Table, Value};

use super::environment::{lend, try_lend};
use crate::lua::State;

/// Adds the names, and the functions that read and write the attributes.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    host.set(
        "attributes",
        lua.create_sequence_from(ATTRIBUTES.iter().map(|known| known.0))?,
    )?;
    let lent = Rc::clone(state.lent());
    let get = lua.create_function(move |lua, number: usize| {
        try_lend(&lent, |exchange| match attribute(number) {
            Some(attribute) => with_value(exchange, attribute, |value| match value {
                AttributeValue::Text(b"") => Ok(Value::Nil),
                AttributeValue::Text(text) => lua.create_string(text).map(Value::String),
                AttributeValue::Port(port) => Ok(Value::Integer(port.into())),
            }),
            None => Ok(Value::Nil),
        })
    })?;
    let machine = state.machine();
    let get = machine.direct(
        state.lent(),
        |exchange, arguments, reply| match attribute(arguments.number as usize) {
            Some(attribute) => with_value(exchange, attribute, |value| match value {
                AttributeValue::Text(b"") => DirectAnswer::NIL,
                AttributeValue::Text(text) => reply.text(text),
                AttributeValue::Port(port) => DirectAnswer::number(port.into()),
            }),
            None => DirectAnswer::UNABLE,
        },
        &get,
    )?;
    host.set("attribute_get", get)?;
    let lent = Rc::clone(state.lent());
    let set = lua.create_function(move |_, (number, value): (usize, Option<LuaString>)| {
        lend(&lent, |exchange| {
            let value = value.as_ref().map(LuaString::as_bytes);
            let value = value.as_deref().unwrap_or_default();
            attribute(number).is_some_and(|attribute| change(exchange, attribute, value))
        })
    })?;
    let set = machine.direct(
        state.lent(),
        |exchange, arguments, _| {
            let value = arguments.value.unwrap_or_default();
            match attribute(arguments.number as usize) {
                Some(attribute) if change(exchange, attribute, value) => DirectAnswer::TRUE,
                Some(_) => DirectAnswer::NIL,
                None => DirectAnswer::UNABLE,
            }
        },
        &set,
    )?;
    host.set("attribute_set", set)
}

fn attribute(number: usize) -> Option<Attribute> {
    let index = number.checked_sub(1)?;
    ATTRIBUTES.get(index).map(|known| known.1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    PhysicalPath,
    PhysicalRelPath,
    PhysicalDocRoot,
    PhysicalBaseDir,
    UriPath,
    UriPathRaw,
    UriScheme,
    UriAuthority,
    UriQuery,
    RequestMethod,
    RequestUri,
    RequestOrigUri,
    RequestPathInfo,
    RemoteAddress,
    RemotePort,
    ServerAddress,
    ServerPort,
    Protocol,
    ServerName,
    Stage,
    RequestId,
}

/// In the order in which `pairs` returns them.
const ATTRIBUTES: [(&str, Attribute); 22] = [
    ("physical.path", Attribute::PhysicalPath),
    ("physical.rel-path", Attribute::PhysicalRelPath),
    ("physical.doc-root", Attribute::PhysicalDocRoot),
    ("physical.basedir", Attribute::PhysicalBaseDir),
    ("uri.path", Attribute::UriPath),
    ("uri.path-raw", Attribute::UriPathRaw),
    ("uri.scheme", Attribute::UriScheme),
    ("uri.authority", Attribute::UriAuthority),
    ("uri.query", Attribute::UriQuery),
    ("request.method", Attribute::RequestMethod),
    ("request.uri", Attribute::RequestUri),
    ("request.orig-uri", Attribute::RequestOrigUri),
    ("request.path-info", Attribute::RequestPathInfo),
    ("request.remote-ip", Attribute::RemoteAddress),
    ("request.remote-addr", Attribute::RemoteAddress),
    ("request.remote-port", Attribute::RemotePort),
    ("request.server-addr", Attribute::ServerAddress),
    ("request.server-port", Attribute::ServerPort),
    ("request.protocol", Attribute::Protocol),
    ("request.server-name", Attribute::ServerName),
    ("request.stage", Attribute::Stage),
    ("request.id", Attribute::RequestId),
];

/// The value of an attribute. Scripts see an empty text as nil.
enum AttributeValue<'v> {
    Text(&'v [u8]),
    Port(u16),
}

/// Calls `with` with the value of `attribute`.
fn with_value<R>(
    exchange: &Exchange,
    attribute: Attribute,
    with: impl FnOnce(AttributeValue<'_>) -> R,
) -> R {
    let request = &exchange.request;
    let physical = &exchange.physical;
    let with_slash = |root: &[u8]| [root, physical.slash_behind(root)].concat();
    let (made, address, digits);
    let text: &[u8] = match attribute {
        Attribute::PhysicalPath => &physical.path,
        Attribute::PhysicalRelPath => &physical.relative,
        Attribute::PhysicalDocRoot => {
            made = with_slash(&physical.document_root);
            &made
        }
        Attribute::PhysicalBaseDir => {
            made = with_slash(&physical.base);
            &made
        }
        Attribute::UriPath => request.url.path(),
        Attribute::UriPathRaw => request.url.path_raw(),
        Attribute::UriScheme => exchange.scheme().as_str().as_bytes(),
        Attribute::UriAuthority => request.head.host(),
        Attribute::UriQuery => request.url.query(),
        Attribute::RequestMethod => request.method_for_rules().as_str().as_bytes(),
        Attribute::RequestUri => request.target(),
        Attribute::RequestOrigUri => request.original_target(),
        Attribute::RequestPathInfo => &physical.path_info,
        Attribute::Protocol => request.head.version().as_str().as_bytes(),
        Attribute::ServerName => exchange.server_name(),
        Attribute::Stage => b"handle-req",
        Attribute::RequestId => {
            digits = exchange.id.digits();
            &digits
        }
        Attribute::RemoteAddress => {
            address = exchange.connection.peer.address_text();
            address.as_bytes()
        }
        Attribute::ServerAddress => {
            let address = exchange.local_address();
            let address = address.map(|address| address.ip().to_canonical().to_string());
            made = address.unwrap_or_default().into_bytes();
            &made
        }
        Attribute::RemotePort => {
            return with(AttributeValue::Port(match exchange.connection.peer {
                Peer::Ip(address) => address.port(),
                Peer::Unix => 0,
            }));
        }
        Attribute::ServerPort => {
            return with(AttributeValue::Port(exchange.connection.listener.port));
        }
    };
    with(AttributeValue::Text(text))
}

/// Changes an attribute. False: `value` is invalid for it.
fn change(exchange: &mut Exchange, attribute: Attribute, value: &[u8]) -> bool {
    match attribute {
        Attribute::PhysicalPath
        | Attribute::PhysicalRelPath
        | Attribute::PhysicalDocRoot
        | Attribute::PhysicalBaseDir
        | Attribute::RequestPathInfo => return change_physical(exchange, attribute, value),
        Attribute::UriPath => exchange.set_url_path(value),
        Attribute::UriPathRaw => return change_raw_path(exchange, value),
        Attribute::UriScheme => match value {
            b"http" => exchange.set_scheme(Scheme::Http),
            b"https" => exchange.set_scheme(Scheme::Https),
            _ => return false,
        },
        Attribute::UriAuthority => return exchange.set_authority(value),
        Attribute::UriQuery => {
            let target = exchange.request.target().to_vec();
            let is_sound = exchange.set_url_query(value).is_ok();
            exchange.request.written_target = target;
            return is_sound;
        }
        // The target is parsed when the request begins again.
        Attribute::RequestUri => {
            exchange.request.written_target.clear();
            exchange.request.written_target.extend_from_slice(value);
        }
        Attribute::RequestOrigUri => {
            exchange.request.written_original_target = Some(value.to_vec());
        }
        Attribute::RemoteAddress => return change_client(exchange, value),
        Attribute::RemotePort => return change_client_port(exchange, value),
        Attribute::RequestMethod
        | Attribute::ServerAddress
        | Attribute::ServerPort
        | Attribute::Protocol
        | Attribute::ServerName
        | Attribute::Stage
        | Attribute::RequestId => {}
    }
    true
}

/// Changes part of the physical path. The file is looked up after all scripts of the stage have run.
fn change_physical(exchange: &mut Exchange, attribute: Attribute, value: &[u8]) -> bool {
    if memchr::memchr(0, value).is_some() {
        return false;
    }
    let is_whole = value == exchange.request.url.path();
    let physical = &mut exchange.physical;
    if matches!(attribute, Attribute::RequestPathInfo) {
        physical.info_is_whole = is_whole;
    }
    let part = match attribute {
        Attribute::PhysicalRelPath => &mut physical.relative,
        Attribute::PhysicalDocRoot => &mut physical.document_root,
        Attribute::PhysicalBaseDir => {
            physical.base_shows_slash = false;
            &mut physical.base
        }
        Attribute::RequestPathInfo => &mut physical.path_info,
        _ if value.first() == Some(&b'/') => &mut physical.path,
        _ => return false,
    };
    part.clear();
    part.extend_from_slice(value);
    true
}

fn change_raw_path(exchange: &mut Exchange, value: &[u8]) -> bool {
    let mut target = value.to_vec();
    if !exchange.request.url.query().is_empty() {
        target.push(b'?');
        target.extend_from_slice(exchange.request.url.query());
    }
    let path = exchange.request.url.path().to_vec();
    let written = std::mem::take(&mut exchange.request.written_target);
    let is_sound = exchange.set_target(&target).is_ok();
    // `request.uri` keeps the value that a script has written.
    exchange.request.written_target = written;
    // `uri.path` is a separate attribute and stays.
    exchange.request.url.set_path(&path);
    is_sound
}

fn change_client(exchange: &mut Exchange, value: &[u8]) -> bool {
    let address = std::str::from_utf8(value).ok();
    let Some(address) = address.and_then(|text| text.parse::<IpAddr>().ok()) else {
        return false;
    };
    let port = match exchange.connection.peer {
        Peer::Ip(before) => before.port(),
        Peer::Unix => 0,
    };
    let client = Peer::Ip(SocketAddr::new(address, port));
    exchange.set_client(client, exchange.scheme());
    true
}

fn change_client_port(exchange: &mut Exchange, value: &[u8]) -> bool {
    let port = std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    match (port, &mut exchange.connection.peer) {
        (Some(port), Peer::Ip(address)) => {
            address.set_port(port);
            true
        }
        _ => false,
    }
}
