//! How long a request waits for a file system: `server.max-file-wait`.
//!
//! There is one such time and one sentence about it, whatever is waited for: a look-up, a file that is read whole, the
//! next bytes of a body, work that a module hands to a thread.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::clock::Clock;
use crate::deadlines::{Alarm, Deadlines};

/// The time that a file system has for what one task waits for. It begins with the first wait.
pub struct FileDeadline {
    clock: Rc<Clock>,
    wait_s: u32,
    /// The second in which the time is up; [`Deadlines::NEVER`]: nothing was waited for.
    due_s: u32,
    alarm: Alarm,
}

/// The file system has not answered in time. Displayed, it is the sentence for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    wait_s: u32,
}

impl FileDeadline {
    /// Nothing is waited for yet; `wait_s` is `server.max-file-wait`, in seconds of `clock`.
    pub(crate) fn new(clock: &Rc<Clock>, deadlines: &Rc<Deadlines>, wait_s: u32) -> FileDeadline {
        FileDeadline {
            clock: Rc::clone(clock),
            wait_s,
            due_s: Deadlines::NEVER,
            alarm: Alarm::new(deadlines),
        }
    }

    /// Passes `polled` on while there is time. If it is pending, the task of `context` is woken when the time is up.
    ///
    /// # Errors
    /// It is pending, and the time is up.
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

    /// The file system has answered: the next wait has all the time again.
    pub fn renew(&mut self) {
        self.due_s = Deadlines::NEVER;
        self.alarm.clear();
    }

    /// What `work` comes to.
    ///
    /// # Errors
    /// It has not come to anything in time.
    pub async fn wait_for<T>(mut self, work: impl Future<Output = T>) -> Result<T, Late> {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            self.limit(polled, context)
        })
        .await
    }

    /// What is said of a file system when its time is up.
    pub fn late(&self) -> Late {
        Late {
            wait_s: self.wait_s,
        }
    }
}

impl Late {
    /// Whether that is what `error` says.
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
            // The second in which a wait begins does not count.
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
