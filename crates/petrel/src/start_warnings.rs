//! What the administrator is told at each start and reload, and by `-tt`: directories that are missing or closed, limits
//! that were lowered, and what is written in a way that leads nowhere.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use config::{Condition, Diagnostic, Element, Entry, ListenAddress, Severity, Subject};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::load::Loaded;
use crate::user::Identity;

/// What the administrator is told at each start and reload. Of thousands of hosts a few are named.
pub(crate) fn start_warnings(loaded: &Loaded) -> Vec<Diagnostic> {
    let mut list = all_warnings(loaded);
    let rest = list.len().saturating_sub(SHOWN_MAX);
    list.truncate(SHOWN_MAX);
    if rest > 0 {
        let message = format!("{rest} more warnings of this kind");
        let mut more = Diagnostic::error_anywhere(message).with_hint("petrel -tt shows all");
        more.severity = Severity::Warning;
        list.push(more);
    }
    list
}

/// All of them, for `-tt`.
pub(crate) fn all_warnings(loaded: &Loaded) -> Vec<Diagnostic> {
    let mut list: Vec<Diagnostic> = cut_connections(loaded).into_iter().collect();
    list.extend(missing_upload_directories(loaded));
    list.extend(missing_document_roots(loaded));
    list.extend(closed_document_roots(loaded));
    list.extend(unusable_cache_directories(loaded));
    list.extend(doubtful_aliases(loaded));
    list.extend(hosts_with_scheme(loaded));
    list.extend(closed_sockets(loaded));
    list
}

const SHOWN_MAX: usize = 5;

/// `server.max-connections` is above what the limit on open files allows.
fn cut_connections(loaded: &Loaded) -> Option<Diagnostic> {
    let process = &loaded.process;
    let wanted = process.max_connections?;
    let fds = process.fds_to_ask_for(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX));
    let most = process.connections_max(fds);
    let entry = loaded.config.global().entry("server.max-connections")?;
    let message = format!(
        "server.max-connections is lowered from {wanted} to {most}, half of the {fds} files that may be open"
    );
    let hint = "a connection that serves a file needs two: raise server.max-fds";
    let warning = Diagnostic::warning(message, entry.value_span).with_hint(hint);
    (most < wanted).then_some(warning)
}

/// Unix sockets to which only the user who starts the server can connect.
fn closed_sockets(loaded: &Loaded) -> Vec<Diagnostic> {
    // The service manager makes sockets as its unit says.
    if loaded.process.socket_activation {
        return Vec::new();
    }
    let listeners = loaded.process.listeners.iter();
    let closed = listeners.filter_map(|listener| {
        let ListenAddress::Unix(path) = &listener.address else {
            return None;
        };
        let is_set = listener.socket_perms.is_some()
            || listener.socket_user.is_some()
            || listener.socket_group.is_some();
        let path = path.display();
        let message = format!("only the user who starts the server can connect to the socket {path}");
        let hint = "server.socket-group = \"GROUP\" lets a proxy of that group in, server.socket-perms = \"0666\" all users";
        let warning = Diagnostic::warning(message, listener.span?).with_hint(hint);
        (!is_set).then_some(warning)
    });
    closed.collect()
}

fn missing_document_roots(loaded: &Loaded) -> Vec<Diagnostic> {
    let missing = |entry: &Entry| {
        let root = entry.value.as_str().filter(|root| !root.is_empty())?;
        let path = below(loaded.process.chroot.as_deref(), Path::new(root));
        let problem = directory_problem(&path)?;
        let message = format!("{}: {problem}", entry.name);
        let hint = "the server starts, and answers 404 for files there";
        Some(Diagnostic::warning(message, entry.value_span).with_hint(hint))
    };
    document_roots(loaded).filter_map(missing).collect()
}

