//! The backend programs that the configuration asks for, with users, addresses and logs resolved.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::{Diagnostic, Element, Span, Value};
use engine::log::LogTarget;
use modules::gateway::options::{HostAddress, SpawnSpec, spawn_specs};

use crate::load::Loaded;
use crate::spawn::{ProgramSocket, UnixPlace};
use crate::user::Identity;

/// A program of the configuration. If two plans are equal, the same processes serve both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgramPlan {
    /// What to run, and how many processes.
    pub(super) spec: SpawnSpec,
    /// The user and groups of the processes.
    pub(super) identity: Identity,
    /// The user and groups of the server process, which connects to them.
    server: Identity,
    /// `server.chroot`. As in lighttpd, the programs and their sockets are inside it, too.
    pub(super) root: Option<PathBuf>,
    /// Where standard error goes.
    pub(super) errors: LogTarget,
}

/// The programs of a configuration, in the order of [`spawn_specs`].
///
/// # Errors
/// Everything that would keep one from starting, as far as that can be found out without starting it.
pub(super) fn plans(loaded: &Loaded) -> Result<Vec<ProgramPlan>, Vec<Diagnostic>> {
    let specs = spawn_specs(&loaded.config, modules::MODULES).map_err(|error| vec![error])?;
    let mut plans = Vec::new();
    let mut wrong = Vec::new();
    for spec in specs {
        let span = span_of(loaded, &spec);
        match ProgramPlan::new(loaded, spec) {
            Ok(plan) => plans.push(plan),
            Err(message) => {
                let mut error = Diagnostic::error_anywhere(message);
                error.span = span;
                wrong.push(error);
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(plans),
        false => Err(wrong),
    }
}

impl ProgramPlan {
    fn new(loaded: &Loaded, spec: SpawnSpec) -> Result<ProgramPlan, String> {
        let process = &loaded.process;
        // A program with a user of its own gets that user's group, not the server's.
        let groupname = process.groupname.as_deref().filter(|_| spec.user.is_none());
        let user = spec.user.as_deref().map(|name| ("user", name));
        let group = spec.group.as_deref().map(|name| ("group", name));
        let of_server = process
            .username
            .as_deref()
            .map(|name| ("server.username", name));
        let group_of_server = groupname.map(|name| ("server.groupname", name));
        let identity = Identity::named(user.or(of_server), group.or(group_of_server))?;
        let plan = ProgramPlan {
            server: Identity::find(process)?,
            identity,
            root: process.chroot.clone(),
            errors: loaded
                .breakage_log()
                .unwrap_or_else(|| process.error_log.clone()),
            spec,
        };
        plan.check_program()?;
        plan.check_directory()?;
        Ok(plan)
    }

    /// Checks that the directory of a unix socket exists.
    fn check_directory(&self) -> Result<(), String> {
        let HostAddress::Unix(path) = &self.spec.address else {
            return Ok(());
        };
        let path = self.outside(Path::new(OsStr::from_bytes(path)));
        let directory = path.parent().unwrap_or(&path);
        match fs::metadata(directory) {
            Ok(data) if data.is_dir() => Ok(()),
            Ok(_) => Err(format!(
                "socket: {}: it is no directory",
                directory.display()
            )),
            Err(error) => Err(format!("socket: {}: {error}", directory.display())),
        }
    }

    /// Checks that the program's file exists and is executable.
    fn check_program(&self) -> Result<(), String> {
        let program = Path::new(self.program());
        let path = self.outside(program);
        let problem = match fs::metadata(&path) {
            Ok(data) if !data.is_file() => "it is no file".to_owned(),
            Ok(data) if data.permissions().mode() & 0o111 == 0 => "it is not executable".to_owned(),
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        Err(format!("bin-path: {}: {problem}", path.display()))
    }

    /// The name of the program.
    pub(super) fn program(&self) -> &str {
        self.spec.command.first().map_or("", String::as_str)
    }

    /// Whether both programs listen at the same address.
    pub(super) fn has_address_of(&self, other: &ProgramPlan) -> bool {
        self.spec.address == other.spec.address && self.root == other.root
    }

    /// The address it listens at, for messages.
    pub(super) fn address(&self) -> String {
        match &self.spec.address {
            HostAddress::Unix(path) => String::from_utf8_lossy(path).into_owned(),
            HostAddress::Tcp(host, port) => format!("{host}:{port}"),
            HostAddress::Srv(name) => name.clone(),
        }
    }

    /// Opens the program's socket. `is_taken`: another program keeps the name until this socket is published.
    ///
    /// # Errors
    /// Why the socket cannot be opened, as a sentence.
    pub(super) fn open_socket(&self, is_taken: bool) -> Result<ProgramSocket, String> {
        let backlog = self.spec.listen_backlog;
        let opened = match &self.spec.address {
            HostAddress::Unix(path) => {
                let place = UnixPlace {
                    path: Path::new(OsStr::from_bytes(path)),
                    root: self.root.as_deref(),
                    mode: None,
                    user: self.server.user(),
                    group: self.server.group(),
                    is_taken,
                };
                ProgramSocket::unix(&place, backlog)
            }
            HostAddress::Tcp(host, port) => {
                resolve(host, *port).and_then(|address| ProgramSocket::tcp(address, backlog))
            }
            HostAddress::Srv(_) => Err(std::io::Error::other("bin-path needs a socket or a port")),
        };
        opened.map_err(|error| {
            let (program, address) = (self.program(), self.address());
            format!("bin-path {program}: cannot listen on {address}: {error}")
        })
    }

    /// The command line.
    pub(super) fn command(&self) -> Vec<OsString> {
        self.spec.command.iter().map(OsString::from).collect()
    }

    /// The environment, built as lighttpd does: all of the keeper's variables or those to be copied, then
    /// `bin-environment`, then PHP_FCGI_CHILDREN=1 unless the configuration sets it.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        self.environment_from(std::env::vars_os())
    }

    fn environment_from(
        &self,
        ours: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let is_copied = |name: &OsStr| match &self.spec.copied_environment {
            Some(names) => names.iter().any(|wanted| name == OsStr::new(wanted)),
            None => true,
        };
        let mut environment: Vec<_> = ours.filter(|(name, _)| is_copied(name)).collect();
        for (name, value) in &self.spec.environment {
            environment.retain(|(known, _)| known != OsStr::new(name));
            environment.push((name.into(), value.into()));
        }
        if !environment.iter().any(|(name, _)| name == PHP_CHILDREN) {
            environment.push((PHP_CHILDREN.into(), "1".into()));
        }
        environment
    }

    /// The directory of the program's file, which lighttpd makes its working directory.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        let parent = Path::new(self.program()).parent()?;
        match (parent.as_os_str().is_empty(), &self.root) {
            (false, None) => std::path::absolute(parent).ok(),
            (false, Some(_)) => Some(Path::new("/").join(parent)),
            (true, _) => None,
        }
    }

    /// A path inside the chroot, as seen from outside.
    fn outside(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }
}

fn resolve(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    let mut found = (host, port).to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

/// The place of the `bin-path` that `spec` comes from, for messages.
fn span_of(loaded: &Loaded, spec: &SpawnSpec) -> Option<Span> {
    let program = spec.command.first()?;
    let entries = loaded.config.blocks.iter().flat_map(|block| &block.entries);
    entries
        .filter_map(|entry| find_program(&entry.value, program))
        .next()
}

fn find_program(value: &Value, program: &str) -> Option<Span> {
    let is_it = |element: &&Element| {
        let line = element.value.as_str();
        element.key() == Some("bin-path") && line.is_some_and(|line| line.contains(program))
    };
    let array = value.as_array()?;
    match array.iter().find(is_it) {
        Some(element) => Some(element.span),
        None => array
            .iter()
            .find_map(|element| find_program(&element.value, program)),
    }
}

/// The variable that tells php-cgi how many children to start.
const PHP_CHILDREN: &str = "PHP_FCGI_CHILDREN";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn plan(command: &[&str]) -> ProgramPlan {
        ProgramPlan {
            spec: SpawnSpec {
                command: command.iter().map(|word| (*word).to_owned()).collect(),
                address: HostAddress::Unix(b"/run/x-0".to_vec()),
                environment: Vec::new(),
                copied_environment: None,
                processes_min: 1,
                processes_max: 1,
                idle_timeout: Duration::from_secs(60),
                kill_signal: 15,
                listen_backlog: 16,
                user: None,
                group: None,
            },
            identity: Identity::unchanged(),
            server: Identity::unchanged(),
            root: None,
            errors: LogTarget::Stderr,
        }
    }

    fn environment(plan: &ProgramPlan) -> Vec<String> {
        let ours = [("PATH", "/bin"), ("A", "ours"), ("SECRET", "x")];
        let ours = ours.iter().map(|(name, value)| (name.into(), value.into()));
        let made = plan.environment_from(ours).into_iter();
        made.map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect()
    }

    #[test]
    fn the_environment_is_lighttpds() {
        let mut plan = plan(&["/app"]);
        let all = ["PATH=/bin", "A=ours", "SECRET=x", "PHP_FCGI_CHILDREN=1"];
        assert_eq!(environment(&plan), all);
        plan.spec.copied_environment = Some(vec!["PATH".to_owned(), "NOT_THERE".to_owned()]);
        plan.spec.environment = vec![("A".to_owned(), "b".to_owned())];
        assert_eq!(
            environment(&plan),
            ["PATH=/bin", "A=b", "PHP_FCGI_CHILDREN=1"]
        );
        plan.spec.environment = vec![("PHP_FCGI_CHILDREN".to_owned(), "8".to_owned())];
        assert_eq!(environment(&plan), ["PATH=/bin", "PHP_FCGI_CHILDREN=8"]);
    }

    #[test]
    fn programs_that_cannot_be_run_are_found_before() {
        plan(&["/bin/sh"]).check_program().expect("always there");
        for (program, problem) in [
            ("/nonexistent/app", "No such file"),
            ("/etc/passwd", "not executable"),
            ("/etc", "no file"),
        ] {
            let message = plan(&[program]).check_program().expect_err(program);
            assert!(
                message.contains("bin-path") && message.contains(problem),
                "{message}"
            );
        }
        let mut inside = plan(&["/sh"]);
        inside.root = Some("/bin".into());
        inside.check_program().expect("seen from within the root");
    }

    #[test]
    fn programs_start_in_their_own_directory() {
        assert_eq!(plan(&["/usr/bin/app"]).directory(), Some("/usr/bin".into()));
        assert_eq!(plan(&["app"]).directory(), None);
        let mut inside = plan(&["bin/app"]);
        inside.root = Some("/srv".into());
        assert_eq!(inside.directory(), Some("/bin".into()));
    }
}
