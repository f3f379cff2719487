//! One check (a hash, or a question to PAM) for all requests of a worker that come with the same password at
//! the same time.
//!
//! A browser sends a hundred requests at once on a connection of HTTP/2, each with the password of its user.
//! This file knows no request and no file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;

use super::logins::LoginHash;
use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};

/// Passwords that are being checked; each check comes to a `T`.
pub(super) struct SharedJobs<T: Clone>(RefCell<HashMap<LoginHash, WeakShared<SharedJob<T>>>>);

/// A request's wait for a check. When the last request that waits has gone, the check is dropped.
pub(super) type SharedWaiter<T> = Shared<SharedJob<T>>;

type SharedJob<T> = LocalBoxFuture<'static, T>;

impl<T: Clone> Default for SharedJobs<T> {
    fn default() -> SharedJobs<T> {
        SharedJobs(RefCell::default())
    }
}

impl<T: Clone + 'static> SharedJobs<T> {
    /// Waits for the check of `login`. If there is none under way, `begin` starts it. Without a `login` no
    /// other request shares the check.
    pub(super) fn join<F: Future<Output = T> + 'static>(
        &self,
        login: Option<LoginHash>,
        begin: impl FnOnce() -> F,
    ) -> SharedWaiter<T> {
        let begin = || begin().boxed_local().shared();
        let Some(login) = login else {
            return begin();
        };
        let mut jobs = self.0.borrow_mut();
        // Checks that are over go. The limits of the queue bound how many are left.
        jobs.retain(|_, job| job.upgrade().is_some_and(|job| job.peek().is_none()));
        if let Some(job) = jobs.get(&login).and_then(WeakShared::upgrade) {
            return job;
        }
        let job = begin();
        if let Some(weak) = job.downgrade() {
            jobs.insert(login, weak);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use super::*;

    #[test]
    fn equal_logins_share_a_job_until_it_is_over() {
        let (shared, begun) = (SharedJobs::default(), Cell::new(0));
        let join = |login: Option<u64>| {
            shared.join(login, || {
                begun.set(begun.get() + 1);
                ready(begun.get())
            })
        };
        let all: Vec<_> = (0..100).map(|_| join(Some(1))).collect();
        assert_eq!(begun.get(), 1);
        let other = join(Some(2));
        assert_eq!(begun.get(), 2);
        for one in all {
            assert_eq!(one.now_or_never(), Some(1));
        }
        // A finished check does not count again: the file may have changed since.
        drop(join(Some(1)));
        assert_eq!(begun.get(), 3);
        drop(other);
        drop(join(Some(2)));
        assert_eq!(begun.get(), 4, "no request waits for the one before");
        assert_eq!((join(None).peek(), join(None).peek()), (None, None));
        assert_eq!(begun.get(), 6);
    }
}
