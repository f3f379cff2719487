//! Looks for changed TLS files while the server runs. The process that looks sends the new contents to the
//! keeper, which passes them on to the server process.
//!
//! A changed file is read only when two looks in a row have found the same time stamps, so that certificate
//! and key are not read between two writes. When the new contents cannot be used, the old ones stay in use
//! and one line in the error log says so.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::contents::FileContent;
use super::limits;
use super::load;
use super::options::{FileKey, FileKind};
use super::store::TlsStore;
use super::tickets::TicketSecret;

/// The files of a store, with the time stamps that they had when they were read.
#[derive(Clone, Debug)]
pub struct TlsWatch {
    files: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    /// Time stamps when the files were last read.
    read: Stamps,
    /// Time stamps at the last look.
    seen: Stamps,
    /// For a certificate: the files with its OCSP response, see [`load::are_stapled`].
    staples: Vec<Option<FileKey>>,
    /// The last log line about a certificate that waits for its OCSP response, so that it is not repeated
    /// each second.
    told: Option<String>,
}

/// The result of a look.
#[derive(Debug, Default)]
pub struct TlsChange {
    /// The changed contents, for [`adopt`]; empty if nothing has changed.
    pub handed: Vec<u8>,
    /// Lines for the error log.
    pub lines: Vec<String>,
}

/// For each file: device and inode, length, mtime, ctime. `None`: the file is not there.
type Stamps = Vec<Option<[i128; 4]>>;

impl TlsWatch {
    /// The watch of a store whose files are about to be read. `staples` has an entry for each file of the
    /// store: where that is a certificate, the files with its OCSP response.
    pub(super) fn new(store: &TlsStore, staples: Vec<Vec<Option<FileKey>>>) -> TlsWatch {
        let watched = |(key, staples): (&FileKey, _)| {
            let stamps = stamps(key);
            Watched {
                read: stamps.clone(),
                seen: stamps,
                staples,
                told: None,
            }
        };
        TlsWatch {
            files: store.keys().iter().zip(staples).map(watched).collect(),
        }
    }

    /// Finds the files that have changed, and puts their new contents into `store`.
    pub fn look(&mut self, store: &TlsStore, now_s: u64) -> TlsChange {
        store.set_time(now_s);
        let mut change = TlsChange::default();
        let holders = self.files.iter().map(|watched| watched.staples.clone());
        let holders: Vec<_> = holders.collect();
        for (number, (watched, key)) in self.files.iter_mut().zip(store.keys()).enumerate() {
            let stamps = stamps(key);
            let is_still = stamps == watched.seen || key.kind == FileKind::Challenges;
            watched.seen.clone_from(&stamps);
            if stamps == watched.read || !is_still {
                continue;
            }
            let fits = match key.kind {
                FileKind::Staple => response_fits(store, &holders, key, now_s),
                _ => watched.is_stapled(key, now_s),
            };
            if let Err(why) = fits {
                // The next look tries again: certificate and OCSP response may be written one after the
                // other.
                if watched.told.as_ref() != Some(&why) {
                    change.lines.push(format!(
                        "TLS: {key} has changed, what was read before goes on: {why}"
                    ));
                    watched.told = Some(why);
                }
                continue;
            }
            watched.told = None;
            watched.read = stamps;
            take(store, number, key, &mut change);
        }
        change
    }
}

/// Gives `store` a new ticket secret when the old one is due, unless the secret comes from `ssl.stek-file`.
pub fn turn_tickets(store: &TlsStore, now_s: u64) -> TlsChange {
    store.set_time(now_s);
    let mut change = TlsChange::default();
    if store
        .keys()
        .iter()
        .any(|key| key.kind == FileKind::TicketSecret)
    {
        return change;
    }
    let before = store.secrets().pop();
    if let Err(error) = load::turn_secrets(store) {
        change
            .lines
            .push(format!("TLS: tickets go on with an old secret: {error}"));
    }
    if let Some(newest) = store.secrets().pop()
        && before.as_ref() != Some(&newest)
    {
        append(&mut change.handed, SECRET, &[newest.to_file()]);
    }
    change
}

impl Watched {
    /// Checks that a must-staple certificate in the files of `key` has its OCSP response.
    fn is_stapled(&self, key: &FileKey, now_s: u64) -> Result<(), String> {
        if self.staples.is_empty() {
            return Ok(());
        }
        let read = load::read(key).and_then(|files| FileContent::parse(key, &files));
        match read {
            Ok(FileContent::Certificates(set)) => load::are_stapled(&set, &self.staples, now_s),
            // Contents that cannot be used are logged by `take`.
            _ => Ok(()),
        }
    }
}

