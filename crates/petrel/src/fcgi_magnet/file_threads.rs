//! The files of `io` in scripts: disk threads read and write them. A request that takes too long ends as a
//! whole, so no wait has a limit of its own.

use engine::blocking::Origin;
use lua::library::files::{FileJob, FileThreads, FileWait};
use modules::lua::file_threads;

pub(super) struct DiskThreads;

impl FileThreads for DiskThreads {
    fn run(&self, job: FileJob) -> FileWait {
        let done = file_threads::run(origin(&job), job);
        Box::pin(async move { Ok(done.await) })
    }

    fn leave(&self, job: FileJob) {
        file_threads::leave(origin(&job), job);
    }
}

fn origin(job: &FileJob) -> Origin {
    Origin::of_path(job.path()).with_bytes(job.bytes())
}
