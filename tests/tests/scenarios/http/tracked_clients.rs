//! mod_usertrack: each client gets a cookie once.

use petrel_tests::Server;

#[test]
fn a_client_gets_a_cookie_once() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(
            "server.modules += ( \"mod_usertrack\" )
usertrack.cookie-name = \"VISITOR\"
usertrack.cookie-attrs = \"; Path=/; HttpOnly\"",
        )
        .start();
    let mut client = server.client();
    let response = client.get("/");
    let cookie = response.field("Set-Cookie").expect("a cookie");
    let (pair, attributes) = cookie.split_once(';').expect("attributes");
    assert_eq!(attributes, " Path=/; HttpOnly");
    let again = client.request("GET", "/", &[("Cookie", pair)]);
    assert_eq!((again.status, again.field("Set-Cookie")), (200, None));
    let refused = client
        .send("GET / HTTP/1.1\r\nHost: a b\r\n\r\n")
        .response();
    assert_eq!((refused.status, refused.field("Set-Cookie")), (400, None));
}
