//! Every configuration text is parsed or refused with a message that can be displayed, and a parsed
//! configuration prints as one that parses to the same.
//!
//! The input is a configuration. Texts that include files are skipped, because their meaning depends on the
//! machine.

use std::path::PathBuf;

use petrel_config::schema::{DirectiveSpec, Effect, Schema, Scope, ValueKind};
use petrel_config::{LoadOptions, Shell, Style, Value, parse_str, print, render};

pub fn configuration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if text.replace("include_shell", "").contains("include") {
        return;
    }
    let schema = Schema::new(&[TABLE]);
    let config = match parse_str("fuzzed", text, &schema, &options()) {
        Ok(config) => config,
        Err(diagnostics) => {
            assert!(!diagnostics.list.is_empty());
            let _ = diagnostics.render(Style::ColourReport);
            let _ = diagnostics.render(Style::Line);
            return;
        }
    };
    for warning in &config.warnings {
        let _ = render(warning, &config.sources, Style::ColourReport);
    }
    let printed = print(&config);
    let again = match parse_str("printed", &printed, &schema, &options()) {
        Ok(again) => again,
        Err(diagnostics) => {
            panic!("{printed}\n{}", diagnostics.render(Style::Line))
        }
    };
    assert_eq!(print(&again), printed);
}

fn options() -> LoadOptions<'static> {
    LoadOptions {
        variables: vec![("var.PID".to_owned(), Value::Integer(7))],
        environment: &|name| (name.len() == 1).then(|| format!("[{name}]")),
        shell: Shell::Refuse,
        directory: PathBuf::from("/nonexistent"),
    }
}

/// One directive of each type, scope and effect, with short names that a fuzzer finds.
const TABLE: &[DirectiveSpec] = &[
    spec("s.bool", ValueKind::Bool, Scope::Request, Effect::Works),
    spec("s.short", ValueKind::Short, Scope::Server, Effect::Works),
    spec("s.int", ValueKind::Int, Scope::Socket, Effect::Works),
    spec("s.text", ValueKind::String, Scope::Request, Effect::Works),
    spec("s.list", ValueKind::List, Scope::Request, Effect::Works),
    spec("s.map", ValueKind::Map, Scope::Request, Effect::Works),
    spec(
        "s.words",
        ValueKind::StringMap,
        Scope::Request,
        Effect::Works,
    ),
    spec(
        "s.some",
        ValueKind::StringOrList,
        Scope::Request,
        Effect::NotYet("Not yet."),
    ),
    spec(
        "s.any",
        ValueKind::Any,
        Scope::Request,
        Effect::Exposes("It protects."),
    ),
    spec(
        "s.ssl",
        ValueKind::BoolOrString,
        Scope::Socket,
        Effect::Refuses("No."),
    ),
    spec(
        "s.old",
        ValueKind::String,
        Scope::Request,
        Effect::Renamed("s.text"),
    ),
    spec(
        "s.gone",
        ValueKind::String,
        Scope::Request,
        Effect::Removed("s.text"),
    ),
];

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
