//! Random schedules of requests to pretend applications, in virtual time.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::method::Method;
use petrel_engine::testing::Site;

use super::pretend::{Application, Manner, Script, VirtualTime};
use super::{ask, expect_no_leftovers, parent, site};
use crate::gateway::kernel_view::KernelView;
use crate::gateway::limits;
use crate::gateway::upstream::Upstreams;
use crate::testing::Tree;

/// The environment variable of the process that runs the schedules.
const ALONE: &str = "PETREL_TEST_SCHEDULES";

/// What happens in one run.
#[derive(Debug)]
struct Schedule {
    seed: u64,
    manner: Manner,
    processes: usize,
    workers: usize,
    /// Requests after which a process closes a connection.
    requests_max: u32,
    requests: Vec<PlannedRequest>,
}

#[derive(Clone, Copy, Debug)]
struct PlannedRequest {
    arrives: Duration,
    worker: usize,
    method: Method,
    script: Script,
}

/// Pseudo-random numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Between 1 and `most` milliseconds; short times are as frequent as long ones.
    fn time(&mut self, most: u64) -> Duration {
        let bound = 1 + (1 << self.below(u64::from(most.ilog2()) + 2));
        Duration::from_millis((1 + self.below(bound)).min(most))
    }
}

impl Schedule {
    fn of(seed: u64, manners: &[Manner]) -> Schedule {
        let mut random = Random(seed);
        // Few requests are as interesting as many.
        let most = 1 + random.below(40);
        let count = 1 + random.below(most);
        let longest = [20, 200, 2000][random.below(3) as usize];
        let workers = 1 + random.below(2) as usize;
        let span = random.time(3000).as_millis() as u64;
        let works_on = random.one_in(4);
        let request = |number, random: &mut Random| PlannedRequest {
            arrives: Duration::from_millis(random.below(span)),
            worker: random.below(workers as u64) as usize,
            method: if random.one_in(2) {
                Method::Post
            } else {
                Method::Put
            },
            script: Script {
                number,
                takes: random.time(longest),
                works_on: match works_on && random.one_in(3) {
                    true => random.time(longest),
                    false => Duration::ZERO,
                },
            },
        };
        Schedule {
            seed,
            manner: manners[random.below(manners.len() as u64) as usize],
            processes: 1 + random.below(8) as usize,
            workers,
            requests_max: if random.one_in(4) {
                1 + random.below(5) as u32
            } else {
                0
            },
            requests: (0..count as usize)
                .map(|number| request(number, &mut random))
                .collect(),
        }
    }

    /// For how long a request may wait here while a process is idle.
    ///
    /// The gateway looks around each [`limits::LOOK_AROUND_MS`] while requests wait, so what takes a time ends at the
    /// first look behind it. At first it has to find out how the application behaves. Later a process is idle
    /// without a request only if
    ///
    /// - it has a connection of the other worker, which is asked for it when a request has waited for
    ///   [`limits::STUCK_MS`], or
    /// - the application is not asked, and the number of new connections at a time is still being doubled, by
    ///   one look at the kernel each.
    fn patience(&self) -> Duration {
        let look = limits::LOOK_AROUND_MS;
        let finding_out = match self.manner {
            // Whether the connection is kept behind the answer.
            Manner::Answers | Manner::AnswersOnce | Manner::EndsWithout => {
                limits::CLOSES_AFTER_ANSWER_MS + look
            }
            // One look shows that the question was read, and a later one that there is no answer.
            Manner::AnswersLate | Manner::Ignores => {
                limits::LOOK_MS_MAX + limits::ANSWERS_WITHIN_MS + 2 * look
            }
            _ => 0,
        };
        let other_worker = match self.workers {
            1 => 0,
            _ => limits::STUCK_MS + look,
        };
        let doubling = match self.manner {
            Manner::Answers | Manner::AnswersOnce => 0,
            _ => u64::from(self.processes.next_power_of_two().ilog2()) * look,
        };
        Duration::from_millis(finding_out + other_worker + doubling)
    }

