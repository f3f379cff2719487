//! Whole servers in everything that can go on at the same time: these tests mostly wait, so that several of
//! them share a core.
//!
//! A test that measures, or that another one could disturb, belongs into `exact`; one with a program that
//! others have made into `real`.

mod a_minute;
mod auth;
mod bad_input;
mod causes;
mod cml;
mod cold_files;
mod explain;
mod faults;
mod fcgi_magnet;
mod fcgi_stat_accel;
mod files;
mod gateway;
mod http;
mod lifecycle;
mod lua_api;
mod magnet;
mod metrics;
mod network_backends;
mod page_cache;
mod reload;
mod rewriting;
mod rotation;
mod serve_tls;
mod tls_config;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test has thousands of connections: the descriptors of a process do not suffice for
/// two. None begins while the result lives.
fn crowd() -> MutexGuard<'static, ()> {
    static CROWD: Mutex<()> = Mutex::new(());
    CROWD.lock().unwrap_or_else(PoisonError::into_inner)
}
