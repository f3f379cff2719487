//! Settings of the process (placeholder while its owner writes it).
#![allow(missing_docs)]
use crate::file_cache::StatCacheEngine;
use crate::network_backend::NetworkBackend;
use petrel_proto::{http1::HeadOptions, url::UrlOptions};
pub struct ProcessSettings {
    pub workers: usize,
    pub max_connections: usize,
    pub head_options: HeadOptions,
    pub url_options: UrlOptions,
    pub network_backend: NetworkBackend,
    pub stat_cache_engine: StatCacheEngine,
    pub path_info: bool,
    pub absolute_dir_redirect: bool,
}
impl ProcessSettings {
    /// Descriptors a worker's file cache may hold.
    pub fn cached_descriptors_max(&self) -> usize { 10000 }
}
