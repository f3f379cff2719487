//! The sites of docs/rewriting.md, with a backend in the place of PHP.

use petrel_tests::{Backend, Server, Speaks};

const PAGE: &str = include_str!("../../../../docs/rewriting.md");

/// Tells what URL the program is to answer.
fn php() -> Backend {
    Backend::start_on_tcp(Speaks::FastCgi, |exchange| {
        let names = ["REQUEST_URI", "SCRIPT_NAME", "QUERY_STRING"];
        let told = names.map(|name| exchange.param(name).to_owned());
        exchange.say(&told.join(" "));
    })
}

/// A server with the configuration below the heading `site`.
fn server(site: &str, backend: &Backend, files: &[&str]) -> Server {
    let section = PAGE
        .split(&format!("## {site}\n"))
        .nth(1)
        .expect("a section");
    let config = section.split("```lighttpd\n").nth(1).expect("an example");
    let config = config.split("```").next().expect("its text");
    let socket = "\"socket\" => \"/run/php/php-fpm.sock\"";
    assert!(config.contains(socket), "{site}");
    let config = config.replace(socket, &backend.host());
    let config = format!("{config}\nmimetype.assign = (\".css\" => \"text/css\")\n");
    let mut builder = Server::build();
    for file in files {
        builder = builder.file(&format!("www/{file}"), format!("file {file}"));
    }
    builder.config(&config).start()
}

#[track_caller]
fn expect(server: &Server, pages: &[(&str, u16, &str)]) {
    for (target, status, text) in pages {
        let response = server.get(target);
        assert_eq!(response.status, *status, "{target}");
        if *status == 200 {
            assert_eq!(response.text(), *text, "{target}");
        }
    }
}

#[test]
fn wordpress() {
    let backend = php();
    let files = [
        "index.php",
        "wp-admin/index.php",
        "wp-content/a.css",
        "x.css",
    ];
    let server = server("WordPress", &backend, &files);
    expect(
        &server,
        &[
            ("/", 200, "/ /index.php "),
            ("/2024/05/a-post/", 200, "/2024/05/a-post/ /index.php "),
            ("/?p=1", 200, "/?p=1 /index.php p=1"),
            ("/index.php?p=1", 200, "/index.php?p=1 /index.php p=1"),
            ("/wp-admin/", 200, "/wp-admin/ /wp-admin/index.php "),
            ("/wp-content/a.css", 200, "file wp-content/a.css"),
            ("/wp-content/missing.css", 404, ""),
            ("/x.css", 200, "file x.css"),
            ("/x.css/feed", 200, "/x.css/feed /index.php "),
        ],
    );
}

#[test]
fn drupal() {
    let backend = php();
    let files = ["index.php", "core/a.css", "sites/settings.yml"];
    let server = server("Drupal", &backend, &files);
    expect(
        &server,
        &[
            ("/node/1?page=2", 200, "/node/1?page=2 /index.php page=2"),
            ("/user/login", 200, "/user/login /index.php "),
            ("/core/a.css", 200, "file core/a.css"),
            ("/sites/settings.yml", 403, ""),
        ],
    );
}

#[test]
fn mediawiki() {
    let backend = php();
    let server = server("MediaWiki", &backend, &["w/index.php", "w/a.css"]);
    expect(
        &server,
        &[
            (
                "/wiki/Main_Page",
                200,
                "/wiki/Main_Page /w/index.php title=Main_Page&",
            ),
            (
                "/wiki/A%26B/C?action=edit",
                200,
                "/wiki/A%26B/C?action=edit /w/index.php title=A%26B/C&action=edit",
            ),
            ("/wiki/", 200, "/wiki/ /w/index.php title=&"),
            ("/wiki", 200, "/wiki /w/index.php "),
            ("/", 200, "/ /w/index.php "),
            ("/w/a.css", 200, "file w/a.css"),
        ],
    );
}
