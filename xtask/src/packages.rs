//! The programs and files that tests use and a machine may lack, and the Debian packages they are in.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::limit::{self, Reads};
use crate::workspace::output_of;

/// Something that tests use.
struct Need {
    /// The package it comes in.
    package: &'static str,
    /// How to see that it is there: the name of a program, or an absolute path.
    sign: &'static str,
    /// What for.
    purpose: Purpose,
}

/// What a package is for.
enum Purpose {
    /// Nothing builds without it.
    Build,
    /// Tests of this kind skip, and say so, when it cannot be had.
    Tests(&'static str),
}

use Purpose::{Build, Tests};

/// Everything that tests use.
const NEEDS: &[Need] = &[
    need("gcc", "cc", Build),
    need("g++", "c++", Build),
    need("curl", "curl", Tests("that use curl")),
    need("wget", "wget", Tests("that mirror a site")),
    need("apache2-utils", "ab", Tests("with ab")),
    need("wrk", "wrk", Tests("with wrk")),
    need("nghttp2-client", "h2load", Tests("with h2load")),
    need("strace", "strace", Tests("that count system calls")),
    need("valgrind", "valgrind", Tests("that count instructions")),
    need("lighttpd", "lighttpd", Tests("that compare with lighttpd")),
    need(
        "media-types",
        "/etc/mime.types",
        Tests("of Debian's lighttpd.conf"),
    ),
    need(
        "javascript-common",
        "/usr/share/javascript",
        Tests("of Debian's lighttpd.conf"),
    ),
    need("perl", "perl", Tests("of Debian's lighttpd.conf")),
    need("e2fsprogs", "mkfs.ext4", Tests("of the modelled disk")),
    need("mount", "losetup", Tests("of the modelled disk")),
    need("util-linux", "blockdev", Tests("of the modelled disk")),
    need("systemd", "systemd-analyze", Tests("of the systemd unit")),
    need("python3", "python3", Tests("of forbidden system calls")),
    need("iproute2", "ip", Tests("in a network of their own")),
    need(
        "python3-doc",
        "/usr/share/doc/python3-doc/html",
        Tests("on a big real tree"),
    ),
    need("chromium", "chromium", Tests("in a browser")),
    need("chromium-driver", "chromedriver", Tests("in a browser")),
    need("php-fpm", "php-fpm8.2", Tests("with PHP")),
    need("php-cgi", "php-cgi", Tests("with PHP that Petrel starts")),
    need("uwsgi", "uwsgi", Tests("with uWSGI")),
    need("uwsgi-plugin-python3", "uwsgi_python3", Tests("with uWSGI")),
    need("gunicorn", "/usr/bin/gunicorn", Tests("with gunicorn")),
    need("python3-pip", "pip3", Tests("with flup, which is on PyPI")),
    need(
        "libfcgi-perl",
        "/var/lib/dpkg/info/libfcgi-perl.list",
        Tests("with Perl's FCGI"),
    ),
    need(
        "ruby-fcgi",
        "/usr/lib/ruby/vendor_ruby/fcgi.rb",
        Tests("with Ruby's fcgi"),
    ),
    need("nodejs", "node", Tests("with Node")),
    // Without tomcat10, which brings a service and systemd with it.
    need(
        "tomcat10-common",
        "/usr/share/tomcat10/bin/bootstrap.jar",
        Tests("with Tomcat"),
    ),
    need(
        "dokuwiki",
        "/usr/share/dokuwiki/doku.php",
        Tests("with DokuWiki"),
    ),
    need("nginx-light", "nginx", Tests("behind nginx")),
    need(
        "spawn-fcgi",
        "spawn-fcgi",
        Tests("of programs that spawn-fcgi starts"),
    ),
    need("redis-server", "redis-server", Tests("with Redis")),
    need("memcached", "memcached", Tests("with memcached")),
];

const fn need(package: &'static str, sign: &'static str, purpose: Purpose) -> Need {
    Need {
        package,
        sign,
        purpose,
    }
}

/// Installs what is missing. Returns a line for each package that cannot be had although root asked
/// for it, for the summary; the tests that need it skip.
///
/// # Errors
/// When something is missing and this is not root, or what the build needs cannot be had.
pub fn provide() -> Result<Vec<String>, String> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !need.is_met()).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let packages = packages.join(" ");
    if !is_root() {
        return Err(format!(
            "The tests need packages that are missing. As root:\n    apt-get install {packages}"
        ));
    }
    println!("=== packages: {packages}");
    install(&missing);
    let still: Vec<&Need> = missing.into_iter().filter(|need| !need.is_met()).collect();
    if let Some(need) = still.iter().find(|need| matches!(need.purpose, Build)) {
        return Err(format!(
            "nothing builds without the package {}",
            need.package
        ));
    }
    Ok(still.iter().map(|need| need.lament()).collect())
}

impl Need {
    fn is_met(&self) -> bool {
        if self.sign.starts_with('/') {
            return Path::new(self.sign).exists();
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut places = path.split(':').chain(["/usr/sbin", "/sbin"]);
        places.any(|place| Path::new(place).join(self.sign).is_file())
    }

    fn lament(&self) -> String {
        match self.purpose {
            Build => format!("{}: missing", self.package),
            Tests(which) => {
                format!(
                    "package {} cannot be had: tests {which} are skipped",
                    self.package
                )
            }
        }
    }
}

/// How long installing may take, all in all.
const INSTALL_MINUTES: u64 = 10;

/// All at once, and one by one if that fails: one that cannot be had must not keep out the others.
fn install(missing: &[&Need]) {
    let deadline = Instant::now() + Duration::from_secs(INSTALL_MINUTES * 60);
    let apt_get = |arguments: &[&str]| apt_get(arguments, deadline);
    let report = |outcome: Result<(), String>| {
        if let Err(message) = &outcome {
            println!("=== {message}");
        }
        outcome.is_ok()
    };
    report(apt_get(&["update", "-q"]));
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    if !report(apt_get(&[INSTALL, &packages].concat())) {
        for package in packages {
            report(apt_get(&[INSTALL, &[package]].concat()));
        }
    }
}

const INSTALL: &[&str] = &["install", "-q", "-y", "--no-install-recommends"];

/// RUNLEVEL=1 keeps packages from starting the servers they bring.
fn apt_get(arguments: &[&str], deadline: Instant) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null());
    let left = deadline.saturating_duration_since(Instant::now());
    let name = format!("apt-get {}", arguments.join(" "));
    if left.is_zero() {
        return Err(format!("{name}: no time was left"));
    }
    let tell = |line: &str| println!("{line}");
    limit::run(&name, &mut command, Reads::Output, left, tell)
}

fn is_root() -> bool {
    output_of(Command::new("id").arg("-u")).is_ok_and(|id| id.trim_ascii() == b"0")
}
