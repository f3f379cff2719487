//! Checks a tree against the schema: names, types, scopes, and the effect of each directive.

use crate::condition::{Op, Subject};
use crate::diagnostic::{Consequence, Diagnostic};
use crate::lexer::shortened;
use crate::schema::{DirectiveSpec, Effect, Schema, Scope, ValueKind};
use crate::source::Span;
use crate::tree::{Block, BlockId, Config, Entry};
use crate::value::{Array, Value};

/// Changes the names of directives in `config` to the spelling of `schema`.
pub(crate) fn spell_names(config: &mut Config, schema: &Schema) {
    for entry in config
        .blocks
        .iter_mut()
        .flat_map(|block| &mut block.entries)
    {
        if let Some(spec) = schema.get(&entry.name) {
            spec.name.clone_into(&mut entry.name);
        }
    }
}

/// All errors and warnings about the entries of `config`, in the order of the blocks.
pub(crate) fn check(config: &Config, schema: &Schema) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for block in &config.blocks {
        for entry in &block.entries {
            match schema.get(&entry.name) {
                Some(spec) => check_entry(config, block, entry, spec, &mut found),
                None => found.push(unknown(entry, schema)),
            }
        }
    }
    found
}

fn check_entry(
    config: &Config,
    block: &Block,
    entry: &Entry,
    spec: &DirectiveSpec,
    found: &mut Vec<Diagnostic>,
) {
    if let Effect::Removed(successor) = spec.effect {
        let error = Diagnostic::error(
            format!("{} is no longer a directive", entry.name),
            entry.name_span,
        );
        found.push(
            error
                .with_label("old name")
                .with_hint(format!("use {successor}")),
        );
        return;
    }
    if let Err(error) = check_type(entry, spec.kind) {
        found.push(*error);
        return;
    }
    found.extend(check_scope(config, block, entry, spec.scope));
    found.extend(check_effect(entry, spec.effect));
}

fn unknown(entry: &Entry, schema: &Schema) -> Diagnostic {
    let message = format!(
        "there is no directive {}: it has no effect",
        shortened(&entry.name)
    );
    let warning = Diagnostic::warning(message, entry.name_span)
        .with_label("unknown")
        .with_consequence(Consequence::NoEffect);
    match schema.nearest(&entry.name).as_slice() {
        [] => warning,
        near => warning.with_hint(format!("did you mean {}?", near.join(" or "))),
    }
}

fn check_scope(config: &Config, block: &Block, entry: &Entry, scope: Scope) -> Option<Diagnostic> {
    let message = match scope {
        _ if block.id == BlockId::GLOBAL => return None,
        Scope::Request => return None,
        Scope::Server => format!(
            "{} is for the whole server: in a condition it has no effect",
            entry.name
        ),
        Scope::Socket if in_socket_scope(config, block) => return None,
        Scope::Socket => format!(
            "{} belongs to a listener: in this condition it has no effect",
            entry.name
        ),
    };
    let warning =
        Diagnostic::warning(message, entry.name_span).with_consequence(Consequence::NoEffect);
    Some(match scope {
        Scope::Socket => {
            warning.with_hint("set it outside all conditions or in $SERVER[\"socket\"] == \"…\"")
        }
        Scope::Server | Scope::Request => warning.with_hint("set it outside all conditions"),
    })
}

fn in_socket_scope(config: &Config, block: &Block) -> bool {
    let mut next = Some(block);
    while let Some(block) = next {
        let is_socket = |subject: &Subject, op| *subject == Subject::SocketAddress && op == Op::Eq;
        if block
            .condition
            .as_ref()
            .is_some_and(|condition| is_socket(&condition.subject, condition.op))
        {
            return true;
        }
        next = block.parent.and_then(|parent| config.block(parent));
    }
    false
}

