//! gitweb with the configuration that git itself writes for lighttpd, behind digest authentication.

use std::process::{Command, Output};

use petrel_tests::{Browser, Server, Tree, can_run, free_port, skip};

/// A repository with two commits, and what `git instaweb` makes of it for lighttpd.
fn repository() -> Tree {
    let tree = Tree::new();
    git(
        &tree,
        &["init", "--quiet", "--initial-branch=main", "birds"],
    );
    for (number, text) in ["It dives.\n", "It dives.\nIt walks on water.\n"]
        .iter()
        .enumerate()
    {
        tree.write("birds/petrel.txt", text);
        git(&tree, &["-C", "birds", "add", "petrel.txt"]);
        let message = format!("Observation {number}");
        git(&tree, &["-C", "birds", "commit", "--quiet", "-m", &message]);
    }
    // git writes the configuration and then starts what it finds as lighttpd, which is not to serve here: it
    // fails.
    tree.write("bin/lighttpd", "#!/bin/sh\nexit 1\n")
        .mode("bin/lighttpd", 0o755);
    let port = format!("--port={}", free_port());
    run_git(
        &tree,
        &[
            "-C",
            "birds",
            "instaweb",
            "--local",
            "--httpd=lighttpd -f",
            &port,
        ],
    );
    tree
}

fn git(tree: &Tree, arguments: &[&str]) {
    let output = run_git(tree, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn run_git(tree: &Tree, arguments: &[&str]) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("git")
        .args(arguments)
        .current_dir(tree.root())
        .env("PATH", format!("{}:{path}", tree.path("bin").display()))
        .env("HOME", tree.root())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"].map(|name| (name, "Anna")))
        .envs(["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "anna@petrel.test")))
        .output()
        .expect("git can be run")
}

/// It takes so long because Chromium starts, and a Perl program starts anew for each page.
#[test]
fn gitweb_behind_digest_authentication_in_a_browser() {
    let test = "gitweb_behind_digest_authentication_in_a_browser";
    if !can_run(
        test,
        &[
            "git",
            "perl",
            "/usr/lib/git-core/git-instaweb",
            "/usr/share/perl5/CGI.pm",
        ],
    ) {
        return;
    }
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let tree = repository();
    // The MD5 sum of "anna:birds:secret".
    tree.write("htdigest", "anna:birds:5859986b896abe16a76f2c26bf2f2b9d\n");
    let written = tree.text("birds/.git/gitweb/lighttpd.conf");
    // Where the test's server listens and logs is the test's affair.
    let is_ours = [
        "server.port",
        "server.bind",
        "server.pid-file",
        "server.errorlog",
    ];
    let lines = written.lines();
    let lines: Vec<&str> = lines
        .filter(|line| !is_ours.iter().any(|name| line.starts_with(name)))
        .collect();
    let server = Server::build()
        .environment("GITWEB_CONFIG", &tree.path("birds/.git/gitweb/gitweb_config.perl").display().to_string())
        .config(&lines.join("\n"))
        .config("server.modules += ( \"mod_auth\" )\nauth.backend = \"htdigest\"")
        .config(&format!("auth.backend.htdigest.userfile = \"{}\"", tree.path("htdigest").display()))
        .config("auth.require = ( \"\" => ( \"method\" => \"digest\", \"realm\" => \"birds\", \"require\" => \"user=anna\" ) )")
        .start();
    for path in ["/", "/gitweb.cgi", "/static/gitweb.css"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let browser = Browser::start();
    browser.open(&server.url("/").replace("://", "://anna:secret@"));
    assert!(
        browser.is_true("document.title.startsWith('127.0.0.1 Git')"),
        "{}",
        browser.evaluate("document.title")
    );
    browser.click("table.project_list a.list");
    assert!(
        browser.is_true("document.body.innerText.includes('Observation 1')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
    // Links of the page carry no password: the browser answers each challenge by itself, with the nonce that
    // it has.
    browser.open(&server.url("/?p=.git;a=blob;f=petrel.txt;hb=HEAD"));
    assert!(
        browser.is_true("document.body.innerText.includes('water.')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
    // Style and script of gitweb are files behind the same password.
    assert!(browser.is_true("Array.from(document.styleSheets).some(s => s.href.endsWith('gitweb.css') && s.cssRules.length > 50)"));
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
