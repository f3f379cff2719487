//! The files of `io`. Jobs open, read and write them, so that no script makes its thread wait for a disk.
//!
//! A [`FileJob`] is one system call on one file. If the owner of the [`Machine`](crate::Machine) has provided
//! threads ([`FileThreads`]), they perform it and the script waits; otherwise the calling thread performs it.
//! Between two jobs a script works on the file's buffers. `lua/system.lua` has the functions that scripts
//! see.
//!
//! `io.popen` and `os.execute` begin like jobs: [`FileThreads::start`] starts the program. Its pipe is a file from
//! which a job reads, or to which it writes, as far as that goes without a wait.
//!
//! Files are opened without waiting for another process (`O_NONBLOCK`): pipes are refused, and reading from a
//! terminal without input is an error. One call returns at most [`Limits::file_bytes_max`] bytes. A file that
//! is not a regular one returns at most that many in all.
//!
//! [`Limits::file_bytes_max`]: super::Limits::file_bytes_max

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use mlua::{
    AnyUserData, BorrowedBytes, IntoLuaMulti, Lua, LuaString, MultiValue, Result, Table, UserData,
    Value,
};

/// Threads that may wait for a disk.
pub trait FileThreads {
    /// Has a thread perform `job`, starting now. If [`FileJob::is_owed`], the job is done even if the future
    /// is dropped. An outer error ends the script: the result did not come in time.
    fn run(&self, job: FileJob) -> FileWait;

    /// Has a thread perform a job that a script has left behind, without waiting for it. It is never refused.
    fn leave(&self, job: FileJob);

