//! Loads a configuration: reads it, checks it against every module, and converts the settings to their types.
//!
//! Opens no socket and no log, and does not change the user; it does read the certificates that the
//! configuration names. Start-up, reload, `-t` and `-p` all use it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use config::{Config, Diagnostic, Diagnostics, Entry, LoadOptions, Schema, Severity, Span, Style};
use engine::log::LogTarget;
use engine::module::ModuleSpec;
use engine::settings::{ProcessSettings, SettingsTable, loaded_modules};
use indexmap::IndexSet;
use modules::gateway::trust::LoadedTrusts;

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A file; an absolute path.
    File(PathBuf),
    /// A configuration text that the program itself made.
    Text {
        /// The name by which messages refer to it.
        name: &'static str,
        /// The text.
        text: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Text { name, .. } => f.write_str(name),
        }
    }
}

/// A configuration that was read and checked.
#[derive(Clone)]
pub(crate) struct Loaded {
    /// The checked tree.
    pub(crate) config: Arc<Config>,
    /// The directives it was checked against.
    pub(crate) schema: Arc<Schema>,
    /// The modules in use, in hook order.
    pub(crate) modules: Vec<&'static ModuleSpec>,
    /// The settings of the process as a whole.
    pub(crate) process: Arc<ProcessSettings>,
    /// Certificates and keys for TLS to backends.
    pub(crate) trusts: Arc<LoadedTrusts>,
}

impl Loaded {
    /// Warnings to show at start-up, in the order of the text.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.config.warnings.iter().chain(&self.process.warnings)
    }

    /// Checks that there is something to serve. As in lighttpd, `-t` accepts a configuration without
    /// `server.document-root`, but the server does not start with it.
    ///
    /// # Errors
    /// `server.document-root` is not set outside all conditions.
    pub(crate) fn has_document_root(&self) -> Result<(), Diagnostics> {
        let entry = self.config.global().entry("server.document-root");
        match entry.and_then(|entry| entry.value.as_str()) {
            Some(root) if !root.is_empty() => Ok(()),
            _ => {
                let hint = "set it outside all conditions, to the directory with the files";
                let error = Diagnostic::error_anywhere("server.document-root is not set");
                Err(self.diagnostics(vec![error.with_hint(hint)]))
            }
        }
    }

    /// Whether the configuration names Lua scripts.
    pub(crate) fn runs_lua(&self) -> bool {
        runs_lua(&self.config)
    }

    /// Where the directive stands that `message` begins with.
    pub(crate) fn place_of(&self, message: &str) -> Option<Span> {
        let (name, _) = message.split_once(':')?;
        let entry = self.config.global().entry(name)?;
        Some(entry.value_span)
    }

    /// The services that the configuration has PAM asked for about passwords.
    pub(crate) fn pam_services(&self) -> BTreeSet<Vec<u8>> {
        modules::auth::pam_services(&self.config, &self.modules)
    }

    /// Errors about this configuration, with its text, to be shown or logged.
    pub(crate) fn diagnostics(&self, list: Vec<Diagnostic>) -> Diagnostics {
        Diagnostics {
            list,
            sources: self.config.sources.clone(),
        }
    }

    /// `server.breakagelog`: where backends write their errors. `None` if that is the error log.
    pub(crate) fn breakage_log(&self) -> Option<LogTarget> {
        target_of(&self.config.global().entry("server.breakagelog")?.value)
    }

    /// The directives that name logs.
    fn log_entries(&self) -> impl Iterator<Item = &Entry> {
        let access_log = modules::access_log::MODULE.name;
        let logs_accesses = self.modules.iter().any(|module| module.name == access_log);
        let entries = self.config.blocks.iter().flat_map(|block| &block.entries);
        entries.filter(move |entry| match entry.name.as_str() {
            "server.errorlog" | "server.breakagelog" => true,
            "accesslog.filename" => logs_accesses,
            _ => false,
        })
    }

    /// Every log that is a file, with the directive that names it.
    pub(crate) fn log_files(&self) -> Vec<(&Entry, PathBuf)> {
        let mut files = Vec::new();
        for entry in self.log_entries() {
            if let Some(LogTarget::File(path)) = target_of(&entry.value) {
                files.push((entry, path));
            }
        }
        files
    }

    /// Every log that the configuration names, each once.
    pub(crate) fn log_targets(&self) -> IndexSet<LogTarget> {
        let mut targets = IndexSet::from([self.process.error_log.clone()]);
        for entry in self.log_entries() {
            targets.extend(target_of(&entry.value));
        }
        let mut entries = self.config.blocks.iter().flat_map(|block| &block.entries);
        if entries.any(|entry| entry.name.ends_with("use-syslog") && entry.value.is_enabling()) {
            targets.insert(LogTarget::Syslog);
        }
        targets
    }
}

