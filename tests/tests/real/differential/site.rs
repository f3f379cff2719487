//! The tree that all configurations serve.

use petrel_tests::Tree;

/// When all files were changed: Sun, 09 Sep 2001 01:46:40 GMT.
const TIME: u64 = 1_000_000_000;

/// Files with short contents.
const FILES: [(&str, &str); 41] = [
    ("www/index.html", "<p>the index"),
    ("www/a.html", "<p>a page"),
    ("www/b c.txt", "named with a space"),
    ("www/ü.txt", "named with an umlaut"),
    ("www/empty.txt", ""),
    ("www/unknown.qqq", "?"),
    ("www/README", "read me"),
    ("www/UPPER.TXT", "upper"),
    ("www/page.php", "<?php source"),
    ("www/secret.inc", "secret"),
    ("www/a\\txt", "named with a backslash"),
    ("www/dir/index.html", "<p>index of dir"),
    ("www/dir/x.txt", "x of dir"),
    ("www/dir/b.css", "p { }"),
    ("www/dir.d/f.txt", "f of dir.d"),
    ("www/noindex/f.txt", "f of noindex"),
    ("www/noindex/f.txt~", "backup"),
    ("www/noindex/~backup", "backup"),
    ("www/noindex/.hidden", "hidden"),
    ("www/names/a & b.txt", "a and b"),
    ("www/names/<i>.txt", "italic"),
    ("www/names/sub/deep.txt", "deep"),
    ("www/names/%41.txt", "percent"),
    ("www/img/p.png", "a picture"),
    ("www/.git/config", "secret"),
    ("www/~odd/a.txt", "odd"),
    ("elsewhere/f.txt", "f of elsewhere"),
    ("elsewhere/sub/g.txt", "g of elsewhere"),
    ("errors/404.html", "<p>own page: missing"),
    ("errors/403.html", "<p>own page: forbidden"),
    ("errors/401.html", "<p>own page: who are you"),
    ("errors/500.html", "<p>own page: broken"),
    ("errors/b-404.html", "<p>page of b: missing"),
    ("hosts/a.test/htdocs/index.html", "index of a"),
    ("hosts/a.test/htdocs/h.txt", "h of a"),
    ("hosts/a.test/htdocs/sub/index.html", "sub of a"),
    ("hosts/b.test/htdocs/index.html", "index of b"),
    ("hosts/b.test/htdocs/h.txt", "h of b"),
    ("hosts/www.a.test/www/h.txt", "h of www"),
    ("homes/jan/secret", "secret of jan"),
    ("users", "anna:pw\nbob:pw\n"),
];

/// Files of users, of whom one is in a directory by letter, too.
const HOMES: [&str; 3] = [
    "homes/jan/public_html",
    "homes/eve/public_html",
    "homes/j/jan/public_html",
];

/// Tells what the program was given.
const TELL: &str = "#!/bin/sh\n\
printf 'Content-Type: text/plain\\r\\n\\r\\n'\n\
for name in REQUEST_METHOD REQUEST_URI REDIRECT_URI REDIRECT_STATUS QUERY_STRING SCRIPT_NAME SCRIPT_FILENAME PATH_INFO \
PATH_TRANSLATED DOCUMENT_ROOT SERVER_NAME SERVER_PROTOCOL CONTENT_LENGTH REMOTE_USER AUTH_TYPE HTTP_HOST HTTP_X_SENT \
HTTP_X_ADDED HTTP_X_SET HTTP_X_DROP HTTP_X_EMPTY ADDED TWICE FORCED GATEWAY_INTERFACE; do\n\
eval \"value=\\${$name-unset}\"; printf '%s=%s\\n' $name \"$value\"; done\npwd\n";

/// Programs, by name.
const PROGRAMS: [(&str, &str); 11] = [
    ("www/t.sh", TELL),
    ("elsewhere/t.sh", TELL),
    ("elsewhere/cgi/tool", TELL),
    (
        "www/status.sh",
        "#!/bin/sh\ncode=${QUERY_STRING%%[!0-9]*}\nprintf 'Status: %s Text\\r\\nContent-Type: text/plain\\r\\n\\r\\nstatus %s\\n' \"${code:-200}\" \"$code\"\n",
    ),
    (
        "www/moved.sh",
        "#!/bin/sh\ncase $QUERY_STRING in\nlocal*) printf 'Location: /t.sh?from=local\\r\\n\\r\\n';;\nabs*) printf 'Location: http://other.test/x\\r\\n\\r\\n';;\n*) printf 'Status: 302\\r\\nLocation: /a.txt\\r\\n\\r\\nmoved\\n';;\nesac\n",
    ),
    (
        "www/fields.sh",
        "#!/bin/sh\nprintf 'Content-Type: text/x-fields\\r\\nX-From-Program: p\\r\\nX-Own: program\\r\\nSet-Cookie: a=1\\r\\nSet-Cookie: b=2\\r\\nCache-Control: max-age=5\\r\\nContent-Language: en\\r\\n\\r\\nfields\\n'\n",
    ),
    ("www/bare.sh", "#!/bin/sh\nprintf 'just text\\n'\n"),
    ("www/empty.sh", "#!/bin/sh\n"),
    ("www/fails.sh", "#!/bin/sh\necho failed >&2\nexit 3\n"),
    (
        "www/big.sh",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'\nfor i in 1 2 3 4 5 6 7 8 9; do printf '%0500d\\n' $i; done\n",
    ),
    ("www/app/index.sh", TELL),
];

/// Makes the tree.
pub(crate) fn make(tree: &Tree) {
    for (path, content) in FILES {
        tree.write(path, content).modified(path, TIME);
    }
    for (path, program) in PROGRAMS {
        tree.write(path, program)
            .mode(path, 0o755)
            .modified(path, TIME);
    }
    for home in HOMES {
        for (name, content) in [
            ("index.html", "<p>home"),
            ("a.txt", "a of a user"),
            ("sub/x.txt", "x"),
            ("t.sh", TELL),
        ] {
            let path = format!("{home}/{name}");
            tree.write(&path, content).modified(&path, TIME);
        }
    }
    tree.write("www/not-x.sh", TELL).mode("www/not-x.sh", 0o644);
    let digits = "0123456789".repeat(40);
    let big = "one line of text like any other\n".repeat(600);
    for (path, content) in [
        ("www/a.txt", &digits),
        ("www/big.txt", &big),
        ("www/big.bin", &big),
    ] {
        tree.write(path, content).modified(path, TIME);
    }
    tree.symlink("a.txt", "www/link.txt")
        .symlink("../elsewhere", "www/linked");
}
