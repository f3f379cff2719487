//! Counts the system calls that a worker makes for a request.
//!
//! The functions that make calls on sockets and files add to a counter of their thread. A connection marks
//! the counter when it is polled, and gives what was added since to its request. What is not counted: calls
//! of threads other than the worker, calls of the runtime (epoll), and those on streams of HTTP/2, where one
//! call serves several requests.

use std::cell::Cell;

thread_local! {
    /// The calls of this thread since the last mark. A global of the thread, because files and sockets know
    /// no worker.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// This thread has made a system call.
#[inline]
pub fn made() {
    CALLS.set(CALLS.get().wrapping_add(1));
}

/// Counts a call if `polled` is ready: a pending read or write made none, as far as the runtime knew that it
/// would not succeed.
#[inline]
pub fn made_if_ready<T>(polled: std::task::Poll<T>) -> std::task::Poll<T> {
    if polled.is_ready() {
        made();
    }
    polled
}

/// The calls of this thread since this function was last called.
#[inline]
pub(crate) fn since_mark() -> u32 {
    CALLS.take()
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[test]
    fn calls_count_once() {
        since_mark();
        made();
        let _ = made_if_ready(Poll::Ready(1));
        let _ = made_if_ready(Poll::<u8>::Pending);
        assert_eq!(since_mark(), 2);
        assert_eq!(since_mark(), 0);
    }
}
