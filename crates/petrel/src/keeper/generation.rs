//! One configuration with what was opened for it.

use std::cell::RefCell;

use config::{Diagnostic, Diagnostics, Span};
use engine::log::{LogRegistry, LogTarget};

use super::backends::{Backends, PoolId};
use crate::limits;
use crate::listen::ListenerSet;
use crate::load::Loaded;
use crate::tls_files::TlsFiles;
use crate::user::{self, Identity};

/// A configuration and its listeners. Several server processes may belong to one, after crashes.
pub(crate) struct Generation {
    /// How many configurations were opened before it, and itself.
    pub(crate) number: u64,
    /// The configuration.
    pub(crate) loaded: Loaded,
    /// Its listeners; emptied when the server stops.
    pub(crate) listeners: RefCell<ListenerSet>,
    /// Its logs, in the order that numbers in orders mean.
    pub(crate) log_targets: Vec<LogTarget>,
    /// Who its server processes are.
    pub(crate) identity: Identity,
    /// Its backend programs, in the order that numbers in news mean.
    pub(crate) backends: Vec<PoolId>,
    /// What TLS needs, if a listener speaks it.
    pub(crate) tls: Option<TlsFiles>,
}

/// A generation that was opened, and what there is to say about it.
pub(crate) struct OpenedGeneration {
    /// The generation itself.
    pub(crate) generation: Generation,
    /// What could not be had, but is not needed to serve.
    pub(crate) warnings: Vec<String>,
    /// The same about places in the configuration.
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl Generation {
    /// Opens what `loaded` needs and `before` has not.
    ///
    /// # Errors
    /// What is missing, as something to show or to log.
    pub(crate) fn open(
        number: u64,
        loaded: Loaded,
        before: &ListenerSet,
        tls_before: Option<&TlsFiles>,
        inherited: &ListenerSet,
        logs: &LogRegistry,
        backends: &mut Backends,
    ) -> Result<OpenedGeneration, Diagnostics> {
        let fails = |message: String, span| refuse(&loaded, message, span);
        loaded.has_document_root()?;
        let identity = Identity::find(&loaded.process).map_err(|message| fails(message, None))?;
        let mut warnings = limits::apply(&loaded.process);
        warnings.extend(user::warning(&loaded.process).map(str::to_owned));
        let tls = TlsFiles::open(&loaded, tls_before).map_err(|list| loaded.diagnostics(list))?;
        let (tls, diagnostics) = tls.map_or((None, Vec::new()), |(tls, told)| (Some(tls), told));
        let listeners = ListenerSet::open(&loaded.process, before, inherited)
            .map_err(|error| fails(error.message, error.span))?;
        let log_targets = loaded.log_targets();
        // lighttpd opens its logs after the chroot.
        logs.add_below(
            loaded.process.chroot.as_deref(),
            identity.file_owner(),
            log_targets.iter().cloned(),
        )
        .map_err(|error| fails(error.to_string(), None))?;
        let backends = backends
            .open(&loaded)
            .map_err(|list| loaded.diagnostics(list))?;
        let listeners = RefCell::new(listeners);
        Ok(OpenedGeneration {
            generation: Generation {
                number,
                loaded,
                listeners,
                log_targets,
                identity,
                backends,
                tls,
            },
            warnings,
            diagnostics,
        })
    }
}

/// An error about a configuration that is right by itself.
pub(crate) fn refuse(loaded: &Loaded, message: String, span: Option<Span>) -> Diagnostics {
    let mut diagnostic = Diagnostic::error_anywhere(message);
    diagnostic.span = span;
    loaded.diagnostics(vec![diagnostic])
}
