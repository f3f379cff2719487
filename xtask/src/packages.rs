//! Programs and files that tests use and that a machine may lack, with the Debian packages that contain them.
//!
//! Programs are installed. Where tests are about the *files* of a package, they get an unpacked copy of it,
//! because an administrator or another package may have changed the installed files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::limit::{self, Reads};
use crate::tools;
use crate::workspace::{Workspace, output_of};

/// Something that tests use.
struct Need {
    /// The package it comes in.
    package: &'static str,
    /// A program name or an absolute path that exists if the package is installed.
    sign: &'static str,
    /// What for.
    purpose: Purpose,
}

/// The use of a package.
enum Purpose {
    /// Nothing builds without it.
    Build,
    /// Which tests are skipped, with a message, when the package cannot be had.
    Tests(&'static str),
}

use Purpose::{Build, Tests};

/// Everything that tests use.
const NEEDS: &[Need] = &[
    need("gcc", "cc", Build),
    need("g++", "c++", Build),
    need("libc6-dev", "/usr/include/stdio.h", Build),
    need("make", "make", Build),
    need("curl", "curl", Tests("that use curl")),
    need("wget", "wget", Tests("that mirror a site")),
    need("apache2-utils", "ab", Tests("with ab")),
    need("wrk", "wrk", Tests("with wrk")),
    need("nghttp2-client", "h2load", Tests("with h2load")),
    need("openssl", "openssl", Tests("with openssl s_client")),
    need("gnutls-bin", "gnutls-cli", Tests("with gnutls-cli")),
    need("golang-go", "go", Tests("with h2spec, which Go builds")),
    need("strace", "strace", Tests("that count system calls")),
    need("valgrind", "valgrind", Tests("that count instructions")),
    need("lighttpd", "lighttpd", Tests("that compare with lighttpd")),
    need(
        "lighttpd-mod-deflate",
        "/usr/lib/lighttpd/mod_deflate.so",
        Tests("that compare compression with lighttpd"),
    ),
    need(
        "lighttpd-modules-lua",
        "/usr/lib/lighttpd/mod_magnet.so",
        Tests("that compare scripts with lighttpd"),
    ),
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
    need("logrotate", "logrotate", Tests("of the Debian package")),
    need("dpkg-dev", "dpkg-shlibdeps", Tests("of the Debian package")),
    need("python3", "python3", Tests("of forbidden system calls")),
    need("iproute2", "ip", Tests("in a network of their own")),
    need("nftables", "nft", Tests("in a network that loses packets")),
    need(
        "python3-doc",
        "/usr/share/doc/python3-doc/html",
        Tests("on a big real tree"),
    ),
    need("chromium", "chromium", Tests("in a browser")),
    need("chromium-driver", "chromedriver", Tests("in a browser")),
    need("php-fpm", "php-fpm8.2", Tests("with PHP")),
    need("php-cgi", "php-cgi", Tests("with PHP that Petrel starts")),
    need(
        "php-mbstring",
        "/var/lib/dpkg/info/php-mbstring.list",
        Tests("with phpSysInfo"),
    ),
    need("uwsgi", "uwsgi", Tests("with uWSGI")),
    need("uwsgi-plugin-python3", "uwsgi_python3", Tests("with uWSGI")),
    need("gunicorn", "/usr/bin/gunicorn", Tests("with gunicorn")),
    need(
        "python3-pip",
        "pip3",
        Tests("with flup and sslyze, which are on PyPI"),
    ),
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
    // Not tomcat10, which would install a service and systemd.
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
    need(
        "git",
        "/usr/lib/git-core/git-instaweb",
        Tests("with gitweb"),
    ),
    need(
        "libcgi-pm-perl",
        "/usr/share/perl5/CGI.pm",
        Tests("with gitweb"),
    ),
    need("nginx-light", "nginx", Tests("behind nginx")),
    need(
        "spawn-fcgi",
        "spawn-fcgi",
        Tests("of programs that spawn-fcgi starts"),
    ),
    need("redis-server", "redis-server", Tests("with Redis")),
    need("memcached", "memcached", Tests("with memcached")),
    need("slapd", "/usr/sbin/slapd", Tests("with OpenLDAP")),
];

/// Packages that are unpacked, each into a folder of its name.
const UNPACKED: &[&str] = &[
    "lighttpd",
    "lighttpd-mod-deflate",
    "lighttpd-mod-openssl",
    "javascript-common",
    "media-types",
    "dokuwiki",
    "phpsysinfo",
    // Its programs need nothing else, and an installed one would run as a service.
    "prometheus",
    // phpSysInfo's styles link to it.
    "libjs-bootstrap4",
];

/// The folder below cargo's target directory that holds the unpacked packages. `petrel_tests::package` has
/// the same name.
const UNPACKED_IN: &str = "packages";

/// Patterns of packages that packages of [`NEEDS`] depend on and that contain the real programs. Their
/// versions are printed as well.
const STOOD_FOR: &[&str] = &["php[0-9]*-fpm", "php[0-9]*-cgi", "openjdk-*-jre-headless"];

const fn need(package: &'static str, sign: &'static str, purpose: Purpose) -> Need {
    Need {
        package,
        sign,
        purpose,
    }
}

/// Installs and unpacks missing packages, and prints the versions of all. Returns a line for the summary for
/// each package that cannot be had; tests that need it are skipped.
///
/// # Errors
/// When a package is missing and this process is not root, or when a package that the build needs cannot be
/// had.
pub fn provide(workspace: &Workspace) -> Result<Vec<String>, String> {
    let deadline = Instant::now() + Duration::from_secs(INSTALL_MINUTES * 60);
    let mut unavailable = provide_installed(deadline)?;
    unavailable.extend(provide_unpacked(
        &workspace.target.join(UNPACKED_IN),
        deadline,
    ));
    unavailable.extend(tools::provide(workspace));
    println!("=== packages used: {}", versions(workspace).join(", "));
    Ok(unavailable)
}

fn provide_installed(deadline: Instant) -> Result<Vec<String>, String> {
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
    install(&missing, deadline);
    let still: Vec<&Need> = missing.into_iter().filter(|need| !need.is_met()).collect();
    if let Some(need) = still.iter().find(|need| matches!(need.purpose, Build)) {
        return Err(format!(
            "nothing builds without the package {}",
            need.package
        ));
    }
    Ok(still.iter().map(|need| need.lament()).collect())
}

/// Downloads and unpacks the packages that are not in `folder` yet. Does not need root.
fn provide_unpacked(folder: &Path, deadline: Instant) -> Vec<String> {
    let is_missing = |package: &&&str| !folder.join(package).exists();
    let missing: Vec<&str> = UNPACKED.iter().filter(is_missing).copied().collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let lament = |package: &&str, why: &str| {
        format!("package {package} cannot be unpacked ({why}): tests of its files are skipped")
    };
    println!("=== unpacking: {}", missing.join(" "));
    // Without package lists, or with old ones, apt-get has to fetch them first.
    let mut downloaded = download(&missing, folder, deadline);
    if downloaded.is_err() && is_root() {
        downloaded = apt_get(&["update", "-q"], folder, deadline)
            .and_then(|()| download(&missing, folder, deadline));
    }
    if let Err(why) = downloaded {
        return missing
            .iter()
            .map(|package| lament(package, &why))
            .collect();
    }
    let unpacked = missing
        .iter()
        .map(|package| (package, unpack(package, folder)));
    unpacked
        .filter_map(|(package, outcome)| outcome.err().map(|why| lament(package, &why)))
        .collect()
}

fn download(packages: &[&str], folder: &Path, deadline: Instant) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    apt_get(&[&["download", "-q"], packages].concat(), folder, deadline)
}

