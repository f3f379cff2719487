//! Programs and files that tests use and that a machine may lack, with the Debian packages that contain them.
//!
//! Programs are installed. Where tests are about the *files* of a package, they get an unpacked copy of it,
//! because an administrator or another package may have changed the installed files.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};
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
    need("fcgiwrap", "/usr/sbin/fcgiwrap", Tests("with fcgiwrap")),
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
    // An installed one would run as a service.
    "fail2ban",
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

/// The installing of what tests use, in a thread of its own while the first steps compile.
pub struct Installation {
    /// `None`: no step needs what it would install.
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Installation {
    /// Installs what compiling needs and begins to install the rest, if steps need it (`with_rest`). What apt-get, Go and
    /// pip print goes to `packages.log` in the target directory, what they complain about to the terminal.
    ///
    /// # Errors
    /// When a package is missing and this process is not root, when a package that the build needs cannot be
    /// had, or when the log cannot be written.
    pub fn begin(workspace: &Workspace, with_rest: bool) -> Result<Installation, String> {
        let missing = || NEEDS.iter().filter(|need| !need.is_met());
        if missing().next().is_some() && !is_root() {
            let packages: Vec<&str> = missing().map(|need| need.package).collect();
            return Err(format!(
                "The tests need packages that are missing. As root:\n    apt-get install {}",
                packages.join(" ")
            ));
        }
        let installer = Installer::new(workspace)?;
        installer.install(missing().filter(|need| need.is_for_build()).collect());
        if let Some(need) = missing().find(|need| need.is_for_build()) {
            let package = need.package;
            return Err(format!("nothing builds without the package {package}"));
        }
        let thread = with_rest.then(|| thread::spawn(move || installer.provide_for_tests()));
        Ok(Installation { thread })
    }

    /// Waits until all is installed, and prints the versions. Returns a line for the summary for each package
    /// that cannot be had; tests that need it are skipped.
    pub fn wait(self, workspace: &Workspace) -> Vec<String> {
        let join = |thread: JoinHandle<_>| thread.join().expect("it does not panic");
        let unavailable = self.thread.map_or_else(Vec::new, join);
        println!("=== packages used: {}", versions(workspace).join(", "));
        unavailable
    }
}

/// Runs the programs that install.
struct Installer {
    target: PathBuf,
    /// Where their output goes.
    log: File,
    deadline: Instant,
}

impl Installer {
    fn new(workspace: &Workspace) -> Result<Installer, String> {
        let path = workspace.target.join("packages.log");
        let log = fs::create_dir_all(&workspace.target).and_then(|()| File::create(&path));
        Ok(Installer {
            target: workspace.target.clone(),
            log: log.map_err(|error| format!("{}: {error}", path.display()))?,
            deadline: Instant::now() + Duration::from_secs(INSTALL_MINUTES * 60),
        })
    }

    fn provide_for_tests(&self) -> Vec<String> {
        self.install(NEEDS.iter().filter(|need| !need.is_met()).collect());
        let still = NEEDS.iter().filter(|need| !need.is_met());
        let mut unavailable: Vec<String> = still.map(Need::lament).collect();
        unavailable.extend(self.provide_unpacked(&self.target.join(UNPACKED_IN)));
        unavailable.extend(tools::provide(&self.target, self.deadline, &|line| {
            self.tell(line)
        }));
        unavailable
    }

    fn tell(&self, line: &str) {
        // Without a log, packages are installed all the same.
        let _ = writeln!(&self.log, "{line}");
    }

    /// Downloads and unpacks the packages that are not in `folder` yet. Does not need root.
    fn provide_unpacked(&self, folder: &Path) -> Vec<String> {
        let is_missing = |package: &&&str| !folder.join(package).exists();
        let missing: Vec<&str> = UNPACKED.iter().filter(is_missing).copied().collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let lament = |package: &&str, why: &str| {
            format!("package {package} cannot be unpacked ({why}): tests of its files are skipped")
        };
        self.tell(&format!("=== unpacking: {}", missing.join(" ")));
        // Without package lists, or with old ones, apt-get has to fetch them first.
        let mut downloaded = self.download(&missing, folder);
        if downloaded.is_err() && is_root() {
            downloaded = (self.apt_get(&["update", "-q"], folder))
                .and_then(|()| self.download(&missing, folder));
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

    fn download(&self, packages: &[&str], folder: &Path) -> Result<(), String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        self.apt_get(&[&["download", "-q"], packages].concat(), folder)
    }

    /// Installs all packages at once, and one by one if that fails, so that one bad package does not keep out the
    /// others.
    fn install(&self, missing: Vec<&Need>) {
        if missing.is_empty() {
            return;
        }
        let apt_get = |arguments: &[&str]| {
            let outcome = self.apt_get(arguments, Path::new("/"));
            if let Err(message) = &outcome {
                println!("=== {message}");
            }
            outcome.is_ok()
        };
        let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        println!("=== installing: {}", packages.join(" "));
        apt_get(&["update", "-q"]);
        if !apt_get(&[INSTALL, &packages].concat()) {
            for package in packages {
                apt_get(&[INSTALL, &[package]].concat());
            }
        }
    }

    /// Runs apt-get in `directory`. RUNLEVEL=1 keeps packages from starting their services.
    fn apt_get(&self, arguments: &[&str], directory: &Path) -> Result<(), String> {
        let mut command = Command::new("apt-get");
        command
            .args(arguments)
            .current_dir(directory)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1")
            .stdin(Stdio::null());
        let left = self.deadline.saturating_duration_since(Instant::now());
        let name = format!("apt-get {}", arguments.join(" "));
        if left.is_zero() {
            return Err(format!("{name}: no time was left"));
        }
        limit::run(&name, &mut command, Reads::Output, left, |line| {
            self.tell(line)
        })
    }
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
    fn is_for_build(&self) -> bool {
        matches!(self.purpose, Build)
    }

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

const INSTALL: &[&str] = &["install", "-q", "-y", "--no-install-recommends"];

fn is_root() -> bool {
    output_of(Command::new("id").arg("-u")).is_ok_and(|id| id.trim_ascii() == b"0")
}
