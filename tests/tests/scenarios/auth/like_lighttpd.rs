//! The same requests to lighttpd.

pub(crate) use petrel_tests::base64;
use petrel_tests::{Difference, Differential, Tree};

use crate::auth::{HASTY, NAMES, USERS};

const CONFIG: &str = "mimetype.assign = ( \".txt\" => \"text/plain\" )
server.modules += ( \"mod_auth\", \"mod_authn_file\" )
auth.backend = \"plain\"
auth.backend.plain.userfile = var.dir + \"/plain\"
auth.backend.htpasswd.userfile = var.dir + \"/users\"
auth.backend.htdigest.userfile = var.dir + \"/digests\"
auth.require = (
  \"/a/\" => ( \"method\" => \"basic\", \"realm\" => \"A b\", \"require\" => \"valid-user\" ),
  \"/a/b/\" => ( \"method\" => \"basic\", \"realm\" => \"AB\", \"require\" => \"user=bob\" ),
  \"/some\" => ( \"method\" => \"basic\", \"realm\" => \"S\", \"require\" => \"user=anna|user=empty\" ),
  \"/out/\" => ( \"method\" => \"extern\", \"realm\" => \"E\", \"require\" => \"valid-user\" )
)
$HTTP[\"host\"] == \"hashes\" { auth.backend = \"htpasswd\" }
$HTTP[\"host\"] == \"digests\" { auth.backend = \"htdigest\" }
$HTTP[\"host\"] == \"open\" { auth.require = () }";

fn make(tree: &Tree) {
    for name in ["a/f.txt", "a/b/f.txt", "some.txt", "out/f.txt", "f.txt"] {
        let path = format!("www/{name}");
        tree.write(&path, name).modified(&path, 1_700_000_000);
    }
    let plain = "bob:colon:in\r\nanna:pw\nempty:\nnocolon\n# c:x\nbob:other\nlast:nonl";
    // A file that has just been changed may be only half written: its last line would not count.
    tree.write("plain", plain).modified("plain", 1_700_000_000);
    tree.write("users", USERS);
    // Of anna:A b:pw.
    tree.write("digests", "anna:A b:4714b16cfa44b05e7c888d83576322b2\n");
}

#[test]
fn answers_are_the_same() {
    let config = format!("{CONFIG}\n{HASTY}");
    let Some(mut both) = Differential::start(&config, make) else {
        return;
    };
    let targets = [
        "/a/f.txt",
        "/a/b/f.txt",
        "/some.txt",
        "/some/x",
        "/out/f.txt",
        "/f.txt",
        "/a",
        "/%61/f.txt",
        "//a/f.txt",
        "/x/../a/f.txt",
        "/A/f.txt",
        "/a/none",
    ];
    let mut fields = vec![
        String::new(),
        "Bearer x".to_owned(),
        "Basic".to_owned(),
        "basic YW5uYTpwdw==".to_owned(),
    ];
    for pair in [
        "anna:pw",
        "anna:no",
        "bob:colon:in",
        "bob:other",
        "empty:",
        "nocolon:",
        "last:nonl",
        "c:x",
        "#c:x",
        ":",
        "anna",
    ] {
        fields.push(format!("Basic {}", base64(pair.as_bytes())));
    }
    for target in targets {
        for field in &fields {
            let mut sent = vec![("Authorization", field.as_str())];
            sent.retain(|(_, value)| !value.is_empty());
            both.request("GET", target, &sent, Difference::Page);
        }
    }
    for host in ["hashes", "digests", "open"] {
        let names = NAMES.iter().map(|name| format!("{name}:secret"));
        for pair in names.chain(["anna:pw".to_owned(), "sha:wrong".to_owned()]) {
            let field = base64(pair.as_bytes());
            let head = format!(
                "GET /a/f.txt HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {field}\r\n\r\n"
            );
            both.send(&head, Difference::Page);
        }
    }
    both.expect_no_difference();
}

#[test]
fn the_same_rules_count_behind_rewriting_and_path_info() {
    let basic = |prefix: &str, who: &str| {
        format!(
            "\"{prefix}\" => ( \"method\" => \"basic\", \"realm\" => \"{prefix}\", \"require\" => \"{who}\" )"
        )
    };
    let rules = [
        basic("/a/f.txt/secret", "user=bob"),
        basic("/a/f.txt", "user=anna"),
        basic("/a/", "valid-user"),
        basic("/x/own", "user=bob"),
    ];
    let config = format!(
        "server.modules += ( \"mod_auth\", \"mod_authn_file\", \"mod_rewrite\", \"mod_alias\" )
mimetype.assign = ( \".txt\" => \"text/plain\" )
auth.backend = \"plain\"
auth.backend.plain.userfile = var.dir + \"/plain\"
auth.require = ( {} )
url.rewrite-once = ( \"^/x(.*)\" => \"/a/f.txt\", \"^/y/(.*)\" => \"/%%61/./$1\" )
url.rewrite-if-not-file = ( \"^/z(.*)\" => \"/q/../a/b/f.txt\" )
alias.url = ( \"/al/\" => var.dir + \"/www/a/\" )
{HASTY}",
        rules.join(", ")
    );
    let Some(mut both) = Differential::start(&config, make) else {
        return;
    };
    for target in [
        "/a/f.txt",
        "/a/f.txt/secret/x",
        "/a/f.txt/%73ecret",
        "/a/f.txt/other",
        "/a/f.txt/x/../secret",
        "/a%2ff.txt%2fsecret",
        "/x",
        "/x/own",
        "/%78",
        "/y/f.txt",
        "/y/b/f.txt",
        "/y/f.txt/secret",
        "/z",
        "/z/some",
        "/al/f.txt",
        "/a/",
        "/f.txt",
    ] {
        for pair in ["", "anna:pw", "bob:colon:in", "anna:no"] {
            let field = format!("Basic {}", base64(pair.as_bytes()));
            let mut sent = vec![("Authorization", field.as_str())];
            sent.retain(|_| !pair.is_empty());
            both.request("GET", target, &sent, Difference::Page);
        }
    }
    both.expect_no_difference();
}
