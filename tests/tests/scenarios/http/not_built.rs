//! Directives that are known but not implemented: what start-up says, and what requests get.

use petrel_tests::Server;

/// A directive that protects every request and is not implemented, and two more.
const CONFIG: &str = "trigger-before-download.download-url = \"^/\"
ssi.extension = ( \".shtml\" )
trigger-before-download.trigger-timeout = 60
trigger-before-download.debug = \"enable\"";

const COUNTS: &str = "2 directives answer 503, 2 have no effect";
const EVERY: &str = "EVERY REQUEST is answered 503 because of trigger-before-download.download-url";

#[test]
fn a_check_ends_with_a_summary() {
    let checked = Server::build().config(CONFIG).check(&["-tt"]);
    assert_eq!(checked.code(), 0, "{}", checked.errors);
    let lines: Vec<&str> = checked.errors.lines().collect();
    let [.., counts, every] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert!(counts.ends_with(COUNTS), "{counts}");
    assert!(every.contains(EVERY), "{every}");
    assert!(every.contains("petrel.conf:"), "{every}");

    // If it is set in a condition or for some URLs only, it does not affect every request.
    for some in [
        "$HTTP[\"host\"] == \"a\" { trigger-before-download.download-url = \"^/\" }",
        "auth.require = ( \"/private\" => ( \"method\" => \"basic\" ) )",
    ] {
        let checked = Server::build().config(some).check(&["-tt"]);
        let said = &checked.errors;
        assert!(said.contains("1 directive answers 503\n"), "{some}: {said}");
        assert!(!said.contains("EVERY REQUEST"), "{some}: {said}");
    }
    let checked = Server::build().check(&["-tt"]);
    assert!(!checked.errors.contains("directive"), "{}", checked.errors);
}

#[test]
fn the_log_has_the_summary_and_few_of_the_requests() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(CONFIG)
        .start();
    server.expect_log(COUNTS);
    server.expect_log(EVERY);
    let mut client = server.client();
    for number in 0..500 {
        assert_eq!(client.get(&format!("/?{number}")).status, 503);
    }
    let cause = "(authorize) trigger-before-download.download-url has no effect, so requests that it is about get 503";
    server.expect_log(&format!(
        "{cause} client=127.0.0.1 host=petrel.test request="
    ));
    server.expect_log(" times: (authorize) trigger-before-download.download-url");
    let log = server.tree().text("error.log");
    let lines = log.lines().filter(|line| line.contains(cause)).count();
    assert!(lines < 250, "{lines} lines:\n{log}");
}
