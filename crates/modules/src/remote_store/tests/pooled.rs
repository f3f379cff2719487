//! Which connections there are, which operation gets one, and servers that are down.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use petrel_engine::testing::Site;
use petrel_engine::worker::Drain;
use tokio::net::TcpSocket;

use crate::remote_store::testing::Step::{Closed, Hear, Pause, Say};
use crate::remote_store::testing::{
    FakeServer, redis_at, redis_options, redis_with_timeout, run, stores, wire,
};
use crate::remote_store::{Kind, OperationStage, Stores, Value, counters, limits};

const GET: [&str; 2] = ["GET", "a"];

/// An address where no server listens as long as the socket exists.
fn nowhere() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(any_port).expect("a port");
    let address = socket.local_addr().expect("it is bound").to_string();
    (socket, address)
}

#[test]
fn a_worker_that_drains_already_keeps_no_connection() {
    run(async {
        let site = Site::new("", &[]);
        site.worker().drain(Drain::Successor);
        let stores = Stores::of(site.worker());
        let script = vec![Hear(wire("GET a")), Say(b"$-1\r\n")];
        let server = FakeServer::start(vec![script]).await;
        let redis = redis_at(&stores, &server.address);
        assert_eq!(redis.command(&GET).await, Ok(Value::Nil));
        assert_eq!(redis.pool().server.kept_count(), 0);
    });
}

#[test]
fn a_connection_serves_one_operation_after_the_other() {
    run(async {
        let (site, stores) = stores();
        let mut script = Vec::new();
        for _ in 0..3 {
            script.extend([Hear(wire("GET a")), Say(b"$-1\r\n")]);
        }
        let server = FakeServer::start(vec![script]).await;
        for _ in 0..3 {
            // Clients come and go.
            let redis = redis_at(&stores, &server.address);
            assert_eq!(redis.command(&GET).await, Ok(Value::Nil));
            assert_eq!(redis.pool().server.kept_count(), 1);
        }
        let mut counted = BTreeMap::new();
        counters::read(site.worker().shared(), &mut counted);
        for (name, count) in [("requests", 3), ("connects", 1), ("failures", 0)] {
            let name = format!("store.redis {}.{name}", server.address);
            assert_eq!(counted.get(&name), Some(&count), "{name}");
        }
        server.finish().await;
    });
}

#[test]
fn a_connection_that_was_not_used_for_long_is_closed() {
    run(async {
        let (site, stores) = stores();
        let once = || vec![Hear(wire("GET a")), Say(b"$-1\r\n"), Closed];
        let server = FakeServer::start(vec![once(), once()]).await;
        let redis = redis_at(&stores, &server.address);
        let kept_after = |ms| {
            site.worker().clock().skip(Duration::from_millis(ms));
            stores.look_after(site.worker());
            redis.pool().server.kept_count()
        };
        for _ in 0..2 {
            kept_after(0);
            assert_eq!(redis.command(&GET).await, Ok(Value::Nil));
            assert_eq!(kept_after(limits::IDLE_MS_MAX - 1), 1);
            assert_eq!(kept_after(1), 0);
        }
        server.finish().await;
    });
}

#[test]
fn a_connection_that_was_not_used_for_long_is_not_used_before_it_is_closed() {
    run(async {
        let (site, stores) = stores();
        let once = || vec![Hear(wire("GET a")), Say(b"$-1\r\n"), Closed];
        let server = FakeServer::start(vec![once(), once()]).await;
        let redis = redis_at(&stores, &server.address);
        site.worker().clock().skip(Duration::ZERO);
        assert_eq!(redis.command(&GET).await, Ok(Value::Nil));
        let idle = Duration::from_millis(limits::IDLE_MS_MAX);
        site.worker().clock().skip(idle);
        assert_eq!(redis.command(&GET).await, Ok(Value::Nil));
        redis.pool().server.close_kept();
        server.finish().await;
    });
}

#[test]
fn each_connection_logs_in_and_chooses_its_database() {
    run(async {
        let (_site, stores) = stores();
        let login = [wire("AUTH me hush"), wire("SELECT 3")].concat();
        let server = FakeServer::start(vec![vec![
            Hear(login),
            Say(b"+OK\r\n+OK\r\n"),
            Hear(wire("GET a")),
            Say(b":1\r\n"),
        ]])
        .await;
        let mut options = redis_options(&server.address);
        (options.user, options.password) = (b"me".into(), b"hush".into());
        options.database = 3;
        let redis = stores.redis(&options).expect("it can be made");
        assert_eq!(redis.command(&GET).await, Ok(Value::Integer(1)));
        server.finish().await;
    });
}

