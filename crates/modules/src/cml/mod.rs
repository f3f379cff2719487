//! mod_cml: Lua scripts that decide between a page that is kept in files and the application.
//!
//! A script such as `index.cml` lists the files that make up the page (`output_include`) and returns
//! `CACHE_HIT`, or names the application (`trigger_handler`) and returns `CACHE_MISS`. lighttpd had this
//! module up to 1.4.63; scripts written for it run unchanged. New are entries of `output_include` that are
//! texts, or answers of other URLs that are stored for a time, and all of `petrel.*`.
//!
//! [`run`] runs a script, [`environment`] makes its globals, [`verdict`] reads its decision, [`page`] makes
//! an answer of the parts, and [`trigger`] passes the request to the application. Everything about Lua itself
//! is in [`crate::lua`].

mod environment;
mod files;
mod memcache;
mod options;
mod page;
mod parts;
mod request;
mod run;
#[cfg(test)]
mod tests;
pub(crate) mod trigger;
mod verdict;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::exchange::dry_run::{DryRun, Note};
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};

use options::CmlOptions;
use run::Role;

/// mod_cml.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_cml",
    doc: "Lua scripts that decide between a page in files and the application.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "cml.extension", String, Request, "unset", Effect::Works,
            "The suffix of scripts, usually \".cml\". Such a file is run when a request leads to it, and never sent.";
        "cml.power-magnet", String, Request, "unset", Effect::Works,
            "A script that runs for every request. If it returns CACHE_HIT it answers, with CACHE_MISS the request goes on.";
        "cml.memcache-hosts", List, Request, "()", Effect::Works,
            "The memcached servers for memcache_exists, memcache_get_string and memcache_get_long, as host, host:port or unix:/path.";
        "cml.memcache-namespace", String, Request, "unset", Effect::Works,
            "A prefix of keys, which scripts leave out.";
        "cml.include-directories", List, Request, "()", Effect::Works,
            "Directories besides the document root that files in output_include may be in. Petrel's own.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let options = Rc::new(CmlOptions::read(configure.values)?);
    if options.power_magnet.is_some() {
        // At the end of this phase the path is known and no file was looked up.
        configure.add_last(Phase::Map, PowerMagnet(Rc::clone(&options)));
    }
    if options.extension.is_some() {
        configure.add(Phase::Content, CmlScripts(options));
    }
    Ok(())
}

/// Runs one script for every request (`cml.power-magnet`).
struct PowerMagnet(Rc<CmlOptions>);

/// Runs the scripts that requests lead to.
struct CmlScripts(Rc<CmlOptions>);

impl Hook for PowerMagnet {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match &self.0.power_magnet {
            // The script does not run again for the path that a script has chosen.
            Some(path) if !trigger::has_led_here(exchange) => {
                run::run(exchange, &self.0, path, Role::PowerMagnet)
            }
            _ => Outcome::Next,
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.dry_run().is_some_and(DryRun::runs_scripts) {
            return self.run(exchange);
        }
        if let Some(path) = &self.0.power_magnet {
            exchange.note(|| script(path));
        }
        Outcome::Next
    }
}

impl CmlScripts {
    /// Whether the request leads to a script.
    fn takes(&self, exchange: &Exchange) -> bool {
        let physical = &exchange.physical;
        let is_file = physical
            .file
            .as_ref()
            .is_some_and(|file| file.kind() == FileKind::Regular);
        let extension = self.0.extension.as_ref();
        is_file && extension.is_some_and(|extension| physical.path.ends_with(extension))
    }
}

impl Hook for CmlScripts {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !self.takes(exchange) {
            return Outcome::Next;
        }
        let path = exchange.physical.path.clone();
        run::run(exchange, &self.0, &path, Role::Script)
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let runs = exchange.dry_run().is_some_and(DryRun::runs_scripts);
        if runs || !self.takes(exchange) {
            return self.run(exchange);
        }
        exchange.note(|| script(&exchange.physical.path));
        exchange.answer_is_made_by("script")
    }
}

fn script(path: &[u8]) -> Note {
    Note::Script(String::from_utf8_lossy(path).into_owned())
}

/// The key under which this module keeps things with an exchange.
const KEPT: &str = "mod_cml";
