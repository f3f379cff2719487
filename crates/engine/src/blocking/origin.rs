//! Makes an [`Origin`]: finds the file system of a path or of a descriptor.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Origin;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths;

impl Origin {
    /// For work that waits for no file system, so that none that hangs can delay it.
    pub const PROCESSOR: Origin = Origin {
        device: u64::MAX,
        is_remote: false,
        client: 0,
        bytes: 0,
    };

    /// For look-ups in the system's list of users, which a directory service on another machine may answer.
    /// It counts as remote, so a flood of look-ups takes only a few of the threads.
    pub const USERS: Origin = Origin {
        device: u64::MAX - 1,
        is_remote: true,
        client: 0,
        bytes: 0,
    };

    /// Work on the file system of `place`, for the server itself.
    pub fn at(place: MountedPlace) -> Origin {
        Origin {
            device: place.device,
            is_remote: place.storage == Storage::Remote,
            client: 0,
            bytes: 0,
        }
    }

    /// The file system of `path`, which is absolute or relative to the working directory. Follows the path as
    /// far as the kernel can without waiting for a disk or another machine.
    pub fn of_path(path: &Path) -> Origin {
        // Without a working directory a relative path has no meaning.
        let path = std::path::absolute(path).unwrap_or_default();
        Origin::at(paths::place_of(path.as_os_str().as_bytes()))
    }

    /// The file system of an open file. Never waits.
    pub fn of_descriptor(descriptor: impl AsFd) -> Origin {
        Origin::at(mounts::of_descriptor(descriptor))
    }

    /// The same for a client, who gets a turn of its own: [`ConnectionFacts::client_key`].
    ///
    /// [`ConnectionFacts::client_key`]: crate::exchange::ConnectionFacts::client_key
    pub fn for_client(self, client: u64) -> Origin {
        Origin { client, ..self }
    }

    /// The same for work on `bytes` bytes.
    pub fn with_bytes(self, bytes: usize) -> Origin {
        Origin { bytes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_descriptors_are_of_the_same_file_system() {
        let file = std::fs::File::open("/proc/self/status").expect("proc is mounted");
        let origin = Origin::of_descriptor(&file);
        assert_ne!(origin, Origin::PROCESSOR);
        assert!(!origin.is_remote);
        assert_eq!(Origin::of_path(Path::new("/proc/self/status")), origin);
        assert_eq!(Origin::of_path(Path::new("/tmp/../proc/.")), origin);
        // A relative path has the file system of the working directory.
        assert_eq!(
            Origin::of_path(Path::new("no-such-file")),
            Origin::of_path(&std::env::current_dir().expect("a directory").join("x"))
        );
    }
}
