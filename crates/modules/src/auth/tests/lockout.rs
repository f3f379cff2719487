//! Wrong passwords lock out users and addresses for a time, and no client that is logged in.

use std::collections::BTreeMap;
use std::time::Duration;

use petrel_engine::exchange::Peer;
use petrel_engine::testing::Site;

use super::{ANNA, BOB, DigestClient, FILES, HASTY, TARGET, ask, digest_rule, modules, rule, site};
use crate::auth::read_counters;
use crate::testing::{Tree, refusal};

const LOCKOUT: &str = "auth.lockout = ( \"failures\" => 3, \"user-failures\" => 5, \"address-failures\" => 8, \
    \"within\" => 60, \"for\" => 30 )\n";

/// Requests come from this address now.
pub(super) fn come_from(site: &mut Site, address: &str) {
    let mut connection = site.connection();
    let address = format!("{address}:1").parse().expect("an address");
    connection.peer = Peer::Ip(address);
    site.set_connection(connection);
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    let pair = format!("{user}:{password}");
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    )
}

/// The status for `user` with a password that is wrong, and another one each time.
fn guess(site: &Site, user: &str, number: u32) -> u16 {
    ask(site, "/a/f.html", &basic(user, &format!("wrong{number}"))).status()
}

fn guarded(tree: &Tree, more: &str) -> Site {
    let rules = rule("/a/", "valid-user");
    let mut site = site(tree, &format!("{LOCKOUT}{more}auth.require = ( {rules} )"));
    come_from(&mut site, "192.0.2.1");
    site
}

fn skip(site: &Site, seconds: u64) {
    site.worker().clock().skip(Duration::from_secs(seconds));
}

fn counter(site: &Site, name: &str) -> u64 {
    let mut counters = BTreeMap::new();
    read_counters(site.worker().shared(), &mut counters);
    counters[name]
}

#[test]
fn a_user_is_locked_out_for_one_address_and_for_a_time() {
    let tree = Tree::new(FILES);
    let mut site = guarded(&tree, "");
    skip(&site, 0);
    assert_eq!(
        [1, 2, 3].map(|number| guess(&site, "anna", number)),
        [401; 3]
    );
    let answer = ask(&site, "/a/f.html", ANNA);
    assert_eq!(answer.status(), 429, "the right password is no better");
    assert_eq!(answer.field("Retry-After").as_deref(), Some("30"));
    assert_eq!(answer.field("WWW-Authenticate"), None);
    // Another user, another address, and what is not guarded.
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 200);
    assert_eq!(site.get("/open.html").status(), 200);
    come_from(&mut site, "192.0.2.2");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
    come_from(&mut site, "192.0.2.1");
    skip(&site, 29);
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 429);
    skip(&site, 1);
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
    for (name, count) in [("failures", 3), ("begun", 1), ("refused", 2)] {
        assert_eq!(counter(&site, &format!("auth.lockout.{name}")), count);
    }
}

#[test]
fn a_right_password_and_time_make_up_for_wrong_ones() {
    let tree = Tree::new(FILES);
    let site = guarded(&tree, "");
    let is_let_in = || ask(&site, "/a/f.html", ANNA).status() == 200;
    guess(&site, "anna", 1);
    guess(&site, "anna", 2);
    assert!(is_let_in());
    guess(&site, "anna", 3);
    guess(&site, "anna", 4);
    assert!(is_let_in());
    skip(&site, 60);
    for number in 5..7 {
        guess(&site, "anna", number);
    }
    skip(&site, 60);
    for number in 7..9 {
        guess(&site, "anna", number);
    }
    assert!(is_let_in());
    // A program that has an old password.
    for _ in 0..20 {
        assert_eq!(guess(&site, "anna", 9), 401);
    }
    assert!(is_let_in());
}

#[test]
fn a_user_is_guessed_from_many_addresses_and_an_address_guesses_many_users() {
    let tree = Tree::new(FILES);
    let mut site = guarded(&tree, "");
    for number in 1..=5 {
        come_from(&mut site, &format!("192.0.2.{number}"));
        assert_eq!(guess(&site, "anna", number), 401);
    }
    come_from(&mut site, "192.0.2.100");
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 429);
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 200);
    // Whether there is such a user makes no difference.
    for number in 0..8 {
        assert_eq!(guess(&site, &format!("user{number}"), number), 401);
    }
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 429);
    // The addresses of one network of IPv6 are one.
    for number in 0..8 {
        come_from(&mut site, &format!("[2001:db8::{number}]"));
        assert_eq!(guess(&site, &format!("other{number}"), number), 401);
    }
    come_from(&mut site, "[2001:db8::ffff:1]");
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 429);
    come_from(&mut site, "[2001:db8:0:1::1]");
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 200);
}

