//! Replies that do not arrive or are invalid.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::remote_store::testing::Step::{Await, Closed, Hear, Say, Spell};
use crate::remote_store::testing::{
    FakeServer, loses_kept_connection, redis_at, redis_options, redis_with_timeout, run, stores,
    wire,
};
use crate::remote_store::{Kind, OperationStage, Pipeline, Value};
use crate::testing::Tree;

const GET: [&str; 2] = ["GET", "a"];
const INCR: [&str; 2] = ["INCR", "a"];

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn a_reply_may_come_in_any_pieces() {
    run(async {
        let (_site, stores) = stores();
        let script = vec![
            Hear(wire("GET a")),
            Spell(b"*2\r\n$3\r\nabc\r\n:1\r\n"),
            Closed,
        ];
        let server = FakeServer::start(vec![script]).await;
        let redis = redis_at(&stores, &server.address);
        let reply = redis.command(&GET).await.expect("a reply");
        assert_eq!(reply, Value::Array(vec![bulk("abc"), Value::Integer(1)]));
        drop((redis, stores, _site));
        server.finish().await;
    });
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_reply_is_an_error_and_not_asked_again() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![
            vec![
                Hear(wire("GET a")),
                Say(b"$1\r\nx\r\n"),
                Hear(wire("GET a")),
                Say(b"$5\r\nab"),
            ],
            vec![Hear(wire("GET a")), Say(b"$1\r\ny\r\n")],
        ])
        .await;
        let redis = redis_at(&stores, &server.address);
        assert_eq!(redis.command(&GET).await, Ok(bulk("x")));
        let error = redis.command(&GET).await.expect_err("half a reply");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Lost, OperationStage::Read)
        );
        assert!(error.text.contains("in the middle"), "{error}");
        assert_eq!(redis.command(&GET).await, Ok(bulk("y")));
        server.finish().await;
    });
}

#[test]
fn garbage_and_lengths_beyond_limits_close_the_connection() {
    run(async {
        for (reply, sentence) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "type"),
            (b"$536870912\r\nab", "longer than allowed"),
            (b"*1000000000\r\n", "larger than allowed"),
            (b"+OK\r\n+OK\r\n", "more than was asked for"),
        ] {
            let (_site, stores) = stores();
            let server = FakeServer::start(vec![
                vec![Hear(wire("GET a")), Say(reply), Closed],
                vec![Hear(wire("GET a")), Say(b"$1\r\ny\r\n")],
            ])
            .await;
            let redis = redis_at(&stores, &server.address);
            let error = redis.command(&GET).await.expect_err("no reply");
            assert_eq!(
                (error.kind, error.stage),
                (Kind::Protocol, OperationStage::Read)
            );
            assert!(error.text.contains(sentence), "{error}");
            assert_eq!(redis.command(&GET).await, Ok(bulk("y")));
            server.finish().await;
        }
    });
}

#[test]
fn bytes_without_a_command_are_no_reply_to_the_next_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let answer = |text: &[u8]| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut heard = vec![0; wire("GET a").len()];
            stream.read_exact(&mut heard).expect("a command");
            stream.write_all(text).expect("it is sent");
            stream
        };
        let mut first = answer(b"$1\r\nx\r\n");
        goes_on.recv().expect("the test has its reply");
        let more = first.write_all(b"$6\r\nsecret\r\n");
        more.expect("it is sent");
        (answer(b"$1\r\ny\r\n"), first)
    });
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, &address);
        assert_eq!(redis.command(&GET).await, Ok(bulk("x")));
        go_on.send(()).expect("the server waits");
        // The runtime does not run in between, so only the kernel knows that something has arrived.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !loses_kept_connection(&redis) {
            assert!(Instant::now() < deadline, "it has not come");
            std::thread::yield_now();
        }
        assert_eq!(redis.command(&GET).await, Ok(bulk("y")));
    });
    server.join().expect("it went as written");
}

#[test]
fn a_server_that_says_nothing_costs_the_time_out_and_its_connection() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![Hear(wire("GET a")), Closed]]).await;
        let redis = redis_with_timeout(&stores, redis_options(&server.address), 500);
        let begun = Instant::now();
        let error = redis.command(&GET).await.expect_err("no reply");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::TimedOut, OperationStage::Read)
        );
        assert!(begun.elapsed() >= Duration::from_millis(500));
        server.finish().await;
    });
}

#[test]
fn a_dropped_operation_leaves_nothing_behind() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![
            vec![Hear(wire("GET a")), Say(b"$6\r\nsec"), Closed],
            vec![Hear(wire("GET a")), Say(b"$1\r\ny\r\n")],
        ])
        .await;
        let redis = redis_at(&stores, &server.address);
        let given_up = timeout(Duration::from_millis(200), redis.command(&GET)).await;
        assert!(given_up.is_err());
        assert_eq!(redis.command(&GET).await, Ok(bulk("y")));
        server.finish().await;
    });
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_replaced_unnoticed() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![
            vec![Hear(wire("INCR a")), Say(b":1\r\n")],
            vec![Hear(wire("INCR a")), Say(b":2\r\n")],
        ])
        .await;
        let redis = redis_at(&stores, &server.address);
        for number in 1..=2 {
            assert_eq!(redis.command(&INCR).await, Ok(Value::Integer(number)));
            let is_closed = async {
                while !loses_kept_connection(&redis) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let in_time = timeout(Duration::from_secs(60), is_closed).await;
            in_time.expect("the server closes it");
        }
        server.finish().await;
    });
}

