//! docs/from-nginx.md: the sections marked "(compared)" have nginx's configuration and Petrel's, and both answer alike.

use std::fs;
use std::process::{Child, Command, Stdio};

use petrel_tests::{
    Address, Backend, Client, Response, Server, Speaks, Tree, base64, eventually, free_port,
    is_installed, skip,
};
use rustix::process::{Pid, Signal, kill_process};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/from-nginx.md");

/// By the beginning of a heading: what both servers are asked for.
const REQUESTS: &[(&str, &[&str])] = &[
    (
        "A site with files",
        &["/", "/index.html", "/sub/", "/sub", "/empty/", "/missing"],
    ),
    (
        "Aliases and denied files",
        &["/img/a.txt", "/img/b.txt", "/.git/config", "/.well-known/x"],
    ),
    (
        "Redirects and rewriting",
        &["/old", "/older", "/blog/17", "/blog/x", "/article.html"],
    ),
    (
        "A front controller",
        &["/index.html", "/some/page?x=1", "/missing.html"],
    ),
    (
        "An application that speaks HTTP",
        &["/app/", "/app/a?b=c", "/app/go", "/index.html"],
    ),
    ("Passwords", &["/private/a.txt", "/index.html"]),
];

/// "Authorization" fields to ask with, besides none.
const LOG_INS: &[&str] = &["anna:right", "anna:wrong"];

#[test]
fn both_servers_answer_alike() {
    if !is_installed("nginx") {
        return skip("both_servers_answer_alike", "nginx is not installed");
    }
    let text = fs::read_to_string(PAGE).expect("the page");
    let compared: Vec<&str> = text
        .split("\n## ")
        .filter(|section| section.lines().next().unwrap_or("").ends_with("(compared)"))
        .collect();
    assert_eq!(compared.len(), REQUESTS.len());
    for section in compared {
        let targets = REQUESTS
            .iter()
            .find(|(heading, _)| section.starts_with(heading));
        let (heading, targets) = targets.unwrap_or_else(|| panic!("no requests for {section}"));
        compare(heading, section, targets);
    }
}

fn compare(heading: &str, section: &str, targets: &[&str]) {
    let application = Backend::start_on_tcp(Speaks::Http, |exchange| {
        let target = exchange.target().to_owned();
        match target.as_str() {
            "/go" => {
                let there = format!("http://{}/there", exchange.param("Host"));
                exchange.answer(302, &[("Location", &there)], "");
            }
            target => exchange.answer(200, &[], format!("application: {target}")),
        }
    });
    let host = application.host();
    let port = host.rsplit(' ').next().expect("a port").to_owned();
    let here = |text: &str, tree: &Tree| {
        let root = tree.root().display();
        // The port first: the path of the tree may contain the same digits.
        text.replace("3000", &port)
            .replace("/srv/www/example.com", &format!("{root}/www"))
            .replace("/srv/media/", &format!("{root}/media/"))
            .replace("/etc/petrel/users", &format!("{root}/users"))
    };

    let builder = Server::build().tree(make_site);
    let config = block(section, "lighttpd").replace("server.port = 80\n", "");
    let mut petrel_tree = None;
    let builder = builder.tree(|tree| petrel_tree = Some(here(&config, tree)));
    let petrel = builder.config(&petrel_tree.expect("it was called")).start();

    let tree = Tree::new();
    make_site(&tree);
    let nginx_port = free_port();
    let config = here(&block(section, "nginx"), &tree)
        .replace("listen 80;", &format!("listen 127.0.0.1:{nginx_port};"));
    let _nginx = Nginx::start(&tree, &config);
    let nginx = Address::Ip(([127, 0, 0, 1], nginx_port).into());
    assert!(
        eventually(|| Client::try_connect(&nginx).is_ok()),
        "{heading}: {}",
        tree.text("nginx.log")
    );

    for target in targets {
        let log_ins = LOG_INS.iter().map(|log_in| Some(*log_in));
        for log_in in [None].into_iter().chain(log_ins) {
            let ours = ask(petrel.address(), target, log_in);
            let theirs = ask(&nginx, target, log_in);
            assert_eq!(ours, theirs, "{heading}: {target} {log_in:?}");
        }
    }
}

/// Status, path of Location, and the body of a success: each server has its own pages for the rest.
fn ask(address: &Address, target: &str, log_in: Option<&str>) -> (u16, String, String) {
    let mut client = Client::connect(address);
    let mut fields = vec![("Host", "example.com"), ("Connection", "close")];
    let basic = log_in.map(|log_in| format!("Basic {}", base64(log_in.as_bytes())));
    if let Some(basic) = &basic {
        fields.push(("Authorization", basic));
    }
    let mut head = format!("GET {target} HTTP/1.1\r\n");
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    client.send(format!("{head}\r\n"));
    let response: Response = client.response();
    let location = response.field("Location").unwrap_or_default();
    let path = location.find("//").map_or(location, |at| {
        let rest = &location[at + 2..];
        rest.find('/').map_or("", |at| &rest[at..])
    });
    let body = match response.status {
        200 => response.text(),
        _ => String::new(),
    };
    (response.status, path.to_owned(), body)
}

/// The text of a section's block in `language`.
fn block(section: &str, language: &str) -> String {
    let begin = format!("```{language}\n");
    let (_, rest) = section.split_once(&begin).expect("a block");
    rest.split("```").next().unwrap_or_default().to_owned()
}

fn make_site(tree: &Tree) {
    for name in [
        "index.html",
        "sub/index.html",
        "new.html",
        "article.html",
        "front.html",
        ".git/config",
        ".well-known/x",
        "private/a.txt",
    ] {
        tree.write(&format!("www/{name}"), format!("content of {name}"));
    }
    tree.directory("www/empty");
    tree.write("media/a.txt", "an alias");
    tree.write("users", "anna:$apr1$abcdefgh$tPMe7lknrFZeX55XJF00t0\n");
}

/// A running nginx, which is ended by its process id.
struct Nginx(Child);

impl Nginx {
    fn start(tree: &Tree, server: &str) -> Nginx {
        let root = tree.root().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {root}/nginx-{name};\n"))
            .collect();
        let text = format!(
            "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.log;\n\
             events {{ }}\nhttp {{ access_log off; {temporary}\n{server}\n}}\n"
        );
        tree.write("nginx.conf", text);
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("nginx")
            .env("PATH", format!("{path}:/usr/sbin"))
            .arg("-c")
            .arg(tree.path("nginx.conf"))
            .arg("-e")
            .arg(tree.path("nginx.log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Nginx(child.expect("nginx starts"))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let ended = eventually(|| self.0.try_wait().is_ok_and(|status| status.is_some()));
        if !ended {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
