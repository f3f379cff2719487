//! The answers when a look-up cannot be made, because the queue of the disk threads is full: they must differ
//! from the answers for a name that does not exist. It is a program of its own, because the disk threads
//! belong to the whole process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use petrel_engine::blocking::{self, Class, Threads};
use petrel_engine::testing::Site;
use petrel_modules::MODULES;
use rustix::fs::{CWD, FileType, Mode, mknodat};

#[path = "../../engine/tests/queue/mod.rs"]
mod queue;

use queue::fill_queue;

/// A directory that is removed after the test.
struct Root(PathBuf);

impl Root {
    fn new() -> Root {
        let path = std::env::temp_dir().join(format!("petrel-unasked-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("mkdir");
        Root(path.canonicalize().expect("it was just made"))
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("it is below the root")).expect("mkdir");
        std::fs::write(path, self.placed(text)).expect("write");
    }

    fn placed(&self, text: &str) -> String {
        let root: &Path = &self.0;
        text.replace("ROOT", &root.display().to_string())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// By inotify a worker would know which names are missing without a look-up.
const CONFIG: &str = r#"
    server.stat-cache-engine = "simple"
    server.document-root = "ROOT/own"
    $HTTP["host"] =~ "^simple\." {
        simple-vhost.server-root = "ROOT/vhosts"
        simple-vhost.default-host = "default"
    }
    $HTTP["host"] =~ "^evhost\." { evhost.path-pattern = "ROOT/vhosts/%_/" }
    $HTTP["url"] == "/no-script" { magnet.attract-raw-url-to = ( "ROOT/scripts/cold.lua" ) }
    $HTTP["url"] == "/no-page" { cml.power-magnet = "ROOT/scripts/cold.cml" }
"#;

/// Functions of mod_magnet, each with a path that was not looked up before.
const MAGNET: &[(&str, &str)] = &[
    ("stat", "lighty.stat('ROOT/cold-1')"),
    ("readdir", "lighty.c.readdir('ROOT/cold-2')"),
    ("readlink", "lighty.c.readlink('ROOT/cold-3')"),
    (
        "body",
        "lighty.r.resp_body:set({ { filename = 'ROOT/cold-4' } })",
    ),
    // The kernel has it in its caches, but only a disk thread can tell more.
    ("fifo", "lighty.stat('ROOT/fifo')"),
    ("caught", "select(2, pcall(lighty.stat, 'ROOT/cold-0'))"),
];

/// Functions of mod_cml, each with a path that was not looked up before.
const CML: &[(&str, &str)] = &[
    ("isreg", "file_isreg('ROOT/cold-5')"),
    ("isdir", "file_isdir('ROOT/cold-6')"),
    ("mtime", "file_mtime('ROOT/cold-7')"),
    ("files", "dir_files('ROOT/cold-8')"),
    ("include", "{} output_include = { 'ROOT/own/cold-9' }"),
];

/// A site with a host that exists, a root for other hosts, and scripts that look at files if the query says
/// so.
fn site(root: &Root) -> Site {
    root.write("own/f", "own");
    root.write("vhosts/default/f", "default");
    let owner = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, root.0.join("fifo"), FileType::Fifo, owner, 0).expect("mkfifo");
    let mut config = CONFIG.to_owned();
    for (name, expression) in MAGNET {
        let script = format!(
            "lighty.content = {{ 'known' }}\n\
             if lighty.env['uri.query'] then lighty.content = {{ tostring({expression}) }} end\n\
             return 200"
        );
        let directive = format!("magnet.attract-raw-url-to = ( \"ROOT/scripts/{name}\" )");
        config += &format!("$HTTP[\"url\"] == \"/{name}\" {{ {directive} }}\n");
        root.write(&format!("scripts/{name}"), &script);
    }
    for (name, expression) in CML {
        let script = format!(
            "output_include = {{ {{ text = 'known' }} }}\n\
             if get.look then local found = {expression} end\n\
             return CACHE_HIT"
        );
        let directive = format!("cml.power-magnet = \"ROOT/scripts/{name}\"");
        config += &format!("$HTTP[\"url\"] == \"/{name}\" {{ {directive} }}\n");
        root.write(&format!("scripts/{name}"), &script);
    }
    Site::new(&root.placed(&config), MODULES)
}

fn answer(site: &Site, host: &str, target: &str) -> (u16, String) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let answer = site.request(&request);
    let body = String::from_utf8_lossy(answer.body()).into_owned();
    (answer.status(), body)
}

/// What is in memory is answered even if the queue is full.
fn answers_what_is_known(site: &Site) {
    let hosts = [("simple.missing", "default"), ("evhost.missing", "own")];
    for (host, expected) in hosts {
        let expected = (200, expected.to_owned());
        assert_eq!(answer(site, host, "/f"), expected, "{host}");
    }
    for (name, _) in MAGNET.iter().chain(CML) {
        let expected = (200, "known".to_owned());
        assert_eq!(answer(site, "a", &format!("/{name}")), expected, "{name}");
    }
}

#[test]
fn what_could_not_be_looked_up_is_not_taken_for_missing() {
    blocking::configure(Threads {
        stat: 64,
        read: 4,
        write: 1,
        ..blocking::THREADS
    });
    let root = Root::new();
    let site = site(&root);
    answers_what_is_known(&site);
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("no thread has panicked with it");
    fill_queue(Class::Stat, &gate);
    answers_what_is_known(&site);
    let scripts = MAGNET.iter().chain(CML);
    let scripts = scripts.map(|(name, _)| ("a", format!("/{name}?look=1")));
    let others = [
        ("simple.cold", "/f"),
        ("evhost.cold", "/f"),
        ("a", "/cold"),
        ("a", "/no-script"),
        ("a", "/no-page"),
    ];
    let asked: Vec<_> = others
        .map(|(host, target)| (host, target.to_owned()))
        .into_iter()
        .chain(scripts)
        .collect();
    let answered = asked.into_iter().map(|(host, target)| {
        let (status, body) = answer(&site, host, &target);
        (host, target, status, body)
    });
    let (caught, answered): (Vec<_>, Vec<_>) =
        answered.partition(|(_, target, ..)| target.starts_with("/caught"));
    drop(closed);
    for (host, target, status, body) in answered {
        assert_eq!(status, 503, "{host} {target}: {body}");
    }
    // A script that goes on without the file gets the reason.
    let (_, _, status, body) = &caught[0];
    let path = root.placed("ROOT/cold-0: ");
    assert!(*status == 200 && body.contains(&path), "{status} {body}");
}
