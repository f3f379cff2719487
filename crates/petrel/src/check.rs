//! `-tt`: checks what start-up would need (users, ports, directories, logs, programs) without serving.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Diagnostic, Diagnostics, Entry};
use modules::gateway::options::{HostAddress, addresses, slow_logs, spawn_specs};
use modules::gateway::resolve::{self, NameServers};
use modules::gateway::{try_slow_log, why_acceptance_is_unseen};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use crate::keeper::{backends, command_socket};
use crate::listen;
use crate::load::{self, Loaded};
use crate::start_warnings::{all_warnings, below, directory_problem, document_roots};
use crate::tls_files;
use crate::user::Identity;

/// Checks users, addresses, directories, log files and backend programs.
///
/// # Errors
/// Everything that would keep the server from starting. An address in use is no error: the running server
/// that is about to get this configuration may be using it.
pub(crate) fn preflight(loaded: &Loaded) -> Result<(), Diagnostics> {
    let mut list = loaded
        .has_document_root()
        .err()
        .map_or_else(Vec::new, |errors| errors.list);
    if let Err(message) = Identity::find(&loaded.process) {
        let place = loaded.place_of(&message);
        let mut error = Diagnostic::error_anywhere(message);
        error.span = place;
        list.push(error);
    }
    match tls_files::check(loaded) {
        Ok(warnings) => {
            for warning in &warnings {
                load::print_diagnostic(warning, loaded);
            }
        }
        Err(errors) => list.extend(errors),
    }
    if let Err(errors) = backends::check(loaded) {
        list.extend(errors);
    }
    for listener in &loaded.process.listeners {
        if let Err(error) = listen::probe(listener) {
            let mut diagnostic = Diagnostic::error_anywhere(error.message);
            diagnostic.span = error.span;
            list.push(diagnostic);
        }
    }
    let process = &loaded.process;
    list.extend(
        process
            .chroot
            .as_deref()
            .and_then(|path| no_directory("server.chroot", path)),
    );
    list.extend(
        process
            .pid_file
            .as_deref()
            .and_then(|path| no_parent("server.pid-file", path)),
    );
    list.extend(unwritable_logs(loaded));
    match list.is_empty() {
        true => Ok(()),
        false => Err(loaded.diagnostics(list)),
    }
}

/// What the administrator should know although the server starts, or will start once it is mended: addresses
/// that another server has, document roots, upload directories and sockets of backends that are missing, names
/// of backends that lead nowhere, files that are hidden on disk and not from clients, and scripts that use what
/// is switched off. Waits for name servers. `file` holds the configuration.
pub(crate) fn warnings(loaded: &Loaded, file: &Path) -> Vec<Diagnostic> {
    let mut list = taken_addresses(loaded, file);
    list.extend(all_warnings(loaded));
    list.extend(missing_sockets(loaded));
    list.extend(unseen_acceptance(loaded));
    list.extend(unreadable_slow_logs(loaded));
    list.extend(names(loaded));
    list.extend(served_dot_files(loaded));
    let chroot = loaded.process.chroot.as_deref();
    list.extend(modules::magnet::review(&loaded.config, |path| {
        below(chroot, path)
    }));
    list
}

/// The keeper opens the logs, as the user who starts the server; so that is the user who has to be able to
/// write them.
fn unwritable_logs(loaded: &Loaded) -> Vec<Diagnostic> {
    let unwritable = |(entry, path): (&Entry, PathBuf)| {
        let path = below(loaded.process.chroot.as_deref(), &path);
        let reason = unwritable(&path)?;
        let message = format!("{}: {reason}", entry.name);
        Some(Diagnostic::error(message, entry.value_span))
    };
    loaded
        .log_files()
        .into_iter()
        .filter_map(unwritable)
        .collect()
}

/// Why this process cannot append to the file, or create it.
fn unwritable(path: &Path) -> Option<String> {
    let shown = path.display();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let may_write = |path: &Path| accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS);
    if path.is_dir() {
        return Some(format!("{shown} is a directory"));
    }
    let (file, error) = match may_write(path) {
        Ok(()) => return None,
        Err(Errno::NOENT | Errno::NOTDIR) => match directory_problem(parent) {
            Some(problem) => return Some(problem),
            None => (parent, may_write(parent).err()?),
        },
        Err(error) => (path, error),
    };
    let file = file.display();
    Some(format!(
        "{file} cannot be written by this user: {}",
        io::Error::from(error)
    ))
}

