//! The files of `io` in scripts: the engine's disk threads read and write them, and a script waits no longer
//! than `server.max-file-wait`.

use std::future::Future;
use std::io;

use petrel_engine::blocking::{self, Class, Origin};
use petrel_lua::library::files::{
    FileDone, FileJob, FileThreads, FileWait, ProgramToStart, StartWait,
};

use super::FilePatience;
use super::programs::Programs;

pub(super) struct DiskThreads {
    pub(crate) patience: FilePatience,
    pub(crate) programs: Programs,
}

impl DiskThreads {
    fn origin(&self, job: &FileJob) -> Origin {
        Origin::of_path(job.path())
            .for_client(self.patience.client())
            .with_bytes(job.bytes())
    }
}

impl FileThreads for DiskThreads {
    fn run(&self, job: FileJob) -> FileWait {
        if job.pipe().is_some() {
            return transfer(&self.programs, job);
        }
        let (origin, path) = (self.origin(&job), job.path().to_owned());
        Box::pin(self.patience.wait(&path, run(origin, job)))
    }

    fn leave(&self, job: FileJob) {
        leave(self.origin(&job), job);
    }

    fn start(&self, program: ProgramToStart) -> StartWait {
        Box::pin(self.programs.start(program))
    }
}

/// Performs `job` on the pipe of a program.
pub fn transfer(programs: &Programs, job: FileJob) -> FileWait {
    let programs = programs.clone();
    Box::pin(async move { Ok(programs.transfer(job).await) })
}

/// Starts `job` on a disk thread. Data that a script has written are written to the file even if its client
/// leaves and the future is dropped.
pub fn run(origin: Origin, job: FileJob) -> impl Future<Output = io::Result<FileDone>> {
    let running = match job.is_owed() {
        true => blocking::run_in_any_case(origin, move || job.perform()),
        false => blocking::run_for(Class::Write, origin, move || job.perform()),
    };
    async move { running.await? }
}

/// Starts `job` on a disk thread without waiting for it. What the pipe of a program has no room for is dropped.
pub fn leave(origin: Origin, mut job: FileJob) {
    if job.pipe().is_some() {
        return drop(job.attempt());
    }
    drop(blocking::run_in_any_case(origin, move || job.perform()));
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use petrel_lua::mlua::Function;
    use petrel_lua::{GlobalsMaker, Machine, MachineOptions, Progress, Run};

    use super::*;

    /// Disk threads without a request.
    struct Threads;

    impl FileThreads for Threads {
        fn run(&self, job: FileJob) -> FileWait {
            let done = run(Origin::of_path(job.path()), job);
            Box::pin(async move { Ok(done.await) })
        }

        fn leave(&self, job: FileJob) {
            leave(Origin::of_path(job.path()), job);
        }
    }

    #[test]
    fn what_a_script_has_written_is_kept_when_its_client_leaves() {
        let path = std::env::temp_dir().join(format!("petrel-lua-client-{}", std::process::id()));
        let machine = Machine::new(MachineOptions::default()).expect("a state");
        machine.use_threads(Rc::new(Threads)).expect("room");
        let lua = machine.lua();
        let is_open = lua.create_table().expect("room");
        lua.globals().set("is_open", &is_open).expect("room");
        let source = "local globals = ... return function() return setmetatable({}, { __index = globals }) end";
        let environment: Function = lua.load(source).call(lua.globals()).expect("sound");
        let environment = GlobalsMaker::from(environment);
        let source = format!(
            "local f = io.open('{}', 'w') is_open[1] = true f:write('kept') f:close() return 1",
            path.display()
        );
        let script = machine
            .compile("test.lua", source.as_bytes())
            .expect("it is Lua");
        let Progress::Waits(mut run) = Run::start(&machine, &script, &environment).expect("sound")
        else {
            panic!("it opens a file");
        };
        let mut context = Context::from_waker(Waker::noop());
        while is_open.raw_len() == 0 {
            match run.poll(&mut context) {
                // The disk thread was so fast that there is no wait left to drop.
                Poll::Ready(result) => {
                    assert!(result.is_ok());
                    break;
                }
                Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        drop(run);
        let kept = (0..10_000).find(|_| {
            std::thread::sleep(Duration::from_millis(1));
            std::fs::read(&path).is_ok_and(|bytes| bytes == b"kept")
        });
        let _ = std::fs::remove_file(&path);
        assert!(kept.is_some());
    }
}
