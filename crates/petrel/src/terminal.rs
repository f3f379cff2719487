//! Output to the user who started the program, on standard output and standard error.
//!
//! Output that cannot be written, because the disk is full or the reader has gone, is lost. `println!` and
//! `eprintln!` would panic instead.

use std::fmt;
use std::io::{self, Write};

/// Writes a line to standard output.
pub(crate) fn say(words: fmt::Arguments<'_>) {
    write_line(io::stdout(), words);
}

/// Writes a line to standard error.
pub(crate) fn complain(words: fmt::Arguments<'_>) {
    write_line(io::stderr(), words);
}

fn write_line(mut output: impl Write, words: fmt::Arguments<'_>) {
    // In one write, so that the line is not mixed with those of other processes.
    let _ = output.write_all(format!("{words}\n").as_bytes());
}

/// Writes a text to standard output. Returns an exit code.
pub(crate) fn print(text: &[u8]) -> u8 {
    match io::stdout().write_all(text) {
        Ok(()) => 0,
        Err(_) => EXIT_FAILURE,
    }
}

/// Reports a fatal error on standard error. Returns the exit code.
pub(crate) fn fail(message: &str) -> u8 {
    complain(format_args!("petrel: {message}"));
    EXIT_FAILURE
}

/// lighttpd's exit code for everything that keeps it from starting.
pub(crate) const EXIT_FAILURE: u8 = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_in_one_piece_or_not_at_all() {
        struct Pieces(Vec<Vec<u8>>);
        impl Write for &mut Pieces {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                match self.0.len() {
                    1 => Ok(bytes.len()),
                    _ => Err(io::ErrorKind::StorageFull.into()),
                }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut pieces = Pieces(Vec::new());
        write_line(&mut pieces, format_args!("{} and {}", 1, 2));
        write_line(&mut pieces, format_args!("lost"));
        assert_eq!(pieces.0, [&b"1 and 2\n"[..], b"lost\n"]);
    }
}
