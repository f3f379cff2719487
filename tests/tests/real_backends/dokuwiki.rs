//! A wiki in PHP, used through a browser: log in, edit, upload, search.

use std::path::Path;

use petrel_tests::{Browser, Server, Tree, package, skip};

use crate::component::can_run;
use crate::php::{fpm, start_fpm};

/// The installed program with the package's configuration and data, as a tree that belongs to the test.
fn installation(package: &Path) -> Tree {
    let tree = Tree::new();
    tree.copy("/usr/share/dokuwiki", "www")
        .copy(package.join("etc/dokuwiki"), "conf")
        .copy(package.join("var/lib/dokuwiki/data"), "data");
    let root = tree.root().display();
    let preload = format!("<?php if (!defined('DOKU_CONF')) define('DOKU_CONF', '{root}/conf/');");
    let local = format!(
        "<?php\n$conf['title'] = 'Petrel wiki';\n$conf['useacl'] = 1;\n\
         $conf['superuser'] = '@admin';\n$conf['savedir'] = '{root}/data';\n\
         $conf['updatecheck'] = 0;\n$conf['fetchsize'] = 0;\n"
    );
    // The password is "secret".
    let users = "admin:5ebe2294ecd0e0f08eab7690d2a6ee69:Admin:admin@petrel.test:admin,user\n";
    tree.write("www/inc/preload.php", preload)
        .write("conf/local.php", local)
        .write("conf/users.auth.php", users)
        .write("conf/acl.auth.php", "*\t@ALL\t1\n*\t@user\t8\n");
    tree
}

/// Debian's own configuration for lighttpd, at the top of the site.
const CONFIGURATION: &str = r#"
server.modules += ( "mod_access", "mod_fastcgi" )
index-file.names = ( "doku.php" )
$HTTP["url"] =~ "/(\.|_)ht" {
  url.access-deny = ( "" )
}
$HTTP["url"] =~ "^/(bin|data|inc|conf)" {
  url.access-deny = ( "" )
}
"#;

#[test]
fn dokuwiki_in_a_browser() {
    let test = "dokuwiki_in_a_browser";
    if !can_run(test, &["/usr/share/dokuwiki/doku.php"]) {
        return;
    }
    if fpm().is_none() {
        return skip(test, "php-fpm is not installed");
    }
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let package = match package("dokuwiki") {
        Ok(package) => package,
        Err(why) => return skip(test, &why),
    };
    let fpm = start_fpm(installation(&package));
    let www = fpm.path("www");
    let server = Server::build()
        .config(&format!("server.document-root = \"{www}\""))
        .config(CONFIGURATION)
        .config(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"{}\" )) )",
            fpm.path("fpm.sock")
        ))
        .start();
    assert_eq!(server.get("/conf/local.php").status, 403);
    let browser = Browser::start();
    log_in(&browser, &server);
    upload(&browser, &server);
    edit(&browser, &server);
    search(&browser, &server);
    // Scripts, styles and pictures have loaded, and none of its own requests failed.
    let mut complaints = browser.complaints();
    complaints.retain(|entry| !entry.starts_with("\"DEBUG\""));
    assert!(complaints.is_empty(), "{complaints:#?}");
}

fn log_in(browser: &Browser, server: &Server) {
    browser.open(&server.url("/doku.php?id=start&do=login"));
    browser.type_into("#dw__login input[name=u]", "admin");
    browser.type_into("#dw__login input[name=p]", "secret");
    browser.click("#dw__login button[type=submit]");
    assert!(
        browser.is_true("document.body.innerText.includes('Logged in as')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
}

fn edit(browser: &Browser, server: &Server) {
    browser.open(&server.url("/doku.php?id=birds:petrel&do=edit"));
    let text = "====== Storm petrel ======\\nIt walks on water: zephyrine.";
    browser.type_into("#wiki__text", text);
    browser.click("#edbtn__save");
    assert!(
        browser.is_true(
            "Array.from(document.querySelectorAll('h1')).some(h => h.innerText == 'Storm petrel')"
        ),
        "{}",
        browser.evaluate("document.body.innerText")
    );
    // A second edit, so that the page has a history.
    browser.open(&server.url("/doku.php?id=birds:petrel&do=edit"));
    browser.type_into(
        "#wiki__text",
        "\\n\\nAnother line, and a picture: {{birds:feather.png}}",
    );
    browser.click("#edbtn__save");
    assert!(browser.is_true("document.body.innerText.includes('Another line')"));
    browser.open(&server.url("/doku.php?id=birds:petrel"));
    assert!(browser.is_true(
        "Array.from(document.images).some(i => i.src.includes('feather.png') && i.naturalWidth == 1)"
    ));
    browser.open(&server.url("/doku.php?id=birds:petrel&do=revisions"));
    assert!(browser.is_true("document.querySelectorAll('#page__revisions li').length == 2"));
}

fn upload(browser: &Browser, server: &Server) {
    // A picture of one pixel.
    let picture =
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\
        \0\0\0\rIDATx\x9cc\xf8\xff\xff\xff\x7f\0\x09\xfb\x03\xfd\x05CE\xca\0\0\0\0IEND\xaeB`\x82";
    server.tree().write("feather.png", picture);
    browser.open(&server.url("/lib/exe/mediamanager.php?ns=birds"));
    let path = server.tree().path("feather.png").display().to_string();
    browser.type_into(
        "#dw__upload input[type=file], #mediamanager__uploader input[type=file]",
        &path,
    );
    browser.click("#mediamanager__upload_button, #dw__upload button[type=submit]");
    assert!(
        browser.is_true("document.body.innerText.includes('feather.png')"),
        "{}",
        browser.evaluate("document.body.innerHTML")
    );
}

fn search(browser: &Browser, server: &Server) {
    browser.open(&server.url("/doku.php?id=start"));
    browser.type_into("#dw__search input[name=q]", "zephyrine");
    browser.click("#dw__search button[type=submit]");
    assert!(
        browser.is_true("document.body.innerText.includes('petrel @birds')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
}
