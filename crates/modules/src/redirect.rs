//! mod_redirect: redirects clients to another URL.
//!
//! Rules are regular expressions over the normalised target, which is path and query. They are tried in the
//! order of the configuration; the first match counts. An empty target ends the search without a redirect.

use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::config::{BlockId, Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::Version;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;

use crate::cml::trigger;
use crate::url_rules::{TooManySteps, UrlRules};

/// mod_redirect.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_redirect",
    doc: "Redirects clients to another URL.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "url.redirect", StringMap, Request, "()", Effect::Works,
            "Regular expressions over path and query, each with the URL to redirect to. $0 to $9 are groups of the expression, %0 to %9 groups of the enclosing condition; ${url.path}, ${qsa} and the like are parts of the request's URL. The first match counts; an empty URL means no redirect.";
        "url.redirect-code", Short, Request, "301, or 308 for methods other than GET and HEAD over HTTP/1.1", Effect::Works,
            "The status of redirects.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let status = status(values)?;
    let Some(block) = values.block_of("url.redirect") else {
        return Ok(());
    };
    let rules = values.config().compiled("url.redirect", block, || {
        let elements = values.array("url.redirect").into_iter().flatten();
        UrlRules::compile(values, elements)
    })?;
    if !rules.is_empty() {
        let condition = values.condition_of("url.redirect");
        configure.add(
            Phase::Authorize,
            Redirect {
                rules,
                status,
                condition,
            },
        );
    }
    Ok(())
}

fn status(values: &Values<'_>) -> Result<Option<Status>, Diagnostic> {
    match values.integer("url.redirect-code") {
        None | Some(0) => Ok(None),
        Some(code @ 200..=599) => Ok(u16::try_from(code).ok().map(Status)),
        Some(code) => Err(values
            .error(
                "url.redirect-code",
                format!("{code} is no status that an answer can have"),
            )
            .with_hint("usual are 301, 302, 303, 307 and 308")),
    }
}

struct Redirect {
    rules: Arc<UrlRules>,
    status: Option<Status>,
    /// The condition whose groups `%0` to `%9` are.
    condition: Option<BlockId>,
}

impl Hook for Redirect {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if trigger::has_led_here(exchange) {
            return Outcome::Next;
        }
        let location = match self.rules.replace(exchange, self.condition) {
            Ok(Some(replacement)) if !replacement.text.is_empty() => replacement.text,
            Ok(_) => return Outcome::Next,
            Err(TooManySteps(outcome)) => return outcome,
        };
        let status = self.status.unwrap_or_else(|| default_status(exchange));
        exchange.response.answer_as_told(status);
        exchange.response.set("Location", &location);
        Outcome::Answer
    }
}