    /// Starts a program.
    fn start(&self, program: ProgramToStart) -> StartWait {
        drop(program);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// The future that [`FileThreads::start`] returns.
pub type StartWait = Pin<Box<dyn Future<Output = io::Result<StartedProgram>>>>;

/// A shell command to run.
#[derive(Debug)]
pub struct ProgramToStart {
    /// What the shell gets.
    pub command: Vec<u8>,
    /// What the script has of the program.
    pub pipe: ProgramPipe,
}

/// Which of a program's streams is a pipe to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramPipe {
    /// None: `os.execute`.
    None,
    /// The program's standard output.
    Output,
    /// The program's standard input.
    Input,
}

/// A program that runs.
pub struct StartedProgram {
    /// The script's end of its pipe, which never blocks.
    pub pipe: Option<File>,
    /// Resolves when the program has ended. If it is dropped before, the program is ended.
    pub end: ProgramEnd,
}

/// The future of a program's end.
pub type ProgramEnd = Pin<Box<dyn Future<Output = io::Result<ProgramExit>> + Send>>;

/// How a program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramExit {
    /// With an exit status.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// The future that [`FileThreads::run`] returns.
pub type FileWait = Pin<Box<dyn Future<Output = Result<io::Result<FileDone>>>>>;

/// Work on a file that may wait for a disk.
#[derive(Debug)]
pub struct FileJob {
    path: PathBuf,
    what: Operation,
    /// Whether the file is the pipe of a program.
    is_pipe: bool,
}

/// The result of a job.
pub struct FileDone(Done);

/// How many bytes one call writes, and reads at most.
const CHUNK_BYTES: usize = 64 << 10;

/// How many bytes are read, even if a script wants fewer.
const READ_BYTES_MIN: usize = 4096;

/// The most characters of a number that `read("n")` accepts, as in Lua 5.3.
const NUMERAL_BYTES_MAX: usize = 200;

#[derive(Debug)]
enum Operation {
    Open(OpenOptions),
    OpenTemporary,
    Read(Arc<File>, usize),
    Write(Arc<File>, Vec<u8>),
    Seek(Arc<File>, Vec<u8>, SeekFrom),
    Close(Arc<File>, Vec<u8>),
    /// Creates an empty file with a new name.
    MakeName,
    Remove,
    Rename(PathBuf),
}

enum Done {
    Opened(Opened),
    Read(Vec<u8>),
    At(u64),
    Named,
    Nothing,
    Started(Option<File>, ProgramEnd),
    Ended(ProgramExit),
}

impl From<StartedProgram> for Done {
    fn from(started: StartedProgram) -> Done {
        Done::Started(started.pipe, started.end)
    }
}

#[derive(Debug)]
struct Opened {
    file: Arc<File>,
    is_regular: bool,
    first: Vec<u8>,
    /// Whether `first` is the whole file, according to the file's size.
    is_all: bool,
}

impl FileJob {
    /// The path of its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes it will write.
    pub fn bytes(&self) -> usize {
        match &self.what {
            Operation::Write(_, bytes)
            | Operation::Seek(_, bytes, _)
            | Operation::Close(_, bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Whether it must be done even if the script that waits for it has ended: it writes or closes a file.
    /// Removals and renames are dropped then, because such jobs would pile up behind a disk that hangs.
    pub fn is_owed(&self) -> bool {
        matches!(self.what, Operation::Close(..)) || self.bytes() > 0
    }

    /// The pipe of a program that the job is about, and whether it writes there.
    pub fn pipe(&self) -> Option<(&File, bool)> {
        if !self.is_pipe {
            return None;
        }
        match &self.what {
            Operation::Read(file, _) => Some((file, false)),
            Operation::Write(file, _) | Operation::Close(file, _) => Some((file, true)),
            _ => None,
        }
    }

    /// Performs a job on a pipe as far as that goes without a wait. `None`: call it again when the pipe is ready.
    pub fn attempt(&mut self) -> Option<io::Result<FileDone>> {
        let done = match &mut self.what {
            Operation::Read(file, count) => read(file, *count).map(Done::Read),
            Operation::Write(file, bytes) | Operation::Close(file, bytes) => {
                write_some(file, bytes).map(|()| Done::Nothing)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            done => Some(done.map(FileDone)),
        }
    }

    /// Performs the job.
    ///
    /// # Errors
    /// Those of open(2), read(2), write(2), lseek(2), unlink(2), rmdir(2) and rename(2).
    pub fn perform(self) -> io::Result<FileDone> {
        let done = match self.what {
            Operation::Open(options) => Done::Opened(open(&options, &self.path)?),
            Operation::OpenTemporary => {
                let opened = open(&new_file(), &self.path)?;
                std::fs::remove_file(&self.path)?;
                Done::Opened(opened)
            }
            Operation::Read(file, count) => Done::Read(read(&file, count)?),
            Operation::Write(file, bytes) => {
                (&*file).write_all(&bytes)?;
                Done::Nothing
            }
            Operation::Seek(file, bytes, to) => {
                (&*file).write_all(&bytes)?;
                Done::At((&*file).seek(to)?)
            }
            Operation::MakeName => {
                new_file().open(&self.path)?;
                Done::Named
            }
            Operation::Remove => {
                match std::fs::remove_file(&self.path) {
                    Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                        std::fs::remove_dir(&self.path)?;
                    }
                    result => result?,
                }
                Done::Nothing
            }
            Operation::Rename(to) => {
                std::fs::rename(&self.path, to)?;
                Done::Nothing
            }
            Operation::Close(file, bytes) => {
                (&*file).write_all(&bytes)?;
                Done::Nothing
            }
        };
        Ok(FileDone(done))
    }
}

/// Opens a file. Of a regular file it also reads the beginning, because most files are read and short.
fn open(options: &OpenOptions, path: &Path) -> io::Result<Opened> {
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_fifo() {
        let why = "it is a pipe, which the server would wait for";
        return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
    }
    let first = match kind.is_file() {
        // A file that was opened only for writing refuses this; a script that reads it gets the error then.
        true => read(&file, CHUNK_BYTES).unwrap_or_default(),
        false => Vec::new(),
    };
    Ok(Opened {
        file: Arc::new(file),
        is_regular: kind.is_file(),
        // Files in /proc have the size 0, and one read may return less than the buffer holds.
        is_all: metadata.len() > 0 && first.len() as u64 >= metadata.len(),
        first,
    })
}

/// Options to create a new file that only this user can access.
fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options
}

/// Reads up to `count` bytes. The result is empty only at the end of the file.
fn read(mut file: &File, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let length = loop {
        match file.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result?,
        }
    };
    bytes.truncate(length);
    if length < count / 2 {
        bytes.shrink_to_fit();
    }
    Ok(bytes)
}

/// Writes all of `bytes`, and removes what was written.
fn write_some(mut file: &File, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => drop(bytes.drain(..written?)),
        }
    }
    Ok(())
}

