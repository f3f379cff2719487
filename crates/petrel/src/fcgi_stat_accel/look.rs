//! What a disk thread does for a request: it opens the file, calls stat() on it and reads its beginning.
//! After that the inode and the first bytes are in the kernel's caches, and the web server does not wait for
//! the disk.
//!
//! Blocks for as long as the disk takes, so only disk threads call it.

use std::os::fd::OwnedFd;

use engine::beneath::open_beneath;
use engine::file_cache::{Symlinks, open_directory_place};
use proto::status::Status;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, pread, retry_on_intr};

use super::Refusal;
use super::limits::READ_BYTES;
use super::target::{Target, shown};

/// Opens the file and reads up to `read_ahead` bytes of it.
///
/// # Errors
/// The file does not exist, may not be read, is no regular file, or the disk fails.
pub(crate) fn look(target: &Target, read_ahead: u64) -> Result<(), Refusal> {
    read_beginning(target, read_ahead).map(drop)
}

/// Reads the beginning of the file. Returns the last piece of it, for tests.
fn read_beginning(target: &Target, read_ahead: u64) -> Result<Vec<u8>, Refusal> {
    let failed = |stage| move |error| refusal(stage, error, target);
    let root_path = match &*target.root {
        b"" => b"/",
        path => path,
    };
    let root = retry_on_intr(|| open_directory_place(root_path, Symlinks::Follow))
        .map_err(failed("open of the document root"))?;
    let open = |flags| {
        retry_on_intr(|| {
            open_beneath(
                &root,
                &target.root,
                &target.relative,
                flags | OFlags::CLOEXEC,
            )
        })
    };
    // O_PATH first, to see what it is: opening a device can have effects.
    let place = open(OFlags::PATH).map_err(failed("open"))?;
    check_regular(&place, target)?;
    let file = open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed("open"))?;
    // The path may lead to another file by now, so this one is checked again.
    let size = check_regular(&file, target)?;
    read(&file, size.min(read_ahead)).map_err(failed("read"))
}

/// The size of a regular file.
fn check_regular(file: &OwnedFd, target: &Target) -> Result<u64, Refusal> {
    let stat = fstat(file).map_err(|error| refusal("stat", error, target))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        _ => Err(Refusal::silent(Status::FORBIDDEN)),
    }
}

/// Reads the first `length` bytes, or fewer if the file has become shorter.
fn read(file: &OwnedFd, length: u64) -> Result<Vec<u8>, Errno> {
    let (mut buffer, mut offset) = (Vec::new(), 0);
    while offset < length {
        let step = usize::try_from(length - offset).unwrap_or(READ_BYTES);
        buffer.resize(step.min(READ_BYTES), 0);
        match retry_on_intr(|| pread(file, &mut *buffer, offset))? {
            0 => break,
            count => offset = offset.saturating_add(u64::try_from(count).unwrap_or(u64::MAX)),
        }
    }
    Ok(buffer)
}

