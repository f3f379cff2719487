//! How a running script is stopped: a signal, its handler, and the hook that the handler sets.
//!
//! The signal is SIGURG. No other program sends it to a thread, and it is ignored by default.

use std::cell::Cell;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use mlua::ffi;

use super::Excess;
use super::watchdog::{self, Slot};
use crate::raw::{self, Coroutine, Resumed};

const SIGNAL: c_int = libc::SIGURG;

const WITHIN: u8 = 0;
const OUT_OF_TIME: u8 = 1;
const OUT_OF_MEMORY: u8 = 2;

unsafe extern "C-unwind" {
    /// A function of LuaJIT 2.1 that mlua does not declare.
    fn lua_isyieldable(state: *mut ffi::lua_State) -> c_int;
}

/// What this thread runs. It is plain memory without a destructor, so that a signal handler may read it.
struct Running {
    state: Cell<*mut ffi::lua_State>,
    slot: Cell<*const Slot>,
    verdict: AtomicU8,
}

thread_local! {
    static RUNNING: Running = const {
        Running {
            state: Cell::new(ptr::null_mut()),
            slot: Cell::new(ptr::null()),
            verdict: AtomicU8::new(WITHIN),
        }
    };
}

/// A thread of this process, as numbers that the kernel knows. The thread may have ended.
#[derive(Clone, Copy)]
pub(super) struct ThreadId {
    thread: libc::pid_t,
    clock: libc::clockid_t,
}

impl ThreadId {
    /// The calling thread. Unblocks the signal in it.
    pub(crate) fn current() -> io::Result<ThreadId> {
        // SAFETY: no arguments, cannot fail.
        let thread = unsafe { libc::gettid() };
        let mut clock = 0;
        // SAFETY: the thread exists, it is this one; `clock` is valid for a write.
        check(unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) })?;
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set that the other calls read; the old mask is not wanted.
        check(unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            libc::sigaddset(signals.as_mut_ptr(), SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, signals.as_ptr(), ptr::null_mut())
        })?;
        Ok(ThreadId { thread, clock })
    }

    /// The processor time of the thread; zero if it has ended.
    pub(crate) fn processor_time(self) -> Duration {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is valid for a write. The clock of an ended thread is an error.
        unsafe { libc::clock_gettime(self.clock, &mut time) };
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// Makes the thread check whether its script must stop. If the thread has ended, this does nothing, or
    /// another thread of this process checks and finds that nothing must stop.
    pub(crate) fn interrupt(self) {
        // SAFETY: tgkill takes numbers and touches no memory of this process. The signal reaches a thread of
        // this process or none, and the handler acts only where Lua runs.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.thread, SIGNAL) };
    }
}

/// Installs the signal handler, once per process.
pub(super) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let errno = *INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(c_int) = on_signal;
        // SAFETY: all zeroes is a valid sigaction without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // System calls that the signal interrupts are restarted.
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is initialised; the handler does only what a handler may, see there.
        match unsafe { libc::sigaction(SIGNAL, &action, ptr::null_mut()) } {
            0 => 0,
            _ => io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL),
        }
    });
    check(errno)
}

/// Whether this thread is inside Lua already.
pub(super) fn is_running() -> bool {
    RUNNING.with(|running| !running.state.get().is_null())
}

/// Resumes `coroutine`, whose Lua state uses `bytes_used` bytes, and tells whether it was stopped. While it
/// runs, the signal handler has pointers to
/// the coroutine and the slot. The borrows last until these pointers are cleared, even if a function that the
/// script calls panics.
pub(super) fn resume_watched(
    coroutine: &mut Coroutine,
    arguments: c_int,
    bytes_used: usize,
    slot: &Slot,
) -> (Resumed, Option<Excess>) {
    let state = coroutine.state();
    let most = bytes_used.saturating_add(slot.budget.growth_bytes);
    slot.memory_max.store(most, Ordering::Relaxed);
    RUNNING.with(|running| {
        running.verdict.store(WITHIN, Ordering::Relaxed);
        running.slot.set(slot);
        // The state is stored last, because the handler acts as soon as it is there.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        running.state.set(state);
    });
    let entered = Entered;
    watchdog::begin(slot);
    let result = coroutine.resume(arguments);
    watchdog::end(slot);
    drop(entered);
    let excess = match RUNNING.with(|running| running.verdict.load(Ordering::Relaxed)) {
        OUT_OF_TIME => Excess::Time,
        OUT_OF_MEMORY => Excess::Memory,
        _ => return (result, None),
    };
    // SAFETY: the state is alive, belongs to this thread, and no handler touches it any more.
    unsafe { ffi::lua_sethook(state, None, 0, 0) };
    (result, Some(excess))
}

/// Marks that this thread is inside Lua, until it is dropped.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.with(|running| {
            running.state.set(ptr::null_mut());
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            running.slot.set(ptr::null());
        });
    }
}

/// The signal handler. It runs on the thread that runs Lua and may interrupt it anywhere. It reads memory of
/// its own thread and atomics, and calls `lua_sethook`, which LuaJIT documents for use in signal handlers
/// (its own interpreter stops scripts that way).
extern "C" fn on_signal(_: c_int) {
    RUNNING.with(|running| {
        let state = running.state.get();
        if state.is_null() {
            return;
        }
        // SAFETY: `resume_watched` borrows the slot until it has cleared `state`.
        let slot = unsafe { &*running.slot.get() };
        let is_out_of_time =
            slot.out_of_time.load(Ordering::Acquire) == slot.sequence.load(Ordering::Acquire);
        // SAFETY: `resume_watched` borrows the coroutine, which keeps `state` alive, until it has cleared it;
        // this reads a counter.
        let used = unsafe { raw::bytes_used(state) };
        let verdict = match is_out_of_time {
            true => OUT_OF_TIME,
            false if used > slot.memory_max.load(Ordering::Relaxed) => OUT_OF_MEMORY,
            false => return,
        };
        running.verdict.store(verdict, Ordering::Relaxed);
        // SAFETY: see above. The hook is removed first: if an earlier signal interrupted LuaJIT while it
        // changed its own dispatch tables, this rebuilds them.
        unsafe {
            ffi::lua_sethook(state, None, 0, 0);
            ffi::lua_sethook(state, Some(stop), ffi::LUA_MASKCOUNT, 1);
        }
    });
}

/// The hook: LuaJIT calls it before the next instruction, and before each one after that.
unsafe extern "C-unwind" fn stop(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: LuaJIT calls hooks with a valid state; yielding without values is what a hook may do, and
    // there is nothing on this frame that has to be dropped.
    unsafe {
        if lua_isyieldable(state) != 0 {
            ffi::lua_yield(state, 0);
        } else {
            ffi::luaL_error(
                state,
                c"the script is stopped: its budget is used up".as_ptr(),
            );
        }
    }
}

fn check(errno: c_int) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
