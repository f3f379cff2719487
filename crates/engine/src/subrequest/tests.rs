use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::Waker;
use std::time::Duration;

use petrel_proto::method::Method;
use petrel_proto::url::UrlError;

use super::*;
use crate::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use crate::testing::{ExchangeRun, Site};
use crate::worker::Drain;

/// A module that answers by the path of the URL; see [`Answers::run`].
static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_answers",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        configure.add(Phase::Translate, Answers);
        configure.add(Phase::Log, Logged);
        Ok(())
    },
};

thread_local! {
    /// How often the phase Log ran.
    static LOGGED: Cell<u32> = const { Cell::new(0) };
    /// How many [`Sleep`]s exist.
    static SLEEPING: Cell<i32> = const { Cell::new(0) };
}

struct Answers;

struct Logged;

impl Hook for Logged {
    fn run(&self, _: &mut Exchange) -> Outcome {
        LOGGED.set(LOGGED.get() + 1);
        Outcome::Next
    }
}

impl Hook for Answers {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = exchange.request.url.path().to_vec();
        let body = match path.as_slice() {
            b"/head" => Body::from(told_head(exchange)),
            b"/echo" if !exchange.request.body.is_complete() => return Outcome::NeedBody,
            b"/echo" => Body::from(exchange.request.body.bytes().unwrap_or_default().to_vec()),
            b"/sleep" => return Outcome::Later(Box::new(Sleep::new())),
            b"/clock" => return Outcome::Later(Box::new(Clock(None))),
            b"/parts" => Body::Source(Box::new(Parts::new(["ab", "c", "def"]))),
            b"/broken" => Body::Source(Box::new(Parts::new(["ab", ""]))),
            b"/deeper" => return Outcome::Later(Box::new(Deeper(None))),
            b"/tunnel" => {
                exchange.response.answer(Status::SWITCHING_PROTOCOLS);
                exchange.become_tunnel(crate::body::ReadAhead::Bounded);
                return Outcome::Answer;
            }
            _ => return exchange.answer_as_told(Status::NOT_FOUND),
        };
        exchange.response.answer(Status::OK);
        exchange.response.set("X-Made", b"here");
        exchange.response.body = body;
        Outcome::Answer
    }
}

/// The head as backends see it: one field a line, sorted.
fn told_head(exchange: &Exchange) -> Vec<u8> {
    let head = &exchange.request.head;
    let shown = |(name, value): (&[u8], &[u8])| format!("{}: {}", text(name), text(value));
    let mut lines: Vec<String> = head.iter().map(shown).collect();
    lines.sort();
    let method = exchange.request.method;
    lines.insert(
        0,
        format!("{method} {}", text(exchange.request.url.target())),
    );
    lines.push(format!("host {}", text(head.host())));
    lines.join("\n").into_bytes()
}

/// Waits for a while, and counts when it is dropped.
struct Sleep(Pin<Box<tokio::time::Sleep>>);

impl Sleep {
    fn new() -> Sleep {
        SLEEPING.set(SLEEPING.get() + 1);
        Sleep(Box::pin(tokio::time::sleep(Duration::from_millis(20))))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        SLEEPING.set(SLEEPING.get() - 1);
    }
}

impl Pending for Sleep {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        ready!(self.0.as_mut().poll(context));
        Poll::Ready(exchange.answer_as_told(Status::NO_CONTENT))
    }
}

/// Waits by the clock of the worker only.
struct Clock(Option<u32>);

impl Pending for Clock {
    fn poll(&mut self, exchange: &mut Exchange, _: &mut Context<'_>) -> Poll<Outcome> {
        let now_s = exchange.worker.clock().seconds();
        let due_s = *self.0.get_or_insert(now_s + 1);
        if now_s >= due_s {
            return Poll::Ready(exchange.answer_as_told(Status::NO_CONTENT));
        }
        exchange.wake_at(due_s);
        Poll::Pending
    }
}

/// Makes a subrequest for its own URL, and answers with the response to that.
struct Deeper(Option<Subrequest>);

impl Pending for Deeper {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        if self.0.is_none() {
            match Subrequest::new(exchange, SubrequestHead::get(b"/deeper")) {
                Ok(subrequest) => self.0 = Some(subrequest),
                Err(refused) => {
                    assert_eq!(refused, RefusedSubrequest::TooDeep);
                    let depth = exchange.subrequest_depth();
                    exchange.response.answer(Status::OK);
                    exchange.response.body = Body::from(depth.to_string().into_bytes());
                    return Poll::Ready(Outcome::Answer);
                }
            }
        }
        let subrequest = self.0.as_mut().expect("it was just made");
        let status = ready!(subrequest.poll_head(context));
        exchange.response.answer(status);
        exchange.response.body = match self.0.take() {
            Some(subrequest) => Body::Source(Box::new(subrequest)),
            None => Body::Empty,
        };
        Poll::Ready(Outcome::Answer)
    }
}

