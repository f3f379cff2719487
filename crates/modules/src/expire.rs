//! mod_expire: says how long clients and caches may keep an answer.
//!
//! The first matching prefix of the URL path counts, otherwise the first matching prefix of the content type,
//! in the order of the configuration. HTTP/1.1 clients get Cache-Control, HTTP/1.0 clients Expires. An answer
//! that has a Cache-Control field already is not changed.

use std::io::Write;

use petrel_engine::Exchange;
use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Diagnostic, Effect, Element};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::date;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::Version;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;

use crate::content_types;

/// mod_expire.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_expire",
    doc: "Says how long clients and caches may keep an answer.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "expire.url", StringMap, Request, "()", Effect::Works,
            "URL prefixes, each with a time such as \"access plus 1 hours 30 minutes\" or \"modification 7 days\". The first prefix that matches counts. A month has 30 days, a year 365.";
        "expire.mimetypes", StringMap, Request, "()", Effect::Works,
            "Prefixes of content types, with or without a star at the end, each with a time as in expire.url. They apply to URLs that expire.url does not match. text/javascript and application/javascript are one, unless both are listed. An empty prefix matches every type, and answers without a type.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let by_url = rules(configure.values, "expire.url", |key| key)?;
    let by_type = rules_of_types(configure.values)?;
    if !by_url.is_empty() || !by_type.is_empty() {
        configure.add(Phase::Transform, Expire { by_url, by_type });
    }
    Ok(())
}

fn without_star(key: &str) -> &str {
    key.strip_suffix('*').unwrap_or(key)
}

struct Expire {
    by_url: Vec<ExpireRule>,
    by_type: Vec<ExpireRule>,
}

struct ExpireRule {
    prefix: Box<[u8]>,
    since: Since,
    seconds: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Access,
    Modification,
}

impl Hook for Expire {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if is_cacheable(exchange)
            && let Some(rule) = self.rule(exchange)
            && let Some(seconds) = rule.seconds_left(exchange)
        {
            write_field(exchange, seconds);
        }
        Outcome::Next
    }
}

impl Expire {
    fn rule(&self, exchange: &Exchange) -> Option<&ExpireRule> {
        let first = |rules: &'_ [ExpireRule], text: &[u8]| {
            rules.iter().position(|rule| text.starts_with(&rule.prefix))
        };
        if let Some(position) = first(&self.by_url, exchange.request.url.path()) {
            return self.by_url.get(position);
        }
        let content_type = exchange.response.get("Content-Type").unwrap_or_default();
        self.by_type.get(first(&self.by_type, content_type)?)
    }
}

impl ExpireRule {
    /// Seconds from now on. `None` if the rule needs a modification time and there is none.
    fn seconds_left(&self, exchange: &Exchange) -> Option<u64> {
        let since_now = match self.since {
            Since::Access => 0,
            Since::Modification => {
                let file = exchange
                    .physical
                    .file
                    .as_ref()
                    .filter(|file| file.kind().exists())?;
                let modified = i64::try_from(file.stat().modified_s).unwrap_or(i64::MAX);
                let now = i64::try_from(exchange.worker.clock().wall_seconds()).unwrap_or(i64::MAX);
                modified.saturating_sub(now)
            }
        };
        Some(u64::try_from(since_now.saturating_add(self.seconds)).unwrap_or(0))
    }
}

/// As in lighttpd: complete and partial answers to GET and HEAD.
fn is_cacheable(exchange: &Exchange) -> bool {
    matches!(
        exchange.response.status,
        Status::OK | Status::PARTIAL_CONTENT
    ) && matches!(exchange.request.method, Method::Get | Method::Head)
        && exchange.response.get("Cache-Control").is_none()
}

fn write_field(exchange: &mut Exchange, seconds: u64) {
    let is_http11 = exchange.settings.core.http11;
    if is_http11 && exchange.request.head.version() >= Version::Http11 {
        let mut field = [0; MAX_AGE_LENGTH_MAX];
        let mut rest = &mut field[..];
        // The buffer is long enough for every number.
        let _ = write!(rest, "max-age={seconds}");
        let length = MAX_AGE_LENGTH_MAX - rest.len();
        exchange
            .response
            .append("Cache-Control", field.get(..length).unwrap_or_default());
    } else {
        let mut expires = [0; 29];
        let when = exchange
            .worker
            .clock()
            .wall_seconds()
            .saturating_add(seconds);
        date::format_imf(when.min(date::UNIX_SECONDS_MAX), &mut expires);
        exchange.response.set("Expires", &expires);
    }
}

