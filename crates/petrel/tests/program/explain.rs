//! `petrel explain URL`.

use std::path::Path;
use std::process::{Command, Output};

const CONFIGURATION: &str = r#"server.modules = ( "mod_rewrite", "mod_fastcgi", "mod_alias" )
server.document-root = "ROOT/www"
server.port = 8080
index-file.names = ( "index.html" )
$HTTP["host"] == "a.example" {
    url.rewrite-once = ( "^/old/(.*)$" => "/new/$1" )
    $HTTP["url"] =^ "/new/" {
        server.tag = "new"
    }
    else {
        server.tag = "other"
    }
}
else $HTTP["remoteip"] == "10.0.0.0/8" {
    fastcgi.server = ( ".php" => (( "socket" => "/run/one" ), ( "socket" => "/run/two" )) )
}
include "more.conf"
"#;

const INCLUDED: &str =
    "$HTTP[\"host\"] == \"c.example\" {\n    server.error-handler-404 = \"/none.html\"\n}\n";

fn explain(home: &Path, arguments: &[&str]) -> (Output, String) {
    let write = |name: &str, text: &str| {
        let path = home.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write(
        "petrel.conf",
        &CONFIGURATION.replace("ROOT", &home.display().to_string()),
    );
    write("more.conf", INCLUDED);
    write("www/new/a.html", "a");
    write("www/new/index.html", "index");
    write("www/b.php", "");
    let output = Command::new(env!("CARGO_BIN_EXE_petrel"))
        .arg("explain")
        .arg("-f")
        .arg(home.join("petrel.conf"))
        .args(arguments)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text.replace(&home.display().to_string(), "HOME"))
}

/// The lines stand in `text` in this order; runs of spaces count as one.
#[track_caller]
fn says(text: &str, lines: &[&str]) {
    let plain: Vec<String> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut rest = plain.iter();
    for line in lines {
        assert!(rest.any(|found| found == line), "no {line:?} in\n{text}");
    }
}

#[test]
fn a_file_is_explained() {
    let home = tempfile::tempdir().expect("a directory");
    let (output, text) = explain(home.path(), &["http://a.example:8080/old/a.html?q"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    says(
        &text,
        &[
            "GET http://a.example:8080/old/a.html?q",
            "from 127.0.0.1 by the listener 0.0.0.0:8080",
            "",
            "Answer 200 OK",
            "Made by mod_staticfile, in the phase content",
            "Path HOME/www/new/a.html, a regular file",
            "Document root HOME/www",
            "Body 1 byte from memory",
            "Conditions",
            "yes $HTTP[\"host\"] == \"a.example\" \"a.example:8080\" petrel.conf:5",
            "yes $HTTP[\"url\"] =^ \"/new/\" \"/new/a.html\" (at first no for \"/old/a.html\") petrel.conf:7",
            "no $HTTP[\"host\"] == \"c.example\" \"a.example:8080\" more.conf:1",
            "2 in blocks that do not apply were not looked at",
            "Steps",
            "translate mod_rewrite URL /old/a.html?q -> /new/a.html?q petrel.conf:6 \"^/old/(.*)$\"",
            "document root core document root HOME/www petrel.conf:2 server.document-root",
            "map core finds a regular file",
            "content mod_staticfile answers 200",
            "Directives",
            "server.tag \"new\" petrel.conf:8",
            "Files",
            "HOME/www/new/a.html regular file, 1 byte open, stat, read no system call",
        ],
    );
}

#[test]
fn backends_are_named() {
    let home = tempfile::tempdir().expect("a directory");
    let arguments = ["--client", "10.1.2.3", "http://b.example:8080/b.php/info"];
    let (output, text) = explain(home.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{text}");
    says(
        &text,
        &[
            "Answer what the backend says",
            "Made by mod_fastcgi, in the phase content",
            "Route fastcgi.server \".php\" petrel.conf:15",
            "Backend unix:/run/one (FastCGI)",
            "or unix:/run/two (FastCGI)",
            "Choice the one with the fewest requests under way for its weight",
            "Path HOME/www/b.php, a regular file",
            "Path-info /info",
            "yes else $HTTP[\"remoteip\"] == \"10.0.0.0/8\" \"10.1.2.3\" petrel.conf:14",
        ],
    );
}

#[test]
fn an_error_handler_is_a_step() {
    let home = tempfile::tempdir().expect("a directory");
    let (_, text) = explain(home.path(), &["http://c.example:8080/x", "--all"]);
    says(
        &text,
        &[
            "Answer 404 Not Found",
            "outer block does not apply $HTTP[\"url\"] =^ \"/new/\" petrel.conf:7",
            "map core finds nothing",
            "answers 404",
            "map core URL /x -> /none.html more.conf:2 server.error-handler-404",
            "the error handler answers in place of 404",
            "server.max-worker 0 default",
        ],
    );
}

#[test]
fn each_url_is_a_json_object() {
    let home = tempfile::tempdir().expect("a directory");
    let (output, text) = explain(home.path(), &["--json", "/new/", "-X", "POST", "/new"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let objects: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let [index, redirect] = &objects[..] else {
        panic!("{text}");
    };
    assert_eq!(index["answer"]["status"], 200);
    assert_eq!(index["file"]["path"], "HOME/www/new/index.html");
    assert_eq!(index["conditions"][0]["verdict"], "no");
    assert_eq!(index["conditions"][0]["value"], "localhost");
    assert_eq!(redirect["method"], "POST");
    assert_eq!(redirect["answer"]["status"], 301);
    assert_eq!(redirect["answer"]["fields"][0][0], "Location");
}

#[test]
fn mistakes_are_told() {
    let home = tempfile::tempdir().expect("a directory");
    for (arguments, message) in [
        (&["a.example"][..], "explain: \"a.example\" is no URL"),
        (&["/x", "-H", "nothing"], "is no field"),
        (&["/x", "--client", "me"], "invalid IP address"),
        (&["/x", "-X", "A B"], "is no method"),
        (&[], "required"),
    ] {
        let (output, text) = explain(home.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(255), "{text}");
        assert!(errors.contains(message), "{errors}");
        assert_eq!(text, "");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_petrel"))
        .args(["explain", "-f", "/nonexistent/petrel.conf", "/"])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(255));
    assert!(errors.contains("/nonexistent/petrel.conf"), "{errors}");
}
