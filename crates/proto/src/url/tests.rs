use proptest::prelude::*;

use super::*;

fn parsed(target: &[u8], options: &UrlOptions) -> Result<Url, UrlError> {
    let mut url = Url::new();
    url.parse(target, Method::Get, options)?;
    Ok(url)
}

/// Decoded path and normalised target under the default options.
fn by_default(target: &str) -> Result<(String, String), UrlError> {
    with(target, UrlOptions::default())
}

fn with(target: &str, options: UrlOptions) -> Result<(String, String), UrlError> {
    let url = parsed(target.as_bytes(), &options)?;
    let text = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect::<String>();
    Ok((text(url.path()), text(url.target())))
}

/// Checks rows of (target, decoded path, normalised target).
fn check(options: UrlOptions, rows: &[(&str, &str, &str)]) {
    for (target, path, normalised) in rows {
        let expected = Ok(((*path).to_owned(), (*normalised).to_owned()));
        assert_eq!(with(target, options), expected, "{target}");
    }
}

// The rows of this and the following tables are what lighttpd 1.4.69 returns, except for those marked
// otherwise.
#[test]
fn default_rules() {
    check(
        UrlOptions::default(),
        &[
            ("/", "/", "/"),
            ("/a/b.html?x=1", "/a/b.html", "/a/b.html?x=1"),
            ("/%41", "/A", "/A"),
            ("/a%2Fb?c%2fd", "/a/b", "/a/b?c%2Fd"),
            ("/a/../b", "/b", "/b"),
            ("/../../etc/passwd", "/etc/passwd", "/etc/passwd"),
            ("/a/.%2e/b", "/b", "/b"),
            ("/%2e%2e%2fetc", "/etc", "/etc"),
            ("/a%2f%2e%2e%2fb", "/b", "/b"),
            ("//a//b", "/a/b", "/a/b"),
            ("/a/./b/.", "/a/b/", "/a/b/"),
            ("/a/..", "/", "/"),
            ("/..", "/", "/"),
            ("/a/b/%2e%2e?x=1", "/a/", "/a/?x=1"),
            ("/a/...", "/a/...", "/a/..."),
            ("/a/..b/c../.d", "/a/..b/c../.d", "/a/..b/c../.d"),
            ("/%252e%252e/", "/%2e%2e/", "/%252e%252e/"),
            ("/..\\b", "/..\\b", "/..%5Cb"),
            ("/a%5cb", "/a\\b", "/a%5Cb"),
            ("/a%", "/a%", "/a%25"),
            ("/a%zz?%4", "/a%zz", "/a%25zz?%254"),
            ("/a%u0041", "/a%u0041", "/a%25u0041"),
            ("/a?%41%7e", "/a", "/a?A~"),
            ("/a%20b", "/a b", "/a%20b"),
            ("/a+b?b%20c+d e", "/a+b", "/a+b?b%20c+d%20e"),
            ("/a%3fb", "/a?b", "/a%3Fb"),
            ("/a#b?c", "/a", "/a"),
            ("/a?b#c%00", "/a", "/a?b"),
            ("/a%23b", "/a#b", "/a%23b"),
            ("/a%21%24%26%27", "/a!$&'", "/a%21%24%26%27"),
            ("/a!$&'()*,=:@;", "/a!$&'()*,=:@;", "/a!$&'()*,=:@;"),
            (
                "/a\"<>^`{|}[",
                "/a\"<>^`{|}[",
                "/a%22%3C%3E%5E%60%7B%7C%7D%5B",
            ),
            ("/a?a=%26&b=%3d", "/a", "/a?a=%26&b=%3D"),
            ("/a?/../b?c", "/a", "/a?/../b?c"),
            ("/?", "/", "/?"),
            ("/\u{e4}?\u{e4}", "/\u{c3}\u{a4}", "/%C3%A4?%C3%A4"),
            ("/%c3%a4", "/\u{c3}\u{a4}", "/%C3%A4"),
            ("/caf%e9", "/caf\u{e9}", "/caf%E9"),
            ("http://h/a/../b", "/b", "/b"),
            // lighttpd refuses these two; by RFC 9110 4.2.3 they mean the root.
            ("http://h", "/", "/"),
            ("http://h?x", "/", "/?x"),
        ],
    );
}

#[test]
fn default_refusals() {
    for target in [
        "/%00",
        "/a%01",
        "/a%7F",
        "/a?%00",
        "/a?\u{7f}",
        "/a\tb",
        "/a%0d%0ab",
    ] {
        assert_eq!(by_default(target), Err(UrlError::Control), "{target}");
    }
    for target in ["/%c0%ae%c0%ae/", "/%ff", "/a?%ff", "/%f5"] {
        assert_eq!(by_default(target), Err(UrlError::InvalidUtf8), "{target}");
    }
    let raw = parsed(b"/\xff", &UrlOptions::default()).map(|url| url.target().to_vec());
    assert_eq!(raw, Err(UrlError::InvalidUtf8));
    for target in ["", "*", "?", "a", "ftp://h/", "http://", "http:///a"] {
        assert_eq!(by_default(target), Err(UrlError::Form), "{target}");
    }
}