fn check_effect(entry: &Entry, effect: Effect) -> Option<Diagnostic> {
    let name = &entry.name;
    match effect {
        Effect::Works | Effect::Accepted(_) | Effect::Renamed(_) | Effect::Removed(_) => None,
        Effect::NotYet(why) => {
            let warning = Diagnostic::warning(format!("{name} has no effect yet"), entry.name_span)
                .with_consequence(Consequence::NoEffect);
            Some(if why.is_empty() {
                warning
            } else {
                warning.with_hint(why)
            })
        }
        Effect::Exposes(_) | Effect::Refuses(_) if !entry.value.is_enabling() => None,
        Effect::Exposes(why) => {
            let message =
                format!("{name} is not built yet: requests in its scope are answered 503");
            let warning = Diagnostic::warning(message, entry.name_span)
                .with_consequence(Consequence::Answers503);
            Some(if why.is_empty() {
                warning
            } else {
                warning.with_hint(why)
            })
        }
        Effect::Refuses(why) => {
            let error = Diagnostic::error(
                format!("{name} is not built yet, and starting without it would not be safe"),
                entry.span,
            );
            Some(if why.is_empty() {
                error
            } else {
                error.with_hint(why)
            })
        }
    }
}

/// Whether the value of `entry` is of `kind`.
fn check_type(entry: &Entry, kind: ValueKind) -> Result<(), Box<Diagnostic>> {
    match (kind, &entry.value) {
        (ValueKind::Any, _) => Ok(()),
        (ValueKind::Bool, value) if value.as_bool().is_some() => Ok(()),
        (ValueKind::Short, value) if in_range(value, u16::MAX.into()) => Ok(()),
        (ValueKind::Int, value) if in_range(value, u32::MAX.into()) => Ok(()),
        (
            ValueKind::String | ValueKind::StringOrList | ValueKind::BoolOrString,
            Value::String(_),
        ) => Ok(()),
        (ValueKind::BoolOrString, Value::Integer(_)) => Ok(()),
        (ValueKind::List | ValueKind::StringOrList, Value::Array(array)) => {
            check_list(array, entry, kind)
        }
        (ValueKind::Map, Value::Array(array)) => check_keys(array, entry, kind),
        (ValueKind::StringMap, Value::Array(array)) => check_string_map(array, entry, kind),
        (_, value) => Err(wrong_type(entry, kind, &describe(value), entry.value_span)),
    }
}

/// A number from 0 to `max`.
fn in_range(value: &Value, max: i64) -> bool {
    value
        .as_integer()
        .is_some_and(|number| (0..=max).contains(&number))
}

fn check_list(array: &Array, entry: &Entry, kind: ValueKind) -> Result<(), Box<Diagnostic>> {
    for element in array {
        if let Some(key) = &element.key {
            return Err(wrong_type(
                entry,
                kind,
                &format!("the key \"{}\"", shortened(&key.text)),
                key.span,
            ));
        }
        if element.value.as_str().is_none() {
            return Err(wrong_type(
                entry,
                kind,
                &format!("{} in it", element.value.type_name()),
                element.span,
            ));
        }
    }
    Ok(())
}

fn check_keys(array: &Array, entry: &Entry, kind: ValueKind) -> Result<(), Box<Diagnostic>> {
    match array.iter().find(|element| element.key.is_none()) {
        Some(element) => Err(wrong_type(
            entry,
            kind,
            "an element without a key",
            element.span,
        )),
        None => Ok(()),
    }
}

fn check_string_map(array: &Array, entry: &Entry, kind: ValueKind) -> Result<(), Box<Diagnostic>> {
    check_keys(array, entry, kind)?;
    match array
        .iter()
        .find(|element| element.value.as_str().is_none())
    {
        Some(element) => Err(wrong_type(
            entry,
            kind,
            &format!("{} in it", element.value.type_name()),
            element.span,
        )),
        None => Ok(()),
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", shortened(text)),
        Value::Integer(number) => number.to_string(),
        Value::Array(_) => "an array".to_owned(),
    }
}

fn wrong_type(entry: &Entry, kind: ValueKind, found: &str, span: Span) -> Box<Diagnostic> {
    let message = format!("{} takes {}, not {found}", entry.name, kind.phrase());
    Box::new(
        Diagnostic::error(message, span)
            .with_label("wrong type")
            .with_hint(format!("expected {}", kind.expected())),
    )
}
