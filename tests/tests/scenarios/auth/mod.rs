//! mod_auth: clients that prove who they are, and those that cannot.

mod applications;
mod basic;
mod changed_files;
mod digest;
mod flood;
mod ldap;
mod like_lighttpd;
mod lockout;
mod nonces;
mod pam;

use petrel_tests::{Builder, Server};

/// A server that guards `/private/` by Basic, with `more` lines.
fn guarded(users: &str, more: &str) -> Builder {
    Server::build()
        .file("www/private/index.html", "private")
        .file("www/index.html", "open")
        .file("users", users)
        .config(&format!(
            "server.modules += ( \"mod_auth\", \"mod_authn_file\" )
auth.backend = \"htpasswd\"
auth.backend.htpasswd.userfile = var.dir + \"/users\"
auth.require = ( \"/private/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"valid-user\" ) )
{more}"
        ))
}

/// Who has sent a wrong password is told at once.
const HASTY: &str = "server.feature-flags += ( \"auth.delay-invalid-creds\" => \"disable\" )";

/// The users of [`USERS`]; the password of each is `secret`.
const NAMES: [&str; 9] = [
    "bcrypt", "apr1", "sha", "sha512", "sha256", "md5", "yescrypt", "older", "rounds",
];

/// Made by htpasswd, openssl and crypt(3).
const USERS: &str = "\
bcrypt:$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW
apr1:$apr1$5LPTBWS5$9d9N.kvIoYsrT/f.4F2qn1
sha:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=
sha512:$6$xcmAh5WmSZOzU401$YfrNM2LWOfMbT4tw.UlRHeiJjJnDVA54gd3mwp9eeaqDaCa8s2XCgUhFONOwC4KTigsStkWWuZA56zsscZQN3/
sha256:$5$fdALCXMT1H7jjTX2$SHOFzDt6V3scaXy3YQNwF3HZ8ewoNi.4QXubgAgFUi3
md5:$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1
yescrypt:$y$j75$k2XAnEHBqQ1Ct2aMXFKNa/$Tg4ZRR7tz/WRlmYbADZh9OJYakPewgSPQqW55EXAJ14
older:$2a$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW
rounds:$5$rounds=1234$saltsalt$ydMhzY0spDIF5JTHfydtpfMQUy9duW6XO2Sh4O5PfV1
";

/// The status that curl gets for `target` as `user`.
fn status(server: &Server, user: &str, target: &str, options: &[&str]) -> String {
    let url = server.url(target);
    let mut arguments = vec!["-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", user];
    arguments.extend_from_slice(options);
    arguments.push(&url);
    petrel_tests::curl(&arguments).text().trim().to_owned()
}
