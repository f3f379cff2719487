//! `petrel.dict`: all workers share a dictionary.

use crate::lua_api::{ask, counter, says, site};

const CLIENTS: usize = 20;
const REQUESTS: usize = 10;

#[test]
fn counts_of_two_workers_add_up() {
    let count = says(
        "local d = petrel.dict(\"visits\")\n\
         local n = d:incr(\"all\", 1, 0)\n\
         petrel.sleep(0)\n\
         d:incr(\"by \" .. lighty.r.req_attr[\"uri.query\"], 1, 0)\n\
         return n",
    );
    let show = says("return petrel.dict(\"visits\"):get(lighty.r.req_attr[\"uri.query\"])");
    let server = site(&[], &[("count", &count), ("show", &show)])
        .config("server.max-worker = 2\nlua.dictionaries = (\"visits\" => 64)")
        .start();
    let address = server.address();
    let mut numbers: Vec<usize> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                scope.spawn(move || {
                    let ask = |_| {
                        // Each request uses a new connection, which either worker may accept.
                        let mut client = petrel_tests::Client::connect(address);
                        let text = client.get(&format!("/count?{}", index % 4)).text();
                        text.parse::<usize>().expect("a number")
                    };
                    (0..REQUESTS).map(ask).collect::<Vec<_>>()
                })
            })
            .collect();
        let numbers = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        numbers.flatten().collect()
    });
    // Each number was returned once.
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=CLIENTS * REQUESTS).collect::<Vec<_>>());
    assert_eq!(ask(&server, "/show?all"), "200");
    assert_eq!(counter(&server, "lua.dict.visits.entries"), 5);
}

#[test]
fn values_expire_and_make_way() {
    let server = site(
        &[],
        &[
            (
                "expire",
                &says(
                    "local d = petrel.dict(\"d\")\n\
                     d:set(\"short\", \"x\", 0.2)\nd:set(\"long\", true, 60)\n\
                     local before = d:get(\"short\")\npetrel.sleep(0.4)\n\
                     return before, d:get(\"short\") == nil, d:get(\"long\")",
                ),
            ),
            (
                "fill",
                &says(
                    "local d = petrel.dict(\"small\")\n\
                     for i = 1, 200 do d:set(i .. \"\", (\"x\"):rep(1000)) end\n\
                     return d:get(\"200\") ~= nil, d:get(\"1\") == nil, (pcall(d.set, d, \"big\", (\"x\"):rep(1e6)))",
                ),
            ),
        ],
    )
    .config("lua.dictionaries = (\"small\" => 32)")
    .start();
    assert_eq!(ask(&server, "/expire"), "x true true");
    let filled = ask(&server, "/fill");
    assert!(filled.starts_with("true true"), "{filled}");
    assert!(counter(&server, "lua.dict.small.bytes") <= 32 << 10);
    assert!(counter(&server, "lua.dict.small.evicted") > 100);
}
