//! PAM says whose password is right: real services of the system, with modules that hang and crash.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use petrel_tests::{Builder, SOON, Server, eventually, run, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::auth::{HASTY, status};

/// A file in /etc/pam.d, which is removed in the end.
struct Service(String);

impl Service {
    fn new(name: &str, content: &str) -> Service {
        let service = Service(format!("petrel-test-{name}-{}", std::process::id()));
        std::fs::write(service.path(), content).expect("root may write there");
        service
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/etc/pam.d").join(&self.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

fn can_run(test: &str) -> bool {
    let modules = ["/usr/lib", "/lib"]
        .iter()
        .filter_map(|library| std::fs::read_dir(library).ok())
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("security/pam_exec.so"));
    let has_modules = modules.into_iter().any(|module| module.exists());
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root may write to /etc/pam.d");
        return false;
    }
    if !has_modules {
        skip(test, "pam_exec.so is not installed");
        return false;
    }
    true
}

/// What pam_exec runs: anna, bob and gone have the password secret, and gone no account. With the password
/// hang it does not end, with crash it kills the process that asks, and with tell it writes who has asked.
const SCRIPT: &str = r#"#!/bin/sh
cd 'DIRECTORY' || exit 1
[ "$PAM_TYPE" = account ] && { [ "$PAM_USER" != gone ]; exit; }
password=$(tr -d '\000')
case "$password" in
    hang) echo $$ >> hanging; exec sleep 1000 ;;
    crash) kill -9 "$PPID"; sleep 1000 ;;
    tell) echo "$PAM_USER $PAM_RHOST $PAM_SERVICE" > told; cut -d' ' -f4 "/proc/$PPID/stat" > helper; exit 0 ;;
    secret) case "$PAM_USER" in anna|bob|gone) exit 0 ;; esac ;;
esac
exit 1
"#;

/// A server whose users PAM knows by [`SCRIPT`]; `/staff/` is for a group. The service lasts as long as what
/// comes with the server.
fn asking(name: &str, more: &str) -> (Builder, Service) {
    let mut root = PathBuf::new();
    let rule = |prefix: &str, require: &str| {
        format!(
            "\"/{prefix}/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"{require}\" )"
        )
    };
    let rules = [
        rule("private", "valid-user"),
        rule("staff", "user=bob|group=staff"),
    ];
    let builder = Server::build()
        .file("www/private/index.html", "private")
        .file("www/staff/index.html", "staff")
        .file("www/index.html", "open")
        .file("groups", "staff: anna\n")
        .tree(|tree| {
            root = tree.root().to_owned();
            let content = SCRIPT.replace("DIRECTORY", &root.display().to_string());
            tree.write("check", content).mode("check", 0o755);
        });
    let script = root.join("check").display().to_string();
    let service = Service::new(
        name,
        &format!(
            "auth required pam_exec.so expose_authtok quiet {script}\naccount required pam_exec.so quiet {script}\n"
        ),
    );
    let builder = builder.config(&format!(
        "server.modules += ( \"mod_auth\", \"mod_authn_pam\" )
auth.backend = \"pam\"
auth.backend.pam.opts = ( \"service\" => \"{}\" )
auth.backend.plain.groupfile = var.dir + \"/groups\"
auth.require = ( {} )
{HASTY}
{more}",
        service.0,
        rules.join(", ")
    ));
    (builder, service)
}

/// The processes whose passwords hang. The shell makes the file before it writes into it: a line without its end
/// doesn't count.
fn that_hang(server: &Server) -> Vec<String> {
    let pids = std::fs::read_to_string(server.tree().path("hanging")).unwrap_or_default();
    let lines = pids.split_inclusive('\n');
    let whole = lines.filter_map(|line| line.strip_suffix('\n'));
    whole.map(str::to_owned).collect()
}

fn is_running(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|state| !state.contains(") Z "))
}

