//! Reads the scripts of a configuration for `petrel -tt`: which are missing, and which use functions that are
//! switched off.

use std::path::{Path, PathBuf};

use petrel_engine::config::{Config, Diagnostic, Span};
use petrel_lua::MissingPart;

use super::HOOKS;
use crate::lua;

/// Warns of scripts that cannot be read, and of functions in them that no script has. `place` says where the path of
/// a script is now: `server.chroot` counts only later.
pub fn review(config: &Config, place: impl Fn(&Path) -> PathBuf) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    for (path, span) in scripts(config) {
        let source = match std::fs::read(place(Path::new(path))) {
            Ok(source) => source,
            Err(error) => {
                let message = format!("the script {path} cannot be read: {error}");
                warnings.push(Diagnostic::warning(message, span).with_hint(MISSING));
                continue;
            }
        };
        for part in petrel_lua::missing_parts(&source, |part| lua::is_allowed(config, part)) {
            let MissingPart { line, name, .. } = &part;
            let message = match part.allowed_by {
                Some(_) => format!("{path}:{line}: {name} is switched off"),
                None => format!("{path}:{line}: scripts have no {name}"),
            };
            let warning = Diagnostic::warning(message, span);
            warnings.push(match part.allowed_by {
                Some(by) => warning.with_hint(format!("lua.allow switches it on: \"{by}\"")),
                None => warning,
            });
        }
    }
    warnings
}

/// The paths of the scripts, with the places that name them.
fn scripts(config: &Config) -> impl Iterator<Item = (&str, Span)> {
    let names = HOOKS.iter().flat_map(|(_, _, names)| *names);
    let entries = names.flat_map(|name| config.blocks.iter().filter_map(|block| block.entry(name)));
    entries.flat_map(|entry| {
        let one = entry.value.as_str().map(|path| (path, entry.value_span));
        let list = entry
            .value
            .as_array()
            .into_iter()
            .flat_map(|array| array.iter());
        let many = list.filter_map(|element| Some((element.value.as_str()?, element.span)));
        one.into_iter().chain(many)
    })
}

const MISSING: &str = "the server starts, and answers 500 where it would run it";