/// What all files of a state share.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) threads: RefCell<Option<Rc<dyn FileThreads>>>,
    /// The pipes of programs that were started since their run took them last.
    programs: RefCell<Vec<Weak<Open>>>,
}

/// The pipes of the programs that a run has started. What the script has not closed is closed when this is dropped.
#[derive(Default)]
pub(crate) struct ProgramsOfRun(Vec<Weak<Open>>);

impl ProgramsOfRun {
    /// Adds the programs that were started since the last call.
    pub(crate) fn add_new(&mut self, files: &Files) {
        self.0.append(&mut files.programs.borrow_mut());
    }
}

impl Drop for ProgramsOfRun {
    fn drop(&mut self) {
        for open in self.0.iter().filter_map(Weak::upgrade) {
            open.leave();
        }
    }
}

/// A file, for `lua/system.lua` only: scripts get a proxy.
struct Handle(Rc<Open>);

impl UserData for Handle {}

struct Open {
    files: Rc<Files>,
    path: PathBuf,
    file: RefCell<Option<Arc<File>>>,
    is_regular: bool,
    is_writable: bool,
    /// A standard stream, which all runs share. Each write becomes a job of its own.
    is_stream: bool,
    /// The end of the program whose pipe it is.
    program: RefCell<Option<ProgramEnd>>,
    /// Whether a job works on it. Never set for a standard stream.
    is_busy: Cell<bool>,
    buffers: RefCell<Buffers>,
}

#[derive(Default)]
struct Buffers {
    /// What was read. The script has taken everything before `start`.
    read: Vec<u8>,
    start: usize,
    /// How many bytes after `start` are known to contain no line end.
    scanned: usize,
    is_at_end: bool,
    /// How many bytes were read of a file without a size.
    endless_bytes: usize,
    /// How many blanks were skipped before a number.
    skipped: usize,
    written: Vec<u8>,
    is_unbuffered: bool,
}

/// What a script wants to read.
#[derive(Clone, Copy)]
enum ReadFormat {
    Line { keeps_end: bool },
    Number,
    All,
    Count(usize),
}

/// What the buffer provides of it.
enum Taken {
    Bytes(Vec<u8>),
    End,
    /// This many more bytes must be read first.
    More(usize),
    TooMuch,
}

impl Buffers {
    fn take(&mut self, format: ReadFormat, most: usize) -> Taken {
        let rest = self.read.get(self.start..).unwrap_or_default();
        let length = match format {
            ReadFormat::Count(count) if count > most && rest.len() > most => return Taken::TooMuch,
            ReadFormat::Count(count) if count <= rest.len() && !rest.is_empty() => count,
            ReadFormat::Count(count) if !self.is_at_end => {
                return Taken::More(count.min(most + 1) - rest.len());
            }
            ReadFormat::All if rest.len() > most => return Taken::TooMuch,
            ReadFormat::All if !self.is_at_end => return Taken::More(CHUNK_BYTES),
            ReadFormat::All => {
                let all = self.cut(rest.len());
                self.is_at_end = false;
                return Taken::Bytes(all);
            }
            ReadFormat::Line { keeps_end } => {
                let fresh = rest.get(self.scanned..).unwrap_or_default();
                match memchr::memchr(b'\n', fresh) {
                    Some(at) if self.scanned + at > most => return Taken::TooMuch,
                    Some(at) => {
                        let mut line = self.cut(self.scanned + at + 1);
                        if !keeps_end {
                            line.pop();
                        }
                        return Taken::Bytes(line);
                    }
                    None if rest.len() > most => return Taken::TooMuch,
                    None if !self.is_at_end => {
                        self.scanned = rest.len();
                        return Taken::More(rest.len());
                    }
                    None => rest.len(),
                }
            }
            ReadFormat::Number => {
                let is_space = |byte: &&u8| byte.is_ascii_whitespace() || **byte == 0x0b;
                let blanks = rest.iter().take_while(is_space).count();
                self.start += blanks;
                self.skipped += blanks;
                let rest = self.read.get(self.start..).unwrap_or_default();
                if self.skipped > most {
                    return Taken::TooMuch;
                }
                if rest.len() < NUMERAL_BYTES_MAX && !self.is_at_end {
                    return Taken::More(NUMERAL_BYTES_MAX);
                }
                self.skipped = 0;
                numeral(rest)
            }
            ReadFormat::Count(_) => rest.len(),
        };
        if length == 0 && self.start == self.read.len() {
            // The file may grow, so the next call reads again.
            self.is_at_end = false;
            return Taken::End;
        }
        Taken::Bytes(self.cut(length))
    }

