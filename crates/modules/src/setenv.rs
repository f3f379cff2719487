//! mod_setenv: sets request fields, environment variables and response fields by configuration.
//!
//! Values are literal. The rules that apply are chosen when the request gets here first, and kept until the
//! answer is sent. So an error handler neither adds the request fields again nor loses the response fields of
//! the URL that the client asked for. An answer that was made before the request got here has no fields.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect, Element};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase, Purpose};
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::syntax::is_token;
use petrel_engine::response::Response;
use petrel_engine::settings::Values;

const NAME: &str = "mod_setenv";

/// mod_setenv.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: NAME,
    doc: "Adds, replaces and removes request fields, response fields and environment variables.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "setenv.add-request-header", StringMap, Request, "()", Effect::Works,
            "Request fields to add. If the request has the field, the value is appended after a comma.";
        "setenv.add-response-header", StringMap, Request, "()", Effect::Works,
            "Response fields to add, even if the response has a field with that name.";
        "setenv.add-environment", StringMap, Request, "()", Effect::Works,
            "Variables for backends, scripts and logs. If the variable is set, the value is appended after a comma.";
        "setenv.set-request-header", StringMap, Request, "()", Effect::Works,
            "Request fields to set; they replace fields with the same name. An empty value removes the field.";
        "setenv.set-response-header", StringMap, Request, "()", Effect::Works,
            "Response fields to set; they replace fields with the same name. An empty value removes the field.";
        "setenv.set-environment", StringMap, Request, "()", Effect::Works,
            "Variables for backends, scripts and logs to set; they replace variables with the same name.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let rules = Rc::new(SetenvRules::new(configure.values)?);
    // If another scope has rules, a scope without rules needs the hooks as well, to keep that it has none:
    // see the module's documentation.
    if configure.purpose != Purpose::Check && (rules.has_any() || is_used(configure.values)) {
        configure.add(Phase::Authorize, RequestRules(rules));
        configure.add(Phase::Transform, ResponseRules);
    }
    Ok(())
}

fn is_used(values: &Values<'_>) -> bool {
    let mut entries = values
        .config()
        .blocks
        .iter()
        .flat_map(|block| &block.entries);
    entries.any(|entry| entry.name.starts_with("setenv."))
}

/// The rules of one set of settings.
#[derive(Default)]
struct SetenvRules {
    add_request: Vec<Pair>,
    set_request: Vec<Pair>,
    add_environment: Vec<Pair>,
    set_environment: Vec<Pair>,
    /// Added fields in wire form, except those in `add_response`.
    add_response_wire: HeaderBlock,
    /// Added fields that go through [`Response::append`], because the connection acts on them.
    add_response: Vec<Pair>,
    set_response: Vec<Pair>,
}

struct Pair {
    name: Box<str>,
    value: Box<[u8]>,
}

impl SetenvRules {
    fn new(values: &Values<'_>) -> Result<SetenvRules, Diagnostic> {
        let is_not_blank = |pair: &Pair| !pair.value.is_empty();
        let mut rules = SetenvRules {
            add_request: fields(values, "setenv.add-request-header")?,
            set_request: fields(values, "setenv.set-request-header")?,
            add_environment: pairs(values, "setenv.add-environment"),
            set_environment: pairs(values, "setenv.set-environment"),
            set_response: fields(values, "setenv.set-response-header")?,
            ..SetenvRules::default()
        };
        rules.add_request.retain(is_not_blank);
        for pair in fields(values, "setenv.add-response-header")?
            .into_iter()
            .filter(is_not_blank)
        {
            if is_watched(&pair.name) {
                rules.add_response.push(pair);
            } else {
                rules.add_response_wire.append(&pair.name, &pair.value);
            }
        }
        Ok(rules)
    }

    fn has_any(&self) -> bool {
        let lists = [
            &self.add_request,
            &self.set_request,
            &self.add_environment,
            &self.set_environment,
            &self.add_response,
            &self.set_response,
        ];
        lists.iter().any(|list| !list.is_empty()) || !self.add_response_wire.is_empty()
    }

    fn apply_to_request(&self, exchange: &mut Exchange) {
        let head = &mut exchange.request.head;
        for pair in &self.add_request {
            match head.value_of(&pair.name) {
                Some(value) if !value.is_empty() => {
                    let joined = [value, b", ", &pair.value].concat();
                    head.set_field(&pair.name, &joined);
                }
                _ => head.set_field(&pair.name, &pair.value),
            }
        }
        for pair in &self.set_request {
            match pair.value.is_empty() {
                true => head.remove_field(&pair.name),
                false => head.set_field(&pair.name, &pair.value),
            }
        }
        let environment = &mut exchange.environment;
        for pair in &self.add_environment {
            match environment.get(&pair.name) {
                Some(value) if !value.is_empty() => {
                    let joined = [value, b", ", &pair.value].concat();
                    environment.set(&pair.name, &joined);
                }
                _ => environment.set(&pair.name, &pair.value),
            }
        }
        for pair in &self.set_environment {
            environment.set(&pair.name, &pair.value);
        }
    }

