//! phpSysInfo with the configuration for lighttpd that Debian's package brings, behind basic authentication.

use std::path::Path;

use petrel_tests::{Browser, Server, Tree, can_run, package, skip};

use crate::real_backends::php::{fpm, start_fpm};

/// The package's files, with names of this tree in the place of those below / that it has by its packaging.
fn installation(package: &Path, bootstrap: &Path) -> Tree {
    let tree = Tree::new();
    tree.copy_with_links(package.join("usr/share/phpsysinfo"), "usr/share/phpsysinfo")
        .copy(
            bootstrap.join("usr/share/javascript"),
            "usr/share/javascript",
        )
        .copy(package.join("etc/phpsysinfo"), "etc/phpsysinfo");
    let reader = "usr/share/phpsysinfo/read_config.php";
    let ini = "/etc/phpsysinfo/phpsysinfo.ini";
    let moved = tree
        .text(reader)
        .replace(ini, &tree.path(&ini[1..]).display().to_string());
    tree.write(reader, moved);
    tree
}

/// It takes so long because Chromium starts, and PHP runs programs to find out about the machine.
#[test]
fn phpsysinfo_behind_basic_authentication_in_a_browser() {
    let test = "phpsysinfo_behind_basic_authentication_in_a_browser";
    if !can_run(test, &["/var/lib/dpkg/info/php-mbstring.list"]) {
        return;
    }
    if fpm().is_none() {
        return skip(test, "php-fpm is not installed");
    }
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let (package, bootstrap) = match (package("phpsysinfo"), package("libjs-bootstrap4")) {
        (Ok(package), Ok(bootstrap)) => (package, bootstrap),
        (Err(why), _) | (_, Err(why)) => return skip(test, &why),
    };
    let fpm = start_fpm(installation(&package, &bootstrap));
    let snippet = fpm.tree.text("etc/phpsysinfo/lighttpd.conf");
    let snippet = snippet.replace("/usr/share", &fpm.path("usr/share"));
    let server = Server::build()
        // What `lighty-enable-mod auth access fastcgi` names. The package's file comes last, as
        // 50-phpsysinfo.conf.
        .config("server.modules += ( \"mod_access\", \"mod_alias\", \"mod_auth\", \"mod_fastcgi\" )")
        .config("index-file.names = ( \"index.php\" )")
        .config("mimetype.assign = ( \".css\" => \"text/css\", \".js\" => \"text/javascript\", \".png\" => \"image/png\", \".gif\" => \"image/gif\", \".svg\" => \"image/svg+xml\", \".xslt\" => \"text/xml\" )")
        .config(&format!("fastcgi.server = ( \".php\" => (( \"socket\" => \"{}\" )) )", fpm.path("fpm.sock")))
        .file("users", "anna:secret\n")
        .config("auth.backend = \"plain\"\nauth.backend.plain.userfile = var.dir + \"/users\"")
        .config("auth.require = ( \"/phpsysinfo\" => ( \"method\" => \"basic\", \"realm\" => \"machine\", \"require\" => \"valid-user\" ) )")
        .config(&snippet)
        .start();
    for path in [
        "/phpsysinfo/",
        "/phpsysinfo/xml.php",
        "/PHPSYSINFO/../phpsysinfo/index.php",
        "/phpsysinfo/templates/phpsysinfo.css",
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let login = "Authorization: Basic YW5uYTpzZWNyZXQ=";
    let denied = format!(
        "GET /phpsysinfo/includes/autoloader.inc.php HTTP/1.1\r\nHost: a\r\n{login}\r\n\r\n"
    );
    assert_eq!(server.exchange(denied).status, 403);
    let browser = Browser::start();
    let url = server.url("/phpsysinfo/?disp=bootstrap");
    browser.open(&url.replace("://", "://anna:secret@"));
    // A script asks for the data, behind the same password, and fills the page with it.
    assert!(
        browser.is_true("document.body.innerText.includes('System Vital') && document.body.innerText.includes('127.0.0.1')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
