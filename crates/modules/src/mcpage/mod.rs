//! mod_mcpage: sends pages straight from memcached, stored under their URLs (lighttpd 1.5).
//!
//! A page is put into memcached by the application, or by this module, which stores answers of backends. It
//! is looked up after the rules about its URL have let the request through ([`lookup`]), and sent after those
//! about its file have, too. [`store`] decides what may be stored; [`value`] is the format. If memcached is
//! unreachable, pages are slower, and nothing else changes.
//!
//! The cache of [`crate::page_cache`] can do more: it knows lifetimes, variants and revalidation. This module
//! is for applications that put their pages into memcached themselves, and for existing configurations.

mod gunzip;
mod key;
mod lookup;
mod options;
mod page;
mod servers;
mod store;
#[cfg(test)]
mod tests;
mod value;

use std::rc::Rc;

use petrel_engine::config::Diagnostic;
use petrel_engine::config::Effect::{Accepted, Works};
use petrel_engine::module::{Configure, Loaded, ModuleSpec, Phase};

use lookup::{PageLookup, SendPage};
use options::McpageOptions;
use servers::Servers;
use store::PageStore;

/// mod_mcpage.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_mcpage",
    doc: "Sends pages from memcached, and stores answers of backends there (lighttpd 1.5).",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "mcpage.enable", Bool, Request, "disable", Works,
            "Looks pages up in memcached for GET and HEAD. The key is the URL with scheme and host: http://www.example.org/path?query.";
        "mcpage.memcached-hosts", List, Request, "()", Works,
            "The memcached servers, as host, host:port or unix:/path.";
        "mcpage.memcached-namespace", String, Request, "unset", Works,
            "A prefix of keys on the servers. It has no influence on which server has a key.";
        "mcpage.memcached-keyprefix", String, Request, "unset", Works,
            "A prefix of keys. It is part of what chooses the server.";
        "mcpage.memcached-hashing", String, Request, "one_at_a_time", Works,
            "The hash that distributes keys among servers, under libmemcached's name: default (one_at_a_time), md5, crc, fnv1_64, fnv1a_64, fnv1_32, fnv1a_32, jenkins, murmur.";
        "mcpage.memcached-behavior", String, Request, "modula", Works,
            "How keys are distributed among servers: modula, consistent, ketama or ketama_weighted.";
        "mcpage.memcached-expire", Short, Request, "0", Works,
            "For how many seconds a page is stored. 0: as long as there is room. If the backend allows less, that counts.";
        "mcpage.memcached-minsize", Short, Request, "0", Works,
            "The smallest page that is stored, in KiB.";
        "mcpage.memcached-noblock", Bool, Request, "disable", Accepted("a worker never waits for memcached, nor does a client for a page being stored"),
            "Does not wait for memcached.";
        "mcpage.memcached-put", Bool, Request, "enable", Works,
            "Stores missing pages: answers of backends with status 200 to requests without Cookie and Authorization, unless they set a cookie, depend on other fields (Vary), or forbid it with Cache-Control or Expires.";
        "mcpage.memcached-binary", Bool, Request, "disable", Works,
            "Speaks memcached's binary protocol.";
        "mcpage.md5", Bool, Request, "disable", Works,
            "Uses the MD5 sum of each key, in hexadecimal. Keys of more than 250 bytes are always replaced by it.";
        "mcpage.announce", Bool, Request, "enable", Works,
            "Adds \"X-Served-by-memcached: yes\" to pages from memcached.";
        "mcpage.localmc-enable", Bool, Request, "disable", Works,
            "Asks a memcached on this machine first. Pages from the other servers are stored on it.";
        "mcpage.localmc-expire", Short, Request, "0", Works,
            "For how many seconds a page is stored on it. 0: as long as there is room.";
        "mcpage.localmc-addr", String, Request, "127.0.0.1:11211", Works,
            "Its address.";
        "mcpage.localmc-socket", String, Request, "unset", Works,
            "Its unix socket, instead of its address.";
        "mcpage.debug", Bool, Request, "disable", Works,
            "Logs which pages were found and stored.";
        "mcpage.debug-verbose", Bool, Request, "disable", Works,
            "Also logs why a page was not looked up or not stored.";
        "mcpage.memcached-debug", Bool, Request, "disable", Accepted("there is no libmemcached to trace; its errors are logged and its operations counted in any case"),
            "Debug lines about memcached.";
        "mcpage.zlib-debug", Bool, Request, "disable", Accepted("a page that cannot be decompressed is logged in any case"),
            "Debug lines about decompression.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let Some(options) = McpageOptions::read(configure.values)? else {
        return Ok(());
    };
    let stores = options.puts;
    let servers = Rc::new(Servers::new(options));
    // After the rules about the URL, and before any module looks for a file: there may be none.
    configure.add_last(Phase::Map, PageLookup(Rc::clone(&servers)));
    // After the rules about the file.
    configure.add_first(Phase::Content, SendPage(Rc::clone(&servers)));
    if stores {
        configure.want_whole_replies();
        configure.add(Phase::Store, PageStore(servers));
    }
    Ok(())
}
