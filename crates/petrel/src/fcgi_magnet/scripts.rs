//! The script cache: from a file's name to what was compiled for it.
//!
//! A script is looked at when it is asked for, but not more often than [`LOOK_EVERY`]; in between a
//! request for it makes no system call. If it is another file by then it is read and compiled again.
//! Requests that run the old one go on with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use lua::{Machine, Script, ScriptError, Stamp};
use proto::status::Status;
use rustix::fs::{Mode, OFlags, open};

use super::limits::{LOOK_EVERY, LOOKS_MAX, SCRIPT_BYTES_MAX, SETTLES_IN};

/// Where scripts may be, and when each was last looked at.
pub struct ScriptFiles {
    /// As the file system resolves it.
    root: Option<PathBuf>,
    looked: RefCell<HashMap<Vec<u8>, Look>>,
}

struct Look {
    at: Instant,
    stamp: Stamp,
}

/// Why there is no script to run.
#[derive(Debug)]
pub enum NoScript {
    /// The client is told this status, the log these words.
    Refused(Status, String),
    /// It is no Lua.
    Broken(ScriptError),
}

impl ScriptFiles {
    /// For scripts below `root`, or anywhere.
    ///
    /// # Errors
    /// `root` is no directory that can be resolved.
    pub fn new(root: Option<&Path>) -> io::Result<ScriptFiles> {
        let root = root.map(fs::canonicalize).transpose()?;
        if let Some(root) = &root
            && !root.is_dir()
        {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(ScriptFiles {
            root,
            looked: RefCell::default(),
        })
    }

    /// The script at `path`, compiled for `machine`.
    ///
    /// # Errors
    /// There is none that may be run.
    pub fn find(
        &self,
        machine: &Machine,
        path: &[u8],
        now: Instant,
    ) -> Result<Rc<Script>, NoScript> {
        if let Some(look) = self.looked.borrow().get(path)
            && now.saturating_duration_since(look.at) < LOOK_EVERY
            && let Some(script) = machine.scripts().get(path, &look.stamp)
        {
            return Ok(script);
        }
        self.look(machine, path, now)
    }

    fn look(&self, machine: &Machine, path: &[u8], now: Instant) -> Result<Rc<Script>, NoScript> {
        self.looked.borrow_mut().remove(path);
        let place = Place::open(path, self.root.as_deref())?;
        let stamp = Stamp::of(&place.metadata);
        let known = machine.scripts().get(path, &stamp);
        let script = match known {
            Some(script) => script,
            None => {
                let source = place.read()?;
                let name = String::from_utf8_lossy(path);
                let compiled = machine.compile(&name, &source).map_err(NoScript::Broken)?;
                if !is_settled(&stamp) {
                    // Its stamp may stay the same when it changes: the next request reads it again.
                    return Ok(compiled);
                }
                machine.scripts().put(path, stamp, Rc::clone(&compiled));
                compiled
            }
        };
        let mut looked = self.looked.borrow_mut();
        if looked.len() >= LOOKS_MAX {
            looked.retain(|_, look| now.saturating_duration_since(look.at) < LOOK_EVERY);
        }
        if looked.len() < LOOKS_MAX {
            looked.insert(path.to_vec(), Look { at: now, stamp });
        }
        Ok(script)
    }
}

/// A file that was found, not opened for reading yet.
struct Place {
    /// A descriptor that stands for the name only: opening a pipe or a device may have effects.
    itself: PathBuf,
    metadata: Metadata,
    path: String,
    _file: File,
}

impl Place {
    fn open(path: &[u8], root: Option<&Path>) -> Result<Place, NoScript> {
        let shown = String::from_utf8_lossy(path).into_owned();
        if !path.starts_with(b"/") {
            let words = format!("SCRIPT_FILENAME is no absolute path: \"{shown}\"");
            return Err(NoScript::Refused(Status::NOT_FOUND, words));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = open(OsStr::from_bytes(path), flags, Mode::empty())
            .map_err(|error| refused(&shown, &error.into()))?;
        let file = File::from(file);
        let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if let Some(root) = root {
            // What was opened, wherever links have led: not the name that was asked for.
            let real = fs::read_link(&itself).map_err(|error| refused(&shown, &error))?;
            if !real.starts_with(root) {
                let words = format!("{shown}: it is not below {}", root.display());
                return Err(NoScript::Refused(Status::FORBIDDEN, words));
            }
        }
        let metadata = file.metadata().map_err(|error| refused(&shown, &error))?;
        if !metadata.is_file() {
            let words = format!("{shown}: it is no file");
            return Err(NoScript::Refused(Status::FORBIDDEN, words));
        }
        Ok(Place {
            itself,
            metadata,
            path: shown,
            _file: file,
        })
    }

    fn read(&self) -> Result<Vec<u8>, NoScript> {
        let mut source = Vec::new();
        let file = File::open(&self.itself).map_err(|error| refused(&self.path, &error))?;
        let read = file.take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut source);
        read.map_err(|error| refused(&self.path, &error))?;
        match source.len() as u64 > SCRIPT_BYTES_MAX {
            true => {
                let words = format!("{}: it is longer than 4 MiB", self.path);
                Err(NoScript::Refused(Status::INTERNAL_SERVER_ERROR, words))
            }
            false => Ok(source),
        }
    }
}

fn refused(path: &str, error: &io::Error) -> NoScript {
    let status = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            Status::NOT_FOUND
        }
        io::ErrorKind::PermissionDenied => Status::FORBIDDEN,
        _ if error.raw_os_error() == Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()) => {
            Status::NOT_FOUND
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Status::FORBIDDEN
        }
        _ => Status::INTERNAL_SERVER_ERROR,
    };
    NoScript::Refused(status, format!("{path}: {error}"))
}

