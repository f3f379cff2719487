//! A big real tree: Python's documentation, about a thousand files with all their links.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use petrel_tests::{Server, Tree, is_installed, run, skip};

/// Where Debian's python3-doc installs it.
const INSTALLED: &str = "/usr/share/doc/python3-doc/html";

/// Mirroring takes a few seconds, longer on a machine that builds meanwhile.
const MIRROR_PATIENCE: Duration = Duration::from_secs(180);

/// The documentation as a document root, or why not.
pub fn root() -> Result<PathBuf, String> {
    fs::canonicalize(INSTALLED).map_err(|_| "python3-doc is not installed".to_owned())
}

/// A server for the documentation, with directory listings and an access log.
pub fn start(root: &Path) -> Server {
    let config = format!(
        "server.document-root = \"{}\"
server.modules = ( \"mod_accesslog\" )
accesslog.filename = var.dir + \"/access.log\"
accesslog.format = \"%s %U\"
dir-listing.activate = \"enable\"
server.max-keep-alive-requests = 10000",
        root.display()
    );
    Server::start(&config)
}

/// It takes so long because wget fetches and reads more than nine hundred files one after the other.
#[test]
fn a_mirror_of_the_documentation_is_the_documentation() {
    let test = "a_mirror_of_the_documentation_is_the_documentation";
    let root = match root() {
        Ok(_) if !is_installed("wget") => return skip(test, "wget is not installed"),
        Ok(root) => root,
        Err(why) => return skip(test, &why),
    };
    let server = start(&root);
    let copy = Tree::new();
    // Both the pages that links lead to, and everything that listings of directories without an index show.
    let starts = ["/", "/_sources/", "/_static/", "/_downloads/", "/_images/"];
    let urls = starts.map(|path| server.url(path));
    let finished = run(
        Command::new("wget")
            .args([
                "--mirror",
                "--no-verbose",
                "--no-host-directories",
                "--execute",
                "robots=off",
            ])
            // Skips the same listings in another order.
            .args([
                "--reject-regex",
                "[?]C=",
                "--tries=2",
                "--timeout=20",
                "--directory-prefix",
            ])
            .arg(copy.path("mirror"))
            .args(urls),
        MIRROR_PATIENCE,
    );
    // 8 means that the server answered with an error; the check below decides whether that was right.
    assert!(
        matches!(finished.code(), 0 | 8),
        "wget: {}\n{}",
        finished.code(),
        finished.errors
    );

    let mirror = copy.path("mirror");
    let mut same = 0;
    for name in files(&mirror, &mirror) {
        // wget's name for the response to a directory. Some have an index, some a listing.
        if name.ends_with("index.html") && !root.join(&name).exists() {
            continue;
        }
        // wget appends the query of a link to the file's name.
        let path = name.split('?').next().unwrap_or(&name);
        let original = fs::read(root.join(path)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            fs::read(mirror.join(&name)).expect("it is ours") == original,
            "{name} differs"
        );
        same += 1;
    }
    let original = files(&root, &root);
    let missing: Vec<&String> = original
        .iter()
        .filter(|name| !mirror.join(name).exists())
        .collect();
    // Listings show no dot files, and a few pages have no link to them.
    let is_hidden = |name: &&&String| name.split('/').any(|part| part.starts_with('.'));
    let unlinked: Vec<_> = missing.iter().filter(|name| !is_hidden(name)).collect();
    assert!(
        same > 900,
        "only {same} of {} files came: {unlinked:?}",
        original.len()
    );
    for name in original
        .iter()
        .filter(|name| name.starts_with('_') && !name.contains("/."))
    {
        assert!(
            mirror.join(name).exists(),
            "{name} is in a listing but was not fetched"
        );
    }
    // Links that fail here are broken in the original, too.
    for line in server.tree().text("access.log").lines() {
        let (status, path) = line.split_once(' ').expect("a status and a path");
        let is_there = root.join(path.trim_start_matches('/')).exists();
        let expected: &[&str] = if is_there {
            &["200", "301", "304"]
        } else {
            &["404"]
        };
        assert!(expected.contains(&status), "{line}");
    }
}

/// The files below `directory`, by their paths relative to `root`.
fn files(directory: &Path, root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, root));
        } else {
            let name = path.strip_prefix(root).expect("it is below the root");
            found.insert(name.to_str().expect("plain names").to_owned());
        }
    }
    found
}
