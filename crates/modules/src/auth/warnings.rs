//! Warnings at the start about `auth.*` that does not do what it seems to.

use petrel_engine::config::{Block, Config, Consequence, Diagnostic, Element, Entry};

use super::ldap::has_short_timeout;
use super::users::{BACKEND, GROUPFILE, is_not_built};

/// Warns of backends that Petrel does not have, of rules that guard nothing, let no client in or are never
/// reached, and of groups without members.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    let has = |name: &str| {
        let mut blocks = config.blocks.iter();
        blocks.any(|block| entry(block, name).is_some())
    };
    for block in &config.blocks {
        if let Some(entry) = entry(block, BACKEND)
            && entry.value.as_str().is_some_and(is_not_built)
        {
            warnings.push(closed(entry, format!(
                "{BACKEND}: users can be looked up in files, by LDAP and by PAM alone, so what auth.require guards is answered 503"
            )));
        }
        for entry in block
            .entries
            .iter()
            .filter(|entry| has_short_timeout(entry))
        {
            let message = format!(
                "{} is in microseconds, as in lighttpd: 100000 counts",
                entry.name
            );
            warnings.push(Diagnostic::warning(message, entry.value_span));
        }
        let Some(rules) = entry(block, "auth.require") else {
            continue;
        };
        let backends: Vec<_> = config
            .blocks
            .iter()
            .filter_map(|block| entry(block, BACKEND))
            .collect();
        let is = |entry: &&Entry, names: &[&str]| {
            let name = entry.value.as_str();
            name.is_some_and(|name| names.contains(&name))
        };
        let has_hashes_alone = backends
            .iter()
            .all(|entry| is(entry, &["htpasswd", "ldap", "pam"]));
        if !backends.is_empty()
            && has_hashes_alone
            && text_of(rules, "method").any(|method| method == "digest")
        {
            let message = "auth.require: digest needs passwords that can be read, which auth.backend = \"htpasswd\", \"ldap\" and \"pam\" do not have, so what it guards is answered 503";
            let hint = "take method basic, or a file of the kind htdigest";
            warnings.push(closed(rules, message.to_owned()).with_hint(hint));
        }
        if !has(BACKEND) && uses_passwords(rules) {
            let message =
                format!("auth.require: {BACKEND} is not set, so what it guards is answered 503");
            warnings.push(closed(rules, message));
        }
        let has_ldap = backends.iter().any(|entry| is(entry, &["ldap"]));
        if !has(GROUPFILE)
            && !has_ldap
            && text_of(rules, "require").any(|text| text.contains("group="))
        {
            let message = format!("groups have no members: {GROUPFILE} is not set");
            warnings.push(Diagnostic::warning(message, rules.name_span));
        }
        if text_of(rules, "require").any(names_host) {
            let message = "auth.require: host= lets no client in, as in lighttpd".to_owned();
            let hint = "address=10.0.0.0/8 lets clients of a network in without a password";
            warnings.push(Diagnostic::warning(message, rules.name_span).with_hint(hint));
        }
        warnings.extend(unmatched(rules));
        warnings.extend(unreached(rules));
    }
    warnings
}

fn closed(entry: &Entry, message: String) -> Diagnostic {
    Diagnostic::warning(message, entry.name_span).with_consequence(Consequence::Answers503)
}

fn entry<'c>(block: &'c Block, name: &str) -> Option<&'c Entry> {
    let mut entries = block.entries.iter();
    entries.find(|entry| entry.name == name && entry.value.is_enabling())
}

fn uses_passwords(rules: &Entry) -> bool {
    let rules = rules.value.as_array().into_iter().flatten();
    let mut rules = rules.filter_map(|rule| rule.value.as_array());
    rules.any(|rule| {
        let is = |key: &str, test: &dyn Fn(&str) -> bool| {
            let value = rule.get(key).and_then(|option| option.value.as_str());
            value.is_some_and(test)
        };
        let names_users = |text: &str| text.split('|').any(|part| !part.starts_with("address="));
        is("method", &|method| method != "extern") && is("require", &names_users)
    })
}

fn names_host(require: &str) -> bool {
    require.split('|').any(|rule| rule.starts_with("host="))
}

/// The values that the rules have for `key`.
fn text_of<'c>(rules: &'c Entry, key: &'c str) -> impl Iterator<Item = &'c str> {
    let rules = rules.value.as_array().into_iter().flatten();
    rules.filter_map(move |rule| rule.value.as_array()?.get(key)?.value.as_str())
}

/// Warns of prefixes that no path begins with: paths are compared decoded, without dots and doubled slashes.
fn unmatched(rules: &Entry) -> Vec<Diagnostic> {
    let rules = rules.value.as_array().into_iter().flatten();
    let unmatched = rules.filter(|rule| rule.key().is_some_and(|prefix| !can_match(prefix)));
    let warn = |rule: &Element| {
        let prefix = rule.key().unwrap_or_default();
        let message = format!(
            "no usual path begins with {prefix:?}: its rule in auth.require guards nothing"
        );
        let hint = "a prefix begins with a slash, and is compared with the decoded path without \"//\", \"/./\" and \"/../\"";
        Diagnostic::warning(message, rule.span).with_hint(hint)
    };
    unmatched.map(warn).collect()
}

fn can_match(prefix: &str) -> bool {
    let is_escape = |at: usize| {
        let digits = prefix.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let has_part = ["//", "/./", "/../"]
        .iter()
        .any(|part| prefix.contains(part));
    (prefix.is_empty() || prefix.starts_with('/'))
        && !has_part
        && !prefix.match_indices('%').any(|(at, _)| is_escape(at))
}

/// Warns of rules that come after one with a shorter prefix of the same path.
fn unreached(rules: &Entry) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    let mut before: Vec<&str> = Vec::new();
    for rule in rules.value.as_array().into_iter().flatten() {
        let Some(prefix) = rule.key() else { continue };
        if let Some(first) = before.iter().find(|first| prefix.starts_with(**first)) {
            let message = format!(
                "the rule for {prefix:?} in auth.require never counts: {first:?} is tried first"
            );
            let warning = Diagnostic::warning(message, rule.span);
            warnings.push(warning.with_hint("put the longer prefix before the shorter one"));
        }
        before.push(prefix);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_that_no_path_begins_with_are_told_apart() {
        for prefix in ["", "/", "/admin", "/a b/", "/100%/", "/a.b/", "/..a", "/é"] {
            assert!(can_match(prefix), "{prefix}");
        }
        for prefix in [
            "admin/",
            "/my%20files/",
            "/a//b",
            "/a/./b",
            "/../a",
            "http://a.example/",
        ] {
            assert!(!can_match(prefix), "{prefix}");
        }
    }
}
