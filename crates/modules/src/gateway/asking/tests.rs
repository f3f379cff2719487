//! A pretend application that is asked, in virtual time: one that answers what it should not, and
//! random schedules.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::proto::fastcgi::{VALUES_BYTES_MAX, kind, write_stream};
use petrel_engine::proto::method::Method;
use petrel_engine::subrequest::{Subrequest, SubrequestHead};
use petrel_engine::testing::{ExchangeRun, Site};
use tokio::time::Instant;

use self::pretend::{Application, Death, END_OF_BODY, Manner, Script, VirtualTime, values_answer};
use crate::gateway::capacity::Answers;
use crate::gateway::limits;
use crate::gateway::upstream::Upstreams;
use crate::gateway::{FASTCGI, SCGI};
use crate::testing::Tree;

mod pretend;
mod schedules;

/// A worker with one backend, at `path`, that has these further `options`.
fn site(time: &VirtualTime, path: &str, manner: Manner, options: &str) -> Site {
    let server = match manner {
        Manner::Scgi => "scgi.server",
        _ => "fastcgi.server",
    };
    let config = format!(
        "server.document-root = \"/nonexistent\"
        {server} = ( \"/\" => (( \"socket\" => \"{path}\", \"check-local\" => \"disable\", {options} )) )"
    );
    let site = Site::new(&config, &[&FASTCGI, &SCGI]);
    time.drive(site.worker().clock());
    site
}

/// The request of a client that makes subrequests.
fn parent(site: &Site) -> ExchangeRun {
    site.unanswered("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
}

/// Status and body of the answer to a request.
async fn ask(parent: &ExchangeRun, method: Method, script: Script) -> (u16, Bytes) {
    let mut head = SubrequestHead::get(script.path().as_bytes());
    head.method = method;
    head.body = END_OF_BODY.into();
    let mut request = Subrequest::new(parent, head).expect("it is sound");
    let status = request.head().await.0;
    let body = request.collect(10_000).await.expect("it is short");
    (status, body)
}

/// No request counts any more, and each connection is idle or asks.
#[track_caller]
fn expect_no_leftovers(sites: &[Site], test: &str) {
    let all = sites.iter().map(|site| Upstreams::of(site.worker()));
    let backends: Vec<_> = all.flat_map(|all| all.backends()).collect();
    let shared = &backends.first().expect("it was used").shared;
    let order = std::sync::atomic::Ordering::Relaxed;
    assert_eq!(shared.waiting.load(order), 0, "{test}");
    assert_eq!(shared.load.load(order), 0, "{test}");
    let unaccepted = shared.capacity.unaccepted() as usize;
    assert!(
        unaccepted <= limits::ASKED_MAX * sites.len(),
        "{unaccepted} connections ask: {test}"
    );
    for backend in &backends {
        assert!(!backend.is_stuck(), "{test}");
        backend.forget_idle();
        backend.asking.close_all(backend);
    }
    assert_eq!(shared.capacity.open(), 0, "{test}");
    assert_eq!(shared.capacity.unaccepted(), 0, "{test}");
}

/// One worker and one application.
struct Pair {
    application: Rc<Application>,
    site: Site,
    _tree: Tree,
}

impl Pair {
    /// The application has one process, which keeps connections.
    fn new(time: &VirtualTime, manner: Manner) -> Pair {
        Pair::with(time, manner, 1, 0)
    }

    fn with(time: &VirtualTime, manner: Manner, processes: usize, requests_max: u32) -> Pair {
        let tree = Tree::new(&[]);
        let path = tree.path("app.sock");
        Pair {
            application: Application::start(&path, manner, processes, requests_max),
            site: site(time, &path, manner, "\"backlog-timeout\" => 5"),
            _tree: tree,
        }
    }

    /// Sends one request after the other, with pauses in which connections are idle. Returns the statuses.
    async fn ask(&self, methods: &[Method]) -> Vec<u16> {
        let parent = parent(&self.site);
        let mut statuses = Vec::new();
        for (number, &method) in methods.iter().enumerate() {
            let (status, body) = self
                .site
                .with_clock(ask(&parent, method, script(number)))
                .await;
            if status == 200 {
                assert_eq!(body, format!("ran {number}"));
            }
            statuses.push(status);
            tokio::time::sleep(Duration::from_millis(2 * limits::ASK_AFTER_IDLE_MS)).await;
        }
        statuses
    }

    /// What is known about answers to the first record of a connection.
    fn answers(&self) -> Answers {
        let backends = Upstreams::of(self.site.worker()).backends();
        let now_ms = self.site.worker().clock().now_ms();
        backends[0].shared.capacity.first.get(now_ms)
    }
}

fn script(number: usize) -> Script {
    Script {
        number,
        takes: Duration::from_millis(300),
        works_on: Duration::ZERO,
    }
}

/// Each of two requests is answered, and runs once. Returns what is known about answers afterwards.
fn two_requests(manner: Manner) -> Answers {
    VirtualTime::run(async |time| {
        let pair = Pair::new(&time, manner);
        let statuses = pair.ask(&[Method::Post, Method::Post]).await;
        assert_eq!(statuses, [200, 200], "{manner:?}");
        assert_eq!(pair.application.runs(2), [1, 1], "{manner:?}");
        let answers = pair.answers();
        expect_no_leftovers(&[pair.site], &format!("{manner:?}"));
        answers
    })
}

fn record(kind: u8, id: u8, length: usize) -> Vec<u8> {
    let [high, low] = (length as u16).to_be_bytes();
    let header = [1, kind, 0, id, high, low, 0, 0];
    [&header[..], &vec![0; length]].concat()
}

#[test]
fn an_application_that_answers_nonsense_is_not_asked_any_more() {
    let nonsense: [fn() -> Vec<u8>; 6] = [
        || record(kind::GET_VALUES_RESULT, 0, VALUES_BYTES_MAX + 1),
        || record(kind::GET_VALUES_RESULT, 0, 65_535)[..100].to_vec(),
        || record(kind::GET_VALUES_RESULT, 1, 0),
        || b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        || values_answer().repeat(2),
        || {
            let mut reply = Vec::new();
            write_stream(&mut reply, kind::STDOUT, 1, b"Status: 200\r\n\r\n");
            reply
        },
    ];
    for bytes in nonsense {
        let answers = two_requests(Manner::Sends(bytes));
        assert_eq!(answers, Answers::No, "{:?}", bytes().get(..20));
    }
}

#[test]
fn an_application_that_does_not_know_the_question_says_so() {
    let unknown = || record(kind::UNKNOWN_TYPE, 0, 8);
    assert_eq!(two_requests(Manner::Sends(unknown)), Answers::Yes);
}

#[test]
fn an_application_that_closes_the_connection_of_a_question_is_sent_requests() {
    assert_eq!(two_requests(Manner::Closes), Answers::No);
}

#[test]
fn an_application_that_answers_late_or_never_is_sent_requests() {
    assert_eq!(two_requests(Manner::AnswersLate), Answers::No);
    assert_eq!(two_requests(Manner::Ignores), Answers::No);
}

#[test]
fn answers_that_were_not_asked_for_do_no_harm() {
    assert_eq!(two_requests(Manner::AnswersUnasked), Answers::Yes);
}

/// It is not known whether the rest will come. The process has read the question and nothing else.
#[test]
fn half_an_answer_is_none() {
    let half = || values_answer()[..12].to_vec();
    assert_eq!(two_requests(Manner::Sends(half)), Answers::No);
}

/// Nothing is written to a process that may be busy, and a request waits as long as the operator allows.
#[test]
fn a_process_that_accepts_and_never_reads_gets_no_request() {
    VirtualTime::run(async |time| {
        let pair = Pair::new(&time, Manner::NeverReads);
        let statuses = pair.ask(&[Method::Put, Method::Post]).await;
        assert_eq!(statuses, [504, 504]);
        assert_eq!(pair.answers(), Answers::Unknown);
        expect_no_leftovers(&[pair.site], "");
    });
}

#[test]
fn a_process_that_dies_in_a_script_fails_only_what_may_not_run_twice() {
    for (method, status, runs) in [(Method::Put, 200, 2), (Method::Post, 502, 1)] {
        VirtualTime::run(async |time| {
            let pair = Pair::new(&time, Manner::Answers);
            pair.application.let_die(Death::InScript);
            let statuses = pair.ask(&[method, Method::Post]).await;
            assert_eq!(statuses, [status, 200], "{method}");
            assert_eq!(pair.application.runs(2), [runs, 1], "{method}");
            expect_no_leftovers(&[pair.site], "");
        });
    }
}

#[test]
fn a_process_that_dies_with_a_question_costs_the_request_a_pause() {
    VirtualTime::run(async |time| {
        let pair = Pair::new(&time, Manner::Answers);
        assert_eq!(pair.ask(&[Method::Post]).await, [200]);
        let parent = parent(&pair.site);
        let both = futures_util::future::join_all([1, 2].map(async |number| {
            if number == 2 {
                // The other request has the only connection.
                tokio::time::sleep(Duration::from_millis(100)).await;
                pair.application.let_die(Death::AtQuestion);
            }
            ask(&parent, Method::Post, script(number)).await.0
        }));
        assert_eq!(pair.site.with_clock(both).await, [200, 200]);
        assert_eq!(pair.application.runs(3), [1, 1, 1]);
        assert_eq!(pair.answers(), Answers::Yes, "it is known to answer");
        expect_no_leftovers(&[pair.site], "");
    });
}

/// A backend that is not asked has one process, which has the first request: one look at the kernel shows that, and
/// the next ones are not written all at once.
#[test]
fn requests_wait_here_and_not_in_the_kernel() {
    VirtualTime::run(async |time| {
        let pair = Pair::new(&time, Manner::Scgi);
        let parent = parent(&pair.site);
        let most = Rc::<Cell<u32>>::default();
        let (worker, seen) = (Rc::clone(pair.site.worker()), Rc::clone(&most));
        time.observe(move || {
            let backends = Upstreams::of(&worker).backends();
            let unaccepted = backends[0].shared.capacity.unaccepted();
            seen.set(seen.get().max(unaccepted));
        });
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7];
        let all = numbers.map(async |number| ask(&parent, Method::Post, script(number)).await.0);
        let all = futures_util::future::join_all(all);
        assert_eq!(pair.site.with_clock(all).await, [200; 8]);
        assert_eq!(pair.application.runs(8), [1; 8]);
        assert!((1..=2).contains(&most.get()), "{most:?} at once");
        expect_no_leftovers(&[pair.site], "");
    });
}

/// Two workers ask at the same time. When one has found that the application does not answer, the other one's
/// connection must not wait for an answer for ever, with a process.
#[test]
fn what_one_worker_finds_out_ends_the_waits_of_the_other() {
    VirtualTime::run(async |time| {
        let tree = Tree::new(&[]);
        let path = tree.path("app.sock");
        let application = Application::start(&path, Manner::Ignores, 2, 0);
        let sites = [0, 1].map(|_| site(&time, &path, Manner::Ignores, "\"backlog-timeout\" => 5"));
        Upstreams::share(sites[1].worker(), sites[0].worker());
        let parents = [0, 1].map(|worker: usize| parent(&sites[worker]));
        let both = [0, 1]
            .map(async |number: usize| ask(&parents[number], Method::Post, script(number)).await.0);
        let both = sites[0].with_clock(sites[1].with_clock(futures_util::future::join_all(both)));
        assert_eq!(both.await, [200, 200]);
        assert_eq!(application.runs(2), [1, 1]);
        let capacity = &Upstreams::of(sites[0].worker()).backends()[0].shared;
        assert_eq!(capacity.capacity.unaccepted(), 0);
        expect_no_leftovers(&sites, "");
    });
}

/// An application that was never seen to keep a connection behind its answer has to show that for each of them.
#[test]
fn processes_are_asked_at_once_although_connections_have_to_prove_themselves() {
    VirtualTime::run(async |time| {
        let pair = Pair::with(&time, Manner::Answers, 8, 0);
        let parent = parent(&pair.site);
        let begun = Instant::now();
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7];
        let all = numbers.map(async |number| ask(&parent, Method::Post, script(number)).await.0);
        let all = futures_util::future::join_all(all);
        assert_eq!(pair.site.with_clock(all).await, [200; 8]);
        let waited = begun.elapsed() - script(0).takes;
        let most = limits::CLOSES_AFTER_ANSWER_MS + limits::LOOK_AROUND_MS;
        assert!(waited <= Duration::from_millis(most), "{waited:?}");
    });
}

