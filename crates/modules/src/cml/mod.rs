//! mod_cml: Lua scripts that decide between a page that is kept in files and the application.
//!
//! A script such as `index.cml` says which files make up the page (`output_include`) and returns
//! `CACHE_HIT`, or names who makes it (`trigger_handler`) and returns `CACHE_MISS`. lighttpd had this
//! module up to 1.4.63; scripts written for it run as they are. What is new: entries of
//! `output_include` that are texts, or answers of other URLs kept for a time, and all of `petrel.*`.
//!
//! [`run`] runs a script, [`environment`] is what it sees, [`verdict`] reads what it has decided,
//! [`page`] makes the answer of parts and [`trigger`] goes on with the application. Of Lua itself
//! only [`crate::lua`] knows.

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
mod trigger;
mod verdict;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};

use options::CmlOptions;
use run::Role;

/// mod_cml.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_cml",
    doc: "Decides by a Lua script between a page that is kept in files and the application.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "cml.extension", String, Request, "unset", Effect::Works,
            "Files whose names end with this are scripts: \".cml\" as a rule. They are run for requests that lead to them and never sent.";
        "cml.power-magnet", String, Request, "unset", Effect::Works,
            "A script to run before every request, whatever it leads to. CACHE_HIT answers, CACHE_MISS lets the request go on.";
        "cml.memcache-hosts", List, Request, "()", Effect::Works,
            "The memcached servers of memcache_exists, memcache_get_string and memcache_get_long, as host, host:port or unix:/path.";
        "cml.memcache-namespace", String, Request, "unset", Effect::Works,
            "What keys there begin with; scripts leave it out.";
        "cml.include-directories", List, Request, "()", Effect::Works,
            "Directories besides the document root that files in output_include may be in. Petrel's own.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let options = Rc::new(CmlOptions::read(configure.values)?);
    if options.power_magnet.is_some() {
        // The path is known then, and nothing has been looked up: whatever the request leads to.
        configure.add_last(Phase::Map, PowerMagnet(Rc::clone(&options)));
    }
    if options.extension.is_some() {
        configure.add(Phase::Content, CmlScripts(options));
    }
    Ok(())
}

/// Runs one script for all requests.
struct PowerMagnet(Rc<CmlOptions>);

/// Runs the scripts that requests lead to.
struct CmlScripts(Rc<CmlOptions>);

impl Hook for PowerMagnet {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match &self.0.power_magnet {
            // What a script has chosen is not up to the scripts again.
            Some(path) if !trigger::has_led_here(exchange) => {
                run::run(exchange, &self.0, path, Role::PowerMagnet)
            }
            _ => Outcome::Next,
        }
    }
}

impl Hook for CmlScripts {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let physical = &exchange.physical;
        let is_file = physical
            .file
            .as_ref()
            .is_some_and(|file| file.kind() == FileKind::Regular);
        match &self.0.extension {
            Some(extension) if is_file && physical.path.ends_with(extension) => {
                let path = physical.path.clone();
                run::run(exchange, &self.0, &path, Role::Script)
            }
            _ => Outcome::Next,
        }
    }
}

/// What requests keep things of this module under.
const KEPT: &str = "mod_cml";