#[test]
fn required_rules() {
    let options = UrlOptions {
        normalize_required: true,
        ..UrlOptions::default()
    };
    check(
        options,
        &[
            ("/a%2Fb?c%2Fd", "/a/b", "/a/b?c/d"),
            ("/a%3bb%3ab%40", "/a;b:b@", "/a;b:b@"),
            ("/a%3f%2b%3D%26%20", "/a?+=& ", "/a%3F+=&%20"),
            ("/a?%3b%2b%3f%21%40%24", "/a", "/a?%3B%2B?!@$"),
            ("/a?a=%26&b=%3d%23", "/a", "/a?a=%26&b=%3D%23"),
            ("/%5ba%25", "/[a%", "/%5Ba%25"),
        ],
    );
}

#[test]
fn without_normalisation_only_the_path_is_made_safe() {
    let options = UrlOptions {
        normalize: false,
        ..UrlOptions::default()
    };
    check(
        options,
        &[
            ("/a/%2e%2e/b?%41", "/b", "/a/%2e%2e/b?%41"),
            ("//a%2f..%2f\\?#x", "/\\", "//a%2f..%2f\\?"),
            ("/a%00b%7f", "/a_b_", "/a%00b%7f"),
            ("/a%zz", "/a%zz", "/a%zz"),
        ],
    );
}

#[test]
fn single_switches() {
    let default = UrlOptions::default();
    let keeps_2f = UrlOptions {
        path_2f_decode: false,
        ..default
    };
    check(
        keeps_2f,
        &[
            ("/a%2f..%2fb", "/b", "/a%2F..%2Fb"),
            ("/a%2fb/../c", "/c", "/c"),
        ],
    );
    let keeps_dots = UrlOptions {
        path_dotseg_remove: false,
        ..default
    };
    check(keeps_dots, &[("/a/%2e./b//c", "/b/c", "/a/../b//c")]);
    let plus = UrlOptions {
        query_20_plus: true,
        ..default
    };
    check(plus, &[("/a%20b?b%20c+d e", "/a b", "/a%20b?b+c+d+e")]);
    let backslash = UrlOptions {
        path_backslash_trans: true,
        ..default
    };
    check(backslash, &[("/a\\..%5cb?\\", "/b", "/b?%5C")]);
    let tolerant = UrlOptions {
        ctrls_reject: false,
        invalid_utf8_reject: false,
        ..default
    };
    check(
        tolerant,
        &[
            ("/a%00\t?%0a%ff", "/a__", "/a%00%09?%0A%FF"),
            ("/%c0", "/\u{c0}", "/%C0"),
        ],
    );
    let no_2f = UrlOptions {
        path_2f_reject: true,
        ..default
    };
    assert_eq!(with("/a%2fb", no_2f), Err(UrlError::EncodedSlash));
    assert_eq!(
        with("/ab?%2f", no_2f).map(|(path, _)| path),
        Ok("/ab".to_owned())
    );
    let no_dots = UrlOptions {
        path_dotseg_reject: true,
        ..default
    };
    for target in ["/a/../b", "/.", "/a//b", "/%2e%2e"] {
        assert_eq!(with(target, no_dots), Err(UrlError::DotSegment), "{target}");
    }
    assert!(with("/.a/..b/c.?../", no_dots).is_ok());
}

#[test]
fn parts_are_told_apart() {
    let url = parsed(b"HTTPS://User@Host:8/a%20b?c?d#e", &UrlOptions::default()).expect("a URL");
    assert_eq!(
        (url.scheme(), url.authority()),
        (&b"HTTPS"[..], &b"User@Host:8"[..])
    );
    assert_eq!((url.path_raw(), url.query()), (&b"/a%20b"[..], &b"c?d"[..]));
    let mut url = Url::new();
    assert_eq!(
        url.parse(b"*", Method::Options, &UrlOptions::default()),
        Ok(())
    );
    assert_eq!(
        (url.path(), url.target(), url.query()),
        (&b"*"[..], &b"*"[..], &b""[..])
    );
}

#[test]
fn a_rewrite_replaces_path_and_query_only() {
    let options = UrlOptions::default();
    let mut url = parsed(b"http://h/a%20b?c", &options).expect("a URL");
    assert_eq!(url.set_path_and_query(b"/x/../y?z", &options), Ok(()));
    assert_eq!(
        (url.path(), url.query(), url.authority()),
        (&b"/y"[..], &b"z"[..], &b"h"[..])
    );
    assert_eq!(url.set_path_and_query(b"/clean", &options), Ok(()));
    assert_eq!(
        (url.path(), url.target(), url.query()),
        (&b"/clean"[..], &b"/clean"[..], &b""[..])
    );
    assert_eq!(url.set_path_and_query(b"x", &options), Err(UrlError::Form));
    assert_eq!(
        url.set_path_and_query(b"/%00", &options),
        Err(UrlError::Control)
    );
    assert_eq!((url.path(), url.query()), (&b""[..], &b""[..]));
}

