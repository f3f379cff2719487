//! mod_rewrite and mod_redirect as a client and an application see them.

mod bad_input;
mod like_lighttpd;
mod sites;

use petrel_tests::Server;

/// A rule in a condition about the client's address is asked for the client's if mod_extforward is listed before, and for
/// that of its proxy if it is not, as in lighttpd.
#[test]
fn rules_are_asked_behind_what_says_who_the_client_is_if_that_is_listed_before() {
    for (modules, for_all) in [
        ("\"mod_rewrite\", \"mod_extforward\"", "for the house"),
        ("\"mod_extforward\", \"mod_rewrite\"", "for all"),
    ] {
        let server = Server::build()
            .file("www/page.txt", "for all")
            .file("www/internal.txt", "for the house")
            .config(&format!(
                "server.modules = ( {modules} )
                extforward.forwarder = ( \"127.0.0.1\" => \"trust\" )
                $HTTP[\"remoteip\"] == \"127.0.0.0/8\" {{
                    url.rewrite-once = ( \"^/page\" => \"/internal.txt\" )
                }}"
            ))
            .start();
        let get = |client: &str| {
            let request = format!(
                "GET /page.txt HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: {client}\r\n\r\n"
            );
            server.exchange(request).text().to_owned()
        };
        assert_eq!(get("192.0.2.1"), for_all, "{modules}");
        assert_eq!(get("127.0.0.9"), "for the house", "{modules}");
    }
}