#[test]
fn what_may_have_been_done_is_not_done_again() {
    run(async {
        for (command, is_repeated) in [("GET a", true), ("INCR a", false)] {
            let (_site, stores) = stores();
            let mut scripts = vec![vec![
                Hear(wire(command)),
                Say(b":1\r\n"),
                // The server reads the command and closes the connection without a reply.
                Hear(wire(command)),
            ]];
            if is_repeated {
                scripts.push(vec![Hear(wire(command)), Say(b":2\r\n")]);
            }
            let server = FakeServer::start(scripts).await;
            let redis = redis_at(&stores, &server.address);
            let command: Vec<&str> = command.split(' ').collect();
            assert_eq!(redis.command(&command).await, Ok(Value::Integer(1)));
            match (redis.command(&command).await, is_repeated) {
                (Ok(reply), true) => assert_eq!(reply, Value::Integer(2)),
                (Err(error), false) => {
                    assert_eq!(
                        (error.kind, error.stage),
                        (Kind::Lost, OperationStage::Read)
                    );
                }
                (other, _) => panic!("{other:?}"),
            }
            server.finish().await;
        }
    });
}

#[test]
fn a_new_connection_is_not_tried_twice() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![Hear(wire("GET a"))]]).await;
        let redis = redis_at(&stores, &server.address);
        let error = redis.command(&GET).await.expect_err("no reply");
        assert_eq!(error.kind, Kind::Lost);
        assert!(error.text.contains("without a reply"), "{error}");
        server.finish().await;
    });
}

/// A server that closes a connection with one unread byte resets it, even if it has carried out the rest.
#[test]
fn a_reset_does_not_have_a_command_sent_again_that_may_have_been_carried_out() {
    run(async {
        let tree = Tree::new(&[]);
        let (_site, stores) = stores();
        let mut all_but_the_last_byte = wire("INCR a");
        all_but_the_last_byte.pop();
        let script = vec![
            Hear(wire("INCR a")),
            Say(b":1\r\n"),
            Hear(all_but_the_last_byte),
            Await,
        ];
        let server = FakeServer::start_unix(&tree.path("socket"), vec![script]);
        let redis = redis_at(&stores, &server.address);
        assert_eq!(redis.command(&INCR).await, Ok(Value::Integer(1)));
        let error = redis.command(&INCR).await.expect_err("no reply");
        assert_eq!(error.kind, Kind::Lost);
        server.finish().await;
    });
}

#[test]
fn a_pipeline_that_ends_early_is_an_error() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![
            Hear([wire("GET a"), wire("GET a")].concat()),
            Say(b"$1\r\nx\r\n"),
        ]])
        .await;
        let redis = redis_at(&stores, &server.address);
        let mut pipeline = Pipeline::new();
        for _ in 0..2 {
            pipeline.add(&GET).expect("it can be sent");
        }
        let error = redis
            .pipeline(&pipeline)
            .await
            .expect_err("one reply is missing");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Lost, OperationStage::Read)
        );
        server.finish().await;
    });
}

#[test]
fn an_error_reply_is_what_the_server_said() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![
            Hear(wire("INCR a")),
            Say(b"-ERR value is not an integer\r\n"),
            Hear([wire("GET a"), wire("INCR a")].concat()),
            Say(b"$1\r\nx\r\n-ERR no\r\n"),
        ]])
        .await;
        let redis = redis_at(&stores, &server.address);
        let error = redis.command(&INCR).await.expect_err("an error");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Said, OperationStage::Read)
        );
        let shown = format!(
            "redis {}: read: ERR value is not an integer",
            server.address
        );
        assert_eq!(error.to_string(), shown);
        let mut pipeline = Pipeline::new();
        pipeline.add(&GET).expect("it can be sent");
        pipeline.add(&INCR).expect("it can be sent");
        let expected = vec![bulk("x"), Value::Error(b"ERR no".into())];
        assert_eq!(redis.pipeline(&pipeline).await, Ok(expected));
        server.finish().await;
    });
}

#[test]
fn commands_that_take_a_connection_are_refused_before_anything_is_sent() {
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, "127.0.0.1:1");
        for command in [
            &["SUBSCRIBE", "a"][..],
            &["monitor"],
            &["CLIENT", "REPLY", "OFF"],
            &[],
            &[""],
        ] {
            let error = redis.command(command).await.expect_err("refused");
            assert_eq!(
                (error.kind, error.stage),
                (Kind::Refused, OperationStage::Request)
            );
        }
        assert_eq!(redis.pipeline(&Pipeline::new()).await, Ok(vec![]));
        let debug = format!("{:?}", {
            let mut options = redis_options("a:1");
            options.password = b"hush".into();
            options
        });
        assert!(!debug.contains("hush") && !debug.contains("104"), "{debug}");
    });
}
