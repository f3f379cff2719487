use std::process::Command;

use petrel_tests::{can_run, petrel, skip};

use super::{Told, Version, site};

const TEST: &str = "a_worker_that_gets_no_processor";

const WORK: &str =
    "print('works')\nlocal begin = os.clock()\nwhile os.clock() - begin < 0.2 do end\n";

/// Waits until the script works, and then has the processor for itself.
const OTHER: &str = "for i in $(seq 2000); do grep -q works LOG && break; sleep 0.005; done; \
    exec timeout 0.3 sh -c 'while :; do :; done'";

/// While a script runs, a program that comes first takes the only processor of the worker.
#[test]
fn a_worker_that_gets_no_processor() {
    if !can_run(TEST, &["chrt", "taskset"]) {
        return;
    }
    let mut probe = Command::new("chrt");
    if !probe
        .args(["--rr", "1", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip(TEST, "chrt may not set a real-time priority");
    }
    let allowed = rustix::thread::sched_getaffinity(None).expect("it is known");
    let processor = (0..).find(|processor| allowed.is_set(*processor));
    let processor = processor.expect("there is one").to_string();
    for version in Version::BOTH {
        let mut on_one = Command::new("taskset");
        on_one.args(["-c", &processor]).arg(petrel()).arg("-D");
        let server = site()
            .file("work.lua", WORK)
            .config("server.modules += (\"mod_magnet\")\nlua.max-run-time = 5000")
            .config("magnet.attract-raw-url-to = (var.dir + \"/work.lua\")")
            .start_as(on_one);
        let log = server.tree().path("error.log").display().to_string();
        let mut other = Command::new("chrt");
        other.args(["--rr", "1", "taskset", "-c", &processor, "sh", "-c"]);
        let mut other = other
            .arg(OTHER.replace("LOG", &log))
            .spawn()
            .expect("it starts");
        version.ask(&server, "/a.txt", &[]);
        let ended = other.wait().expect("it ends");
        assert_eq!(ended.code(), Some(124), "timeout has ended it");
        Told::about(&server, "/a.txt").expect(
            &server,
            "lag",
            "up to this long the worker had no processor",
        );
    }
}
