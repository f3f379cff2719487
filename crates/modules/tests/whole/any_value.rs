//! Sets every directive to values that make no sense: the configuration check accepts or refuses them with a
//! message. Nothing panics, wherever the value is in the text.

use std::path::PathBuf;

use petrel_engine::config::{Config, LoadOptions, Schema, Shell, Style, parse_str};
use petrel_engine::settings::process::ProcessSettings;
use petrel_engine::settings::{SettingsTable, loaded_modules};
use petrel_modules::{MODULES, schema, warnings};

/// Values of each type: empty, huge, nested and malformed. Paths lead nowhere.
const VALUES: &[&str] = &[
    "\"\"",
    "\"enable\"",
    "\"disable\"",
    "\"x\"",
    "\"0\"",
    "\"-1\"",
    "\"/nonexistent/petrel\"",
    "\"|\"",
    "\"unix:\"",
    "\"(\"",
    "\"(a+)+$\"",
    "\"%0%_%{%{1.\"",
    "\"${\"",
    "\"\u{e4}\u{0}\"",
    "0",
    "1",
    "-1",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "( )",
    "( \"\" )",
    "( \"a\", \"a\" )",
    "( \"\" => \"\" )",
    "( \"(\" => \")\" )",
    "( \"a\" => 1, \"b\" => -1 )",
    "( \"/a/\" => \"access plus 1 fortnights\" )",
    "( \"a\" => ( \"b\" => ( \"c\" => \"\" ) ) )",
    "( ( ( ) ) )",
    "( 1, \"a\", ( ) )",
];

/// The places where a directive can be set.
const PLACES: [(&str, &str); 3] = [
    ("", ""),
    ("$HTTP[\"host\"] =~ \"^(a)\" {\n", "\n}"),
    ("$SERVER[\"socket\"] == \"127.0.0.1:1\" {\n", "\n}"),
];

/// It takes so long because it loads about a hundred configurations for each directive.
#[test]
fn no_value_of_a_directive_panics() {
    let schema = schema();
    let mut accepted = 0;
    for directive in schema.all() {
        for value in VALUES {
            for (before, after) in PLACES {
                let text = format!("{before}{} = {value}{after}\n", directive.name);
                accepted += usize::from(starts(&text, &schema));
            }
        }
    }
    // Makes sure that the loop above has checked something.
    assert!(accepted > 1000, "{accepted}");
}

/// Does what the start of the server does with a configuration, up to opening files and sockets.
fn starts(text: &str, schema: &Schema) -> bool {
    let options = LoadOptions {
        variables: Vec::new(),
        environment: &|_| None,
        shell: Shell::Refuse,
        directory: PathBuf::from("/nonexistent"),
    };
    match parse_str("any value", text, schema, &options) {
        Ok(config) => compiles(&config, schema),
        Err(diagnostics) => {
            assert!(!diagnostics.render(Style::Line).is_empty(), "{text}");
            false
        }
    }
}

fn compiles(config: &Config, schema: &Schema) -> bool {
    let _ = warnings(config);
    let modules = loaded_modules(config, MODULES);
    let table = SettingsTable::check(config, schema, &modules);
    let all = SettingsTable::check(config, schema, MODULES);
    let process = ProcessSettings::new(config);
    table.is_ok() && all.is_ok() && process.is_ok()
}
