//! Which rule counts for which path, and what a request has proved that is asked by several.

use petrel_engine::Exchange;
use petrel_engine::file_cache::Symlinks;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::method::Method;
use petrel_engine::subrequest::{Subrequest, SubrequestHead};
use petrel_engine::testing::Site;

use super::{ANNA, BOB, DigestClient, FILES, HASTY, TARGET, ask, digest_rule, modules, rule, site};
use crate::testing::Tree;

#[test]
fn path_info_is_a_part_of_the_url_and_asked_once() {
    let tree = Tree::new(FILES);
    let rules = [
        rule("/open.html/secret", "user=bob"),
        rule("/open.html", "user=anna"),
    ];
    for more in ["", "server.force-lowercase-filenames = \"enable\"\n"] {
        let config = format!("{more}auth.require = ( {} )", rules.join(", "));
        let site = site(&tree, &config);
        for (target, anna, bob) in [
            ("/open.html/secret/x", 401, 200),
            ("/open.html/%73ecret/x", 401, 200),
            ("/open.html/x/../secret", 401, 200),
            ("/open.html/other", 200, 401),
            ("/open.html", 200, 401),
        ] {
            let statuses = [ANNA, BOB].map(|who| ask(&site, target, who).status());
            assert_eq!(statuses, [anna, bob], "{target}");
        }
    }
}

#[test]
fn rewriting_does_not_lead_around_a_rule() {
    let tree = Tree::new(FILES);
    let mut with_rewriting = modules();
    with_rewriting.push(&crate::rewrite::MODULE);
    for rewriting in [
        "url.rewrite-once = ( \"^/x(.*)\" => \"/a/f.html\" )",
        "url.rewrite-once = ( \"^/x(.*)\" => \"/%%61/./f.html\" )",
        "url.rewrite-repeat = ( \"^/x(.*)\" => \"/y\", \"^/y\" => \"/a//f.html\" )",
        "url.rewrite-if-not-file = ( \"^/x(.*)\" => \"/n/../a/f.html\" )",
        "server.error-handler-404 = \"/a/f.html\"",
    ] {
        let config = format!(
            "{HASTY}auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/users\"\n\
             auth.require = ( {}, {} )\n{rewriting}",
            rule("/x/own", "user=bob"),
            rule("/a/", "user=anna")
        );
        let site = tree.site(&config, &with_rewriting);
        for target in ["/x", "/x/y?z", "//x", "/%78"] {
            assert_eq!(site.get(target).status(), 401, "{rewriting} {target}");
            assert_eq!(ask(&site, target, BOB).status(), 401, "{target}");
            assert_eq!(ask(&site, target, ANNA).status(), 200, "{target}");
        }
        // The rule for what is rewritten is not asked, as in lighttpd.
        let is_rewritten = rewriting.contains("rewrite-") && !rewriting.contains("not-file");
        let expected = if is_rewritten { 200 } else { 401 };
        let status = ask(&site, "/x/own", ANNA).status();
        assert_eq!(status, expected, "{rewriting}");
        assert_eq!(site.get("/open.html").status(), 200);
    }
}

/// Has what is below `/n/` answered with another file, as a script may.
static ELSEWHERE: ModuleSpec = ModuleSpec {
    name: "mod_elsewhere",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        configure.add(Phase::Resolved, Elsewhere);
        Ok(())
    },
};

struct Elsewhere;

impl Hook for Elsewhere {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.url.path().starts_with(b"/n/") {
            return Outcome::Next;
        }
        let physical = &mut exchange.physical;
        physical.relative = b"/a/f.html".to_vec();
        physical.path = [&*physical.document_root, &*physical.relative].concat();
        let file = exchange.look_up(&exchange.physical.path, Symlinks::Follow);
        exchange.physical.file = file;
        match exchange.physical.file {
            Some(_) => Outcome::Next,
            None => Outcome::Cold,
        }
    }
}