#[test]
fn pam_says_whose_password_is_right() {
    if !can_run("auth::pam_says_whose_password_is_right") {
        return;
    }
    let (builder, service) = asking("right", "");
    let server = builder.start();
    let ask = |user: &str, target: &str| status(&server, user, target, &[]);
    let long = format!("{}:secret", "a".repeat(300));
    for (user, target, expected) in [
        ("anna:secret", "/private/", "200"),
        ("bob:secret", "/private/", "200"),
        ("anna:wrong", "/private/", "401"),
        ("anna:", "/private/", "401"),
        (":secret", "/private/", "401"),
        ("none:secret", "/private/", "401"),
        // The password is right, but the account may not be used.
        ("gone:secret", "/private/", "401"),
        (&long, "/private/", "401"),
        ("anna:secret", "/staff/", "200"),
        ("bob:secret", "/staff/", "200"),
        ("anna:tell", "/private/", "200"),
    ] {
        assert_eq!(ask(user, target), expected, "{user} {target}");
    }
    assert_eq!(server.get("/private/").status, 401);
    assert_eq!(server.get("/").status, 200);
    let told = server.tree().text("told");
    assert_eq!(told.trim(), format!("anna 127.0.0.1 {}", service.0));
    server.expect_log("(mod_auth.c.853) password doesn\'t match for /private/ ");
    server.expect_log(" username: none IP: 127.0.0.1\n");
    let log = server.log();
    assert!(!log.contains("secret") && !log.contains("wrong"), "{log}");
}

/// It takes the fifteen seconds after which Petrel gives a module up.
#[test]
fn a_module_that_hangs_or_crashes_costs_its_own_request() {
    if !can_run("auth::a_module_that_hangs_or_crashes_costs_its_own_request") {
        return;
    }
    let (builder, _service) = asking("hang", "");
    let server = builder.start();
    let ask = |user: &str| status(&server, user, "/private/", &[]);
    assert_eq!(ask("anna:crash"), "503");
    server.expect_log(
        "pam: passwords cannot be checked: the process that asks PAM was killed by SIGKILL",
    );
    // On a busy machine the passwords of others may take as long as the one that hangs.
    let mut rounds = 0..5;
    let do_others_wait = rounds.all(|round| {
        std::thread::scope(|scope| {
            let hanging = scope.spawn(|| ask("anna:hang"));
            assert!(eventually(|| that_hang(&server).len() > round));
            for _ in 0..2 {
                assert_eq!(ask("bob:secret"), "200");
                assert_eq!(ask("bob:wrong"), "401");
            }
            let is_over = hanging.is_finished();
            assert_eq!(hanging.join().expect("it ends"), "503");
            is_over
        })
    });
    assert!(!do_others_wait, "others wait");
    server.expect_log("a PAM module has not answered in 15 s");
    let pid = &that_hang(&server)[0];
    assert!(eventually(|| !is_running(pid)), "{pid}");
    assert_eq!(ask("anna:secret"), "200");
}

