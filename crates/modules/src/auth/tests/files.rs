//! Files with users: who parses them and how often, and how many hashes a log-in takes.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::testing::Site;

use super::{FILES, HASTY, ask, modules, rule};
use crate::auth::parsed_files::AccountFile;
use crate::auth::password::HashForm;
use crate::auth::password::tests::forms_hashed;
use crate::auth::users::NoFile;
use crate::testing::Tree;

/// Answers with the length of the file `users` in the document root.
static LENGTH: ModuleSpec = ModuleSpec {
    name: "mod_length",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        configure.add(Phase::Content, Length::default());
        Ok(())
    },
};

#[derive(Default)]
struct Length(OnceCell<AccountFile<ParsedLength>>);

/// What a file comes to in these tests.
struct ParsedLength {
    bytes: usize,
    thread: thread::ThreadId,
}

static PARSED: AtomicUsize = AtomicUsize::new(0);

impl Hook for Length {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let root = exchange.physical.document_root.clone();
        let path: Rc<[u8]> = [&*root, b"/users"].concat().into();
        let file = self.0.get_or_init(|| AccountFile::new(path, 0));
        let length = file.read(exchange, |content| {
            PARSED.fetch_add(1, Ordering::Relaxed);
            let (bytes, thread) = (content.len(), thread::current().id());
            (ParsedLength { bytes, thread }, None)
        });
        match length {
            Ok(length) => {
                assert_ne!(length.thread, thread::current().id());
                let outcome = exchange.answer_as_told(Status::NO_CONTENT);
                let text = length.bytes.to_string();
                exchange.response.set("X-Length", text.as_bytes());
                outcome
            }
            Err(NoFile::Cold) => Outcome::Cold,
            Err(NoFile::Parsing(pending)) => Outcome::Later(pending),
            Err(NoFile::Failed(cause)) => exchange.fail(cause),
        }
    }
}

/// Gives the file `name` another content, as if `ago_s` seconds had gone by since.
fn write(tree: &Tree, name: &str, content: &str, ago_s: u64) {
    tree.write(name, content);
    let users = std::fs::File::options().append(true).open(tree.path(name));
    let then = SystemTime::now() - Duration::from_secs(ago_s);
    let users = users.expect("it is there");
    users.set_modified(then).expect("it is the test's");
}

#[test]
fn a_file_is_parsed_by_a_thread_and_once_as_long_as_it_stays_the_same() {
    let tree = Tree::new(FILES);
    let engine = "server.stat-cache-engine = \"disable\"";
    let site = tree.site(engine, &[&LENGTH]);
    let mut parsed = 0;
    for (content, ago_s, length) in [
        ("one\n", 20, "4"),
        ("longer", 10, "6"),
        ("half\nwri", 0, "5"),
    ] {
        write(&tree, "users", content, ago_s);
        for _ in 0..20 {
            let answer = site.get("/open.html");
            assert_eq!(answer.field("X-Length").as_deref(), Some(length));
        }
        let more = PARSED.load(Ordering::Relaxed) - parsed;
        parsed += more;
        // What was changed just now is parsed once a second.
        let most = if ago_s == 0 { 4 } else { 1 };
        assert!((1..=most).contains(&more), "{content}: {more}");
    }
    site.worker().clock().skip(Duration::from_secs(3));
    let answer = site.get("/open.html");
    assert_eq!(answer.field("X-Length").as_deref(), Some("8"));
}

const BCRYPT: &str = "$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW";

fn hashes(tree: &Tree, more: &str) -> Site {
    write(
        tree,
        "hashes",
        &format!("anna:{BCRYPT}\nbob:{BCRYPT}\n"),
        100,
    );
    let config = format!(
        "{HASTY}auth.backend = \"htpasswd\"\nauth.backend.htpasswd.userfile = \"ROOT/hashes\"\n\
         auth.require = ( {} )\n{more}",
        rule("/a/", "valid-user")
    );
    tree.site(&config, &modules())
}

#[test]
fn an_unknown_user_takes_as_many_hashes_as_a_known_one() {
    let tree = Tree::new(FILES);
    for more in ["", "auth.cache = ()"] {
        let site = hashes(&tree, more);
        // anna:one of a test, carl:two of a test
        for (who, password) in [
            ("Basic YW5uYTpvbmUgb2YgYSB0ZXN0", &b"one of a test"[..]),
            ("Basic Y2FybDp0d28gb2YgYSB0ZXN0", b"two of a test"),
        ] {
            let before = forms_hashed(password).len();
            assert_eq!(ask(&site, "/a/f.html", who).status(), 401);
            assert_eq!(forms_hashed(password)[before..], [HashForm::Bcrypt]);
        }
    }
}

/// Otherwise the time would tell which names a server knows: it looks up the others faster.
#[tokio::test(flavor = "local")]
async fn the_pause_after_a_wrong_password_begins_with_the_request() {
    let tree = Tree::new(FILES);
    let delayed = "server.feature-flags := ( \"auth.delay-invalid-creds\" => \"enable\" )";
    let site = hashes(&tree, delayed);
    let request = |password: &str| {
        format!("GET /a/f.html HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {password}\r\n\r\n")
    };
    // anna:secret. From now on the worker knows all files.
    let right = site.request_async(&request("YW5uYTpzZWNyZXQ=")).await;
    assert_eq!(right.status(), 200);
    let (open, is_open) = std::sync::mpsc::channel::<()>();
    let busy = blocking::run_for(Class::Compute, Origin::PROCESSOR, move || {
        let _ = is_open.recv();
    });
    // The verdict comes ten seconds later, and the clock stands still from then on.
    let verdict = async {
        site.worker().clock().skip(Duration::from_secs(10));
        drop(open);
    };
    let wrong = request("YW5uYTp3cm9uZw==");
    let (answer, ()) = tokio::join!(site.request_async(&wrong), verdict);
    assert_eq!(answer.status(), 401);
    busy.await.expect("it ran");
}

#[tokio::test(flavor = "local")]
async fn a_password_does_not_wait_for_ever_to_be_hashed() {
    let tree = Tree::new(FILES);
    let site = hashes(&tree, "");
    let request =
        "GET /a/f.html HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YW5uYTpzZWNyZXQ=\r\n\r\n";
    // From now on the worker knows all files.
    assert_eq!(site.request_async(request).await.status(), 200);
    // The only thread is busy.
    let (open, is_open) = std::sync::mpsc::channel::<()>();
    let busy = blocking::run_for(Class::Compute, Origin::PROCESSOR, move || {
        let _ = is_open.recv();
    });
    let late = async { site.worker().clock().skip(Duration::from_secs(31)) };
    let (answer, ()) = tokio::join!(site.request_async(request), late);
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.field("Retry-After").as_deref(), Some("2"));
    drop(open);
    busy.await.expect("it ran");
    assert_eq!(site.request_async(request).await.status(), 200);
}
