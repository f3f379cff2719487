//! The files of `io` in scripts: disk threads read and write them. A request that takes too long ends as a
//! whole, so no wait has a limit of its own.

use engine::blocking::{self, Class, Origin};
use lua::library::files::{FileJob, FileThreads, FileWait};

pub(super) struct DiskThreads;

impl FileThreads for DiskThreads {
    fn run(&self, job: FileJob) -> FileWait {
        let origin = Origin::of_path(job.path()).with_bytes(job.bytes());
        let done = blocking::run_io(Class::Write, origin, move || job.perform());
        Box::pin(async move { Ok(done.await) })
    }

    fn leave(&self, job: FileJob) {
        let origin = Origin::of_path(job.path()).with_bytes(job.bytes());
        drop(blocking::run_in_any_case(origin, move || job.perform()));
    }
}
