//! Helpers for the tests of this crate.

use crate::schema::{DirectiveSpec, Effect, Schema, Scope, ValueKind};
use crate::tree::Config;
use crate::{Diagnostics, LoadOptions, Shell, Value, parse_str};

const fn spec(name: &'static str, kind: ValueKind, scope: Scope, effect: Effect) -> DirectiveSpec {
    DirectiveSpec {
        name,
        kind,
        scope,
        default: "",
        effect,
        doc: "",
    }
}

/// One directive of each kind, scope and effect.
pub(crate) const TABLE: &[DirectiveSpec] = &[
    spec(
        "server.document-root",
        ValueKind::String,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "server.name",
        ValueKind::String,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "server.tag",
        ValueKind::String,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "server.port",
        ValueKind::Short,
        Scope::Server,
        Effect::Works,
    ),
    spec(
        "server.max-fds",
        ValueKind::Int,
        Scope::Server,
        Effect::Works,
    ),
    spec(
        "server.pid-file",
        ValueKind::String,
        Scope::Server,
        Effect::Works,
    ),
    spec(
        "server.listen-backlog",
        ValueKind::Int,
        Scope::Socket,
        Effect::Works,
    ),
    spec(
        "server.use-ipv6",
        ValueKind::Bool,
        Scope::Socket,
        Effect::Works,
    ),
    spec(
        "server.modules",
        ValueKind::List,
        Scope::Server,
        Effect::Works,
    ),
    spec(
        "server.follow-symlink",
        ValueKind::Bool,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "server.docroot",
        ValueKind::String,
        Scope::Request,
        Effect::Removed("server.document-root"),
    ),
    spec(
        "mimetype.assign",
        ValueKind::StringMap,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "alias.url",
        ValueKind::StringMap,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "index-file.names",
        ValueKind::List,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "server.indexfiles",
        ValueKind::List,
        Scope::Request,
        Effect::Renamed("index-file.names"),
    ),
    spec(
        "dir-listing.show-readme",
        ValueKind::BoolOrString,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "magnet.attract",
        ValueKind::StringOrList,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "fastcgi.server",
        ValueKind::Map,
        Scope::Request,
        Effect::Exposes("FastCGI comes later"),
    ),
    spec(
        "ssl.engine",
        ValueKind::Bool,
        Scope::Socket,
        Effect::Refuses("TLS comes later"),
    ),
    spec(
        "webdav.log-xml",
        ValueKind::Bool,
        Scope::Request,
        Effect::NotYet("WebDAV comes later"),
    ),
    spec(
        "server.reject-expect-100-with-417",
        ValueKind::Bool,
        Scope::Server,
        Effect::Accepted("nothing to do"),
    ),
    spec("t.a", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.b", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.c", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.d", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.list", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.map", ValueKind::Any, Scope::Request, Effect::Works),
    spec("t.empty", ValueKind::Any, Scope::Request, Effect::Works),
];

pub(crate) fn schema() -> Schema {
    Schema::new(&[TABLE])
}

/// Options with one variable and one environment variable; commands do not run.
pub(crate) fn options() -> LoadOptions<'static> {
    LoadOptions {
        variables: vec![("var.CWD".to_owned(), Value::String("/srv".to_owned()))],
        environment: &|name| (name == "HOME").then(|| "/home/x".to_owned()),
        shell: Shell::Refuse,
        directory: "/nowhere".into(),
    }
}

pub(crate) fn try_read(text: &str) -> Result<Config, Diagnostics> {
    parse_str("t.conf", text, &schema(), &options())
}

/// The tree of a valid text.
pub(crate) fn read(text: &str) -> Config {
    try_read(text).unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}"))
}

/// Whether two trees have the same content, ignoring places in the text.
pub(crate) fn same_tree(a: &Config, b: &Config) -> bool {
    a.blocks.len() == b.blocks.len()
        && a.blocks.iter().zip(&b.blocks).all(|(a, b)| {
            let condition = |block: &crate::Block| {
                block
                    .condition
                    .as_ref()
                    .map(|c| (c.subject.clone(), c.op, c.pattern.clone()))
            };
            let entries = |block: &crate::Block| {
                block
                    .entries
                    .iter()
                    .map(|e| (e.name.clone(), e.value.clone()))
                    .collect::<Vec<_>>()
            };
            (a.id, a.parent, a.previous_branch) == (b.id, b.parent, b.previous_branch)
                && condition(a) == condition(b)
                && entries(a) == entries(b)
        })
}
