//! Rules and files, by requests.

mod files;
mod lockout;
mod paths;

use std::fs::File;
use std::time::{Duration, SystemTime};

use petrel_engine::module::ModuleSpec;
use petrel_engine::testing::{Answer, Site};

use super::MODULE;
use super::digest::HashFunction;
use crate::testing::{Tree, refusal};

const FILES: &[(&str, &str)] = &[
    ("a/f.html", "a"),
    ("a/b/f.html", "ab"),
    ("n/index.html", "n"),
    ("open.html", "open"),
    ("users", "anna:pw\nbob:colon:in\nempty:\n"),
    ("groups", "staff: anna\n"),
    (
        "digests",
        // Of anna:R:pw, by MD5; of bob:R:pw, by SHA-256.
        "anna:R:55c422ac641bba899e6a3e512ae09251\n\
         bob:R:ff7fa9174fc5057dc75ac89a9af26746158f8216ea503677b05a229bb797d6c3\n",
    ),
];

/// A failed log-in is answered at once.
const HASTY: &str = "server.feature-flags = ( \"auth.delay-invalid-creds\" => \"disable\" )\n";

fn modules() -> Vec<&'static ModuleSpec> {
    vec![
        &MODULE,
        &crate::alias::MODULE,
        &crate::index_file::MODULE,
        &crate::static_file::MODULE,
    ]
}

fn site(tree: &Tree, config: &str) -> Site {
    let config = format!(
        "{HASTY}auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/users\"\n{config}"
    );
    tree.site(&config, &modules())
}

fn rule(prefix: &str, require: &str) -> String {
    format!(
        "\"{prefix}\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"{require}\" )"
    )
}

/// The answer to a request with the value `authorization`.
fn ask(site: &Site, target: &str, authorization: &str) -> Answer {
    site.request(&format!(
        "GET {target} HTTP/1.1\r\nHost: a.example\r\nAuthorization: {authorization}\r\n\r\n"
    ))
}

const ANNA: &str = "Basic YW5uYTpwdw==";
/// With another password.
const NOT_ANNA: &str = "Basic YW5uYTp3cm9uZw==";
const BOB: &str = "Basic Ym9iOmNvbG9uOmlu";
/// bob:pw
const BOB_BY_DIGEST: &str = "Basic Ym9iOnB3";
/// empty:
const EMPTY: &str = "Basic ZW1wdHk6";

#[test]
fn who_proves_nothing_is_asked() {
    let tree = Tree::new(FILES);
    let site = site(
        &tree,
        &format!("auth.require = ( {} )", rule("/a/", "valid-user")),
    );
    let answer = site.get("/a/f.html");
    assert_eq!(answer.status(), 401);
    let challenge = "Basic realm=\"R\", charset=\"UTF-8\"";
    assert_eq!(answer.field("WWW-Authenticate").as_deref(), Some(challenge));
    for authorization in [
        NOT_ANNA,
        "Bearer x",
        "Basic",
        "Basic YW5u",
        "Basic bm9ib2R5OnB3",
    ] {
        let answer = ask(&site, "/a/f.html", authorization);
        let expected = if authorization == "Basic YW5u" {
            400
        } else {
            401
        };
        assert_eq!(answer.status(), expected, "{authorization}");
        assert_eq!(answer.field("WWW-Authenticate").is_some(), expected == 401);
    }
    assert_eq!(site.get("/open.html").status(), 200);
}

#[test]
fn who_is_let_in_is_known_to_all_that_follow() {
    let tree = Tree::new(FILES);
    let site = site(
        &tree,
        &format!("auth.require = ( {} )", rule("/a/", "valid-user")),
    );
    for (authorization, user) in [(ANNA, "anna"), (BOB, "bob"), (EMPTY, "empty")] {
        let answer = ask(&site, "/a/f.html", authorization);
        assert_eq!(answer.status(), 200, "{user}");
        let environment = &answer.exchange().environment;
        assert_eq!(environment.get("REMOTE_USER"), Some(user.as_bytes()));
        assert_eq!(environment.get("AUTH_TYPE"), Some(&b"Basic"[..]));
    }
    let answer = ask(&site, "/open.html", ANNA);
    assert_eq!(answer.exchange().environment.get("REMOTE_USER"), None);
}