    fn cut(&mut self, length: usize) -> Vec<u8> {
        let end = self.start + length;
        let bytes = self.read.get(self.start..end).unwrap_or_default().to_vec();
        self.start = end;
        self.scanned = 0;
        if self.start >= self.read.len() {
            self.read = Vec::new();
            self.start = 0;
        }
        bytes
    }

    fn add(&mut self, bytes: Vec<u8>) {
        self.is_at_end = bytes.is_empty();
        if self.start > 0 {
            self.read.drain(..self.start);
            self.start = 0;
        }
        match self.read.is_empty() {
            true => self.read = bytes,
            false => self.read.extend_from_slice(&bytes),
        }
    }

    fn unread(&self) -> usize {
        self.read.len() - self.start
    }

    fn forget_read(&mut self) {
        self.read = Vec::new();
        self.start = 0;
        self.scanned = 0;
        self.is_at_end = false;
    }
}

/// The length of the Lua number at the beginning of `bytes`.
fn numeral(bytes: &[u8]) -> usize {
    let bytes = bytes.get(..NUMERAL_BYTES_MAX).unwrap_or(bytes);
    let is = |at: usize, set: &[u8]| bytes.get(at).is_some_and(|byte| set.contains(byte));
    let mut at = usize::from(is(0, b"+-"));
    let is_hexadecimal = is(at, b"0") && is(at + 1, b"xX");
    if is_hexadecimal {
        at += 2;
    }
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(|byte| match is_hexadecimal {
            true => byte.is_ascii_hexdigit(),
            false => byte.is_ascii_digit(),
        }) {
            at += 1;
        }
        at
    };
    at = digits(at);
    if is(at, b".") {
        at = digits(at + 1);
    }
    let exponent: &[u8] = if is_hexadecimal { b"pP" } else { b"eE" };
    if is(at, exponent) {
        at += 1;
        at += usize::from(is(at, b"+-"));
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
    }
    at
}

impl Open {
    fn job(&self, what: Operation) -> FileJob {
        FileJob {
            path: self.path.clone(),
            what,
            is_pipe: self.program.borrow().is_some(),
        }
    }

    /// Has a thread write the remaining bytes and close the file. The script does not wait for it.
    fn leave(&self) {
        let Some(file) = self.file.take() else { return };
        let bytes = std::mem::take(&mut self.buffers.borrow_mut().written);
        let job = self.job(Operation::Close(file, bytes));
        self.program.take();
        match &*self.files.threads.borrow() {
            Some(threads) => threads.leave(job),
            // As in C, the script does not learn that the last bytes could not be written.
            None => drop(job.perform()),
        }
    }
}

impl Drop for Open {
    /// The script did not close the file.
    fn drop(&mut self) {
        self.leave();
    }
}

/// A file that a call works on, until the call is done or its run has ended.
struct Worked {
    open: Rc<Open>,
    /// Whether bytes are being read that no other run would get.
    is_read: bool,
}

impl Drop for Worked {
    fn drop(&mut self) {
        self.open.is_busy.set(false);
        if self.is_read && !self.open.is_stream {
            // The run has ended, but the file's position is already after the bytes that were read for it.
            // Another run that shares the file would miss them without noticing, so the file is closed.
            self.open.leave();
        }
    }
}

/// A call whose job is not done yet.
pub(crate) struct Begun {
    files: Rc<Files>,
    open: Option<Worked>,
    path: PathBuf,
    is_writable: bool,
    /// The program whose end the call waits for, after its job.
    program: Option<ProgramEnd>,
}

