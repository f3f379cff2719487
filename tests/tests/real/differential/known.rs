//! Where Petrel answers otherwise than lighttpd 1.4.69, and why.

use crate::differential::Finding;

/// Differences that have one reason.
#[derive(Debug)]
pub(crate) struct Known {
    why: &'static str,
    /// lighttpd 1.4.86 answers as Petrel does.
    is_as_later: bool,
    kinds: &'static [Kind],
}

/// Configuration, request and what is told of it; `*` stands for any text.
type Kind = [&'static str; 3];

impl Known {
    /// Which of its kinds `finding` is of.
    fn kind_of(&self, finding: &Finding) -> Option<usize> {
        let told = [&finding.configuration, &finding.request, &finding.note];
        let is_of = |kind: &Kind| {
            kind.iter()
                .zip(told)
                .all(|(pattern, text)| matches(pattern, text))
        };
        self.kinds.iter().position(is_of)
    }
}

/// What is wrong about `findings`: those that are not in the list, and what is in the list and does not occur.
pub(crate) fn complaints(findings: &[Finding]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut used: Vec<Vec<bool>> = KNOWN
        .iter()
        .map(|known| vec![false; known.kinds.len()])
        .collect();
    for finding in findings {
        let mut entries = KNOWN.iter().zip(&mut used);
        let place =
            entries.find_map(|(known, used)| known.kind_of(finding).map(|kind| &mut used[kind]));
        match place {
            Some(is_used) => *is_used = true,
            None => complaints.push(finding.to_string()),
        }
    }
    for (known, used) in KNOWN.iter().zip(used) {
        let unused = known.kinds.iter().zip(used).filter(|(_, is_used)| !is_used);
        complaints.extend(
            unused.map(|(kind, _)| {
                format!("no longer occurs: {kind:?}: {}{}", known.why, known.note())
            }),
        );
    }
    complaints
}

impl Known {
    fn note(&self) -> &'static str {
        match self.is_as_later {
            true => " (lighttpd 1.4.86 does the same.)",
            false => "",
        }
    }
}

/// Whether `text` is what `pattern` says.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, behind)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(rest) = text.strip_prefix(before) else {
        return false;
    };
    let mut ends = (0..=rest.len()).filter(|at| rest.is_char_boundary(*at));
    ends.any(|at| matches(behind, &rest[at..]))
}