/// Directories for request bodies and replies that are too long for memory.
fn missing_upload_directories(loaded: &Loaded) -> Vec<Diagnostic> {
    let entry = loaded.config.global().entry("server.upload-dirs");
    let missing = |path: &PathBuf| {
        let problem = directory_problem(&below(loaded.process.chroot.as_deref(), path))?;
        let message = format!("server.upload-dirs: {problem}");
        let mut warning = Diagnostic::error_anywhere(message)
            .with_hint("the server starts, and answers 500 where it would store a long body there");
        warning.severity = Severity::Warning;
        warning.span = entry.map(|entry| entry.value_span);
        Some(warning)
    };
    let directories = loaded.process.upload_directories.iter();
    directories.filter_map(missing).collect()
}

/// Document roots that the server's user may not enter: each request there gets 403.
fn closed_document_roots(loaded: &Loaded) -> Vec<Diagnostic> {
    let chroot = loaded.process.chroot.as_deref();
    let found: Vec<(&Entry, PathBuf)> = document_roots(loaded)
        .filter_map(|entry| Some((entry, below(chroot, Path::new(entry.value.as_str()?)))))
        .filter(|(_, root)| root.is_dir())
        .collect();
    let roots: Vec<&Path> = found.iter().map(|(_, root)| root.as_path()).collect();
    let Ok(identity) = Identity::find(&loaded.process) else {
        return Vec::new();
    };
    let user = loaded.process.username.as_deref();
    let user = user.map_or_else(|| "this user".to_owned(), |user| format!("user {user:?}"));
    let closed = closed_to(&identity, &roots).unwrap_or_default();
    let warning = |closed: ClosedRoot| {
        let (entry, root) = found.get(closed.root)?;
        let directory = root.ancestors().nth(closed.above)?;
        let data = fs::metadata(directory).ok()?;
        let message = format!(
            "{}: {user} may not enter {} (mode {:o}, owner {})",
            entry.name,
            directory.display(),
            data.mode() & 0o7777,
            data.uid()
        );
        let hint = "each request for a file there gets 403: the directory needs the right to search it (chmod +x) \
                    for the server's user";
        Some(Diagnostic::warning(message, entry.value_span).with_hint(hint))
    };
    closed.into_iter().filter_map(warning).collect()
}

/// Directories for compressed files that the server's user may not write to.
fn unusable_cache_directories(loaded: &Loaded) -> Vec<Diagnostic> {
    let names = ["deflate.cache-dir", "compress.cache-dir"];
    let entries = loaded.config.blocks.iter().flat_map(|block| &block.entries);
    let chroot = loaded.process.chroot.as_deref();
    let found: Vec<(&Entry, PathBuf)> = entries
        .filter(|entry| names.contains(&entry.name.as_str()))
        .filter_map(|entry| Some((entry, below(chroot, Path::new(entry.value.as_str()?)))))
        .collect();
    let Ok(identity) = Identity::find(&loaded.process) else {
        return Vec::new();
    };
    let unusable = || {
        let numbered = found.iter().enumerate();
        let lines = numbered.filter(|(_, (_, path))| !may_be_written(path));
        lines.map(|(number, _)| format!("{number}\n")).collect()
    };
    let text = match (found.is_empty(), identity.user()) {
        (true, _) => String::new(),
        (false, None) => unusable(),
        (false, Some(_)) => identity.ask(unusable).unwrap_or_default(),
    };
    let numbers = text.lines().filter_map(|line| line.parse::<usize>().ok());
    let unusable = numbers.filter_map(|number| found.get(number));
    let warning = |(entry, path): &(&Entry, PathBuf)| {
        let path = path.display();
        let message = format!(
            "{}: the server's user may not write to {path}, or it cannot be made",
            entry.name
        );
        let hint = "compressed files are kept in memory only";
        Diagnostic::warning(message, entry.value_span).with_hint(hint)
    };
    unusable.map(warning).collect()
}

/// Whether this process may make files in `directory`. A missing one is made, but not those above it.
fn may_be_written(directory: &Path) -> bool {
    let directory = match directory.exists() {
        true => directory,
        false => directory.parent().unwrap_or(directory),
    };
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    directory.is_dir() && accessat(CWD, directory, rights, AtFlags::EACCESS).is_ok()
}

