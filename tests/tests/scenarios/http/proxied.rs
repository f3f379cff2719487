//! Requests through a proxy that reports the client's address.

use petrel_tests::Server;

/// Answers with the client's address, and logs it in the access log.
const BY_CLIENT: &str = "server.modules = ( \"mod_extforward\", \"mod_accesslog\" )
accesslog.filename = var.dir + \"/access.log\"
accesslog.format = \"%h %{_L_EXTFORWARD_ACTUAL_FOR}e %{REMOTE_USER}e %r\"
$HTTP[\"remoteip\"] == \"192.0.2.0/24\" { server.document-root = var.dir + \"/documentation\" }
$HTTP[\"remoteip\"] == \"2001:db8::/32\" { server.document-root = var.dir + \"/documentation\" }
$HTTP[\"scheme\"] == \"https\" { server.document-root = var.dir + \"/safe\" }
";

const TRUSTED: &str = "extforward.forwarder = ( \"127.0.0.1\" => \"trust\" )\n";

const PROXY: &str = "extforward.hap-PROXY = \"enable\"
extforward.hap-PROXY-ssl-client-verify = \"enable\"\n";

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

fn server(config: &str) -> Server {
    Server::build()
        .file("www/index.html", "proxy")
        .file("documentation/index.html", "client")
        .file("safe/index.html", "safe")
        .config(&format!("{BY_CLIENT}{config}"))
        .start()
}

/// A header of version 2 for 192.0.2.7, with TLS and a client certificate of joe.
fn binary_header() -> Vec<u8> {
    let name = b"\x22\0\x03joe";
    let tls = [&b"\x20\0\x0b\x03\0\0\0\0"[..], name].concat();
    let addresses = b"\xc0\0\x02\x07\x7f\0\0\x01\x10\0\0\x50";
    let length = u8::try_from(addresses.len() + tls.len()).expect("it is short");
    let fixed = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"[..], &[length]].concat();
    [&fixed[..], addresses, &tls].concat()
}

#[test]
fn a_header_of_the_proxy_protocol_counts_for_its_connection() {
    let server = server(&format!("{TRUSTED}{PROXY}"));
    let header = "PROXY TCP4 192.0.2.7 127.0.0.1 4096 80\r\n";
    let mut client = server.client();
    client.send(header.to_owned() + GET + GET);
    assert_eq!(client.response().text(), "client");
    assert_eq!(client.response().text(), "client");
    assert_eq!(client.get("/").text(), "client");
    let mut other = server.client();
    other.send("PROXY UNKNOWN\r\n");
    assert_eq!(other.get("/").text(), "proxy");
    let mut sixth = server.client();
    let header = "PROXY TCP6 2001:db8::1 ::1 1 2\r\n";
    sixth.send_in_pieces(header.to_owned() + GET, &[1]);
    assert_eq!(sixth.response().text(), "client");
}

#[test]
fn tls_in_front_is_told_by_version_2() {
    let server = server(&format!("{TRUSTED}{PROXY}"));
    let mut client = server.client();
    client.send([&binary_header()[..], GET.as_bytes()].concat());
    assert_eq!(client.response().text(), "safe");
    let log = server.tree().path("access.log");
    assert!(petrel_tests::eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("192.0.2.7 - joe GET / HTTP/1.1")
    }));
}

#[test]
fn without_the_header_a_connection_is_closed() {
    let server = server(&format!("{TRUSTED}{PROXY}"));
    for bytes in [GET, "PROXY TCP4 nonsense\r\n", "\r\n\r\n\0\r\nQUIT\n\x11"] {
        let mut client = server.client();
        client.send(bytes);
        client.expect_close();
    }
    server.expect_log("does not begin with a PROXY protocol header");
}

#[test]
fn a_stranger_is_not_asked_for_the_header() {
    let strangers = "extforward.forwarder = ( \"192.0.2.1\" => \"trust\" )\n";
    let server = server(&format!("{strangers}{PROXY}"));
    assert_eq!(server.get("/").text(), "proxy");
    let claim = "PROXY TCP4 192.0.2.7 127.0.0.1 4096 80\r\n".to_owned() + GET;
    assert_eq!(server.exchange(claim).status, 400);
}

#[test]
fn a_field_of_a_trusted_proxy_counts_for_its_request() {
    let server = server(TRUSTED);
    let mut client = server.client();
    let named = [("X-Forwarded-For", "198.51.100.1, 192.0.2.7")];
    assert_eq!(client.request("GET", "/", &named).text(), "client");
    assert_eq!(client.get("/").text(), "proxy");
    let safe = [
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Proto", "https"),
    ];
    assert_eq!(client.request("GET", "/", &safe).text(), "safe");
    assert_eq!(client.get("/").text(), "proxy");
    let log = server.tree().path("access.log");
    assert!(petrel_tests::eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.starts_with("192.0.2.7 127.0.0.1 - GET / HTTP/1.1\n127.0.0.1 - - GET / HTTP/1.1\n")
    }));
}
