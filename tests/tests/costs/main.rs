//! What a request and a connection may cost, counted exactly: system calls, memory, instructions.

mod idle_connections;
mod system_calls;
mod virtual_hosts;
