//! Expands substitutions in the texts of rules: groups of the rule and of the enclosing condition, and parts
//! of the request's URL. Used by the rules of mod_redirect and mod_rewrite, and by those that rewrite fields
//! for backends.

use petrel_engine::Exchange;
use petrel_engine::config::{BlockId, Captures, Lookup, Template, UrlPart};

/// Expands `template` for a request. The rule has found `groups` in `value`, and is in the block `condition`
/// of the request's settings.
pub(crate) fn expand(
    template: &Template,
    groups: Captures,
    value: &[u8],
    condition: Option<BlockId>,
    exchange: &Exchange,
) -> Vec<u8> {
    let condition = condition.filter(|_| template.uses_condition_groups());
    let values = TemplateValues {
        groups,
        value,
        condition: condition.map(|block| exchange.captures_of(block)),
        exchange,
    };
    let mut out = Vec::new();
    template.expand(&values, &mut out);
    out
}

/// The values of substitutions.
struct TemplateValues<'e> {
    groups: Captures,
    value: &'e [u8],
    condition: Option<(Captures, Vec<u8>)>,
    exchange: &'e Exchange,
}

impl Lookup for TemplateValues<'_> {
    fn rule_group(&self, number: u8) -> &[u8] {
        self.groups.group(number.into(), self.value)
    }

    fn condition_group(&self, number: u8) -> &[u8] {
        let condition = self.condition.as_ref();
        condition.map_or(b"", |(groups, value)| groups.group(number.into(), value))
    }

    fn url_part(&self, part: UrlPart) -> &[u8] {
        let request = &self.exchange.request;
        match part {
            UrlPart::Scheme => self.exchange.scheme().as_str().as_bytes(),
            UrlPart::Authority => self.exchange.authority(),
            UrlPart::Path => request.url.path_raw(),
            UrlPart::Query => request.url.query(),
        }
    }

    fn has_query(&self) -> bool {
        self.exchange.request.url.has_query()
    }

    fn url_port(&self) -> u16 {
        self.exchange.connection.listener.port
    }
}
