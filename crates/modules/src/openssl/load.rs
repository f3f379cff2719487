//! Reads the files that `ssl.*` names. Runs in the keeper, which still has the rights to read keys.

use std::io;

use petrel_engine::config::{Config, Diagnostic, Span};
use petrel_engine::rustls::pki_types::UnixTime;

use super::certificate::{CertificateSet, SetError};
use super::contents::FileContent;
use super::limits;
use super::options::{self, FileKey, FileKind, ServerFiles};
use super::staple::Staple;
use super::store::TlsStore;
use super::tickets::TicketSecret;
use super::watch::TlsWatch;
use crate::regular_file;

/// A store whose files are all read, and warnings about them.
#[derive(Debug)]
pub struct LoadedStore {
    /// The store.
    pub store: TlsStore,
    /// The time stamps of the files, taken before they were read.
    pub watch: TlsWatch,
    /// Certificates that have expired, and the like.
    pub warnings: Vec<Diagnostic>,
}

/// Reads every file that `ssl.*` in `config` names. `None`: no listener speaks TLS.
///
/// # Errors
/// One diagnostic for each file that cannot be used.
pub fn load(config: &Config, now_s: u64) -> Result<Option<LoadedStore>, Vec<Diagnostic>> {
    if !options::is_used(config) {
        return Ok(None);
    }
    let named = named_files(config);
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now_s));
    let keys = named.iter().map(|named| named.key.clone()).collect();
    let store = TlsStore::new(keys, now);
    // The time stamps are taken before the files are read, so that the next look sees a file that changes in
    // between.
    let staples = named.iter().map(|named| named.staples.clone()).collect();
    let watch = TlsWatch::new(&store, staples);
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    for (number, named) in named.iter().enumerate() {
        match read(&named.key)
            .and_then(|files| Ok((FileContent::parse(&named.key, &files)?, files)))
        {
            Ok((content, files)) => {
                warnings.extend(named.look_at(&content, now_s, &mut errors));
                store.install(number, content, &files);
            }
            Err(error) if named.is_needed && !may_come(&named.key) => {
                errors.push(named.refuse(error))
            }
            Err(error) => {
                let message = format!("{}: {}", named.describe(false), error.message);
                warnings.push(Diagnostic::warning(message, named.span));
            }
        }
    }
    match errors.is_empty() {
        true => Ok(Some(LoadedStore {
            store,
            watch,
            warnings,
        })),
        false => Err(errors),
    }
}

/// Gives `store` the secrets that its tickets are made with: those of `before` (the store that a reload
/// replaces), and a new one if they are too old or there are none. A store with `ssl.stek-file` has its
/// secret from that file.
///
/// # Errors
/// There are no random numbers.
pub fn begin_tickets(store: &TlsStore, before: Option<&TlsStore>) -> io::Result<()> {
    if store
        .keys()
        .iter()
        .any(|key| key.kind == FileKind::TicketSecret)
    {
        return Ok(());
    }
    for secret in before.into_iter().flat_map(TlsStore::secrets) {
        store.add_secret(secret);
    }
    turn_secrets(store)
}

/// Adds a new ticket secret when the newest one of `store` is [`limits::TICKET_SECRET_S`] old.
///
/// # Errors
/// There are no random numbers.
pub(super) fn turn_secrets(store: &TlsStore) -> io::Result<()> {
    let now_s = store.now_s();
    let newest = store.secrets().pop();
    if newest.is_some_and(|secret| now_s < secret.active_s + limits::TICKET_SECRET_S) {
        return Ok(());
    }
    let secret = TicketSecret::random(now_s)
        .ok_or_else(|| io::Error::other("there are no random numbers"))?;
    store.add_secret(secret);
    Ok(())
}

