//! The reply to a script's request, as a table.

use bytes::Bytes;
use petrel_lua::mlua::{self, IntoLua, Lua, Table, Value};

/// Status, header fields and the whole body.
pub(super) struct Reply {
    pub(crate) status: u16,
    /// In the order in which they arrived.
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Bytes,
}

impl IntoLua for Reply {
    /// `{ status = 200, headers = { ["content-type"] = "…" }, body = "…" }`. Names are in lower case. Fields
    /// with the same name are joined with ", ", except `set-cookie`, which is a list.
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let headers = lua.create_table()?;
        let cookies = lua.create_table()?;
        for (name, value) in &self.fields {
            let name = name.to_ascii_lowercase();
            if name == "set-cookie" {
                cookies.push(lua.create_string(value)?)?;
                continue;
            }
            let before: Option<mlua::LuaString> = headers.get(name.as_str())?;
            let joined = match before {
                Some(before) => [&before.as_bytes(), b", ".as_slice(), value].concat(),
                None => value.clone(),
            };
            headers.set(name, lua.create_string(joined)?)?;
        }
        if cookies.raw_len() > 0 {
            headers.set("set-cookie", cookies)?;
        }
        let reply: Table = lua.create_table()?;
        reply.set("status", self.status)?;
        reply.set("headers", headers)?;
        reply.set("body", lua.create_string(&self.body)?)?;
        Ok(Value::Table(reply))
    }
}
