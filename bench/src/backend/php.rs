//! php-fpm and php-cgi: where they are, and how they are configured.

use super::Address;
use crate::install::Package;
use crate::peers;
use std::path::Path;
use std::process::Command;

/// A program that speaks FastCGI, and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct FastCgiServer {
    /// The program; Debian appends PHP's version to the name.
    pub program: &'static str,
    /// The package.
    pub package: &'static str,
}

/// PHP's process manager.
pub const PHP_FPM: FastCgiServer = FastCgiServer {
    program: "php-fpm",
    package: "php-fpm",
};
/// PHP as it was when the articles were written: a process a connection.
pub const PHP_CGI: FastCgiServer = FastCgiServer {
    program: "php-cgi",
    package: "php-cgi",
};

/// A pool of php-fpm with a fixed number of children.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Children, and so connections that are served at a time.
    pub children: u32,
    /// Requests after which a child is replaced; 0: never.
    pub requests_max: u32,
    /// Whether scripts are kept compiled.
    pub opcache: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            children: CHILDREN,
            requests_max: 0,
            opcache: true,
        }
    }
}

impl Pool {
    /// The command that serves it in the foreground.
    pub fn command(&self, address: &Address, directory: &Path) -> Result<Command, String> {
        let program = PHP_FPM.path()?;
        let file = directory.join("php-fpm.conf");
        std::fs::write(&file, self.configuration(address, directory))
            .map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("--nodaemonize").arg("--fpm-config").arg(file);
        command.args(["-d", if self.opcache { OPCACHE_ON } else { OPCACHE_OFF }]);
        Ok(command)
    }

    /// `catch_workers_output`, logs and limits stay at their defaults.
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
pm.status_path = {STATUS_PATH}
",
            directory = directory.display()
        )
    }
}

impl FastCgiServer {
    /// What has to be installed.
    pub fn package(&self) -> Package {
        (self.program, self.package)
    }

    /// Where it is installed.
    pub fn path(&self) -> Result<std::path::PathBuf, String> {
        let Self { program, package } = self;
        peers::in_path(program)
            .ok_or_else(|| format!("{program} is not installed (Debian package {package})"))
    }
}

/// Where php-fpm tells about itself.
pub const STATUS_PATH: &str = "/php-fpm-status";
const OPCACHE_ON: &str = "opcache.enable=1";
const OPCACHE_OFF: &str = "opcache.enable=0";
/// More than there are client connections: a kept connection pins a child, and a gateway of two
/// workers that counts its connections in each may keep some in the wrong one.
const CHILDREN: u32 = 96;