#[test]
fn the_first_rule_that_fits_counts() {
    let tree = Tree::new(FILES);
    for (rules, status) in [
        (["/a/b/ bob", "/a/ valid"], 401),
        (["/a/ valid", "/a/b/ bob"], 200),
    ] {
        let rules = rules.map(|text| match text.split_once(' ') {
            Some((prefix, "bob")) => rule(prefix, "user=bob"),
            Some((prefix, _)) => rule(prefix, "valid-user"),
            None => unreachable!("there is a space"),
        });
        let site = site(&tree, &format!("auth.require = ( {} )", rules.join(", ")));
        assert_eq!(ask(&site, "/a/b/f.html", ANNA).status(), status);
        assert_eq!(ask(&site, "/a/b/f.html", BOB).status(), 200);
    }
}

#[test]
fn nothing_leads_around_a_rule() {
    let tree = Tree::new(FILES);
    let rules = [
        rule("/a/", "valid-user"),
        rule("/n/index.html", "valid-user"),
    ];
    let config = format!(
        "server.force-lowercase-filenames = \"enable\"\nindex-file.names = ( \"index.html\" )\n\
         auth.require = ( {} )",
        rules.join(", ")
    );
    let site = site(&tree, &config);
    for target in [
        "/a/f.html",
        "/%61/f.html",
        "/a%2ff.html",
        "/%61%2Fb/f.html",
        "//a/f.html",
        "/a//f.html",
        "/./a/f.html",
        "/x/../a/f.html",
        "/x/%2e%2e/a/f.html",
        "/A/F.HTML",
        "/a/f.html/path/info",
        "/a/f.html?x",
        "/a/missing",
        "/n/index.html",
        "/N/Index.html",
        "/n/",
        "/n/?x",
        "http://a.example/a/f.html",
    ] {
        assert_eq!(site.get(target).status(), 401, "{target}");
    }
    assert_eq!(ask(&site, "/n/", ANNA).status(), 200);
    assert_eq!(site.get("/open.html").status(), 200);
}

#[test]
fn groups_are_those_of_the_file() {
    let tree = Tree::new(FILES);
    let rules = format!(
        "auth.require = ( {} )",
        rule("/a/", "group=staff|user=empty")
    );
    let with = format!("auth.backend.plain.groupfile = \"ROOT/groups\"\n{rules}");
    for (config, statuses) in [(&with, [200, 401, 200]), (&rules, [401, 401, 200])] {
        let site = site(&tree, config);
        let answers = [ANNA, BOB, EMPTY].map(|who| ask(&site, "/a/f.html", who).status());
        assert_eq!(answers, statuses, "{config}");
    }
}

#[test]
fn clients_of_a_named_network_need_no_password() {
    let tree = Tree::new(FILES);
    let rules = [
        rule("/a/b/", "address=10.0.0.0/8"),
        rule("/a/", "address=10.0.0.0/8|address=2001:db8::/32|user=anna"),
        rule("/n/", "valid-user"),
    ];
    let config = format!("auth.require = ( {} )", rules.join(", "));
    let mut site = site(&tree, &config);
    for (address, open, addresses_alone) in [
        ("10.1.2.3", 200, 200),
        ("[::ffff:10.1.2.3]", 200, 200),
        ("[2001:db8::7]", 200, 403),
        ("192.0.2.1", 401, 403),
        ("[::1]", 401, 403),
    ] {
        lockout::come_from(&mut site, address);
        assert_eq!(site.get("/a/f.html").status(), open, "{address}");
        assert_eq!(
            site.get("/a/b/f.html").status(),
            addresses_alone,
            "{address}"
        );
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200, "{address}");
        let wrong = ask(&site, "/a/f.html", NOT_ANNA);
        assert_eq!(wrong.status(), open, "{address}");
        assert_eq!(wrong.exchange().environment.get("REMOTE_USER"), None);
        // Another rule asks all clients.
        assert_eq!(site.get("/n/index.html").status(), 401, "{address}");
    }
}

