//! Tests with real servers.

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::memcached::{Direction, Write};
use tokio::time::sleep;

use crate::remote_store::testing::{Program, redis_at, run, stores};
use crate::remote_store::tier::Tier;
use crate::remote_store::{
    CasOutcome, Distribution, Kind, Memcached, MemcachedOptions, OperationStage, Pipeline, Redis,
    StoreAddress, Stores, Value, Wire,
};
use crate::testing::Tree;

fn start_redis(tree: &Tree, name: &str) -> Option<(Program, String)> {
    let socket = tree.path(name);
    let directory = tree.path("");
    let arguments = [
        "--port",
        "0",
        "--unixsocket",
        &socket,
        "--dir",
        &directory,
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--logfile",
        "/dev/null",
    ];
    let program = Program::start("redis-server", &arguments, &socket)?;
    Some((program, format!("unix:{socket}")))
}

fn start_memcached(tree: &Tree, name: &str) -> Option<(Program, String)> {
    let socket = tree.path(name);
    // memcached demands a user name when root starts it.
    let arguments = ["-u", "root", "-s", &socket, "-m", "16", "-t", "1"];
    let program = Program::start("memcached", &arguments, &socket)?;
    Some((program, format!("unix:{socket}")))
}

fn memcached_at(stores: &Stores, addresses: &[&str], wire: Wire) -> Rc<Memcached> {
    let address = |text: &&str| StoreAddress::parse(text, 1).expect("it is an address");
    let mut options = MemcachedOptions::new(addresses.iter().map(address).collect());
    options.wire = wire;
    options.distribution = Distribution::Ketama;
    stores.memcached(&options).expect("it can be made")
}

async fn ask(redis: &Redis, command: &str) -> Value {
    let arguments: Vec<&str> = command.split(' ').collect();
    redis.command(&arguments).await.expect("a reply")
}

#[test]
fn redis_keeps_what_it_is_given() {
    let tree = Tree::new(&[]);
    let Some((_redis, address)) = start_redis(&tree, "redis") else {
        return;
    };
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, &address);
        assert!(ask(&redis, "SET a 1").await.is_ok());
        assert_eq!(ask(&redis, "INCRBY a 41").await, Value::Integer(42));
        assert_eq!(ask(&redis, "GET a").await, Value::Bulk(b"42".into()));
        assert_eq!(ask(&redis, "GET none").await, Value::Nil);
        assert_eq!(ask(&redis, "RPUSH l x y").await, Value::Integer(2));
        let list = vec![Value::Bulk(b"x".into()), Value::Bulk(b"y".into())];
        assert_eq!(ask(&redis, "LRANGE l 0 -1").await, Value::Array(list));
        let bytes: Vec<u8> = (0..=255).collect();
        let set = redis.command(&[&b"SET"[..], b"bytes", &bytes]).await;
        assert!(set.expect("a reply").is_ok());
        assert_eq!(ask(&redis, "GET bytes").await, Value::Bulk(bytes));
        let error = redis
            .command(&["INCR", "bytes"])
            .await
            .expect_err("no number");
        assert_eq!(
            (error.kind, error.stage),
            (Kind::Said, OperationStage::Read)
        );
        let nothing = redis.command(&["BLPOP", "none", "0.01"]).await;
        assert_eq!(nothing, Ok(Value::Nil));
        assert_eq!(redis.pool().server.kept_count(), 1);
    });
}

#[test]
fn redis_speaks_resp3_when_told_and_transactions_are_whole() {
    let tree = Tree::new(&[]);
    let Some((_redis, address)) = start_redis(&tree, "redis") else {
        return;
    };
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, &address);
        let mut pipeline = Pipeline::new();
        for command in [
            "HELLO 3",
            "HSET h k v",
            "HGETALL h",
            "GET none",
            "ZADD z 1.5 m",
            "ZSCORE z m",
        ] {
            let arguments: Vec<&str> = command.split(' ').collect();
            pipeline.add(&arguments).expect("it can be sent");
        }
        let replies = redis.pipeline(&pipeline).await.expect("replies");
        assert!(matches!(replies.first(), Some(Value::Map(facts)) if facts.len() > 3));
        let map = vec![(Value::Bulk(b"k".into()), Value::Bulk(b"v".into()))];
        assert_eq!(replies.get(2), Some(&Value::Map(map)));
        assert_eq!(replies.get(3), Some(&Value::Nil));
        assert_eq!(replies.get(5), Some(&Value::Double(1.5)));
        assert_eq!(redis.pool().server.kept_count(), 0);

        let mut transaction = Pipeline::new();
        for command in ["MULTI", "SET t 1", "INCR t", "EXEC"] {
            let arguments: Vec<&str> = command.split(' ').collect();
            transaction.add(&arguments).expect("it can be sent");
        }
        let replies = redis.pipeline(&transaction).await.expect("replies");
        let done = vec![Value::Status(b"OK".into()), Value::Integer(2)];
        assert_eq!(replies.last(), Some(&Value::Array(done)));
        assert_eq!(redis.pool().server.kept_count(), 1);
    });
}

