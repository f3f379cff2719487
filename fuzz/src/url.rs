//! Request targets: with any options, the path that gets opened stays below the root, and rules match the
//! path that gets opened.
//!
//! The input is a request target.

use petrel_proto::method::Method;
use petrel_proto::url::{Url, UrlOptions};

pub fn url(target: &[u8]) {
    let mut url = Url::new();
    for options in every_kind_of_options() {
        for method in [Method::Get, Method::Options] {
            if url.parse(target, method, &options).is_err() {
                assert!(url.path().is_empty() && url.target().is_empty());
                continue;
            }
            is_safe(&url, &options);
            normal_form_is_stable(&url, method, &options);
        }
        if url.set_path_and_query(target, &options).is_ok() {
            is_safe(&url, &options);
        }
    }
}

fn every_kind_of_options() -> [UrlOptions; 6] {
    let default = UrlOptions::default();
    [
        default,
        UrlOptions {
            normalize: false,
            ctrls_reject: false,
            ..default
        },
        UrlOptions {
            normalize_required: true,
            path_backslash_trans: true,
            ..default
        },
        UrlOptions {
            ctrls_reject: false,
            path_2f_decode: false,
            path_dotseg_remove: false,
            invalid_utf8_reject: false,
            query_20_plus: true,
            ..default
        },
        UrlOptions {
            path_2f_reject: true,
            path_dotseg_reject: true,
            ..default
        },
        UrlOptions {
            normalize_unreserved: false,
            ctrls_reject: false,
            path_backslash_trans: true,
            path_dotseg_remove: false,
            invalid_utf8_reject: false,
            ..default
        },
    ]
}

/// Appended to a document root, the path names something below it.
fn is_safe(url: &Url, options: &UrlOptions) {
    let path = url.path();
    if path == b"*" {
        return;
    }
    assert_eq!(path.first(), Some(&b'/'));
    assert!(!path.iter().any(|byte| byte.is_ascii_control()), "{path:?}");
    let mut segments = path[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        assert!(segment != b"." && segment != b"..", "{path:?}");
        let is_last = segments.peek().is_none();
        assert!(!segment.is_empty() || is_last, "{path:?}");
    }
    assert!(url.target().starts_with(url.path_raw()));
    assert!(!url.target().contains(&b'#') || !options.normalize);
    assert!(!url.path_raw().contains(&b'?'));
}

/// A normalised target is normalised to itself, so that a rewrite that keeps the target keeps its meaning.
fn normal_form_is_stable(url: &Url, method: Method, options: &UrlOptions) {
    let mut again = Url::new();
    let outcome = again.parse(url.target(), method, options);
    assert_eq!(
        outcome,
        Ok(()),
        "{:?}",
        url.target().escape_ascii().to_string()
    );
    assert_eq!(again.path(), url.path());
    if options.normalize {
        assert_eq!(again.target(), url.target());
    }
}
