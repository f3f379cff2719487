//! Certificates, keys and the other files that TLS reads. The keeper opens them with a configuration, and
//! again when they change.
//!
//! The server process has no right to read them. So the keeper sends changed contents in a file without a
//! name (memfd), whose descriptor travels with [`crate::control::Order::Tls`].
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
    /// What server processes inherit by fork.
    pub(crate) store: Arc<TlsStore>,
    /// The state of the files when they were read, to detect changes.
    pub(crate) watch: TlsWatch,
}

impl TlsFiles {
    /// Reads the files of `loaded`. `before` are those of the previous configuration, whose session tickets
    /// stay valid. Also returns warnings.
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

/// Checks the files of `loaded` without keeping them. Returns warnings.
///
/// # Errors
/// Every file that cannot be used.
pub(crate) fn check(loaded: &Loaded) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
    Ok(load(loaded)?.map_or_else(Vec::new, |opened| opened.warnings))
}

/// In the server process: takes over the contents of a file made by [`in_memory`].
///
/// # Errors
/// The file cannot be read.
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

/// Writes `bytes` to a new file without a name. Each server process needs its own, because reading moves the
/// file's position.
///
/// # Errors
/// The process has no descriptors or memory left.
pub(crate) fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("petrel-tls", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
