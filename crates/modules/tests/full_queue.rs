//! What is answered when a look-up cannot be made: never what is right where a name is not there. In a program of
//! its own, because the threads are those of the whole process.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel_engine::blocking::{self, Class, NotDone, Origin, Threads};
use petrel_engine::limits;
use petrel_engine::testing::Site;
use petrel_modules::MODULES;

/// Jobs that end when the gate opens: as many as one file system may run, and behind them as many as may wait.
/// Two file systems fill the queue between them, and no thread that there may be has anything else to do.
fn fill_queue(gate: &Arc<Mutex<()>>) {
    let origin = |device| Origin {
        device,
        is_remote: true,
        ..Origin::default()
    };
    let begin = |device| {
        let gate = Arc::clone(gate);
        blocking::start(Class::Stat, origin(device), move || drop(gate.lock()))
    };
    let devices = [u64::MAX, u64::MAX - 1];
    for device in devices {
        for _ in 0..limits::REMOTE_DEVICE_JOBS_MAX {
            begin(device).expect("nothing waits yet");
        }
    }
    let all = devices.len() * limits::REMOTE_DEVICE_JOBS_MAX;
    let ends = Instant::now() + Duration::from_secs(60);
    while blocking::counts(Class::Stat).running < all {
        assert!(Instant::now() < ends, "the threads do not start");
        std::thread::yield_now();
    }
    for device in devices {
        while begin(device).is_ok() {}
    }
    assert_eq!(begin(0), Err(NotDone::QueueFull));
}

/// A directory that goes with the test.
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

const CONFIG: &str = r#"
    server.document-root = "ROOT/own"
    $HTTP["host"] =~ "^simple\." {
        simple-vhost.server-root = "ROOT/vhosts"
        simple-vhost.default-host = "default"
    }
    $HTTP["host"] =~ "^evhost\." { evhost.path-pattern = "ROOT/vhosts/%_/" }
"#;

/// A site with a host that is there, and a root for those that are not.
fn site(root: &Root) -> Site {
    root.write("own/f", "own");
    root.write("vhosts/default/f", "default");
    Site::new(&root.placed(CONFIG), MODULES)
}

fn answer(site: &Site, host: &str, target: &str) -> (u16, String) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let answer = site.request(&request);
    let body = String::from_utf8_lossy(answer.body()).into_owned();
    (answer.status(), body)
}

#[test]
fn what_could_not_be_looked_up_is_not_taken_for_missing() {
    blocking::configure(Threads {
        stat: 64,
        read: 4,
        write: 1,
    });
    let root = Root::new();
    let site = site(&root);
    let known = [("simple.missing", "default"), ("evhost.missing", "own")];
    for (host, expected) in known {
        let expected = (200, expected.to_owned());
        assert_eq!(answer(&site, host, "/f"), expected, "{host}");
    }
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().expect("nobody else has it");
    fill_queue(&gate);
    // What is known is answered.
    for (host, expected) in known {
        let expected = (200, expected.to_owned());
        assert_eq!(answer(&site, host, "/f"), expected, "{host}");
    }
    let unknown = [
        ("simple.cold", "/f"),
        ("evhost.cold", "/f"),
        ("a.example", "/cold"),
    ];
    let answers = unknown.map(|(host, target)| (host, answer(&site, host, target)));
    drop(closed);
    for (host, (status, body)) in answers {
        assert_eq!(status, 503, "{host} {body:?}");
    }
}
