//! mod_indexfile: answers a URL that ends with a slash with a file of that directory.
//!
//! The names are tried in order in the file cache, so that a request usually makes no system call for them.
//! URL path and physical path become those of the file that was found, so that handlers chosen by suffix and
//! access rules apply to the file that is opened. The request target does not change.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::file_cache::{FileEntry, FileKind, NextNames, Role};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use rustix::io::Errno;

/// mod_indexfile.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_indexfile",
    doc: "Answers a URL that ends with a slash with a file of that directory.",
    loaded: Loaded::Compat,
    directives: petrel_engine::directives! {
        "index-file.names", List, Request, "()", Effect::Works,
            "Names of index files, tried in this order. A name that begins with a slash is a path from the document root, for every directory.";
        "server.indexfiles", List, Request, "()", Effect::Renamed("index-file.names"),
            "The older name of index-file.names.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let names = configure.values.strings("index-file.names");
    if !names.is_empty() {
        let names: Rc<[Box<[u8]>]> = names.iter().map(|name| name.as_bytes().into()).collect();
        let next = Rc::clone(&names);
        configure.look_next(Rc::new(move |exchange| next_names(exchange, &next)));
        configure.add(Phase::Resolved, IndexFile { names });
    }
    Ok(())
}

struct IndexFile {
    names: Rc<[Box<[u8]>]>,
}

impl Hook for IndexFile {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let kind = exchange.physical.file.as_ref().map(|file| file.kind());
        if kind != Some(FileKind::Directory) || !exchange.request.url.path().ends_with(b"/") {
            return Outcome::Next;
        }
        for name in self.names.iter() {
            let file = match name.first() {
                Some(b'/') => look_in_root(exchange, name),
                _ => look_in_directory(exchange, name),
            };
            let Some(file) = file else {
                return Outcome::Cold;
            };
            match file.kind() {
                FileKind::Missing | FileKind::NotADirectory => {}
                FileKind::Denied if !is_taken_unread(exchange, name, &file) => {
                    return exchange.fail(CauseCode::FileDenied);
                }
                FileKind::Failed(errno) => return failed(exchange, name, errno),
                FileKind::Regular | FileKind::Directory | FileKind::Special | FileKind::Denied => {
                    take(exchange, name, file);
                    return exchange.physical_path_changed();
                }
            }
        }
        Outcome::Next
    }
}

/// The names that will be looked up if the URL path leads to a directory.
fn next_names(exchange: &Exchange, names: &[Box<[u8]>]) -> Option<NextNames> {
    if !exchange.request.url.path().ends_with(b"/") {
        return None;
    }
    Some(NextNames {
        paths: names.iter().map(|name| path_of(exchange, name)).collect(),
        role: Role::Indexes,
    })
}

/// The file `name` in the directory. The buffer of the physical path is used for its path.
fn look_in_directory(exchange: &mut Exchange, name: &[u8]) -> Option<Rc<FileEntry>> {
    let directory = exchange.physical.path.len();
    append_name(&mut exchange.physical.path, name);
    let file = look_up(exchange, &exchange.physical.path);
    exchange.physical.path.truncate(directory);
    file
}

/// Whether a gateway takes the file although this server cannot read it.
fn is_taken_unread(exchange: &Exchange, name: &[u8], file: &FileEntry) -> bool {
    file.is_unreadable_file() && exchange.is_taken_unread(&path_of(exchange, name), file)
}

/// The path of an index file, to be called while the physical path is that of the directory.
fn path_of(exchange: &Exchange, name: &[u8]) -> Vec<u8> {
    let physical = &exchange.physical;
    let mut path = match name.first() {
        Some(b'/') => physical.document_root.clone(),
        _ => physical.path.clone(),
    };
    append_name(&mut path, name);
    path
}

/// The file `name` below the document root.
fn look_in_root(exchange: &Exchange, name: &[u8]) -> Option<Rc<FileEntry>> {
    look_up(exchange, &[&exchange.physical.document_root, name].concat())
}

fn look_up(exchange: &Exchange, path: &[u8]) -> Option<Rc<FileEntry>> {
    exchange.look_up(path, exchange.settings.core.symlinks)
}

/// Makes the index file the file of the request.
fn take(exchange: &mut Exchange, name: &[u8], file: Rc<FileEntry>) {
    let physical = &mut exchange.physical;
    if name.starts_with(b"/") {
        // An index "file" with a slash is a script below the document root that lists the directory: this
        // tells it which one.
        exchange
            .environment
            .set("PATH_TRANSLATED_DIRINDEX", &physical.path);
        exchange.request.url.set_path(name);
        physical.relative.clear();
        physical.path.clear();
        physical.path.extend_from_slice(&physical.document_root);
        physical.base.clear();
        physical.base.extend_from_slice(&physical.document_root);
        physical.base_shows_slash = false;
    } else {
        exchange.request.url.extend_path(name);
    }
    physical.is_index = true;
    append_name(&mut physical.relative, name);
    append_name(&mut physical.path, name);
    physical.file = Some(file);
}

