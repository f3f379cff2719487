//! Tests of the whole program: it is started as a process, on a free port, in a directory of its own. Tests
//! that need root print that they are skipped when there is none.

mod backends;
mod commands;
mod explain;
mod harness;
mod life;
mod lua_command;
mod privileges;
mod reload;
mod spawn;
