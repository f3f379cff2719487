//! The table of directives: name, type, scope, default, and effect.
//!
//! The modules that implement the directives have the tables. This crate looks names up, checks values, and
//! finds similar names for a misspelt one.

use std::collections::HashMap;

use strsim::osa_distance;

/// A directive. All fields are public, so that tables can be `const` arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectiveSpec {
    /// The full name, such as `server.document-root`.
    pub name: &'static str,
    /// The type of its value.
    pub kind: ValueKind,
    /// Where it may be set.
    pub scope: Scope,
    /// The default as the documentation shows it.
    pub default: &'static str,
    /// What happens when it is set.
    pub effect: Effect,
    /// One or two sentences for the reference.
    pub doc: &'static str,
}

/// The type of a directive's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// "enable" or "disable", "true" or "false", or a number.
    Bool,
    /// 0 to 65535.
    Short,
    /// A whole number of 32 bits, as lighttpd has them: 0 to 4294967295.
    Int,
    /// Text.
    String,
    /// A list of strings without keys.
    List,
    /// Keys with any values.
    Map,
    /// Keys with string values.
    StringMap,
    /// One string, or a list of strings.
    StringOrList,
    /// A switch, or text.
    BoolOrString,
    /// Anything; the owner checks it.
    Any,
}

impl ValueKind {
    /// The type for a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ValueKind::Bool => "bool",
            ValueKind::Short => "short",
            ValueKind::Int => "int",
            ValueKind::String => "string",
            ValueKind::List => "list",
            ValueKind::Map => "map",
            ValueKind::StringMap => "map of strings",
            ValueKind::StringOrList => "string or list",
            ValueKind::BoolOrString => "bool or string",
            ValueKind::Any => "any",
        }
    }

    /// The type for a message: "a list of strings".
    #[must_use]
    pub fn expected(self) -> &'static str {
        match self {
            ValueKind::Bool => "\"enable\" or \"disable\"",
            ValueKind::Short => "an integer from 0 to 65535",
            ValueKind::Int => "an integer from 0 to 4294967295",
            ValueKind::String => "a string",
            ValueKind::List => "a list of strings: ( \"a\", \"b\" )",
            ValueKind::Map => "a map: ( \"key\" => value )",
            ValueKind::StringMap => "a map of strings: ( \"key\" => \"value\" )",
            ValueKind::StringOrList => "a string or a list of strings",
            ValueKind::BoolOrString => "a string, or \"enable\" or \"disable\"",
            ValueKind::Any => "any value",
        }
    }

    /// The type for the middle of a sentence: "a list of strings".
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            ValueKind::Bool => "\"enable\" or \"disable\"",
            ValueKind::Short => "an integer from 0 to 65535",
            ValueKind::Int => "an integer",
            ValueKind::String => "a string",
            ValueKind::List => "a list of strings",
            ValueKind::Map => "a map",
            ValueKind::StringMap => "a map of strings",
            ValueKind::StringOrList => "a string or a list of strings",
            ValueKind::BoolOrString => "a string or a switch",
            ValueKind::Any => "any value",
        }
    }
}

/// Where a directive may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Only outside of all conditions.
    Server,
    /// Also in `$SERVER["socket"]`.
    Socket,
    /// In any condition.
    Request,
}

impl Scope {
    /// The scope for a table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scope::Server => "server",
            Scope::Socket => "listener",
            Scope::Request => "any",
        }
    }
}

/// What happens when a directive is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It does what its documentation says.
    Works,
    /// It has no effect, on purpose and without a warning; the text says why it is not needed.
    Accepted(&'static str),
    /// It is known but has no effect yet: start-up warns with this sentence.
    NotYet(&'static str),
    /// It is known but not implemented, and it protects or maps something: its scope answers 503, and
    /// start-up warns with this sentence. A value that switches it off
    /// ([`Value::is_enabling`](crate::Value::is_enabling)) does no harm.
    Exposes(&'static str),
    /// If the value switches it on, start-up fails with this sentence.
    Refuses(&'static str),
    /// It works, and is another name of this directive.
    Renamed(&'static str),
    /// An old name: start-up fails and names this successor.
    Removed(&'static str),
}

/// All directives by name.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// By name in lower case.
    by_name: HashMap<String, &'static DirectiveSpec>,
}

impl Schema {
    /// A schema with these tables. If a name is in two of them, the first one counts.
    #[must_use]
    pub fn new(tables: &[&'static [DirectiveSpec]]) -> Schema {
        let mut by_name = HashMap::new();
        for spec in tables.iter().flat_map(|table| table.iter()) {
            by_name
                .entry(spec.name.to_ascii_lowercase())
                .or_insert(spec);
        }
        Schema { by_name }
    }

    /// The directive with this name, in any letter case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'static DirectiveSpec> {
        self.by_name.get(&name.to_ascii_lowercase()).copied()
    }

    /// All directives, ordered by name.
    #[must_use]
    pub fn all(&self) -> Vec<&'static DirectiveSpec> {
        let mut all: Vec<_> = self.by_name.values().copied().collect();
        all.sort_unstable_by_key(|spec| spec.name);
        all
    }

    /// Up to three known names that are similar to `name`, the nearest first.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Vec<&'static str> {
        nearest(name, self.by_name.values().map(|spec| spec.name))
    }
}

/// Up to three of the names in `known` that are similar to `name`, the nearest first.
///
/// Also for other sets of names, such as keys of a map and modules.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > NAME_LEN_MAX {
        return Vec::new();
    }
    let limit = (name.len() / 3).clamp(1, 4);
    let lower = name.to_ascii_lowercase();
    let mut found: Vec<(usize, &str)> = known
        .filter(|known| known.len().abs_diff(name.len()) <= limit)
        .map(|known| (osa_distance(&lower, &known.to_ascii_lowercase()), known))
        .filter(|&(distance, _)| distance <= limit)
        .collect();
    found.sort_unstable();
    let best = found.first().map_or(0, |&(distance, _)| distance);
    found
        .into_iter()
        .take_while(|&(distance, _)| distance <= best + 1)
        .take(3)
        .map(|(_, name)| name)
        .collect()
}

/// A longer name gets no hint: the search costs its length times that of every known name.
const NAME_LEN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TABLE, schema};

    #[test]
    fn the_nearest_names_are_found() {
        let schema = schema();
        assert_eq!(
            schema.nearest("server.document-rot"),
            ["server.document-root"]
        );
        assert_eq!(
            schema.nearest("server.documnet-root"),
            ["server.document-root"]
        );
        assert_eq!(schema.nearest("SERVER.PORT"), ["server.port"]);
        assert_eq!(schema.nearest("index_file.names"), ["index-file.names"]);
        assert_eq!(schema.nearest("entirely.unlike"), Vec::<&str>::new());
        assert_eq!(schema.nearest(&"x".repeat(100_000)), Vec::<&str>::new());
    }

    #[test]
    fn the_first_of_two_equal_names_counts() {
        static SECOND: &[DirectiveSpec] = &[DirectiveSpec {
            name: "server.tag",
            kind: ValueKind::Int,
            scope: Scope::Server,
            default: "",
            effect: Effect::Works,
            doc: "",
        }];
        let schema = Schema::new(&[TABLE, SECOND]);
        assert_eq!(
            schema.get("server.tag").map(|spec| spec.kind),
            Some(ValueKind::String)
        );
        assert_eq!(schema.all().len(), TABLE.len());
        assert!(schema.all().is_sorted_by_key(|spec| spec.name));
    }
}
