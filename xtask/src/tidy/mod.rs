//! A step of the tests that checks the shape of `crates/` where the compiler does not: no circles of imports
//! between the rooms of a crate, no globals, no two types of one name. Clippy checks the use of clocks
//! (`crates/clippy.toml`), and rustc finds items that could be private (`unreachable_pub`).
//!
//! [`allowed`] lists the exceptions, each with its reason. An exception that is not needed is an error, too.

mod allowed;
mod circles;
mod globals;
mod names;
mod source;
mod words;

use std::path::Path;

use crate::workspace::Workspace;
use allowed::{CIRCLES, GLOBALS, NAMES};
use source::CrateSource;

/// Checks all crates.
///
/// # Errors
/// Says what is wrong, with files and lines.
pub fn check(workspace: &Workspace) -> Result<(), String> {
    let folder = workspace.root.join("crates");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("crates: {error}"))?;
    let mut names: Vec<String> = (entries.flatten())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let read = |path: &Path| std::fs::read_to_string(workspace.root.join(path)).ok();
    let mut complaints = Vec::new();
    for name in &names {
        let source = CrateSource::read(name, &read)?;
        complaints.extend(about_circles(&source));
        complaints.extend(about_globals(&source));
        complaints.extend(about_names(&source));
    }
    complaints.extend(words::complaints(&workspace.root));
    match complaints.is_empty() {
        true => Ok(()),
        false => Err(complaints.join("\n")),
    }
}

fn about_circles(source: &CrateSource) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut listed: Vec<_> = (CIRCLES.iter())
        .filter(|circle| circle.in_crate == source.name)
        .collect();
    for circle in circles::circles(source) {
        let known = listed
            .iter()
            .position(|listed| listed.rooms == circle.rooms);
        if let Some(known) = known {
            listed.remove(known);
            continue;
        }
        let mut text = format!(
            "{}: these rooms import each other: {}",
            source.name,
            circle.rooms.join(", ")
        );
        for import in circle.imports {
            text += &format!("\n    {} needs {}: {}", import.from, import.to, import.at);
        }
        complaints.push(text);
    }
    complaints.extend(listed.iter().map(|circle| {
        let rooms = circle.rooms.join(", ");
        format!("{}: no such circle any more: {rooms}", source.name)
    }));
    complaints
}

fn about_globals(source: &CrateSource) -> Vec<String> {
    let mut listed: Vec<_> = (GLOBALS.iter())
        .filter(|global| global.path.starts_with(&format!("crates/{}/", source.name)))
        .collect();
    let mut complaints = Vec::new();
    for global in globals::globals(source) {
        let known = (listed.iter())
            .position(|listed| listed.name == global.name && listed.path == global.path);
        match known {
            Some(known) => drop(listed.remove(known)),
            None => complaints.push(format!(
                "{}:{}: {} is a global: keep it in the worker or in `Shared`",
                global.path, global.line, global.name
            )),
        }
    }
    let gone =
        |global: &&allowed::Global| format!("{}: no global {} any more", global.path, global.name);
    complaints.extend(listed.iter().map(gone));
    complaints
}

fn about_names(source: &CrateSource) -> Vec<String> {
    let mut listed: Vec<&str> = (NAMES.iter())
        .filter(|(in_crate, _)| *in_crate == source.name)
        .flat_map(|(_, names)| names.iter().copied())
        .collect();
    let mut complaints = Vec::new();
    for (name, places) in names::shared_names(source) {
        match listed.iter().position(|listed| *listed == name) {
            Some(known) => drop(listed.remove(known)),
            None => complaints.push(format!(
                "{}: {} types are called {name}:\n    {}",
                source.name,
                places.len(),
                places.join("\n    ")
            )),
        }
    }
    let gone = |name: &&str| format!("{}: {name} is the name of one type now", source.name);
    complaints.extend(listed.iter().map(gone));
    complaints
}

#[cfg(test)]
mod testing {
    use std::path::Path;

    use super::source::CrateSource;

    /// A crate of these files, by their paths below `src/`.
    pub fn crate_of(files: &[(&str, &str)]) -> CrateSource {
        let read = |path: &Path| {
            let mut files = files.iter();
            let in_src = path
                .strip_prefix("crates/x/src")
                .expect("it is in the crate");
            let found = files.find(|(name, _)| Path::new(name) == in_src)?;
            Some(found.1.to_owned())
        };
        CrateSource::read("x", &read).expect("it is a crate")
    }
}
