//! mod_secdownload: signed links that expire.

use petrel_tests::Server;

/// The link was signed in 2023, by HMAC-SHA-256 with the key `secret`.
#[test]
fn a_signed_link_leads_to_a_file_until_it_runs_out() {
    let server = Server::build()
        .file("signed/a.txt", "signed")
        .file("www/dl/a.txt", "not signed")
        .config(
            "server.modules += ( \"mod_secdownload\" )
secdownload.secret = \"secret\"
secdownload.document-root = var.dir + \"/signed\"
secdownload.uri-prefix = \"/dl/\"
secdownload.algorithm = \"hmac-sha256\"
secdownload.timeout = 1000000000
$HTTP[\"query-string\"] == \"short\" { secdownload.timeout = 60 }",
        )
        .start();
    let link = "/dl/ZTdRvL_18MaUiK1ZgGPnSWxh6A3MZSmnfxFL5OnBdLk/6553f100/a.txt";
    let mut client = server.client();
    let response = client.get(link);
    assert_eq!((response.status, response.text().as_str()), (200, "signed"));
    assert_eq!(client.get(&link.replace("ZTd", "ZTe")).status, 403);
    assert_eq!(client.get(&format!("{link}x")).status, 403);
    assert_eq!(client.get(&format!("{link}?short")).status, 410);
    assert_eq!(client.get("/dl/a.txt").text(), "not signed");
}
