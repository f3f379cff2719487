//! How long a request waits for a file system: `server.max-file-wait`.
//!
//! One timeout and one error message serve every wait for a file system: a look-up, a file that is read
//! whole, the next bytes of a body, and a job that a module hands to a disk thread.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::clock::Clock;
use crate::deadlines::{Alarm, Deadlines};

/// The timeout of one task's waits for a file system. The time runs from the first wait.
pub struct FileDeadline {
    clock: Rc<Clock>,
    wait_s: u32,
    /// The second in which the time is up; [`Deadlines::NEVER`] while the task does not wait.
    due_s: u32,
    alarm: Alarm,
}

/// The error of a file system that has not answered in time. Its `Display` is the message for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    wait_s: u32,
}

impl FileDeadline {
    /// A deadline that does not run yet. `wait_s` is `server.max-file-wait`; `clock` tells the time.
    pub(crate) fn new(clock: &Rc<Clock>, deadlines: &Rc<Deadlines>, wait_s: u32) -> FileDeadline {
        FileDeadline {
            clock: Rc::clone(clock),
            wait_s,
            due_s: Deadlines::NEVER,
            alarm: Alarm::new(deadlines),
        }
    }

    /// Returns `polled` while there is time. If it is pending, the task of `context` is woken when the time
    /// is up.
    ///
    /// # Errors
    /// `polled` is pending, and the time is up.
    pub fn limit<T>(
        &mut self,
        polled: Poll<T>,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, Late>> {
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        if self.due_s == Deadlines::NEVER {
            self.due_s = self.clock.after(self.wait_s);
        }
        if self.due_s <= self.clock.seconds() {
            return Poll::Ready(Err(self.late()));
        }
        self.alarm.set(self.due_s, context);
        Poll::Pending
    }

    /// Stops the clock, because the file system has answered: the next wait gets the full time again.
    pub fn renew(&mut self) {
        self.due_s = Deadlines::NEVER;
        self.alarm.clear();
    }

    /// Awaits `work`.
    ///
    /// # Errors
    /// `work` did not end in time.
    pub async fn wait_for<T>(mut self, work: impl Future<Output = T>) -> Result<T, Late> {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            self.limit(polled, context)
        })
        .await
    }

    /// The error for the log and for the request.
    pub fn late(&self) -> Late {
        Late {
            wait_s: self.wait_s,
        }
    }
}

impl Late {
    /// Whether `error` wraps a [`Late`].
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|error| error.is::<Late>())
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the file system has not answered for {} s (server.max-file-wait)",
            self.wait_s
        )
    }
}

impl std::error::Error for Late {}

impl From<Late> for io::Error {
    fn from(late: Late) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, late)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::task::Waker;

    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "local")]
    async fn the_time_begins_with_the_first_wait_and_can_be_had_again() {
        let (clock, deadlines) = (Rc::<Clock>::default(), Rc::<Deadlines>::default());
        let deadline = |wait_s| FileDeadline::new(&clock, &deadlines, wait_s);
        assert_eq!(deadline(0).wait_for(ready(7)).await, Ok(7));
        let mut deadline = deadline(2);
        let limit = |deadline: &mut FileDeadline| {
            let mut context = Context::from_waker(Waker::noop());
            deadline.limit(Poll::<()>::Pending, &mut context)
        };
        clock.skip(Duration::from_secs(10));
        for _ in 0..2 {
            assert!(limit(&mut deadline).is_pending());
            // A wait begins somewhere within a second, so that second does not count.
            clock.skip(Duration::from_secs(2));
            assert!(limit(&mut deadline).is_pending(), "there is time left");
            deadline.renew();
        }
        assert!(limit(&mut deadline).is_pending());
        clock.skip(Duration::from_secs(3));
        let Poll::Ready(Err(late)) = limit(&mut deadline) else {
            panic!("the time is up");
        };
        assert_eq!(
            late.to_string(),
            "the file system has not answered for 2 s (server.max-file-wait)"
        );
        let error = io::Error::from(late);
        assert!(error.kind() == io::ErrorKind::TimedOut && Late::is(&error));
        assert!(!Late::is(&io::ErrorKind::TimedOut.into()));
    }

    #[tokio::test(flavor = "local")]
    async fn a_task_is_woken_when_the_time_is_up() {
        let site = crate::testing::Site::new("", &[]);
        let worker = site.worker();
        let waits = tokio::task::spawn_local(
            worker
                .file_deadline(1)
                .wait_for(std::future::pending::<()>()),
        );
        tokio::task::yield_now().await;
        worker.clock().skip(Duration::from_secs(2));
        worker.deadlines.sweep(worker.clock().seconds());
        assert!(waits.await.expect("it does not panic").is_err());
    }
}