/// php-fpm with `pm = ondemand` looks whether it needs another process only when a connection arrives.
#[test]
fn connections_go_on_to_arrive_while_no_process_takes_one() {
    VirtualTime::run(async |time| {
        let tree = Tree::new(&[]);
        let path = tree.path("app.sock");
        let application = Application::start(&path, Manner::Answers, 1, 0);
        let site = site(&time, &path, Manner::Answers, "\"backlog-timeout\" => 60");
        let parent = parent(&site);
        let long = Script {
            takes: Duration::from_secs(40),
            ..script(0)
        };
        assert_eq!(
            site.with_clock(ask(&parent, Method::Post, script(3)))
                .await
                .0,
            200
        );
        let all = [long, script(1), script(2)]
            .map(async |script| ask(&parent, Method::Post, script).await.0);
        let all = site.with_clock(futures_util::future::join_all(all));
        assert_eq!(all.await, [200; 3]);
        expect_no_leftovers(&[site], "");
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Behind 1, 3, 7, 15 and 31 s, and those that asked at the end.
        let unused = application.unused();
        assert!((5..=5 + limits::ASKED_MAX).contains(&unused), "{unused}");
    });
}

/// php-fpm with `pm.max_requests`: the question behind the reply is not read.
#[test]
fn a_process_that_closes_behind_its_reply_is_asked_again_at_once() {
    VirtualTime::run(async |time| {
        let pair = Pair::with(&time, Manner::Answers, 1, 1);
        let parent = parent(&pair.site);
        let both = async {
            assert_eq!(ask(&parent, Method::Post, script(0)).await.0, 200);
            tokio::time::sleep(Duration::from_millis(1)).await;
            let begun = Instant::now();
            assert_eq!(ask(&parent, Method::Post, script(1)).await.0, 200);
            begun.elapsed() - script(1).takes
        };
        let waited = pair.site.with_clock(both).await;
        assert!(
            waited < Duration::from_millis(limits::ASK_PAUSE_MS / 2),
            "{waited:?}"
        );
        let backend = &Upstreams::of(pair.site.worker()).backends()[0];
        let behind = backend.shared.capacity.behind.get(backend.now_ms());
        assert_eq!(behind, Answers::Unknown, "it may answer all the same");
    });
}

