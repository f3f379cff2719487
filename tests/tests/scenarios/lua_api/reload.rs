//! Reload and stop while scripts run and wait.

use std::time::Duration;

use petrel_tests::{Load, PATIENCE, SOON, eventually};
use rustix::process::Signal;

use crate::lua_api::{lua_lines, says, site, site_with_budgets};

#[test]
fn a_reload_fails_no_request_of_a_script() {
    let waits =
        says("local r = petrel.subrequest(\"/index.html\") petrel.sleep(0.05) return r.body");
    let runs = says("return petrel.dict(\"d\"):incr(\"n\", 1, 0)");
    let server = site(&[], &[("waits", &waits), ("runs", &runs)]).start();
    let waiting = Load::start(server.address(), "/waits", 4, 4);
    let running = Load::start(server.address(), "/runs", 2, 2);
    for _ in 0..4 {
        waiting.wait_for(20);
        running.wait_for(20);
        server.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(100));
    }
    waiting.wait_for(50);
    running.wait_for(50);
    for load in [waiting, running] {
        let result = load.stop();
        assert!(result.failures.is_empty(), "{:?}", result.failures);
    }
    assert!(lua_lines(&server).is_empty(), "{:?}", lua_lines(&server));
}

#[test]
fn a_graceful_stop_lets_scripts_finish() {
    let mut server = site(
        &[],
        &[
            ("waits", &says("petrel.sleep(3) return \"done\"")),
            (
                "streams",
                "petrel.stream(function(write) for i = 1, 5 do write(i .. \"\") petrel.sleep(0.6) end end) return 200",
            ),
        ],
    )
    .start();
    let mut clients = [server.client(), server.client()];
    clients[0].send("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    clients[1].send("GET /streams HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::INT);
    assert_eq!(clients[0].response().text(), "done");
    assert_eq!(clients[1].response().text(), "12345");
    let status = server.wait(PATIENCE).expect("it ends");
    assert!(status.success(), "{status}");
}

#[test]
fn a_hard_stop_waits_for_no_script() {
    let mut server = site(&[], &[("waits", &says("petrel.sleep(60) return \"done\""))]).start();
    let mut client = server.client();
    client.send("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::TERM);
    assert!(server.wait(SOON).is_some());
}

#[test]
fn a_reload_reads_the_limits_anew() {
    let work =
        says("local begin = os.clock() while os.clock() - begin < 0.4 do end return \"done\"");
    let server = site_with_budgets(&[], &[("work", &work)]).start();
    assert_eq!(server.get("/work").status, 500);
    let config = format!("{}\nlua.max-run-time = 5000\n", server.configuration());
    server.write_configuration(&config);
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/work").status == 200));
}