#[test]
fn digests_serve_for_passwords() {
    let tree = Tree::new(FILES);
    let config = "auth.backend = \"htdigest\"\nauth.backend.htdigest.userfile = \"ROOT/digests\"\n";
    let site = |realm: &str| {
        let rule = rule("/a/", "valid-user").replace("\"R\"", &format!("\"{realm}\""));
        tree.site(
            &format!("{HASTY}{config}auth.require = ( {rule} )"),
            &modules(),
        )
    };
    let right = site("R");
    for (who, status) in [
        (ANNA, 200),
        (BOB_BY_DIGEST, 200),
        (NOT_ANNA, 401),
        (BOB, 401),
    ] {
        assert_eq!(ask(&right, "/a/f.html", who).status(), status, "{who}");
    }
    assert_eq!(ask(&site("S"), "/a/f.html", ANNA).status(), 401);
}

#[test]
fn users_that_cannot_be_looked_up_are_not_let_in() {
    let tree = Tree::new(FILES);
    let rules = format!("auth.require = ( {} )", rule("/a/", "valid-user"));
    for source in [
        "",
        "auth.backend = \"ldap\"",
        "auth.backend = \"plain\"",
        "auth.backend = \"htpasswd\"\nauth.backend.plain.userfile = \"ROOT/users\"",
        "auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/none\"",
        "auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/a\"",
    ] {
        let site = tree.site(&format!("{HASTY}{source}\n{rules}"), &modules());
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 503, "{source}");
        assert_ne!(site.get("/a/f.html").status(), 200, "{source}");
        assert_eq!(site.get("/open.html").status(), 200, "{source}");
    }
}

#[test]
fn without_the_module_what_is_guarded_is_closed() {
    let tree = Tree::new(FILES);
    let config = format!(
        "server.modules = ( \"mod_alias\" )\nauth.require = ( {} )",
        rule("/a/", "valid-user")
    );
    let site = tree.site(&config, crate::MODULES);
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 503);
    assert_eq!(site.get("/open.html").status(), 200);
}

#[test]
fn who_is_known_otherwise_needs_no_password() {
    let tree = Tree::new(FILES);
    let mut with_setenv = modules();
    // A variable that mod_setenv sets behind mod_auth comes too late.
    with_setenv.insert(0, &crate::setenv::MODULE);
    let answer = |user: &str, rules: &str| {
        let config = format!(
            "{HASTY}auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/users\"\n\
             setenv.set-environment = ( {user} )\n{rules}"
        );
        let answer = tree.site(&config, &with_setenv).get("/a/f.html");
        (answer.status(), answer.field("WWW-Authenticate").is_some())
    };
    let known = "\"REMOTE_USER\" => \"carl\"";
    let basic = format!("auth.require = ( {} )", rule("/a/", "user=carl"));
    let external = basic.replace("basic", "extern");
    assert_eq!(answer(known, &external), (200, false));
    assert_eq!(answer("", &external), (401, false));
    assert_eq!(
        answer(known, &external.replace("carl", "anna")),
        (401, false)
    );
    assert_eq!(answer(known, &basic), (401, true));
    let accepted = format!("auth.extern-authn = \"enable\"\n{basic}");
    assert_eq!(answer(known, &accepted), (200, false));
    assert_eq!(answer("", &accepted), (401, true));
}

#[test]
fn a_changed_file_counts() {
    let tree = Tree::new(FILES);
    let config = format!(
        "server.stat-cache-engine = \"disable\"\nauth.require = ( {} )",
        rule("/a/", "valid-user")
    );
    let site = site(&tree, &config);
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
    tree.write("users", "anna:another\n");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 401);
    tree.write("users", "\0\0\0\0\nann");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 401);
    tree.write("users", "bob:colon:in\nanna:pw");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 401, "half written");
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 200);
    let long_ago = SystemTime::now() - Duration::from_secs(10);
    let users = File::options().append(true).open(tree.path("users"));
    let users = users.expect("it is there");
    users.set_modified(long_ago).expect("it is the test's");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
}

