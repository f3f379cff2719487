//! `petrel fcgi-magnet`: Lua scripts of the document root by FastCGI.

use super::Address;
use crate::peers::Program;
use std::path::Path;
use std::process::{Command, Stdio};

/// The command that serves it in the foreground.
pub fn command(petrel: Option<&Path>, address: &Address) -> Result<Command, String> {
    let Address::Unix(socket) = address else {
        return Err("fcgi-magnet is asked through a unix socket".to_owned());
    };
    let mut command = Command::new(Program::Petrel.find(petrel)?);
    command.arg("fcgi-magnet").arg("--socket").arg(socket);
    // Servers run as several users.
    command.args(["--mode", "0666"]);
    command.stdin(Stdio::null());
    Ok(command)
}
