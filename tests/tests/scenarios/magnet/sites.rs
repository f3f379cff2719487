//! Scripts for clean URLs and access control as sites use them. Each does what its first lines say, and the
//! same under lighttpd.
//!
//! They are in `sites/`, written from scratch after public documentation. `NAME.lua` runs for the URLs below
//! `/NAME/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use petrel_tests::{Client, Difference, Differential, Server, Tree, skip};

use crate::magnet::like_lighttpd::MOD_MAGNET;

/// Prints what the program received.
const TELL: &str = "printf 'Content-Type: text/plain\\r\\n\\r\\n'\n\
for name in REQUEST_URI REDIRECT_URI QUERY_STRING SCRIPT_NAME PATH_INFO; do\n\
eval \"value=\\${$name-unset}\"; printf '%s=%s\\n' $name \"$value\"; done\n";

/// Files in addition to those of each script.
const FILES: [(&str, &str); 24] = [
    ("www/wordpress/index.php", TELL),
    ("www/wordpress/wp-admin/index.php", TELL),
    ("www/drupal/index.php", TELL),
    ("www/cakephp/webroot/index.php", TELL),
    ("www/cakephp/webroot/img/p.png", "a picture"),
    ("www/wiki/index.php", TELL),
    ("www/maintenance/closed", ""),
    ("www/cache-bust/app.css", "p { }"),
    ("www/language/page.en.html", "a page"),
    ("www/language/page.de.html", "eine Seite"),
    ("www/index-selection/both/start.txt", "start of both"),
    ("www/index-selection/both/home.txt", "home"),
    ("www/index-selection/second/home.txt", "home"),
    ("www/index-selection/none/x", "x"),
    ("www/mobile/m/a.txt", "for small screens"),
    ("www/dot-files/.git/config", "secret"),
    ("www/dot-files/.well-known/x.txt", "well known"),
    ("www/compressed/page.txt", "plain page"),
    ("www/compressed/page.txt.gz", "compressed page"),
    ("www/page/part.txt", "<part of a page>"),
    ("hosts/one.test/virtual-host/a.txt", "a of one"),
    ("hosts/one.test/virtual-host/run.php", TELL),
    ("hosts/default/virtual-host/a.txt", "a of the default"),
    (
        "www/fields/t.php",
        "printf 'Content-Type: text/plain\\r\\nX-Powered-By: PHP\\r\\n\\r\\nx'\n",
    ),
];

const CONFIG: &str = "\
server.modules = ( \"mod_indexfile\", \"mod_magnet\", \"mod_cgi\", \"mod_staticfile\" )
index-file.names = ( \"index.php\", \"index.html\" )
cgi.assign = ( \".php\" => \"/bin/sh\" )
mimetype.assign = ( \".txt\" => \"text/plain\", \".css\" => \"text/css\", \".html\" => \"text/html\",
    \".png\" => \"image/png\", \".gz\" => \"application/gzip\" )
";

/// The scripts, by name.
fn scripts() -> BTreeMap<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/magnet/sites");
    let entries = fs::read_dir(directory).expect("the scripts");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let named = paths.map(|path| {
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        (name, fs::read_to_string(path).expect("a script"))
    });
    named.collect()
}

fn config(scripts: &BTreeMap<String, String>) -> String {
    let mut config = CONFIG.to_owned();
    for (name, script) in scripts {
        let hook = script
            .lines()
            .find_map(|line| line.strip_prefix("-- hook: "));
        let hook = hook.expect("it says where it runs");
        config.push_str(&format!(
            "$HTTP[\"url\"] =~ \"^/{name}(/|$)\" {{ magnet.attract-{hook}-to = ( var.dir + \"/{name}.lua\" ) }}\n"
        ));
    }
    config
}

fn make(scripts: &BTreeMap<String, String>, tree: &Tree) {
    let write = |path: &str, content: &str| {
        tree.write(path, content).modified(path, 1_000_000_000);
    };
    for (name, script) in scripts {
        write(&format!("{name}.lua"), script);
        for (file, content) in [
            ("a.txt", "0123456789"),
            ("p.png", "a picture"),
            ("img/p.png", "a picture"),
        ] {
            write(&format!("www/{name}/{file}"), content);
        }
    }
    for (path, content) in FILES {
        write(path, content);
    }
}

/// A request in a script's first lines, and its expected result.
struct Asked {
    method: String,
    head: String,
    status: u16,
    /// A part of the response's head or body.
    told: String,
}

impl Asked {
    /// Parses `METHOD TARGET {Field: value} -> STATUS TEXT`; the field is optional.
    fn read(name: &str, line: &str) -> Option<Asked> {
        let (request, answer) = line.strip_prefix("-- ")?.split_once(" -> ")?;
        let (method, rest) = request.split_once(' ').expect("a method");
        let (target, field) = rest.split_once(" {").unwrap_or((rest, ""));
        let field = field.trim_end_matches('}');
        let mut head = format!("{method} /{name}{target} HTTP/1.1\r\n");
        if !field.starts_with("Host: ") {
            head.push_str("Host: site.test\r\n");
        }
        if !field.is_empty() {
            head.push_str(&format!("{field}\r\n"));
        }
        if matches!(method, "POST" | "DELETE") {
            head.push_str("Content-Length: 0\r\n");
        }
        let (status, told) = answer.split_once(' ').unwrap_or((answer, ""));
        Some(Asked {
            method: method.to_owned(),
            head: head + "\r\n",
            status: status.parse().expect("a status"),
            told: told.to_owned(),
        })
    }

    fn expect_of(&self, server: &Server) {
        let mut client: Client = server.client();
        client.send(&self.head);
        let response = match self.method.as_str() {
            "HEAD" => client.response_to_head(),
            _ => client.response(),
        };
        let whole = format!(
            "{}{}",
            String::from_utf8_lossy(&response.head),
            response.text()
        );
        let is_right = response.status == self.status && whole.contains(&self.told);
        assert!(
            is_right,
            "{:?}: {} {:?} expected:\n{whole}",
            self.head, self.status, self.told
        );
    }
}

fn all_asked(scripts: &BTreeMap<String, String>) -> Vec<Asked> {
    let mut all = Vec::new();
    for (name, script) in scripts {
        let before = all.len();
        all.extend(script.lines().filter_map(|line| Asked::read(name, line)));
        assert!(all.len() > before, "{name} is asked nothing");
    }
    all
}

#[test]
fn scripts_of_sites_do_what_they_say() {
    let scripts = scripts();
    assert!(scripts.len() >= 20, "{} scripts", scripts.len());
    let server = Server::build()
        .tree(|tree| make(&scripts, tree))
        .config(&config(&scripts))
        .start();
    for asked in all_asked(&scripts) {
        asked.expect_of(&server);
    }
}

#[test]
fn scripts_of_sites_answer_as_under_lighttpd() {
    if !Path::new(MOD_MAGNET).exists() {
        return skip(
            "a comparison with lighttpd",
            "its mod_magnet is not installed",
        );
    }
    let scripts = scripts();
    let Some(mut both) = Differential::start(&config(&scripts), |tree| make(&scripts, tree)) else {
        return;
    };
    for asked in all_asked(&scripts) {
        both.send(&asked.head, Difference::BuiltInPage);
    }
    both.expect_no_difference();
}
