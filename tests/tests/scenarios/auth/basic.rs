//! Basic authentication with curl.

use std::time::{Duration, Instant};

use petrel_tests::{Server, eventually};

use crate::auth::{HASTY, NAMES, USERS, guarded, status};

#[test]
fn every_form_of_password_lets_in() {
    let log = "server.modules += ( \"mod_accesslog\" )
accesslog.filename = var.dir + \"/access.log\"
accesslog.format = \"user=%u %s\"";
    let server = guarded(USERS, &format!("{HASTY}\n{log}")).start();
    for name in NAMES {
        let right = status(&server, &format!("{name}:secret"), "/private/", &[]);
        let wrong = status(&server, &format!("{name}:Secret"), "/private/", &[]);
        assert_eq!((right.as_str(), wrong.as_str()), ("200", "401"), "{name}");
    }
    assert_eq!(status(&server, "none:secret", "/private/", &[]), "401");
    assert!(eventually(|| {
        let log = server.tree().text("access.log");
        NAMES
            .iter()
            .all(|name| log.contains(&format!("user={name} 200")))
    }));
    server.expect_log("(mod_auth.c.853) password doesn\'t match for /private/ ");
    server.expect_log(" username: bcrypt IP: 127.0.0.1\n");
}

#[test]
fn a_hash_that_is_not_known_is_told_and_lets_nobody_in() {
    let server = guarded("des:h0GjlpCBXl2ls\n", HASTY).start();
    assert_eq!(status(&server, "des:secret", "/private/", &[]), "401");
    server.expect_log("of a form that is not supported: username: des");
}

/// It takes so long because wrong passwords are answered one to two seconds later, one after the other.
#[test]
fn a_wrong_password_is_answered_a_second_later() {
    let server = guarded(USERS, "").start();
    let time = |user: &str| {
        let begun = Instant::now();
        assert_eq!(status(&server, user, "/private/", &[]), "401");
        begun.elapsed()
    };
    assert!(time("sha:wrong") >= Duration::from_millis(990));
    assert!(time("none:secret") >= Duration::from_millis(990));
    // Others do not wait meanwhile, and who has proved nothing is asked at once. The best of some rounds counts,
    // since the machine may be busy with something else.
    let others = || {
        let mut slow = server.client();
        slow.send(
            "GET /private/ HTTP/1.1\r\nHost: petrel.test\r\nAuthorization: Basic c2hhOng=\r\n\r\n",
        );
        let begun = Instant::now();
        assert_eq!(server.get("/private/").status, 401);
        assert_eq!(status(&server, "sha:secret", "/private/", &[]), "200");
        let took = begun.elapsed();
        assert_eq!(slow.response().status, 401);
        took
    };
    assert!(eventually(|| others() < Duration::from_millis(900)));
}

#[test]
fn a_login_is_remembered_until_the_entry_changes() {
    let users = "anna:$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW\n";
    let server = guarded(
        users,
        &format!("{HASTY}\nauth.cache = ( \"max-age\" => 600 )"),
    )
    .start();
    let ask = |password: &str| status(&server, &format!("anna:{password}"), "/private/", &[]);
    for _ in 0..3 {
        assert_eq!(ask("secret"), "200");
        assert_eq!(ask("wrong"), "401");
    }
    // Another user in front changes nothing.
    server.tree().replace("users", format!("{USERS}{users}"));
    assert_eq!(ask("secret"), "200");
    server
        .tree()
        .replace("users", "anna:{SHA}AAAAAAAAAAAAAAAAAAAAAAAAAAA=\n");
    assert!(eventually(|| ask("secret") == "401"));
    server.tree().remove("users");
    assert!(eventually(|| ask("secret") == "503"));
    server.expect_log("users cannot be looked up");
    server.tree().write("users", users);
    assert!(eventually(|| ask("secret") == "200"));
}

#[test]
fn a_file_of_a_gigabyte_lets_nobody_in() {
    let server = guarded(USERS, HASTY)
        .tree(|tree| {
            tree.set_length("users", 1 << 30);
        })
        .start();
    assert_eq!(status(&server, "sha:secret", "/private/", &[]), "503");
    assert_eq!(server.get("/private/").status, 401);
    server.expect_log("users cannot be looked up");
}

#[test]
fn the_handler_of_errors_does_not_hide_what_is_asked() {
    for handler in ["error", "none"] {
        let server = guarded(
            USERS,
            &format!("server.error-handler = \"/{handler}.html\""),
        )
        .file("www/error.html", "sorry")
        .start();
        let answer = server.get("/private/");
        assert_eq!(answer.status, 401, "{handler}");
        let challenge = "Basic realm=\"R\", charset=\"UTF-8\"";
        assert_eq!(answer.all("WWW-Authenticate"), [challenge], "{handler}");
        assert_eq!(answer.text() == "sorry", handler == "error");
    }
}

#[test]
fn the_module_alone_says_nothing() {
    // As Debian has it in conf-available/05-auth.conf.
    let config = "server.modules += ( \"mod_auth\", \"mod_authn_file\" )\nauth.debug = 0";
    let checked = Server::build().config(config).check(&["-tt"]);
    assert_eq!(checked.code(), 0);
    assert!(!checked.errors.contains("auth"), "{}", checked.errors);
}

#[test]
fn what_lets_no_client_in_or_is_unknown_is_told_with_its_line() {
    let check = |rule: &str| {
        let config = format!(
            "server.modules += ( \"mod_auth\", \"mod_authn_file\" )\nauth.backend = \"plain\"\n\
             auth.backend.plain.userfile = var.dir + \"/users\"\n\
             auth.require = ( \"/a\" => ( \"method\" => \"basic\", \"realm\" => \"R\", {rule} ) )"
        );
        Server::build()
            .file("users", "")
            .config(&config)
            .check(&["-tt"])
    };
    let host = check("\"require\" => \"user=anna|host=a.example\"");
    assert_eq!(host.code(), 0, "{}", host.errors);
    let told = "auth.require: host= lets no client in, as in lighttpd";
    assert!(host.errors.contains(told), "{}", host.errors);
    for (rule, told) in [
        (
            "\"require\" => \"valid-user\", \"colour\" => \"red\"",
            "\"colour\" is none of method, realm, require",
        ),
        (
            "\"require\" => \"owner=anna\"",
            "\"owner\" is none of user, group and address",
        ),
    ] {
        let refused = check(rule);
        assert_ne!(refused.code(), 0, "{rule}");
        assert!(refused.errors.contains(told), "{}", refused.errors);
        assert!(refused.errors.contains(".conf:"), "{}", refused.errors);
    }
}

#[test]
fn what_does_not_work_as_it_looks_is_told() {
    let rules = "auth.require = ( \"/a\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"group=g\" ), \
                 \"admin/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"valid-user\" ), \
                 \"/ab\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"valid-user\" ) )";
    for backend in ["", "auth.backend = \"gssapi\""] {
        let config = format!("server.modules += ( \"mod_auth\" )\n{backend}\n{rules}");
        let checked = Server::build().config(&config).check(&["-tt"]);
        assert_eq!(checked.code(), 0, "{}", checked.errors);
        for told in [
            "so what auth.require guards is answered 503",
            "groups have no members",
            "the rule for \"/ab\" in auth.require never counts",
            "no usual path begins with \"admin/\": its rule in auth.require guards nothing",
            "1 directive answers 503",
        ] {
            let told = match backend {
                "" => told.replace("what auth.require guards", "what it guards"),
                _ => told.to_owned(),
            };
            assert!(checked.errors.contains(&told), "{told}: {}", checked.errors);
        }
    }
}