/// What a call needs done.
pub(crate) enum Need {
    File(FileJob),
    Program(ProgramToStart),
}

impl Files {
    /// The functions for `lua/system.lua`.
    pub(super) fn table(lua: &Lua, most: usize) -> Result<Table> {
        let files = Rc::new(Files::default());
        let table = lua.create_table()?;
        let shared = Rc::clone(&files);
        let run = lua.create_function(move |lua, arguments: MultiValue| {
            match shared.begin(arguments)? {
                Ok((begun, Need::File(job))) => begun.finish(lua, job.perform()),
                Ok((begun, Need::Program(_))) => {
                    begun.finish(lua, Err(io::ErrorKind::Unsupported.into()))
                }
                Err(words) => refused(lua, words),
            }
        })?;
        table.set("run", run)?;
        let take = lua.create_function(move |lua, (handle, format): (AnyUserData, Value)| {
            let open = Rc::clone(&handle.borrow::<Handle>()?.0);
            let taken = match format_of(&format) {
                Some(format) => open.buffers.borrow_mut().take(format, most),
                None => return ("no format",).into_lua_multi(lua),
            };
            match taken {
                Taken::Bytes(bytes) => ("done", lua.create_string(bytes)?).into_lua_multi(lua),
                Taken::End => ("done",).into_lua_multi(lua),
                Taken::More(count) => ("more", count).into_lua_multi(lua),
                Taken::TooMuch => ("too much",).into_lua_multi(lua),
            }
        })?;
        table.set("take", take)?;
        let put = lua.create_function(|_, (handle, text): (AnyUserData, BorrowedBytes)| {
            let open = Rc::clone(&handle.borrow::<Handle>()?.0);
            if !open.is_writable {
                return Ok("not writable");
            }
            let buffers = &mut *open.buffers.borrow_mut();
            if buffers.unread() > 0 {
                return Ok("seek first");
            }
            buffers.written.extend_from_slice(&text);
            let is_due = buffers.is_unbuffered || buffers.written.len() >= CHUNK_BYTES;
            Ok(if is_due { "flush" } else { "done" })
        })?;
        table.set("put", put)?;
        let is_open = lua.create_function(|_, handle: AnyUserData| {
            Ok(handle.borrow::<Handle>()?.0.file.borrow().is_some())
        })?;
        table.set("is_open", is_open)?;
        // Closes a file that has nothing to write. Returns whether `handle` was a file.
        let close = lua.create_function(|_, handle: AnyUserData| {
            let open = Rc::clone(&handle.borrow::<Handle>()?.0);
            let has_work = !open.buffers.borrow().written.is_empty();
            if open.is_busy.get() || has_work || open.program.borrow().is_some() {
                return Ok(false);
            }
            open.buffers.borrow_mut().forget_read();
            open.leave();
            Ok(true)
        })?;
        table.set("close", close)?;
        let has_written = lua.create_function(|_, handle: AnyUserData| {
            Ok(!handle
                .borrow::<Handle>()?
                .0
                .buffers
                .borrow()
                .written
                .is_empty())
        })?;
        table.set("has_written", has_written)?;
        let is_standard = lua
            .create_function(|_, handle: AnyUserData| Ok(handle.borrow::<Handle>()?.0.is_stream))?;
        table.set("is_standard", is_standard)?;
        let buffer = lua.create_function(|_, (handle, is_buffered): (AnyUserData, bool)| {
            let open = &handle.borrow::<Handle>()?.0;
            open.buffers.borrow_mut().is_unbuffered = !is_buffered || open.is_stream;
            Ok(())
        })?;
        table.set("buffer", buffer)?;
        let shared = Rc::clone(&files);
        let standard = lua.create_function(move |_, name: String| shared.standard(&name))?;
        table.set("standard", standard)?;
        lua.set_app_data(FilesOfState {
            files,
            table: table.clone(),
        });
        Ok(table)
    }