    fn apply_to_response(&self, response: &mut Response) {
        response.extend_from_wire(self.add_response_wire.as_bytes());
        for pair in &self.add_response {
            response.append(&pair.name, &pair.value);
        }
        for pair in &self.set_response {
            response.set(&pair.name, &pair.value);
        }
    }
}

struct RequestRules(Rc<SetenvRules>);
struct ResponseRules;

impl Hook for RequestRules {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.kept::<SetenvRules>(NAME).is_none() {
            exchange.keep(NAME, Rc::<SetenvRules>::clone(&self.0));
            self.0.apply_to_request(exchange);
        }
        Outcome::Next
    }
}

impl Hook for ResponseRules {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // As in lighttpd, there are no fields on an answer that came before the first hook: the request was refused
        // while it was read, or a module that is listed before has answered. Nor are there with 416.
        let cause = exchange.response.cause().map(|cause| cause.code);
        if cause != Some(CauseCode::RangeUnsatisfiable)
            && let Some(kept) = exchange.kept::<SetenvRules>(NAME)
        {
            kept.apply_to_response(&mut exchange.response);
        }
        Outcome::Next
    }
}

/// Whether [`Response::append`] has to be called for a field, because the connection writes that field.
fn is_watched(name: &str) -> bool {
    let watched = [
        "connection",
        "content-length",
        "date",
        "server",
        "transfer-encoding",
    ];
    watched
        .iter()
        .any(|watched| name.eq_ignore_ascii_case(watched))
}

fn elements<'c>(values: &Values<'c>, directive: &str) -> impl Iterator<Item = &'c Element> {
    values.array(directive).into_iter().flatten()
}

fn pair(element: &Element) -> Option<Pair> {
    let value = element.value.as_str()?.as_bytes().into();
    Some(Pair {
        name: element.key()?.into(),
        value,
    })
}

fn pairs(values: &Values<'_>, directive: &str) -> Vec<Pair> {
    elements(values, directive).filter_map(pair).collect()
}

