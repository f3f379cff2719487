//! The directives of mod_cml as typed options.

use std::rc::Rc;

use petrel_engine::config::Diagnostic;
use petrel_engine::settings::Values;
use petrel_engine::settings::core::absolute_root;

use super::memcache::MemcacheServers;
use crate::lua;

/// The options that apply to a request.
pub(super) struct CmlOptions {
    /// The options of the Lua states.
    pub(crate) lua: lua::LuaOptions,
    /// The suffix of scripts.
    pub(crate) extension: Option<Box<[u8]>>,
    /// The path of the script that runs for every request.
    pub(crate) power_magnet: Option<Box<[u8]>>,
    /// Directories, besides the document root, that files of pages may be in.
    pub(crate) include_directories: Vec<Rc<[u8]>>,
    /// `server.document-root`, if it was configured with a slash at its end: scripts append names to it.
    pub(crate) root_with_slash: Option<Rc<[u8]>>,
    /// The memcached servers for scripts.
    pub(crate) memcache: Option<MemcacheServers>,
}

impl CmlOptions {
    /// Reads the directives.
    ///
    /// # Errors
    /// A value is invalid.
    pub(crate) fn read(values: &Values<'_>) -> Result<CmlOptions, Diagnostic> {
        let directories = values.strings("cml.include-directories");
        if let Some(empty) = directories.iter().find(|path| !path.starts_with('/')) {
            let message = format!("{empty:?} is no absolute path of a directory");
            return Err(values.error("cml.include-directories", message));
        }
        let extension = values.string("cml.extension");
        let power_magnet = values.string("cml.power-magnet");
        Ok(CmlOptions {
            lua: lua::LuaOptions::read(values)?,
            extension: extension.map(|text| text.as_bytes().into()),
            power_magnet: power_magnet.map(|path| absolute_root(path).to_vec().into()),
            include_directories: directories.into_iter().map(absolute_root).collect(),
            root_with_slash: values
                .string("server.document-root")
                .filter(|root| root.ends_with('/'))
                .map(absolute_root),
            memcache: MemcacheServers::read(values)?,
        })
    }
}
