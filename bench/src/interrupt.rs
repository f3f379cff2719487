//! SIGINT and SIGTERM as a flag, so that servers are stopped and files are removed before this program ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first SIGINT or SIGTERM only sets the flag.
pub fn watch() -> io::Result<()> {
    let flag = ASKED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// Whether a signal has asked this program to stop.
pub fn asked() -> bool {
    ASKED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
