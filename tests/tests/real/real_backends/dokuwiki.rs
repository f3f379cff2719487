//! A wiki in PHP, used through a browser: log in, edit, upload, search.

use std::path::Path;

use petrel_tests::{Browser, Builder, Component, Server, Tree, can_run, package, skip};

use crate::real_backends::php::{fpm, start_fpm};

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

/// DokuWiki's documentation of `userewrite = 1`, as rules of mod_rewrite: pages have URLs of their names.
const CLEAN_URLS: &str = r#"
server.modules += ( "mod_rewrite" )
url.rewrite-once = (
  "^/(lib/|doku\.php|feed\.php).*" => "$0",
  "^/_media/([^?]*)(?:\?(.*))?$" => "/lib/exe/fetch.php?media=$1&$2",
  "^/_detail/([^?]*)(?:\?(.*))?$" => "/lib/exe/detail.php?media=$1&$2",
  "^/_export/([^/]+)/([^?]*)(?:\?(.*))?$" => "/doku.php?do=export_$1&id=$2&$3",
  "^/([^?]*)(?:\?(.*))?$" => "/doku.php?id=$1&$2",
)
"#;

/// PHP with the wiki, unless something for the test is missing: it says what, then.
fn start_wiki(test: &str) -> Option<Component> {
    if !can_run(test, &["/usr/share/dokuwiki/doku.php"]) {
        return None;
    }
    let package = package("dokuwiki");
    let hindrance = match &package {
        Err(why) => Some(why.clone()),
        Ok(_) if fpm().is_none() => Some("php-fpm is not installed".to_owned()),
        Ok(_) => Browser::hindrance(),
    };
    match (hindrance, package) {
        (None, Ok(package)) => Some(start_fpm(installation(&package))),
        (why, _) => {
            skip(test, &why.unwrap_or_default());
            None
        }
    }
}

fn server(fpm: &Component) -> Builder {
    let www = fpm.path("www");
    Server::build()
        .config(&format!("server.document-root = \"{www}\""))
        .config(CONFIGURATION)
        .config(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"{}\" )) )",
            fpm.path("fpm.sock")
        ))
}

/// Scripts, styles and pictures loaded; none of its own failed.
fn expect_no_complaints(browser: &Browser) {
    let mut complaints = browser.complaints();
    complaints.retain(|entry| !entry.starts_with("\"DEBUG\""));
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// It takes so long because Chromium starts, and loads one page of a large PHP program after the other.
#[test]
fn dokuwiki_in_a_browser() {
    let Some(fpm) = start_wiki("dokuwiki_in_a_browser") else {
        return;
    };
    let server = server(&fpm).start();
    assert_eq!(server.get("/conf/local.php").status, 403);
    let browser = Browser::start();
    log_in(&browser, &server);
    upload(&browser, &server);
    edit(&browser, &server);
    search(&browser, &server);
    expect_no_complaints(&browser);
}

/// It takes so long because Chromium starts, and loads one page of a large PHP program after the other.
#[test]
fn dokuwiki_with_clean_urls_in_a_browser() {
    let Some(fpm) = start_wiki("dokuwiki_with_clean_urls_in_a_browser") else {
        return;
    };
    let local = fpm.tree.text("conf/local.php");
    let local = format!("{local}$conf['userewrite'] = 1;\n$conf['useslash'] = 1;\n");
    fpm.tree.write("conf/local.php", local);
    let server = server(&fpm).config(CLEAN_URLS).start();
    // Any other path is the name of a page, also this one. The file of that name is not to be had.
    let page = server.get("/conf/local.php").text();
    assert!(
        page.contains("Petrel wiki") && !page.contains("superuser"),
        "{page}"
    );
    let browser = Browser::start();
    log_in(&browser, &server);
    upload(&browser, &server);
    browser.open(&server.url("/birds/petrel?do=edit"));
    let text = "====== Storm petrel ======\\nIt walks on water. {{birds:feather.png}} [[start]]";
    browser.type_into("#wiki__text", text);
    browser.click("#edbtn__save");
    assert!(
        browser.is_true("document.body.innerText.includes('It walks on water.')"),
        "{}",
        browser.evaluate("document.body.innerText")
    );
    browser.open(&server.url("/birds/petrel"));
    assert!(browser.is_true(
        "Array.from(document.images).some(i => i.src.includes('/_media/birds/feather.png') && i.naturalWidth == 1)"
    ));
    // The link that the wiki has made is one of these URLs, and its page is there.
    browser.click("#dokuwiki__content a.wikilink2");
    assert!(
        browser.is_true("location.pathname == '/birds/start' && document.body.innerText.includes('does not exist yet')"),
        "{} {}",
        browser.evaluate("location.href"),
        browser.evaluate("document.body.innerText")
    );
    let text = server.get("/_export/raw/birds/petrel").text();
    assert!(text.starts_with("====== Storm petrel ======"), "{text}");
    expect_no_complaints(&browser);
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
