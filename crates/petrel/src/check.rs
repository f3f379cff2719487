//! `-tt`: checks what start-up would need (users, ports, directories, logs, programs) without serving.

use std::fs;
use std::path::{Path, PathBuf};

use config::{Diagnostic, Diagnostics};
use engine::log::LogTarget;
use modules::gateway::options::addresses;
use modules::gateway::resolve::{self, NameServers};

use crate::keeper::backends;
use crate::listen;
use crate::load::{self, Loaded};
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
        list.push(Diagnostic::error_anywhere(message));
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
    for target in loaded.log_targets() {
        if let LogTarget::File(path) = &target {
            let path = below(process.chroot.as_deref(), path);
            list.extend(no_parent("a log file", &path));
        }
    }
    match list.is_empty() {
        true => Ok(()),
        false => Err(loaded.diagnostics(list)),
    }
}

/// Warnings about backends whose host names do not resolve now. They do not keep the server from starting,
/// since it resolves the names again later. This function waits for the name servers.
pub(crate) fn names(loaded: &Loaded) -> Vec<Diagnostic> {
    let named = addresses(&loaded.config, modules::MODULES);
    let wanted: Vec<_> = named.iter().map(|(address, _)| address.clone()).collect();
    let wrong = match resolve::check(&NameServers::of_system(), &wanted) {
        Ok(wrong) => wrong,
        Err(error) => {
            let message = format!("names of backends cannot be looked up: {error}");
            let first = named.first().map(|(_, span)| *span);
            return first
                .map(|span| Diagnostic::warning(message, span))
                .into_iter()
                .collect();
        }
    };
    let warnings = wrong.into_iter().filter_map(|(address, reason)| {
        let (_, span) = named.iter().find(|(known, _)| *known == address)?;
        let message = format!("the name of this backend leads nowhere: {reason}");
        Some(Diagnostic::warning(message, *span))
    });
    warnings.collect()
}

fn no_directory(what: &str, path: &Path) -> Option<Diagnostic> {
    let problem = match fs::metadata(path) {
        Ok(data) if data.is_dir() => return None,
        Ok(_) => "it is no directory".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(Diagnostic::error_anywhere(format!(
        "{what}: {}: {problem}",
        path.display()
    )))
}

/// `path` as seen from outside `root`. Absolute symbolic links on the way are followed as if there were no
/// chroot, which is good enough for a check.
fn below(root: Option<&Path>, path: &Path) -> PathBuf {
    match root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// An error if the directory of `path`, a file that start-up creates, does not exist.
fn no_parent(what: &str, path: &Path) -> Option<Diagnostic> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())?;
    no_directory(&format!("{what} {}", path.display()), parent)
}