    /// Runs it and returns the longest time for which a request waited here while a process was idle.
    fn run(&self) -> Duration {
        VirtualTime::run(async |time| {
            let tree = Tree::new(&[]);
            let path = tree.path("app.sock");
            let application =
                Application::start(&path, self.manner, self.processes, self.requests_max);
            let options = "\"backlog-timeout\" => 3000";
            let sites: Rc<[Site]> = (0..self.workers)
                .map(|_| site(&time, &path, self.manner, options))
                .collect();
            for worker in 0..self.workers {
                Upstreams::share(sites[worker].worker(), sites[0].worker());
                let sites = Rc::clone(&sites);
                let never = std::future::pending::<()>();
                tokio::task::spawn_local(async move { sites[worker].with_clock(never).await });
            }
            let longest = Rc::<Cell<Duration>>::default();
            time.observe(watch(&sites, &application, &longest));
            let parents: Rc<[_]> = sites.iter().map(parent).collect();
            // Each has a task, so that it is polled only when the gateway wakes it.
            let all = self.requests.iter().map(|&planned| {
                let parents = Rc::clone(&parents);
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(planned.arrives).await;
                    let parent = &parents[planned.worker];
                    ask(parent, planned.method, planned.script).await
                })
            });
            let all = futures_util::future::join_all(all);
            let all = tokio::time::timeout(Duration::from_secs(3000), all).await;
            let all = all.unwrap_or_else(|_| panic!("requests wait for ever: {self:?}"));
            for (answer, planned) in all.into_iter().zip(&self.requests) {
                let (status, body) = answer.expect("no panic");
                assert_eq!(status, 200, "{self:?}: {body:?}");
                assert_eq!(body, format!("ran {}", planned.script.number));
            }
            let scripts = self.requests.len();
            assert_eq!(application.runs(scripts), vec![1; scripts], "{self:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            expect_no_leftovers(&sites, &format!("{self:?}"));
            if matches!(self.manner, Manner::EndsWithout) {
                // The processes see that their connections are closed.
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(application.unused(), 0, "a process ended: {self:?}");
            }
            longest.get()
        })
    }
}

/// Called when time has passed: keeps in `longest` for how long a request has waited in the queue of a worker
/// while a process was idle.
fn watch(
    sites: &[Site],
    application: &Rc<Application>,
    longest: &Rc<Cell<Duration>>,
) -> impl Fn() + 'static {
    let application = Rc::clone(application);
    let longest = Rc::clone(longest);
    let workers: Vec<_> = sites.iter().map(|site| Rc::clone(site.worker())).collect();
    move || {
        let idle = application.longest_idle();
        for worker in &workers {
            let now_ms = worker.clock().latest_ms();
            for backend in Upstreams::of(worker).backends() {
                if let Some(since_ms) = backend.queue.oldest_since_ms() {
                    let waited = Duration::from_millis(now_ms - since_ms);
                    longest.set(longest.get().max(waited.min(idle)));
                }
            }
        }
    }
}

/// Runs the schedules of these `seeds`, with applications of these kinds, in a process of its own: `test` is the name
/// of the test that calls this. Where other tests start programs, a program that is about to start has copies of all
/// sockets, so a socket that is closed here stays open for some real time, in which virtual time goes on.
fn run_all(test: &str, seeds: std::ops::Range<u64>, manners: &[Manner]) {
    if std::env::var_os(ALONE).is_none() {
        let name = format!(
            "{}::{test}",
            module_path!().split_once("::").expect("a module").1
        );
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        let child = child.args(["--exact", &name]).env(ALONE, "1");
        let finished = child.output().expect("it starts");
        let text = String::from_utf8_lossy(&finished.stdout);
        assert!(
            finished.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&finished.stderr)
        );
        assert!(text.contains("1 passed"), "there is no test {name}: {text}");
        return;
    }
    let mut late = Vec::new();
    for seed in seeds {
        let schedule = Schedule::of(seed, manners);
        let (longest, patience) = (schedule.run(), schedule.patience());
        if longest > patience {
            late.push((schedule.seed, longest, patience, format!("{schedule:?}")));
        }
    }
    // The seed, how long a request waited while a process was idle, and how long it may.
    let figures = late
        .iter()
        .map(|(seed, longest, patience, _)| (seed, longest, patience));
    let all: Vec<_> = figures.collect();
    assert!(all.is_empty(), "{all:?}, the first one is {}", late[0].3);
}

/// It takes so long because it answers thousands of requests, and looks at the queue at each moment at which
/// something can happen.
#[test]
fn no_request_waits_for_an_application_that_answers_while_a_process_is_idle() {
    let manners = [Manner::Answers, Manner::AnswersOnce, Manner::EndsWithout];
    let test = "no_request_waits_for_an_application_that_answers_while_a_process_is_idle";
    run_all(test, 0..420, &manners);
}

/// It takes so long for the same reason.
#[test]
fn no_request_waits_for_an_application_that_does_not_answer_while_a_process_is_idle() {
    let manners = [Manner::AnswersLate, Manner::Ignores, Manner::Closes];
    let test = "no_request_waits_for_an_application_that_does_not_answer_while_a_process_is_idle";
    run_all(test, 0..420, &manners);
}

/// For these the kernel is asked.
#[test]
fn no_request_waits_for_an_application_that_is_not_asked_while_a_process_is_idle() {
    let view = KernelView::open();
    let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    if view.watch(socket.as_fd()).is_none() {
        let reason = view.why_not();
        eprintln!("not tested: the kernel does not tell about unix sockets: {reason:?}");
        return;
    }
    let test = "no_request_waits_for_an_application_that_is_not_asked_while_a_process_is_idle";
    run_all(test, 0..160, &[Manner::Scgi]);
}
