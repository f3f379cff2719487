//! `server.io-chunk-size`, and warnings where it has no effect.

use petrel_config::{Config, Diagnostic};

use super::super::Values;
use crate::limits;
use crate::network_backend::NetworkBackend;

const NAME: &str = "server.io-chunk-size";

/// The chunk size in bytes; 0: it follows the pace of the client.
pub(super) fn read(config: &Config, values: &Values<'_>, warnings: &mut Vec<Diagnostic>) -> usize {
    let kib = values.unsigned(NAME, 0) as usize;
    if kib == 0 {
        return 0;
    }
    warn_of_backends(config, warnings);
    let most = limits::CHUNK_BYTES_CONFIGURED_MAX;
    let bytes = kib.saturating_mul(1024);
    if bytes > most
        && let Some(span) = values.span(NAME)
    {
        let message = format!("{NAME} is at most {} KiB, and that is used", most / 1024);
        warnings.push(Diagnostic::warning(message, span));
    }
    bytes.min(most)
}

/// Warns of network backends that send directly to the socket and read no chunks.
fn warn_of_backends(config: &Config, warnings: &mut Vec<Diagnostic>) {
    for block in &config.blocks {
        let Some(entry) = block.entry("server.network-backend") else {
            continue;
        };
        let backend = entry.value.as_str().and_then(NetworkBackend::named);
        if let Some(backend) = backend.filter(|backend| !backend.reads_elsewhere()) {
            let name = backend.name();
            let message = format!("{NAME} has no effect on what {name} sends");
            warnings.push(Diagnostic::warning(message, entry.value_span));
        }
    }
}
