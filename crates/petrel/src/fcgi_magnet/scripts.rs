//! The script cache: maps a file's name to its compiled script.
//!
//! When a request asks for a script, its file is checked for changes, but at most once per [`LOOK_EVERY`]; in
//! between a request for it makes no system call. A changed file is read and compiled again. Requests that
//! run the old script continue with it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use lua::{Machine, Script, ScriptError, Scripts, Stamp};
use proto::status::Status;
use rustix::fs::{Mode, OFlags, open};

use super::limits::{LOOK_EVERY, SCRIPT_BYTES_MAX, SETTLES_IN};

/// Finds scripts, below the root if there is one.
pub(crate) struct ScriptFiles {
    /// The root with its symbolic links resolved.
    root: Option<PathBuf>,
}

/// The scripts that one Lua state has compiled.
pub(crate) type LoadedScripts = Scripts<SeenFile>;

/// What the last check of a script's file saw.
pub(crate) struct SeenFile {
    /// When the file was last checked.
    at: Cell<Instant>,
    stamp: Stamp,
}

/// Why there is no script to run.
#[derive(Debug)]
pub(crate) enum NoScript {
    /// The status for the client and the reason for the log.
    Refused(Status, String),
    /// The file is not valid Lua.
    Broken(ScriptError),
}

impl ScriptFiles {
    /// Finds scripts below `root`, or anywhere if it is `None`.
    ///
    /// # Errors
    /// `root` does not exist or is no directory.
    pub(crate) fn new(root: Option<&Path>) -> io::Result<ScriptFiles> {
        let root = root.map(fs::canonicalize).transpose()?;
        if let Some(root) = &root
            && !root.is_dir()
        {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(ScriptFiles { root })
    }

    /// The script at `path`, compiled for `machine`. `loaded` holds the scripts that this machine has
    /// compiled.
    ///
    /// # Errors
    /// There is no such script, or it may not be run.
    pub(crate) fn find(
        &self,
        machine: &Machine,
        loaded: &LoadedScripts,
        path: &[u8],
        now: Instant,
    ) -> Result<Rc<Script>, NoScript> {
        let is_recent = |look: &SeenFile| now.saturating_duration_since(look.at.get()) < LOOK_EVERY;
        if let Some(script) = loaded.get(path, is_recent) {
            return Ok(script);
        }
        let place = ScriptFile::open(path, self.root.as_deref())?;
        let stamp = Stamp::of(&place.metadata);
        let is_same = |look: &SeenFile| {
            let is_same = look.stamp == stamp;
            if is_same {
                look.at.set(now);
            }
            is_same
        };
        if let Some(script) = loaded.get(path, is_same) {
            return Ok(script);
        }
        let source = place.read()?;
        let name = String::from_utf8_lossy(path);
        let script = machine.compile(&name, &source).map_err(NoScript::Broken)?;
        // If a change might leave the stamp as it is, the script is not cached, so that the next request
        // reads the file again.
        if is_settled(&stamp) {
            let at = Cell::new(now);
            loaded.put(path, SeenFile { at, stamp }, Rc::clone(&script));
        }
        Ok(script)
    }
}

/// A script's file that was found but not opened for reading yet.
struct ScriptFile {
    /// The path /proc/self/fd/N of a descriptor opened with O_PATH. Opening a pipe or a device for reading
    /// could have effects.
    itself: PathBuf,
    metadata: Metadata,
    path: String,
    _file: File,
}

impl ScriptFile {
    fn open(path: &[u8], root: Option<&Path>) -> Result<ScriptFile, NoScript> {
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
            // The path of the file that was actually opened, with all links resolved, not the path that was
            // asked for.
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
        Ok(ScriptFile {
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

/// Whether any later change of the file would give it another stamp.
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
        Machine::new(lua::MachineOptions::default()).expect("a state")
    }

    fn write(path: &Path, text: &str) {
        fs::write(path, text).expect("written");
    }

    fn status(files: &ScriptFiles, path: &Path) -> u16 {
        let path = path.as_os_str().as_bytes();
        match files.find(&machine(), &LoadedScripts::default(), path, Instant::now()) {
            Err(NoScript::Refused(status, _)) => status.0,
            Err(NoScript::Broken(_)) => 500,
            Ok(_) => 200,
        }
    }

    #[test]
    fn a_script_is_compiled_once_and_again_when_it_changes() {
        let home = tempfile::tempdir().expect("a directory");
        let (path, machine) = (home.path().join("a.lua"), machine());
        let (files, loaded) = (
            ScriptFiles::new(None).expect("anywhere"),
            LoadedScripts::default(),
        );
        let find = |now| {
            let found = files.find(&machine, &loaded, path.as_os_str().as_bytes(), now);
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
            let (files, loaded) = (
                ScriptFiles::new(None).expect("anywhere"),
                LoadedScripts::default(),
            );
            let now = Instant::now();
            let find = || {
                files
                    .find(&machine, &loaded, path.as_os_str().as_bytes(), now)
                    .expect("there")
            };
            write(&path, "return 1");
            let first = find();
            // On a busy machine more time than that may have passed already; then there is nothing to test.
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
