//! Scripts that query memcached, and pages that are stored there.

use petrel_tests::{Backend, Speaks, eventually};

use crate::cml::{Memcached, in_front_of};

#[test]
fn a_counter_in_memcached_says_which_page_is_valid() {
    let script = "trigger_handler = 'index.php'\n\
        local version = memcache_get_long('version')\n\
        if not version then return CACHE_MISS end\n\
        if memcache_exists('closed') then output_include = { { text = memcache_get_string('closed') } } return CACHE_HIT end\n\
        output_include = { 'cache/page-' .. version .. '.html' }\n\
        return CACHE_HIT\n";
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("made"));
    let mut memcached = Memcached::start();
    let server = in_front_of(&backend)
        .file("www/index.cml", script)
        .file("www/cache/page-2.html", "version two")
        .config(&format!(
            "cml.memcache-hosts = ( \"{}\" )",
            memcached.host()
        ))
        .config("cml.memcache-namespace = \"site:\"")
        .start();
    assert_eq!(server.get("/").text(), "made");
    memcached.set("site:version", "1");
    assert_eq!(server.get("/").text(), "made", "its file is not there");
    memcached.say("incr site:version 1\r\n");
    assert_eq!(server.get("/").text(), "version two");
    memcached.set("site:closed", "closed");
    assert_eq!(server.get("/").text(), "closed");
    memcached.stop();
    for _ in 0..3 {
        let response = server.get("/");
        assert_eq!((response.status, response.text()), (200, "made".to_owned()));
    }
    server.expect_log("memcache_get_long: memcached 127.0.0.1");
}

#[test]
fn answers_of_a_backend_are_kept_in_memcached() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let said = format!("made {}", exchange.param("QUERY_STRING"));
        exchange.say(&said);
    });
    let mut memcached = Memcached::start();
    let server = in_front_of(&backend)
        .config("server.modules += ( \"mod_mcpage\" )")
        .config("mcpage.enable = \"enable\"\nmcpage.memcached-expire = 60")
        .config(&format!(
            "mcpage.memcached-hosts = ( \"{}\" )",
            memcached.host()
        ))
        .start();
    assert_eq!(server.get("/index.php?a").text(), "made a");
    let is_stored = || {
        let response = server.get("/index.php?a");
        assert_eq!(response.text(), "made a");
        response.field("X-Served-by-memcached") == Some("yes")
    };
    assert!(eventually(is_stored), "it is not stored");
    let asked = backend.requests().len();
    for _ in 0..3 {
        assert_eq!(server.get("/index.php?a").text(), "made a");
    }
    backend.expect_requests(asked);
    assert_eq!(server.get("/index.php?b").text(), "made b");
    memcached.stop();
    let response = server.get("/index.php?a");
    assert_eq!(response.text(), "made a");
    assert_eq!(response.field("X-Served-by-memcached"), None);
}
