//! The example module of ARCHITECTURE.md compiles and does what the text says.

use petrel_engine::testing::Site;

#[path = "../../../../docs/mod_hello.rs"]
mod mod_hello;

#[test]
fn the_example_greets_the_url_it_is_told_to_and_leaves_the_others() {
    let config = "hello.url = \"/hello\"\n\
                  $HTTP[\"host\"] == \"other\" { hello.url = \"/other\" }";
    let site = Site::new(config, &[&mod_hello::MODULE]);
    let greeting = site.get("/hello");
    assert_eq!(
        (greeting.status(), greeting.body()),
        (200, &b"Hello.\n"[..])
    );
    assert_eq!(
        greeting.field("Content-Type").as_deref(),
        Some("text/plain")
    );
    assert_eq!(site.get("/").status(), 404);
    let of_host = |host: &str| format!("GET /other HTTP/1.1\r\nHost: {host}\r\n\r\n");
    assert_eq!(site.request(&of_host("other")).status(), 200);
    assert_eq!(site.request(&of_host("h")).status(), 404);
}