#[test]
fn what_is_not_understood_is_refused() {
    let message = |text: &str| refusal(text, &modules());
    let rules = |options: &str| format!("auth.require = ( \"/\" => ( {options} ) )");
    for (options, told) in [
        (
            "\"realm\" => \"R\", \"require\" => \"valid-user\"",
            "method is missing",
        ),
        (
            "\"method\" => \"basic\", \"require\" => \"valid-user\"",
            "realm is missing",
        ),
        (
            "\"method\" => \"basic\", \"realm\" => \"R\"",
            "require is missing",
        ),
        (
            "\"method\" => \"none\", \"realm\" => \"R\", \"require\" => \"valid-user\"",
            "\"none\" is none of",
        ),
        ("\"metod\" => \"basic\"", "\"metod\" is none of"),
        (
            "\"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"user\"",
            "\"user\" is neither",
        ),
    ] {
        let message = message(&rules(options));
        assert!(message.contains(told), "{message}");
    }
    assert!(message("auth.backend = \"file\"").contains("there is no auth.backend"));
    assert!(message("auth.cache = ( \"age\" => 1 )").contains("max-age"));
}

/// What a client knows of Digest.
#[derive(Clone, Copy)]
struct DigestClient<'a> {
    site: &'a Site,
    algorithm: &'static str,
    password: &'static str,
    user: &'static str,
    has_userhash: bool,
    /// What it sends as nc.
    count: u32,
}

impl DigestClient<'_> {
    /// The nonce that is asked with for `target`.
    fn nonce(&self, target: &str) -> String {
        let answer = self.site.get(target);
        assert_eq!(answer.status(), 401);
        let challenge = answer.field("WWW-Authenticate").expect("a challenge");
        let (_, rest) = challenge.split_once("nonce=\"").expect("a nonce");
        rest.split('"').next().expect("its end").to_owned()
    }

    /// The field Authorization for a GET of `uri`.
    fn field(&self, nonce: &str, uri: &str) -> String {
        let hash = match self.algorithm {
            "MD5" | "MD5-sess" => HashFunction::Md5,
            "SHA-256" => HashFunction::Sha256,
            _ => HashFunction::Sha512_256,
        };
        let text = |parts: &[&str]| {
            let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
            String::from_utf8(hash.of(&parts)).expect("digits")
        };
        let mut secret = text(&[self.user, "R", self.password]);
        if self.algorithm.ends_with("-sess") {
            secret = text(&[&secret, nonce, "cn"]);
        }
        let response = text(&[
            &secret,
            nonce,
            &format!("{:08x}", self.count),
            "cn",
            "auth",
            &text(&["GET", uri]),
        ]);
        let (user, userhash) = match self.has_userhash {
            true => (text(&[self.user, "R"]), ", userhash=true"),
            false => (self.user.to_owned(), ""),
        };
        format!(
            "Digest username=\"{user}\", realm=\"R\", nonce=\"{nonce}\", uri=\"{uri}\", algorithm={}, \
             qop=auth, nc={:08x}, cnonce=\"cn\", response=\"{response}\"{userhash}",
            self.algorithm, self.count
        )
    }
}

fn digest_rule(more: &str) -> String {
    let rule = rule("/a/", "valid-user").replace("basic", "digest");
    format!(
        "auth.require = ( {} )",
        rule.replace(" )", &format!("{more} )"))
    )
}

const TARGET: &str = "/a/f.html?x=1";