/// Translates an error of the kernel into a status for the client and a line for the log.
fn refusal(stage: &str, error: Errno, target: &Target) -> Refusal {
    let words = |what: &str| format!("{stage}: {what}: {}", shown(&target.path()));
    let status = match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {
            return Refusal::silent(Status::NOT_FOUND);
        }
        Errno::XDEV => {
            let words = words("it leads out of the document root");
            return Refusal::new(Status::FORBIDDEN, words);
        }
        Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NXIO | Errno::ISDIR => Status::FORBIDDEN,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => Status::SERVICE_UNAVAILABLE,
        Errno::TIMEDOUT => Status::GATEWAY_TIMEOUT,
        _ => Status::INTERNAL_SERVER_ERROR,
    };
    Refusal::new(status, words(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use rustix::fs::{CWD, Mode};

    use super::*;

    const READ_AHEAD: u64 = 300_000;

    fn looked(root: &Path, relative: &[u8]) -> Result<Vec<u8>, Refusal> {
        let target = Target {
            root: root.as_os_str().as_bytes().into(),
            relative: relative.into(),
        };
        read_beginning(&target, READ_AHEAD)
    }

    fn status(root: &Path, relative: &str) -> u16 {
        match looked(root, relative.as_bytes()) {
            Ok(_) => 200,
            Err(refusal) => refusal.status.0,
        }
    }

    #[test]
    fn the_beginning_of_a_file_is_read() {
        let home = tempfile::tempdir().expect("a directory");
        let text = [&[b'a'; 2 * READ_BYTES][..], &[b'b'; READ_BYTES]].concat();
        fs::write(home.path().join("long"), &text).expect("written");
        let end = looked(home.path(), b"long").expect("it is there");
        // The last read: the remainder of 300,000 after two full ones.
        assert_eq!(end, vec![b'b'; 300_000 - 2 * READ_BYTES]);
        fs::write(home.path().join("short"), "abc").expect("written");
        assert_eq!(looked(home.path(), b"short").expect("it is there"), b"abc");
        fs::write(home.path().join("empty"), "").expect("written");
        assert_eq!(looked(home.path(), b"empty").expect("it is there"), b"");
        let odd = b"a b%20\xff\n'\"";
        fs::write(home.path().join(OsStr::from_bytes(odd)), "odd").expect("written");
        assert_eq!(looked(home.path(), odd).expect("it is there"), b"odd");
    }

    #[test]
    fn what_is_no_file_has_a_status() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "x").expect("written");
        fs::create_dir(at("directory")).expect("made");
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        symlink("loop", at("loop")).expect("made");
        symlink("nowhere", at("dangling")).expect("made");
        for (name, expected) in [
            ("file", 200),
            ("missing", 404),
            ("file/below", 404),
            ("dangling", 404),
            ("directory", 403),
            ("fifo", 403),
            ("socket", 403),
            ("loop", 403),
        ] {
            assert_eq!(status(home.path(), name), expected, "{name}");
        }
        assert_eq!(status(home.path(), &"n".repeat(300)), 404);
        assert_eq!(status(&at("gone"), "file"), 404);
        assert_eq!(status(&at("file"), "file"), 404);
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o0)).expect("set");
        if !nix::unistd::geteuid().is_root() {
            assert_eq!(status(home.path(), "file"), 403);
        }
    }

    #[test]
    fn symlinks_do_not_lead_out() {
        let home = tempfile::tempdir().expect("a directory");
        let root = home.path().join("root");
        fs::create_dir_all(root.join("sub")).expect("made");
        fs::write(root.join("sub/file"), "x").expect("written");
        fs::write(home.path().join("secret"), "x").expect("written");
        let here = std::process::id();
        for (name, target, expected) in [
            ("inside", "sub/file".into(), 200),
            ("up", "sub/../sub/file".into(), 200),
            ("absolute", root.join("sub/file").display().to_string(), 200),
            ("out", "../secret".into(), 403),
            (
                "out-absolute",
                home.path().join("secret").display().to_string(),
                403,
            ),
            ("proc", "/proc/self/root".into(), 403),
        ] {
            symlink(&target, root.join(name)).expect("made");
            assert_eq!(status(&root, name), expected, "{name}");
        }
        assert_eq!(status(&root, "proc/etc/passwd"), 403);
        assert_eq!(status(&root, "up/../../secret"), 404);
        // The root must not be such a link either.
        let magic = format!("/proc/{here}/cwd");
        assert_eq!(status(Path::new(&magic), "Cargo.toml"), 403);
        assert_eq!(
            status(Path::new("/proc"), &format!("{here}/cwd/Cargo.toml")),
            403
        );
        assert_eq!(status(Path::new("/proc"), &format!("{here}/exe")), 403);
        assert_eq!(status(Path::new(""), "etc/passwd"), 200);
    }

    #[test]
    fn errors_of_the_disk_name_stage_cause_and_path() {
        let target = Target {
            root: (*b"/srv").into(),
            relative: (*b"a\nb").into(),
        };
        let refusal = refusal("read", Errno::IO, &target);
        assert_eq!(refusal.status.0, 500);
        let words = refusal.words.expect("it is told");
        assert_eq!(
            words,
            "read: Input/output error (os error 5): \"/srv/a\\nb\""
        );
    }
}
