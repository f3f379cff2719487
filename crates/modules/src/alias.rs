//! mod_alias: parts of the URL space that are outside of the document root.
//!
//! The first prefix in the configuration that matches counts. The rest of the path is appended to the target
//! unchanged, as in lighttpd: `/a` => `/x/` turns `/ab` into `/x/b`. So a URL such as `/a../b` must not
//! become `/x/../b`: it is answered 403.

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::value::Key;
use petrel_engine::config::{Array, Config, Diagnostic, Effect, Span};
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::core::absolute_root;

/// mod_alias.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_alias",
    doc: "Maps prefixes of the URL path to directories or files outside the document root.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "alias.url", StringMap, Request, "()", Effect::Works,
            "URL prefixes, each with the path in the file system that takes its place; the rest of the URL path is appended. The first prefix that matches counts, so put a longer prefix before a shorter one.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let Some(array) = configure.values.array("alias.url") else {
        return Ok(());
    };
    let pairs = array
        .iter()
        .filter_map(|element| Some((element.key.as_ref()?, element.value.as_str()?)));
    let aliases: Vec<_> = pairs
        .map(|(prefix, target)| Alias::new(prefix, target))
        .collect();
    if !aliases.is_empty() {
        let core_name = "server.force-lowercase-filenames";
        let ignores_case = configure.values.bool(core_name).unwrap_or(false);
        configure.add(
            Phase::Map,
            Aliases {
                aliases,
                ignores_case,
            },
        );
    }
    Ok(())
}

/// Warns about prefixes that come after a shorter prefix of themselves, because those never match. lighttpd
/// refuses some such lists and starts with others, depending on the rest of the list; a list that lighttpd
/// starts with must start here as well.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let lists = entries.filter(|entry| entry.name == "alias.url");
    lists
        .filter_map(|entry| entry.value.as_array())
        .flat_map(hidden)
        .collect()
}

fn hidden(array: &Array) -> Vec<Diagnostic> {
    let mut earlier: Vec<&str> = Vec::new();
    let mut warnings = Vec::new();
    for key in array.iter().filter_map(|element| element.key.as_ref()) {
        let mut shorter = earlier
            .iter()
            .filter(|shorter| key.text.starts_with(**shorter));
        if let Some(shorter) = shorter.next() {
            let message = format!(
                "the alias {:?} never matches: {shorter:?} is tried first",
                key.text
            );
            let warning = Diagnostic::warning(message, key.span);
            warnings.push(warning.with_hint("put the longer prefix before the shorter one"));
        }
        earlier.push(&key.text);
    }
    warnings
}

struct Aliases {
    aliases: Vec<Alias>,
    ignores_case: bool,
}

struct Alias {
    prefix: Box<[u8]>,
    /// Absolute, and with a slash at its end if the configuration has one.
    target: Box<[u8]>,
    /// Where the prefix stands.
    span: Span,
}

impl Alias {
    fn new(prefix: &Key, target: &str) -> Alias {
        let mut path = absolute_root(target).to_vec();
        if target.ends_with('/') || path.is_empty() {
            path.push(b'/');
        }
        Alias {
            prefix: prefix.text.as_bytes().into(),
            target: path.into(),
            span: prefix.span,
        }
    }

    /// The part of `path` after the prefix.
    fn rest<'p>(&self, path: &'p [u8], ignores_case: bool) -> Option<&'p [u8]> {
        let (head, rest) = path.split_at_checked(self.prefix.len())?;
        let is_prefix = match ignores_case {
            true => head.eq_ignore_ascii_case(&self.prefix),
            false => *head == *self.prefix,
        };
        is_prefix.then_some(rest)
    }

    /// Whether `rest` would begin with a dot segment after the target.
    fn escapes(&self, rest: &[u8]) -> bool {
        let segment = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
        matches!(segment, b"." | b"..") && self.target.ends_with(b"/")
    }
}

impl Hook for Aliases {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let physical = &mut exchange.physical;
        if physical.is_virtual {
            return Outcome::Next;
        }
        let path = physical.path.get(physical.base.len()..).unwrap_or_default();
        let found = self
            .aliases
            .iter()
            .find_map(|alias| Some((alias, alias.rest(path, self.ignores_case)?)));
        let Some((alias, rest)) = found else {
            return Outcome::Next;
        };
        if alias.escapes(rest) {
            exchange.note(|| Note::Rule(alias.span));
            return exchange.fail(CauseCode::AliasEscape);
        }
        // The buffer of the base is used for the new path, so that nothing is allocated.
        let base_and_slash = &alias.target;
        let base = base_and_slash.strip_suffix(b"/").unwrap_or(base_and_slash);
        let joint = if rest.starts_with(b"/") {
            base
        } else {
            base_and_slash
        };
        physical.base.clear();
        physical.base.extend_from_slice(joint);
        physical.base.extend_from_slice(rest);
        std::mem::swap(&mut physical.base, &mut physical.path);
        physical.base.clear();
        physical.base.extend_from_slice(base);
        physical.base_shows_slash = base.len() < base_and_slash.len();
        exchange.note(|| Note::Rule(alias.span));
        Outcome::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const FILES: &[(&str, &str)] = &[
        ("out/foo", "foo"),
        ("out/y/index.html", "y"),
        ("script.txt", "script"),
        ("secret", "secret"),
        ("docs/a", "a"),
    ];

