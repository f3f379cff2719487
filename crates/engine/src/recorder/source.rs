//! Where a [recording](petrel_proto::recording) is read from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Acquire;

use petrel_proto::recording::Source;
use petrel_sys::shared_memory::Words;

/// The memory's file, in a program that has the descriptor.
pub struct FileSource<'a>(pub &'a File);

impl Source for FileSource<'_> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()> {
        let mut bytes = [0; 64 * 1024];
        let mut position = at as u64 * 8;
        for part in into.chunks_mut(bytes.len() / 8) {
            let bytes = &mut bytes[..part.len() * 8];
            self.0.read_exact_at(bytes, position)?;
            position += bytes.len() as u64;
            for (word, bytes) in part.iter_mut().zip(bytes.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }
}

/// The memory itself, in a process that has it.
pub(crate) struct WordsSource<'a>(pub(crate) &'a Words);

impl Source for WordsSource<'_> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64 * 8)
    }

    fn read(&self, at: usize, into: &mut [u64]) -> io::Result<()> {
        let words = at
            .checked_add(into.len())
            .and_then(|end| self.0.get(at..end));
        let words = words.ok_or(io::ErrorKind::UnexpectedEof)?;
        for (into, word) in into.iter_mut().zip(words) {
            // What is read later is not older: a reader looks again at what tells whether a record is whole.
            *into = word.load(Acquire);
        }
        Ok(())
    }
}
