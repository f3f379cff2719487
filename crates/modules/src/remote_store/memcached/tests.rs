use crate::remote_store::testing::Step::{Closed, Hear, Say};
use crate::remote_store::testing::{FakeServer, run, stores};

use super::servers::Ring;
use super::*;
use crate::remote_store::{Kind, OperationStage, StoreAddress};

/// The servers of `key0`, `key1` ... as digits.
fn places(ring: &Ring, keys: usize) -> String {
    let place = |number| ring.server_of(format!("key{number}").as_bytes()) as u32;
    let digit = |number| char::from_digit(place(number), 36).expect("there are few servers");
    (0..keys).map(digit).collect()
}

/// Where libmemcached 1.1.4 places these keys on servers with these names in this order.
#[test]
fn keys_are_where_libmemcached_has_them() {
    let three = [
        ("127.0.0.1", 11211),
        ("127.0.0.1", 11212),
        ("cache.example.org", 11213),
    ];
    let four = [&three[..], &[("/run/memcached.sock", 0)]].concat();
    for (distribution, hash, servers, expected) in [
        (
            Distribution::Modula,
            None,
            &three[..],
            "2222222111010000011122211111110001211222",
        ),
        (
            Distribution::Modula,
            Some(HashName::Md5),
            &three,
            "2022202221121122222022101120110221212020",
        ),
        (
            Distribution::Ketama,
            None,
            &three,
            "1110010101121012102002011200120101202202",
        ),
        (
            Distribution::Ketama,
            None,
            &four,
            "3113310101321033102002011233320103302202",
        ),
        (
            Distribution::Ketama,
            Some(HashName::Crc),
            &three,
            "1111111111111111111111111111111111111111",
        ),
        (
            Distribution::Consistent,
            None,
            &three,
            "1200121012121210121002121100211210011022",
        ),
        (
            Distribution::Consistent,
            Some(HashName::Fnv1a32),
            &three,
            "1111111111222222222222222222220000000000",
        ),
    ] {
        let hash = hash.unwrap_or(distribution.hash_default());
        let ring = Ring::new(distribution, hash, servers);
        assert_eq!(places(&ring, 40), expected, "{distribution:?} {hash:?}");
    }
    for (count, expected) in [
        (
            7,
            "254306611610661112653302225565355304456063356156132413615264363552352422135344506462046126063426613044163360101053512430",
        ),
        (
            13,
            "95c37cbbc81067b88c8839b2775a653573ba756a683868561389c37cb97436c57b3774cb93534970aa920461260674ab67c04cab93c01010c35abc3b",
        ),
        (
            23,
            "k5c37cdbcf1j67h88ch839gm7k5a65gi73jaffgamm3d68di1g89clklk9k4ijc57b377ilb93534lg0al9k0l61dl0g74af67el4cafk3l01i10c3fabjkb",
        ),
    ] {
        let names: Vec<String> = (0..count)
            .map(|number| format!("10.0.0.{number}"))
            .collect();
        let servers: Vec<(&str, u16)> = names.iter().map(|name| (&name[..], 11211)).collect();
        let ring = Ring::new(Distribution::Ketama, HashName::Md5, &servers);
        assert_eq!(places(&ring, 120), expected, "{count} servers");
    }
}

#[test]
fn a_server_more_moves_few_keys_of_a_circle() {
    let names: Vec<String> = (0..11).map(|number| format!("10.0.0.{number}")).collect();
    let servers: Vec<(&str, u16)> = names.iter().map(|name| (&name[..], 11211)).collect();
    let moved = |distribution: Distribution| {
        let hash = distribution.hash_default();
        let ten = Ring::new(
            distribution,
            hash,
            servers.get(..10).expect("there are eleven"),
        );
        let eleven = Ring::new(distribution, hash, &servers);
        let is_moved =
            |key: &String| ten.server_of(key.as_bytes()) != eleven.server_of(key.as_bytes());
        (0..1000)
            .map(|number| format!("key{number}"))
            .filter(is_moved)
            .count()
    };
    assert!((30..200).contains(&moved(Distribution::Ketama)));
    assert!((30..200).contains(&moved(Distribution::Consistent)));
    assert!(moved(Distribution::Modula) > 800);
}

#[test]
fn names_of_distributions_are_known() {
    for (name, distribution) in [
        ("MODULA", Some(Distribution::Modula)),
        ("ketama", Some(Distribution::Ketama)),
        ("ketama_weighted", Some(Distribution::Ketama)),
        ("consistent", Some(Distribution::Consistent)),
        ("random", None),
    ] {
        assert_eq!(Distribution::from_name(name), distribution);
    }
}

