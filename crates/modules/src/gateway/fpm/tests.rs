use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use petrel_engine::proto::fastcgi::{
    AfterRequest, ProtocolStatus, RequestDecoder, RequestEvent, kind, write_end_request,
    write_stream,
};

use super::page::tests::PAGE;
use super::*;
use crate::gateway::active_check::Checker;
use crate::gateway::options::testing::host;

/// A php-fpm that answers each question with STDOUT of the next of `replies`, the last one again and again.
struct PretendFpm {
    address: SocketAddress,
    questions: Arc<AtomicUsize>,
}

impl PretendFpm {
    fn start(replies: Vec<Vec<u8>>) -> PretendFpm {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = SocketAddress::Ip(listener.local_addr().expect("an address"));
        let questions = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&questions);
        // The thread ends with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut request = Vec::new();
                while !is_complete(&request) {
                    let mut piece = [0; 4096];
                    let read = stream.read(&mut piece).expect("a request");
                    assert!(read > 0, "the request ends");
                    request.extend_from_slice(&piece[..read]);
                }
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let reply = &replies[number.min(replies.len() - 1)];
                let mut records = Vec::new();
                for piece in reply.chunks(60_000) {
                    write_stream(&mut records, kind::STDOUT, 1, piece);
                }
                write_end_request(&mut records, 1, 0, ProtocolStatus::RequestComplete);
                // A reply that is too long is not read to its end.
                let _ = stream.write_all(&records);
            }
        });
        PretendFpm { address, questions }
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    fn watch(&self) -> (Arc<FpmWatch>, Option<CheckerTask>) {
        let host = host("\"socket\" => \"/unused\", \"status-path\" => \"/fpm-status\"");
        watch_of(&FpmWatches::default(), &host, &self.address)
    }
}

/// Whether `request` is a whole one for the status page, on a connection that is closed after it.
fn is_complete(mut request: &[u8]) -> bool {
    let mut decoder = RequestDecoder::new();
    let mut params = Vec::new();
    loop {
        let decoded = decoder.decode(request).expect("it is FastCGI");
        match decoded.event {
            RequestEvent::NeedMore => return false,
            RequestEvent::Begin { after, .. } => assert_eq!(after, AfterRequest::Close),
            RequestEvent::Params(_, range) => params.extend_from_slice(&request[range]),
            RequestEvent::StdinEnd(_) => {
                let text = String::from_utf8_lossy(&params).into_owned();
                for pair in [
                    "SCRIPT_NAME/fpm-status",
                    "SCRIPT_FILENAME/fpm-status",
                    "REQUEST_URI/fpm-status",
                    "QUERY_STRINGjson&full",
                    "REQUEST_METHODGET",
                ] {
                    assert!(text.contains(pair), "{pair} in {text:?}");
                }
                return true;
            }
            _ => {}
        }
        request = &request[decoded.consumed..];
    }
}

fn watch_of(
    watches: &FpmWatches,
    host: &BackendHost,
    address: &SocketAddress,
) -> (Arc<FpmWatch>, Option<CheckerTask>) {
    let (names, log) = (FollowedNames::default(), LogHandle::default());
    let watch = watches.of(host, address, None, &names, &log);
    watch.expect("it has a page")
}

fn reply(status: &str, body: &str) -> Vec<u8> {
    format!("{status}Content-Type: application/json\r\n\r\n{body}").into_bytes()
}

/// The answer to one question.
fn ask(stdout: Vec<u8>) -> Result<FpmPool, String> {
    let fpm = PretendFpm::start(vec![stdout]);
    let (watch, _) = fpm.watch();
    ask_once(&watch)
}

fn ask_once(watch: &FpmWatch) -> Result<FpmPool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let failure = runtime.expect("a runtime").block_on(watch.ask());
    let result = watch.report(0).result.expect("it was asked now");
    assert_eq!(
        failure.map(|failure| failure.to_string()),
        result.as_ref().err().cloned()
    );
    result
}

#[test]
fn the_status_is_asked_for_by_fastcgi() {
    let pool = ask(reply("", PAGE)).expect("it is a page");
    assert_eq!((pool.working, pool.children()), (2, 5));
}

