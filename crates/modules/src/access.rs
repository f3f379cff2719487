//! mod_access: answers 403 for URLs that are denied.
//!
//! Rules are suffixes. They are applied twice: to the URL path before anything is looked up, and to the file
//! that is about to be opened, when path-info was split off and an index file was chosen. The second time is
//! after all other modules, wherever `server.modules` has this one, so that neither `/secret.inc/x` nor a
//! directory with a denied index file can evade a rule.

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;
use std::rc::Rc;

/// mod_access.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_access",
    doc: "Denies access to URLs with certain suffixes.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "url.access-deny", List, Request, "()", Effect::Works,
            "Suffixes. A request gets 403 if the path of its URL, or of the file that the URL leads to, ends with one of them. An empty suffix matches everything.";
        "url.access-allow", List, Request, "()", Effect::Works,
            "Suffixes. A request gets 403 unless the path of its URL ends with one of them. Takes precedence over url.access-deny.";
        "access.deny-all", Bool, Request, "disable", Effect::Works,
            "Answer 403 to everything (lighttpd 1.5).";
        "access.answer-status", Short, Request, "unset", Effect::Works,
            "Answer everything with this status: 200, 204, or an error from 400 to 599, with its error page (server.errorfile-prefix). For maintenance, and for health checks. Petrel's own.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    if values.bool("access.deny-all").unwrap_or(false) {
        for phase in EVERYTHING {
            configure.add(phase, DenyAll);
        }
        return Ok(());
    }
    if let Some(status) = fixed_status(values)? {
        for phase in EVERYTHING {
            configure.add(phase, FixedStatus(status));
        }
        return Ok(());
    }
    let ignores_case = values
        .bool("server.force-lowercase-filenames")
        .unwrap_or(false);
    let list = |name: &str| Suffixes::new(&values.strings(name), ignores_case);
    let rules = Rc::new(match list("url.access-allow") {
        allowed if !allowed.is_empty() => AccessRules::Allow(allowed),
        _ => AccessRules::Deny(list("url.access-deny")),
    });
    if matches!(&*rules, AccessRules::Deny(denied) if denied.is_empty()) {
        return Ok(());
    }
    configure.add(Phase::Authorize, UrlRule(Rc::clone(&rules)));
    configure.add_last(Phase::Resolved, FileRule(rules));
    Ok(())
}

/// What counts for all requests is asked a second time, because a condition on the path of the file is known only then.
const EVERYTHING: [Phase; 2] = [Phase::Authorize, Phase::Resolved];

fn fixed_status(values: &Values<'_>) -> Result<Option<Status>, Diagnostic> {
    const NAME: &str = "access.answer-status";
    match values.integer(NAME) {
        None => Ok(None),
        Some(status @ (200 | 204 | 400..=599)) => Ok(u16::try_from(status).ok().map(Status)),
        Some(status) => Err(values
            .error(
                NAME,
                format!("{NAME}: {status} is none of 200, 204 and 400 to 599"),
            )
            .with_hint("url.redirect answers with 301 and other redirects")),
    }
}

enum AccessRules {
    Allow(Suffixes),
    Deny(Suffixes),
}

/// Suffixes of paths.
struct Suffixes {
    list: Vec<Box<[u8]>>,
    ignores_case: bool,
}

struct DenyAll;
struct FixedStatus(Status);
struct UrlRule(Rc<AccessRules>);
struct FileRule(Rc<AccessRules>);

impl Hook for DenyAll {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        refuse(exchange, CauseCode::AccessDenied, "access.deny-all")
    }
}

impl Hook for FixedStatus {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        exchange.answer_as_told(self.0)
    }
}

impl Hook for UrlRule {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = exchange.request.url.path();
        match &*self.0 {
            AccessRules::Allow(allowed) if !allowed.match_end_of(path) => not_allowed(exchange),
            AccessRules::Deny(denied) if denied.match_end_of(path) => is_denied(exchange),
            _ => Outcome::Next,
        }
    }
}

impl Hook for FileRule {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = exchange.request.url.path();
        let info = exchange.physical.path_info.len();
        let path = path.get(..path.len().saturating_sub(info)).unwrap_or(path);
        match &*self.0 {
            AccessRules::Allow(allowed) if !allowed.match_end_of(path) => not_allowed(exchange),
            AccessRules::Deny(denied)
                if denied.match_end_of(path) || denied.match_end_of(&exchange.physical.path) =>
            {
                is_denied(exchange)
            }
            _ => Outcome::Next,
        }
    }
}

impl Suffixes {
    fn new(list: &[&str], ignores_case: bool) -> Suffixes {
        let list = list.iter().map(|suffix| suffix.as_bytes().into()).collect();
        Suffixes { list, ignores_case }
    }

    fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn match_end_of(&self, path: &[u8]) -> bool {
        self.list.iter().any(|suffix| {
            let end = path
                .len()
                .checked_sub(suffix.len())
                .and_then(|start| path.get(start..));
            end.is_some_and(|end| match self.ignores_case {
                true => end.eq_ignore_ascii_case(suffix),
                false => *end == **suffix,
            })
        })
    }
}

fn not_allowed(exchange: &mut Exchange) -> Outcome {
    refuse(exchange, CauseCode::AccessNotAllowed, "url.access-allow")
}

