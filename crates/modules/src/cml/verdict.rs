//! Reads what a script has decided from its return value and its globals.

use bytes::Bytes;
use petrel_lua::mlua::{self, LuaString, Table, Value};

use crate::fragments::Source;

/// The decision of a script.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CmlVerdict {
    /// Its return value.
    pub(crate) says: Says,
    /// `trigger_handler`: the application that makes the page.
    pub(crate) trigger: Option<Vec<u8>>,
    /// `output_contenttype`.
    pub(crate) content_type: Option<Vec<u8>>,
}

/// The return value of a script.
#[derive(Debug, Default, PartialEq)]
pub(super) enum Says {
    /// `CACHE_HIT`: the page consists of these parts, from `output_include`.
    Hit(Vec<PagePart>),
    /// `CACHE_MISS`.
    #[default]
    Miss,
}

/// A part of a page as the script names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PagePart {
    /// The file at this path.
    File(Vec<u8>),
    /// These bytes.
    Text(Bytes),
    /// The answer of a URL of this server.
    Fragment(Source),
}

/// The largest number of parts of a page. Each takes memory while the page is sent.
pub(super) const PARTS_MAX: usize = 1024;

impl CmlVerdict {
    /// Reads the return value and the globals that a script has left.
    ///
    /// # Errors
    /// Something is invalid: a sentence.
    pub(crate) fn read(returned: &Value, globals: &Table) -> Result<CmlVerdict, String> {
        let says = match number(returned)? {
            0 => Says::Hit(parts(globals)?),
            1 => Says::Miss,
            other => {
                return Err(format!(
                    "the script returned {other}, which is neither CACHE_HIT nor CACHE_MISS"
                ));
            }
        };
        Ok(CmlVerdict {
            says,
            trigger: text(globals, "trigger_handler")?.filter(|text| !text.is_empty()),
            content_type: text(globals, "output_contenttype")?.filter(|text| !text.is_empty()),
        })
    }
}

impl CmlVerdict {
    /// The fragments that the page needs, in order.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let parts = match &self.says {
            Says::Hit(parts) => &parts[..],
            Says::Miss => &[],
        };
        let sources = parts.iter().filter_map(|part| match part {
            PagePart::Fragment(source) => Some(source.clone()),
            PagePart::File(_) | PagePart::Text(_) => None,
        });
        sources.collect()
    }

    /// Puts the answers for [`CmlVerdict::sources`] in their places.
    pub(crate) fn fill(&mut self, fragments: Vec<Bytes>) {
        let Says::Hit(parts) = &mut self.says else {
            return;
        };
        let places = parts
            .iter_mut()
            .filter(|part| matches!(part, PagePart::Fragment(_)));
        for (place, bytes) in places.zip(fragments) {
            *place = PagePart::Text(bytes);
        }
    }
}

/// Returning nothing means CACHE_HIT, as in lighttpd.
fn number(returned: &Value) -> Result<i64, String> {
    match returned {
        Value::Nil => Ok(0),
        Value::Integer(number) => Ok(*number),
        Value::Number(number) => Ok(*number as i64),
        other => Err(format!(
            "the script returned a {}, which is neither CACHE_HIT nor CACHE_MISS",
            other.type_name()
        )),
    }
}

fn text(globals: &Table, name: &str) -> Result<Option<Vec<u8>>, String> {
    match globals.raw_get(name).map_err(|error| error.to_string())? {
        Value::Nil => Ok(None),
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        other => Err(format!("{name} is a {}, not a string", other.type_name())),
    }
}

/// The entries of `output_include` in the order of their numbers. There may be gaps.
fn parts(globals: &Table) -> Result<Vec<PagePart>, String> {
    let list: Value = globals
        .raw_get("output_include")
        .map_err(|error| error.to_string())?;
    let Value::Table(list) = list else {
        return Err("output_include is missing or not a table".to_owned());
    };
    let mut numbered = Vec::new();
    for entry in list.pairs::<Value, Value>() {
        let (key, value) = entry.map_err(|error| error.to_string())?;
        let number = match key {
            Value::Integer(number) => number as f64,
            Value::Number(number) => number,
            _ => return Err("output_include has a name in it; it is a list".to_owned()),
        };
        if numbered.len() >= PARTS_MAX {
            return Err(format!("output_include has more than {PARTS_MAX} entries"));
        }
        numbered.push((number, part(value)?));
    }
    // Usually they are in order already, unless the list was built in another one.
    numbered.sort_by(|(left, _), (right, _)| left.total_cmp(right));
    Ok(numbered.into_iter().map(|(_, part)| part).collect())
}

fn part(value: Value) -> Result<PagePart, String> {
    match value {
        Value::String(path) => Ok(PagePart::File(path.as_bytes().to_vec())),
        Value::Table(table) => part_of_table(&table).map_err(|error| error.to_string())?,
        other => Err(format!(
            "output_include has a {} in it; an entry is the name of a file, or a table",
            other.type_name()
        )),
    }
}

fn part_of_table(table: &Table) -> mlua::Result<Result<PagePart, String>> {
    let text = |name: &str| -> mlua::Result<Option<Vec<u8>>> {
        let text = table.raw_get::<Option<LuaString>>(name)?;
        Ok(text.map(|text| text.as_bytes().to_vec()))
    };
    if let Some(bytes) = text("text")? {
        return Ok(Ok(PagePart::Text(bytes.into())));
    }
    if let Some(path) = text("file")? {
        return Ok(Ok(PagePart::File(path)));
    }
    let Some(url) = text("url")? else {
        let sentence = "output_include has a table in it with none of file, text and url";
        return Ok(Err(sentence.to_owned()));
    };
    let seconds = table.raw_get::<Option<f64>>("ttl")?.unwrap_or(0.0);
    Ok(Ok(PagePart::Fragment(Source {
        url,
        // The cast saturates. A fraction of a second is rounded up.
        lifetime_s: seconds.ceil() as u32,
        key: text("key")?,
    })))
}
