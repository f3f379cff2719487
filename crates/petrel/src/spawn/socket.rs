//! The listening socket of a program. The process with the privileges binds it and passes it to the program
//! as descriptor 0.
//!
//! It is in blocking mode, as programs expect. Dropping the value removes the name of a unix socket, but only
//! if the name still refers to the socket that was made here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::beneath::open_in_root;
use nix::unistd::{Gid, Uid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chownat, fstat, openat, renameat, statat, unlinkat,
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A listening socket. Clones share it, and dropping the last one removes its name.
#[derive(Clone)]
pub(crate) struct ProgramSocket {
    descriptor: Rc<OwnedFd>,
    name: Option<Rc<SocketName>>,
}

/// Where a unix socket is made, and with which owner and mode.
pub(crate) struct UnixPlace<'a> {
    /// Its path, as seen from `root`.
    pub(crate) path: &'a Path,
    /// A directory that symbolic links and `..` in the path do not leave.
    pub(crate) root: Option<&'a Path>,
    /// Its mode; with `None`, 0777 without the bits of the umask.
    pub(crate) mode: Option<u32>,
    /// Its owner.
    pub(crate) user: Option<Uid>,
    /// Its group.
    pub(crate) group: Option<Gid>,
    /// Whether another socket keeps the name until [`ProgramSocket::publish`].
    pub(crate) is_taken: bool,
}

/// The name in a directory of a socket with this inode.
struct SocketName {
    directory: OwnedFd,
    /// The final name.
    name: OsString,
    /// The temporary name that it has until it is published.
    provisional: Option<OsString>,
    identity: (u64, u64),
    maker: u32,
}

impl ProgramSocket {
    /// Listens on a TCP address.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and listen(2).
    pub(crate) fn tcp(address: SocketAddr, backlog: u32) -> io::Result<ProgramSocket> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // Connections in TIME_WAIT from before a restart must not block the address.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        listen(&socket, backlog)?;
        Ok(ProgramSocket {
            descriptor: Rc::new(socket.into()),
            name: None,
        })
    }

    /// Listens on a unix socket. A socket that accepts no connection is replaced; any other file of that name
    /// stays.
    ///
    /// # Errors
    /// `AddrInUse` if the name is taken; else those of bind(2), listen(2) and the like.
    pub(crate) fn unix(place: &UnixPlace<'_>, backlog: u32) -> io::Result<ProgramSocket> {
        let (directory, name) = find(place)?;
        let provisional = place.is_taken.then(|| {
            let mut other = name.clone();
            other.push(".next");
            other
        });
        let bound = provisional.as_ref().unwrap_or(&name);
        remove_stale(&directory, bound)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        bind(&socket, place, &directory, bound)?;
        let name = SocketName::claim(directory, name, provisional, place)?;
        listen(&socket, backlog)?;
        Ok(ProgramSocket {
            descriptor: Rc::new(socket.into()),
            name: Some(Rc::new(name)),
        })
    }

    /// The descriptor to pass to the program.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether it has a name in the file system.
    pub(crate) fn has_name(&self) -> bool {
        self.name.is_some()
    }

    /// Changes the length of the kernel's accept queue.
    ///
    /// # Errors
    /// Those of listen(2).
    pub(crate) fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        Ok(rustix::net::listen(
            self.descriptor.as_fd(),
            clamp(backlog),
        )?)
    }

    /// Whether connections are waiting to be accepted.
    pub(crate) fn has_waiting(&self) -> bool {
        let descriptor = self.as_fd();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Takes over the name from an older socket: clients that connect from now on reach this one.
    ///
    /// # Errors
    /// Those of rename(2).
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        match self.name.as_mut().and_then(Rc::get_mut) {
            Some(name) => name.publish(),
            None => Ok(()),
        }
    }

    /// Makes the name stay in the file system when the value is dropped.
    pub(crate) fn keep_name(&mut self) {
        if let Some(name) = self.name.as_mut().and_then(Rc::get_mut) {
            name.maker = 0;
        }
    }
}

