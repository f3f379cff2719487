//! The cost of requests and connections, counted exactly: system calls, memory, instructions.

mod budget;
mod command;
mod idle_connections;
#[path = "../routes/mod.rs"]
#[expect(dead_code, reason = "allocations are counted by another program")]
mod routes;
mod system_calls;
mod virtual_hosts;
