//! The files on a disk: their number, lengths, names and contents.
//!
//! A file names itself: at its start and at every [`MARK_EVERY`] bytes there is a line with its path and the
//! offset of the line; everything else is zeros. So a client can tell any piece of any file from all others,
//! and the disk has to store next to nothing. Knows nothing of disks.

use std::fmt::Write as _;

/// The distance between the lines in which a file names itself. It is a multiple of every page size, and less
/// than the shortest relevant read-ahead.
pub const MARK_EVERY: u64 = 32 * 1024;
/// Small files in a directory.
const SMALL_PER_DIRECTORY: u32 = 100;
/// Large files in a directory: few, so that directories spread them over the disk.
const LARGE_PER_DIRECTORY: u32 = 3;

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Files that a benchmark fetches once, each with a seek.
    pub small_files: u32,
    /// The length of each.
    pub small_bytes: u64,
    /// Files that are read in sequence.
    pub large_files: u32,
    /// The length of each.
    pub large_bytes: u64,
    /// Files that are requested repeatedly.
    pub hot_files: u32,
    /// The length of each.
    pub hot_bytes: u64,
    /// The seed of the rotation.
    pub seed: u64,
}

impl Plan {
    /// The disk of the published numbers: 13 GB.
    pub fn published() -> Self {
        Self {
            small_files: 100_000,
            small_bytes: 100_000,
            large_files: 300,
            large_bytes: 10_000_000,
            hot_files: 100,
            hot_bytes: 4096,
            seed: 1,
        }
    }

    /// A disk for tests: 60 MB.
    pub fn tiny() -> Self {
        Self {
            small_files: 400,
            large_files: 2,
            hot_files: 4,
            ..Self::published()
        }
    }

    /// URL path of a small file, below the root; `n` counts from zero and wraps round.
    pub fn small(&self, n: u32) -> String {
        let n = n.checked_rem(self.small_files).unwrap_or(0);
        let (directory, file) = (n / SMALL_PER_DIRECTORY, n % SMALL_PER_DIRECTORY);
        format!("/s{directory:04}/{file:02}.bin")
    }

    /// URL path of a large file, below the root; `n` counts from zero and wraps round.
    pub fn large(&self, n: u32) -> String {
        let n = n.checked_rem(self.large_files).unwrap_or(0);
        let (directory, file) = (n / LARGE_PER_DIRECTORY, n % LARGE_PER_DIRECTORY);
        format!("/l{directory:04}/{file}.bin")
    }

    /// URL path of a hot file, below the root; `n` counts from zero and wraps round.
    pub fn hot(&self, n: u32) -> String {
        let n = n.checked_rem(self.hot_files).unwrap_or(0);
        format!("/hot/{n:03}.bin")
    }

    /// All files, in the order of their directories.
    pub fn files(&self) -> impl Iterator<Item = Expected> + '_ {
        let small = (0..self.small_files).map(|n| (self.small(n), self.small_bytes));
        let large = (0..self.large_files).map(|n| (self.large(n), self.large_bytes));
        let hot = (0..self.hot_files).map(|n| (self.hot(n), self.hot_bytes));
        let all = hot.chain(large).chain(small);
        all.map(|(path, bytes)| Expected { path, bytes })
    }

    /// What a client must get for a path of [`Self::small`], [`Self::large`] or [`Self::hot`].
    pub fn expected(&self, path: &str) -> Option<Expected> {
        let bytes = match path.as_bytes().get(1)? {
            b's' => self.small_bytes,
            b'l' => self.large_bytes,
            _ => self.hot_bytes,
        };
        let path = path.to_owned();
        Some(Expected { path, bytes })
    }
}

/// A file on the disk, and what a client must receive for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// URL path below the root.
    pub path: String,
    /// The length.
    pub bytes: u64,
}

impl Expected {
    /// The file's marks: their offsets and lines.
    pub fn marks(&self) -> impl Iterator<Item = (u64, String)> + '_ {
        (0..self.bytes)
            .step_by(MARK_EVERY as usize)
            .map(|offset| (offset, self.mark(offset)))
    }

    /// Whether a piece of the body is correct: it lies within the file, and contains the file's marks. The
    /// zeros in between are not checked, because the client has other work.
    pub fn matches(&self, offset: u64, piece: &[u8]) -> bool {
        let end = offset + piece.len() as u64;
        let first = offset / MARK_EVERY * MARK_EVERY;
        let mut marks = (first..end).step_by(MARK_EVERY as usize);
        end <= self.bytes && marks.all(|mark| self.has_mark(mark, offset, piece))
    }

    /// Whether the piece at `offset` agrees with the mark at `mark`, as far as it contains that.
    fn has_mark(&self, mark: u64, offset: u64, piece: &[u8]) -> bool {
        let line = self.mark(mark);
        let skipped = offset.saturating_sub(mark).min(line.len() as u64) as usize;
        let from = mark.saturating_sub(offset) as usize;
        let wanted = line.as_bytes().get(skipped..).unwrap_or_default();
        let found = piece.get(from..).unwrap_or_default();
        let common = wanted.len().min(found.len());
        wanted.get(..common) == found.get(..common)
    }

    /// The line at `offset`, cut at the end of the file.
    fn mark(&self, offset: u64) -> String {
        let mut line = self.path.clone();
        // Writing to a string cannot fail.
        let _ = writeln!(line, " {offset}");
        line.truncate((self.bytes - offset).min(line.len() as u64) as usize);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn body(file: &Expected) -> Vec<u8> {
        let mut body = vec![0; file.bytes as usize];
        for (offset, line) in file.marks() {
            let at = offset as usize;
            body[at..at + line.len()].copy_from_slice(line.as_bytes());
        }
        body
    }

    #[test]
    fn every_file_has_a_path_of_its_own() {
        let plan = Plan::tiny();
        let paths: HashSet<_> = plan.files().map(|file| file.path).collect();
        assert_eq!(paths.len(), 406);
        assert!(paths.contains("/s0003/99.bin") && paths.contains("/hot/003.bin"));
        assert_eq!(plan.small(400), plan.small(0));
    }

    #[test]
    fn a_body_is_right_however_it_is_cut() {
        let plan = Plan::tiny();
        let file = plan.expected(&plan.small(7)).expect("a small file");
        let body = body(&file);
        for length in [1, 5, 4096, 32 * 1024, 99_999] {
            let mut offset = 0;
            for piece in body.chunks(length) {
                assert!(file.matches(offset, piece), "{length} at {offset}");
                offset += piece.len() as u64;
            }
        }
    }

    #[test]
    fn another_file_another_offset_and_too_much_are_wrong() {
        let plan = Plan::tiny();
        let file = plan.expected(&plan.small(7)).expect("a small file");
        let other = plan.expected(&plan.small(8)).expect("a small file");
        let mut bytes = body(&file);
        assert!(!other.matches(0, &bytes));
        assert!(!file.matches(0, &bytes[1..]));
        assert!(!file.matches(MARK_EVERY, &bytes[..4096]));
        assert!(!file.matches(0, &vec![0; 4096]));
        bytes.push(0);
        assert!(!file.matches(0, &bytes));
    }

    #[test]
    fn a_mark_never_makes_a_file_longer() {
        let short = Expected {
            path: "/hot/001.bin".to_owned(),
            bytes: MARK_EVERY + 3,
        };
        assert!(body(&short).ends_with(b"/ho") && short.matches(0, &body(&short)));
    }
}
