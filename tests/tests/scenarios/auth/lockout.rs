//! Wrong passwords lock out a user, for all workers, and the log tells once.

use petrel_tests::{Server, eventually};

use crate::auth::{HASTY, USERS, guarded, status};

const LOCKOUT: &str = "server.modules += ( \"mod_status\" )
status.statistics-url = \"/counters\"
server.max-worker = 2
auth.cache = ( \"max-age\" => 600 )
auth.lockout = ( \"failures\" => 3, \"within\" => 600, \"for\" => 2 )";

fn counter(server: &Server, name: &str) -> u64 {
    let text = server.get("/counters").text();
    let prefix = format!("auth.lockout.{name}: ");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    lines
        .next()
        .expect("it is counted")
        .parse()
        .expect("a number")
}

#[test]
fn guesses_end_and_who_is_logged_in_goes_on() {
    let server = guarded(USERS, &format!("{HASTY}\n{LOCKOUT}")).start();
    let ask = |user: &str| status(&server, user, "/private/", &[]);
    // Both are slow hashes: one is remembered.
    assert_eq!(ask("bcrypt:secret"), "200");
    for user in ["bcrypt", "sha512"] {
        for number in 0..3 {
            assert_eq!(ask(&format!("{user}:wrong{number}")), "401", "{user}");
        }
        assert_eq!(ask(&format!("{user}:wrong3")), "429", "{user}");
    }
    assert_eq!(ask("sha512:secret"), "429");
    assert_eq!(ask("bcrypt:secret"), "200");
    assert_eq!(ask("apr1:secret"), "200");
    assert_eq!(server.get("/").status, 200);
    server.expect_log("locked out for 2 s after 3 wrong passwords: this user from this address: username: sha512 IP: 127.0.0.1");
    let lines = server.log();
    let told = lines.lines().filter(|line| line.contains("locked out"));
    assert_eq!(told.count(), 2);
    assert_eq!(
        (counter(&server, "failures"), counter(&server, "begun")),
        (6, 2)
    );
    assert!(counter(&server, "refused") >= 3);
    assert!(eventually(|| ask("sha512:secret") == "200"));
}

#[test]
fn users_of_a_file_are_counted_as_the_file_spells_them() {
    let users =
        "alice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\nAlice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n";
    let lockout = "auth.lockout = ( \"failures\" => 3, \"address-failures\" => 0 )";
    let server = guarded(users, &format!("{HASTY}\n{lockout}")).start();
    let ask = |user: &str| status(&server, user, "/private/", &[]);
    for number in 0..3 {
        assert_eq!(ask(&format!("alice:wrong{number}")), "401");
    }
    assert_eq!(ask("alice:secret"), "429");
    assert_eq!(ask("Alice:secret"), "200");
    // Nor does the right password of the one end the count of the other.
    assert_eq!(ask("alice:secret"), "429");
}
