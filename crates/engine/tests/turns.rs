//! Clients take turns at the disk, also with temporary files and with the files of scripts. A program of its
//! own, because the threads belong to the whole process.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::task::Poll;

use bytes::Bytes;
use petrel_engine::blocking::{self, Class, Origin, RunningJob, Threads};
use petrel_engine::body::Spool;
use petrel_engine::limits;

/// The client whose jobs are queued before those of [`MODEST`].
const GREEDY: u64 = 0;
const MODEST: u64 = 7;

/// Three jobs for the same file system, each of which ends when the test says so. The first one runs.
struct Crowd {
    gates: Vec<Sender<()>>,
    jobs: Vec<RunningJob<()>>,
}

impl Crowd {
    async fn new(class: Class) -> Crowd {
        let origin = Origin::of_path(&std::env::temp_dir()).for_client(GREEDY);
        let (mut gates, mut jobs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (gate, is_open) = channel();
            gates.push(gate);
            jobs.push(blocking::run_for(class, origin, move || {
                let _ = is_open.recv();
            }));
            while blocking::counts(class).running == 0 {
                tokio::task::yield_now().await;
            }
        }
        Crowd { gates, jobs }
    }

    /// Lets two of the jobs end, then awaits `work`, then lets the last job end.
    async fn let_through<T>(mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        self.gates.drain(..2);
        let done = work.await;
        drop(self.gates);
        for job in self.jobs {
            job.await.expect("it ran");
        }
        done
    }
}

async fn written(spool: &mut Spool) -> io::Result<()> {
    poll_fn(|context| spool.poll_written(context)).await
}

#[tokio::test(flavor = "local")]
async fn who_comes_last_has_his_turn_after_one_job_of_a_crowd() {
    blocking::configure(Threads {
        stat: 1,
        read: 1,
        write: 1,
        ..blocking::THREADS
    });
    let all = async {
        let directories = [std::env::temp_dir()];
        let mut spool = Spool::default();
        // The first job creates the file, the second one writes to it.
        for _ in 0..2 {
            let bytes = vec![1; limits::SPOOL_LARGE_BYTES_MAX + 1];
            spool.push(&bytes, &directories, MODEST);
            let crowd = Crowd::new(Class::Write).await;
            let done = crowd.let_through(written(&mut spool)).await;
            done.expect("there is room");
        }
        let path = directories[0].join(format!("petrel-turns-{}", std::process::id()));
        let write = blocking::write_file_atomically(&path, Bytes::from_static(b"1"), MODEST);
        let done = Crowd::new(Class::Write).await.let_through(write).await;
        done.expect("there is room");
        let read = blocking::read_file(&path, 1, MODEST);
        let done = Crowd::new(Class::Read).await.let_through(read).await;
        assert_eq!(done.expect("it was written"), b"1");
        let stat = blocking::stat(&path, MODEST);
        let done = Crowd::new(Class::Stat).await.let_through(stat).await;
        assert_eq!(done.expect("it was written").len(), 1);
        // Each class has its own threads, so neither waits for the other.
        for (class, other) in [(Class::First, Class::Stat), (Class::Stat, Class::First)] {
            let Crowd { gates, jobs } = Crowd::new(class).await;
            let origin = Origin::of_path(&std::env::temp_dir()).for_client(GREEDY);
            assert_eq!(blocking::run_for(other, origin, || 1).await, Ok(1));
            assert_eq!(blocking::counts(class).queued, jobs.len() - 1);
            drop(gates);
            for job in jobs {
                job.await.expect("it ran");
            }
        }
        let remove = blocking::remove_file(&path, MODEST);
        let done = Crowd::new(Class::Write).await.let_through(remove).await;
        done.expect("it was written");
    };
    let in_time = tokio::time::timeout(std::time::Duration::from_secs(60), all);
    in_time.await.expect("it waits for all of the crowd");
}