    /// A standard stream of the process. All runs of the state share it.
    fn standard(self: &Rc<Files>, name: &str) -> Result<Handle> {
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let descriptor: BorrowedFd<'_> = match name {
            "stdin" => stdin.as_fd(),
            "stdout" => stdout.as_fd(),
            _ => stderr.as_fd(),
        };
        // If the process has no such descriptor, the result is a closed file.
        let file = descriptor.try_clone_to_owned().ok().map(File::from);
        Ok(Handle(Rc::new(Open {
            files: Rc::clone(self),
            path: PathBuf::from(format!("/dev/{name}")),
            file: RefCell::new(file.map(Arc::new)),
            is_regular: false,
            is_writable: name != "stdin",
            is_stream: true,
            program: RefCell::default(),
            is_busy: Cell::new(false),
            buffers: RefCell::new(Buffers {
                is_unbuffered: true,
                ..Buffers::default()
            }),
        })))
    }

    /// Turns `(operation, handle or path, …)` into a job; returns a message if it makes no sense.
    pub(crate) fn begin(
        self: &Rc<Files>,
        arguments: MultiValue,
    ) -> Result<std::result::Result<(Begun, Need), &'static str>> {
        let mut arguments = arguments.into_iter();
        let operation = text(arguments.next());
        let subject = arguments.next();
        let first = arguments.next();
        let Some(Value::UserData(handle)) = subject else {
            if matches!(operation.as_str(), "popen" | "execute") {
                return Ok(self.begin_program(&operation, subject, first));
            }
            return Ok(self.begin_at_path(&operation, subject, first));
        };
        let open = Rc::clone(&handle.borrow::<Handle>()?.0);
        let Some(file) = open.file.borrow().clone() else {
            return Ok(Err("the file is closed"));
        };
        if open.is_busy.get() {
            return Ok(Err("another coroutine works on the file"));
        }
        let is_pipe = open.program.borrow().is_some();
        if is_pipe && operation == "seek" {
            return Ok(Err("Illegal seek"));
        }
        let buffers = &mut *open.buffers.borrow_mut();
        let written = std::mem::take(&mut buffers.written);
        let what = match operation.as_str() {
            "fill" => {
                // A read must not drop written bytes. `lua/system.lua` has flushed them before.
                buffers.written = written;
                let count = number(first).clamp(READ_BYTES_MIN as f64, CHUNK_BYTES as f64);
                Operation::Read(file, count as usize)
            }
            "flush" => Operation::Write(file, written),
            "seek" => {
                let offset = number(arguments.next());
                let to = match text(first).as_str() {
                    "set" if offset < 0.0 => {
                        buffers.written = written;
                        return Ok(Err("Invalid argument"));
                    }
                    "set" => SeekFrom::Start(offset as u64),
                    "end" => SeekFrom::End(offset as i64),
                    _ => SeekFrom::Current(offset as i64 - buffers.unread() as i64),
                };
                buffers.forget_read();
                Operation::Seek(file, written, to)
            }
            _ => {
                drop(file);
                buffers.forget_read();
                match open.file.take() {
                    Some(file) => Operation::Close(file, written),
                    None => return Ok(Err("the file is closed")),
                }
            }
        };
        open.is_busy.set(!open.is_stream);
        let worked = Worked {
            open: Rc::clone(&open),
            is_read: matches!(what, Operation::Read(..)),
        };
        let job = open.job(what);
        let is_close = matches!(job.what, Operation::Close(..));
        let begun = Begun {
            files: Rc::clone(self),
            path: open.path.clone(),
            is_writable: open.is_writable,
            program: is_close.then(|| open.program.take()).flatten(),
            open: Some(worked),
        };
        Ok(Ok((begun, Need::File(job))))
    }

    /// `io.popen` and `os.execute`.
    fn begin_program(
        self: &Rc<Files>,
        operation: &str,
        command: Option<Value>,
        mode: Option<Value>,
    ) -> std::result::Result<(Begun, Need), &'static str> {
        let command = path_of(command)?;
        let pipe = match (operation, text(mode).as_str()) {
            ("execute", _) => ProgramPipe::None,
            (_, "r") => ProgramPipe::Output,
            (_, "w") => ProgramPipe::Input,
            _ => return Err("Invalid argument"),
        };
        let begun = Begun {
            files: Rc::clone(self),
            open: None,
            path: command.clone(),
            is_writable: pipe == ProgramPipe::Input,
            program: None,
        };
        let command = command.into_os_string().into_encoded_bytes();
        Ok((begun, Need::Program(ProgramToStart { command, pipe })))
    }

    /// The operations on a path, given or generated.
    fn begin_at_path(
        self: &Rc<Files>,
        operation: &str,
        path: Option<Value>,
        argument: Option<Value>,
    ) -> std::result::Result<(Begun, Need), &'static str> {
        let mut is_writable = true;
        let (path, what) = match operation {
            "temporary" => (made_up_path()?, Operation::OpenTemporary),
            "make name" => (made_up_path()?, Operation::MakeName),
            "open" => {
                let (options, writes) = options(&text(argument)).ok_or("Invalid argument")?;
                is_writable = writes;
                (path_of(path)?, Operation::Open(options))
            }
            "remove" => (path_of(path)?, Operation::Remove),
            "rename" => (path_of(path)?, Operation::Rename(path_of(argument)?)),
            _ => return Err("no file"),
        };
        let begun = Begun {
            files: Rc::clone(self),
            open: None,
            path: path.clone(),
            is_writable,
            program: None,
        };
        let job = FileJob {
            path,
            what,
            is_pipe: false,
        };
        Ok((begun, Need::File(job)))
    }
}