const MAX_AGE_LENGTH_MAX: usize = "max-age=18446744073709551615".len();

fn rules(
    values: &Values<'_>,
    directive: &str,
    prefix_of: fn(&str) -> &str,
) -> Result<Vec<ExpireRule>, Diagnostic> {
    let rule = |element: &Element| {
        let text = element.value.as_str().unwrap_or_default();
        let (since, seconds) = parse(text).map_err(|wrong| wrong.at(text, element))?;
        let prefix = prefix_of(element.key().unwrap_or_default())
            .as_bytes()
            .into();
        Ok(ExpireRule {
            prefix,
            since,
            seconds,
        })
    };
    values
        .array(directive)
        .into_iter()
        .flatten()
        .map(rule)
        .collect()
}

/// The rules of a list of content types. One for JavaScript by one of its names is for the other name, too.
fn rules_of_types(values: &Values<'_>) -> Result<Vec<ExpireRule>, Diagnostic> {
    let mut rules = rules(values, "expire.mimetypes", without_star)?;
    let other_name = |rule: &ExpireRule| {
        let name = std::str::from_utf8(&rule.prefix).ok()?;
        content_types::other_name(name).map(str::as_bytes)
    };
    let missing = rules.iter().enumerate().find_map(|(index, rule)| {
        let other = other_name(rule)?;
        let is_listed = rules.iter().any(|rule| *rule.prefix == *other);
        (!is_listed).then_some((index, other, rule.since, rule.seconds))
    });
    if let Some((index, other, since, seconds)) = missing {
        let prefix = other.into();
        rules.insert(
            index,
            ExpireRule {
                prefix,
                since,
                seconds,
            },
        );
    }
    Ok(rules)
}

/// Why a time is invalid.
#[derive(Debug, PartialEq, Eq)]
enum Wrong<'t> {
    Start,
    Number(&'t str),
    UnitMissing(&'t str),
    Unit(&'t str),
}

impl Wrong<'_> {
    fn at(&self, text: &str, element: &Element) -> Diagnostic {
        let message = match self {
            Wrong::Start => format!("{text:?} does not begin with access, now or modification"),
            Wrong::Number(word) => format!("{word:?} is not a whole number"),
            Wrong::UnitMissing(number) => format!("there is no unit of time after {number:?}"),
            Wrong::Unit(word) => format!("{word:?} is not a unit of time"),
        };
        let hint = match self {
            Wrong::Unit(word) => nearest(word, UNITS.iter().map(|(unit, _)| *unit))
                .first()
                .copied(),
            _ => None,
        };
        Diagnostic::error(message, element.span).with_hint(match hint {
            Some(unit) => format!("did you mean {unit:?}?"),
            None => "a time is written as in \"access plus 1 hours 30 minutes\"".to_owned(),
        })
    }
}

/// `(access|now|modification) [plus] {NUMBER UNIT}...`
fn parse(text: &str) -> Result<(Since, i64), Wrong<'_>> {
    let mut words = text.split_ascii_whitespace().peekable();
    let since = match words.next() {
        Some("access" | "now") => Since::Access,
        Some("modification") => Since::Modification,
        _ => return Err(Wrong::Start),
    };
    words.next_if_eq(&"plus");
    let mut seconds = 0i64;
    let mut word = words.next().unwrap_or_default();
    loop {
        let number: i64 = word.parse().map_err(|_| Wrong::Number(word))?;
        let unit = words.next().ok_or(Wrong::UnitMissing(word))?;
        let length = seconds_of(unit).ok_or(Wrong::Unit(unit))?;
        seconds = seconds.saturating_add(number.saturating_mul(length));
        match words.next() {
            Some(next) => word = next,
            None => return Ok((since, seconds)),
        }
    }
}

