//! mod_page_cache: stores answers of backends and scripts, and sends them again (RFC 9111, RFC 5861).
//!
//! [`lookup`] runs after everything that protects a URL, and before all modules that answer. It makes a
//! [`key`], and looks in the worker's own table ([`front`]) and in the memory of all workers ([`memory`]).
//! Then it answers ([`answer`]), or sends the request on, or lets it wait for another request that fetches
//! the same page ([`flight`], [`wait`]). [`store`] sees the answer of a backend before scripts do; [`policy`]
//! decides whether it may be stored. [`refresh`] fetches stale pages in the background, [`purge`] removes
//! stored pages. A page that is not in memory may be in a file ([`disk`]) or in a store that several machines
//! share ([`second_tier`]), in both as a [`blob`](petrel_engine::proto::stored_page::blob); [`below`] looks there. [`fragments`] are parts of pages
//! that scripts store.
//!
//! The cache knows no backend and no socket. It never stores what belongs to one client (answers that set
//! cookies, are private, or went to a client whose identity is known), unless the configuration says so.

pub mod answer;
mod below;
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
    doc: "Stores answers of backends and scripts, and sends them again as long as they are fresh.",
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
        // After all access rules, and before any module looks for a file.
        configure.add_last(Phase::Authorize, Purge(Rc::clone(&gate)));
    }
    // What is stored, what is too large for that, and when a stale page is better, is known at the end of a reply.
    configure.want_whole_replies();
    configure.add_first(Phase::Content, CacheLookup(Rc::clone(&gate)));
    configure.add(Phase::Store, StoreAnswer(gate));
    Ok(())
}

#[cfg(test)]
mod tests;
