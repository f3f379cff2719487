//! lighttpd's configuration language: from text to a checked tree with compiled conditions.
//!
//! [`load`] reads a file with everything that it includes, resolves variables and expressions, checks names
//! and types against a [`Schema`], and compiles the conditions. Errors come back as [`Diagnostics`] with
//! their places in the text.
//!
//! The crate knows no module, no directive and no request: the tables of directives are an argument, and a
//! [`matcher::Matcher`] compares a value without knowing where it comes from. The engine turns the tree into
//! settings. The binary calls `load` at start-up and at a reload, and [`print()`] for `-p`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod address;
mod captures;
mod check;
pub mod condition;
pub mod diagnostic;
mod encode;
mod foreign;
mod lexer;
pub mod limits;
pub mod listen;
mod load_options;
pub mod matcher;
pub mod pattern;
pub mod pattern_set;
mod plain;
mod prefix;
mod print;
mod reader;
pub mod schema;
pub mod source;
pub mod template;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod value;

use std::path::Path;

use reader::Reader;
use source::Origin;

pub use address::AddressRange;
pub use captures::Captures;
pub use condition::{Op, Subject};
pub use diagnostic::{Consequence, Diagnostic, Diagnostics, Severity, Style, render};
pub use listen::{ListenAddress, ListenDefaults};
pub use load_options::{LoadOptions, Shell};
pub use pattern::{LimitExceeded, Pattern, PatternError};
pub use pattern_set::PatternSet;
pub use print::print;
pub use schema::{DirectiveSpec, Effect, Schema, Scope, ValueKind};
pub use source::{FileId, Sources, Span};
pub use template::{Lookup, Template, UrlPart};
pub use tree::{Block, BlockId, Condition, Config, Entry};
pub use value::{Array, Element, Value};

/// Reads, resolves and checks the file at `path` with everything it includes.
///
/// # Errors
/// All errors and warnings, if there is at least one error.
pub fn load(
    path: &Path,
    schema: &Schema,
    options: &LoadOptions<'_>,
) -> Result<Config, Diagnostics> {
    let mut reader = Reader::new(options);
    reader.read_main_file(path);
    checked(reader, schema)
}

/// Reads as much as possible of the file at `path`. Errors are among the warnings of the tree, and nothing is
/// checked. For commands that need a single directive; never serve requests with it.
#[must_use]
pub fn read_despite_mistakes(path: &Path, options: &LoadOptions<'_>) -> Config {
    let mut reader = Reader::new(options);
    reader.read_main_file(path);
    reader.finish()
}

/// Like [`load`], for a text that messages call `name`.
///
/// # Errors
/// All errors and warnings, if there is at least one error.
pub fn parse_str(
    name: &str,
    text: &str,
    schema: &Schema,
    options: &LoadOptions<'_>,
) -> Result<Config, Diagnostics> {
    let mut reader = Reader::new(options);
    reader.read_text(
        Origin::Text(name.to_owned()),
        text.to_owned(),
        None,
        BlockId::GLOBAL,
    );
    checked(reader, schema)
}

/// The checked tree of `reader`. Errors of reading and of checking are reported together.
fn checked(reader: Reader<'_>, schema: &Schema) -> Result<Config, Diagnostics> {
    let mut config = reader.finish();
    check::spell_names(&mut config, schema);
    let found = check::check(&config, schema);
    config.warnings.extend(found);
    config
        .warnings
        .sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.file, span.start)));
    let is_error = |diagnostic: &Diagnostic| diagnostic.severity == Severity::Error;
    if config.warnings.iter().any(is_error) {
        foreign::tell(&mut config.warnings, &config.sources);
        return Err(Diagnostics {
            list: config.warnings,
            sources: config.sources,
        });
    }
    Ok(config)
}