/// As for variables, but the names must be valid field names.
fn fields(values: &Values<'_>, directive: &str) -> Result<Vec<Pair>, Diagnostic> {
    let mut keys = elements(values, directive).filter_map(|element| element.key.as_ref());
    if let Some(key) = keys.find(|key| !is_token(key.text.as_bytes())) {
        let message = format!("{:?} cannot be the name of a header field", key.text);
        return Err(Diagnostic::error(message, key.span)
            .with_hint("names are made of letters, digits and hyphens"));
    }
    Ok(pairs(values, directive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};

    fn site(tree: &Tree, config: &str) -> petrel_engine::testing::Site {
        tree.site(config, &[&MODULE, &crate::static_file::MODULE])
    }

    #[test]
    fn request_fields_are_appended_set_and_removed() {
        let tree = Tree::new(&[]);
        let site = site(
            &tree,
            "setenv.add-request-header = (\"X-A\" => \"2\", \"X-New\" => \"n\", \"X-Blank\" => \"\")\n\
             setenv.set-request-header = (\"X-B\" => \"b\", \"X-C\" => \"\")",
        );
        let request = "GET / HTTP/1.1\r\nHost: a\r\nx-a: 1\r\nX-B: 0\r\nx-b: 1\r\nX-C: 0\r\n\r\n";
        let answer = site.request(request);
        let head = &answer.exchange().request.head;
        assert_eq!(head.value_of("X-A"), Some(&b"1, 2"[..]));
        assert_eq!(head.value_of("X-New"), Some(&b"n"[..]));
        assert_eq!(head.fields_named("X-B").collect::<Vec<_>>(), [b"b"]);
        assert_eq!(
            (head.value_of("X-C"), head.value_of("X-Blank")),
            (None, None)
        );
    }

    #[test]
    fn the_environment_is_appended_and_set() {
        let tree = Tree::new(&[]);
        let config = "setenv.add-environment = (\"A\" => \"1\", \"B\" => \"1\")\n\
            setenv.set-environment = (\"B\" => \"2\", \"C\" => \"\")";
        let answer = site(&tree, config).get("/");
        let environment = &answer.exchange().environment;
        assert_eq!(environment.get("A"), Some(&b"1"[..]));
        assert_eq!(environment.get("B"), Some(&b"2"[..]));
        assert_eq!(environment.get("C"), Some(&b""[..]));
    }

    #[test]
    fn response_fields_are_added_set_and_removed() {
        let tree = Tree::new(&[("a.html", "x")]);
        let config = "setenv.add-response-header = (\"X-A\" => \"%1 ${url.path}\", \"X-N\" => \"\")\n\
            setenv.set-response-header = (\"X-C\" => \"c\", \"Last-Modified\" => \"\")";
        let answer = site(&tree, config).get("/a.html");
        // Values are literal, as in lighttpd 1.4.69.
        assert_eq!(answer.field("X-A").as_deref(), Some("%1 ${url.path}"));
        assert_eq!(answer.field("X-C").as_deref(), Some("c"));
        assert_eq!(
            (answer.field("X-N"), answer.field("Last-Modified")),
            (None, None)
        );
    }

    #[test]
    fn what_is_answered_before_has_no_fields() {
        let tree = Tree::new(&[("a.html", "x")]);
        let fields = "setenv.add-response-header = (\"X-A\" => \"1\")\n\
            url.redirect = (\"^/moved\" => \"/a.html\")";
        let (redirect, files) = (&crate::redirect::MODULE, &crate::static_file::MODULE);
        for (modules, of_redirect) in [
            ([redirect, &MODULE, files], None),
            ([&MODULE, redirect, files], Some("1")),
        ] {
            let site = tree.site(fields, &modules);
            let field = |request: &str| site.request(request).field("X-A");
            let get = |target: &str, more: &str| {
                field(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n{more}\r\n"))
            };
            assert_eq!(get("/moved", "").as_deref(), of_redirect);
            assert_eq!(get("/a.html", "").as_deref(), Some("1"));
            assert_eq!(get("/a.html", "Range: bytes=7-\r\n"), None);
        }
    }

    #[test]
    fn errors_get_the_response_fields_too() {
        let tree = Tree::new(&[]);
        let answer = site(&tree, "setenv.add-response-header = (\"X-A\" => \"1\")").get("/none");
        assert_eq!(
            (answer.status(), answer.field("X-A").as_deref()),
            (404, Some("1"))
        );
    }

    #[test]
    fn fields_of_the_connection_are_left_to_it() {
        let tree = Tree::new(&[]);
        let config = "setenv.add-response-header = (\"Connection\" => \"close\", \"Content-Length\" => \"7\",\n\
            \"Server\" => \"s\")";
        let answer = site(&tree, config).get("/");
        assert!(answer.exchange().response.close && answer.exchange().response.own().server);
        assert_eq!(answer.field("Content-Length"), None);
    }

    #[test]
    fn an_error_handler_keeps_what_the_first_url_got() {
        let tree = Tree::new(&[("e.html", "error")]);
        let config = "server.error-handler-404 = \"/e.html\"\n\
            setenv.set-response-header = (\"X-Other\" => \"1\")\n\
            $HTTP[\"url\"] =^ \"/first\" {\n\
              setenv.set-response-header = (\"X-First\" => \"1\")\n\
              setenv.add-request-header = (\"X-Q\" => \"q\")\n\
            }\n\
            $HTTP[\"url\"] == \"/e.html\" { setenv.add-request-header = (\"X-Q\" => \"again\") }";
        let answer = site(&tree, config).get("/first");
        assert_eq!(answer.body(), b"error");
        assert_eq!(answer.field("X-First").as_deref(), Some("1"));
        assert_eq!(answer.field("X-Other"), None);
        assert_eq!(
            answer.exchange().request.head.value_of("X-Q"),
            Some(&b"q"[..])
        );
    }

    #[test]
    fn a_scope_without_rules_keeps_those_of_the_error_handler_out() {
        let tree = Tree::new(&[("e.html", "error")]);
        let config = "server.error-handler-404 = \"/e.html\"\n\
            $HTTP[\"url\"] == \"/e.html\" { setenv.add-response-header = (\"X-Q\" => \"q\") }";
        let site = site(&tree, config);
        assert_eq!(site.get("/none").field("X-Q"), None);
        assert_eq!(site.get("/e.html").field("X-Q").as_deref(), Some("q"));
    }

    #[test]
    fn a_name_that_is_no_field_is_refused_at_its_place() {
        let message = refusal(
            "setenv.add-response-header = (\"A b\" => \"c\")",
            &[&MODULE],
        );
        assert!(
            message.starts_with("test.conf:1:31: error: \"A b\" cannot be"),
            "{message}"
        );
    }
}
