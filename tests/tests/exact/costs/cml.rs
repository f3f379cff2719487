//! The system calls of a page that a CML script assembles from files.

use std::time::Instant;

use petrel_tests::{Backend, Server, Speaks, Tracer};

use crate::alone;

/// The page if it is younger than a minute; else the application, which makes it.
const SCRIPT: &str = "output_contenttype = \"text/html\"\n\
    trigger_handler = \"index.php\"\n\
    local page = request[\"DOCUMENT_ROOT\"] .. \"/cache/page.html\"\n\
    local time = file_mtime(page)\n\
    if not time or os.time() - time > 60 then\n\
      return CACHE_MISS\n\
    end\n\
    output_include = { \"head.html\", page, \"foot.html\" }\n\
    return CACHE_HIT\n";

#[test]
fn a_warm_page_takes_one_receive_and_one_send() {
    let _alone = alone();
    const REQUESTS: u64 = 500;
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("made"));
    let server = Server::build()
        .file("www/index.php", "")
        .file("www/head.html", "<h1>head</h1>")
        .file("www/foot.html", "<p>foot</p>")
        .config("server.modules += ( \"mod_cml\", \"mod_fastcgi\" )")
        .config("index-file.names = ( \"index.cml\", \"index.php\" )")
        .config("cml.extension = \".cml\"")
        .config(&backend.directive(".php", ""))
        .file("www/cache/page.html", "<p>kept</p>")
        .file("www/index.cml", SCRIPT)
        .config("server.max-keep-alive-requests = 65535\nserver.max-worker = 1")
        .start();
    let mut client = server.client();
    for _ in 0..3 {
        assert!(client.get("/?a=b").text().contains("kept"));
    }
    let tracer = Tracer::attach(&server);
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/?a=b").status, 200);
    }
    let calls = tracer.stop().without_waits();
    let seconds = begun.elapsed().as_secs();
    let count = |names: &[&str]| names.iter().map(|name| calls.count(name)).sum::<u64>();
    assert_eq!(
        count(&["recvfrom", "read", "recvmsg", "readv"]),
        REQUESTS,
        "{calls:?}"
    );
    assert_eq!(
        count(&["sendto", "write", "writev", "sendmsg"]),
        REQUESTS,
        "{calls:?}"
    );
    assert_eq!(
        count(&["open", "openat", "getdents64", "pread64"]),
        0,
        "{calls:?}"
    );
    let looks = count(&["fstat", "newfstatat", "statx"]);
    // Each of the files is looked at once a second.
    let most = 60 + 5 * seconds;
    assert!(looks <= most, "{looks} looks at files: {calls:?}");
}