#[test]
fn the_path_that_is_opened_is_asked_for_also_behind_a_slow_hash() {
    let tree = Tree::new(FILES);
    tree.write(
        "hashes",
        "anna:$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW\n\
         bob:$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW\n",
    );
    let mut with_script = modules();
    with_script.push(&ELSEWHERE);
    let config = format!(
        "{HASTY}auth.backend = \"htpasswd\"\nauth.backend.htpasswd.userfile = \"ROOT/hashes\"\n\
         index-file.names = ( \"index.html\" )\nauth.require = ( {}, {} )",
        rule("/n/index.html", "valid-user"),
        rule("/a/", "user=bob"),
    );
    let site = tree.site(&config, &with_script);
    // anna:secret, bob:secret
    for (who, status) in [
        ("Basic YW5uYTpzZWNyZXQ=", 401),
        ("Basic Ym9iOnNlY3JldA==", 200),
    ] {
        assert_eq!(ask(&site, "/n/", who).status(), status, "{who}");
        assert_eq!(ask(&site, "/a/f.html", who).status(), status, "{who}");
    }
    assert_eq!(site.get("/n/").status(), 401);
}

#[test]
fn a_password_for_one_rule_is_no_proof_from_outside_for_another() {
    let tree = Tree::new(FILES);
    let mut with_setenv = modules();
    with_setenv.push(&crate::setenv::MODULE);
    let external = rule("/n/index.html", "valid-user").replace("basic", "extern");
    let extern_authn = "auth.extern-authn = \"enable\"\n";
    let by_name = rule("/n/index.html", "user=anna").replace("\"R\"", "\"S\"");
    let site = |more: &str, second: &str| {
        let config = format!(
            "{HASTY}auth.backend = \"plain\"\nauth.backend.plain.userfile = \"ROOT/users\"\n\
             index-file.names = ( \"index.html\" )\n{more}\n\
             auth.require = ( {second}, {} )",
            rule("/n/", "valid-user")
        );
        tree.site(&config, &with_setenv)
    };
    let ask_as = |site: &Site, who: &str| ask(site, "/n/", who).status();
    assert_eq!(ask_as(&site("", &external), ANNA), 401);
    let named = "setenv.set-environment = ( \"REMOTE_USER\" => \"carl\" )";
    assert_eq!(ask_as(&site(named, &external), ANNA), 200);
    // The password counts for both.
    assert_eq!(ask_as(&site(extern_authn, &by_name), ANNA), 200);
    assert_eq!(ask_as(&site(extern_authn, &by_name), BOB), 401);
}

fn digest_client(site: &Site) -> DigestClient<'_> {
    DigestClient {
        site,
        algorithm: "MD5",
        password: "pw",
        user: "anna",
        has_userhash: false,
        count: 1,
    }
}

#[test]
fn the_page_of_an_error_asks_for_no_other_digest() {
    let tree = Tree::new(FILES);
    let handler = "server.error-handler-404 = \"/a/f.html\"";
    let site = site(&tree, &format!("{handler}\n{}", digest_rule("")));
    let client = digest_client(&site);
    for target in ["/a/missing", "/missing"] {
        let nonce = client.nonce(TARGET);
        let answer = ask(&site, target, &client.field(&nonce, target));
        assert_eq!(
            (answer.status(), answer.body()),
            (200, &b"a"[..]),
            "{target}"
        );
        assert_eq!(site.get(target).status(), 401, "{target}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_subrequest_of_another_method_asks_for_no_other_digest() {
    let tree = Tree::new(FILES);
    let site = site(&tree, &digest_rule(""));
    let client = digest_client(&site);
    let field = client.field(&client.nonce(TARGET), TARGET);
    for (field, status) in [(field.clone(), 200), (field.replace("anna", "bob"), 401)] {
        let parent = site.unanswered(&format!(
            "GET {TARGET} HTTP/1.1\r\nHost: a.example\r\nAuthorization: {field}\r\n\r\n"
        ));
        for method in [Method::Get, Method::Head] {
            let head = SubrequestHead {
                method,
                ..SubrequestHead::get(b"/a/b/f.html")
            };
            let mut asked = Subrequest::new(&parent, head).expect("it is sound");
            let answered = site.with_clock(asked.head()).await;
            assert_eq!(answered.0, status, "{method:?}");
        }
    }
}
