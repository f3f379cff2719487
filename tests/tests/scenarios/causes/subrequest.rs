use super::{Told, Version, site_with, slow_backend};

/// A script waits for a subrequest, which waits for a backend.
#[test]
fn a_subrequest_of_a_script() {
    let backend = slow_backend();
    for version in Version::BOTH {
        let server = site_with(&backend, "")
            .file(
                "asks.lua",
                "local answer = petrel.subrequest(\"/b/below\")\nlighty.content = { answer.body }\nreturn 200\n",
            )
            .config("server.modules += (\"mod_magnet\")")
            .config("$HTTP[\"url\"] == \"/asks\" { magnet.attract-raw-url-to = (var.dir + \"/asks.lua\") }")
            .start();
        version.ask(&server, "/asks", &[]);
        let words = format!("{} worked on the request", backend.name());
        let told = Told::about(&server, "/asks");
        told.expect(&server, "lua", "its subrequest /b/below: ")
            .expect(&server, "lua", &words);
    }
}
