//! mod_page_cache: answers of backends and scripts are kept, and sent again (RFC 9111, RFC 5861).
//!
//! [`lookup`] runs in front of everybody who answers, behind everything that protects a URL. It makes a
//! [`key`], looks in the worker's own table ([`front`]) and in the memory of all workers ([`memory`]), and
//! answers ([`answer`]), sends on, or lets the request wait for one that asks the same ([`flight`],
//! [`wait`]). [`store`] sees the answer of a backend before scripts do; [`policy`] decides by what it says.
//! [`refresh`] fetches stale pages in the background, [`purge`] removes what is stored. What memory does not
//! have may be in files ([`disk`]) or in a store that several machines share ([`second_tier`]), both as
//! [`blob`]s; [`below`] asks them. What scripts make by themselves is in [`fragments`].
//!
//! The cache knows no backend and no socket. It never keeps what is one client's: answers that set cookies,
//! are private, or came to a client who is known, unless the configuration says so.

pub mod answer;
mod below;
pub mod blob;
pub(crate) mod cache_control;
mod context;
pub mod counters;
mod disk;
pub mod entry;
mod fetch;
pub(crate) mod flight;
pub mod fragments;
mod front;
pub mod key;
mod limits;
mod lookup;
pub mod memory;
pub mod options;
pub(crate) mod policy;
mod purge;
mod refresh;
pub mod request;
pub mod second_tier;
pub mod shared;
mod sieve;
pub mod status;
mod store;
mod tag_purges;
mod turns;
pub mod vary;
mod wait;

use std::rc::Rc;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec, Phase};

pub(crate) use fragments::{FragmentTurn, Maker};
pub use shared::{PageCache, drain};

use lookup::{CacheLookup, Gate};
use options::CacheOptions;
use purge::Purge;
use store::StoreAnswer;

/// mod_page_cache.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_page_cache",
    doc: "Keeps answers of backends and scripts, and sends them again as long as they are fresh.",
    loaded: Loaded::Listed,
    directives: options::DIRECTIVES,
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let Some(options) = CacheOptions::new(configure.values)? else {
        return Ok(());
    };
    options::check_places(configure.values)?;
    let can_be_purged = !options.purgers.is_empty();
    let gate = Rc::new(Gate::new(options));
    if can_be_purged {
        // Behind all rules about access, and before anybody looks for a file.
        configure.add_last(Phase::Authorize, Purge(Rc::clone(&gate)));
    }
    configure.add_first(Phase::Content, CacheLookup(Rc::clone(&gate)));
    configure.add(Phase::Store, StoreAnswer(gate));
    Ok(())
}

#[cfg(test)]
mod tests;
