//! The engine: worker, listener, connection, exchange, phases, file cache, ledger.
//!
//! A worker is a thread with its own runtime. On the request path, workers share nothing but the counters in
//! [`shared`]. [`server::Server`] starts the workers. The engine knows no module by name; modules come in as
//! [`module::ModuleSpec`] tables.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod beneath;
pub mod blocking;
pub mod body;
pub mod cause;
mod change;
pub mod clock;
mod connection;
mod deadlines;
mod error_page;
pub mod exchange;
pub(crate) mod file_accounts;
pub mod file_cache;
pub mod file_report;
pub mod handed;
pub mod http2_counters;
pub mod io_counters;
pub mod ledger;
pub mod limits;
pub mod listener;
pub mod log;
mod map;
pub mod metrics;
pub mod mounts;
pub mod network_backend;
pub mod offline;
pub mod pace;
pub mod paths;
pub mod phase;
mod processor;
pub mod ranges;
pub mod recorder;
pub mod request_id;
pub mod response;
mod run;
pub mod server;
pub mod shared;
pub mod socket;
pub mod subrequest;
pub mod system_calls;
#[doc(hidden)]
pub mod testing;
pub mod throttle;
pub mod tls;
mod trace;
mod transport;
pub mod turn;
pub mod waits;

pub use exchange::{Exchange, cold_files, module, settings, worker};
pub use petrel_config as config;
pub use petrel_proto as proto;
pub use rustls;