#[test]
fn an_expiry_beyond_thirty_days_is_a_date() {
    let day = 24 * 3600;
    for (ttl_s, expiry) in [
        (0, 0),
        (30 * day, 30 * day as u32),
        (30 * day + 1, 1_000_000_000 + 30 * day as u32 + 1),
        (u64::MAX, u32::MAX),
    ] {
        assert_eq!(expiry_of(ttl_s, 1_000_000_000), expiry);
    }
}

/// A client of the server at `address`.
fn client(stores: &crate::remote_store::Stores, address: &str) -> Rc<Memcached> {
    let address = StoreAddress::parse(address, 1).expect("it is an address");
    let mut options = MemcachedOptions::new(vec![address]);
    options.timeout_ms = 2000;
    options.value_bytes_max = 64 << 20;
    stores.memcached(&options).expect("it can be made")
}

#[test]
fn values_of_other_keys_are_refused() {
    run(async {
        for (reply, sentence) in [
            (&b"VALUE b 0 1\r\nx\r\nEND\r\n"[..], "was not requested"),
            (
                b"VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
                "something else",
            ),
            (b"STORED\r\n", "something else"),
            (b"VALUE a 0 536870912\r\n", "longer than allowed"),
            (b"-ERR unknown command\r\n", "no reply"),
            (b"END\r\nEND\r\n", "more than was asked for"),
        ] {
            let (_site, stores) = stores();
            let server = FakeServer::start(vec![vec![Hear(b"get a\r\n".into()), Say(reply)]]).await;
            let memcached = client(&stores, &server.address);
            let error = memcached.get(b"a").await.expect_err("not a reply");
            assert_eq!(
                (error.kind, error.stage),
                (Kind::Protocol, OperationStage::Read)
            );
            assert!(error.text.contains(sentence), "{error}");
            server.finish().await;
        }
    });
}

#[test]
fn a_connection_on_which_a_command_was_not_understood_is_closed() {
    run(async {
        for (reply, is_kept) in [
            (&b"ERROR\r\n"[..], false),
            (b"CLIENT_ERROR bad data chunk\r\n", false),
            (b"SERVER_ERROR out of memory storing object\r\n", true),
            (b"NOT_STORED\r\n", true),
        ] {
            let (_site, stores) = stores();
            let set = b"set a 0 0 1\r\nx\r\n".to_vec();
            let mut scripts = vec![vec![Hear(set.clone()), Say(reply)]];
            let again = vec![Hear(set), Say(b"STORED\r\n")];
            match (is_kept, scripts.first_mut()) {
                (true, Some(first)) => first.extend(again),
                _ => {
                    scripts.iter_mut().for_each(|script| script.push(Closed));
                    scripts.push(again);
                }
            }
            let server = FakeServer::start(scripts).await;
            let memcached = client(&stores, &server.address);
            let error = memcached
                .set(b"a", b"x", 0, 0)
                .await
                .expect_err("not stored");
            assert_eq!(error.kind, Kind::Said);
            memcached.set(b"a", b"x", 0, 0).await.expect("stored");
            server.finish().await;
        }
    });
}

#[test]
fn an_answer_before_the_end_of_the_value_ends_the_connection() {
    run(async {
        let (_site, stores) = stores();
        let value = vec![b'x'; 16 << 20];
        let server = FakeServer::start(vec![
            vec![
                Hear(b"set a".into()),
                Say(b"SERVER_ERROR object too large\r\n"),
                Closed,
            ],
            vec![Hear(b"get a\r\n".into()), Say(b"END\r\n")],
        ])
        .await;
        let memcached = client(&stores, &server.address);
        let error = memcached
            .set(b"a", &value, 0, 0)
            .await
            .expect_err("too large");
        assert_eq!(
            (error.kind, &error.text[..]),
            (Kind::Said, "object too large")
        );
        assert_eq!(memcached.get(b"a").await, Ok(None));
        server.finish().await;
    });
}

#[test]
fn options_that_name_nothing_are_refused() {
    let (_site, stores) = stores();
    let address = StoreAddress::parse("127.0.0.1", 11211).expect("it is an address");
    let no_server = MemcachedOptions::new(Vec::new());
    let many = MemcachedOptions::new(vec![address.clone(); 129]);
    let mut no_key = MemcachedOptions::new(vec![address.clone()]);
    no_key.prefix = b"a b".into();
    for (options, sentence) in [
        (no_server, "no server"),
        (many, "too many"),
        (no_key, "no key"),
    ] {
        let error = stores.memcached(&options).err().expect("refused");
        assert_eq!(error.kind, Kind::Refused);
        assert!(error.text.contains(sentence), "{error}");
    }
    assert!(
        stores
            .memcached(&MemcachedOptions::new(vec![address; 128]))
            .is_ok()
    );
}
