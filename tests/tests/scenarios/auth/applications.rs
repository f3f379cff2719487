//! Who was let in, as applications are told.

use petrel_tests::{Backend, Server, Speaks};

use crate::auth::like_lighttpd::base64;

#[test]
fn programs_and_backends_are_told_who_was_let_in_and_believe_no_client() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("noted"));
    let script = "printf 'Content-Type: text/plain\\n\\n'; echo \"$REMOTE_USER $AUTH_TYPE\"";
    let server = Server::build()
        .file("www/who.cgi", script)
        .file("www/open/who.cgi", script)
        .file("users", "anna:pw\n")
        .config(
            "server.modules += ( \"mod_auth\", \"mod_authn_file\", \"mod_cgi\", \"mod_fastcgi\" )
cgi.assign = ( \".cgi\" => \"/bin/sh\" )
auth.backend = \"plain\"
auth.backend.plain.userfile = var.dir + \"/users\"
$HTTP[\"url\"] !~ \"^/open/\" {
  auth.require = ( \"/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"user=anna\" ) )
}",
        )
        .config(&backend.directive("/app/", ", \"check-local\" => \"disable\""))
        .start();
    let anna = format!("Basic {}", base64(b"anna:pw"));
    let fields = [
        ("Authorization", anna.as_str()),
        ("Remote-User", "root"),
        ("Auth-Type", "Digest"),
    ];
    let ask = |target: &str| server.client().request("GET", target, &fields);
    assert_eq!(ask("/who.cgi").text(), "anna Basic\n");
    assert_eq!(ask("/open/who.cgi").text(), " \n");
    assert_eq!(ask("/app/x").status, 200);
    let request = backend.last();
    assert_eq!(request.param("REMOTE_USER"), Some("anna"));
    assert_eq!(request.param("AUTH_TYPE"), Some("Basic"));
    assert_eq!(request.param("HTTP_REMOTE_USER"), Some("root"));
    assert_eq!(server.get("/who.cgi").status, 401);
}