#[test]
fn other_replies_are_errors() {
    let long = format!("{{\"pool\":\"{}\"}}", "x".repeat(10_000_000));
    for (stdout, why) in [
        (
            reply("Status: 404 Not Found\r\n", "File not found.\n"),
            "it answers 404",
        ),
        (reply("", "<html></html>"), "not the status of php-fpm"),
        (reply("", &PAGE[..PAGE.len() / 2]), "EOF while parsing"),
        (reply("", &long), "more than 1048576 bytes"),
        (b"Content-Type: text/html\r\n".to_vec(), "no body"),
        (b"no head at all".to_vec(), "no body"),
    ] {
        let error = ask(stdout).expect_err(why);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn a_page_of_another_pool_is_an_error_once() {
    let other = reply("", &PAGE.replace("\"www\"", "\"shop\""));
    let fpm = PretendFpm::start(vec![reply("", PAGE), other]);
    let (watch, _) = fpm.watch();
    assert!(ask_once(&watch).is_ok());
    let error = ask_once(&watch).expect_err("it is another one");
    assert!(
        error.contains("pool \"shop\", and before it was that of \"www\""),
        "{error}"
    );
    assert_eq!(ask_once(&watch).expect("it has a new name").name, "shop");
}

#[test]
fn a_php_fpm_that_cannot_be_reached_is_an_error() {
    let host = host("\"socket\" => \"/unused\", \"status-path\" => \"/fpm-status\"");
    let nowhere = SocketAddress::Unix("/nonexistent/petrel.sock".into());
    let (watch, _) = watch_of(&FpmWatches::default(), &host, &nowhere);
    let error = ask_once(&watch).expect_err("nothing listens there");
    assert!(error.starts_with("cannot connect: "), "{error}");
}

struct Waiting(AtomicU64);

impl FpmBackend for Waiting {
    fn waiting(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn waited(&self) -> WaitCounts {
        WaitCounts {
            requests: self.waiting(),
            nanos: self.waiting() * 1_000_000_000,
        }
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn it_is_asked_while_requests_wait_or_a_reader_looks_and_else_never() {
    let fpm = PretendFpm::start(vec![reply("", PAGE)]);
    let (watch, task) = fpm.watch();
    let backend = Arc::new(Waiting(AtomicU64::new(0)));
    let weak: Weak<Waiting> = Arc::downgrade(&backend);
    watch.add(weak);
    let checker = Checker::start().expect("a thread");
    checker.run(task.expect("it is new"));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fpm.questions(), 0, "nothing wants to know");

    backend.0.store(3, Ordering::SeqCst);
    watch.ask_soon();
    wait_until("each second", || fpm.questions() >= 2);
    backend.0.store(0, Ordering::SeqCst);
    wait_until("it sleeps when no request waits any more", || {
        let before = fpm.questions();
        std::thread::sleep(Duration::from_millis(1500));
        fpm.questions() == before
    });

    let before = fpm.questions();
    let report = watch.report(now_ms());
    assert!(report.result.expect("it was asked").is_ok());
    wait_until("a reader looks", || fpm.questions() > before);
    assert_eq!(watch.report(now_ms() + 121_000).age_ms, None, "too old");
}

#[test]
fn a_report_has_what_waited_and_how_many_children_there_is_memory_for() {
    let fpm = PretendFpm::start(vec![reply("", PAGE)]);
    let (watch, _) = fpm.watch();
    let backend = Arc::new(Waiting(AtomicU64::new(0)));
    let weak: Weak<Waiting> = Arc::downgrade(&backend);
    watch.add(weak);
    watch.note_waits(now_ms());
    ask_once(&watch).expect("it is a page");
    assert_eq!(watch.report(now_ms()).waited, WaitCounts::default());
    backend.0.store(2, Ordering::SeqCst);
    let report = watch.report(now_ms());
    assert_eq!(
        (report.waited.requests, report.waited.nanos),
        (2, 2_000_000_000)
    );
    let answer = lock(&watch.answer).clone().expect("it was asked");
    let left = |available_bytes| {
        let answer = FpmAnswer {
            available_bytes,
            ..answer.clone()
        };
        answer.children_allowed()
    };
    assert_eq!(left(Some(29_000_000)), Some(14), "nine more of 3 MB");
    assert_eq!(left(None), None);
}

#[test]
fn backends_with_the_same_page_share_a_watch() {
    let watches = FpmWatches::default();
    let page = "\"socket\" => \"/unused\", \"status-path\" => \"/fpm-status\"";
    let at = |port| SocketAddress::Ip((Ipv4Addr::LOCALHOST, port).into());
    let (first, task) = watch_of(&watches, &host(page), &at(1));
    assert!(task.is_some());
    let (again, task) = watch_of(&watches, &host(page), &at(1));
    assert!(Arc::ptr_eq(&first, &again) && task.is_none());
    let (other, task) = watch_of(&watches, &host(page), &at(2));
    assert!(!Arc::ptr_eq(&first, &other) && task.is_some());
    let listen = format!("{page}, \"status-address\" => \"127.0.0.1:3\"");
    let (one, _) = watch_of(&watches, &host(&listen), &at(1));
    let (two, _) = watch_of(&watches, &host(&listen), &at(2));
    assert!(Arc::ptr_eq(&one, &two), "it is the same page");
    let without = host("\"socket\" => \"/unused\"");
    let (names, log) = (FollowedNames::default(), LogHandle::default());
    assert!(watches.of(&without, &at(1), None, &names, &log).is_none());
}

#[test]
fn the_task_ends_with_its_watch() {
    let fpm = PretendFpm::start(vec![reply("", PAGE)]);
    let (watch, task) = fpm.watch();
    drop(watch);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let limit = Duration::from_secs(60);
    let ended = async { time::timeout(limit, (task.expect("it is new"))()).await };
    assert_eq!(runtime.expect("a runtime").block_on(ended), Ok(()));
    assert_eq!(fpm.questions(), 0);
}
