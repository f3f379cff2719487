//! The kind of file system that a path is on: whether a look-up there can make a thread wait.
//!
//! The mount table comes from /proc/self/mountinfo. It is read when a mount is not known, and again when the
//! kernel reports a change (poll(2) on the file, Linux 2.6.30). It is used only for look-ups that the file
//! cache cannot answer. Symlinks are not resolved here: a file behind one is judged by the mount of its
//! descriptor.

mod overlays;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};
use tokio::io::Interest;

/// How a file system answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// A disk of this machine: what the kernel's caches have is available at once.
    #[default]
    Disk,
    /// In memory: everything is available at once (tmpfs, procfs and the like).
    Memory,
    /// Another machine or a program answers each open(2) and stat(2), and may not answer at all (NFS, FUSE).
    Remote,
}

/// The file system that something is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountedPlace {
    /// How the file system answers.
    pub storage: Storage,
    /// Identifies the file system: the device number in mountinfo, major << 32 | minor. 0 is unknown.
    pub device: u64,
}

/// A mounted file system, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The directory on which it is mounted.
    pub(crate) point: Vec<u8>,
    /// The type of the file system: `ext4`, `nfs4`, `fuse.sshfs`, …
    pub(crate) kind: String,
    /// How it answers, and its number.
    pub(crate) place: MountedPlace,
}

impl Mount {
    /// Whether `path` is the directory of the mount or below it.
    fn covers(&self, path: &[u8]) -> bool {
        path.strip_prefix(&*self.point).is_some_and(|rest| {
            self.point == b"/" || rest.is_empty() || rest.first() == Some(&b'/')
        })
    }
}

/// Call this before `root` becomes the root directory of this process (chroot): there is seldom a /proc
/// inside, and mounts have other paths there.
///
/// # Errors
/// `root` is not an accessible directory.
pub fn prepare_for(root: &Path) -> io::Result<()> {
    let root = root.canonicalize()?;
    LazyLock::force(&SOURCE);
    LazyLock::force(&WATCHED);
    // Only the first root counts: the process changes its root only once.
    let _ = ROOT.set(root.into_os_string().into_vec());
    Ok(())
}

/// The file system of an open file, or of a descriptor with O_PATH. Never waits.
pub fn of_descriptor(descriptor: impl AsFd) -> MountedPlace {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    crate::system_calls::made();
    match statx(descriptor, c"", flags, StatxFlags::MNT_ID) {
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => of_mount(found.stx_mnt_id),
        // Before Linux 5.8, or in a sandbox, nothing is known.
        _ => MountedPlace {
            storage: Storage::Remote,
            device: 0,
        },
    }
}

/// Shows a [`MountedPlace::device`] as in mountinfo: `8:1`.
pub(crate) struct DeviceNumber(pub(crate) u64);

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}

/// The file system of an absolute `path` by its text alone, symlinks ignored.
pub fn of_path(path: &[u8]) -> MountedPlace {
    refresh_if_changed();
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let mount = table.mount_over(path);
    mount.map_or(MountedPlace::default(), |mount| mount.place)
}

/// A mount of the file system with the number `device` ([`MountedPlace::device`]), as the table was last
/// read: the directory, the type, and how it answers.
pub fn of_device(device: u64) -> Option<(Vec<u8>, String, Storage)> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let mut mounts = table.mounts.iter();
    let mount = mounts.find(|mount| mount.place.device == device)?;
    Some((mount.point.clone(), mount.kind.clone(), mount.place.storage))
}

/// The mount that an absolute `path` is in by its text alone, symlinks ignored.
pub(crate) fn over_path(path: &[u8]) -> Option<Mount> {
    refresh_if_changed();
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.mount_over(path).cloned()
}

/// Whether there is a file system that another machine or a program answers for.
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
        // A mount of another mount namespace is not in the table.
        known().unwrap_or(MountedPlace {
            storage: Storage::Remote,
            device: 0,
        })
    })
}

/// [`version`] as it is known without a system call: [`watch`] has seen the changes.
pub(crate) fn known_version() -> u64 {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.version
}

/// Reads the table again after each change of the mounts. The first worker that calls this does so for all.
pub(crate) async fn watch() {
    let file = WATCHED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(Ok(watched)) = file.map(|file| petrel_sys::readiness::priority(file.into())) else {
        return;
    };
    while let Ok(mut guard) = watched.ready(Interest::PRIORITY).await {
        guard.clear_ready();
        refresh();
    }
}

/// Differs after each change of the mounts. `None`: they cannot be seen.
pub(crate) fn version() -> Option<u64> {
    SOURCE.as_ref()?;
    refresh_if_changed();
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    Some(table.version)
}

#[derive(Default)]
struct MountTable {
    /// How often the table was read again.
    version: u64,
    by_id: HashMap<u64, MountedPlace>,
    /// The last one of several on the same directory counts.
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

    /// Changes the paths of mounts to those that are seen with `root` as the root directory.
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

/// The file with the table. Poll reports an exception on it when a mount comes or goes.
static SOURCE: LazyLock<Option<File>> = LazyLock::new(|| File::open(MOUNTINFO).ok());

/// The same file once more, because the kernel reports each change once for each open file. For [`watch`].
static WATCHED: LazyLock<Mutex<Option<File>>> =
    LazyLock::new(|| Mutex::new(File::open(MOUNTINFO).ok()));

/// The path of the root directory of the process as seen from outside, if that is not `/`.
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
    let mut table = read();
    let mut known = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.version = known.version + 1;
    *known = table;
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

/// Reads with offsets, so that several threads may do so at the same time.
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

/// Parses the lines of mountinfo: proc_pid_mountinfo(5).
fn parse(text: &[u8]) -> MountTable {
    let mut table = MountTable::default();
    let lines = text.split(|byte| *byte == b'\n');
    let mut lines: Vec<MountLine> = lines.filter_map(parse_line).collect();
    overlays::judge(&mut lines);
    for MountLine { id, mut mount, .. } in lines {
        if mount.kind == AUTOFS && table.mount_over(&mount.point).is_some_and(is_procfs) {
            // systemd's automount for binfmt_misc, which nearly every machine has.
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
    /// The directories that an overlay is made of.
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

/// Decodes `\040` for a space, and the like.
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

/// A directory that a program mounts when a process walks through it, and that may need another machine. What
/// it has mounted is a mount of its own on top, and is judged separately.
const AUTOFS: &str = "autofs";

/// Another machine or a program answers. For FUSE also the types with a suffix (`fuse.sshfs`), and fuseblk,
/// which has a disk below.
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

/// Nothing is read from a disk, except from swap. fusectl controls FUSE and is not a FUSE file system itself.
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
        // The mount that came last covers the others.
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
        // This one is mounted already.
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
            // Descriptors can come from outside of the root, so their mounts stay known.
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