/// 308 preserves method and body, which 301 does not guarantee (RFC 9110 15.4.2). HTTP/1.0 clients do not
/// know 308.
fn default_status(exchange: &Exchange) -> Status {
    let head = &exchange.request.head;
    match exchange.request.method {
        Method::Get | Method::Head => Status::MOVED_PERMANENTLY,
        _ if head.version() >= Version::Http11 => Status::PERMANENT_REDIRECT,
        _ => Status::MOVED_PERMANENTLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::refusal;
    use petrel_engine::testing::{Answer, Site};

    fn site(config: &str) -> Site {
        Site::new(
            &format!("server.document-root = \"/nonexistent\"\n{config}"),
            &[&MODULE],
        )
    }

    fn sent_to(config: &str, target: &str) -> Option<String> {
        site(config).get(target).field("Location")
    }

    fn request(config: &str, request_line: &str) -> Answer {
        site(config).request(&format!("{request_line}\r\nHost: a.example\r\n\r\n"))
    }

    #[test]
    fn groups_and_parts_are_filled_in() {
        let config = "url.redirect = (\"^/a(.*)$\" => \
            \"http://b/$1?${url.path}|${url.query}|${url.scheme}|${url.authority}|${url.port}${qsa}\")";
        // As lighttpd 1.4.69 answers, except for the port.
        assert_eq!(
            sent_to(config, "/abc?q=1").as_deref(),
            Some("http://b/bc?q=1?/abc|q=1|http|a.example|80&q=1")
        );
    }

    /// As lighttpd 1.4.69 answers.
    #[test]
    fn the_sign_of_an_empty_query_stays() {
        let config = "url.redirect = (\"^/q\" => \"/b${qsa}\", \"^/r\" => \"/b?c${qsa}\")";
        for (target, location) in [
            ("/q", "/b"),
            ("/q?", "/b?"),
            ("/q?x", "/b?x"),
            ("/r?", "/b?c"),
        ] {
            assert_eq!(sent_to(config, target).as_deref(), Some(location));
        }
    }

    #[test]
    fn a_rule_may_match_the_server_as_a_whole() {
        for rule in ["^[*]$", ""] {
            let config = format!("url.redirect = (\"{rule}\" => \"/b\")");
            assert_eq!(request(&config, "OPTIONS * HTTP/1.1").status(), 308);
        }
        let other = "url.redirect = (\"^/\" => \"/b\")";
        assert_eq!(request(other, "OPTIONS * HTTP/1.1").status(), 200);
    }

    #[test]
    fn the_normalised_target_is_matched() {
        let config = "url.redirect = (\"^/c(.*)\" => \"/c2/$1$$%%$x\")";
        let location = sent_to(config, "/a%20b/../c/%41%2f?x=%20y");
        assert_eq!(location.as_deref(), Some("/c2//A/?x=%20y$%$x"));
    }

    #[test]
    fn groups_of_the_enclosing_condition_are_filled_in() {
        let config = "$HTTP[\"host\"] =~ \"^(.)\\.(.*)\" { $HTTP[\"url\"] =^ \"/\" {\n\
            url.redirect = (\"^/(.)\" => \"http://%2/%1/$1\") } }";
        assert_eq!(sent_to(config, "/x").as_deref(), Some("http://example/a/x"));
    }

    #[test]
    fn the_first_match_counts_and_an_empty_target_ends_the_search() {
        let config =
            "url.redirect = (\"^/no\" => \"\", \"^/n\" => \"/first\", \"^/\" => \"/second\")";
        assert_eq!(sent_to(config, "/nx").as_deref(), Some("/first"));
        assert_eq!(sent_to(config, "/x").as_deref(), Some("/second"));
        assert_eq!(request(config, "GET /nox HTTP/1.1").status(), 404);
    }

    #[test]
    fn the_status_keeps_the_method() {
        let config = "url.redirect = (\"^/\" => \"/x\")";
        for (line, status) in [
            ("GET / HTTP/1.1", 301),
            ("HEAD / HTTP/1.1", 301),
            ("POST / HTTP/1.1", 308),
            ("POST / HTTP/1.0", 301),
        ] {
            let line = line.replace("POST /", "PUT /");
            assert_eq!(request(config, &line).status(), status, "{line}");
        }
    }

    #[test]
    fn a_configured_status_is_for_all_methods() {
        let config = "url.redirect-code = 307\nurl.redirect = (\"^/\" => \"/x\")";
        assert_eq!(request(config, "GET / HTTP/1.1").status(), 307);
        assert_eq!(request(config, "DELETE / HTTP/1.1").status(), 307);
    }

    #[test]
    fn a_location_cannot_split_the_response() {
        let config = "server.http-parseopts = (\"url-ctrls-reject\" => \"disable\")\n\
            url.redirect = (\"^/(.*)\" => \"/x/${noesc:1}\")";
        let answer = request(config, "GET /a%0d%0aSet-Cookie:x HTTP/1.1");
        assert_eq!(
            answer.fields().matches("\r\n").count(),
            1,
            "{}",
            answer.fields()
        );
    }

    #[test]
    fn wrong_values_are_refused_at_their_place() {
        let message = refusal("url.redirect = (\"^/(\" => \"/x\")", &[&MODULE]);
        assert!(
            message.starts_with("test.conf:1:17: error: \"^/(\" is no regular"),
            "{message}"
        );
        let message = refusal("url.redirect-code = 100", &[&MODULE]);
        assert!(
            message.starts_with("test.conf:1:21: error: 100 is no status"),
            "{message}"
        );
    }
}
