//! What is said to whoever has started the program, on standard output and standard error.
//!
//! Nobody has to listen. What cannot be written, because the disk is full or the reader has gone, is lost, where
//! `println!` and `eprintln!` would end the program.

use std::fmt;
use std::io::{self, Write};

/// A line on standard output.
pub(crate) fn say(words: fmt::Arguments<'_>) {
    write_line(io::stdout(), words);
}

/// A line on standard error.
pub(crate) fn complain(words: fmt::Arguments<'_>) {
    write_line(io::stderr(), words);
}

fn write_line(mut output: impl Write, words: fmt::Arguments<'_>) {
    // In one piece, so that it stays whole among those of others.
    let _ = output.write_all(format!("{words}\n").as_bytes());
}

/// A text on standard output. The answer is an exit code.
pub(crate) fn print(text: &[u8]) -> u8 {
    match io::stdout().write_all(text) {
        Ok(()) => 0,
        Err(_) => EXIT_FAILURE,
    }
}

/// A message about what keeps the program from going on. The answer is its exit code.
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
