//! The cost of requests and connections, counted exactly: system calls, memory, instructions.

mod command;
mod idle_connections;
mod system_calls;
mod virtual_hosts;
