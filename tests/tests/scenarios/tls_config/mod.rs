//! TLS as `ssl.*` configures it, with curl and openssl s_client.

mod authenticated;
mod certificates;
mod clients;
mod files;
mod hanging;
mod hosts;
mod other_host;
mod pki;
