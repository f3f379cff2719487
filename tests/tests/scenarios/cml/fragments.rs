//! Parts of pages, each with its own lifetime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use petrel_tests::{Backend, Speaks, eventually};

use crate::cml::in_front_of;

/// Two pages with the same news and a personal greeting.
fn page(name: &str) -> String {
    format!(
        "output_include = {{ {{ text = '{name}:' }}, {{ url = '/news.php', ttl = 5 }}, {{ url = '/hello.php' }} }}\n\
         return CACHE_HIT\n"
    )
}

/// It takes so long because a fragment must grow old, whose lifetime is long enough for a slow machine.
#[test]
fn pages_share_fragments_and_keep_the_last_one_on_errors() {
    let count = Arc::new(AtomicUsize::new(0));
    let is_broken = Arc::new(AtomicBool::new(false));
    let (counted, broken) = (Arc::clone(&count), Arc::clone(&is_broken));
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        if exchange.target().starts_with("/hello.php") {
            let said = format!(" hello {}", exchange.param("HTTP_COOKIE"));
            return exchange.say(&said);
        }
        assert_eq!(
            exchange.param("HTTP_COOKIE"),
            "",
            "what is shared knows no client"
        );
        exchange.pause(Duration::from_millis(50));
        match broken.load(Ordering::SeqCst) {
            true => exchange.answer(500, &[], "broken"),
            false => {
                let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
                exchange.say(&format!("news {number}"));
            }
        }
    });
    let server = in_front_of(&backend)
        .file("www/news.php", "")
        .file("www/hello.php", "")
        .file("www/a.cml", page("a"))
        .file("www/b.cml", page("b"))
        .start();
    let get = |target: &str, who: &str| {
        let fields = [("Cookie", who)];
        server.client().request("GET", target, &fields).text()
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let target = if number % 2 == 0 { "/a.cml" } else { "/b.cml" };
                scope.spawn(move || get(target, &format!("c={number}")))
            })
            .collect();
        for (number, client) in clients.into_iter().enumerate() {
            let text = client.join().expect("it does not panic");
            assert!(
                text.ends_with(&format!("news 1 hello c={number}")),
                "{text}"
            );
        }
    });
    assert_eq!(
        count.load(Ordering::SeqCst),
        1,
        "it was made more than once"
    );
    assert!(eventually(|| get("/a.cml", "c=0") == "a:news 2 hello c=0"));
    is_broken.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(6100));
    let latest = format!("b:news {} hello c=1", count.load(Ordering::SeqCst));
    assert_eq!(get("/b.cml", "c=1"), latest);
    server.expect_log("the last fragment");
}