#[test]
fn a_login_that_is_refused_says_why_and_is_not_tried_at_once_again() {
    run(async {
        let (_site, stores) = stores();
        let script = vec![Hear(wire("AUTH hush")), Say(b"-WRONGPASS no\r\n"), Closed];
        let server = FakeServer::start(vec![script]).await;
        let mut options = redis_options(&server.address);
        options.password = b"hush".into();
        let redis = stores.redis(&options).expect("it can be made");
        let error = redis.command(&GET).await.expect_err("refused");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Said, OperationStage::Login)
        );
        assert_eq!(error.text, "WRONGPASS no");
        let error = redis.command(&GET).await.expect_err("it is down");
        assert_eq!(
            (error.kind, &error.text[..]),
            (Kind::Down, "it is down: WRONGPASS no")
        );
        server.finish().await;
    });
}

#[test]
fn other_logins_have_other_connections() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![
            vec![
                Hear(wire("SELECT 1")),
                Say(b"+OK\r\n"),
                Hear(wire("GET a")),
                Say(b":1\r\n"),
                Closed,
            ],
            vec![
                Hear(wire("SELECT 2")),
                Say(b"+OK\r\n"),
                Hear(wire("GET a")),
                Say(b":2\r\n"),
                Closed,
            ],
        ])
        .await;
        for database in 1..=2 {
            let mut options = redis_options(&server.address);
            options.database = database;
            let redis = stores.redis(&options).expect("it can be made");
            let reply = redis.command(&GET).await;
            assert_eq!(reply, Ok(Value::Integer(database.into())));
        }
        drop((stores, _site));
        server.finish().await;
    });
}

#[test]
fn a_connection_that_a_command_has_changed_is_not_lent_again() {
    run(async {
        for (command, is_kept) in [("SELECT 1", false), ("MULTI", false), ("EXEC", true)] {
            let (_site, stores) = stores();
            let script = vec![Hear(wire(command)), Say(b"+OK\r\n"), Closed];
            let server = FakeServer::start(vec![script]).await;
            let redis = redis_at(&stores, &server.address);
            let command: Vec<&str> = command.split(' ').collect();
            assert!(redis.command(&command).await.expect("a reply").is_ok());
            assert_eq!(redis.pool().server.kept_count(), usize::from(is_kept));
            drop((redis, stores, _site));
            server.finish().await;
        }
    });
}

#[test]
fn who_gets_no_connection_waits_for_one() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![
            Hear(wire("GET a")),
            Pause(20),
            Say(b":1\r\n"),
            Hear(wire("GET a")),
            Say(b":2\r\n"),
        ]])
        .await;
        let mut options = redis_options(&server.address);
        options.connections_max = 1;
        let redis = stores.redis(&options).expect("it can be made");
        let hurried = redis_with_timeout(&stores, options, 10);
        let (first, second, third) = tokio::join!(
            redis.command(&GET),
            hurried.command(&GET),
            redis.command(&GET)
        );
        assert_eq!(first, Ok(Value::Integer(1)));
        let error = second.expect_err("no connection in time");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::TimedOut, OperationStage::Queue)
        );
        assert_eq!(third, Ok(Value::Integer(2)));
        server.finish().await;
    });
}

#[test]
fn there_is_an_end_to_those_who_wait() {
    run(async {
        let (_site, stores) = stores();
        let (_socket, address) = nowhere();
        let mut options = redis_options(&address);
        options.connections_max = 1;
        let redis = stores.redis(&options).expect("it can be made");
        let mut waiting = Vec::new();
        for _ in 0..=limits::WAITING_MAX {
            let mut command = Box::pin(redis.command(&GET));
            std::future::poll_fn(|context| {
                assert!(command.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            waiting.push(command);
        }
        let error = redis.command(&GET).await.expect_err("too many wait");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Busy, OperationStage::Queue)
        );
        waiting.pop();
        let mut command = Box::pin(redis.command(&GET));
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(command.as_mut().poll(context).is_pending())
        });
        assert!(polled.await, "there is room again");
    });
}