fn target_of(value: &config::Value) -> Option<LogTarget> {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .map(LogTarget::parse)
}

/// Reads and checks the configuration.
///
/// # Errors
/// All its errors, together with its warnings.
pub(crate) fn load(origin: &Origin) -> Result<Loaded, Diagnostics> {
    load_changed(origin, |_| ())
}

/// As [`load`], with `change` made to the configuration before it is checked.
///
/// # Errors
/// Those of [`load`].
pub(crate) fn load_changed(
    origin: &Origin,
    change: impl FnOnce(&mut Config),
) -> Result<Loaded, Diagnostics> {
    let schema = modules::schema();
    let options = LoadOptions::from_process();
    let mut config = match origin {
        Origin::File(path) => config::load(path, &schema, &options)?,
        Origin::Text { name, text } => config::parse_str(name, text, &schema, &options)?,
    };
    change(&mut config);
    let warnings = modules::warnings(&config);
    config.warnings.extend(warnings);
    let refusals = modules::refusals(&config);
    if !refusals.is_empty() {
        config.warnings.extend(refusals);
        return Err(Diagnostics {
            list: config.warnings,
            sources: config.sources,
        });
    }
    let modules = loaded_modules(&config, modules::MODULES);
    let checked = SettingsTable::check(&config, &schema, &modules)
        .and_then(|()| ProcessSettings::new(&config))
        .and_then(|process| {
            let mut trusts = LoadedTrusts::load(&config, &modules, runs_lua(&config))?;
            modules::auth::load_authorities(&config, &modules, &mut trusts)?;
            modules::opentelemetry::load_authorities(&config, &modules, &mut trusts)?;
            modules::auth::check_pam(&config, &modules)?;
            Ok((process, trusts))
        });
    match checked {
        Ok((process, trusts)) => Ok(Loaded {
            config: Arc::new(config),
            schema: Arc::new(schema),
            modules,
            process: Arc::new(process),
            trusts: Arc::new(trusts),
        }),
        Err(error) => {
            let Config {
                sources,
                warnings: mut list,
                ..
            } = config;
            list.push(error);
            Err(Diagnostics { list, sources })
        }
    }
}

/// What `-p` prints for a configuration with invalid settings. lighttpd prints everything that it could
/// parse, before it checks the values of directives.
pub(crate) fn printable(origin: &Origin) -> Option<Config> {
    let Origin::File(path) = origin else {
        return None;
    };
    let config = config::read_despite_mistakes(path, &LoadOptions::from_process());
    let is_readable = |found: &Diagnostic| found.severity != Severity::Error;
    config.warnings.iter().all(is_readable).then_some(config)
}

fn runs_lua(config: &Config) -> bool {
    let mut entries = config.blocks.iter().flat_map(|block| &block.entries);
    entries.any(|entry| {
        ["magnet.", "cml."]
            .iter()
            .any(|of| entry.name.starts_with(of))
    })
}

/// Prints the errors to standard error, with the lines they refer to.
pub(crate) fn print_errors(errors: &Diagnostics) {
    write_to_stderr(&errors.render(style()));
}

/// Prints the warnings of a configuration to standard error.
pub(crate) fn print_warnings(loaded: &Loaded) {
    for warning in loaded.warnings() {
        print_diagnostic(warning, loaded);
    }
}

/// Prints one diagnostic about `loaded` to standard error.
pub(crate) fn print_diagnostic(diagnostic: &Diagnostic, loaded: &Loaded) {
    write_to_stderr(&(config::render(diagnostic, &loaded.config.sources, style()) + "\n"));
}

/// The errors as log lines.
pub(crate) fn error_lines(errors: &Diagnostics) -> Vec<String> {
    let wrong = errors
        .list
        .iter()
        .filter(|diagnostic| diagnostic.severity == Severity::Error);
    wrong
        .map(|diagnostic| config::render(diagnostic, &errors.sources, Style::Line))
        .collect()
}

/// The warnings as log lines.
pub(crate) fn warning_lines(loaded: &Loaded) -> Vec<String> {
    let sources = &loaded.config.sources;
    loaded
        .warnings()
        .map(|warning| config::render(warning, sources, Style::Line))
        .collect()
}

fn style() -> Style {
    match std::io::stderr().is_terminal() {
        true => Style::ColourReport,
        false => Style::Report,
    }
}

fn write_to_stderr(text: &str) {
    // If standard error is closed, there is no other place to report to.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
