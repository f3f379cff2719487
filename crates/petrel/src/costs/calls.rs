//! The system calls that Petrel makes: names, what their arguments are, and which of them only wait.
//!
//! A table of our own, because a name is all that is needed, and those of libc have a number on every
//! architecture. A call that is not here is shown by its number.

use nix::libc;

/// What is known of a system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownCall {
    number: libc::c_long,
    /// Its name, as strace writes it.
    pub(super) name: &'static str,
    /// What it acts on.
    pub(super) acts_on: ActsOn,
}

/// What a system call acts on, as far as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActsOn {
    /// The descriptor that is its first argument.
    Descriptor,
    /// The descriptor that is its first argument, and its result is a number of bytes.
    Bytes,
    /// The path that is its first argument.
    Path,
    /// The path that is its second argument.
    PathAt,
    /// Something that is not shown.
    Nothing,
    /// Nothing: it waits for events, or for another thread.
    Wait,
}

/// The call with this number.
pub(super) fn known(number: u64) -> Option<&'static KnownCall> {
    let number = libc::c_long::try_from(number).ok()?;
    CALLS.iter().find(|call| call.number == number)
}

macro_rules! calls {
    ($($(#[$only:meta])? $constant:ident $name:literal $acts_on:ident;)+) => {
        const CALLS: &[KnownCall] = &[$(
            $(#[$only])?
            KnownCall { number: libc::$constant, name: $name, acts_on: ActsOn::$acts_on },
        )+];
    };
}

calls! {
    SYS_read "read" Bytes;
    SYS_readv "readv" Bytes;
    SYS_pread64 "pread64" Bytes;
    SYS_preadv "preadv" Bytes;
    SYS_preadv2 "preadv2" Bytes;
    SYS_recvfrom "recvfrom" Bytes;
    SYS_recvmsg "recvmsg" Bytes;
    SYS_write "write" Bytes;
    SYS_writev "writev" Bytes;
    SYS_pwrite64 "pwrite64" Bytes;
    SYS_sendto "sendto" Bytes;
    SYS_sendmsg "sendmsg" Bytes;
    SYS_sendfile "sendfile" Bytes;
    SYS_splice "splice" Bytes;
    SYS_copy_file_range "copy_file_range" Bytes;
    SYS_accept4 "accept4" Descriptor;
    SYS_connect "connect" Descriptor;
    SYS_close "close" Descriptor;
    SYS_shutdown "shutdown" Descriptor;
    SYS_bind "bind" Descriptor;
    SYS_getsockname "getsockname" Descriptor;
    SYS_getpeername "getpeername" Descriptor;
    SYS_getsockopt "getsockopt" Descriptor;
    SYS_setsockopt "setsockopt" Descriptor;
    SYS_ioctl "ioctl" Descriptor;
    SYS_fcntl "fcntl" Descriptor;
    SYS_fstat "fstat" Descriptor;
    SYS_fstatfs "fstatfs" Descriptor;
    SYS_lseek "lseek" Descriptor;
    SYS_ftruncate "ftruncate" Descriptor;
    SYS_fadvise64 "fadvise64" Descriptor;
    SYS_readahead "readahead" Descriptor;
    SYS_fgetxattr "fgetxattr" Descriptor;
    SYS_flock "flock" Descriptor;
    SYS_fsync "fsync" Descriptor;
    SYS_getdents64 "getdents64" Descriptor;
    SYS_dup "dup" Descriptor;
    SYS_inotify_add_watch "inotify_add_watch" PathAt;
    SYS_inotify_rm_watch "inotify_rm_watch" Descriptor;
    #[cfg(target_arch = "x86_64")]
    SYS_open "open" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_stat "stat" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_lstat "lstat" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_access "access" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_readlink "readlink" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_unlink "unlink" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_rename "rename" Path;
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir "mkdir" Path;
    SYS_statfs "statfs" Path;
    SYS_getxattr "getxattr" Path;
    SYS_openat "openat" PathAt;
    SYS_openat2 "openat2" PathAt;
    SYS_newfstatat "newfstatat" PathAt;
    SYS_statx "statx" PathAt;
    SYS_faccessat "faccessat" PathAt;
    SYS_faccessat2 "faccessat2" PathAt;
    SYS_readlinkat "readlinkat" PathAt;
    SYS_unlinkat "unlinkat" PathAt;
    SYS_mkdirat "mkdirat" PathAt;
    SYS_renameat "renameat" PathAt;
    SYS_renameat2 "renameat2" PathAt;
    SYS_linkat "linkat" PathAt;
    SYS_socket "socket" Nothing;
    SYS_socketpair "socketpair" Nothing;
    SYS_pipe2 "pipe2" Nothing;
    SYS_memfd_create "memfd_create" Nothing;
    SYS_epoll_ctl "epoll_ctl" Nothing;
    SYS_clone "clone" Nothing;
    SYS_clone3 "clone3" Nothing;
    SYS_wait4 "wait4" Nothing;
    SYS_waitid "waitid" Nothing;
    SYS_pidfd_open "pidfd_open" Nothing;
    SYS_mmap "mmap" Nothing;
    SYS_munmap "munmap" Nothing;
    SYS_mremap "mremap" Nothing;
    SYS_mprotect "mprotect" Nothing;
    SYS_madvise "madvise" Nothing;
    SYS_brk "brk" Nothing;
    SYS_getrandom "getrandom" Nothing;
    SYS_clock_gettime "clock_gettime" Nothing;
    SYS_rt_sigprocmask "rt_sigprocmask" Nothing;
    SYS_rt_sigaction "rt_sigaction" Nothing;
    SYS_rt_sigreturn "rt_sigreturn" Nothing;
    SYS_sigaltstack "sigaltstack" Nothing;
    SYS_tgkill "tgkill" Nothing;
    SYS_timer_settime "timer_settime" Nothing;
    SYS_prctl "prctl" Nothing;
    SYS_set_robust_list "set_robust_list" Nothing;
    SYS_rseq "rseq" Nothing;
    SYS_sched_getaffinity "sched_getaffinity" Nothing;
    SYS_gettid "gettid" Nothing;
    SYS_getpid "getpid" Nothing;
    SYS_io_uring_enter "io_uring_enter" Nothing;
    SYS_io_submit "io_submit" Nothing;
    SYS_eventfd2 "eventfd2" Nothing;
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait "epoll_wait" Wait;
    SYS_epoll_pwait "epoll_pwait" Wait;
    SYS_epoll_pwait2 "epoll_pwait2" Wait;
    SYS_futex "futex" Wait;
    SYS_ppoll "ppoll" Wait;
    #[cfg(target_arch = "x86_64")]
    SYS_poll "poll" Wait;
    SYS_io_getevents "io_getevents" Wait;
    SYS_clock_nanosleep "clock_nanosleep" Wait;
    SYS_nanosleep "nanosleep" Wait;
    SYS_restart_syscall "restart_syscall" Wait;
    SYS_sched_yield "sched_yield" Wait;
    SYS_exit "exit" Wait;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (index, call) in CALLS.iter().enumerate() {
            for other in &CALLS[index + 1..] {
                assert!(
                    call.number != other.number && call.name != other.name,
                    "{call:?}"
                );
            }
        }
        let number = u64::try_from(libc::SYS_openat).expect("positive");
        assert_eq!(known(number).map(|call| call.name), Some("openat"));
        assert!(known(u64::MAX).is_none() && known(999_999).is_none());
    }
}