#[test]
fn digests_prove_passwords() {
    let tree = Tree::new(FILES);
    let all = ", \"algorithm\" => \"MD5|MD5-sess|SHA-256|SHA-512-256\", \"userhash\" => \"enable\"";
    let plain = site(&tree, &digest_rule(all));
    let config = "auth.backend = \"htdigest\"\nauth.backend.htdigest.userfile = \"ROOT/digests\"\n";
    let htdigest = tree.site(&format!("{HASTY}{config}{}", digest_rule(all)), &modules());
    let mut count = 0;
    for (site, algorithm, user, password) in [
        (&plain, "MD5", "anna", "pw"),
        (&plain, "MD5-sess", "anna", "pw"),
        (&plain, "SHA-256", "bob", "colon:in"),
        (&plain, "SHA-512-256", "empty", ""),
        (&htdigest, "MD5", "anna", "pw"),
        (&htdigest, "SHA-256", "bob", "pw"),
    ] {
        for has_userhash in [false, true] {
            let mut client = DigestClient {
                site,
                algorithm,
                password,
                user,
                has_userhash,
                count: 1,
            };
            let nonce = client.nonce(TARGET);
            let answer = ask(site, TARGET, &client.field(&nonce, TARGET));
            assert_eq!(answer.status(), 200, "{algorithm} {user}");
            let environment = &answer.exchange().environment;
            assert_eq!(environment.get("REMOTE_USER"), Some(user.as_bytes()));
            assert_eq!(environment.get("AUTH_TYPE"), Some(&b"Digest"[..]));
            client.password = "wrong";
            let field = client.field(&nonce, TARGET);
            let answer = ask(site, TARGET, &field);
            assert_eq!(answer.status(), 401, "{algorithm} {user}");
            assert!(!answer.fields().contains("stale"));
            count += 1;
        }
    }
    assert_eq!(count, 12);
}

#[test]
fn each_algorithm_is_a_challenge() {
    let tree = Tree::new(FILES);
    let site = site(&tree, &digest_rule(", \"algorithm\" => \"MD5|SHA-256\""));
    let fields = site.get(TARGET).fields();
    let challenges: Vec<_> = fields
        .lines()
        .filter(|line| line.starts_with("WWW-"))
        .collect();
    assert_eq!(challenges.len(), 2, "{fields}");
    for (challenge, name) in challenges.iter().zip(["SHA-256", "MD5"]) {
        let begin = format!(
            "WWW-Authenticate: Digest realm=\"R\", charset=\"UTF-8\", algorithm={name}, nonce=\""
        );
        assert!(
            challenge.starts_with(&begin) && challenge.ends_with("\", qop=\"auth\""),
            "{challenge}"
        );
    }
}

#[test]
fn a_digest_is_for_one_request() {
    let tree = Tree::new(FILES);
    let site = site(&tree, &digest_rule(""));
    let client = DigestClient {
        site: &site,
        algorithm: "MD5",
        password: "pw",
        user: "anna",
        has_userhash: false,
        count: 1,
    };
    let field = || client.field(&client.nonce(TARGET), TARGET);
    for (target, status) in [
        (TARGET, 200),
        ("http://a.example/a/f.html?x=1", 200),
        ("/a/f.html", 400),
        ("/a/f.html?x=2", 400),
        ("/a/b/f.html?x=1", 400),
        ("/%61/f.html?x=1", 400),
    ] {
        assert_eq!(ask(&site, target, &field()).status(), status, "{target}");
    }
    let field = field();
    let other_method =
        format!("HEAD {TARGET} HTTP/1.1\r\nHost: a\r\nAuthorization: {field}\r\n\r\n");
    assert_eq!(site.request(&other_method).status(), 401);
    for (from, to, status) in [
        ("realm=\"R\"", "realm=\"S\"", 401),
        ("algorithm=MD5", "algorithm=SHA-256", 401),
        ("algorithm=MD5", "algorithm=none", 401),
        ("algorithm=MD5, ", "", 200),
        ("anna", "bob", 401),
        ("anna", "none", 401),
        ("qop=auth", "qop=auth-int", 400),
        ("nc=00000001", "nc=00000002", 401),
    ] {
        let answer = ask(&site, TARGET, &field.replace(from, to));
        assert_eq!(answer.status(), status, "{to}");
    }
    assert_eq!(ask(&site, TARGET, ANNA).status(), 401);
}