impl Begun {
    /// Has `threads` do what is needed, and then waits for the end of a program if the call does.
    pub(crate) fn carry_out(
        mut self,
        need: Need,
        threads: &dyn FileThreads,
    ) -> impl Future<Output = Result<(Begun, io::Result<FileDone>)>> + use<> {
        // From here on the job belongs to the threads: what it writes is written even if the run ends at once.
        let (file, program) = match need {
            Need::File(job) => (Some(threads.run(job)), None),
            Need::Program(program) => (None, Some(threads.start(program))),
        };
        async move {
            let mut done = match (file, program) {
                (Some(file), _) => file.await?,
                (None, Some(program)) => program.await.map(|started| FileDone(started.into())),
                (None, None) => Err(io::ErrorKind::Unsupported.into()),
            };
            if let Ok(FileDone(Done::Started(None, end))) = done {
                done = end.await.map(|exit| FileDone(Done::Ended(exit)));
            } else if let Some(end) = self.program.take() {
                done = match (end.await, done) {
                    (Ok(exit), Ok(_)) => Ok(FileDone(Done::Ended(exit))),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            Ok((self, done))
        }
    }

    /// The results for Lua: `true` and a value, or `nil`, a message and an error number.
    pub(crate) fn finish(mut self, lua: &Lua, result: io::Result<FileDone>) -> Result<MultiValue> {
        if let Some(worked) = &mut self.open {
            worked.is_read = false;
        }
        let done = match result {
            Ok(FileDone(done)) => done,
            Err(error) => {
                let words = error.to_string();
                let words = words.split(" (os error").next().unwrap_or_default();
                let path = self.path.to_string_lossy();
                let words = match self.open {
                    Some(_) => words.to_owned(),
                    None => format!("{path}: {words}"),
                };
                let code = error.raw_os_error().unwrap_or(libc::EAGAIN);
                return (Value::Nil, words, code).into_lua_multi(lua);
            }
        };
        match (done, self.open) {
            (Done::Opened(opened), _) => {
                let open = Open {
                    files: self.files,
                    path: self.path,
                    file: RefCell::new(Some(opened.file)),
                    is_regular: opened.is_regular,
                    is_writable: self.is_writable,
                    is_stream: false,
                    program: RefCell::default(),
                    is_busy: Cell::new(false),
                    buffers: RefCell::new(Buffers {
                        read: opened.first,
                        is_at_end: opened.is_all,
                        ..Buffers::default()
                    }),
                };
                (true, Handle(Rc::new(open))).into_lua_multi(lua)
            }
            (Done::Started(pipe, end), _) => {
                let open = Rc::new(Open {
                    files: Rc::clone(&self.files),
                    path: self.path,
                    file: RefCell::new(pipe.map(Arc::new)),
                    is_regular: false,
                    is_writable: self.is_writable,
                    is_stream: false,
                    program: RefCell::new(Some(end)),
                    is_busy: Cell::new(false),
                    buffers: RefCell::default(),
                });
                self.files.programs.borrow_mut().push(Rc::downgrade(&open));
                (true, Handle(open)).into_lua_multi(lua)
            }
            (Done::Ended(ProgramExit::Code(code)), _) => (true, "exit", code).into_lua_multi(lua),
            (Done::Ended(ProgramExit::Signal(signal)), _) => {
                (true, "signal", signal).into_lua_multi(lua)
            }
            (Done::Read(bytes), Some(Worked { ref open, .. })) => {
                let buffers = &mut *open.buffers.borrow_mut();
                if !open.is_regular && !open.is_stream {
                    buffers.endless_bytes += bytes.len();
                }
                let total = buffers.endless_bytes;
                buffers.add(bytes);
                (true, total).into_lua_multi(lua)
            }
            (Done::Named, _) => {
                let name = lua.create_string(self.path.as_os_str().as_bytes())?;
                (true, name).into_lua_multi(lua)
            }
            (Done::At(position), _) => (true, position).into_lua_multi(lua),
            (Done::Nothing | Done::Read(_), _) => (true,).into_lua_multi(lua),
        }
    }
}

/// What the state keeps so that [`FileThreads`] can be provided later.
pub(crate) struct FilesOfState {
    pub(crate) files: Rc<Files>,
    pub(crate) table: Table,
}

pub(crate) fn refused(lua: &Lua, words: &str) -> Result<MultiValue> {
    (Value::Nil, words, libc::EINVAL).into_lua_multi(lua)
}

/// The path that a script passed.
fn path_of(value: Option<Value>) -> std::result::Result<PathBuf, &'static str> {
    let Some(Value::String(path)) = value else {
        return Err("no path");
    };
    Ok(PathBuf::from(OsStr::from_bytes(&path.as_bytes())))
}

/// A path for a temporary file.
fn made_up_path() -> std::result::Result<PathBuf, &'static str> {
    let mut random = [0; 8];
    super::random::fill(&mut random).map_err(|_| "no random bytes")?;
    let name = format!("petrel-lua-{:016x}", u64::from_ne_bytes(random));
    Ok(std::env::temp_dir().join(name))
}

