//! One configuration, with everything that was opened for it.

use std::cell::RefCell;

use config::{Diagnostic, Diagnostics, Span};
use engine::log::{LogRegistry, LogTarget};
use indexmap::IndexSet;

use super::backends::{Backends, PoolId};
use crate::limits;
use crate::listen::ListenerSet;
use crate::load::Loaded;
use crate::start_warnings::start_warnings;
use crate::tls_files::TlsFiles;
use crate::user::{self, Identity};

/// A configuration and its listeners. It may have several server processes, one after another, if they crash.
pub(crate) struct Generation {
    /// The number of this configuration, counted from 1 since the keeper started.
    pub(crate) number: u64,
    /// The configuration.
    pub(crate) loaded: Loaded,
    /// Its listeners. The set is emptied when the server stops.
    pub(crate) listeners: RefCell<ListenerSet>,
    /// Its logs, in the order of the numbers in [`Order::Log`](crate::control::Order::Log).
    pub(crate) log_targets: IndexSet<LogTarget>,
    /// The user and groups of its server processes.
    pub(crate) identity: Identity,
    /// Its backend programs, in the order of the numbers in
    /// [`News::Overloaded`](crate::control::News::Overloaded).
    pub(crate) backends: Vec<PoolId>,
    /// Certificates and keys, if a listener speaks TLS.
    pub(crate) tls: Option<TlsFiles>,
}

/// A generation that was opened, with its warnings.
pub(crate) struct OpenedGeneration {
    /// The generation itself.
    pub(crate) generation: Generation,
    /// What could not be opened or set, but is not needed to serve.
    pub(crate) warnings: Vec<String>,
    /// Warnings that refer to a place in the configuration.
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl Generation {
    /// Opens what `loaded` needs; shares with `before` what that has open already.
    ///
    /// # Errors
    /// What could not be opened, to be shown or logged.
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
        let identity = Identity::find(&loaded.process).map_err(|message| {
            let place = loaded.place_of(&message);
            fails(message, place)
        })?;
        let mut warnings = limits::apply(&loaded.process);
        warnings.extend(user::warning(&loaded.process).map(str::to_owned));
        warnings.extend(inherited.differs(&loaded.process));
        let tls = TlsFiles::open(&loaded, tls_before).map_err(|list| loaded.diagnostics(list))?;
        let (tls, mut diagnostics) =
            tls.map_or((None, Vec::new()), |(tls, told)| (Some(tls), told));
        diagnostics.extend(start_warnings(&loaded));
        let listeners = ListenerSet::open(&loaded.process, before, inherited)
            .map_err(|error| fails(error.message, error.span))?;
        let log_targets = loaded.log_targets();
        // lighttpd opens its logs after the chroot, so their paths are relative to it.
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

/// An error about a configuration whose text is valid.
pub(crate) fn refuse(loaded: &Loaded, message: String, span: Option<Span>) -> Diagnostics {
    let mut diagnostic = Diagnostic::error_anywhere(message);
    diagnostic.span = span;
    loaded.diagnostics(vec![diagnostic])
}