/// A body in pieces, each after a wait. An empty piece stands for an error.
struct Parts {
    parts: VecDeque<&'static str>,
    has_waited: bool,
}

impl Parts {
    fn new<const COUNT: usize>(parts: [&'static str; COUNT]) -> Parts {
        Parts {
            parts: parts.into(),
            has_waited: false,
        }
    }
}

impl BodySource for Parts {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        self.has_waited = !self.has_waited;
        if self.has_waited {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(match self.parts.pop_front() {
            None => None,
            Some("") => Some(Err(io::ErrorKind::ConnectionReset.into())),
            Some(part) => Some(Ok(Piece::Bytes(part.into()))),
        })
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn site() -> Site {
    Site::new("", &[&MODULE])
}

fn parent(site: &Site) -> ExchangeRun {
    site.unanswered("GET /parent HTTP/1.1\r\nHost: a.example\r\n\r\n")
}

async fn ask(parent: &Exchange, head: SubrequestHead) -> (u16, String) {
    let mut subrequest = Subrequest::new(parent, head).expect("it is sound");
    let status = subrequest.head().await.0;
    let body = subrequest.collect(10_000).await.expect("it is short");
    (status, text(&body))
}

#[tokio::test(flavor = "local")]
async fn an_answer_has_status_fields_and_body_but_nothing_of_a_connection() {
    let site = site();
    let parent = parent(&site);
    let head = SubrequestHead::get(b"/parts?x=1");
    let mut subrequest = Subrequest::new(&parent, head).expect("it is sound");
    assert!(!subrequest.is_answered());
    assert_eq!(subrequest.head().await, Status::OK);
    assert_eq!(
        subrequest.response().fields().as_bytes(),
        b"X-Made: here\r\n"
    );
    assert_eq!(subrequest.length(), None);
    let body = subrequest.collect(6).await.expect("it is six bytes");
    assert_eq!(&body[..], b"abcdef");
    assert!(subrequest.piece().await.is_none());
    assert_eq!(LOGGED.get(), 0);
}

#[tokio::test(flavor = "local")]
async fn errors_are_answers_with_the_page_that_clients_get() {
    let site = site();
    let (status, body) = ask(&parent(&site), SubrequestHead::get(b"/none")).await;
    assert_eq!(status, 404);
    // The pages differ in the ids of their requests.
    let begin = |page: &[u8]| page.split(|byte| *byte == b':').next().map(<[u8]>::to_vec);
    let of_client = begin(site.get("/none").body());
    assert!(of_client.is_some_and(|begin| begin.ends_with(b"Request id")));
    assert_eq!(begin(body.as_bytes()), begin(site.get("/none").body()));
}

#[tokio::test(flavor = "local")]
async fn what_is_about_the_parent_s_connection_and_body_is_not_inherited() {
    let site = site();
    let parent = site.unanswered(
        "PUT /parent HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nContent-Type: x/y\r\n\
         Connection: upgrade, x-hop\r\nUpgrade: websocket\r\nX-Hop: 1\r\nExpect: 100-continue\r\n\
         Range: bytes=0-1\r\nIf-None-Match: \"a\"\r\nIf-Modified-Since: x\r\nTE: trailers\r\n\
         Accept-Encoding: gzip\r\nCookie: a=1\r\nX-One: 1\r\nX-Two: 2\r\n\r\nabc",
    );
    let mut head = SubrequestHead::get(b"/head");
    head.fields = vec![("x-one".to_owned(), b"mine\r\nX-Split: 1".to_vec())];
    let (_, told) = ask(&parent, head.clone()).await;
    assert_eq!(
        told,
        "GET /head\nCookie: a=1\nHost: a.example\nX-Two: 2\nx-one: mine  X-Split: 1\nhost a.example"
    );
    head.inherit = Inherit::Only(
        ["x-two", "range", "content-length"]
            .map(str::to_owned)
            .into(),
    );
    let (_, told) = ask(&parent, head.clone()).await;
    assert_eq!(
        told,
        "GET /head\nHost: a.example\nX-Two: 2\nx-one: mine  X-Split: 1\nhost a.example"
    );
    head.inherit = Inherit::Nothing;
    head.fields = vec![("Range".to_owned(), b"bytes=0-999".to_vec())];
    head.host = Some(b"B.example:80".to_vec());
    let (_, told) = ask(&parent, head).await;
    assert_eq!(
        told,
        "GET /head\nHost: B.example:80\nRange: bytes=0-999\nhost b.example"
    );
}

#[tokio::test(flavor = "local")]
async fn a_parent_without_a_host_has_subrequests_without_one() {
    let site = site();
    let parent = site.unanswered("GET / HTTP/1.0\r\n\r\n");
    let (_, told) = ask(&parent, SubrequestHead::get(b"/head")).await;
    assert_eq!(told, "GET /head\nhost ");
}

#[tokio::test(flavor = "local")]
async fn a_body_is_there_at_once_and_has_the_limit_of_a_client_s() {
    let site = Site::new("server.max-request-size = 1", &[&MODULE]);
    let parent = parent(&site);
    for (length, status) in [(0, 200), (1000, 200), (1025, 413)] {
        let mut head = SubrequestHead::get(b"/echo");
        head.method = Method::Post;
        head.body = vec![b'x'; length].into();
        let (answered, body) = ask(&parent, head).await;
        assert_eq!(answered, status);
        assert!(status != 200 || body.len() == length);
    }
    let mut head = SubrequestHead::get(b"/echo");
    head.body = Bytes::from_static(b"GET has none");
    let refused = Subrequest::new(&parent, head).expect_err("method-get-body is off");
    assert!(matches!(refused, RefusedSubrequest::Head(_)));
}

#[test]
fn heads_that_a_client_could_not_send_are_refused() {
    let site = site();
    let parent = parent(&site);
    let refused = |head: SubrequestHead| Subrequest::new(&parent, head).expect_err("refused");
    for target in [
        "",
        "x",
        "*",
        "http://b/",
        "/a b",
        "/a\r\nX: 1",
        "/\0",
        "/a\tb",
    ] {
        let refused = refused(SubrequestHead::get(target.as_bytes()));
        assert_eq!(refused, RefusedSubrequest::Target, "{target:?}");
    }
    assert!(matches!(
        refused(SubrequestHead::get(b"/%01")),
        RefusedSubrequest::Url(UrlError::Control)
    ));
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "UPGRADE",
        ":authority",
        ":path",
        "",
        "a b",
        "a:\r\nb",
    ] {
        let mut head = SubrequestHead::get(b"/head");
        head.fields = vec![(name.to_owned(), b"1".to_vec())];
        assert_eq!(refused(head), RefusedSubrequest::Field(name.to_owned()));
    }
    for host in ["", "a/b", "a b", "a\r\nX: 1"] {
        let mut head = SubrequestHead::get(b"/head");
        head.host = Some(host.as_bytes().to_vec());
        assert!(
            matches!(refused(head), RefusedSubrequest::Head(_)),
            "{host:?}"
        );
    }
    let mut head = SubrequestHead::get(b"/head");
    head.method = Method::Connect;
    assert!(matches!(refused(head), RefusedSubrequest::Head(_)));
}

#[tokio::test(flavor = "local")]
async fn conditions_hold_for_subrequests_as_for_the_client() {
    let config = "$HTTP[\"host\"] == \"b.example\" { server.tag = \"b\" }\n\
                  $HTTP[\"remoteip\"] == \"127.0.0.1\" { server.name = \"client\" }";
    let site = Site::new(config, &[&MODULE]);
    let parent = parent(&site);
    let same = Subrequest::new(&parent, SubrequestHead::get(b"/head")).expect("sound");
    assert!(Rc::ptr_eq(&same.exchange().settings, &parent.settings));
    assert!(same.exchange().settings.core.name.is_some());
    let mut head = SubrequestHead::get(b"/head");
    head.host = Some(b"b.example".to_vec());
    let other = Subrequest::new(&parent, head).expect("sound");
    assert_ne!(
        other.exchange().settings.core.server_line,
        parent.settings.core.server_line
    );
    assert!(other.exchange().settings.core.name.is_some());
}

#[tokio::test(flavor = "local")]
async fn subrequests_of_subrequests_have_an_end() {
    let site = site();
    let answer = site.get_async("/deeper").await;
    let deepest = limits::SUBREQUEST_DEPTH_MAX.to_string();
    assert_eq!(answer.body(), deepest.as_bytes());
    assert!(!answer.exchange().is_subrequest());
}

#[test]
fn a_request_has_so_many_subrequests_at_whatever_depth() {
    let site = site();
    let parent = parent(&site);
    let head = || SubrequestHead::get(b"/head");
    let child = Subrequest::new(&parent, head()).expect("the first");
    assert!(child.exchange().is_subrequest());
    for number in 1..limits::SUBREQUESTS_PER_REQUEST_MAX {
        let owner = if number % 2 == 0 {
            &*parent
        } else {
            child.exchange()
        };
        Subrequest::new(owner, head()).expect("there is room");
    }
    for owner in [&*parent, child.exchange()] {
        let refused = Subrequest::new(owner, head()).expect_err("no more");
        assert_eq!(refused, RefusedSubrequest::TooMany);
    }
    Subrequest::new(&self::parent(&site), head()).expect("another request");
}

#[tokio::test(flavor = "local")]
async fn hooks_that_wait_are_driven_and_dropped() {
    let site = site();
    let parent = parent(&site);
    let (status, _) = ask(&parent, SubrequestHead::get(b"/sleep")).await;
    assert_eq!((status, SLEEPING.get()), (204, 0));
    let mut dropped = Subrequest::new(&parent, SubrequestHead::get(b"/sleep")).expect("sound");
    let polled = dropped.poll_head(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert_eq!(SLEEPING.get(), 1);
    drop(dropped);
    assert_eq!(SLEEPING.get(), 0);
}

#[tokio::test(flavor = "local")]
async fn the_worker_s_clock_wakes_the_task_that_waits_for_a_subrequest() {
    let site = site();
    let parent = parent(&site);
    tokio::task::spawn_local(crate::worker::tick(Rc::clone(site.worker())));
    let asked = ask(&parent, SubrequestHead::get(b"/clock"));
    let in_time = tokio::time::timeout(Duration::from_secs(60), asked).await;
    assert_eq!(in_time.expect("the deadline wakes it").0, 204);
}

#[tokio::test(flavor = "local")]
async fn bodies_that_break_off_or_are_too_long_are_told() {
    let site = site();
    let parent = parent(&site);
    let mut broken = Subrequest::new(&parent, SubrequestHead::get(b"/broken")).expect("sound");
    let error = broken.collect(10_000).await.expect_err("it breaks off");
    assert!(matches!(error, CollectError::Broken(_)), "{error}");
    assert!(matches!(broken.piece().await, Some(Err(_))));
    let mut long = Subrequest::new(&parent, SubrequestHead::get(b"/parts")).expect("sound");
    assert!(matches!(long.collect(5).await, Err(CollectError::TooLong)));
    let mut known = Subrequest::new(&parent, SubrequestHead::get(b"/none")).expect("sound");
    assert!(matches!(known.collect(5).await, Err(CollectError::TooLong)));
}

#[tokio::test(flavor = "local")]
async fn a_tunnel_is_a_bad_gateway() {
    let site = site();
    let (status, body) = ask(&parent(&site), SubrequestHead::get(b"/tunnel")).await;
    assert_eq!(status, 502);
    assert!(body.contains("502"));
}

#[tokio::test(flavor = "local")]
async fn head_announces_a_length_and_has_no_body() {
    let site = site();
    let parent = parent(&site);
    let mut head = SubrequestHead::get(b"/none");
    let (_, page) = ask(&parent, head.clone()).await;
    head.method = Method::Head;
    let mut subrequest = Subrequest::new(&parent, head).expect("sound");
    assert_eq!(subrequest.head().await, Status::NOT_FOUND);
    assert_eq!(subrequest.announced_length(), Some(page.len() as u64));
    assert_eq!(subrequest.length(), Some(0));
    assert!(subrequest.piece().await.is_none());
}

#[tokio::test(flavor = "local")]
async fn a_detached_subrequest_outlives_its_parent() {
    let site = site();
    let parent = parent(&site);
    let subrequest = Subrequest::new(&parent, SubrequestHead::get(b"/parts")).expect("sound");
    let (tell, told) = tokio::sync::oneshot::channel();
    let work = |mut subrequest: Subrequest| async move {
        let body = subrequest.collect(100).await.expect("six bytes");
        tell.send(body).expect("the test waits");
    };
    subrequest.detach(work).expect("the first");
    drop(parent);
    assert_eq!(&told.await.expect("it is told")[..], b"abcdef");
    tokio::task::yield_now().await;
    assert_eq!(site.worker().detached.get(), 0);
}

#[tokio::test(flavor = "local")]
async fn detached_subrequests_are_counted_and_refused_at_the_end() {
    let site = site();
    let parent = parent(&site);
    let new = || Subrequest::new(&parent, SubrequestHead::get(b"/sleep")).expect("sound");
    let work = |mut subrequest: Subrequest| async move {
        subrequest.head().await;
    };
    for _ in 0..limits::DETACHED_SUBREQUESTS_MAX {
        new().detach(work).expect("there is room");
    }
    assert_eq!(new().detach(work), Err(RefusedSubrequest::TooManyDetached));
    site.worker().drain(Drain::Successor);
    assert_eq!(new().detach(work), Err(RefusedSubrequest::Stopping));
    while site.worker().detached.get() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "local")]
async fn exchanges_of_subrequests_go_back_to_the_pool() {
    let site = site();
    let parent = parent(&site);
    ask(&parent, SubrequestHead::get(b"/head")).await;
    let pooled = site.worker().take_exchange().expect("it was given back");
    assert!(!pooled.is_subrequest() && pooled.request.head.host().is_empty());
}