#[test]
fn much_goes_both_ways_at_the_same_time() {
    let tree = Tree::new(&[]);
    let Some((_redis, address)) = start_redis(&tree, "redis") else {
        return;
    };
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, &address);
        let text = vec![b'x'; 10_000];
        let mut pipeline = Pipeline::new();
        for _ in 0..2000 {
            pipeline
                .add(&[&b"ECHO"[..], &text])
                .expect("it can be sent");
        }
        let replies = redis.pipeline(&pipeline).await.expect("replies");
        assert_eq!(replies.len(), 2000);
        assert!(replies.iter().all(|reply| reply.bytes() == Some(&text)));
    });
}

#[test]
fn a_redis_that_goes_away_and_comes_back_is_found_again() {
    let tree = Tree::new(&[]);
    let Some((first, address)) = start_redis(&tree, "redis") else {
        return;
    };
    run(async {
        let (_site, stores) = stores();
        let redis = redis_at(&stores, &address);
        assert!(ask(&redis, "SET a 1").await.is_ok());
        drop(first);
        let error = redis.command(&["GET", "a"]).await.expect_err("it is gone");
        assert_eq!(error.stage, OperationStage::Connect, "{error}");
        std::fs::remove_file(tree.path("redis")).expect("the socket of the old one");
        let second = start_redis(&tree, "redis").expect("it is installed");
        sleep(Duration::from_millis(300)).await;
        assert_eq!(ask(&redis, "GET a").await, Value::Nil);
        drop(second);
    });
}

/// Uses all operations, in either protocol.
async fn use_memcached(memcached: &Memcached) {
    assert_eq!(memcached.get(b"a").await, Ok(None));
    memcached.set(b"a", b"1\r\n2", 7, 0).await.expect("stored");
    let value = memcached
        .get(b"a")
        .await
        .expect("an answer")
        .expect("it is there");
    assert_eq!((&value.data[..], value.flags), (&b"1\r\n2"[..], 7));
    assert_eq!(
        memcached.store_if(Write::Add, b"a", b"x", 0, 0).await,
        Ok(false)
    );
    assert_eq!(
        memcached.store_if(Write::Add, b"b", b"x", 0, 0).await,
        Ok(true)
    );
    assert_eq!(
        memcached
            .store_if(Write::Replace, b"none", b"x", 0, 0)
            .await,
        Ok(false)
    );
    assert_eq!(
        memcached.store_if(Write::Replace, b"b", b"y", 0, 0).await,
        Ok(true)
    );
    assert_eq!(
        memcached.store_if(Write::Append, b"b", b">", 0, 0).await,
        Ok(true)
    );
    assert_eq!(
        memcached.store_if(Write::Prepend, b"b", b"<", 0, 0).await,
        Ok(true)
    );
    assert_eq!(
        memcached.store_if(Write::Append, b"none", b"x", 0, 0).await,
        Ok(false)
    );
    let value = memcached
        .gets(b"b")
        .await
        .expect("an answer")
        .expect("it is there");
    assert_eq!(&value.data[..], b"<y>");
    let cas = value.cas.expect("it was asked for");
    let outcome = memcached.cas(b"b", b"z", 0, 0, cas).await;
    assert_eq!(outcome, Ok(CasOutcome::Stored));
    let outcome = memcached.cas(b"b", b"z", 0, 0, cas).await;
    assert_eq!(outcome, Ok(CasOutcome::Changed));
    let outcome = memcached.cas(b"none", b"z", 0, 0, cas).await;
    assert_eq!(outcome, Ok(CasOutcome::NotFound));
    assert_eq!(memcached.count(Direction::Up, b"n", 1).await, Ok(None));
    memcached.set(b"n", b"5", 0, 0).await.expect("stored");
    assert_eq!(memcached.count(Direction::Up, b"n", 37).await, Ok(Some(42)));
    assert_eq!(
        memcached.count(Direction::Down, b"n", 100).await,
        Ok(Some(0))
    );
    let error = memcached
        .count(Direction::Up, b"b", 1)
        .await
        .expect_err("no number");
    assert_eq!(error.kind, Kind::Said, "{error}");
    assert_eq!(memcached.touch(b"n", 100).await, Ok(true));
    assert_eq!(memcached.touch(b"none", 100).await, Ok(false));
    assert_eq!(memcached.delete(b"n").await, Ok(true));
    assert_eq!(memcached.delete(b"n").await, Ok(false));
    let error = memcached.get(b"a b").await.expect_err("no key");
    assert_eq!(
        (error.kind, error.stage),
        (Kind::Refused, OperationStage::Request)
    );
    let many = memcached
        .get_many(&["b", "none", "a", "b"])
        .await
        .expect("an answer");
    let many: Vec<Option<&[u8]>> = many
        .iter()
        .map(|value| value.as_ref().map(|value| &value.data[..]))
        .collect();
    assert_eq!(many, [Some(&b"z"[..]), None, Some(b"1\r\n2"), Some(b"z")]);
    assert!(!memcached.version().await.expect("an answer").is_empty());
    let long = vec![b'x'; (1 << 20) + 1];
    let error = memcached
        .set(b"long", &long, 0, 0)
        .await
        .expect_err("too long");
    assert_eq!(error.kind, Kind::Refused);
    // Within this client's limit, but not within the server's, which includes its overhead.
    let error = memcached
        .set(b"long", &long[1..], 0, 0)
        .await
        .expect_err("too long");
    assert_eq!(error.kind, Kind::Said, "{error}");
    assert_eq!(memcached.delete(b"b").await, Ok(true));
    memcached.flush_all(0).await.expect("flushed");
    assert_eq!(memcached.get(b"a").await, Ok(None));
}

