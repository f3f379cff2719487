use std::net::TcpListener;

use super::{Told, Version, site_with, slow_backend};

/// The store of cached pages accepts connections and answers nothing.
#[test]
fn a_store_of_pages_that_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let backend = slow_backend();
    for version in Version::BOTH {
        let server = site_with(&backend, "")
            .config("server.modules += (\"mod_page_cache\")\npage-cache.enable = \"enable\"")
            .config(&format!("page-cache.second-tier = \"memcached:{address}\""))
            .start();
        version.ask(&server, "/b/page", &[]);
        // "gave no answer", or "had not answered" where the end of the question was not seen.
        Told::about(&server, "/b/page").expect(&server, "cache", "answer");
    }
}
