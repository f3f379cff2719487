//! Standard input, output and error of a process without a terminal.

use std::fs::File;
use std::io;

/// Redirects all three to /dev/null.
///
/// # Errors
/// /dev/null cannot be opened.
pub(crate) fn let_go() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