/// Options for a mode of fopen(3), and whether it writes. As in C, unknown letters after the first one are
/// ignored.
fn options(mode: &str) -> Option<(OpenOptions, bool)> {
    let (kind, rest) = mode.split_at_checked(1)?;
    let updates = rest.contains('+');
    let mut options = OpenOptions::new();
    match kind {
        "r" => options.read(true).write(updates),
        "w" => options
            .write(true)
            .read(updates)
            .create(true)
            .truncate(true),
        "a" => options.append(true).read(updates).create(true),
        _ => return None,
    };
    if rest.contains('x') && kind != "r" {
        options.create_new(true);
    }
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    Some((options, updates || kind != "r"))
}

/// A format of `file:read`, with or without a star.
fn format_of(format: &Value) -> Option<ReadFormat> {
    match format {
        Value::Integer(count) => Some(ReadFormat::Count(usize::try_from(*count).unwrap_or(0))),
        // The byte count of a NaN is above any limit.
        Value::Number(count) if count.is_nan() => Some(ReadFormat::Count(usize::MAX)),
        Value::Number(count) => Some(ReadFormat::Count(*count as usize)),
        Value::String(text) => {
            let text = text.as_bytes();
            let letter = text.iter().find(|byte| **byte != b'*')?;
            Some(match letter {
                b'l' => ReadFormat::Line { keeps_end: false },
                b'L' => ReadFormat::Line { keeps_end: true },
                b'n' => ReadFormat::Number,
                b'a' => ReadFormat::All,
                _ => return None,
            })
        }
        _ => None,
    }
}

fn text(value: Option<Value>) -> String {
    let text = |text: LuaString| text.to_string_lossy();
    match value {
        Some(Value::String(string)) => text(string),
        _ => String::new(),
    }
}

fn number(value: Option<Value>) -> f64 {
    match value {
        Some(Value::Integer(number)) => number as f64,
        Some(Value::Number(number)) => number,
        _ => 0.0,
    }
}
