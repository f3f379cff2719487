//! The files of `io` in scripts: the engine's disk threads read and write them, and the script waits no
//! longer than `server.max-file-wait`.

use petrel_engine::blocking::{self, Class, Origin};
use petrel_lua::library::files::{FileJob, FileThreads, FileWait};

use super::FilePatience;

pub(super) struct DiskThreads(pub FilePatience);

impl DiskThreads {
    fn origin(&self, job: &FileJob) -> Origin {
        Origin::of_path(job.path())
            .for_client(self.0.client())
            .with_bytes(job.bytes())
    }
}

impl FileThreads for DiskThreads {
    fn run(&self, job: FileJob) -> FileWait {
        let (origin, path) = (self.origin(&job), job.path().to_owned());
        let done = blocking::run_io(Class::Write, origin, move || job.perform());
        Box::pin(self.0.wait(&path, done))
    }

    fn leave(&self, job: FileJob) {
        drop(blocking::run_in_any_case(self.origin(&job), move || {
            job.perform()
        }));
    }
}
