//! `cargo xtask docs`: writes the parts of docs/ and packaging/ that can be generated from the code, so that they agree with
//! it.
//!
//! The directive reference and the page about metrics come from the tables of the modules, the man page and the completions from the
//! definitions of the command line, and the picture in ARCHITECTURE.md from the text of a graph.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::picture;
use crate::workspace::{Workspace, output_of};

/// A generated file.
struct Document {
    /// Its path from the root.
    path: &'static str,
    /// Where its text comes from.
    source: Source,
}

/// Where a document's text comes from: a program that prints it.
enum Source {
    /// The program `docgen`, which makes this page from the tables of the code.
    Table(&'static str),
    /// The petrel program with these arguments.
    Petrel(&'static [&'static str]),
    /// A graph in the DOT language, in this file; see [`picture::draw`].
    Graph(&'static str),
}

/// Every generated file.
const DOCUMENTS: &[Document] = &[
    Document {
        path: "docs/directives.md",
        source: Source::Table("directives"),
    },
    Document {
        path: "docs/ledger.md",
        source: Source::Table("ledger"),
    },
    Document {
        path: "docs/metrics.md",
        source: Source::Table("metrics"),
    },
    Document {
        path: "packaging/mime-types",
        source: Source::Table("mime-types"),
    },
    Document {
        path: "docs/causes.md",
        source: Source::Table("causes"),
    },
    Document {
        path: "docs/petrel.1",
        source: Source::Petrel(&["man"]),
    },
    Document {
        path: "docs/petrel-serve.1",
        source: Source::Petrel(&["man", "serve"]),
    },
    Document {
        path: "docs/petrel-spawn.1",
        source: Source::Petrel(&["man", "spawn"]),
    },
    Document {
        path: "docs/petrel-fcgi-magnet.1",
        source: Source::Petrel(&["man", "fcgi-magnet"]),
    },
    Document {
        path: "docs/petrel-fcgi-stat-accel.1",
        source: Source::Petrel(&["man", "fcgi-stat-accel"]),
    },
    Document {
        path: "docs/petrel-lua.1",
        source: Source::Petrel(&["man", "lua"]),
    },
    Document {
        path: "docs/petrel-explain.1",
        source: Source::Petrel(&["man", "explain"]),
    },
    Document {
        path: "docs/petrel-plot.1",
        source: Source::Petrel(&["man", "plot"]),
    },
    Document {
        path: "docs/petrel-costs.1",
        source: Source::Petrel(&["man", "costs"]),
    },
    Document {
        path: "docs/petrel-why.1",
        source: Source::Petrel(&["man", "why"]),
    },
    Document {
        path: "docs/petrel-top.1",
        source: Source::Petrel(&["man", "top"]),
    },
    Document {
        path: "docs/petrel.conf.5",
        source: Source::Petrel(&["man", "petrel.conf"]),
    },
    Document {
        path: "docs/completions/petrel.bash",
        source: Source::Petrel(&["completions", "bash"]),
    },
    Document {
        path: "docs/completions/_petrel",
        source: Source::Petrel(&["completions", "zsh"]),
    },
    Document {
        path: "docs/completions/petrel.fish",
        source: Source::Petrel(&["completions", "fish"]),
    },
    Document {
        path: "docs/way-of-a-request.svg",
        source: Source::Graph("docs/way-of-a-request.dot"),
    },
];

/// `cargo xtask docs`: writes them all.
///
/// # Errors
/// When the command line is wrong, the code does not build or a file cannot be written.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    if let Some(other) = arguments.first() {
        return Err(format!("no option of `docs` is called {other:?}"));
    }
    for (document, text) in generate(workspace)? {
        let path = workspace.root.join(document.path);
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, text))
            .map_err(|error| format!("{}: {error}", document.path))?;
        println!("{}", document.path);
    }
    Ok(())
}

/// Compares each file with the text that [`run`] would write.
///
/// # Errors
/// When one is out of date, or the code does not build.
pub fn check(workspace: &Workspace) -> Result<(), String> {
    let is_stale = |(document, text): &(&Document, Vec<u8>)| {
        fs::read(workspace.root.join(document.path)).ok().as_ref() != Some(text)
    };
    let generated = generate(workspace)?;
    let stale = generated.iter().filter(|pair| is_stale(pair));
    let stale: Vec<&str> = stale.map(|(document, _)| document.path).collect();
    if stale.is_empty() {
        println!("{} files are up to date", generated.len());
        return Ok(());
    }
    Err(format!(
        "out of date, run `cargo xtask docs`: {}",
        stale.join(", ")
    ))
}

fn generate(workspace: &Workspace) -> Result<Vec<(&'static Document, Vec<u8>)>, String> {
    let petrel = workspace.petrel()?;
    let docgen = workspace.docgen()?;
    let text = |document: &Document| match document.source {
        Source::Petrel(arguments) => output_of(Command::new(&petrel).args(arguments)),
        Source::Graph(path) => picture::draw(&workspace.root, path),
        Source::Table(page) => output_of(Command::new(&docgen).arg(page)),
    };
    DOCUMENTS
        .iter()
        .map(|document| Ok((document, text(document)?)))
        .collect()
}
