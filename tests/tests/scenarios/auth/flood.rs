//! Many passwords at once.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use petrel_tests::Client;
use petrel_tests::http2::Http2Client;

use crate::auth::guarded;
use crate::auth::like_lighttpd::base64;

/// Cost 12: a fourth of a second of a processor.
const SLOW: &str = "anna:$2y$12$";

#[test]
fn passwords_of_one_client_do_not_slow_others() {
    let fast = "bob:$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW\n";
    let slow = format!("{SLOW}abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n");
    let server = guarded(
        &format!("{fast}{slow}"),
        "auth.cache = ( \"max-age\" => 600 )",
    )
    .start();
    let get = |user: &str| {
        format!(
            "GET /private/ HTTP/1.1\r\nHost: petrel.test\r\nAuthorization: Basic {user}\r\n\r\n"
        )
    };
    // bob:secret
    let bob = get("Ym9iOnNlY3JldA==");
    let mut known = server.client();
    assert_eq!(known.send(&bob).response().status, 200);

    // More wrong passwords than may wait for one address.
    let mut flood: Vec<Client> = (0..60)
        .map(|number| {
            let mut client = server.client();
            let pair = format!("anna:wrong{number}");
            client.send(get(&base64(pair.as_bytes())));
            client
        })
        .collect();
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let begun = Instant::now();
        assert_eq!(known.send(&bob).response().status, 200);
        longest = longest.max(begun.elapsed());
    }
    // A worker that hashed the passwords of its thirty clients itself would need more than seven seconds.
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    let mut client = server.client();
    assert_eq!(client.get("/").status, 200);

    // Those for which there was no room were told so.
    let refused = flood.iter_mut().rev().find_map(|client| {
        let answer = client.response();
        (answer.status == 503).then(|| answer.field("Retry-After").map(str::to_owned))
    });
    assert_eq!(refused, Some(Some("2".to_owned())));
    server.expect_log("too many passwords wait to be hashed");
}

#[test]
fn a_page_of_many_files_is_let_in_without_a_cache() {
    // Cost 11: it takes longer than to ask for all.
    let hash = "$2b$11$abcdefghijklmnopqrstuuViuGI07N4McP9Kl.tD6XMEzyuvcY8LG";
    let h2c = "server.h2c = \"enable\"";
    let server = guarded(&format!("anna:{hash}\n"), h2c).start();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let anna = format!("Basic {}", base64(b"anna:secret"));
    let mut client = Http2Client::begin(stream, "http").with_fields(&[("authorization", &anna)]);
    let batch = client.get("/private/", 100);
    assert_eq!((batch.answers, batch.ok), (100, 100));
}