/// Checks that the OCSP response in the file of `key` is good for every must-staple certificate that uses it.
/// `holders` has, for each file of the store, the response files that it uses.
fn response_fits(
    store: &TlsStore,
    holders: &[Vec<Option<FileKey>>],
    key: &FileKey,
    now_s: u64,
) -> Result<(), String> {
    let key = Some(key.clone());
    for (number, staples) in holders.iter().enumerate() {
        if staples.contains(&key)
            && let Some(installed) = store.installed(number)
            && let FileContent::Certificates(set) = &installed.content
        {
            load::are_stapled(set, std::slice::from_ref(&key), now_s)?;
        }
    }
    Ok(())
}

fn take(store: &TlsStore, number: usize, key: &FileKey, change: &mut TlsChange) {
    let read = load::read(key).and_then(|files| Ok((FileContent::parse(key, &files)?, files)));
    match read {
        Ok((content, files)) => {
            let bytes: usize = files.iter().map(Vec::len).sum();
            if change.handed.len() + bytes > limits::CHANGE_BYTES_MAX {
                return change.lines.push(format!(
                    "TLS: {key} is too large to be taken without a reload"
                ));
            }
            store.install(number, content, &files);
            append(
                &mut change.handed,
                u32::try_from(number).unwrap_or(SECRET),
                &files,
            );
            if key.kind != FileKind::Challenges {
                change.lines.push(format!(
                    "TLS: {key} has changed, and counts for new connections"
                ));
            }
        }
        Err(error) => {
            let line = format!(
                "TLS: {key} has changed and cannot be used, what was read before goes on: {}",
                error.message
            );
            change.lines.push(line);
        }
    }
}

/// Puts into `store` what [`TlsWatch::look`] and [`turn_tickets`] of another process have found.
///
/// # Errors
/// The bytes do not have the form that the keeper sends.
pub fn adopt(store: &TlsStore, mut handed: &[u8]) -> io::Result<()> {
    while !handed.is_empty() {
        let (number, files) = next(&mut handed).ok_or(io::ErrorKind::InvalidData)?;
        if number == SECRET {
            let file = files.first().map(Vec::as_slice).unwrap_or_default();
            store.add_secret(TicketSecret::from_file(file).map_err(io::Error::other)?);
            continue;
        }
        let number = number as usize;
        let key = store.keys().get(number).ok_or(io::ErrorKind::InvalidData)?;
        let content =
            FileContent::parse(key, &files).map_err(|error| io::Error::other(error.message))?;
        store.install(number, content, &files);
    }
    Ok(())
}

fn append(handed: &mut Vec<u8>, number: u32, files: &[Vec<u8>]) {
    handed.extend(number.to_be_bytes());
    handed.extend((files.len() as u32).to_be_bytes());
    for file in files {
        handed.extend((file.len() as u32).to_be_bytes());
        handed.extend(file);
    }
}

fn next(handed: &mut &[u8]) -> Option<(u32, Vec<Vec<u8>>)> {
    let mut number = || {
        let (number, rest) = handed.split_first_chunk()?;
        *handed = rest;
        Some(u32::from_be_bytes(*number))
    };
    let (which, count) = (number()?, number()?);
    let mut files = Vec::new();
    for _ in 0..count {
        let (length, rest) = handed.split_first_chunk()?;
        let (file, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        files.push(file.to_vec());
        *handed = rest;
    }
    Some((which, files))
}

fn stamps(key: &FileKey) -> Stamps {
    let stamp = |path: &Path| {
        let data = fs::metadata(path).ok()?;
        let time =
            |seconds: i64, nanoseconds: i64| i128::from(seconds) << 32 | i128::from(nanoseconds);
        Some([
            i128::from(data.dev()) << 64 | i128::from(data.ino()),
            i128::from(data.size()),
            time(data.mtime(), data.mtime_nsec()),
            time(data.ctime(), data.ctime_nsec()),
        ])
    };
    let key_path = key.key_path.as_deref();
    let mut stamps = vec![stamp(key.path.as_ref())];
    stamps.extend(key_path.map(|path| stamp(path.as_ref())));
    // Rewriting a file in place does not change the time stamps of its directory, so the files count as well.
    if key.kind == FileKind::Challenges {
        let entries = fs::read_dir(&key.path).into_iter().flatten().flatten();
        let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "pem"));
        paths.sort_unstable();
        paths.truncate(2 * limits::CHALLENGES_MAX);
        stamps.extend(paths.iter().map(|path| stamp(path)));
    }
    stamps
}

/// Stands in place of a file's number: a new ticket secret follows.
const SECRET: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_challenge_that_is_written_again_in_its_place_is_seen() {
        let tree = Tree::new(&[]);
        let key = FileKey::new("ssl.acme-tls-1", &tree.path("acme")).expect("a directory");
        let missing = stamps(&key);
        fs::create_dir(tree.path("acme")).expect("made");
        let empty = stamps(&key);
        assert_ne!(missing, empty);
        tree.write("acme/a.crt.pem", "half");
        let half = stamps(&key);
        assert_ne!(empty, half);
        tree.write("acme/a.crt.pem", "all of it");
        assert_ne!(half, stamps(&key));
        assert_eq!(stamps(&key), stamps(&key));
    }
}
