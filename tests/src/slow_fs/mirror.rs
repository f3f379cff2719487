//! The files of the original directory, served through the [`Gate`].
//!
//! Inodes are numbers for relative paths. They are kept as long as the mount, since tests have few files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::{Gate, Operation};

/// Answers the kernel's requests.
#[derive(Debug)]
pub(super) struct Mirror {
    gate: Arc<Gate>,
    files: Arc<Files>,
}

/// The files, and their inode numbers.
#[derive(Debug)]
struct Files {
    /// The directory that `beneath` leads to.
    _directory: OwnedFd,
    beneath: PathBuf,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    paths: HashMap<u64, PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    open: HashMap<u64, Open>,
    last_number: u64,
}

#[derive(Clone, Debug)]
enum Open {
    File(Arc<File>),
    /// Inode, kind and name of each entry.
    Directory(Arc<Vec<(u64, FileType, PathBuf)>>),
}

impl Mirror {
    pub fn new(directory: OwnedFd, beneath: PathBuf, gate: Arc<Gate>) -> Mirror {
        let root = INodeNo::ROOT.0;
        let table = Table {
            paths: HashMap::from([(root, PathBuf::new())]),
            numbers: HashMap::from([(PathBuf::new(), root)]),
            open: HashMap::new(),
            last_number: root,
        };
        let files = Files {
            _directory: directory,
            beneath,
            table: Mutex::new(table),
        };
        Mirror {
            gate,
            files: Arc::new(files),
        }
    }

    /// Performs `work` on the file when the gate opens, and passes the result to `answer`.
    fn pass<T>(
        &self,
        operation: Operation,
        path: Option<PathBuf>,
        work: impl FnOnce(&Files, &Path) -> io::Result<T> + Send + 'static,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let files = Arc::clone(&self.files);
        let Some(path) = path else {
            return answer(Err(Errno::ESTALE));
        };
        self.gate.pass(operation, path.clone(), move |passed| {
            answer(passed.and_then(|()| Ok(work(&files, &path)?)));
        });
    }

    /// How long the kernel may cache names and attributes.
    fn kept(&self) -> Duration {
        match self.gate.keeps_names.load(Ordering::SeqCst) {
            true => Duration::from_secs(3600),
            false => Duration::ZERO,
        }
    }

    fn path(&self, inode: INodeNo) -> Option<PathBuf> {
        self.files.lock().paths.get(&inode.0).cloned()
    }

    fn path_in(&self, directory: INodeNo, name: &OsStr) -> Option<PathBuf> {
        self.path(directory).map(|path| path.join(name))
    }
}