/// The list. The first kind that a finding is of counts.
const KNOWN: &[Known] = &[
    Known {
        why: "Ranges of HTTP/1.0 requests are answered, as nginx and Apache do; http10.range is on.",
        is_as_later: false,
        kinds: &[["*", "*HTTP/1.0 (Range: *", "status 206 for 200"]],
    },
    Known {
        why: "A file of a type that is not known is cached like any other; lighttpd sends no validators with it.",
        is_as_later: false,
        kinds: &[
            [
                "01_files",
                "*/unknown.qqq*",
                r#"Last-Modified ["*"] for []"#,
            ],
            ["01_files", "*/unknown.qqq*", "ETag strong  for none"],
            ["01_files", "*/unknown.qqq*(If-*", "status 304 for 200"],
        ],
    },
    Known {
        why: "What is redirected keeps its method.",
        is_as_later: true,
        kinds: &[["*", "P* *", "status 308 for 301"]],
    },
    Known {
        why: "RFC 9110 15.5.6: the method is known, the file does not have it.",
        is_as_later: false,
        kinds: &[["*", "P* *", "status 405 for 501"]],
    },
    Known {
        why: "RFC 9110 15.5.17 asks for the field with 416.",
        is_as_later: false,
        kinds: &[["*", "*(Range: *", r#"Content-Range ["bytes */*"] for []"#]],
    },
    Known {
        why: "A year has 365 days, not 360.",
        is_as_later: true,
        kinds: &[[
            "14_expire",
            "*/empty.txt*",
            r#"Cache-Control ["max-age=31536000"] for ["max-age=31104000"]"#,
        ]],
    },
    Known {
        why: "Listings are JSON for clients that ask for it.",
        is_as_later: false,
        kinds: &[
            ["16_listings", "*", r#"Vary ["Accept"] for []"#],
            [
                "31_a_whole_site",
                "*/files/*",
                r#"Vary ["Accept, Accept-Encoding"] for *"#,
            ],
        ],
    },
    Known {
        why: "Names of files are UTF-8 unless dir-listing.encoding says otherwise.",
        is_as_later: false,
        kinds: &[[
            "31_a_whole_site",
            "*/files/*",
            r#"Content-Type ["text/html;charset=utf-8"] for ["text/html"]"#,
        ]],
    },
    Known {
        why: "A program that stands for an error gets no path-info of the URL that failed.",
        is_as_later: false,
        kinds: &[["*", "*", r#"body "PATH_INFO=unset" for "PATH_INFO=/*""#]],
    },
    Known {
        why: "RFC 9110 12.5.5: a cache must know that the answer would have been another one.",
        is_as_later: false,
        kinds: &[["*", "*", r#"Vary ["Accept-Encoding"] for []"#]],
    },
    Known {
        why: "Compressed it would not be shorter.",
        is_as_later: false,
        kinds: &[
            [
                "23_deflate",
                "* b.test *",
                r#"Content-Encoding [] for ["*gzip"]"#,
            ],
            ["23_deflate", "* b.test *", "ETag strong  for strong gzip"],
        ],
    },
    Known {
        why: "The page about an error is too short for it.",
        is_as_later: false,
        kinds: &[
            [
                "31_a_whole_site",
                "*/admin/*",
                r#"Content-Encoding [] for ["gzip"]"#,
            ],
            [
                "31_a_whole_site",
                "*/admin/*",
                r#"Vary [] for ["Accept-Encoding"]"#,
            ],
        ],
    },
    Known {
        why: "Weights count: a coding with a weight of 0 is not wanted.",
        is_as_later: false,
        kinds: &[
            [
                "2*",
                "*(Accept-Encoding: gzip;q=0, deflate)*",
                r#"Content-Encoding * for ["gzip"]"#,
            ],
            [
                "2*",
                "*(Accept-Encoding: gzip;q=0, deflate)*",
                "ETag strong * for strong gzip",
            ],
        ],
    },
    Known {
        why: "An asterisk stands for any coding.",
        is_as_later: false,
        kinds: &[
            [
                "23_deflate",
                "*(Accept-Encoding: *)*",
                r#"Content-Encoding ["gzip"] for []"#,
            ],
            [
                "23_deflate",
                "*(Accept-Encoding: *)*",
                "ETag strong gzip for strong ",
            ],
        ],
    },
    Known {
        why: "RFC 9110 8.4.1.3: both names are the same coding, and the registered one is gzip.",
        is_as_later: false,
        kinds: &[[
            "23_deflate",
            "*(Accept-Encoding: x-gzip)*",
            r#"Content-Encoding ["gzip"] for ["x-gzip"]"#,
        ]],
    },
    Known {
        why: "A program that ends without a word is a bad gateway, as with FastCGI.",
        is_as_later: false,
        kinds: &[["26_cgi", "*", "status 502 for 500"]],
    },
    Known {
        why: "cgi.execute-x-only: lighttpd sends the source.",
        is_as_later: false,
        kinds: &[["26_cgi", "* b.test */not-x.sh*", "status 403 for 200"]],
    },
    Known {
        why: "RFC 9110 13.1.2: the asterisk is true without an ETag, too.",
        is_as_later: false,
        kinds: &[[
            "27_validators",
            "* b.test *(If-None-Match: *)*",
            "status 304 for 200",
        ]],
    },
    Known {
        why: "RFC 9110 13.1.1: lighttpd does not know If-Match.",
        is_as_later: false,
        kinds: &[["*", "*(If-Match: *)*", "status 412 for 200"]],
    },
    Known {
        why: "RFC 9110 13.1.4: lighttpd does not know If-Unmodified-Since.",
        is_as_later: false,
        kinds: &[
            ["2*", "*(If-Unmodified-Since: *", "status 412 for 200"],
            [
                "34_etags_of_lengths",
                "*(If-Unmodified-Since: *",
                "status 412 for 200",
            ],
        ],
    },
    Known {
        why: "Pages of listings are each server's own.",
        is_as_later: false,
        kinds: &[["*", "HEAD *", r#"Content-Length ["*"] for ["*"]"#]],
    },
    Known {
        why: "RFC 9110 14.1.2: a range that ends behind the file ends with it.",
        is_as_later: false,
        kinds: &[[
            "*",
            "*(Range: bytes=0-18446744073709551616)*",
            "status 206 for 416",
        ]],
    },
    Known {
        why: "server.follow-symlink: what is behind a link is not told.",
        is_as_later: false,
        kinds: &[[
            "28_lower_case_and_links",
            "* b.test */linked/*",
            "status 403 for 404",
        ]],
    },
    Known {
        why: "Inside a condition without groups, %1 is a group of the condition around it. In lighttpd it is nothing.",
        is_as_later: false,
        kinds: &[[
            "32_captures",
            "*q=z*",
            r#"Location ["/q/*/3*"] for ["/q//"]"#,
        ]],
    },
];