fn is_denied(exchange: &mut Exchange) -> Outcome {
    refuse(exchange, CauseCode::AccessDenied, "url.access-deny")
}

fn refuse(exchange: &mut Exchange, cause: CauseCode, directive: &str) -> Outcome {
    let outcome = exchange.fail(cause);
    if exchange.settings.core.debug.request_handling {
        let path = String::from_utf8_lossy(exchange.request.url.path());
        exchange.log_error(
            "authorize",
            format_args!("denied by {directive} path={path:?}"),
        );
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn statuses(files: &[(&str, &str)], config: &str, targets: &[&str]) -> Vec<u16> {
        let modules = [
            &MODULE,
            &crate::alias::MODULE,
            &crate::index_file::MODULE,
            &crate::static_file::MODULE,
        ];
        let tree = Tree::new(files);
        let site = tree.site(config, &modules);
        targets
            .iter()
            .map(|target| site.get(target).status())
            .collect()
    }

    const FILES: &[(&str, &str)] = &[
        ("a.inc", "s"),
        ("b.txt~", "s"),
        ("x.css", "c"),
        ("index.php", "p"),
        ("d/x.html", "h"),
    ];

    #[test]
    fn suffixes_are_denied_in_their_letter_case() {
        let config = "url.access-deny = (\".inc\", \"~\")";
        let targets = ["/a.inc", "/b.txt~", "/%61%2einc", "/a.INC", "/x.css"];
        assert_eq!(statuses(FILES, config, &targets), [403, 403, 403, 404, 200]);
    }

    #[test]
    fn the_empty_suffix_and_deny_all_deny_everything() {
        for config in ["url.access-deny = (\"\")", "access.deny-all = \"enable\""] {
            assert_eq!(
                statuses(FILES, config, &["/x.css", "/", "/none"]),
                [403, 403, 403]
            );
        }
    }

    #[test]
    fn everything_gets_the_configured_status() {
        for status in [200, 204, 404, 503] {
            let config = format!("access.answer-status = {status}");
            let answered = statuses(FILES, &config, &["/x.css", "/", "/none"]);
            assert_eq!(answered, [status; 3]);
        }
        let tree = Tree::new(&[("503.html", "closed until noon")]);
        let prefix = tree.path("");
        let config = format!("access.answer-status = 503\nserver.errorfile-prefix = \"{prefix}\"");
        let closed = tree.site(&config, &[&MODULE]);
        assert_eq!(closed.get("/x.css").body(), b"closed until noon");
    }

    #[test]
    fn redirects_and_what_is_no_status_are_refused() {
        for status in [0, 100, 301, 304, 600] {
            let config = format!("access.answer-status = {status}");
            let error = crate::testing::refusal(&config, &[&MODULE]);
            assert!(
                error.contains("is none of 200, 204 and 400 to 599"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_asked_of_the_server_as_a_whole_is_denied_too() {
        let request = "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n";
        let status = |config: &str| {
            Tree::new(&[])
                .site(config, &[&MODULE])
                .request(request)
                .status()
        };
        assert_eq!((status(""), status("url.access-deny = (\"\")")), (200, 403));
    }

    #[test]
    fn letter_case_does_not_matter_when_file_names_are_lowered() {
        let config = "server.force-lowercase-filenames = \"enable\"\nurl.access-deny = (\".Inc\")";
        assert_eq!(
            statuses(FILES, config, &["/a.inc", "/A.INC", "/X.css"]),
            [403, 403, 200]
        );
    }

    #[test]
    fn path_info_does_not_lead_around() {
        let config = "url.access-deny = (\".inc\")";
        assert_eq!(
            statuses(FILES, config, &["/a.inc/", "/a.inc/x", "/a.inc/.."]),
            [403, 403, 403]
        );
    }

    #[test]
    fn an_index_file_is_denied_in_any_order_of_modules() {
        for order in [
            "\"mod_access\", \"mod_indexfile\"",
            "\"mod_indexfile\", \"mod_access\"",
        ] {
            let config = format!(
                "server.modules = ({order})\nindex-file.names = (\"index.php\")\nurl.access-deny = (\".php\")"
            );
            assert_eq!(
                statuses(FILES, &config, &["/", "/index.php", "/x.css"]),
                [403, 403, 200]
            );
        }
    }

    #[test]
    fn an_alias_does_not_lead_around() {
        let config = "alias.url = (\"/open\" => \"ROOT/a.inc\")\nurl.access-deny = (\".inc\")";
        assert_eq!(statuses(FILES, config, &["/open"]), [403]);
    }

    #[test]
    fn allow_denies_the_rest_and_wins() {
        let config = "url.access-allow = (\".css\", \"/\")\nurl.access-deny = (\"x.css\")\n\
            index-file.names = (\"x.html\", \"x.css\")";
        let targets = ["/x.css", "/a.inc", "/", "/d/"];
        // The index file of /d/ is not allowed.
        assert_eq!(statuses(FILES, config, &targets), [200, 403, 200, 403]);
    }

    #[test]
    fn rules_obey_conditions() {
        let config = "$HTTP[\"host\"] == \"b.example\" { url.access-deny = (\".inc\") }";
        assert_eq!(statuses(FILES, config, &["/a.inc"]), [200]);
    }
}
