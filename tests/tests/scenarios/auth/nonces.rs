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

/// The field of a client that was given its nonce `age_s` seconds ago by a server with `secret`, and that has sent
/// `count` requests with it.
fn field(secret: &str, age_s: i64, count: u32) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = i64::try_from(now.expect("behind 1970").as_secs()).expect("not that late");
    let begin = format!("{:x}:0123456789abcdef", now_s - age_s);
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let signature = hmac(&hmac(&hex, "R"), &begin);
    let nonce = format!("{begin}:{}", &signature[..32]);
    let password = sha256("anna:R:pw", &[]);
    let request = sha256("GET:/f.txt", &[]);
    let response = sha256(
        &format!("{password}:{nonce}:{count:08x}:cn:auth:{request}"),
        &[],
    );
    format!(
        "Digest username=\"anna\", realm=\"R\", nonce=\"{nonce}\", uri=\"/f.txt\", algorithm=SHA-256, \
         qop=auth, nc={count:08x}, cnonce=\"cn\", response=\"{response}\""
    )
}

fn status(server: &Server, field: &str) -> u16 {
    let fields = [("Authorization", field)];
    server.client().request("GET", "/f.txt", &fields).status
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
fn replays_are_refused_by_all_workers() {
    if !is_installed("openssl") {
        return skip("nonces", "openssl is not installed");
    }
    let server = Server::build()
        .file("www/f.txt", "private")
        .file("plain", "anna:pw\n")
        .config("server.max-worker = 2")
        .config(CONFIG)
        .start();
    let expect_all = || {
        let counted: Vec<_> = (1..=4).map(|count| field("shared", 30, count)).collect();
        // Requests overtake one another. All workers know which were accepted.
        for number in [0, 2, 1, 3] {
            assert_eq!(status(&server, &counted[number]), 200, "{number}");
            expect(&server, &counted[number], 401, true);
        }
        expect(&server, &field("shared", 700, 1), 401, true);
        expect(&server, &field("shared", -100, 1), 401, true);
        expect(&server, &field("other", 30, 1), 401, true);
        // With a good nonce and a wrong proof the user is asked anew.
        let wrong = counted[0].replace("nc=00000001", "nc=00000009");
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
