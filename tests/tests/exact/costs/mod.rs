//! The cost of requests and connections, counted exactly: system calls, memory, instructions.

mod budget;
mod cml;
mod command;
mod fcgi_magnet;
mod idle_connections;
mod magnet;
mod page_cache;
mod scripts;
mod slow_clients;
mod system_calls;
mod virtual_hosts;