#[test]
fn nonces_become_stale() {
    let tree = Tree::new(FILES);
    let site = site(&tree, &digest_rule(""));
    let client = DigestClient {
        site: &site,
        algorithm: "MD5",
        password: "pw",
        user: "anna",
        has_userhash: false,
        count: 1,
    };
    let nonce = client.nonce(TARGET);
    let field = |count| DigestClient { count, ..client }.field(&nonce, TARGET);
    let ask = |count| ask(&site, TARGET, &field(count));
    assert_eq!(ask(1).field("Authentication-Info"), None);
    site.worker().clock().skip(Duration::from_secs(550));
    let answer = ask(2);
    assert_eq!(answer.status(), 200);
    let info = answer.field("Authentication-Info").expect("a new nonce");
    let next = info
        .strip_prefix("nextnonce=\"")
        .and_then(|rest| rest.strip_suffix('"'));
    let next = next.expect("a nonce").to_owned();
    site.worker().clock().skip(Duration::from_secs(60));
    let answer = ask(3);
    assert_eq!(answer.status(), 401);
    assert!(answer.fields().contains("stale=true"));
    let next = client.field(&next, TARGET);
    assert_eq!(super::tests::ask(&site, TARGET, &next).status(), 200);
    // One that this server has not made.
    let foreign = client.field(
        "6b0494a5:0000000000000000:00000000000000000000000000000000",
        TARGET,
    );
    let answer = super::tests::ask(&site, TARGET, &foreign);
    assert!(answer.fields().contains("stale=true"));
    // For that no password is tried.
    let unknown = foreign.replace("\"anna\"", "\"nobody\"");
    let answer = super::tests::ask(&site, TARGET, &unknown);
    assert_eq!(answer.status(), 401);
    assert!(answer.fields().contains("stale=true"));
}

#[test]
fn a_request_is_accepted_once() {
    let tree = Tree::new(FILES);
    // The rules apply several times: to the URL, to the index file, and to what a redirect of the server leads to.
    let config =
        "index-file.names = ( \"f.html\" )\nurl.rewrite-once = ( \"^/old$\" => \"/a/\" )\n";
    let modules = [modules(), vec![&crate::rewrite::MODULE]].concat();
    let users = "auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/users\"\n";
    let rules = digest_rule("");
    let site = tree.site(&format!("{HASTY}{users}{config}{rules}"), &modules);
    let client = DigestClient {
        site: &site,
        algorithm: "MD5",
        password: "pw",
        user: "anna",
        has_userhash: false,
        count: 1,
    };
    let nonce = client.nonce("/a/");
    let field = |target: &str, count| DigestClient { count, ..client }.field(&nonce, target);
    let ask = |target: &str, count| {
        let answer = ask(&site, target, &field(target, count));
        let is_stale = answer.fields().contains("stale=true");
        assert_eq!(is_stale, answer.status() == 401, "{target} {count}");
        answer.status()
    };
    assert_eq!(ask("/old", 1), 200);
    assert_eq!(ask("/a/", 3), 200);
    assert_eq!(ask("/a/", 2), 200, "requests overtake one another");
    for count in 1..=3 {
        assert_eq!(ask("/a/", count), 401);
    }
    // A wrong proof uses nothing up, and its user is asked anew.
    let wrong = field("/a/", 3).replace("nc=00000003", "nc=00000004");
    let answer = super::tests::ask(&site, "/a/", &wrong);
    assert_eq!(answer.status(), 401);
    assert!(!answer.fields().contains("stale"));
    assert_eq!(ask("/a/", 4), 200);
}

#[test]
fn a_hidden_name_counts_where_the_rule_allows_it() {
    let tree = Tree::new(FILES);
    for (more, status) in [("", 401), (", \"userhash\" => \"enable\"", 200)] {
        let site = site(&tree, &digest_rule(more));
        let client = DigestClient {
            site: &site,
            algorithm: "MD5",
            password: "pw",
            user: "anna",
            has_userhash: true,
            count: 1,
        };
        let field = client.field(&client.nonce(TARGET), TARGET);
        assert_eq!(ask(&site, TARGET, &field).status(), status, "{more}");
    }
}

#[test]
fn digest_needs_passwords_that_can_be_read() {
    let tree = Tree::new(FILES);
    let config = "auth.backend = \"htpasswd\"\nauth.backend.htpasswd.userfile = \"ROOT/users\"\n";
    let site = tree.site(&format!("{config}{}", digest_rule("")), &modules());
    assert_eq!(site.get(TARGET).status(), 503);
}
