//! What kind of file system a path is on: whether looking there can make a thread wait.
//!
//! Read from /proc/self/mountinfo when a mount is met that is not known, and again when the kernel says
//! that the table has changed (poll(2) on the file, Linux 2.6.30). Asked only when something is looked up
//! that the file cache does not have. Knows nothing of paths behind symlinks: those are judged by the
//! mount of what was opened.

mod overlays;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{LazyLock, OnceLock, PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};

/// What can be expected of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// A disk of this machine: what the kernel has in its caches is there at once.
    #[default]
    Disk,
    /// Memory: everything is there at once (tmpfs, procfs and the like).
    Memory,
    /// Another machine or a program answers each open(2) and stat(2), or does not (NFS, FUSE).
    Remote,
}

/// Where something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountedPlace {
    /// What can be expected there.
    pub storage: Storage,
    /// Tells one file system from another: the device number of mountinfo, major << 32 | minor. 0 is one
    /// that is not known.
    pub device: u64,
}

/// A mounted file system, to be told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The directory on which it is mounted.
    pub(crate) point: Vec<u8>,
    /// What it is: `ext4`, `nfs4`, `fuse.sshfs`, …
    pub(crate) kind: String,
    /// What that means.
    pub(crate) place: MountedPlace,
}

impl Mount {
    /// Whether `path` is at the mount's directory or below it.
    fn covers(&self, path: &[u8]) -> bool {
        path.strip_prefix(&*self.point).is_some_and(|rest| {
            self.point == b"/" || rest.is_empty() || rest.first() == Some(&b'/')
        })
    }
}

/// To be called before `root` becomes the root directory of this process (chroot): there is seldom a /proc in
/// there, and mounts have other names.
///
/// # Errors
/// `root` is no directory that can be looked at.
pub fn prepare_for(root: &Path) -> io::Result<()> {
    let root = root.canonicalize()?;
    LazyLock::force(&SOURCE);
    // Only the first root counts: nobody changes it twice.
    let _ = ROOT.set(root.into_os_string().into_vec());
    Ok(())
}

/// The place of an open file, or of a path that was opened as a mere place (O_PATH): never waits.
pub fn of_descriptor(descriptor: impl AsFd) -> MountedPlace {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match statx(descriptor, c"", flags, StatxFlags::MNT_ID) {
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => of_mount(found.stx_mnt_id),
        // Before Linux 5.8, or in a sandbox: nothing is known.
        _ => MountedPlace {
            storage: Storage::Remote,
            device: 0,
        },
    }
}

/// A [`MountedPlace::device`] as it is shown: `8:1`, as in mountinfo.
pub(crate) struct DeviceNumber(pub(crate) u64);

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// Where the text of `path` (absolute) says that it is, symlinks left aside.
pub fn of_path(path: &[u8]) -> MountedPlace {
    refresh_if_changed();
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let mount = table.mount_over(path);
    mount.map_or(MountedPlace::default(), |mount| mount.place)
}

/// The mount over the text of `path` (absolute), symlinks left aside.
pub(crate) fn over_path(path: &[u8]) -> Option<Mount> {
    refresh_if_changed();
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.mount_over(path).cloned()
}

/// Whether there is any file system that another machine or a program answers for.
pub(crate) fn has_remote() -> bool {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.has_remote()
}

fn of_mount(id: u64) -> MountedPlace {
    refresh_if_changed();
    let known = || {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        table.by_id.get(&id).copied()
    };
    known().unwrap_or_else(|| {
        refresh();
        // One of another mount namespace is not in the table.
        known().unwrap_or(MountedPlace {
            storage: Storage::Remote,
            device: 0,
        })
    })
}

#[derive(Default)]
struct MountTable {
    by_id: HashMap<u64, MountedPlace>,
    /// Of several on the same directory the last one counts.
    mounts: Vec<Mount>,
}

impl MountTable {
    fn has_remote(&self) -> bool {
        let mut places = self.by_id.values();
        places.any(|place| place.storage == Storage::Remote)
    }

    fn mount_over(&self, path: &[u8]) -> Option<&Mount> {
        let over = self.mounts.iter().filter(|mount| mount.covers(path));
        over.max_by_key(|mount| mount.point.len())
    }

    /// Names mounts as they are seen with `root` as the root directory.
    fn enter(&mut self, root: &[u8]) {
        let Some(mut over) = self.mount_over(root).cloned() else {
            return;
        };
        self.mounts
            .retain_mut(|mount| match mount.point.strip_prefix(root) {
                Some(rest @ [b'/', _, ..]) => {
                    mount.point = rest.to_vec();
                    true
                }
                _ => false,
            });
        over.point = b"/".to_vec();
        self.mounts.push(over);
    }
}