fn seconds_of(unit: &str) -> Option<i64> {
    let is = |known: &str| known == unit || known.strip_suffix('s') == Some(unit);
    UNITS
        .iter()
        .find(|(known, _)| is(known))
        .map(|(_, seconds)| *seconds)
}

/// The units in the plural; the singular is accepted as well.
const UNITS: [(&str, i64); 9] = [
    ("seconds", 1),
    ("secs", 1),
    ("minutes", 60),
    ("mins", 60),
    ("hours", 3600),
    ("days", 86_400),
    ("weeks", 7 * 86_400),
    ("months", 30 * 86_400),
    ("years", 365 * 86_400),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};
    use petrel_engine::testing::Site;

    fn site(tree: &Tree, config: &str) -> Site {
        let modules = [
            &crate::index_file::MODULE,
            &crate::setenv::MODULE,
            &MODULE,
            &crate::static_file::MODULE,
        ];
        let types = "mimetype.assign = (\".html\" => \"text/html\", \".css\" => \"text/css\")";
        tree.site(
            &format!("{types}\nindex-file.names = (\"i.html\")\n{config}"),
            &modules,
        )
    }

    fn tree() -> Tree {
        Tree::new(&[
            ("i.html", "i"),
            ("x.css", "x"),
            ("none", "n"),
            ("d/y.css", "y"),
        ])
    }

    fn cache_control(config: &str, target: &str) -> Option<String> {
        site(&tree(), config).get(target).field("Cache-Control")
    }

    /// As in lighttpd: rules that apply to the answer see the path with the index file and without path-info.
    #[test]
    fn a_condition_on_the_url_sees_the_file() {
        let config = "$HTTP[\"url\"] =~ \"\\.html$\" { expire.url = (\"\" => \"now 1 hours\") }";
        let tree = tree();
        let site = site(&tree, config);
        for (target, expires) in [
            ("/", true),
            ("/i.html", true),
            ("/i.html/info", true),
            ("/x.css", false),
            ("/x.css/i.html", false),
        ] {
            let answer = site.get(target);
            assert_eq!(answer.status(), 200, "{target}");
            let expected = expires.then(|| "max-age=3600".to_owned());
            assert_eq!(answer.field("Cache-Control"), expected, "{target}");
        }
    }

    #[test]
    fn javascript_has_two_names() {
        let tree = Tree::new(&[("a.js", "x")]);
        for (listed, field) in [
            ("\"application/javascript\" => \"now 5 secs\"", "max-age=5"),
            ("\"text/javascript\" => \"now 5 secs\"", "max-age=5"),
            (
                "\"application/javascript\" => \"now 5 secs\", \"text/javascript\" => \"now 6 secs\"",
                "max-age=6",
            ),
        ] {
            let config = format!(
                "mimetype.assign = ( \".js\" => \"application/javascript\" )\nexpire.mimetypes = ( {listed} )"
            );
            let answer = tree
                .site(&config, &[&MODULE, &crate::static_file::MODULE])
                .get("/a.js");
            assert_eq!(
                answer.field("Content-Type").as_deref(),
                Some("text/javascript")
            );
            assert_eq!(
                answer.field("Cache-Control").as_deref(),
                Some(field),
                "{listed}"
            );
        }
    }

    #[test]
    fn times_are_read() {
        assert_eq!(
            parse("access plus 1 hours 2 minutes"),
            Ok((Since::Access, 3720))
        );
        assert_eq!(parse("now 0 seconds"), Ok((Since::Access, 0)));
        assert_eq!(
            parse("modification 1 year 1 month "),
            Ok((Since::Modification, 395 * 86_400))
        );
        assert_eq!(parse("access -5 secs"), Ok((Since::Access, -5)));
        assert_eq!(
            parse("access 9223372036854775807 years"),
            Ok((Since::Access, i64::MAX))
        );
    }

    #[test]
    fn wrong_times_are_named() {
        for text in ["", "now1 days", "Access 1 days"] {
            assert_eq!(parse(text), Err(Wrong::Start), "{text}");
        }
        for (text, word) in [("access", ""), ("now x days", "x"), ("access plus", "")] {
            assert_eq!(parse(text), Err(Wrong::Number(word)), "{text}");
        }
        assert_eq!(parse("now plus 1"), Err(Wrong::UnitMissing("1")));
        assert_eq!(parse("now 1 fortnight"), Err(Wrong::Unit("fortnight")));
    }

    #[test]
    fn wrong_times_are_refused_at_their_place() {
        let message = refusal("expire.url = (\"/\" => \"access 1 ours\")", &[&MODULE]);
        assert!(
            message.starts_with("test.conf:1:22: error: \"ours\" is not a unit"),
            "{message}"
        );
        assert!(message.contains("did you mean \"hours\"?"), "{message}");
    }

    #[test]
    fn the_first_url_prefix_counts() {
        let config = "expire.url = (\"/d/\" => \"now 1 days\", \"/\" => \"now 1 hours\", \"/x\" => \"now 1 secs\")";
        assert_eq!(
            cache_control(config, "/x.css").as_deref(),
            Some("max-age=3600")
        );
        assert_eq!(
            cache_control(config, "/d/y.css").as_deref(),
            Some("max-age=86400")
        );
    }

    #[test]
    fn the_url_is_that_of_the_index_file() {
        let config = "expire.url = (\"/i.html\" => \"access 10 seconds\")";
        assert_eq!(cache_control(config, "/").as_deref(), Some("max-age=10"));
    }

    #[test]
    fn content_types_count_where_no_url_does() {
        let config = "expire.url = (\"/i\" => \"now 1 seconds\")\n\
            expire.mimetypes = (\"text/*\" => \"now 2 seconds\", \"text/css\" => \"now 3 seconds\")";
        assert_eq!(
            cache_control(config, "/x.css").as_deref(),
            Some("max-age=2")
        );
        assert_eq!(
            cache_control(config, "/i.html").as_deref(),
            Some("max-age=1")
        );
        assert_eq!(cache_control(config, "/none"), None);
    }

    #[test]
    fn a_time_that_is_over_is_zero() {
        let config = "expire.url = (\"/\" => \"modification -1 days\")";
        assert_eq!(
            cache_control(config, "/x.css").as_deref(),
            Some("max-age=0")
        );
    }

    #[test]
    fn modification_counts_from_the_file() {
        let tree = tree();
        let config = "expire.url = (\"/\" => \"modification 100 days\")";
        let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        let file = std::fs::File::options()
            .write(true)
            .open(tree.path("x.css"))
            .expect("it is there");
        file.set_modified(hour_ago).expect("the owner may");
        let field = site(&tree, config)
            .get("/x.css")
            .field("Cache-Control")
            .expect("a field");
        let seconds: u64 = field
            .trim_start_matches("max-age=")
            .parse()
            .expect("a number");
        let expected = 100 * 86_400 - 3600;
        assert!((expected - 60..=expected).contains(&seconds), "{seconds}");
    }

    #[test]
    fn old_clients_get_expires() {
        let tree = tree();
        let site = site(&tree, "expire.url = (\"/\" => \"access 1 days\")");
        let answer = site.request("GET /none HTTP/1.0\r\n\r\n");
        assert_eq!(answer.field("Cache-Control"), None);
        let expires = answer
            .field("Expires")
            .and_then(|text| date::parse(text.as_bytes()));
        let expected = site.worker().clock().wall_seconds() + 86_400;
        assert!(
            expires.is_some_and(|time| time.abs_diff(expected) <= 60),
            "{expires:?}"
        );
    }

    #[test]
    fn only_whole_answers_to_get_and_head_are_marked() {
        let tree = tree();
        let site = site(&tree, "expire.url = (\"\" => \"access 1 days\")");
        let field = |request: &str| {
            let fields = "Host: a\r\nContent-Length: 0";
            let answer = site.request(&format!("{request} HTTP/1.1\r\n{fields}\r\n\r\n"));
            answer.field("Cache-Control").is_some()
        };
        assert!(field("GET /none") && field("HEAD /none"));
        assert!(!field("GET /missing") && !field("OPTIONS /none") && !field("POST /none"));
    }

    #[test]
    fn a_field_that_is_there_stays() {
        let config = "expire.url = (\"/\" => \"now 1 days\")\n\
            setenv.set-response-header = (\"cache-control\" => \"no-store\")";
        assert_eq!(cache_control(config, "/none").as_deref(), Some("no-store"));
    }
}
