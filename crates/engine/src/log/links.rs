//! Opens a log as root where other users may have created symbolic links.
//!
//! The directory of a log often belongs to the user that the server runs as, and the keeper, which reopens
//! logs on SIGHUP, is root. A link in that directory must not make root write to another file. So only root's
//! own links are followed, on the whole path. There is no moment between check and use.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat,
};
use rustix::io::Errno;

/// Opens `path` like open(2), but follows no symbolic link that does not belong to `user`.
///
/// # Errors
/// `PermissionDenied` for a link of another user, and the errors of open(2).
pub(super) fn open(path: &Path, flags: OFlags, mode: Mode, user: u32) -> io::Result<OwnedFd> {
    let root = || openat(CWD, c"/", PLACE, Mode::empty());
    let (mut at, mut rest) = (root()?, Vec::new());
    push_parts(&mut rest, &std::path::absolute(path)?);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        let is_last = rest.is_empty();
        if is_last {
            match openat(&at, &*part, flags | OFlags::NOFOLLOW, mode) {
                Err(Errno::LOOP) => {}
                // The name may be a link to the place where the file is to be created.
                Err(Errno::EXIST) if flags.contains(OFlags::EXCL) => {}
                opened => return Ok(opened?),
            }
        }
        let there = openat(&at, &*part, PLACE | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&there)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            if is_last {
                return Err(Errno::EXIST.into());
            }
            at = there;
            continue;
        }
        if fstatfs(&there)?.f_type == PROC_SUPER_MAGIC {
            // The kernel makes these links, and their text is not always a path that can be followed:
            // /proc/self/fd/2.
            match is_last {
                true => return Ok(openat(&at, &*part, flags, mode)?),
                false => at = openat(&at, &*part, PLACE, Mode::empty())?,
            }
            continue;
        }
        if stat.st_uid != user {
            let message = "a symbolic link of another user is on the way to it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = readlinkat(&there, c"", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            at = root()?;
        }
        push_parts(&mut rest, target);
    }
    Err(Errno::ISDIR.into())
}

/// Pushes the parts of `path` onto `rest`, with the first one on top.
fn push_parts(rest: &mut Vec<Vec<u8>>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.as_bytes().to_vec()),
        Component::ParentDir => Some(b"..".to_vec()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    rest.extend(parts);
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// As many links as the kernel follows.
const LINKS_MAX: u32 = 40;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::process::geteuid;

    use super::*;

    fn try_open(path: &Path, user: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        open(path, flags, Mode::from_raw_mode(0o644), user)
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        let own = geteuid().as_raw();
        let at = std::env::temp_dir().join(format!("petrel-links-{}", std::process::id()));
        std::fs::create_dir_all(at.join("real")).expect("mkdir");
        let at = at.canonicalize().expect("it was just made");
        symlink("real", at.join("way")).expect("symlink");
        symlink("../way/log", at.join("real/last")).expect("symlink");
        symlink(at.join("real/absolute-target"), at.join("absolute")).expect("symlink");
        symlink("round", at.join("round")).expect("symlink");
        for (name, opened) in [
            ("way/log", "real/log"),
            ("real/last", "real/log"),
            ("absolute", "real/absolute-target"),
        ] {
            let refused = try_open(&at.join(name), own + 1).expect_err("another user's link");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{name}");
            assert!(!at.join(opened).exists(), "{name}");
            let log = try_open(&at.join(name), own).expect("our own link");
            rustix::io::write(&log, b"x").expect("written");
            assert_eq!(std::fs::read(at.join(opened)).expect("there"), b"x");
            std::fs::remove_file(at.join(opened)).expect("remove");
        }
        assert!(try_open(&at.join("round"), own).is_err());
        assert!(try_open(&at.join("real"), own).is_err());
        assert!(try_open(Path::new("/"), own).is_err());
        try_open(&at.join("plain"), own + 1).expect("no link at all");
        std::fs::remove_dir_all(&at).expect("remove");
    }

    #[test]
    fn what_the_kernel_links_is_followed() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
        let path = format!("/proc/self/fd/{number}");
        let log = try_open(Path::new(&path), u32::MAX).expect("it is ours");
        rustix::io::write(&log, b"x").expect("written");
        drop((log, writer));
        assert_eq!(io::read_to_string(reader).expect("read"), "x");
    }
}
