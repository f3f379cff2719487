//! `server.http-parseopts`: how strictly requests are parsed.
//!
//! The switches depend on each other as in lighttpd: without `url-normalize` all others have no effect, and
//! an input cannot be both decoded and refused. One rule is less strict: a configuration that asks only to
//! refuse switches off the decoding that is on by default, where lighttpd does not start.

use petrel_config::{Diagnostic, Element};
use petrel_proto::request_head::HeadOptions;
use petrel_proto::url::UrlOptions;

use super::super::Values;
use super::unknown;

/// The options for header fields and for URLs.
pub(super) struct ParseOptions {
    pub(super) head: HeadOptions,
    pub(super) url: UrlOptions,
}

pub(super) fn read(values: &Values<'_>) -> Result<ParseOptions, Diagnostic> {
    let mut options = ParseOptions {
        head: HeadOptions::default(),
        url: UrlOptions::default(),
    };
    options.head.host_normalize = false;
    options.head.head_bytes_max = head_bytes_max(values)?;
    for (name, key) in OLDER_NAMES {
        if let (Some(on), Some(switch)) = (values.bool(name), options.switch(key)) {
            *switch = on;
        }
    }
    for element in values.array(NAME).into_iter().flatten() {
        set(values, &mut options, element)?;
    }
    settle(values, &mut options)?;
    Ok(options)
}

fn head_bytes_max(values: &Values<'_>) -> Result<usize, Diagnostic> {
    const NAME: &str = "server.max-request-field-size";
    match values.unsigned(NAME, 0) as usize {
        0 => Ok(HeadOptions::default().head_bytes_max),
        bytes if bytes <= HEAD_BYTES_MAX => Ok(bytes),
        _ => {
            let error = values.error(NAME, format!("{NAME} is at most {HEAD_BYTES_MAX}"));
            Err(error.with_hint("browsers send a few KiB; cookies are what may need more"))
        }
    }
}

impl ParseOptions {
    fn switch(&mut self, key: &str) -> Option<&mut bool> {
        let (head, url) = (&mut self.head, &mut self.url);
        Some(match key {
            "url-normalize" => &mut url.normalize,
            "url-normalize-unreserved" => &mut url.normalize_unreserved,
            "url-normalize-required" => &mut url.normalize_required,
            "url-ctrls-reject" => &mut url.ctrls_reject,
            "url-path-backslash-trans" => &mut url.path_backslash_trans,
            DECODE => &mut url.path_2f_decode,
            REJECT => &mut url.path_2f_reject,
            DOTS_REMOVE => &mut url.path_dotseg_remove,
            DOTS_REJECT => &mut url.path_dotseg_reject,
            "url-query-20-plus" => &mut url.query_20_plus,
            "url-invalid-utf8-reject" => &mut url.invalid_utf8_reject,
            "header-strict" => &mut head.header_strict,
            "host-strict" => &mut head.host_strict,
            "host-normalize" => &mut head.host_normalize,
            "method-get-body" => &mut head.method_get_body,
            _ => return None,
        })
    }
}

fn set(
    values: &Values<'_>,
    options: &mut ParseOptions,
    element: &Element,
) -> Result<(), Diagnostic> {
    let Some(key) = element.key() else {
        let message = format!("{NAME} takes switches: ( \"url-normalize\" => \"enable\" )");
        return Err(Diagnostic::error(message, element.span));
    };
    let Some(switch) = options.switch(key) else {
        let mut error = unknown(values, NAME, key, KEYS.into_iter());
        error.span = element.key.as_ref().map(|key| key.span);
        return Err(error);
    };
    *switch = element.value.as_bool().ok_or_else(|| {
        Diagnostic::error(
            format!("{key} takes \"enable\" or \"disable\""),
            element.span,
        )
    })?;
    Ok(())
}

/// Applies what one switch implies for another.
fn settle(values: &Values<'_>, options: &mut ParseOptions) -> Result<(), Diagnostic> {
    options.head.host_normalize |= options.head.host_strict;
    let url = &mut options.url;
    if url.normalize && url.path_2f_reject {
        not_both(values, DECODE, REJECT)?;
        url.path_2f_decode = false;
    }
    if url.normalize && url.path_dotseg_reject {
        not_both(values, DOTS_REMOVE, DOTS_REJECT)?;
        url.path_dotseg_remove = false;
    }
    Ok(())
}

/// An error if the configuration switches on `key` explicitly while `other` is on.
fn not_both(values: &Values<'_>, key: &str, other: &str) -> Result<(), Diagnostic> {
    let element = values.array(NAME).and_then(|switches| switches.get(key));
    match element {
        Some(element) if element.value.as_bool() == Some(true) => {
            let message = format!("{key} and {other} cannot both be enabled");
            Err(Diagnostic::error(message, element.span).with_hint("disable one of them"))
        }
        _ => Ok(()),
    }
}

/// The most bytes of a request head: a connection can make the server hold that much before it has sent a
/// whole request.
const HEAD_BYTES_MAX: usize = 1024 * 1024;

const NAME: &str = "server.http-parseopts";
const DECODE: &str = "url-path-2f-decode";
const REJECT: &str = "url-path-2f-reject";
const DOTS_REMOVE: &str = "url-path-dotseg-remove";
const DOTS_REJECT: &str = "url-path-dotseg-reject";

/// All switches, for hints.
const KEYS: [&str; 15] = [
    "url-normalize",
    "url-normalize-unreserved",
    "url-normalize-required",
    "url-ctrls-reject",
    "url-path-backslash-trans",
    DECODE,
    REJECT,
    DOTS_REMOVE,
    DOTS_REJECT,
    "url-query-20-plus",
    "url-invalid-utf8-reject",
    "header-strict",
    "host-strict",
    "host-normalize",
    "method-get-body",
];

/// Directives that were switches before `server.http-parseopts` existed, which takes precedence.
const OLDER_NAMES: [(&str, &str); 3] = [
    ("server.http-parseopt-header-strict", "header-strict"),
    ("server.http-parseopt-host-strict", "host-strict"),
    ("server.http-parseopt-host-normalize", "host-normalize"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_of_the_list_is_known() {
        let mut options = ParseOptions {
            head: HeadOptions::default(),
            url: UrlOptions::default(),
        };
        for key in KEYS.into_iter().chain(OLDER_NAMES.map(|(_, key)| key)) {
            assert!(options.switch(key).is_some(), "{key}");
        }
        assert!(options.switch("url-normalise").is_none());
    }
}