/// Checks that every must-staple certificate of `set` has a valid OCSP response in each file of `staples`.
/// The files are read now and not taken from the store, because a certificate and its response may change
/// together.
///
/// # Errors
/// Which response is missing, and why.
pub(super) fn are_stapled(
    set: &CertificateSet,
    staples: &[Option<FileKey>],
    now_s: u64,
) -> Result<(), String> {
    let members = set.members.iter().map(|member| &member.facts);
    let facts: Vec<_> = members.filter(|facts| facts.must_staple).collect();
    if facts.is_empty() {
        return Ok(());
    }
    let missing = |what: &str| {
        Err(format!(
            "clients refuse this certificate without a response about its state (must-staple), and {what}"
        ))
    };
    for key in staples {
        let Some(key) = key else {
            return missing("there is no file with one");
        };
        let file = match read(key) {
            Ok(files) => files.concat(),
            Err(error) => return missing(&format!("of the file with it, {}", error.message)),
        };
        match Staple::parse(&file) {
            Err(why) => return missing(&format!("of the file with it, {why}")),
            Ok(staple) if !staple.holds(now_s) => {
                return missing("the one there is holds no longer");
            }
            Ok(staple) if !facts.iter().all(|facts| staple.is_about(&facts.serial)) => {
                return missing("the one there is is about another certificate");
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// A file that a directive names.
struct NamedFile {
    key: FileKey,
    /// The place of the directive's value.
    span: Span,
    /// The place of `ssl.privkey`, if the key is in a file of its own.
    key_span: Option<Span>,
    /// The name of the directive.
    name: String,
    /// The server does not start without this file.
    is_needed: bool,
    /// For a certificate: the `ssl.stapling-file` of each block that names it, or `None` where the block has
    /// none.
    staples: Vec<Option<FileKey>>,
}

fn named_files(config: &Config) -> Vec<NamedFile> {
    let mut files: Vec<NamedFile> = Vec::new();
    let mut add = |file: NamedFile| match files.iter_mut().find(|known| known.key == file.key) {
        Some(known) => known.staples.extend(file.staples),
        None => files.push(file),
    };
    for block in &config.blocks {
        if let Some(server) = ServerFiles::of(block, "ssl.pemfile") {
            add(NamedFile {
                key: server.key(),
                span: server.certificates.value_span,
                key_span: server.key.map(|entry| entry.value_span),
                name: server.certificates.name.clone(),
                is_needed: true,
                staples: vec![server.staple()],
            });
        }
        for entry in &block.entries {
            let path = options::text(entry);
            if let Some(key) = path.and_then(|path| FileKey::new(&entry.name, path)) {
                add(NamedFile {
                    is_needed: key.kind != FileKind::Staple,
                    key,
                    span: entry.value_span,
                    key_span: None,
                    name: entry.name.clone(),
                    staples: Vec::new(),
                });
            }
        }
    }
    files
}

/// Whether `key` names a file or directory that another program creates, perhaps after the start, and that is
/// not there yet.
fn may_come(key: &FileKey) -> bool {
    let is_another_s = matches!(key.kind, FileKind::TicketSecret | FileKind::Challenges);
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    is_another_s && std::fs::metadata(&key.path).is_err_and(is_missing)
}

impl NamedFile {
    /// Warnings about a file that can be used. A must-staple certificate without its response goes to
    /// `errors`.
    fn look_at(
        &self,
        content: &FileContent,
        now_s: u64,
        errors: &mut Vec<Diagnostic>,
    ) -> Vec<Diagnostic> {
        let now_s = now_s.cast_signed();
        let warning = |what: &str| {
            Diagnostic::warning(format!("{}: {what}", self.describe(false)), self.span)
        };
        let mut warnings = Vec::new();
        match content {
            FileContent::Certificates(set) => {
                for facts in set.members.iter().map(|member| &member.facts) {
                    if facts.not_after_s < now_s {
                        warnings.push(warning(
                            "the certificate has expired: clients will refuse it",
                        ));
                    }
                    if facts.not_before_s > now_s {
                        warnings.push(warning(
                            "the certificate is not valid yet: clients will refuse it",
                        ));
                    }
                }
                if let Err(why) = are_stapled(set, &self.staples, now_s.cast_unsigned()) {
                    let message = format!("{}: {why}", self.describe(false));
                    errors.push(
                        Diagnostic::error(message, self.span)
                            .with_hint("name the file with it: ssl.stapling-file"),
                    );
                }
            }
            FileContent::Staple(staple) if !staple.holds(now_s.cast_unsigned()) => {
                warnings.push(warning("the response no longer holds, and is not sent"));
            }
            _ => {}
        }
        warnings
    }

    fn refuse(&self, error: SetError) -> Diagnostic {
        let span = self.key_span.filter(|_| error.in_key).unwrap_or(self.span);
        let message = format!("{}: {}", self.describe(error.in_key), error.message);
        let diagnostic = Diagnostic::error(message, span);
        match error.hint {
            Some(hint) => diagnostic.with_hint(hint),
            None => diagnostic,
        }
    }

    fn describe(&self, in_key: bool) -> String {
        match &self.key.key_path {
            Some(path) if in_key => format!("ssl.privkey {path}"),
            _ => format!("{} {}", self.name, self.key.path),
        }
    }
}

/// Reads the files of `key`, in the order that [`FileContent::parse`] expects.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(key: &FileKey) -> Result<Vec<Vec<u8>>, SetError> {
    if key.kind == FileKind::Challenges {
        return read_challenges(&key.path);
    }
    let mut files = vec![read_file(&key.path, false)?];
    if let Some(path) = &key.key_path {
        files.push(read_file(path, true)?);
    }
    Ok(files)
}

/// Reads the challenges in a directory: three entries for each, the name, the certificate and the key.
fn read_challenges(directory: &str) -> Result<Vec<Vec<u8>>, SetError> {
    let entries = std::fs::read_dir(directory).map_err(|error| cannot_be_read(&error, false))?;
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let Some(name) = file_name
            .to_str()
            .and_then(|name| name.strip_suffix(".crt.pem"))
        else {
            continue;
        };
        if name.starts_with('.') || files.len() / 3 >= limits::CHALLENGES_MAX {
            continue;
        }
        // The process that reads has the rights of the keeper, and the ACME tool may have fewer.
        let read = |end: &str| {
            let path = format!("{directory}/{name}{end}");
            regular_file::read_of_directory(path.as_ref(), limits::FILE_BYTES_MAX)
        };
        // If one of the two cannot be read or used, the ACME tool is just writing or removing them. The next
        // look sees the rest. The server process gets nothing that is no certificate with its key.
        if let (Ok(certificate), Ok(key)) = (read(".crt.pem"), read(".key.pem"))
            && CertificateSet::parse(&certificate, &key).is_ok()
        {
            files.extend([name.to_ascii_lowercase().into_bytes(), certificate, key]);
        }
    }
    Ok(files)
}

fn read_file(path: &str, in_key: bool) -> Result<Vec<u8>, SetError> {
    regular_file::read(path.as_ref(), limits::FILE_BYTES_MAX)
        .map_err(|error| cannot_be_read(&error, in_key))
}

fn cannot_be_read(error: &io::Error, in_key: bool) -> SetError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => Some(
            "the user that starts the server reads it, before the server becomes server.username",
        ),
        _ => None,
    };
    SetError {
        message: format!("it cannot be read: {error}"),
        hint,
        in_key,
    }
}
