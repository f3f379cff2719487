//! A dry run reaches nothing outside of the process, and says what would be reached.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use petrel_engine::exchange::dry_run::{DryRun, Note, StepEnd};
use petrel_engine::offline::DryRunAnswer;
use petrel_engine::testing::Site;
use petrel_modules::MODULES;

/// A document root for one test.
struct Root(PathBuf);

impl Root {
    fn new() -> Root {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("petrel-dry-run-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).expect("the temporary directory is writable");
        Root(root)
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("written");
        path.display().to_string()
    }

    fn site(&self, modules: &str, config: &str) -> Site {
        let root = self.0.display();
        let config = config.replace("ROOT", &root.to_string());
        let text =
            format!("server.modules = ( {modules} )\nserver.document-root = \"{root}\"\n{config}");
        Site::new(&text, MODULES)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // A leftover in the temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn get(target: &str, field: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{field}\r\n")
}

/// What the hooks of `module` have said, in words.
fn said(answer: &DryRunAnswer, module: &str) -> String {
    let steps = answer.record.steps.iter();
    let steps = steps.filter(|step| step.module == Some(module));
    let notes = steps.flat_map(|step| &step.notes);
    let words = notes.map(|note| match note {
        Note::Rule(_) => "a rule".to_owned(),
        Note::Backends(route) => {
            format!("{} {:?} {:?}", route.directive, route.key, route.backends)
        }
        Note::Script(path) => path.clone(),
        Note::Text(text) => text.clone(),
    });
    words.collect::<Vec<_>>().join("; ")
}

#[test]
fn backends_are_named_and_not_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("it is ours");
    let port = listener.local_addr().expect("bound").port();
    let root = Root::new();
    root.file("a.php", "");
    let config = format!(
        "fastcgi.server = ( \".php\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port} )) )
         proxy.server = ( \"/app\" => ( \"x\" => ( \"host\" => \"127.0.0.1\", \"port\" => {port} )) )"
    );
    let site = root.site("\"mod_fastcgi\", \"mod_proxy\"", &config);
    for (target, module, key) in [
        ("/a.php/i", "mod_fastcgi", ".php"),
        ("/app/x", "mod_proxy", "/app"),
    ] {
        let answer = site.dry_run(&get(target, ""), DryRun::default());
        assert_eq!(answer.record.asked, Some("backend"), "{target}");
        let said = said(&answer, module);
        assert!(
            said.contains(key) && said.contains(&format!("127.0.0.1:{port}")),
            "{said}"
        );
    }
    let reached = listener.accept().map(|(_, from)| from);
    assert_eq!(
        reached.expect_err("none").kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[test]
fn an_authorizer_is_named_and_taken_to_let_the_request_in() {
    let root = Root::new();
    root.file("a.txt", "a");
    let config = "fastcgi.server = ( \"/\" => (( \"socket\" => \"ROOT/none\",
        \"mode\" => \"authorizer\", \"check-local\" => \"disable\" )) )";
    let site = root.site("\"mod_fastcgi\"", config);
    let answer = site.dry_run(&get("/a.txt", ""), DryRun::default());
    assert!(said(&answer, "mod_fastcgi").contains("takes it to let the request in"));
    assert_eq!(answer.exchange().response.status.0, 200);
    assert_eq!(answer.record.asked, None);
}

#[test]
fn programs_and_scripts_are_named_and_not_run() {
    let root = Root::new();
    let made = root.0.join("made");
    let mark = format!(
        "local f = io.open({:?}, 'w') f:close()",
        made.display().to_string()
    );
    let script = root.file("a.lua", &mark);
    root.file("b.cml", &mark);
    root.file("c.sh", &format!("touch {}", made.display()));
    let config = "cgi.assign = ( \".sh\" => \"/bin/sh\" )\ncml.extension = \".cml\"
                  magnet.attract-raw-url-to = ( \"ROOT/a.lua\" )";
    let site = root.site("\"mod_cgi\", \"mod_cml\", \"mod_magnet\"", config);
    let answer = site.dry_run(&get("/c.sh", ""), DryRun::default());
    assert_eq!(answer.record.asked, Some("program"));
    assert!(said(&answer, "mod_cgi").starts_with("would run /bin/sh /"));
    assert_eq!(said(&answer, "mod_magnet"), script);
    let answer = site.dry_run(&get("/b.cml", ""), DryRun::default());
    assert_eq!(answer.record.asked, Some("script"));
    assert!(said(&answer, "mod_cml").ends_with("/b.cml"));
    assert!(!made.exists());
    site.dry_run(&get("/none", ""), DryRun::new(true));
    assert!(made.exists(), "it was told to run scripts");
}

#[test]
fn passwords_are_asked_for_and_not_looked_up() {
    let root = Root::new();
    root.file("a.txt", "a");
    // The file with users is missing, so a look-up would be an error.
    let config = "auth.backend = \"htpasswd\"\nauth.backend.htpasswd.userfile = \"ROOT/none\"
        auth.require = ( \"/\" => ( \"method\" => \"basic\", \"realm\" => \"r\", \"require\" => \"valid-user\" ) )";
    let site = root.site("\"mod_auth\", \"mod_authn_file\"", config);
    let status = |field: &str| {
        let answer = site.dry_run(&get("/a.txt", field), DryRun::default());
        assert!(said(&answer, "mod_auth").starts_with("a rule"));
        answer.exchange().response.status.0
    };
    assert_eq!(status(""), 401);
    assert_eq!(status("Authorization: Basic dTpw\r\n"), 200);
    assert_eq!(status("Authorization: Basic !\r\n"), 400);
}

#[test]
fn the_page_cache_neither_answers_nor_forgets() {
    let root = Root::new();
    root.file("a.txt", "a");
    let config = "page-cache.enable = \"enable\"\nexpire.url = ( \"\" => \"access plus 1 hours\" )";
    let site = root.site("\"mod_page_cache\", \"mod_expire\"", config);
    let purge = "PURGE /a.txt HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let answer = site.dry_run(&get("/a.txt", ""), DryRun::default());
    assert!(
        said(&answer, "mod_page_cache").contains("stored page"),
        "{:?}",
        answer.record
    );
    let answer = site.dry_run(purge, DryRun::default());
    let last = answer.record.steps.last().expect("a step");
    assert!(matches!(last.end, StepEnd::Answer(_)), "{last:?}");
}

#[test]
fn compression_and_limits_say_what_they_would_do() {
    let root = Root::new();
    root.file("a.html", &"a line of text\n".repeat(100));
    let config = "mimetype.assign = ( \".html\" => \"text/html\" )
        deflate.mimetypes = ( \"text/\" )\ndeflate.allowed-encodings = ( \"gzip\" )
        evasive.max-conns-per-ip = 1";
    let site = root.site("\"mod_deflate\", \"mod_evasive\"", config);
    let answer = site.dry_run(
        &get("/a.html", "Accept-Encoding: gzip\r\n"),
        DryRun::default(),
    );
    assert_eq!(
        said(&answer, "mod_deflate"),
        "would compress the answer (gzip)"
    );
    assert!(said(&answer, "mod_evasive").contains("1 at most"));
    assert_eq!(answer.exchange().response.body.length(), Some(1500));
}
