//! Makes the reference of directives from the tables; `cargo xtask docs` writes it to `docs/directives.md`.

use std::fmt::Write;

use petrel_engine::module::{Loaded, ModuleSpec};
use petrel_engine::settings::directives::{DIRECTIVES, DirectiveSpec, Effect};
use petrel_modules::gateway::options::HOST_OPTIONS;
use petrel_modules::{MODULES, NOT_BUILT_MODULES};

pub(crate) fn page() -> String {
    let mut text = String::from(INTRODUCTION);
    section(&mut text, "The core", "Always there.", DIRECTIVES);
    text.push_str(STRICTNESS);
    for module in MODULES {
        section(
            &mut text,
            module.name,
            &introduction(module),
            module.directives,
        );
    }
    options_of_backends(&mut text);
    text.push_str(NOT_BUILT);
    for module in NOT_BUILT_MODULES {
        section(&mut text, module.name, module.doc, module.directives);
    }
    text
}

fn options_of_backends(text: &mut String) {
    text.push_str(BACKENDS);
    for option in HOST_OPTIONS {
        let doc = option.doc.replace('|', "\\|");
        let (name, kind, default) = (option.name, option.kind.name(), option.default);
        writeln!(text, "| `{name}` | {kind} | {default} | {doc} |").expect("writing to a string");
    }
}

fn introduction(module: &ModuleSpec) -> String {
    let loaded = match module.loaded {
        Loaded::Always => "Always there.",
        Loaded::Listed => "Takes part when `server.modules` lists it.",
        Loaded::Compat => {
            "Takes part without being listed, unless `server.compat-module-load` is off."
        }
    };
    format!("{} {loaded}", module.doc)
}

fn section(text: &mut String, title: &str, introduction: &str, directives: &[DirectiveSpec]) {
    write!(text, "\n## {title}\n\n{introduction}\n").expect("writing to a string");
    if directives.is_empty() {
        return;
    }
    text.push_str("\n| directive | type | scope | default | effect | meaning |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for spec in directives {
        row(text, spec);
    }
}

fn row(text: &mut String, spec: &DirectiveSpec) {
    let cells = [
        format!("`{}`", spec.name),
        spec.kind.name().to_owned(),
        spec.scope.name().to_owned(),
        spec.default.to_owned(),
        effect(spec.effect),
        spec.doc.to_owned(),
    ];
    let cells = cells.map(|cell| cell.replace('|', "\\|"));
    writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a string");
}

fn effect(effect: Effect) -> String {
    match effect {
        Effect::Works => "works".to_owned(),
        Effect::Accepted(why) => format!("accepted: {why}"),
        Effect::NotYet(why) => format!("not yet: {why}"),
        Effect::Exposes(why) => format!("503: {why}"),
        Effect::Refuses(why) => format!("start-up refuses: {why}"),
        Effect::Renamed(name) => format!("works: another name of `{name}`"),
        Effect::Removed(name) => format!("start-up refuses: use {name}"),
    }
}

const INTRODUCTION: &str = "\
# Directives

Every directive that Petrel knows. (`cargo xtask docs` makes this page from the tables in the code.)

**Type**: a bool is \"enable\" or \"disable\" (also \"true\", \"false\" or a number), a short 0 to
65535, an int 0 to 4294967295, a list ( \"a\", \"b\" ), a map ( \"key\" => value ).

**Scope**: *server* directives must be outside of all conditions. *listener* directives may also be in
`$SERVER[\"socket\"]`, those with *any* in every condition. Where several conditions are true, the last
one in the file counts.

**Effect**: *works*: the directive does what it says. *accepted*: there is nothing to do, for the reason
given. *not yet*: the directive has no effect, and the start says so. *503*: the directive protects
something, and Petrel cannot do that yet; where it is set, the requests that it is about get 503 instead of
being let through. The same happens to requests that `url.access-deny` and the like protect while their
module is not in `server.modules`, and to files that `fastcgi.server`, `cgi.assign` and the like name while
theirs is not.
";

const STRICTNESS: &str = "
### Request strictness

Keys of `server.http-parseopts`, each \"enable\" or \"disable\":

| key | default | when enabled |
|---|---|---|
| `header-strict` | enable | header lines must end in CR LF, and their characters are checked |
| `host-strict` | enable | Host must be a well-formed name or address; implies `host-normalize` |
| `host-normalize` | disable | the port of Host is checked, and a superfluous one is dropped |
| `method-get-body` | disable | GET and HEAD may have a body |
| `url-normalize` | enable | URLs are normalised; when disabled, the keys below have no effect |
| `url-normalize-unreserved` | enable | decodes `%XX` of unreserved characters, and encodes characters that must be encoded |
| `url-normalize-required` | disable | decodes every `%XX` that need not be encoded |
| `url-ctrls-reject` | enable | control characters are refused |
| `url-path-backslash-trans` | disable | `\\` in the path becomes `/` |
| `url-path-2f-decode` | enable | `%2F` in the path becomes `/` |
| `url-path-2f-reject` | disable | `%2F` in the path is refused |
| `url-path-dotseg-remove` | enable | `.` and `..` in the path are resolved |
| `url-path-dotseg-reject` | disable | `.` and `..` in the path are refused |
| `url-query-20-plus` | disable | `%20` in the query becomes `+` |
| `url-invalid-utf8-reject` | enable | bytes that never occur in UTF-8 (C0, C1, F5 to FF) are refused in the URL, plain or as %XX; those of older encodings pass |

A key that decodes or resolves and the one that refuses the same exclude each other: setting both is an
error, and setting only the second switches the first off.

### Feature flags

Keys of `server.feature-flags` that change something:

| key | default | meaning |
|---|---|---|
| `http10.range` | enable | Range is honoured in HTTP/1.0 requests, as in nginx and Apache (lighttpd: disable) |
| `server.absolute-dir-redirect` | disable | the redirect to a directory names scheme and host |
| `server.graceful-shutdown-timeout` | 8 for a stop, 86400 for a reload | seconds that a graceful stop and a reload leave to requests; 0 is no limit |
| `server.http-pathinfo` | enable | a URL may go on after the name of a file (path-info) |
| `server.errorlog-high-precision` | disable | the error log shows nanoseconds |
";

const BACKENDS: &str = "
## Options of a backend

These are for the inner parentheses of `fastcgi.server`, `scgi.server`, `proxy.server` and `ajp13.server`:
`( \".php\" => (( \"socket\" => \"/run/php.sock\", \"read-timeout\" => 60 )) )`. `proxy-core.*` has directives
for some of them, and the defaults for the others.

| option | type | default | meaning |
|---|---|---|---|
";

const NOT_BUILT: &str = "
# Modules that are not built

Petrel knows their directives, so that it can read a configuration that has them. The effect says what
happens to each.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/directives.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/directives.md is out of date: cargo xtask docs"
        );
    }

    #[test]
    fn every_option_of_a_backend_is_there() {
        let text = page();
        for option in HOST_OPTIONS {
            let row = format!("| `{}` | {} |", option.name, option.kind.name());
            assert!(text.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_row_keeps_its_cells() {
        let rows = page();
        let rows = rows.lines().filter(|line| line.starts_with("| `"));
        for row in rows {
            let bars = row.replace("\\|", "").matches('|').count();
            assert!([7, 5, 4].contains(&bars), "{row}");
        }
    }
}
