//! Backends and clients that do anything at any time. Every response is complete or visibly cut short,
//! belongs to its own request, and nothing is left behind.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel_tests::{
    Backend, Client, ClientError, Exchange, Server, Speaks, eventually, fastcgi_record,
};

use crate::gateway::{in_front_of_with, name, post};

/// Random numbers that are the same in each run (splitmix64), except that threads take them in varying order.
struct Random(AtomicU64);

impl Random {
    fn below(&self, bound: u64) -> u64 {
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Answers correctly or misbehaves, at random.
fn misbehave(exchange: &mut Exchange<'_>, random: &Random, speaks: Speaks) {
    let token = name(exchange).to_owned();
    if token == "calm" {
        return exchange.say("calm");
    }
    if random.below(4) > 0 {
        exchange.read_body();
    }
    exchange.pause(Duration::from_micros(random.below(600)));
    match random.below(14) {
        0 => exchange.close(),
        1 => exchange.reset(),
        2 => {
            exchange.head(200, &[("Content-Length", "1000")]);
            exchange.body(&token);
            exchange.close();
        }
        // With SCGI and uwsgi this would be a complete response.
        3 if !matches!(speaks, Speaks::Scgi | Speaks::Uwsgi) => {
            exchange.head(200, &[("Content-Type", "text/plain")]);
            exchange.reset();
        }
        4 => {
            let mut noise: Vec<u8> = (0..random.below(300))
                .map(|_| random.below(256) as u8)
                .collect();
            // A leading line end would be an empty head, and the rest its body.
            if let Some(first) = noise.first_mut() {
                *first |= 0x80;
            }
            exchange.raw(noise);
            exchange.close();
        }
        5 => exchange.raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nwrong"),
        6 => {
            exchange.raw(fastcgi_record(6, 9, b"Status: 200\r\n\r\nwrong"));
            exchange.hang();
        }
        7 => {
            exchange.half_close();
            exchange.pause(Duration::from_millis(2));
            exchange.close();
        }
        8 => {
            exchange.log("a word for the log\n");
            exchange.answer(200, &[("X-Token", &token)], token.repeat(3000));
        }
        9 if speaks == Speaks::Http => {
            exchange.raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            exchange.answer(200, &[("X-Token", &token)], &token);
        }
        _ => exchange.answer(200, &[("X-Token", &token)], &token),
    }
}

/// Sends one client's request. Returns whether the connection can be used again, or what was wrong with the
/// response.
fn ask(client: &mut Client, random: &Random, token: &str) -> Result<bool, String> {
    let target = format!("/app/{token}");
    match random.below(4) {
        0 => client.send(post(&target, &"b".repeat(random.below(90_000) as usize))),
        1 => client.send(format!(
            "PUT {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        )),
        _ => client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")),
    };
    if random.below(12) == 0 {
        return Ok(false);
    }
    match client.try_response() {
        Ok(response) if response.status == 200 => {
            let whole = token.repeat(3000);
            let is_own = response.text() == token || response.text() == whole;
            match is_own && response.field("X-Token") == Some(token) {
                true => Ok(!response.closes()),
                false => Err(format!("{token} was answered {response}")),
            }
        }
        Ok(response) if (500..505).contains(&response.status) => Ok(!response.closes()),
        Err(ClientError::Truncated(_) | ClientError::Closed) => Ok(false),
        other => Err(format!("{token}: {other:?}")),
    }
}

/// It takes so long because clients ask 18,000 times: 1,200 times for each protocol and mode.
#[test]
fn every_answer_is_whole_or_visibly_cut_off_and_belongs_to_its_question() {
    for speaks in Speaks::ALL {
        for mode in [0, 1, 2] {
            run(speaks, mode);
        }
    }
}

fn run(speaks: Speaks, mode: u8) {
    let random = std::sync::Arc::new(Random(AtomicU64::new(u64::from(mode) + 1)));
    let dice = std::sync::Arc::clone(&random);
    let backend = Backend::start(speaks, move |exchange| misbehave(exchange, &dice, speaks));
    let server = in_front_of_with(&backend, "\"read-timeout\" => 2, \"disable-time\" => 0, ")
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .config(&format!(
            "server.stream-response-body = {mode}\nserver.stream-request-body = {mode}"
        ))
        .start();
    calm(&server);
    let pid = server.processes().busiest();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|thread| {
                let (server, random) = (&server, &random);
                scope.spawn(move || client(server, random, thread))
            })
            .collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended
            .flat_map(|failures| failures.expect("no panic"))
            .collect()
    });
    assert_eq!(failures, Vec::<String>::new(), "{speaks:?}, {mode}");
    let mut posted: Vec<String> = backend
        .requests()
        .iter()
        .filter(|request| request.complete && request.param("REQUEST_METHOD") == Some("POST"))
        .filter_map(|request| request.param("REQUEST_URI").map(str::to_owned))
        .collect();
    let count = posted.len();
    assert!(count > 50, "{count}");
    posted.sort();
    posted.dedup();
    assert_eq!(
        posted.len(),
        count,
        "{speaks:?}, {mode}: what was read whole was posted again"
    );
    calm(&server);
    assert_eq!(
        server.processes().busiest(),
        pid,
        "the server process is another one"
    );
    assert!(eventually(|| server.tree().names("upload").is_empty()));
    assert!(
        eventually(|| backend.open_connections() <= 8),
        "{} connections stay",
        backend.open_connections()
    );
}

fn client(server: &Server, random: &Random, thread: usize) -> Vec<String> {
    let mut failures = Vec::new();
    let mut kept = None;
    for number in 0..200 {
        let mut client = kept.take().unwrap_or_else(|| server.client());
        match ask(&mut client, random, &format!("t{thread}n{number}e")) {
            Ok(true) => kept = Some(client),
            Ok(false) => {}
            Err(failure) => failures.push(failure),
        }
    }
    failures
}

/// Expects that the server serves as if nothing had happened.
fn calm(server: &Server) {
    assert!(eventually(|| server.get("/app/calm").text() == "calm"));
    assert_eq!(server.get("/").text(), "hello");
}
