//! The request that a script wants to make: a string, or a table with details.

use std::time::Duration;

use bytes::Bytes;
use petrel_engine::proto::method::Method;
use petrel_lua::mlua::{self, FromLua, Lua, LuaString, Table, Value};

/// A request that a script wants to make.
#[derive(Clone, Debug)]
pub(super) struct WantedRequest {
    /// A URL, or a path with a query.
    pub(crate) url: Vec<u8>,
    pub(crate) method: Method,
    pub(crate) host: Option<Vec<u8>>,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
    /// The fields of the client's request that are passed on; `None`: all.
    pub(crate) inherit: Option<Vec<String>>,
    /// The time for the whole request.
    pub(crate) timeout: Duration,
    /// The longest accepted body of the answer.
    pub(crate) bytes_max: usize,
}

/// How long a request may take, if the script does not say.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The longest time a script may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The longest body of an answer in bytes, if the script does not say.
const BODY_BYTES_DEFAULT: usize = 8 << 20;

impl FromLua for WantedRequest {
    fn from_lua(value: Value, _: &Lua) -> mlua::Result<WantedRequest> {
        let mut asked = WantedRequest {
            url: Vec::new(),
            method: Method::Get,
            host: None,
            fields: Vec::new(),
            body: Bytes::new(),
            inherit: None,
            timeout: TIMEOUT_DEFAULT,
            bytes_max: BODY_BYTES_DEFAULT,
        };
        match value {
            Value::String(url) => asked.url = url.as_bytes().to_vec(),
            Value::Table(table) => asked.read(&table)?,
            other => {
                return Err(mlua::Error::runtime(format_args!(
                    "a URL or a table was expected, not {}",
                    other.type_name()
                )));
            }
        }
        Ok(asked)
    }
}

impl WantedRequest {
    fn read(&mut self, table: &Table) -> mlua::Result<()> {
        for pair in table.pairs::<LuaString, Value>() {
            let (name, value) = pair?;
            match (&*name.as_bytes(), value) {
                (b"url" | b"path" | b"target", Value::String(url)) => {
                    self.url = url.as_bytes().to_vec();
                }
                (b"method", Value::String(method)) => {
                    self.method = Method::from_bytes(&method.as_bytes())
                        .ok_or_else(|| mlua::Error::runtime("method: there is no such method"))?;
                }
                (b"host", Value::String(host)) => self.host = Some(host.as_bytes().to_vec()),
                (b"body", Value::String(body)) => {
                    self.body = Bytes::copy_from_slice(&body.as_bytes());
                }
                (b"headers", Value::Table(headers)) => self.fields = fields(&headers)?,
                (b"inherit", Value::Boolean(false)) => self.inherit = Some(Vec::new()),
                (b"inherit", Value::Boolean(true)) => self.inherit = None,
                (b"inherit", Value::Table(names)) => {
                    let names: mlua::Result<Vec<String>> = names.sequence_values().collect();
                    self.inherit = Some(names?);
                }
                (b"timeout", value) => self.timeout = seconds("timeout", &value)?,
                (b"max_bytes", value) => {
                    let bytes = value.as_u64().and_then(|bytes| usize::try_from(bytes).ok());
                    self.bytes_max = bytes
                        .ok_or_else(|| mlua::Error::runtime("max_bytes: a number was expected"))?;
                }
                (name, value) => {
                    return Err(mlua::Error::runtime(format_args!(
                        "{}: there is no such option, or it takes no {}",
                        name.escape_ascii(),
                        value.type_name()
                    )));
                }
            }
        }
        match self.url.is_empty() {
            true => Err(mlua::Error::runtime("url: it is missing")),
            false => Ok(()),
        }
    }
}

/// Reads a timeout: a number of seconds, with a fraction.
pub(super) fn seconds(name: &str, value: &Value) -> mlua::Result<Duration> {
    let seconds = value
        .as_f64()
        .or_else(|| value.as_i64().map(|whole| whole as f64));
    seconds
        .filter(|seconds| *seconds >= 0.0)
        .map(|seconds| Duration::from_secs_f64(seconds.min(TIMEOUT_MAX.as_secs_f64())))
        .ok_or_else(|| {
            mlua::Error::runtime(format_args!("{name}: a number of seconds was expected"))
        })
}

/// Reads header fields: `{ name = value }`, where a value may be a list of values.
fn fields(table: &Table) -> mlua::Result<Vec<(String, Vec<u8>)>> {
    let mut fields = Vec::new();
    for pair in table.pairs::<String, Value>() {
        let (name, value) = pair?;
        match value {
            Value::Table(values) => {
                for value in values.sequence_values::<LuaString>() {
                    fields.push((name.clone(), value?.as_bytes().to_vec()));
                }
            }
            value => {
                let text = value.to_string()?;
                fields.push((name, text.into_bytes()));
            }
        }
    }
    for (name, value) in &fields {
        let is_line = value.iter().all(|byte| !matches!(byte, b'\r' | b'\n' | 0));
        if !is_line {
            return Err(mlua::Error::runtime(format_args!(
                "headers: the value of {name} is more than a line"
            )));
        }
    }
    Ok(fields)
}