#[test]
fn a_client_by_a_unix_socket_is_no_address() {
    let tree = Tree::new(FILES);
    let mut site = guarded(&tree, "");
    let mut connection = site.connection();
    connection.peer = Peer::Unix;
    site.set_connection(connection);
    for number in 0..4 {
        assert_eq!(guess(&site, "anna", number), 401);
        assert_eq!(guess(&site, &format!("user{number}"), number), 401);
        assert_eq!(guess(&site, &format!("other{number}"), number), 401);
    }
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
    guess(&site, "anna", 4);
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 429);
    assert_eq!(ask(&site, "/a/f.html", BOB).status(), 200);
}

#[test]
fn many_addresses_lock_out_no_user_unless_that_is_set() {
    let tree = Tree::new(FILES);
    let rules = rule("/a/", "valid-user");
    let config = format!("auth.lockout = ( \"failures\" => 3 )\nauth.require = ( {rules} )");
    let mut site = site(&tree, &config);
    for number in 0..120 {
        come_from(&mut site, &format!("192.0.2.{number}"));
        assert_eq!(guess(&site, "anna", number), 401);
    }
    assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
}

#[test]
fn who_is_logged_in_stays_so() {
    let tree = Tree::new(FILES);
    // anna:pw
    tree.write("hashes", "anna:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\n");
    let hashes = "auth.backend := \"htpasswd\"\nauth.backend.htpasswd.userfile = \"ROOT/hashes\"\n";
    for backend in ["", hashes] {
        let more = format!("{backend}auth.cache = ( \"max-age\" => 600 )\n");
        let mut site = guarded(&tree, &more);
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
        come_from(&mut site, "192.0.2.2");
        for number in 0..10 {
            guess(&site, "anna", number);
        }
        come_from(&mut site, "192.0.2.3");
        for number in 10..20 {
            guess(&site, "anna", number);
        }
        // The user is locked out everywhere, but for the log-in that was there before.
        assert_eq!(guess(&site, "anna", 20), 429);
        // A client elsewhere does not learn that it has guessed the password.
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 429, "{backend}");
        come_from(&mut site, "192.0.2.1");
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200, "{backend}");
        assert_eq!(guess(&site, "anna", 21), 429);
    }
}

#[test]
fn a_client_of_digest_stays_logged_in_with_its_nonce() {
    let tree = Tree::new(FILES);
    let config = format!(
        "{LOCKOUT}auth.cache = ( \"max-age\" => 3600 )\n{}",
        digest_rule("")
    );
    let site = site(&tree, &config);
    let client = |password: &'static str, count| DigestClient {
        site: &site,
        algorithm: "MD5",
        password,
        user: "anna",
        has_userhash: false,
        count,
    };
    let logged_in = client("pw", 1);
    let nonce = logged_in.nonce(TARGET);
    let field = |count| client("pw", count).field(&nonce, TARGET);
    assert_eq!(ask(&site, TARGET, &field(1)).status(), 200);
    let attacker = client("wrong", 1);
    let other_nonce = attacker.nonce(TARGET);
    for _ in 0..3 {
        let status = ask(&site, TARGET, &attacker.field(&other_nonce, TARGET)).status();
        assert_eq!(status, 401);
    }
    let fresh = logged_in.field(&other_nonce, TARGET);
    // Neither does a second time tell that the proof is right.
    for _ in 0..2 {
        assert_eq!(ask(&site, TARGET, &fresh).status(), 429);
    }
    assert_eq!(ask(&site, TARGET, &field(2)).status(), 200);
    // The next nonce is that of a client that is logged in.
    skip(&site, 570);
    let answer = ask(&site, TARGET, &field(3));
    let info = answer.field("Authentication-Info").expect("a nonce");
    let next = info.split('"').nth(1).expect("it is quoted");
    for _ in 0..5 {
        ask(
            &site,
            TARGET,
            &attacker.field(&attacker.nonce(TARGET), TARGET),
        );
    }
    assert_eq!(ask(&site, TARGET, &fresh).status(), 429);
    let field = logged_in.field(next, TARGET);
    assert_eq!(ask(&site, TARGET, &field).status(), 200);
}

#[test]
fn without_the_directive_no_client_is_locked_out() {
    let tree = Tree::new(FILES);
    let rules = rule("/a/", "valid-user");
    for more in ["", "auth.lockout = ()\n"] {
        let site = site(&tree, &format!("{more}auth.require = ( {rules} )"));
        for number in 0..300 {
            assert_eq!(guess(&site, "anna", number), 401);
        }
        assert_eq!(ask(&site, "/a/f.html", ANNA).status(), 200);
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    let message =
        |options: &str| refusal(&format!("{HASTY}auth.lockout = ( {options} )"), &modules());
    for (options, told) in [
        (
            "\"failure\" => 1",
            "\"failure\" is none of failures, user-failures",
        ),
        ("\"failures\" => \"many\"", "failures is a number"),
        ("\"failures\" => -1", "failures is a number"),
        ("\"for\" => 0", "within and for are seconds, 1 at least"),
    ] {
        let message = message(options);
        assert!(message.contains(told), "{message}");
    }
}