/// Addresses where another server listens. The server of this very configuration may: then nothing is said.
fn taken_addresses(loaded: &Loaded, file: &Path) -> Vec<Diagnostic> {
    if is_running(loaded, file) {
        return Vec::new();
    }
    let process = &loaded.process;
    // The service manager holds these for us.
    let is_ours = |is_default: bool| is_default && process.socket_activation;
    let mut list = Vec::new();
    for listener in process
        .listeners
        .iter()
        .filter(|listener| !is_ours(listener.is_default))
    {
        if !listen::is_in_use(listener) {
            continue;
        }
        let holder = listen::holder_of(&listener.address);
        if process.socket_activation && holder.as_ref().is_some_and(|(_, pid)| *pid == 1) {
            continue;
        }
        let by = holder.map_or_else(
            || "another program".to_owned(),
            |(name, pid)| format!("{name} (process {pid})"),
        );
        let address = &listener.address;
        let mut warning = Diagnostic::error_anywhere(format!(
            "{by} listens on {address}: Petrel does not start as long as it does"
        ));
        warning.severity = config::Severity::Warning;
        warning.span = listener.span;
        list.push(warning);
    }
    list
}

/// Whether a server of this configuration, which stands in `file`, takes commands.
fn is_running(loaded: &Loaded, file: &Path) -> bool {
    let process = &loaded.process;
    let (socket, pid_file) = (
        process.control_socket.as_deref(),
        process.pid_file.as_deref(),
    );
    let path = command_socket::path_of(socket, pid_file, file);
    path.is_some_and(|path| match command_socket::connect(&path, PROBE_TIME) {
        Ok(_) => true,
        // The socket of a running server belongs to its user alone.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    })
}

/// Unix sockets of backends that nothing has made yet. Those of programs that Petrel starts come with them.
fn missing_sockets(loaded: &Loaded) -> Vec<Diagnostic> {
    let started = spawn_specs(&loaded.config, modules::MODULES).unwrap_or_default();
    let is_started = |address: &HostAddress| started.iter().any(|spec| spec.address == *address);
    let missing = |(address, span): (HostAddress, config::Span)| {
        let HostAddress::Unix(bytes) = &address else {
            return None;
        };
        let path = PathBuf::from(OsString::from_vec(bytes.clone()));
        let path = below(loaded.process.chroot.as_deref(), &path);
        if is_started(&address) || path.exists() {
            return None;
        }
        let message = format!("the socket {} of this backend is not there", path.display());
        let hint = "is the backend running? Until it is, its requests are answered 503";
        Some(Diagnostic::warning(message, span).with_hint(hint))
    };
    let addresses = addresses(&loaded.config, modules::MODULES);
    addresses.into_iter().filter_map(missing).collect()
}

/// The kernel does not say whether a process of a backend has accepted a connection.
fn unseen_acceptance(loaded: &Loaded) -> Option<Diagnostic> {
    let addresses = addresses(&loaded.config, modules::MODULES);
    let (_, span) = addresses.first()?;
    Some(Diagnostic::warning(why_acceptance_is_unseen()?, *span))
}

/// php-fpm's slow logs that the server cannot read. php-fpm makes them for root alone.
fn unreadable_slow_logs(loaded: &Loaded) -> Vec<Diagnostic> {
    let unreadable = |(path, span): (PathBuf, config::Span)| {
        let path = below(loaded.process.chroot.as_deref(), &path);
        let reason = || try_slow_log(&path).err().map(|error| error.to_string());
        let identity = Identity::find(&loaded.process).unwrap_or(Identity::unchanged());
        let in_child = || {
            let told = identity.ask(|| reason().unwrap_or_default());
            told.map_or_else(|error| Some(error.to_string()), Some)
        };
        let error = reason()
            .or_else(in_child)
            .filter(|error| !error.is_empty())?;
        let path = path.display();
        let message = format!("the server cannot read php-fpm's slow log {path}: {error}");
        let hint =
            "the server starts, and notes about slow requests do without it: see docs/php.md";
        Some(Diagnostic::warning(message, span).with_hint(hint))
    };
    let logs = slow_logs(&loaded.config, modules::MODULES);
    logs.into_iter().filter_map(unreadable).collect()
}

/// Files and directories in document roots whose names begin with a dot. lighttpd serves them, and so does a
/// configuration that was written for it. A configuration with a condition about such URLs has been thought
/// about.
fn served_dot_files(loaded: &Loaded) -> Vec<Diagnostic> {
    let mut conditions = loaded
        .config
        .blocks
        .iter()
        .filter_map(|block| block.condition.as_ref());
    if conditions.any(|condition| condition.pattern.contains("/\\.")) {
        return Vec::new();
    }
    let served = |entry: &Entry| {
        let path = below(
            loaded.process.chroot.as_deref(),
            Path::new(entry.value.as_str()?),
        );
        let names = fs::read_dir(path)
            .ok()?
            .flatten()
            .map(|entry| entry.file_name());
        let mut names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with('.') && name != ".well-known")
            .collect();
        names.sort();
        let first = names.first()?;
        let more = match names.len() {
            1 => String::new(),
            count => format!(" and {} more whose names begin with a dot", count - 1),
        };
        let message = format!("clients can get {first}{more}, as from lighttpd");
        let hint = format!("one line refuses them all: {DENY_DOT_FILES}");
        Some(Diagnostic::warning(message, entry.value_span).with_hint(hint))
    };
    document_roots(loaded).filter_map(served).collect()
}

/// Warnings about backends whose names lead nowhere now. The server starts all the same, and asks
/// again. Waits for name servers.
fn names(loaded: &Loaded) -> Vec<Diagnostic> {
    let named = addresses(&loaded.config, modules::MODULES);
    let wanted: Vec<_> = named.iter().map(|(address, _)| address.clone()).collect();
    let wrong = match resolve::check(&NameServers::of_system(), &wanted) {
        Ok(wrong) => wrong,
        Err(error) => {
            let message = format!("host names of backends cannot be resolved: {error}");
            let first = named.first().map(|(_, span)| *span);
            return first
                .map(|span| Diagnostic::warning(message, span))
                .into_iter()
                .collect();
        }
    };
    let warnings = wrong.into_iter().filter_map(|(address, reason)| {
        let (_, span) = named.iter().find(|(known, _)| *known == address)?;
        let with_port = match &address {
            HostAddress::Tcp(host, _) => host.split_once(':'),
            _ => None,
        };
        // Several colons are those of an IPv6 address.
        let with_port = with_port.filter(|(_, port)| port.parse::<u16>().is_ok());
        Some(match with_port {
            Some((host, port)) => {
                let message =
                    format!("the host of this backend has a port in its name: \"{host}:{port}\"");
                let hint = format!("write \"host\" => \"{host}\", \"port\" => {port}");
                Diagnostic::warning(message, *span).with_hint(hint)
            }
            None => {
                let message = format!("the host name of this backend cannot be resolved: {reason}");
                Diagnostic::warning(message, *span)
            }
        })
    });
    warnings.collect()
}

fn no_directory(what: &str, path: &Path) -> Option<Diagnostic> {
    let problem = directory_problem(path)?;
    Some(Diagnostic::error_anywhere(format!("{what}: {problem}")))
}

/// An error if the directory of `path`, a file that start-up creates, does not exist.
fn no_parent(what: &str, path: &Path) -> Option<Diagnostic> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())?;
    no_directory(what, parent)
}

/// The line of a configuration that keeps version control, environment files and the like from clients.
/// /.well-known/ is made for the public. It needs mod_access.
pub(crate) const DENY_DOT_FILES: &str =
    r#"$HTTP["url"] =~ "/\.(?!well-known(/|$))" { url.access-deny = ( "" ) }"#;

/// How long a server of this configuration may take to accept a connection for commands.
const PROBE_TIME: Duration = Duration::from_secs(1);
