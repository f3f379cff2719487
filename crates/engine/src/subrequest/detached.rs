//! Subrequests that continue when their client is gone: refreshes of cached pages.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use super::{RefusedSubrequest, Subrequest};
use crate::limits;
use crate::worker::Worker;

impl Subrequest {
    /// Runs `work` with the subrequest in a task of its own, independent of the parent. The task ends with
    /// `work`, after [`limits::DETACHED_SUBREQUEST_S_MAX`], or with the worker. The worker does not wait for
    /// it, so work that is cut off must leave no trace. A worker that drains lets the task run until the last
    /// connection has ended, because clients may wait for its result.
    ///
    /// # Errors
    /// [`RefusedSubrequest::TooManyDetached`] at the limit of the worker, [`RefusedSubrequest::Stopping`] if
    /// the worker drains. The subrequest is dropped then.
    pub fn detach<Work>(
        self,
        work: impl FnOnce(Subrequest) -> Work,
    ) -> Result<(), RefusedSubrequest>
    where
        Work: Future<Output = ()> + 'static,
    {
        let worker = Rc::clone(&self.exchange().worker);
        let place = DetachedPlace::take(worker)?;
        let work = work(self);
        tokio::task::spawn_local(async move {
            let time = Duration::from_secs(limits::DETACHED_SUBREQUEST_S_MAX);
            if tokio::time::timeout(time, work).await.is_err() {
                let settings = place.0.base_settings();
                settings.core.error_log.error(format_args!(
                    "(subrequest) given up after {} s without a client",
                    time.as_secs()
                ));
            }
            drop(place);
        });
        Ok(())
    }
}

/// One of the worker's permits for subrequests without a client.
struct DetachedPlace(Rc<Worker>);

impl DetachedPlace {
    fn take(worker: Rc<Worker>) -> Result<DetachedPlace, RefusedSubrequest> {
        if worker.draining().is_some() {
            return Err(RefusedSubrequest::Stopping);
        }
        let taken = worker.detached.get();
        if taken >= limits::DETACHED_SUBREQUESTS_MAX {
            return Err(RefusedSubrequest::TooManyDetached);
        }
        worker.detached.set(taken + 1);
        Ok(DetachedPlace(worker))
    }
}

impl Drop for DetachedPlace {
    fn drop(&mut self) {
        self.0.detached.set(self.0.detached.get() - 1);
    }
}
