//! php-fpm and php-cgi: their paths and their configuration.

use super::Address;
use crate::install::Package;
use crate::peers;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// PHP's process manager.
pub const FPM: Package = ("php-fpm", "php-fpm");
/// PHP as it was used when the articles were written: one process per connection.
pub const CGI: Package = ("php-cgi", "php-cgi");

/// A pool of php-fpm with a fixed number of children.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Children, and so the number of connections served at the same time.
    pub children: u32,
    /// Requests after which a child is replaced; 0 means never.
    pub requests_max: u32,
    /// Whether scripts that can shall record how long they took. php-fpm's own log also counts the time
    /// between two requests of a persistent connection.
    pub timed: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            children: CHILDREN,
            requests_max: 0,
            timed: false,
        }
    }
}

impl Pool {
    /// A pool that records how long each request took.
    pub fn timed() -> Self {
        Self {
            timed: true,
            ..Self::default()
        }
    }

    /// The file in which scripts record that.
    pub fn times(&self, directory: &Path) -> PathBuf {
        directory.join("times.log")
    }

    /// The command that runs it in the foreground.
    pub fn command(&self, address: &Address, directory: &Path) -> Result<Command, String> {
        let program = installed(FPM)?;
        let file = directory.join("php-fpm.conf");
        std::fs::write(&file, self.configuration(address, directory))
            .map_err(|error| error.to_string())?;
        if self.timed {
            create_for_all(&self.times(directory)).map_err(|error| error.to_string())?;
        }
        let mut command = Command::new(program);
        command.arg("--nodaemonize").arg("--fpm-config").arg(file);
        command.args(["-d", OPCACHE_ON]);
        Ok(command)
    }

    /// Settings that are not listed keep their defaults.
    fn configuration(&self, address: &Address, directory: &Path) -> String {
        let user = if rustix::process::geteuid().is_root() {
            "user = nobody\ngroup = nogroup"
        } else {
            ""
        };
        let Self {
            children,
            requests_max,
            ..
        } = self;
        let log = match self.timed {
            true => format!(
                "env[PETREL_BENCH_TIMES] = {}\n",
                self.times(directory).display()
            ),
            false => String::new(),
        };
        format!(
            "[global]
daemonize = no
pid = {directory}/php-fpm.pid
error_log = {directory}/php-fpm.log
[bench]
{user}
listen = {address}
listen.mode = 0666
listen.backlog = 4096
pm = static
pm.max_children = {children}
pm.max_requests = {requests_max}
{log}",
            directory = directory.display()
        )
    }
}

/// php-cgi as a FastCGI server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cgi {
    /// Whether compiled scripts are cached.
    pub opcache: bool,
    /// Whether it looks for `#!` at the beginning of scripts. The article's author removed this from PHP's
    /// source; today it is a setting.
    pub shebang: bool,
}

impl Cgi {
    /// The command. It listens on its standard input.
    pub fn command(self) -> Result<Command, String> {
        let mut command = Command::new(installed(CGI)?);
        command.args([
            "-d",
            if self.opcache {
                OPCACHE_ON
            } else {
                OPCACHE_OFF
            },
        ]);
        if !self.shebang {
            command.args(["-d", "cgi.check_shebang_line=0"]);
        }
        command.env("PHP_FCGI_CHILDREN", PROCESSES.to_string());
        command.env("PHP_FCGI_MAX_REQUESTS", "1000000000");
        Ok(command)
    }
}

/// Creates an empty file that the user who runs the scripts may append to.
fn create_for_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::File::create(path)?.set_permissions(std::fs::Permissions::from_mode(0o666))
}

/// The path of an installed program.
pub fn installed((program, package): Package) -> Result<PathBuf, String> {
    peers::in_path(program)
        .ok_or_else(|| format!("{program} is not installed (Debian package {package})"))
}

/// Processes of a FastCGI server that has no pool setting. A gateway with two workers keeps a connection in
/// each.
pub const PROCESSES: u32 = 8;
const OPCACHE_ON: &str = "opcache.enable=1";
const OPCACHE_OFF: &str = "opcache.enable=0";
/// More than there are client connections: a persistent connection occupies a child, and a gateway with two
/// workers that counts its connections per worker may keep some in the wrong one.
const CHILDREN: u32 = 96;