/// Whether a change from now on would give the file another stamp.
fn is_settled(stamp: &Stamp) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos() as i128);
    now - stamp.changed_ns > SETTLES_IN.as_nanos() as i128
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn machine() -> Rc<Machine> {
        Machine::new(lua::Options::default()).expect("a state")
    }

    fn write(path: &Path, text: &str) {
        fs::write(path, text).expect("written");
    }

    fn status(files: &ScriptFiles, path: &Path) -> u16 {
        let path = path.as_os_str().as_bytes();
        match files.find(&machine(), path, Instant::now()) {
            Err(NoScript::Refused(status, _)) => status.0,
            Err(NoScript::Broken(_)) => 500,
            Ok(_) => 200,
        }
    }

    #[test]
    fn a_script_is_compiled_once_and_again_when_it_changes() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, machine) = (home.path().join("a.lua"), machine());
        let files = ScriptFiles::new(None).expect("anywhere");
        let find = |now| {
            let found = files.find(&machine, path.as_os_str().as_bytes(), now);
            found.expect("it is there")
        };
        write(&path, "return 1");
        std::thread::sleep(SETTLES_IN * 2);
        let begin = Instant::now();
        let first = find(begin);
        assert!(Rc::ptr_eq(&first, &find(begin)));
        fs::write(&path, "return 2").expect("written");
        assert!(
            Rc::ptr_eq(&first, &find(begin + LOOK_EVERY / 2)),
            "not looked at so soon"
        );
        let second = find(begin + LOOK_EVERY);
        assert!(!Rc::ptr_eq(&first, &second));
        std::thread::sleep(SETTLES_IN * 2);
        let third = find(begin + 2 * LOOK_EVERY);
        let forth = find(begin + 2 * LOOK_EVERY + Duration::from_millis(1));
        assert!(Rc::ptr_eq(&third, &forth), "settled");
    }

    #[test]
    fn a_file_that_has_just_been_written_is_read_again() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, machine) = (home.path().join("a.lua"), machine());
        for _ in 0..1000 {
            let files = ScriptFiles::new(None).expect("anywhere");
            let now = Instant::now();
            let find = || {
                files
                    .find(&machine, path.as_os_str().as_bytes(), now)
                    .expect("there")
            };
            write(&path, "return 1");
            let first = find();
            // On a busy machine it may have settled by then.
            if now.elapsed() < SETTLES_IN {
                write(&path, "return 2");
                assert!(!Rc::ptr_eq(&first, &find()));
                return;
            }
        }
        panic!("it takes too long to find a file");
    }

    #[test]
    fn what_cannot_be_run_has_a_status() {
        let home = tempfile::tempdir().expect("a directory");
        let files = ScriptFiles::new(None).expect("anywhere");
        let at = |name: &str| home.path().join(name);
        write(&at("broken.lua"), "return return");
        symlink("loop.lua", at("loop.lua")).expect("a link");
        write(&at("long.lua"), &" ".repeat(SCRIPT_BYTES_MAX as usize + 1));
        for (name, expected) in [
            ("missing.lua", 404),
            ("", 403),
            ("broken.lua", 500),
            ("loop.lua", 403),
            ("broken.lua/x", 404),
            ("a\0b", 404),
            ("long.lua", 500),
        ] {
            assert_eq!(status(&files, &at(name)), expected, "{name}");
        }
        assert_eq!(status(&files, Path::new("relative.lua")), 404);
        assert_eq!(status(&files, Path::new("")), 404);
        assert_eq!(status(&files, Path::new("/dev/null")), 403);
    }

    #[test]
    fn a_root_is_not_left() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at("www")).expect("a directory");
        fs::create_dir(at("www2")).expect("a directory");
        for name in ["www/in.lua", "www2/out.lua", "out.lua"] {
            write(&at(name), "return 1");
        }
        symlink("../out.lua", at("www/link.lua")).expect("a link");
        symlink("in.lua", at("www/inner.lua")).expect("a link");
        symlink("www", at("way")).expect("a link");
        let files = ScriptFiles::new(Some(&at("way"))).expect("a root");
        for (name, expected) in [
            ("www/in.lua", 200),
            ("way/in.lua", 200),
            ("www/inner.lua", 200),
            ("www/link.lua", 403),
            ("www/../out.lua", 403),
            ("www2/out.lua", 403),
            ("out.lua", 403),
        ] {
            assert_eq!(status(&files, &at(name)), expected, "{name}");
        }
        assert!(ScriptFiles::new(Some(&at("missing"))).is_err());
        assert!(ScriptFiles::new(Some(&at("out.lua"))).is_err());
    }
}
