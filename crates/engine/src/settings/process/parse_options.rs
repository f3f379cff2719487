//! `server.http-parseopts`: how strictly requests are read.
//!
//! The rules between the switches are lighttpd's: `url-normalize` off rests all the others, what
//! decodes and what refuses the same thing cannot both be asked for. One is kinder: asking only to
//! refuse also takes back the decoding that is on by default.

use petrel_config::{Diagnostic, Element};
use petrel_proto::http1::HeadOptions;
use petrel_proto::url::UrlOptions;

use super::super::Values;
use super::unknown;

/// Both halves of what the switches say.
pub(super) struct ParseOptions {
    pub(super) head: HeadOptions,
    pub(super) url: UrlOptions,
}

pub(super) fn read(values: &Values<'_>) -> Result<ParseOptions, Diagnostic> {
    let mut options = ParseOptions { head: HeadOptions::default(), url: UrlOptions::default() };
    if let Some(size @ 1..) = values.integer("server.max-request-field-size") {
        options.head.head_bytes_max = usize::try_from(size).unwrap_or(usize::MAX);
    }
    let mut explicit = Explicit::default();
    for (name, key) in OLDER_NAMES {
        if let Some(on) = values.bool(name) {
            *switch(&mut options, &mut explicit, key).expect("older names stand for known keys") = on;
        }
    }
    for element in values.array(NAME).into_iter().flatten() {
        set(values, &mut options, &mut explicit, element)?;
    }
    settle(values, &mut options, explicit)?;
    Ok(options)
}

/// Switches that take another one's default back when they are set.
#[derive(Default)]
struct Explicit {
    path_2f_decode: bool,
    path_dotseg_remove: bool,
    normalize_unreserved: bool,
    host_normalize: bool,
}

fn set(
    values: &Values<'_>,
    options: &mut ParseOptions,
    explicit: &mut Explicit,
    element: &Element,
) -> Result<(), Diagnostic> {
    let Some(key) = element.key() else {
        let message = format!("{NAME} takes switches: ( \"url-normalize\" => \"enable\" )");
        return Err(Diagnostic::error(message, element.span));
    };
    let Some(switch) = switch(options, explicit, key) else {
        let mut error = unknown(values, NAME, key, KEYS.into_iter());
        error.span = element.key.as_ref().map(|key| key.span);
        return Err(error);
    };
    let Some(on) = element.value.as_bool() else {
        let message = format!("{key} takes \"enable\" or \"disable\"");
        return Err(Diagnostic::error(message, element.span));
    };
    *switch = on;
    match key {
        "url-path-2f-decode" => explicit.path_2f_decode = on,
        "url-path-dotseg-remove" => explicit.path_dotseg_remove = on,
        _ => {}
    }
    Ok(())
}

fn settle(
    values: &Values<'_>,
    options: &mut ParseOptions,
    explicit: Explicit,
) -> Result<(), Diagnostic> {
    let url = &mut options.url;
    let both = |one: &str, other: &str| {
        let error = values.error(NAME, format!("{one} and {other} cannot both be enabled"));
        error.with_hint("disable one of them")
    };
    if url.normalize && url.path_2f_reject {
        if explicit.path_2f_decode {
            return Err(both("url-path-2f-decode", "url-path-2f-reject"));
        }
        url.path_2f_decode = false;
    }
    if url.normalize && url.path_dotseg_reject {
        if explicit.path_dotseg_remove {
            return Err(both("url-path-dotseg-remove", "url-path-dotseg-reject"));
        }
        url.path_dotseg_remove = false;
    }
    options.head.host_normalize = explicit.host_normalize || options.head.host_strict;
    Ok(())
}
