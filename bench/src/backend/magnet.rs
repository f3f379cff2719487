//! `petrel fcgi-magnet`: runs Lua scripts of the document root by FastCGI.

use super::Address;
use crate::peers::Program;
use std::path::Path;
use std::process::{Command, Stdio};

/// The command that runs it in the foreground.
pub fn command(petrel: Option<&Path>, address: &Address) -> Result<Command, String> {
    let Address::Unix(socket) = address else {
        return Err("fcgi-magnet is asked through a unix socket".to_owned());
    };
    let mut command = Command::new(Program::Petrel.find(petrel)?);
    command.arg("fcgi-magnet").arg("--socket").arg(socket);
    // The servers run as several users, and all of them must be able to connect.
    command.args(["--mode", "0666"]);
    command.stdin(Stdio::null());
    Ok(command)
}