impl Filesystem for Mirror {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // By default, a dozen hanging read-aheads keep all other requests in the kernel, which may have a
        // limit of its own.
        let _ = config.set_max_background(1024);
        // By default, a hanging lookup holds the lock of its directory.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let path = self.path_in(parent, name);
        let kept = self.kept();
        self.pass(Operation::Lookup, path, Files::attributes, move |answer| {
            entry(answer, reply, kept);
        });
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.path(inode);
        let kept = self.kept();
        self.pass(Operation::Stat, path, Files::attributes, move |answer| {
            attributes(answer, reply, kept);
        });
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = move |files: &Files, path: &Path| {
            let at = files.at(path);
            if let Some(mode) = mode {
                fs::set_permissions(&at, fs::Permissions::from_mode(mode & 0o7777))?;
            }
            if owner.is_some() || group.is_some() {
                std::os::unix::fs::lchown(&at, owner, group)?;
            }
            if let Some(size) = size {
                OpenOptions::new().write(true).open(&at)?.set_len(size)?;
            }
            if let Some(time) = modified {
                let time = match time {
                    TimeOrNow::SpecificTime(time) => time,
                    TimeOrNow::Now => SystemTime::now(),
                };
                File::open(&at)?.set_modified(time)?;
            }
            files.attributes(path)
        };
        self.pass(Operation::Change, self.path(inode), change, |answer| {
            attributes(answer, reply, Duration::ZERO);
        });
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        let read = |files: &Files, path: &Path| fs::read_link(files.at(path));
        self.pass(
            Operation::ReadLink,
            self.path(inode),
            read,
            |answer| match answer {
                Ok(target) => reply.data(target.as_os_str().as_bytes()),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = move |files: &Files, path: &Path| {
            let file = options(flags).open(files.at(path))?;
            Ok(files.keep(Open::File(Arc::new(file))))
        };
        self.pass(Operation::Open, self.path(inode), open, |answer| {
            opened(answer, reply);
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = move |files: &Files, path: &Path| {
            let file = options(OpenFlags(flags))
                .create_new(true)
                .mode(mode & !umask)
                .open(files.at(path))?;
            let handle = files.keep(Open::File(Arc::new(file)));
            Ok((files.attributes(path)?, handle))
        };
        let path = self.path_in(parent, name);
        self.pass(Operation::Create, path, create, |answer| match answer {
            Ok((found, handle)) => {
                reply.created(
                    &Duration::ZERO,
                    &found,
                    Generation(0),
                    handle,
                    FopenFlags::empty(),
                );
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = move |files: &Files, _: &Path| {
            let file = files.file(handle)?;
            let mut bytes = vec![0; size as usize];
            let mut filled = 0;
            while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file.read_at(rest, offset + filled as u64)? {
                    0 => break,
                    count => filled += count,
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        };
        self.pass(
            Operation::Read,
            self.path(inode),
            read,
            |answer| match answer {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let bytes = bytes.to_vec();
        let write = move |files: &Files, _: &Path| {
            files.file(handle)?.write_all_at(&bytes, offset)?;
            u32::try_from(bytes.len()).map_err(io::Error::other)
        };
        self.pass(
            Operation::Write,
            self.path(inode),
            write,
            |answer| match answer {
                Ok(count) => reply.written(count),
                Err(errno) => reply.error(errno),
            },
        );
    }

    fn flush(&self, _: &Request, inode: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let close = |_: &Files, _: &Path| Ok(());
        self.pass(Operation::Close, self.path(inode), close, |answer| {
            done(answer, reply);
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().open.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let path = self.path(inode);
        self.pass(Operation::OpenDirectory, path, Files::list, |answer| {
            opened(answer, reply);
        });
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let read = move |files: &Files, _: &Path| match files.lock().open.get(&handle.0) {
            Some(Open::Directory(entries)) => Ok(Arc::clone(entries)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let answer = move |answer: Result<Arc<Vec<_>>, Errno>| match answer {
            Ok(entries) => {
                let rest = (offset + 1..).zip(entries.iter().skip(offset as usize));
                for (next, (number, kind, name)) in rest {
                    if reply.add(INodeNo(*number), next, *kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        };
        self.pass(Operation::ReadDirectory, self.path(inode), read, answer);
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.files.lock().open.remove(&handle.0);
        reply.ok();
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_owned();
        let read = move |files: &Files, path: &Path| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(files.at(path), &name, &mut value[..])?;
            value.truncate(length);
            if size != 0 && value.len() > size as usize {
                return Err(rustix::io::Errno::RANGE.into());
            }
            Ok(value)
        };
        let answer = move |answer: Result<Vec<u8>, Errno>| match answer {
            Ok(value) if size == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
            Ok(value) => reply.data(&value),
            Err(errno) => reply.error(errno),
        };
        self.pass(Operation::ReadAttribute, self.path(inode), read, answer);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = move |files: &Files, path: &Path| {
            let mode = mode & !umask & 0o7777;
            fs::DirBuilder::new().mode(mode).create(files.at(path))?;
            files.attributes(path)
        };
        let path = self.path_in(parent, name);
        self.pass(Operation::MakeDirectory, path, make, |answer| {
            entry(answer, reply, Duration::ZERO);
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.path_in(parent, name);
        let remove = |files: &Files, path: &Path| {
            fs::remove_file(files.at(path))?;
            files.forget(path);
            Ok(())
        };
        self.pass(Operation::Remove, path, remove, |answer| {
            done(answer, reply)
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.path_in(parent, name);
        let remove = |files: &Files, path: &Path| {
            fs::remove_dir(files.at(path))?;
            files.forget(path);
            Ok(())
        };
        self.pass(Operation::Remove, path, remove, |answer| {
            done(answer, reply)
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(to) = self.path_in(new_parent, new_name) else {
            return reply.error(Errno::ESTALE);
        };
        let rename = move |files: &Files, from: &Path| {
            fs::rename(files.at(from), files.at(&to))?;
            files.renamed(from, &to);
            Ok(())
        };
        let path = self.path_in(parent, name);
        self.pass(Operation::Rename, path, rename, |answer| {
            done(answer, reply)
        });
    }
}

impl Files {
    fn at(&self, path: &Path) -> PathBuf {
        self.beneath.join(path)
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(self.at(path))?;
        let number = self.lock().number(path);
        Ok(file_attributes(number, &metadata))
    }

    fn list(&self, path: &Path) -> io::Result<FileHandle> {
        let root = INodeNo::ROOT.0;
        let mut entries = vec![
            (root, FileType::Directory, PathBuf::from(".")),
            (root, FileType::Directory, PathBuf::from("..")),
        ];
        for entry in fs::read_dir(self.at(path))? {
            let entry = entry?;
            let name = PathBuf::from(entry.file_name());
            let number = self.lock().number(&path.join(&name));
            let kind = FileType::from_std(entry.file_type()?);
            entries.push((number, kind.unwrap_or(FileType::RegularFile), name));
        }
        Ok(self.keep(Open::Directory(Arc::new(entries))))
    }

    fn keep(&self, open: Open) -> FileHandle {
        let mut table = self.lock();
        table.last_number += 1;
        let handle = table.last_number;
        table.open.insert(handle, open);
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        match self.lock().open.get(&handle.0) {
            Some(Open::File(file)) => Ok(Arc::clone(file)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn forget(&self, path: &Path) {
        // For processes that have the file open, its number continues to refer to it.
        self.lock().numbers.remove(path);
    }

    fn renamed(&self, from: &Path, to: &Path) {
        let mut table = self.lock();
        table.numbers.remove(to);
        let below: Vec<(PathBuf, u64)> = table
            .numbers
            .iter()
            .filter(|(path, _)| path.starts_with(from))
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        for (old, number) in below {
            let rest = old.strip_prefix(from).expect("it was chosen for that");
            let new = match rest.as_os_str().is_empty() {
                true => to.to_owned(),
                false => to.join(rest),
            };
            table.numbers.remove(&old);
            table.numbers.insert(new.clone(), number);
            table.paths.insert(number, new);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self, path: &Path) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        self.last_number += 1;
        let number = self.last_number;
        self.numbers.insert(path.to_owned(), number);
        self.paths.insert(number, path.to_owned());
        number
    }
}

fn options(flags: OpenFlags) -> OpenOptions {
    let mut options = OpenOptions::new();
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => options.read(true),
        OpenAccMode::O_WRONLY => options.write(true),
        OpenAccMode::O_RDWR => options.read(true).write(true),
    };
    options
}

fn file_attributes(number: u64, metadata: &Metadata) -> FileAttr {
    let kind = FileType::from_std(metadata.file_type());
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(number),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: modified,
        mtime: modified,
        ctime: SystemTime::UNIX_EPOCH + seconds(metadata.ctime(), metadata.ctime_nsec()),
        crtime: modified,
        kind: kind.unwrap_or(FileType::RegularFile),
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn seconds(seconds: i64, nanoseconds: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
}

fn entry(answer: Result<FileAttr, Errno>, reply: ReplyEntry, kept: Duration) {
    match answer {
        Ok(found) => reply.entry(&kept, &found, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn attributes(answer: Result<FileAttr, Errno>, reply: ReplyAttr, kept: Duration) {
    match answer {
        Ok(found) => reply.attr(&kept, &found),
        Err(errno) => reply.error(errno),
    }
}

fn opened(answer: Result<FileHandle, Errno>, reply: ReplyOpen) {
    match answer {
        Ok(handle) => reply.opened(handle, FopenFlags::empty()),
        Err(errno) => reply.error(errno),
    }
}

fn done(answer: Result<(), Errno>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}