/// Appends `name` after exactly one slash. The target of an alias may lack its slash.
fn append_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") && !name.starts_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

fn failed(exchange: &mut Exchange, name: &[u8], errno: Errno) -> Outcome {
    let path = path_of(exchange, name);
    let path = String::from_utf8_lossy(&path);
    let outcome = exchange.fail(cause_of_failure(errno));
    exchange.log_error("map", format_args!("{errno} path={path:?}"));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const ROOT: &str = "index-file.names = (\"none\", \"second.html\", \"index.html\")\n";

    fn opened(tree: &Tree, config: &str, target: &str) -> (u16, String, String) {
        let site = tree.site(config, &[&MODULE, &crate::static_file::MODULE]);
        let answer = site.get(target);
        let exchange = answer.exchange();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let body = text(answer.body());
        (answer.status(), body, text(exchange.request.url.path()))
    }

    #[test]
    fn the_first_name_that_exists_is_served() {
        let tree = Tree::new(&[
            ("index.html", "one"),
            ("d/second.html", "two"),
            ("d/index.html", ""),
        ]);
        assert_eq!(
            opened(&tree, ROOT, "/"),
            (200, "one".into(), "/index.html".into())
        );
        assert_eq!(
            opened(&tree, ROOT, "/d/"),
            (200, "two".into(), "/d/second.html".into())
        );
    }

    #[test]
    fn the_target_and_its_query_stay() {
        let tree = Tree::new(&[("d/index.html", "x")]);
        let answer = tree
            .site(ROOT, &[&MODULE, &crate::static_file::MODULE])
            .get("/d/?a=b");
        let url = &answer.exchange().request.url;
        assert_eq!((url.target(), url.query()), (&b"/d/?a=b"[..], &b"a=b"[..]));
        assert_eq!(answer.exchange().physical.relative, b"/d/index.html");
    }

    #[test]
    fn a_directory_without_one_is_left_to_others() {
        let tree = Tree::new(&[("d/other", "")]);
        assert_eq!(opened(&tree, ROOT, "/d/").0, 403);
    }

    #[test]
    fn a_directory_with_such_a_name_ends_the_search_as_in_lighttpd() {
        let tree = Tree::new(&[("second.html/x", ""), ("index.html", "x")]);
        let (status, _, path) = opened(&tree, ROOT, "/");
        assert_eq!((status, &*path), (403, "/second.html"));
    }

    #[test]
    fn a_name_with_a_slash_in_front_is_one_file_for_all_directories() {
        let tree = Tree::new(&[("list.html", "list"), ("d/e/x", "")]);
        let config = "index-file.names = (\"index.html\", \"/list.html\")";
        assert_eq!(
            opened(&tree, config, "/d/e/"),
            (200, "list".into(), "/list.html".into())
        );
        let answer = tree
            .site(config, &[&MODULE, &crate::static_file::MODULE])
            .get("/d/e/");
        let listed = answer
            .exchange()
            .environment
            .get("PATH_TRANSLATED_DIRINDEX")
            .map(<[u8]>::to_vec);
        assert_eq!(listed, Some(tree.path("d/e/").into_bytes()));
    }

    #[test]
    fn a_name_below_a_file_is_passed_over() {
        let tree = Tree::new(&[("a.html", "a")]);
        let config = "index-file.names = (\"a.html/x\", \"a.html\")";
        assert_eq!(opened(&tree, config, "/").0, 200);
    }

    #[test]
    fn an_index_file_that_a_backend_should_answer_is_not_sent() {
        let tree = Tree::new(&[("index.php", "source"), ("d/index.php", "source")]);
        let wstunnel = crate::not_built::MODULES
            .iter()
            .copied()
            .find(|module| module.name == "mod_wstunnel");
        let modules = [
            &MODULE,
            &crate::static_file::MODULE,
            wstunnel.expect("it is in the table"),
        ];
        for (key, statuses) in [
            ("/index.php", [503, 200]),
            ("/d/index.php", [200, 503]),
            (".php", [503, 503]),
        ] {
            let config = format!(
                "index-file.names = (\"index.php\")\n\
                wstunnel.server = (\"{key}\" => ((\"host\" => \"127.0.0.1\")))"
            );
            let site = tree.site(&config, &modules);
            assert_eq!(
                ["/", "/d/"].map(|target| site.get(target).status()),
                statuses,
                "{key}"
            );
        }
    }

    #[test]
    fn the_older_directive_works() {
        let tree = Tree::new(&[("a.html", "a")]);
        assert_eq!(
            opened(&tree, "server.indexfiles = (\"a.html\")", "/").0,
            200
        );
    }

    #[test]
    fn conditions_on_the_physical_path_see_the_index_file() {
        let tree = Tree::new(&[("a.html", "a")]);
        let config = "index-file.names = (\"a.html\")\n\
            $PHYSICAL[\"path\"] =$ \"a.html\" { static-file.exclude-extensions = (\".html\") }";
        assert_eq!(opened(&tree, config, "/").0, 403);
    }
}