/// Unpacks `PACKAGE_VERSION_ARCHITECTURE.deb` in `folder` to `PACKAGE`. That folder gets its name when it is
/// complete.
fn unpack(package: &str, folder: &Path) -> Result<(), String> {
    let archive = archive_of(package, folder).ok_or("no archive came")?;
    let (fresh, place) = (folder.join(format!("{package}.new")), folder.join(package));
    let begin = fs::remove_dir_all(&fresh).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    });
    begin.map_err(|error| format!("{}: {error}", fresh.display()))?;
    let mut command = Command::new("dpkg-deb");
    crate::workspace::run(command.arg("-x").arg(archive).arg(&fresh))?;
    fs::rename(&fresh, &place).map_err(|error| format!("{}: {error}", place.display()))
}

/// The newest archive of a package in `folder`. Its name contains the version.
fn archive_of(package: &str, folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".deb") && name.split('_').next() == Some(package)
    };
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    files.filter(is_its).max_by_key(modified)
}

/// The installed packages and unpacked archives that a run uses, with their versions.
fn versions(workspace: &Workspace) -> Vec<String> {
    let packages = NEEDS.iter().map(|need| need.package);
    let mut query = Command::new("dpkg-query");
    query
        .args(["-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n"])
        .args(packages)
        .args(STOOD_FOR)
        .stderr(Stdio::null());
    // dpkg-query fails if one package is unknown, and still prints the others.
    let output = query.output().map(|output| output.stdout);
    let output = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    let installed = output
        .lines()
        .filter_map(|line| line.strip_prefix("installed "));
    let mut versions: Vec<String> = installed.map(str::to_owned).collect();
    versions.dedup();
    let folder = workspace.target.join(UNPACKED_IN);
    let archives = UNPACKED
        .iter()
        .filter_map(|package| archive_of(package, &folder));
    versions.extend(archives.map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} (unpacked)")
    }));
    versions
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

/// Time limit for all installing: a gigabyte on a fresh machine with a slow network.
const INSTALL_MINUTES: u64 = 20;

/// Installs all packages at once, and one by one if that fails, so that one bad package does not keep out the
/// others.
fn install(missing: &[&Need], deadline: Instant) {
    let apt_get = |arguments: &[&str]| apt_get(arguments, Path::new("/"), deadline);
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

/// Runs apt-get in `directory`. RUNLEVEL=1 keeps packages from starting their services.
fn apt_get(arguments: &[&str], directory: &Path, deadline: Instant) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command
        .args(arguments)
        .current_dir(directory)
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