impl SocketName {
    /// Remembers the socket that was bound, and sets its owner and mode. Another user may be able to write to
    /// the directory, so the changes go to the very file that was looked at.
    fn claim(
        directory: OwnedFd,
        name: OsString,
        provisional: Option<OsString>,
        place: &UnixPlace<'_>,
    ) -> io::Result<SocketName> {
        let bound = provisional.as_ref().unwrap_or(&name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, bound, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        // Another user could have put a hard link to some other socket there, whose owner and mode must stay.
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_nlink != 1 {
            return Err(io::Error::other(
                "another program has put a file in its place",
            ));
        }
        let claimed = SocketName {
            directory,
            name,
            provisional,
            identity: (stat.st_dev, stat.st_ino),
            maker: std::process::id(),
        };
        if let Some(mode) = place.mode {
            let itself = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            rustix::fs::chmod(itself, Mode::from_raw_mode(mode))?;
        }
        if place.user.is_some() || place.group.is_some() {
            let user = place
                .user
                .map(|user| rustix::fs::Uid::from_raw(user.as_raw()));
            let group = place
                .group
                .map(|group| rustix::fs::Gid::from_raw(group.as_raw()));
            chownat(&file, "", user, group, AtFlags::EMPTY_PATH)?;
        }
        Ok(claimed)
    }

    fn publish(&mut self) -> io::Result<()> {
        if let Some(provisional) = &self.provisional {
            renameat(&self.directory, provisional, &self.directory, &self.name)?;
            self.provisional = None;
        }
        Ok(())
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        if self.maker != std::process::id() {
            return;
        }
        let name = self.provisional.as_ref().unwrap_or(&self.name);
        let there = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == self.identity) {
            // The name may have been removed in between.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

/// Opens the directory of the socket, and returns the name in it.
fn find(place: &UnixPlace<'_>) -> io::Result<(OwnedFd, OsString)> {
    let invalid = |message| io::Error::new(io::ErrorKind::InvalidInput, message);
    let name = place.path.file_name();
    let name = name.ok_or_else(|| invalid("it is no name of a file"))?;
    let parent = place.path.parent().unwrap_or(Path::new(""));
    let parent = match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match place.root {
        Some(root) => open_in_root(root, parent, flags, Mode::empty())?,
        None => openat(CWD, parent, flags, Mode::empty())?,
    };
    Ok((directory, name.to_owned()))
}

/// Binds the socket to its name. Clients cannot connect before it listens.
fn bind(
    socket: &Socket,
    place: &UnixPlace<'_>,
    directory: &OwnedFd,
    name: &OsStr,
) -> io::Result<()> {
    let path = match place.root {
        Some(_) => below(directory, name),
        None => place.path.with_file_name(name),
    };
    socket.bind(&SockAddr::unix(path)?)
}

/// Removes a socket that dead programs left behind.
fn remove_stale(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let Ok(there) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Ok(());
    };
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "there is a file of that name which is no socket",
        ));
    }
    match UnixStream::connect(below(directory, name)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(unlinkat(directory, name, AtFlags::empty())?)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "socket is already in use",
        )),
    }
}

/// A path to a name in an open directory. It stays valid when the directory is moved.
fn below(directory: &OwnedFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(name)
}

fn listen(socket: &Socket, backlog: u32) -> io::Result<()> {
    socket.listen(clamp(backlog))
}

fn clamp(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    fn place(path: &Path) -> UnixPlace<'_> {
        UnixPlace {
            path,
            root: None,
            mode: None,
            user: None,
            group: None,
            is_taken: false,
        }
    }

    fn inode(path: &Path) -> u64 {
        std::fs::symlink_metadata(path).expect("there").ino()
    }

    #[test]
    fn the_name_goes_with_the_socket_and_stale_ones_are_replaced() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("s");
        let socket = ProgramSocket::unix(&place(&path), 5).expect("bound");
        assert!(!socket.has_waiting());
        UnixStream::connect(&path).expect("it listens");
        assert!(socket.has_waiting());
        let error = ProgramSocket::unix(&place(&path), 5).err().expect("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "stale");
        let mut socket = ProgramSocket::unix(&place(&path), 5).expect("replaced");
        socket.keep_name();
        drop(socket);
        assert!(path.exists(), "kept");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "precious").expect("written");
        assert!(ProgramSocket::unix(&place(&path), 5).is_err());
        assert_eq!(std::fs::read(&path).expect("untouched"), b"precious");
    }

    #[test]
    fn a_successor_takes_the_name_when_it_is_published() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("s");
        let first = ProgramSocket::unix(&place(&path), 5).expect("bound");
        let before = inode(&path);
        let taken = UnixPlace {
            is_taken: true,
            ..place(&path)
        };
        let mut second = ProgramSocket::unix(&taken, 5).expect("bound beside it");
        assert_eq!(inode(&path), before);
        second.publish().expect("renamed");
        let after = inode(&path);
        assert_ne!(after, before);
        drop(first);
        assert_eq!(
            inode(&path),
            after,
            "the first one removes only its own name"
        );
        drop(second);
        let left = std::fs::read_dir(home.path()).expect("there").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_successor_that_is_given_up_leaves_the_name() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("s");
        let _first = ProgramSocket::unix(&place(&path), 5).expect("bound");
        let taken = UnixPlace {
            is_taken: true,
            ..place(&path)
        };
        drop(ProgramSocket::unix(&taken, 5).expect("bound beside it"));
        let left = std::fs::read_dir(home.path()).expect("there").count();
        assert_eq!(left, 1);
        UnixStream::connect(&path).expect("the first one still listens");
    }

    #[test]
    fn a_root_is_not_left_by_links() {
        let home = tempfile::tempdir().expect("a directory");
        let root = home.path().join("root");
        std::fs::create_dir_all(root.join("run")).expect("a directory");
        std::fs::create_dir(home.path().join("run")).expect("a directory");
        symlink("../../run", root.join("way")).expect("a link");
        for path in ["/run/s", "/way/t", "/../run/u"] {
            let below = UnixPlace {
                root: Some(&root),
                ..place(Path::new(path))
            };
            let _socket = ProgramSocket::unix(&below, 5).expect("bound");
            let name = Path::new(path).file_name().expect("named");
            assert!(root.join("run").join(name).exists(), "{path}");
        }
        assert_eq!(
            std::fs::read_dir(home.path().join("run"))
                .expect("there")
                .count(),
            0
        );
    }

    #[test]
    fn modes_are_those_asked_for() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("s");
        let private = UnixPlace {
            mode: Some(0o620),
            ..place(&path)
        };
        let _socket = ProgramSocket::unix(&private, 5).expect("bound");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o620);
    }
}
