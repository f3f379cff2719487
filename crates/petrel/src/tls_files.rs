//! Certificates, keys and what else TLS reads: opened with a configuration, and again when the files change.
//!
//! The server process has given up the right to read them. What has changed goes to it in a file without a name, whose
//! descriptor travels with the order.
#![expect(
    clippy::disallowed_methods,
    reason = "keeper and first thread have no worker"
)]

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use config::Diagnostic;
use modules::openssl::{self, TlsStore, TlsWatch};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::load::Loaded;

/// What TLS needs for one configuration.
pub(crate) struct TlsFiles {
    /// What server processes get by the fork.
    pub(crate) store: Arc<TlsStore>,
    /// What the files looked like when they were read.
    pub(crate) watch: TlsWatch,
}

impl TlsFiles {
    /// Reads the files of `loaded`; those of `before` have made tickets until now. Answers what there is to warn of, too.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub(crate) fn open(
        loaded: &Loaded,
        before: Option<&TlsFiles>,
    ) -> Result<Option<(TlsFiles, Vec<Diagnostic>)>, Vec<Diagnostic>> {
        let Some(opened) = load(loaded)? else {
            return Ok(None);
        };
        let store = Arc::new(opened.store);
        let before = before.map(|before| &*before.store);
        openssl::begin_tickets(&store, before)
            .map_err(|error| vec![Diagnostic::error_anywhere(format!("TLS: {error}"))])?;
        let watch = opened.watch;
        let files = TlsFiles { store, watch };
        Ok(Some((files, opened.warnings)))
    }
}

/// Looks at the files of `loaded` without keeping them. Answers what there is to warn of.
///
/// # Errors
/// Every file that cannot be used.
pub(crate) fn check(loaded: &Loaded) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    Ok(load(loaded)?.map_or_else(Vec::new, |opened| opened.warnings))
}

/// Takes what is in a file of [`in_memory`], in the server process.
///
/// # Errors
/// It cannot be read.
pub(crate) fn adopt(store: &TlsStore, handed: OwnedFd) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::from(handed).read_to_end(&mut bytes)?;
    openssl::adopt(store, &bytes)
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn load(loaded: &Loaded) -> Result<Option<openssl::LoadedStore>, Vec<Diagnostic>> {
    let is_loaded = |name: &str| loaded.modules.iter().any(|module| module.name == name);
    match is_loaded(openssl::MODULE.name) {
        true => openssl::load(&loaded.config, now_s()),
        false => Ok(None),
    }
}

/// A file without a name, for one server process: who reads it moves its position.
///
/// # Errors
/// Descriptors or memory have run out.
pub(crate) fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("petrel-tls", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