static TABLE: LazyLock<RwLock<MountTable>> = LazyLock::new(|| RwLock::new(read()));

/// The table's text. Becomes readable for exceptions when a mount comes or goes.
static SOURCE: LazyLock<Option<File>> = LazyLock::new(|| File::open(MOUNTINFO).ok());

/// The root directory of the process, as it is seen from outside, if that is not `/`.
static ROOT: OnceLock<Vec<u8>> = OnceLock::new();

fn refresh_if_changed() {
    let Some(file) = &*SOURCE else { return };
    let mut watched = [PollFd::new(file, PollFlags::PRI | PollFlags::ERR)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut watched, Some(&now)).is_ok_and(|changed| changed > 0) {
        refresh();
    }
}

fn refresh() {
    let table = read();
    *TABLE.write().unwrap_or_else(PoisonError::into_inner) = table;
}

fn read() -> MountTable {
    let Some(Ok(text)) = SOURCE.as_ref().map(read_text) else {
        return MountTable::default();
    };
    let mut table = parse(&text);
    if let Some(root) = ROOT.get().filter(|root| **root != b"/") {
        table.enter(root);
    }
    table
}

/// Reads by offsets: several threads may do so at a time.
fn read_text(file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match file.read_at(&mut piece, text.len() as u64) {
            Ok(0) => return Ok(text),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads the lines of mountinfo: proc_pid_mountinfo(5).
fn parse(text: &[u8]) -> MountTable {
    let mut table = MountTable::default();
    let lines = text.split(|byte| *byte == b'\n');
    let mut lines: Vec<MountLine> = lines.filter_map(parse_line).collect();
    overlays::judge(&mut lines);
    for MountLine { id, mut mount, .. } in lines {
        if mount.kind == AUTOFS && table.mount_over(&mount.point).is_some_and(is_procfs) {
            // systemd's for binfmt_misc, on nearly every machine.
            mount.place.storage = Storage::Memory;
        }
        table.by_id.insert(id, mount.place);
        table.mounts.retain(|known| known.point != mount.point);
        table.mounts.push(mount);
    }
    table
}

/// A line of mountinfo.
struct MountLine {
    id: u64,
    mount: Mount,
    /// Directories of which an overlay is made.
    layers: Vec<Vec<u8>>,
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext3 /dev/root rw`
fn parse_line(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let device = fields.nth(1)?;
    let point = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-");
    let kind = fields.nth(1)?;
    let layers = match kind {
        b"overlay" => overlays::layers(fields.nth(1).unwrap_or_default()),
        _ => Vec::new(),
    };
    let colon = device.iter().position(|byte| *byte == b':')?;
    let (major, minor) = (&device[..colon], &device[colon + 1..]);
    let place = MountedPlace {
        storage: storage_of(kind),
        device: number(major)? << 32 | number(minor)?,
    };
    let kind = String::from_utf8_lossy(kind).into_owned();
    let mount = Mount { point, kind, place };
    Some(MountLine { id, mount, layers })
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Spaces and the like are written as `\040`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(byte) => {
                out.push(byte);
                rest = &others[3..];
            }
            None => {
                out.push(*first);
                rest = others;
            }
        }
    }
    out
}

fn storage_of(kind: &[u8]) -> Storage {
    let kind = std::str::from_utf8(kind).unwrap_or_default();
    if kind.starts_with("fuse.") || REMOTE.contains(&kind) {
        return Storage::Remote;
    }
    match MEMORY.contains(&kind) {
        true => Storage::Memory,
        false => Storage::Disk,
    }
}

const MOUNTINFO: &str = "/proc/self/mountinfo";

fn is_procfs(mount: &Mount) -> bool {
    mount.kind == "proc"
}

/// A directory that is mounted when somebody walks through it, by a program that may have to ask another machine.
/// What it has mounted is a mount of its own, over it, and is judged by itself.
const AUTOFS: &str = "autofs";

/// Somebody else answers. Of programs also those that are named behind a dot (`fuse.sshfs`), and fuseblk, which
/// has a disk beneath it.
const REMOTE: [&str; 23] = [
    "fuse",
    "fuseblk",
    "gpfs",
    "vboxsf",
    "prl_fs",
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "virtiofs",
    "ceph",
    "afs",
    "coda",
    "gfs2",
    "ocfs2",
    "lustre",
    "glusterfs",
    "pvfs2",
    "ncpfs",
    "beegfs",
    AUTOFS,
];

/// Nothing is read from anywhere, but for what the kernel has put into swap space. Where FUSE is controlled is no
/// such file system.
const MEMORY: [&str; 11] = [
    "fusectl",
    "binfmt_misc",
    "tmpfs",
    "ramfs",
    "devtmpfs",
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "hugetlbfs",
    "rootfs",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            23 22 0:21 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
            24 22 0:50 / /mnt/a\\040b rw - nfs4 server:/x rw,vers=4.2\n\
            25 22 0:51 / /mnt/s rw shared:3 master:4 - fuse.sshfs host: rw\n\
            26 22 0:52 / /mnt/s rw - ext4 /dev/loop0 rw\n\
            broken line\n";
        let table = parse(text);
        let storage = |id: u64| table.by_id.get(&id).map(|place| place.storage);
        assert_eq!(storage(22), Some(Storage::Disk));
        assert_eq!(storage(23), Some(Storage::Memory));
        assert_eq!(storage(24), Some(Storage::Remote));
        assert_eq!(storage(25), Some(Storage::Remote));
        let at = |path: &[u8]| table.mount_over(path).expect("there is /").clone();
        assert_eq!(at(b"/mnt/a b").place.device, 50);
        assert_eq!(
            (at(b"/mnt/a b/c").kind, at(b"/mnt/a bc").point),
            ("nfs4".into(), b"/".into())
        );
        // What was mounted last is what is seen.
        assert_eq!(at(b"/mnt/s/x").place.storage, Storage::Disk);
        assert_eq!(table.mounts.len(), 4);
    }

    #[test]
    fn what_every_machine_has_is_not_remote() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            23 22 0:22 / /proc rw - proc proc rw\n\
            24 22 0:23 / /sys rw - sysfs sysfs rw\n\
            25 23 0:24 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw,direct\n\
            26 24 0:25 / /sys/fs/fuse/connections rw - fusectl fusectl rw\n\
            27 25 0:26 / /proc/sys/fs/binfmt_misc rw - binfmt_misc binfmt_misc rw\n";
        assert!(!parse(text).has_remote());
        for kind in ["fuse", "fuseblk", "fuse.sshfs", "nfs4", "autofs"] {
            let line = format!("28 22 0:27 / /mnt/a rw - {kind} x rw\n");
            let table = parse(&[&text[..], line.as_bytes()].concat());
            assert!(table.has_remote(), "{kind}");
            let storage = |path: &[u8]| table.mount_over(path).map(|mount| mount.place.storage);
            assert_eq!(storage(b"/mnt/a/b"), Some(Storage::Remote), "{kind}");
            assert_eq!(storage(b"/mnt/b"), Some(Storage::Disk), "{kind}");
        }
    }

    #[test]
    fn where_something_is_mounted_by_itself_only_what_is_below_is_remote() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            23 22 0:50 / /net rw - autofs auto.net rw,indirect\n\
            24 23 8:1 / /net/local rw - xfs /dev/sda1 rw\n";
        let table = parse(text);
        let storage = |path: &[u8]| table.mount_over(path).map(|mount| mount.place.storage);
        assert_eq!(storage(b"/network/a"), Some(Storage::Disk));
        assert_eq!(storage(b"/net/far/a"), Some(Storage::Remote));
        // It is there already.
        assert_eq!(storage(b"/net/local/a"), Some(Storage::Disk));
    }

    #[test]
    fn mounts_have_other_names_inside_a_root() {
        let text = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            23 22 8:1 / /jail rw - xfs /dev/sda1 rw\n\
            24 23 0:50 / /jail/www/nfs rw - nfs4 server:/x rw\n\
            25 22 0:21 / /jailer rw - tmpfs tmpfs rw\n";
        let kind = |root: &[u8], path: &[u8]| {
            let mut table = parse(text);
            table.enter(root);
            // Descriptors are known wherever they come from.
            assert_eq!(table.by_id.len(), 4);
            table.mount_over(path).map(|mount| mount.kind.clone())
        };
        assert_eq!(kind(b"/jail", b"/www/a").as_deref(), Some("xfs"));
        assert_eq!(kind(b"/jail", b"/www/nfs/a").as_deref(), Some("nfs4"));
        assert_eq!(kind(b"/jail/www", b"/a").as_deref(), Some("xfs"));
        assert_eq!(kind(b"/jail/www", b"/nfs").as_deref(), Some("nfs4"));
        assert_eq!(kind(b"/srv", b"/jail/www/nfs").as_deref(), Some("ext4"));
    }

    #[test]
    fn a_path_and_its_descriptor_are_at_the_same_place() {
        let file = File::open("/proc/self/status").expect("proc is mounted");
        assert_eq!(of_descriptor(&file).storage, Storage::Memory);
        assert_eq!(of_path(b"/proc/self/status"), of_descriptor(&file));
        assert_eq!(of_path(b"/proc"), of_descriptor(&file));
        assert_ne!(of_path(b"/procedure"), of_descriptor(&file));
    }
}