#[test]
fn targets_of_every_length_are_judged_alike() {
    let options = UrlOptions::default();
    // Positions around the ends of the chunks in which paths are checked.
    let lengths = (3..20).chain([30, 33, 34, 35, 49, 50, 51, 92]);
    for (length, position) in lengths.flat_map(|length| {
        let near_ends = move |position: &usize| position % 16 < 3 || length - position < 5;
        (1..length - 1)
            .filter(near_ends)
            .map(move |position| (length, position))
    }) {
        for byte in 0..=255_u8 {
            for after in *b"a/." {
                let mut target = vec![b'a'; length];
                (target[0], target[position], target[position + 1]) = (b'/', byte, after);
                let (mut quick, mut long) = (Url::new(), Url::new());
                let answer = quick.parse(&target, Method::Get, &options);
                assert_eq!(answer, long.fill_unclean(&target, &options), "{byte:#x}");
                if answer.is_ok() {
                    assert_eq!((quick.target(), quick.path()), (long.target(), long.path()));
                    let is_unchanged = long.target() == target && long.path() == long.path_raw();
                    // A segment that begins with two dots takes the slow path.
                    let is_quick = quick.decoded_is_raw || [byte, after] == *b"..";
                    assert!(!is_unchanged || is_quick, "{byte:#x}");
                }
            }
        }
    }
}

fn any_options() -> impl Strategy<Value = UrlOptions> {
    any::<u16>().prop_map(|bits| {
        let bit = |position: u32| bits >> position & 1 != 0;
        UrlOptions {
            normalize: bit(0) || bit(11),
            normalize_unreserved: bit(1),
            normalize_required: bit(2),
            ctrls_reject: bit(3),
            path_backslash_trans: bit(4),
            path_2f_decode: bit(5),
            path_2f_reject: bit(6) && bit(12),
            path_dotseg_remove: bit(7),
            path_dotseg_reject: bit(8) && bit(13),
            query_20_plus: bit(9),
            invalid_utf8_reject: bit(10),
        }
    })
}

fn target_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[/.a?#%\\\\+ ]",
        "%(2e|2E|2f|2F|5c|00|25|41|20|c0|ff|3f|26|zz|2)",
        Just("/..".to_owned()),
    ];
    let pieces = proptest::collection::vec(piece.prop_map(String::into_bytes), 0..24);
    let random = proptest::collection::vec(any::<u8>(), 0..24);
    prop_oneof![4 => pieces.prop_map(|pieces| pieces.concat()), 1 => random]
        .prop_map(|rest| [b"/", &rest[..]].concat())
}

#[test]
fn a_path_chosen_by_the_server_leaves_the_target_alone() {
    for target in ["/a/?x=1", "/%61/?x=1"] {
        let mut url = parsed(target.as_bytes(), &UrlOptions::default()).expect("it is sound");
        url.extend_path(b"index.html");
        assert_eq!(url.path(), b"/a/index.html", "{target}");
        assert_eq!(
            (url.target(), url.query()),
            (&b"/a/?x=1"[..], &b"x=1"[..]),
            "{target}"
        );
        url.set_path(b"/b");
        assert_eq!(
            (url.path(), url.path_raw()),
            (&b"/b"[..], &b"/a/"[..]),
            "{target}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_path_never_leads_out(target in target_like(), options in any_options()) {
        let Ok(url) = parsed(&target, &options) else { return Ok(()) };
        let path = url.path();
        prop_assert_eq!(path.first(), Some(&b'/'));
        prop_assert!(!path.iter().any(u8::is_ascii_control));
        let segments: Vec<_> = path[1..].split(|&byte| byte == b'/').collect();
        let inner = &segments[..segments.len() - 1];
        prop_assert!(inner.iter().all(|segment| !segment.is_empty()));
        prop_assert!(segments.iter().all(|segment| segment != b"." && segment != b".."));
    }

    #[test]
    fn normalising_twice_is_normalising_once(target in target_like(), options in any_options()) {
        let Ok(once) = parsed(&target, &options) else { return Ok(()) };
        let twice = parsed(once.target(), &options);
        prop_assert_eq!(twice.as_ref().map(Url::target), Ok(once.target()));
        prop_assert_eq!(twice.as_ref().map(Url::path), Ok(once.path()));
    }

    #[test]
    fn clean_targets_are_what_the_long_way_makes_of_them(target in "/[a./?~!]{0,12}") {
        let options = UrlOptions::default();
        let quick = parsed(target.as_bytes(), &options).expect("nothing to refuse");
        let mut long = Url::new();
        long.fill_unclean(target.as_bytes(), &options).expect("nothing to refuse");
        prop_assert_eq!((quick.target(), quick.path()), (long.target(), long.path()));
        prop_assert_eq!(quick.query(), long.query());
    }
}