#[test]
fn the_process_that_asks_is_started_again_and_ends_with_the_server() {
    if !can_run("auth::the_process_that_asks_is_started_again_and_ends_with_the_server") {
        return;
    }
    let (builder, service) = asking("helper", "auth.cache = ( \"max-age\" => 600 )");
    let mut server = builder.start();
    let helper = |server: &Server| {
        assert_eq!(status(server, "anna:tell", "/private/", &[]), "200");
        // The log-in is remembered afterwards: the next one has another name.
        server.tree().text("helper").trim().to_owned()
    };
    let first = helper(&server);
    let pid = first
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process");
    kill_process(pid, Signal::KILL).expect("it runs");
    assert_eq!(status(&server, "bob:secret", "/private/", &[]), "200");
    server.expect_log(
        "PAM: the process that checks passwords was killed by SIGKILL; another one is started",
    );
    assert_eq!(status(&server, "bob:tell", "/private/", &[]), "200");
    let second = server.tree().text("helper").trim().to_owned();
    assert_ne!(first, second);
    // What is remembered goes on, and another configuration has its passwords checked by the same process.
    assert_eq!(status(&server, "anna:tell", "/private/", &[]), "200");
    let tagged = format!("server.tag = \"new\"\n{}", server.configuration());
    server.write_configuration(&tagged);
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").field("Server") == Some("new")));
    assert_eq!(status(&server, "anna:secret", "/private/", &[]), "200");
    assert!(is_running(&second));
    // The helper asks for no service that no configuration names. For another one there is another helper.
    let other = Service::new(
        "other",
        &std::fs::read_to_string(service.path()).expect("it was written"),
    );
    let renamed = tagged.replace(&format!("\"{}\"", service.0), &format!("\"{}\"", other.0));
    server.write_configuration(&renamed.replace("\"new\"", "\"other\""));
    server.signal(Signal::USR1);
    assert!(eventually(
        || server.get("/").field("Server") == Some("other")
    ));
    assert_eq!(status(&server, "bob:tell", "/private/", &[]), "200");
    assert!(server.tree().text("told").trim().ends_with(&other.0));
    let second = server.tree().text("helper").trim().to_owned();
    // A configuration without PAM needs none.
    let without = tagged.replace("auth.backend = \"pam\"", "");
    server.write_configuration(&without.replace("\"new\"", "\"without\""));
    server.signal(Signal::USR1);
    assert!(eventually(
        || server.get("/").field("Server") == Some("without")
    ));
    assert_eq!(status(&server, "anna:secret", "/private/", &[]), "503");
    // The keeper has waited for it, too.
    let entry = PathBuf::from("/proc").join(&second);
    assert!(eventually(|| !entry.exists()));
    server.write_configuration(&tagged.replace("\"new\"", "\"again\""));
    server.signal(Signal::USR1);
    assert!(eventually(
        || server.get("/").field("Server") == Some("again")
    ));
    let third = helper(&server);
    // A check that is under way ends with the server, too.
    let mut slow = server.client();
    slow.send(
        "GET /private/ HTTP/1.1\r\nHost: petrel.test\r\nAuthorization: Basic Ym9iOmhhbmc=\r\n\r\n",
    );
    assert!(eventually(|| that_hang(&server).len() == 1));
    let hanging = &that_hang(&server)[0];
    server.signal(Signal::TERM);
    assert!(server.wait(SOON).is_some());
    assert!(eventually(|| !is_running(&third) && !is_running(hanging)));
}

#[test]
fn wrong_passwords_lock_out_and_a_flood_leaves_room() {
    if !can_run("auth::wrong_passwords_lock_out_and_a_flood_leaves_room") {
        return;
    }
    let more =
        "auth.cache = ( \"max-age\" => 600 )\nauth.lockout = ( \"failures\" => 3, \"for\" => 600 )";
    let (builder, _service) = asking("lockout", more);
    let server = builder.start();
    let ask = |user: &str| status(&server, user, "/private/", &[]);
    assert_eq!(ask("anna:secret"), "200");
    for number in 0..3 {
        // One count for all spellings: many services take them for the same user.
        let user = ["anna", "Anna", "ANNA"][number];
        assert_eq!(ask(&format!("{user}:wrong{number}")), "401");
    }
    assert_eq!(ask("anna:wrong"), "429");
    assert_eq!(ask("anna:secret"), "200", "it is remembered");
    assert_eq!(ask("bob:secret"), "200");
}

/// It takes so long because the passwords wait for a module that hangs.
#[test]
fn passwords_of_one_address_beyond_the_queue_are_refused_at_once_and_hold_up_no_other() {
    if !can_run("auth::passwords_of_one_address_beyond_the_queue_are_refused_at_once") {
        return;
    }
    let (builder, _service) = asking("queue", "");
    let server = builder.start();
    // A password that waits is given up before the check of one that hangs ends.
    let hang = |user: String| status(&server, &user, "/private/", &["-m", "12"]);
    let hangs = || that_hang(&server).len();
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || hang(format!("begun{number}:hang"))))
            .collect();
        assert!(eventually(|| hangs() == 8), "{} hang", hangs());
        let waiting: Vec<_> = (0..37)
            .map(|number| scope.spawn(move || hang(format!("waiting{number}:hang"))))
            .collect();
        server.expect_log("pam: passwords cannot be checked: 32 passwords of this address wait");
        let other = ["--interface", "127.0.0.2"];
        assert_eq!(status(&server, "bob:secret", "/private/", &other), "200");
        assert_eq!(hangs(), 8, "it did not wait for one of them");
        let count = |clients: Vec<std::thread::ScopedJoinHandle<'_, String>>, wanted| {
            let statuses = clients.into_iter().map(|client| client.join());
            let statuses = statuses.map(|status| status.expect("it ends"));
            statuses.filter(|status| status == wanted).count()
        };
        assert_eq!(count(waiting, "503"), 5);
        assert_eq!(count(begun, "000"), 8);
    });
}

