//! Certificates and keys for TLS to backends, and to servers that scripts make requests to. The keeper reads
//! them once, before privileges are dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use petrel_engine::config::{Config, Diagnostic};
use petrel_engine::module::ModuleSpec;
use petrel_engine::rustls::RootCertStore;
use petrel_engine::tls::{ClientIdentity, TlsName, TlsServer, TlsTrust};
use petrel_engine::worker::Worker;

use super::limits;
use super::options::{self, BackendHost, OptionMap, Protocol, TlsOptions, TrustOptions};
use crate::pem::{self, PemError};
use crate::regular_file;

/// The contents of the files that a configuration names.
#[derive(Clone, Debug, Default)]
pub struct LoadedTrusts {
    known: HashMap<TrustOptions, TlsTrust>,
    /// For servers that scripts make requests to.
    of_scripts: Option<Result<TlsTrust, String>>,
    /// For servers that modules connect to, by the file with authorities; `None` is the system's.
    of_modules: HashMap<Option<PathBuf>, TlsTrust>,
}

impl LoadedTrusts {
    /// Reads all files that backends in `config` name. Also reads the system's certificates if a backend, or
    /// a script (`runs_lua`), may need them.
    ///
    /// # Errors
    /// A file is missing or invalid. The error points at the place that names it.
    pub fn load(
        config: &Config,
        modules: &[&'static ModuleSpec],
        runs_lua: bool,
    ) -> Result<LoadedTrusts, Diagnostic> {
        let mut loaded = LoadedTrusts::default();
        let mut roots = HashMap::new();
        for (map, options) in options::trust_options(config, modules)? {
            if let Entry::Vacant(unknown) = loaded.known.entry(options) {
                let trust = trust(&map, unknown.key(), &mut roots)?;
                unknown.insert(trust);
            }
        }
        if runs_lua {
            let system = match roots.remove(&None) {
                Some(roots) => Ok(roots),
                None => system_roots().map(Arc::new),
            };
            loaded.of_scripts = Some(system.and_then(|roots| TlsTrust::new(Some(roots), None)));
        }
        Ok(loaded)
    }

    /// Adds the authorities in `file`, or the system's, for [`Self::authorized`].
    ///
    /// # Errors
    /// They cannot be read: a sentence.
    pub(crate) fn add_authorities(&mut self, file: Option<&Path>) -> Result<(), String> {
        let roots = match file {
            Some(file) => {
                let wrong = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
                let text = regular_file::read(file, limits::PEM_BYTES_MAX);
                let text = text.map_err(|error| wrong(&error))?;
                let certificates = pem::certificates(&text).map_err(|error| wrong(&error))?;
                match pem::root_store(&certificates) {
                    (roots, 0) => roots,
                    (_, unusable) => {
                        return Err(wrong(&format_args!(
                            "{unusable} certificates cannot be read"
                        )));
                    }
                }
            }
            None => system_roots()?,
        };
        let trust = TlsTrust::new(Some(Arc::new(roots)), None)?;
        self.of_modules.insert(file.map(Path::to_path_buf), trust);
        Ok(())
    }

    /// The server `name`, verified by the authorities in `file`, or by the system's. If they were not added
    /// before, every handshake fails.
    pub(crate) fn authorized(&self, file: Option<&Path>, name: &TlsName) -> TlsServer {
        let known = self.of_modules.get(&file.map(Path::to_path_buf));
        let trust = known.cloned().unwrap_or_else(TlsTrust::in_none);
        trust.server(name, None)
    }

    /// The certificates and keys of the server process.
    pub(crate) fn of(worker: &Worker) -> Arc<LoadedTrusts> {
        worker.settings_table().handed().unwrap_or_default()
    }

    /// The TLS settings for the backend that `host` describes, if it speaks TLS.
    pub(super) fn backend(&self, host: &BackendHost) -> Option<TlsServer> {
        let TlsOptions { name, trust } = host.tls.as_ref()?;
        // All options of a configuration were loaded. If these were not, every handshake fails.
        let trust = self
            .known
            .get(trust)
            .cloned()
            .unwrap_or_else(TlsTrust::in_none);
        let protocol = (host.protocol == Protocol::Http).then_some(HTTP_1_1);
        Some(trust.server(name, protocol))
    }

    /// The TLS settings for the server of this name that a script makes a request to.
    ///
    /// # Errors
    /// The server cannot be verified: a sentence.
    pub(crate) fn server(&self, name: &str) -> Result<TlsServer, String> {
        let name = TlsName::parse(name)?;
        match &self.of_scripts {
            Some(Ok(trust)) => Ok(trust.server(&name, Some(HTTP_1_1))),
            Some(Err(message)) => Err(message.clone()),
            None => Err("no certificates were loaded".to_owned()),
        }
    }
}

type KnownRoots = HashMap<Option<PathBuf>, Arc<RootCertStore>>;

/// Reads the files that `options` name.
fn trust(
    map: &OptionMap<'_>,
    options: &TrustOptions,
    known: &mut KnownRoots,
) -> Result<TlsTrust, Diagnostic> {
    let roots = match options.is_unverified {
        true => None,
        false => Some(roots(map, options, known)?),
    };
    let identity = identity(map, options)?;
    TlsTrust::new(roots, identity).map_err(|message| {
        let key = options
            .key
            .as_ref()
            .map_or(options::CERTIFICATE, |_| options::KEY);
        map.error(key, message)
    })
}

fn roots(
    map: &OptionMap<'_>,
    options: &TrustOptions,
    known: &mut KnownRoots,
) -> Result<Arc<RootCertStore>, Diagnostic> {
    if let Some(roots) = known.get(&options.ca_file) {
        return Ok(Arc::clone(roots));
    }
    let roots = match &options.ca_file {
        Some(file) => {
            let certificates = parsed(map, options::CA_FILE, file, pem::certificates)?;
            match pem::root_store(&certificates) {
                (roots, 0) => roots,
                (_, unusable) => {
                    let message = format!(
                        "{}: {unusable} of {} certificates cannot be read",
                        file.display(),
                        certificates.len()
                    );
                    return Err(map.error(options::CA_FILE, message));
                }
            }
        }
        None => system_roots().map_err(|message| {
            let hint = "install the package ca-certificates, set SSL_CERT_FILE, or add \"tls-ca-file\" => \"/path/ca.pem\"";
            map.error(options::TLS, message).with_hint(hint)
        })?,
    };
    let roots = Arc::new(roots);
    known.insert(options.ca_file.clone(), Arc::clone(&roots));
    Ok(roots)
}

fn identity(
    map: &OptionMap<'_>,
    options: &TrustOptions,
) -> Result<Option<ClientIdentity>, Diagnostic> {
    let Some(file) = &options.certificate else {
        return Ok(None);
    };
    let certificates = parsed(map, options::CERTIFICATE, file, pem::certificates)?;
    let (key, file) = match &options.key {
        Some(file) => (options::KEY, file),
        None => (options::CERTIFICATE, file),
    };
    let keys = parsed(map, key, file, pem::private_keys)?;
    let key = keys.into_iter().next();
    Ok(key.map(|key| ClientIdentity { certificates, key }))
}

/// The authorities that the system trusts: from the files that SSL_CERT_FILE and SSL_CERT_DIR name, or from
/// where the system usually has them. A certificate that cannot be used is left out.
fn system_roots() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    match (pem::root_store(&found.certs).0, found.errors.first()) {
        (roots, Some(error)) if roots.is_empty() => {
            Err(format!("the system trusts no certificate: {error}"))
        }
        (roots, None) if roots.is_empty() => Err("the system trusts no certificate".to_owned()),
        (roots, _) => Ok(roots),
    }
}

/// Parses `file`, which the option `key` names.
fn parsed<T>(
    map: &OptionMap<'_>,
    key: &str,
    file: &Path,
    parse: fn(&[u8]) -> Result<T, PemError>,
) -> Result<T, Diagnostic> {
    let wrong =
        |what: &dyn std::fmt::Display| map.error(key, format!("{}: {what}", file.display()));
    let text = regular_file::read(file, limits::PEM_BYTES_MAX).map_err(|error| wrong(&error))?;
    parse(&text).map_err(|error| match error.hint() {
        Some(hint) => wrong(&error).with_hint(hint),
        None => wrong(&error),
    })
}

/// The protocol that is offered to HTTP servers with ALPN.
const HTTP_1_1: &[u8] = b"http/1.1";
