//! `cargo xtask site`: builds the documentation as a site with search, by mdBook, into target/site.
//!
//! mdBook wants all pages below one folder. README.md, the change log and the page on benchmarks are outside docs/, so
//! the pages are copied to target/site-pages first, each to the place that it has here: links between them stay right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{self, Workspace};

/// What is copied besides docs/.
const FILES: &[&str] = &[
    "book.toml",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "bench/README.md",
    "packaging/Containerfile",
];

/// The version of mdBook that is installed where none is.
const MDBOOK: &str = "0.4.52";

/// `cargo xtask site`
///
/// # Errors
/// When the command line is wrong, mdBook cannot be installed, or a page cannot be read or written.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    if let Some(other) = arguments.first() {
        return Err(format!("no option of `site` is called {other:?}"));
    }
    let mdbook = provide_mdbook(workspace)?;
    let pages = workspace.target.join("site-pages");
    let site = workspace.target.join("site");
    copy_pages(&workspace.root, &pages).map_err(|error| format!("{}: {error}", pages.display()))?;
    workspace::run(
        Command::new(mdbook)
            .arg("build")
            .arg(&pages)
            .arg("--dest-dir")
            .arg(&site),
    )?;
    println!("{}", site.join("index.html").display());
    Ok(())
}

/// The mdbook program; built once, which takes some minutes.
fn provide_mdbook(workspace: &Workspace) -> Result<PathBuf, String> {
    let root = workspace.target.join("tools/mdbook");
    let program = root.join("bin/mdbook");
    if !program.exists() {
        let mut install = workspace.cargo(&["install", "mdbook", "--locked", "--version", MDBOOK]);
        install.args(["--no-default-features", "--features", "search", "--root"]);
        workspace::run(install.arg(&root))?;
    }
    Ok(program)
}

fn copy_pages(root: &Path, pages: &Path) -> std::io::Result<()> {
    if pages.exists() {
        fs::remove_dir_all(pages)?;
    }
    copy_folder(&root.join("docs"), &pages.join("docs"))?;
    for name in FILES {
        let to = pages.join(name);
        fs::create_dir_all(to.parent().unwrap_or(pages))?;
        fs::copy(root.join(name), to)?;
    }
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md"))?;
    fs::write(pages.join("SUMMARY.md"), summary_from_root(&summary))
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// docs/SUMMARY.md with its links as they are from the root.
fn summary_from_root(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_summary_count_from_the_root() {
        let summary = "- [A](a.md)\n- [B](../B.md)\n- [C](../c/C.md)\n";
        assert_eq!(
            summary_from_root(summary),
            "- [A](docs/a.md)\n- [B](B.md)\n- [C](c/C.md)\n"
        );
    }
}