/// Aliases that lead nowhere, and those of which only one side ends with a slash.
fn doubtful_aliases(loaded: &Loaded) -> Vec<Diagnostic> {
    let entries = loaded.config.blocks.iter().flat_map(|block| &block.entries);
    let aliases = entries.filter(|entry| entry.name == "alias.url");
    let pairs = aliases.filter_map(|entry| entry.value.as_array()).flatten();
    let doubtful = |pair: &Element| {
        let (url, target) = (pair.key()?, pair.value.as_str()?);
        let path = below(loaded.process.chroot.as_deref(), Path::new(target));
        let (message, hint) = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (
                format!("alias.url: {} is missing", path.display()),
                "the server starts, and answers 404 for URLs there",
            ),
            Ok(data) if data.is_dir() && url.ends_with('/') != target.ends_with('/') => (
                format!("alias.url: \"{url}a.txt\" becomes \"{target}a.txt\""),
                "end both the URL and the directory with a slash, or neither",
            ),
            _ => return None,
        };
        Some(Diagnostic::warning(message, pair.span).with_hint(hint))
    };
    pairs.filter_map(doubtful).collect()
}

/// Conditions on the host that compare it with a URL.
fn hosts_with_scheme(loaded: &Loaded) -> Vec<Diagnostic> {
    let blocks = loaded.config.blocks.iter();
    let conditions = blocks.filter_map(|block| block.condition.as_ref());
    let wrong = conditions
        .filter(|condition| condition.subject == Subject::Host && condition.pattern.contains("//"));
    let warning = |condition: &Condition| {
        let message = "a host has no scheme and no path, so it is never equal to this";
        let hint = "write the name alone; $HTTP[\"scheme\"] tells http from https";
        Diagnostic::warning(message, condition.pattern_span).with_hint(hint)
    };
    wrong.map(warning).collect()
}

/// A document root that cannot be reached.
struct ClosedRoot {
    /// Its place in the list.
    root: usize,
    /// How many directories above it the closed one is.
    above: usize,
}

/// Which of the `roots` this identity may not reach.
fn closed_to(identity: &Identity, roots: &[&Path]) -> io::Result<Vec<ClosedRoot>> {
    if identity.user().is_none() {
        return Ok(closed(roots));
    }
    let text = identity.ask(|| {
        let closed = closed(roots).into_iter();
        let lines = closed.map(|ClosedRoot { root, above }| format!("{root} {above}\n"));
        lines.collect()
    })?;
    let read = |line: &str| {
        let (root, above) = line.split_once(' ')?;
        let (root, above) = (root.parse().ok()?, above.parse().ok()?);
        Some(ClosedRoot { root, above })
    };
    Ok(text.lines().filter_map(read).collect())
}

fn closed(roots: &[&Path]) -> Vec<ClosedRoot> {
    let is_closed = |directory: &Path| {
        accessat(CWD, directory, Access::EXEC_OK, AtFlags::EACCESS) == Err(Errno::ACCESS)
    };
    let closed = |(root, path): (usize, &&Path)| {
        // The outermost one: the server's user can say nothing about those below.
        let directories: Vec<&Path> = path.ancestors().collect();
        let above = directories
            .iter()
            .rposition(|directory| is_closed(directory))?;
        Some(ClosedRoot { root, above })
    };
    roots.iter().enumerate().filter_map(closed).collect()
}

/// The document roots of all scopes.
pub(crate) fn document_roots(loaded: &Loaded) -> impl Iterator<Item = &Entry> {
    let blocks = loaded.config.blocks.iter();
    blocks.filter_map(|block| block.entry("server.document-root"))
}

/// Why `path` is no directory, if it is none.
pub(crate) fn directory_problem(path: &Path) -> Option<String> {
    let path_shown = path.display();
    match fs::metadata(path) {
        Ok(data) if data.is_dir() => None,
        Ok(_) => Some(format!("{path_shown} is no directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some(format!("directory {path_shown} is missing"))
        }
        Err(error) => Some(format!("{path_shown}: {error}")),
    }
}

/// `path` as seen from outside `root`. Absolute symbolic links on the way are followed as if there were no
/// chroot, which is good enough for a check.
pub(crate) fn below(root: Option<&Path>, path: &Path) -> PathBuf {
    match root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}
