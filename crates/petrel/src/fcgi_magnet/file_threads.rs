//! Disk threads that read and write the files of `io` for scripts. These waits have no time limit of their
//! own, because the request as a whole has one.

use engine::blocking::Origin;
use lua::library::files::{FileJob, FileThreads, FileWait, ProgramToStart, StartWait};
use modules::lua::file_threads;
use modules::lua::programs::Programs;

pub(super) struct DiskThreads {
    pub(super) programs: Programs,
}

impl FileThreads for DiskThreads {
    fn run(&self, job: FileJob) -> FileWait {
        if job.pipe().is_some() {
            return file_threads::transfer(&self.programs, job);
        }
        let done = file_threads::run(origin(&job), job);
        Box::pin(async move { Ok(done.await) })
    }

    fn leave(&self, job: FileJob) {
        file_threads::leave(origin(&job), job);
    }

    fn start(&self, program: ProgramToStart) -> StartWait {
        Box::pin(self.programs.start(program))
    }
}

fn origin(job: &FileJob) -> Origin {
    Origin::of_path(job.path()).with_bytes(job.bytes())
}