#[test]
fn what_cannot_work_is_told_at_the_start() {
    let check = |opts: &str| {
        Server::build()
            .config(&format!(
                "server.modules += ( \"mod_auth\" )\nauth.backend = \"pam\"\nauth.backend.pam.opts = ( {opts} )\n\
                 auth.require = ( \"/\" => ( \"method\" => \"digest\", \"realm\" => \"R\", \"require\" => \"valid-user\" ) )"
            ))
            .check(&["-tt"])
    };
    for (opts, expected) in [
        (
            "\"colour\" => \"red\"",
            "auth.backend.pam.opts knows service alone",
        ),
        (
            "\"service\" => \"../shadow\"",
            "service is the name of a file in /etc/pam.d",
        ),
        (
            "\"service\" => \"\"",
            "service is the name of a file in /etc/pam.d",
        ),
    ] {
        let checked = check(opts);
        assert_ne!(checked.code(), 0, "{opts}");
        assert!(checked.errors.contains(expected), "{}", checked.errors);
    }
    let checked = check("");
    let told = "digest needs passwords that can be read";
    assert!(checked.errors.contains(told), "{}", checked.errors);
}

/// An account of the system, which is removed in the end.
struct Account(String);

impl Account {
    fn new(password: &str) -> Option<Account> {
        let account = Account(format!("petreltest{}", std::process::id()));
        let mut add = Command::new("useradd");
        add.args([
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            &account.0,
        ]);
        if run(&mut add, Duration::from_secs(20)).code() != 0 {
            return None;
        }
        let mut set = Command::new("chpasswd");
        let mut child = set.stdin(Stdio::piped()).spawn().ok()?;
        let line = format!("{}:{password}\n", account.0);
        std::io::Write::write_all(&mut child.stdin.take()?, line.as_bytes()).ok()?;
        child.wait().ok()?.success().then_some(account)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = run(
            Command::new("userdel").arg(&self.0),
            Duration::from_secs(20),
        );
    }
}

#[test]
fn accounts_of_the_system_are_checked_with_the_rights_of_the_keeper() {
    let test = "auth::accounts_of_the_system_are_checked_with_the_rights_of_the_keeper";
    if !can_run(test) {
        return;
    }
    let Some(account) = Account::new("correct horse") else {
        return skip(test, "useradd and chpasswd cannot make an account");
    };
    let (builder, service) = asking(
        "unix",
        "server.username = \"nobody\"\nserver.groupname = \"nogroup\"",
    );
    let unix = "auth required pam_unix.so\naccount required pam_unix.so\n";
    std::fs::write(service.path(), unix).expect("root may write there");
    let server = builder.start();
    let ask = |password: &str| {
        let user = format!("{}:{password}", account.0);
        status(&server, &user, "/private/", &[])
    };
    assert_eq!(ask("correct horse"), "200");
    // pam_unix asks for a pause of two seconds, which Petrel does not grant.
    let at_once = || {
        let begun = Instant::now();
        assert_eq!(ask("wrong"), "401");
        begun.elapsed() < Duration::from_millis(1500)
    };
    assert!(eventually(at_once), "it takes as long as pam_unix wants");
    assert_eq!(
        status(&server, "none:correct horse", "/private/", &[]),
        "401"
    );
}