/// php-fpm with `pm.max_requests` closes a connection a moment after its last reply.
#[test]
fn no_request_that_must_not_be_repeated_is_lost_behind_the_last_reply_of_a_process() {
    VirtualTime::run(async |time| {
        let pair = Pair::with(&time, Manner::Answers, 1, 3);
        pair.application.closes_after(Duration::from_millis(1));
        let parent = parent(&pair.site);
        // So short that the connection is not closed to give others a turn.
        let short = |number| Script {
            takes: Duration::from_millis(5),
            ..script(number)
        };
        let all = (0..12).map(async |number| ask(&parent, Method::Post, short(number)).await.0);
        let all = futures_util::future::join_all(all);
        assert_eq!(pair.site.with_clock(all).await, [200; 12]);
        assert_eq!(pair.application.runs(12), [1; 12]);
        expect_no_leftovers(&[pair.site], "");
    });
}

/// An application that closes behind its replies may end when a connection closes without a request: none is made
/// that no request needs, also before the first reply shows how it is.
#[test]
fn each_connection_has_a_request_until_the_application_is_known_to_keep_them() {
    for requests in [1, 2, 9] {
        VirtualTime::run(async |time| {
            let pair = Pair::new(&time, Manner::EndsWithout);
            pair.application.starts_for(Duration::from_millis(400));
            let parent = parent(&pair.site);
            let all = (0..requests)
                .map(async |number| ask(&parent, Method::Post, script(number)).await.0);
            let all = futures_util::future::join_all(all);
            let all = pair.site.with_clock(all).await;
            assert_eq!(all, vec![200; requests]);
            assert_eq!(pair.application.runs(requests), vec![1; requests]);
            expect_no_leftovers(&[pair.site], "");
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(pair.application.unused(), 0, "{requests}");
        });
    }
}