#[test]
fn memcached_keeps_what_it_is_given_in_either_protocol() {
    let tree = Tree::new(&[]);
    let Some((_one, one)) = start_memcached(&tree, "one") else {
        return;
    };
    let (_two, two) = start_memcached(&tree, "two").expect("it is installed");
    run(async {
        for wire in [Wire::Text, Wire::Binary] {
            let (_site, stores) = stores();
            use_memcached(&memcached_at(&stores, &[&one], wire)).await;
            use_memcached(&memcached_at(&stores, &[&one, &two], wire)).await;
        }
    });
}

#[test]
fn one_of_two_memcached_servers_that_dies_takes_only_its_keys() {
    let tree = Tree::new(&[]);
    let Some((_one, one)) = start_memcached(&tree, "one") else {
        return;
    };
    let (dying, two) = start_memcached(&tree, "two").expect("it is installed");
    run(async {
        let (_site, stores) = stores();
        let memcached = memcached_at(&stores, &[&one, &two], Wire::Text);
        let keys: Vec<String> = (0..100).map(|number| format!("key{number}")).collect();
        for key in &keys {
            memcached
                .set(key.as_bytes(), key.as_bytes(), 0, 0)
                .await
                .expect("stored");
        }
        let all = memcached.get_many(&keys).await.expect("an answer");
        for (key, value) in keys.iter().zip(&all) {
            let value = value.as_ref().expect("it is there");
            assert_eq!(&value.data[..], key.as_bytes());
        }
        drop(dying);
        let left = memcached.get_many(&keys).await.expect("one answers");
        for (key, value) in keys.iter().zip(left) {
            let server = memcached.server_of(key.as_bytes()).expect("a key");
            assert_eq!(value.is_some(), server == format!("memcached {one}"));
        }
        let lost = keys.iter().find(|key| {
            memcached
                .server_of(key.as_bytes())
                .is_ok_and(|server| server.ends_with(&two))
        });
        let lost = lost.expect("the other one had some");
        assert!(memcached.get(lost.as_bytes()).await.is_err());
        assert!(memcached.get_many(&[lost]).await.is_err());
    });
}

/// Uses a tier as a cache does.
async fn use_tier(tier: &dyn Tier) {
    let page = vec![b'p'; 100_000];
    assert_eq!(tier.get(b"page").await, Ok(None));
    tier.set(b"page", &page, 3600).await.expect("stored");
    assert_eq!(
        tier.get(b"page").await.expect("an answer").as_deref(),
        Some(&page[..])
    );
    tier.delete(b"page").await.expect("deleted");
    tier.delete(b"page").await.expect("it need not be there");
    assert_eq!(tier.get(b"page").await, Ok(None));
    tier.set(b"far", b"x", 400 * 24 * 3600)
        .await
        .expect("stored");
    assert_eq!(
        tier.get(b"far").await.expect("an answer").as_deref(),
        Some(&b"x"[..])
    );
    tier.set(b"ever", b"x", 0).await.expect("stored");
    assert!(tier.get(b"ever").await.expect("an answer").is_some());
    let long = vec![b'x'; tier.value_bytes_max() + 1];
    let error = tier.set(b"long", &long, 0).await.expect_err("too long");
    assert_eq!(error.kind, Kind::Refused);
}

#[test]
fn either_store_can_be_a_second_tier() {
    let tree = Tree::new(&[]);
    if let Some((_redis, address)) = start_redis(&tree, "redis") {
        run(async {
            let (_site, stores) = stores();
            let redis = redis_at(&stores, &address);
            use_tier(&*redis).await;
        });
    }
    if let Some((_memcached, address)) = start_memcached(&tree, "memcached") {
        run(async {
            let (_site, stores) = stores();
            for wire in [Wire::Text, Wire::Binary] {
                let memcached = memcached_at(&stores, &[&address], wire);
                use_tier(&*memcached).await;
                memcached.flush_all(0).await.expect("flushed");
            }
        });
    }
}