#[test]
fn a_server_that_is_away_is_tried_once_a_pause() {
    run(async {
        let (site, stores) = stores();
        let (socket, address) = nowhere();
        let redis = redis_at(&stores, &address);
        let skip = |ms| site.worker().clock().skip(Duration::from_millis(ms));
        skip(0);
        let error = redis.command(&GET).await.expect_err("no server listens");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Unreachable, OperationStage::Connect)
        );
        assert!(!error.is_repeated());
        let server = FakeServer::start_on(
            socket.listen(1).expect("it can"),
            vec![vec![
                Hear(wire("GET a")),
                Say(b":1\r\n"),
                Hear(wire("GET a")),
                Say(b":1\r\n"),
            ]],
        );
        // These fail at once; only after a quarter of a second would one find out that the server is up.
        skip(limits::DOWN_PAUSE_MS_MIN - 1);
        for _ in 0..10 {
            let error = redis.command(&GET).await.expect_err("it is down");
            assert!(error.is_repeated(), "{error}");
        }
        skip(1);
        // One operation finds out. Another one at the same time still fails because the server counts as
        // down.
        let (first, second) = tokio::join!(redis.command(&GET), redis.command(&GET));
        assert_eq!(first, Ok(Value::Integer(1)));
        assert!(second.expect_err("not yet").is_repeated());
        assert_eq!(redis.command(&GET).await, Ok(Value::Integer(1)));
        let mut counted = BTreeMap::new();
        counters::read(site.worker().shared(), &mut counted);
        let count = |name| {
            counted
                .get(&format!("store.redis {address}.{name}"))
                .copied()
        };
        assert_eq!((count("failures"), count("refused")), (Some(12), Some(11)));
        server.finish().await;
    });
}

#[test]
fn a_server_that_hangs_is_down_after_some_time_outs() {
    run(async {
        let (_site, stores) = stores();
        let hanging = || vec![Hear(wire("GET a")), Closed];
        let server = FakeServer::start(vec![hanging(), hanging(), hanging(), hanging()]).await;
        let redis = redis_with_timeout(&stores, redis_options(&server.address), 500);
        for _ in 0..limits::TIMEOUTS_IN_A_ROW_MAX {
            let error = redis.command(&GET).await.expect_err("it hangs");
            assert_eq!(error.kind, Kind::TimedOut);
        }
        let error = redis.command(&GET).await.expect_err("it is down");
        assert_eq!(
            (error.kind, &error.text[..]),
            (Kind::Down, "it is down: no reply in time")
        );
        server.finish().await;
    });
}

#[test]
fn commands_that_are_meant_to_wait_say_nothing_about_the_server() {
    run(async {
        let (_site, stores) = stores();
        let times = limits::TIMEOUTS_IN_A_ROW_MAX + 1;
        let waiting = |_| vec![Hear(wire("BLPOP a 0")), Closed];
        let server = FakeServer::start((0..times).map(waiting).collect()).await;
        let redis = redis_with_timeout(&stores, redis_options(&server.address), 500);
        for _ in 0..times {
            let error = redis
                .command(&["BLPOP", "a", "0"])
                .await
                .expect_err("too long");
            assert_eq!(error.kind, Kind::TimedOut);
        }
        server.finish().await;
    });
}

#[test]
fn a_name_is_looked_up() {
    run(async {
        let (_site, stores) = stores();
        let server = FakeServer::start(vec![vec![Hear(wire("GET a")), Say(b":1\r\n")]]).await;
        let port = server.address.rsplit(':').next().expect("a port");
        let redis = redis_at(&stores, &format!("localhost:{port}"));
        assert_eq!(redis.command(&GET).await, Ok(Value::Integer(1)));
        server.finish().await;
    });
}

#[test]
fn unused_pools_make_room() {
    run(async {
        let (_site, stores) = stores();
        let address = |number: usize| format!("127.0.0.1:{}", 1000 + number);
        let mut held = Vec::new();
        for number in 0..limits::POOLS_MAX * 2 {
            drop(redis_at(&stores, &address(number)));
        }
        for number in 0..limits::POOLS_MAX {
            held.push(redis_at(&stores, &address(number)));
        }
        let error = stores.redis(&redis_options("127.0.0.1:1")).err();
        assert_eq!(error.map(|error| error.kind), Some(Kind::Refused));
        held.pop();
        assert!(stores.redis(&redis_options("127.0.0.1:1")).is_ok());
    });
}
