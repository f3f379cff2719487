//! The same rules and requests to lighttpd 1.4 and to Petrel, answered by a program that tells what it was given.

use petrel_tests::{Difference, Differential, Tree};

/// Tells the URL as the program sees it.
const SCRIPT: &str = "printf 'Content-Type: text/plain\\r\\n\\r\\n'\n\
for name in REQUEST_URI REDIRECT_URI QUERY_STRING SCRIPT_NAME PATH_INFO; do\n\
eval \"value=\\${$name-unset}\"; printf '%s=%s\\n' $name \"$value\"; done\n";

const CONFIG: &str = "\
server.modules = (\"mod_rewrite\", \"mod_redirect\", \"mod_access\", \"mod_alias\", \"mod_indexfile\", \"mod_cgi\", \"mod_staticfile\")
cgi.assign = (\".sh\" => \"/bin/sh\")
url.access-deny = (\".secret\")
mimetype.assign = (\".txt\" => \"text/plain\")
";

fn site(tree: &Tree) {
    for (path, content) in [
        ("www/t.sh", SCRIPT),
        ("www/a.txt", "a"),
        ("www/b c.txt", "b c"),
        ("www/dir/x.txt", "x"),
        ("www/page.secret", "secret"),
        ("elsewhere/f.txt", "f"),
    ] {
        tree.write(path, content).modified(path, 1_000_000_000);
    }
}

/// Rules for a host of their own, and what is asked there.
struct Case<'c> {
    rules: &'c str,
    targets: &'c [&'c str],
}

/// Compares both servers on all cases, the host of each being `hN.test`.
fn compare(cases: &[Case<'_>]) {
    let mut config = CONFIG.to_owned();
    for (number, case) in cases.iter().enumerate() {
        let host = format!("$HTTP[\"host\"] =~ \"^h({number})\\.(test)\"");
        config.push_str(&format!("{host} {{\n{}\n}}\n", case.rules));
    }
    let Some(mut both) = Differential::start(&config, site) else {
        return;
    };
    for (number, case) in cases.iter().enumerate() {
        for target in case.targets {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h{number}.test\r\n\r\n");
            both.send(&head, Difference::PageOfErrors);
        }
    }
    both.expect_no_difference();
}

const TARGETS: &[&str] = &[
    "/",
    "/a.txt",
    "/x",
    "/x/y/z",
    "/x?q=1",
    "/x?",
    "/x?q=a%20b&r=%2f",
    "/a%20b",
    "/%41",
    "/x%2fy",
    "/x/../y",
    "/x//y",
    "/a%3fb",
    "/%c3%bc",
    "/x;p=1",
    "/x+y",
    "/dir",
    "/dir/",
    "/dir/x.txt",
    "/missing.txt",
    "/a%25b",
    "/x?a=b?c=d",
    "/page.secret",
    "/b%20c.txt",
];

/// It takes so long because both servers answer some eight hundred requests.
#[test]
fn replacements() {
    // Left out, because lighttpd 1.4.69 fails: `tolower` without an encoding (nothing is left), `toupper` (lower case),
    // `decb64u` of text that is none (garbage), names that it does not know (the rest is cut off). A text that does not begin
    // with a slash makes it close the connection. For an empty query `${qsa}` adds a question mark there.
    let replacements = [
        "/t.sh",
        "/t.sh?$0",
        "/t.sh/$1",
        "/t.sh/p?u=$1",
        "/t.sh?p=${url.path}&q=${url.query}",
        "/t.sh?s=${url.scheme}&a=${url.authority}",
        "/t.sh?${1}",
        "/t.sh/${1}",
        "/t.sh?${esc:1}",
        "/t.sh?${escape:1}",
        "/t.sh?${escnde:1}",
        "/t.sh?${escpsnde:1}",
        "/t.sh?${noesc:1}",
        "/t.sh?${tolower:esc:1}",
        "/t.sh?${encb64u:1}",
        "/t.sh?%1-%2-%3-$9",
        "/t.sh?%{1}%{esc:2}",
        "/t.sh?$$-%%-$x-%y-$",
        "/t.sh?%%c3%%bc",
        "/a.txt?$1",
        "/dir/../a.txt",
        "/t.sh/./a//b",
        "",
        "/page.secret",
        "/b c.txt",
        "/b%%20c.txt",
        "/$1.txt",
        "/t.sh?${url.nosuch}x",
        "/t.sh?${esc:url.path}",
        "//t.sh",
        "/t.sh/%%2e%%2e/a.txt",
        "/t.sh/ü?ü",
    ];
    let rules: Vec<_> = replacements
        .iter()
        .map(|text| format!("url.rewrite-once = (\"^/(.*)$\" => \"{text}\")"))
        .collect();
    let mut cases: Vec<_> = rules
        .iter()
        .map(|rules| Case {
            rules,
            targets: TARGETS,
        })
        .collect();
    for rules in ["/t.sh?u=$1${qsa}", "/t.sh${qsa}", "/t.sh${esc:qsa}"] {
        let rules = format!("url.rewrite-once = (\"^/([^?]*)\" => \"{rules}\")").leak();
        let targets = &["/", "/x", "/x?q=1", "/x?q=a%20b&r=%2f", "/x/?a=b?c=d"];
        cases.push(Case { rules, targets });
    }
    compare(&cases);
}

#[test]
fn which_rules_count_and_how_often() {
    let rules = [
        // Of one block all four lists count, those that repeat last.
        "url.rewrite-repeat = (\"^/x$\" => \"/y\", \"^/y\" => \"/t.sh?repeat\")\n\
         url.rewrite = (\"^/y\" => \"/t.sh?old\")\nurl.rewrite-final = (\"^/x/(.*)\" => \"/t.sh?final\")\n\
         url.rewrite-once = (\"^/x/y\" => \"/x\", \"^/dir/\" => \"/x/y\")",
        // A block inside replaces them all.
        "url.rewrite-once = (\"^/x\" => \"/t.sh?outer\")\n\
         $HTTP[\"url\"] =~ \"^/x/(.)\" { url.rewrite-repeat = (\"^/x/\" => \"/a.txt?%1\") }",
        "url.rewrite-once = (\"^/x\" => \"/t.sh?outer\")\n\
         $HTTP[\"url\"] =~ \"^/x/\" { url.rewrite-once = () }",
        // What rules make may be about other blocks.
        "url.rewrite-repeat = (\"^/x/(.*)\" => \"/in/$1\")\n\
         $HTTP[\"url\"] =~ \"^/in/(.*)\" { url.rewrite-repeat = (\"^/in\" => \"/t.sh?in=%1\") }",
        "url.rewrite-once = (\"^/x/(.*)\" => \"/in/$1\")\n\
         $HTTP[\"url\"] =~ \"^/in/(.*)\" { url.rewrite-repeat = (\"^/in\" => \"/t.sh?in=%1\") }",
        "url.rewrite-once = (\"^/x(.*)\" => \"/t.sh?f=$1\")\n\
         $HTTP[\"querystring\"] =~ \"^f=\" { url.access-deny = (\"\") }",
        // The first that matches counts; without a replacement it ends the search.
        "url.rewrite-once = (\"^/x/y\" => \"\", \"^/x\" => \"/t.sh?x\", \"y\" => \"/t.sh?y\", \"\" => \"/a.txt\")",
        "url.rewrite-repeat = (\"^/x/y\" => \"\", \"^/x$\" => \"/x/y/z\", \"^/x/\" => \"/t.sh\")",
        // Redirects before and behind.
        "url.redirect = (\"^/in\" => \"/r\", \"^/y\" => \"/r2\")\nurl.rewrite-repeat = (\"^/x\" => \"/in\", \"^/y\" => \"/t.sh\")",
        // Files and no files.
        "url.rewrite-if-not-file = (\"^/(.*)$\" => \"/t.sh/$1?n=$1\")",
        "url.rewrite-if-not-file = (\"^/x\" => \"\", \"^/(.*)$\" => \"/a.txt\")",
        "url.rewrite-repeat-if-not-file = (\"^/x/(.*)$\" => \"/$1\", \"^/([yz].*)$\" => \"/t.sh?n=$1\")",
        "url.rewrite-once = (\"^/x\" => \"/nosuch\")\nurl.rewrite-if-not-file = (\"^/nosuch\" => \"/t.sh?n\", \"^/y\" => \"/t.sh?y\")",
        "url.rewrite-repeat = (\"^/x\" => \"/nosuch\")\nurl.rewrite-if-not-file = (\"^/nosuch\" => \"/t.sh?n\", \"^/y\" => \"/t.sh?y\")",
        "url.rewrite-repeat = (\"^/in\" => \"/t.sh?r\")\nurl.rewrite-repeat-if-not-file = (\"^/x\" => \"/in\")",
        "url.rewrite-repeat = (\"^/in\" => \"/t.sh?r\")\nurl.rewrite-if-not-file = (\"^/x\" => \"/in\")",
        // mod_alias stands behind mod_rewrite, so that its files are not seen.
        "alias.url = (\"/x/\" => var.dir + \"/elsewhere/\")\nurl.rewrite-if-not-file = (\"^/x/(.*)$\" => \"/t.sh?a=$1\")",
        // Error handlers are URLs that rules see, if none has had its say.
        "server.error-handler-404 = \"/y/404\"\nurl.rewrite-once = (\"^/y/(.*)\" => \"/t.sh?e=$1\")",
        "server.error-handler-404 = \"/y/404\"\nurl.rewrite-once = (\"^/y/(.*)\" => \"/t.sh?e=$1\", \"^/x\" => \"/nosuch\")",
        // Syntax that only PCRE has.
        "url.rewrite-once = (\"^/(?!a\\.txt|dir)(.*)$\" => \"/t.sh?n=$1\")",
        "url.rewrite-once = (\"^/(?<n>[^/?]+)(?:/(?<m>.*))?$\" => \"/t.sh?$1&$2\")",
        "url.rewrite-once = (\"(?i)^/(X|Y)(?=/)\" => \"/t.sh?$0\", \"(?<=q=)1\" => \"/t.sh?b=$0\")",
        "url.rewrite-once = (\"^/(.)(.)?.*?(\\d|$)\" => \"/t.sh?1=$1&2=$2&3=$3\")",
        // No normalised URL looks like these.
        "url.rewrite-once = (\"^/%c3%bc\" => \"/t.sh?%%c3\", \"^/a%3fb\" => \"/t.sh?lower\", \"^/a%20\" => \"/t.sh?space\")",
        "url.rewrite-once = (\"^/ü\" => \"/t.sh?ü\", \"^/A\" => \"/t.sh?letter\", \"^/x/y\" => \"/t.sh?slash\")",
    ];
    let mut targets = TARGETS.to_vec();
    targets.extend([
        "/y", "/y/1", "/z", "/x/z", "/x/f.txt", "/in", "/in/x", "/x/a.txt", "/t.sh/x", "/X/y",
    ]);
    let cases = rules.map(|rules| Case {
        rules,
        targets: &targets,
    });
    compare(&cases);
}

/// Rules put together at random, but always in the same way.
/// It takes so long because both servers answer 1650 requests, with a condition for each of 150 hosts.
#[test]
fn generated_rules() {
    let patterns = [
        "^/x",
        "^/x/(.*)$",
        "^/([^/]*)/?$",
        "^/([a-z]+)(/.*)?",
        "y",
        "\\?q=(.*)",
        "^/(x|y)/(.*)",
        "^/dir",
        "^/in/(.*)",
        "^/x(?!/)",
        "(.*)\\.txt$",
        "^/a",
        "^/x/y|^/dir",
        "^/(?:in|x)",
        "",
    ];
    let replacements = [
        "/t.sh?$0",
        "/in/$1",
        "/x/$1",
        "",
        "/a.txt",
        "/t.sh/$1?%1",
        "/dir/x.txt",
        "/y",
        "/t.sh?${esc:1}&%{2}",
        "/in$2",
    ];
    let directives = [
        "url.rewrite-once",
        "url.rewrite-repeat",
        "url.rewrite-if-not-file",
        "url.rewrite-repeat-if-not-file",
    ];
    let mut seed = 7_u64;
    let mut below = |count: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    let mut sets = Vec::new();
    for _ in 0..150 {
        let mut text = String::new();
        for directive in directives {
            // A key stands in a list once.
            let mut left: Vec<_> = patterns.to_vec();
            let count = below(4);
            let rules = (0..count).map(|_| {
                let pattern = left.swap_remove(below(left.len()));
                format!(
                    "\"{pattern}\" => \"{}\"",
                    replacements[below(replacements.len())]
                )
            });
            let rules: Vec<_> = rules.collect();
            if !rules.is_empty() {
                text.push_str(&format!("{directive} = ({})\n", rules.join(", ")));
            }
        }
        sets.push(text);
    }
    let targets = [
        "/x",
        "/x/y",
        "/x/y/z?q=1",
        "/a.txt",
        "/dir/x.txt",
        "/y?q=x",
        "/in/x",
        "/nosuch",
        "/",
        "/dir",
        "/b%20c.txt",
    ];
    let cases = sets.iter().map(|rules| Case {
        rules,
        targets: &targets,
    });
    compare(&cases.collect::<Vec<_>>());
}