    fn answers(config: &str, rows: &[(&str, u16, &str)]) {
        let tree = Tree::new(FILES);
        let config = format!("index-file.names = (\"index.html\")\n{config}");
        let config = config.replace("server.document-root", "");
        let modules = [
            &crate::index_file::MODULE,
            &MODULE,
            &crate::static_file::MODULE,
        ];
        let site = tree.site(&config, &modules);
        for (target, status, path) in rows {
            let answer = site.get(target);
            let opened = String::from_utf8_lossy(&answer.exchange().physical.path).into_owned();
            let expected = if path.is_empty() {
                String::new()
            } else {
                tree.path(path)
            };
            let opened = if path.is_empty() {
                String::new()
            } else {
                opened
            };
            assert_eq!((answer.status(), opened), (*status, expected), "{target}");
        }
    }

    // The statuses are those of lighttpd 1.4.69.
    #[test]
    fn the_rest_is_appended_as_it_is() {
        answers(
            "alias.url = (\"/foo/\" => \"ROOT/out/y\", \"/foo\" => \"ROOT/out/\", \"/baz/\" => \"ROOT/out/\")",
            &[
                ("/foo/", 200, "out/y/index.html"),
                ("/foo", 301, "out/"),
                ("/foo/index.html", 404, "out/yindex.html"),
                ("/foobar", 404, "out/bar"),
                ("/fooy/", 200, "out/y/index.html"),
                ("/baz/foo", 200, "out/foo"),
                ("/fo", 404, "fo"),
            ],
        );
    }

    #[test]
    fn dots_do_not_lead_out_of_the_target() {
        answers(
            "alias.url = (\"/foo\" => \"ROOT/out/\", \"/bar\" => \"ROOT/out\", \"/baz/\" => \"ROOT/out/\")",
            &[
                ("/foo../secret", 403, ""),
                ("/foo%2e%2e/secret", 403, ""),
                ("/foo..", 403, ""),
                ("/foo./foo", 403, ""),
                ("/foo.html", 404, "out/.html"),
                ("/bar../secret", 404, "out../secret"),
                ("/bar/../secret", 200, "secret"),
                ("/baz../secret", 404, "baz../secret"),
                ("/baz/..%2fsecret", 200, "secret"),
            ],
        );
    }

    #[test]
    fn a_file_can_be_the_target_and_takes_path_info() {
        let config =
            "alias.url = (\"/one\" => \"ROOT/script.txt\", \"/two\" => \"ROOT/script.txt/\")";
        let (tree, modules) = (Tree::new(FILES), [&MODULE, &crate::static_file::MODULE]);
        let site = tree.site(config, &modules);
        for (target, info) in [("/one", ""), ("/one/info", "/info"), ("/two/info", "/info")] {
            let answer = site.get(target);
            assert_eq!(answer.status(), 200, "{target}");
            assert_eq!(
                answer.exchange().physical.path_info,
                info.as_bytes(),
                "{target}"
            );
        }
        assert_eq!(site.get("/onex").status(), 404);
    }

    #[test]
    fn base_and_document_root_say_where_the_path_is() {
        let tree = Tree::new(FILES);
        let site = tree.site("alias.url = (\"/foo/\" => \"ROOT/out/\")", &[&MODULE]);
        let answer = site.get("/foo/y/");
        let physical = &answer.exchange().physical;
        assert_eq!(physical.base, tree.path("out").as_bytes());
        assert_eq!(
            [&physical.document_root[..], b"/"].concat(),
            tree.path("").as_bytes()
        );
        assert_eq!(physical.relative, b"/foo/y/");
    }

    #[test]
    fn letter_case_does_not_matter_when_file_names_are_lowered() {
        answers(
            "server.force-lowercase-filenames = \"enable\"\nalias.url = (\"/FOO\" => \"ROOT/out/\")",
            &[("/foofoo", 200, "out/foo"), ("/FOOFoo", 200, "out/foo")],
        );
    }

    // lighttpd 1.4.69 starts with this list and gives the same answers.
    #[test]
    fn a_longer_prefix_behind_a_shorter_one_never_matches() {
        answers(
            "alias.url = (\"/foo/\" => \"ROOT/out/\", \"/bar\" => \"ROOT/out/\", \"/foo/y/\" => \"ROOT/docs/\")",
            &[
                ("/foo/y/", 200, "out/y/index.html"),
                ("/foo/y/a", 404, "out/y/a"),
            ],
        );
    }
}
