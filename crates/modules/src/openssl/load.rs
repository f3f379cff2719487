//! Reads the files of TLS, in the keeper, which may.

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

/// A store with everything in it, and what there is to warn of.
#[derive(Debug)]
pub struct LoadedStore {
    /// The store.
    pub store: TlsStore,
    /// What the files looked like before they were read.
    pub watch: TlsWatch,
    /// Certificates that have expired, and the like.
    pub warnings: Vec<Diagnostic>,
}

/// Reads every file that `ssl.*` in `config` names. `None`: no listener speaks TLS.
///
/// # Errors
/// Every file that cannot be used.
pub fn load(config: &Config, now_s: u64) -> Result<Option<LoadedStore>, Vec<Diagnostic>> {
    if !options::is_used(config) {
        return Ok(None);
    }
    let named = named_files(config);
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now_s));
    let keys = named.iter().map(|named| named.key.clone()).collect();
    let store = TlsStore::new(keys, now);
    // Before they are read: what changes meanwhile is seen by the next look.
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

/// Makes the tickets of `store` with the secret that it has, or with that of `before`, or with a new one.
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

/// Makes a new secret for tickets if that of `store` has served its time.
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

/// Whether each certificate of `set` that clients refuse without a response about its state has one in every file of
/// `staples`. These are read now: a certificate and its response may change together.
///
/// # Errors
/// What is missing.
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

/// A file as the configuration names it.
struct NamedFile {
    key: FileKey,
    /// Where.
    span: Span,
    /// Where the file with the key is named, if that is another.
    key_span: Option<Span>,
    /// The directive.
    name: String,
    /// The server cannot start without.
    is_needed: bool,
    /// The files with a response about the state of the certificate: one for each block that names the certificate.
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

/// Whether `key` names what another program makes, perhaps later, and it is not there yet.
fn may_come(key: &FileKey) -> bool {
    let is_another_s = matches!(key.kind, FileKind::TicketSecret | FileKind::Challenges);
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    is_another_s && std::fs::metadata(&key.path).is_err_and(is_missing)
}

impl NamedFile {
    /// What there is to say about a content that can be used.
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

/// Reads the files of `key`, in the form that [`FileContent::parse`] takes.
///
/// # Errors
/// One cannot be read.
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

/// Name, certificate and key of each challenge.
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
        let path = |end: &str| format!("{directory}/{name}{end}");
        let certificate = read_file(&path(".crt.pem"), false);
        // One that is being written, or removed.
        if let (Ok(certificate), Ok(key)) = (certificate, read_file(&path(".key.pem"), true)) {
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
