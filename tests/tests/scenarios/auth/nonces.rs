//! Digests that are sent again, and nonces that are too old, on every worker and behind a reload.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use petrel_tests::{Server, eventually, is_installed, skip};
use rustix::process::Signal;

const CONFIG: &str = "server.modules += ( \"mod_auth\", \"mod_authn_file\" )
auth.backend = \"plain\"
auth.backend.plain.userfile = var.dir + \"/plain\"
auth.require = ( \"/\" => ( \"method\" => \"digest\", \"realm\" => \"R\", \"require\" => \"user=anna\",
  \"algorithm\" => \"SHA-256\", \"nonce-secret\" => \"shared\" ) )";

/// What `openssl dgst -sha256` makes of `text`, in hexadecimal digits.
fn sha256(text: &str, options: &[&str]) -> String {
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha256", "-r"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl is installed");
    let mut input = child.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends").stdout;
    let text = String::from_utf8(output).expect("digits");
    let digits = text.split(' ').next();
    digits.expect("a hash").to_owned()
}

fn hmac(key: &str, text: &str) -> String {
    let key = format!("hexkey:{key}");
    sha256(text, &["-mac", "HMAC", "-macopt", &key])
}

/// The field of a client that was given its nonce `age_s` seconds ago by a server with `secret`.
fn field(secret: &str, age_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = i64::try_from(now.expect("behind 1970").as_secs()).expect("not that late");
    let begin = format!("{:x}:0123456789abcdef", now_s - age_s);
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let signature = hmac(&hmac(&hex, "R"), &begin);
    let nonce = format!("{begin}:{}", &signature[..32]);
    let password = sha256("anna:R:pw", &[]);
    let request = sha256("GET:/f.txt", &[]);
    let response = sha256(
        &format!("{password}:{nonce}:00000001:cn:auth:{request}"),
        &[],
    );
    format!(
        "Digest username=\"anna\", realm=\"R\", nonce=\"{nonce}\", uri=\"/f.txt\", algorithm=SHA-256, \
         qop=auth, nc=00000001, cnonce=\"cn\", response=\"{response}\""
    )
}

/// Sends `field` by so many connections that each worker gets some.
fn expect(server: &Server, field: &str, status: u16, is_stale: bool) {
    for _ in 0..8 {
        let fields = [("Authorization", field)];
        let answer = server.client().request("GET", "/f.txt", &fields);
        assert_eq!(answer.status, status, "{field}");
        let challenge = answer.field("WWW-Authenticate").unwrap_or_default();
        assert_eq!(challenge.contains("stale=true"), is_stale, "{challenge}");
    }
}

/// It takes so long because sixteen wrong passwords, one after the other, are answered one to two seconds later.
#[test]
fn replays_end_with_their_nonce_on_all_workers_and_across_a_reload() {
    if !is_installed("openssl") {
        return skip("nonces", "openssl is not installed");
    }
    let server = Server::build()
        .file("www/f.txt", "private")
        .file("plain", "anna:pw\n")
        .config("server.max-worker = 2")
        .config(CONFIG)
        .start();
    let fresh = field("shared", 30);
    let expect_all = || {
        expect(&server, &fresh, 200, false);
        expect(&server, &field("shared", 700), 401, true);
        expect(&server, &field("shared", -100), 401, true);
        expect(&server, &field("other", 30), 401, true);
        // With a good nonce and a wrong proof the user is asked anew.
        let wrong = fresh.replace("nc=00000001", "nc=00000002");
        expect(&server, &wrong, 401, false);
    };
    expect_all();
    let tagged = format!("server.tag = \"new\"\n{}", server.configuration());
    server.write_configuration(&tagged);
    server.signal(Signal::USR1);
    assert!(eventually(|| {
        server.get("/").field("Server") == Some("new")
    }));
    expect_all();
}
