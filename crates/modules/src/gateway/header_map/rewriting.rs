//! `proxy-core.rewrite-request` and `proxy-core.rewrite-response` of lighttpd 1.5.
//!
//! A rule has a field, or a pseudo field for a part of the request, with one regular expression and a text
//! that replaces the whole value if the expression matches. `$0` to `$9` are groups of the expression, `%0`
//! to `%9` groups of the enclosing condition, as in `url.redirect`.

use petrel_engine::Exchange;
use petrel_engine::config::{BlockId, Captures, Diagnostic, Element, Pattern, Template};
use petrel_engine::settings::Values;

use crate::substitutions;

const REQUEST: &str = "proxy-core.rewrite-request";
const REPLY: &str = "proxy-core.rewrite-response";

/// `proxy-core.rewrite-request` and `proxy-core.rewrite-response`.
#[derive(Debug, Default)]
pub(crate) struct Rewriting {
    request: RewriteRules,
    reply: RewriteRules,
}

#[derive(Debug, Default)]
struct RewriteRules {
    rules: Vec<RewriteRule>,
    /// The condition whose groups `%0` to `%9` are.
    condition: Option<BlockId>,
}

#[derive(Debug)]
struct RewriteRule {
    what: What,
    pattern: Pattern,
    target: Template,
}

/// What a rule changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Uri,
    DocumentRoot,
    PathInfo,
    ScriptName,
    Field(String),
}

impl Rewriting {
    /// Reads both directives.
    ///
    /// # Errors
    /// A rule is not a pair of expression and text, or its expression does not compile.
    pub(crate) fn parse(values: &Values<'_>) -> Result<Rewriting, Diagnostic> {
        Ok(Rewriting {
            request: RewriteRules::parse(values, REQUEST)?,
            reply: RewriteRules::parse(values, REPLY)?,
        })
    }

    /// Whether there are no rules for requests.
    pub(crate) fn is_empty(&self) -> bool {
        self.request.rules.is_empty()
    }

    /// Whether there are rules for replies. If not, [`Rewriting::map_reply`] need not be called.
    pub(crate) fn maps_replies(&self) -> bool {
        !self.reply.rules.is_empty()
    }

    /// `_uri`: the new request target; `None`: unchanged.
    pub(crate) fn uri(&self, exchange: &Exchange, target: &[u8]) -> Option<Vec<u8>> {
        let rewritten = self.request.apply(exchange, &What::Uri, target)?;
        // Other bytes would end the request line early, and a target must begin with a slash.
        let is_sound = rewritten.first() == Some(&b'/')
            && rewritten.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        is_sound.then_some(rewritten)
    }

    /// `_docroot`: the document root that a script is told; `None`: unchanged.
    pub(crate) fn document_root(&self, exchange: &Exchange, root: &[u8]) -> Option<Vec<u8>> {
        self.request.apply(exchange, &What::DocumentRoot, root)
    }

    /// `_pathinfo`: the new PATH_INFO; `None`: unchanged.
    pub(crate) fn path_info(&self, exchange: &Exchange, path_info: &[u8]) -> Option<Vec<u8>> {
        self.request.apply(exchange, &What::PathInfo, path_info)
    }

    /// `_scriptname`: the new SCRIPT_NAME; `None`: unchanged.
    pub(crate) fn script_name(&self, exchange: &Exchange, name: &[u8]) -> Option<Vec<u8>> {
        self.request.apply(exchange, &What::ScriptName, name)
    }

    /// The new value of a request field; `None`: unchanged.
    pub(crate) fn field(&self, exchange: &Exchange, name: &str, value: &[u8]) -> Option<Vec<u8>> {
        self.request.apply_to_field(exchange, name, value)
    }

    /// The new value of a reply field for the client; `None`: unchanged.
    pub(crate) fn map_reply(
        &self,
        exchange: &Exchange,
        name: &str,
        value: &[u8],
    ) -> Option<Vec<u8>> {
        self.reply.apply_to_field(exchange, name, value)
    }
}

impl RewriteRules {
    fn parse(values: &Values<'_>, directive: &str) -> Result<RewriteRules, Diagnostic> {
        let elements = values.array(directive).into_iter().flatten();
        let mut rules = Vec::new();
        for element in elements {
            rules.push(RewriteRule::parse(element, directive)?);
        }
        Ok(RewriteRules {
            rules,
            condition: values.condition_of(directive),
        })
    }

    fn apply_to_field(&self, exchange: &Exchange, name: &str, value: &[u8]) -> Option<Vec<u8>> {
        let is_about = |rule: &&RewriteRule| match &rule.what {
            What::Field(field) => field.eq_ignore_ascii_case(name),
            _ => false,
        };
        let rule = self.rules.iter().find(is_about)?;
        let mut value = self.expand(rule, exchange, value)?;
        // The value must stay one line, even if a group or a variable contained line breaks.
        for byte in &mut value {
            if matches!(byte, b'\r' | b'\n' | b'\0') {
                *byte = b' ';
            }
        }
        Some(value)
    }

    fn apply(&self, exchange: &Exchange, what: &What, value: &[u8]) -> Option<Vec<u8>> {
        let rule = self.rules.iter().find(|rule| rule.what == *what)?;
        self.expand(rule, exchange, value)
    }

    fn expand(&self, rule: &RewriteRule, exchange: &Exchange, value: &[u8]) -> Option<Vec<u8>> {
        let mut groups = Captures::new();
        if !rule.pattern.captures(value, &mut groups) {
            return None;
        }
        Some(substitutions::expand(
            &rule.target,
            groups,
            value,
            self.condition,
            exchange,
        ))
    }
}

impl RewriteRule {
    /// `"Location" => ( "^http://inner/(.*)" => "/$1" )`.
    fn parse(element: &Element, directive: &str) -> Result<RewriteRule, Diagnostic> {
        let wrong = |span| {
            let message = format!("{directive} takes one pair for each field");
            let hint = "such as \"Location\" => ( \"^http://inner/(.*)\" => \"http://outer/$1\" )";
            Diagnostic::error(message, span).with_hint(hint)
        };
        let name = element.key().ok_or_else(|| wrong(element.span))?;
        let pairs = element.value.as_array();
        let pair = pairs
            .filter(|pairs| pairs.len() == 1)
            .and_then(|pairs| pairs.at(0))
            .ok_or_else(|| wrong(element.span))?;
        let (Some(key), Some(target)) = (&pair.key, pair.value.as_str()) else {
            return Err(wrong(pair.span));
        };
        let pattern = Pattern::compile(&key.text).map_err(|error| {
            let message = format!("{:?} is no regular expression: {}", key.text, error.message);
            Diagnostic::error(message, key.span)
        })?;
        Ok(RewriteRule {
            what: What::of(name, directive).ok_or_else(|| {
                let span = element.key.as_ref().map_or(element.span, |key| key.span);
                let message = format!("{directive} cannot change {name:?}");
                Diagnostic::error(message, span).with_hint(
                    "besides fields, requests have _uri, _docroot, _pathinfo and _scriptname",
                )
            })?,
            pattern,
            target: Template::compile(target),
        })
    }
}

impl What {
    fn of(name: &str, directive: &str) -> Option<What> {
        match name {
            _ if !name.starts_with('_') && !name.is_empty() => Some(What::Field(name.to_owned())),
            _ if directive != REQUEST => None,
            "_uri" => Some(What::Uri),
            "_docroot" => Some(What::DocumentRoot),
            "_pathinfo" => Some(What::PathInfo),
            "_scriptname" => Some(What::ScriptName),
            _ => None,
        }
    }
}
