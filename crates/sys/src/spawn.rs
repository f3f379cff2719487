//! Starts a program with posix_spawn(3): without copying this process, and so that the program inherits only
//! what it was given.
//!
//! The standard library also uses posix_spawn, but its programs inherit the signal mask, and the threads of
//! this server block the signals that would end a program.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A program to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The file to execute.
    pub path: &'a CStr,
    /// The argument list, the program's name included.
    pub arguments: &'a [CString],
    /// The environment, each `NAME=value`.
    pub environment: &'a [CString],
    /// The directory in which it runs.
    pub directory: &'a CStr,
    /// Its standard input, output and error. All other descriptors must be close-on-exec.
    pub descriptors: [BorrowedFd<'a>; 3],
}

impl Spawn<'_> {
    /// Starts the program as the leader of its own process group, with no signal blocked or ignored. Returns
    /// its process id; the caller has to wait for it.
    ///
    /// # Errors
    /// Those of posix_spawn(3), and of execve(2) and chdir(2) in the new process; `InvalidInput` for a
    /// descriptor below 3, because another one would be copied over it.
    pub fn start(&self) -> io::Result<i32> {
        if self.descriptors.iter().any(|source| source.as_raw_fd() < 3) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let actions = Actions::new(self)?;
        let attributes = Attributes::new()?;
        let arguments = pointers(self.arguments);
        let environment = pointers(self.environment);
        let mut id = 0;
        let _start = Start::new();
        // SAFETY: `actions` and `attributes` are initialised and live until the end of this function. Both
        // lists end with a null pointer, and `self` borrows what they point to. The call only reads it, and
        // does not return before the new process has executed the program or failed.
        let error = unsafe {
            libc::posix_spawn(
                &mut id,
                self.path.as_ptr(),
                actions.0.as_ptr(),
                attributes.0.as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            )
        };
        succeeded(error).map(|()| id)
    }
}

/// Whether a program is being started. Until that has ended, which may take long, the new process has copies
/// of all descriptors: a descriptor that is closed meanwhile stays open for the other side, unless it is shut
/// down.
#[inline]
pub fn is_starting() -> bool {
    STARTS.load(Ordering::Relaxed) > 0
}

/// How many programs are being started.
static STARTS: AtomicUsize = AtomicUsize::new(0);

/// A program that is being started.
struct Start;

impl Start {
    fn new() -> Start {
        STARTS.fetch_add(1, Ordering::Relaxed);
        Start
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        STARTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the new process does between fork and exec.
struct Actions(MaybeUninit<libc::posix_spawn_file_actions_t>);

impl Actions {
    fn new(spawn: &Spawn<'_>) -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call initialises what the pointer points to, which is memory of the right type.
        succeeded(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        let mut actions = Actions(actions);
        for (target, source) in (0..).zip(spawn.descriptors) {
            // SAFETY: the actions are initialised; the call copies two numbers into them.
            succeeded(unsafe {
                libc::posix_spawn_file_actions_adddup2(
                    actions.0.as_mut_ptr(),
                    source.as_raw_fd(),
                    target,
                )
            })?;
        }
        // SAFETY: the actions are initialised; the call copies the text.
        succeeded(unsafe {
            libc::posix_spawn_file_actions_addchdir_np(
                actions.0.as_mut_ptr(),
                spawn.directory.as_ptr(),
            )
        })?;
        Ok(actions)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: the actions are initialised, and no code uses them after this.
        unsafe { libc::posix_spawn_file_actions_destroy(self.0.as_mut_ptr()) };
    }
}

/// The properties of the new process.
struct Attributes(MaybeUninit<libc::posix_spawnattr_t>);

impl Attributes {
    fn new() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initialises what the pointer points to, which is memory of the right type.
        succeeded(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        let mut attributes = Attributes(attributes);
        let place = attributes.0.as_mut_ptr();
        let flags = libc::POSIX_SPAWN_SETPGROUP
            | libc::POSIX_SPAWN_SETSIGMASK
            | libc::POSIX_SPAWN_SETSIGDEF;
        let flags = libc::c_short::try_from(flags).unwrap_or(0);
        let mut none = MaybeUninit::uninit();
        let mut all = MaybeUninit::uninit();
        // SAFETY: the first two calls initialise the sets. The others copy them, and numbers, into attributes
        // that are initialised. SIGKILL and SIGSTOP always have their default action.
        unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigfillset(all.as_mut_ptr());
            libc::sigdelset(all.as_mut_ptr(), libc::SIGKILL);
            libc::sigdelset(all.as_mut_ptr(), libc::SIGSTOP);
            succeeded(libc::posix_spawnattr_setsigmask(place, none.as_ptr()))?;
            succeeded(libc::posix_spawnattr_setsigdefault(place, all.as_ptr()))?;
            succeeded(libc::posix_spawnattr_setpgroup(place, 0))?;
            succeeded(libc::posix_spawnattr_setflags(place, flags))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the attributes are initialised, and no code uses them after this.
        unsafe { libc::posix_spawnattr_destroy(self.0.as_mut_ptr()) };
    }
}

/// The list in C's format, with a null pointer at its end. posix_spawn takes pointers to mutable memory but
/// does not write to it.
fn pointers(texts: &[CString]) -> Vec<*mut libc::c_char> {
    let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
    pointers.chain([ptr::null_mut()]).collect()
}

/// Turns the returned errno of these calls into a result.
fn succeeded(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    fn texts(texts: &[&str]) -> Vec<CString> {
        let text = |text: &&str| CString::new(*text).expect("no NUL");
        texts.iter().map(text).collect()
    }

    /// Runs a program and returns its output.
    fn output(path: &CStr, arguments: &[&str]) -> io::Result<String> {
        let null = std::fs::File::open("/dev/null")?;
        let (mut ours, theirs) = io::pipe()?;
        let id = Spawn {
            path,
            arguments: &texts(arguments),
            environment: &texts(&["A=b"]),
            directory: c"/usr",
            descriptors: [null.as_fd(), theirs.as_fd(), null.as_fd()],
        }
        .start()?;
        drop(theirs);
        let mut text = String::new();
        ours.read_to_string(&mut text)?;
        let mut status = 0;
        // SAFETY: the pointer points to a number that lives through the call.
        assert_eq!(unsafe { libc::waitpid(id, &mut status, 0) }, id);
        Ok(text)
    }

    #[test]
    fn a_program_gets_what_it_is_given() {
        let text = output(c"/bin/sh", &["sh", "-c", "echo \"$0 $1 $A $PWD\"", "x"]);
        assert_eq!(text.expect("it runs"), "x  b /usr\n");
    }

    #[test]
    fn no_signal_is_blocked_or_ignored() {
        // SAFETY: the sets are initialised before they are read. The mask is this thread's own, and no other
        // code here sends the signal whose action is changed.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
            libc::signal(libc::SIGUSR2, libc::SIG_IGN);
        }
        let status = output(c"/bin/cat", &["cat", "/proc/self/status"]).expect("it runs");
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(line.expect("it is told").trim(), 16).expect("a number")
        };
        assert_eq!(set("SigBlk:"), 0);
        // Two are the C library's own.
        assert_eq!(set("SigIgn:") & 0x7fff_ffff, 0);
    }

    #[test]
    fn errors_of_the_new_process_are_told() {
        let error = output(c"/nonexistent", &["x"]).expect_err("it does not exist");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = output(c"/etc/passwd", &["x"]).expect_err("it is no program");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
