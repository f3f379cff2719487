//! What php-fpm says of itself (`status-path`): its children, what they run, and its memory; and where slow scripts
//! were (`slowlog`).
//!
//! A [`FpmWatch`] belongs to all backends that ask the same address for the same page. Its task runs in the
//! thread of the health checks. It asks once a second while a reader of the status has come within
//! [`WANTED_MS`], requests wait for one of the backends, or one is slow and there is a slow log; and otherwise sleeps
//! until it is woken.

mod ask;
mod page;
mod slow_log;
mod waits;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::shared::lock;
use petrel_engine::tls::TlsServer;
use petrel_engine::waits::{HolderText, Time};
use tokio::sync::Notify;
use tokio::time;

use super::active_check::{CheckerTask, FAILURES_MAX, now_ms};
use super::limits;
use super::options::{BackendHost, shown};
use super::resolve::{self, FollowedNames, Resolved};
use super::stream::SocketAddress;
use ask::{FpmFailure, FpmRoute};
use slow_log::SlowLog;
use waits::{WaitWindow, available_bytes};

pub(crate) use page::{FpmPool, RunningScript};
pub(crate) use slow_log::read_end;
pub(crate) use waits::WaitCounts;

/// A backend that belongs to a php-fpm.
pub(crate) trait FpmBackend: Send + Sync {
    /// Requests that wait for a connection now.
    fn waiting(&self) -> u64;

    /// Requests that had to wait so far.
    fn waited(&self) -> WaitCounts;
}

/// A php-fpm that tells its status, and the last of it.
pub(crate) struct FpmWatch {
    /// Address, path and TLS options, which no other watch has in common.
    key: String,
    address: StatusAddress,
    route: FpmRoute,
    slow_log: Option<SlowLog>,
    /// The backend's address, and the status's if it is another one, for the log.
    name: String,
    /// Whether php-fpm shares its memory with this server.
    is_local: bool,
    log: LogHandle,
    backends: Mutex<Vec<Weak<dyn FpmBackend>>>,
    /// Until when a reader wants it.
    wanted_until_ms: AtomicU64,
    wake: Arc<Notify>,
    answer: Mutex<Option<FpmAnswer>>,
    waits: Mutex<WaitWindow>,
    /// The name of the pool that has answered last; empty: none has.
    pool: Mutex<String>,
}

/// Where to ask.
enum StatusAddress {
    Fixed(SocketAddress),
    Named(Arc<Resolved>),
}

/// What the last question has brought.
#[derive(Clone)]
struct FpmAnswer {
    asked_ms: u64,
    /// Memory of this machine that is free or could be.
    available_bytes: Option<u64>,
    result: Result<FpmPool, String>,
}

/// All watches of a server process.
#[derive(Default)]
pub(crate) struct FpmWatches(Mutex<Vec<Weak<FpmWatch>>>);

/// What readers get to know about a php-fpm.
#[derive(Clone, Debug)]
pub(crate) struct FpmReport {
    /// The path of its page.
    pub(crate) path: String,
    /// When it was asked last, in milliseconds before now; `None`: not in the last
    /// [`limits::FPM_ANSWER_S_MAX`].
    pub(crate) age_ms: Option<u64>,
    /// What it has answered, or why there is no answer.
    pub(crate) result: Option<Result<FpmPool, String>>,
    /// What has waited for it in the last minute.
    pub(crate) waited: WaitCounts,
    /// For how many children there is memory.
    pub(crate) children_allowed: Option<u64>,
}

impl FpmWatches {
    /// The watch of `host` at `address`, if it has a status page. `tls` is how to speak TLS with it. The task
    /// is that of a new watch; the caller runs it.
    pub(crate) fn of(
        &self,
        host: &BackendHost,
        address: &SocketAddress,
        tls: Option<&TlsServer>,
        names: &FollowedNames,
        log: &LogHandle,
    ) -> Option<(Arc<FpmWatch>, Option<CheckerTask>)> {
        let page = host.status_page.as_ref()?;
        let own = address.to_string();
        let asked = page.address.as_ref().map_or_else(|| own.clone(), shown);
        let path = String::from_utf8_lossy(&page.path);
        let slow_log = &page.slow_log;
        let key = format!(
            "{asked} {path} {} {:?} {slow_log:?}",
            host.proxy_protocol, host.tls
        );
        let mut known = lock(&self.0);
        known.retain(|watch| watch.strong_count() > 0);
        let mut living = known.iter().filter_map(Weak::upgrade);
        if let Some(watch) = living.find(|watch| watch.key == key) {
            return Some((watch, None));
        }
        let address = match &page.address {
            None => StatusAddress::Fixed(address.clone()),
            Some(told) => match resolve::fixed(told) {
                Some(fixed) => StatusAddress::Fixed(fixed),
                None => match names.watch(told, log) {
                    Ok(resolved) => StatusAddress::Named(resolved),
                    Err(error) => {
                        log.error(format_args!("(backend-connect) no resolver: {error}"));
                        return None;
                    }
                },
            },
        };
        let name = match asked == own {
            true => own,
            false => format!("{own} (status-address {asked})"),
        };
        let made = Arc::new(FpmWatch {
            key,
            is_local: address.is_local(),
            address,
            route: FpmRoute {
                tls: tls.cloned(),
                proxy_protocol: host.proxy_protocol,
                status_path: page.path.clone(),
            },
            slow_log: slow_log.clone().map(SlowLog::new),
            name,
            log: log.clone(),
            backends: Mutex::default(),
            wanted_until_ms: AtomicU64::new(0),
            wake: Arc::default(),
            answer: Mutex::default(),
            waits: Mutex::default(),
            pool: Mutex::default(),
        });
        known.push(Arc::downgrade(&made));
        let task = made.task();
        Some((made, Some(task)))
    }
}

impl StatusAddress {
    /// `None` while the name is unknown.
    fn current(&self) -> Option<SocketAddress> {
        match self {
            StatusAddress::Fixed(address) => Some(address.clone()),
            StatusAddress::Named(resolved) => {
                let first = resolved.current().first().map(|endpoint| endpoint.address);
                first.map(SocketAddress::Ip)
            }
        }
    }

    fn is_local(&self) -> bool {
        match self {
            StatusAddress::Fixed(SocketAddress::Unix(_)) => true,
            StatusAddress::Fixed(SocketAddress::Ip(address)) => address.ip().is_loopback(),
            StatusAddress::Fixed(SocketAddress::Several(_)) | StatusAddress::Named(_) => false,
        }
    }
}

impl FpmAnswer {
    /// The children that are there, and those for which there is memory besides.
    fn children_allowed(&self) -> Option<u64> {
        let pool = self.result.as_ref().ok()?;
        let more = self.available_bytes?.checked_div(pool.memory?.mean_bytes)?;
        Some(more.saturating_add(pool.children()))
    }
}

impl FpmWatch {
    /// One more backend of this php-fpm.
    pub(crate) fn add(&self, backend: Weak<dyn FpmBackend>) {
        let mut backends = lock(&self.backends);
        backends.retain(|backend| backend.strong_count() > 0);
        backends.push(backend);
    }

    /// A request begins to wait for a backend, and none did before, or one is slow: asks soon, unless that was done
    /// within a second.
    pub(crate) fn ask_soon(&self) {
        self.wake.notify_one();
    }

    /// Whether there is more to be known of a slow request.
    pub(crate) fn has_slow_log(&self) -> bool {
        self.slow_log.is_some()
    }

    /// What is known, for a reader, who is taken to come back within [`WANTED_MS`].
    pub(crate) fn report(&self, now_ms: u64) -> FpmReport {
        self.wanted_until_ms
            .fetch_max(now_ms + WANTED_MS, Ordering::Relaxed);
        self.wake.notify_one();
        let age_ms = |answer: &FpmAnswer| now_ms.saturating_sub(answer.asked_ms);
        let is_recent = |answer: &FpmAnswer| age_ms(answer) <= limits::FPM_ANSWER_S_MAX * 1000;
        let answer = lock(&self.answer).clone().filter(is_recent);
        FpmReport {
            path: String::from_utf8_lossy(&self.route.status_path).into_owned(),
            age_ms: answer.as_ref().map(age_ms),
            waited: lock(&self.waits).last_minute(now_ms, self.waited()),
            children_allowed: answer.as_ref().and_then(FpmAnswer::children_allowed),
            result: answer.map(|answer| answer.result),
        }
    }

    /// Adds to a note what php-fpm has told of its children in the last [`TOLD_MS`], also of those that other front
    /// ends keep busy.
    pub(crate) fn tell_children(&self, text: &mut HolderText<'_>) {
        self.with_told_since(now_ms().saturating_sub(TOLD_MS), |pool| {
            let (working, children) = (pool.working, pool.children());
            write!(text, ", php-fpm: {working} of {children} children work");
            if let Some(oldest) = pool.scripts.first() {
                let age = Time(oldest.age_us.saturating_mul(1000));
                write!(text, ", the oldest on {} for {age}", oldest.uri);
            }
        });
    }

    /// Adds to a note which child ran the script for `path`, if php-fpm has told of one since `since_ms`, and where the
    /// slow log says that it was. If the child is not known, that is an entry for a script that `is_script` accepts.
    pub(crate) fn tell_child(
        &self,
        since_ms: u64,
        path: &[u8],
        is_script: impl Fn(&str) -> bool,
        text: &mut HolderText<'_>,
    ) {
        let shown = page::shortened(&String::from_utf8_lossy(path), limits::FPM_TEXT_BYTES_MAX);
        let mut pid = None;
        self.with_told_since(since_ms, |pool| {
            if let Some(script) = pool.scripts.iter().find(|script| script.uri == shown) {
                write!(text, ": child {} ran {}", script.pid, script.script);
                pid = Some(script.pid);
            }
        });
        let slow_log = self.slow_log.as_ref();
        if let Some(entry) = slow_log.and_then(|log| log.entry_since(since_ms, pid, is_script)) {
            write!(text, ", {entry}");
        }
    }

    fn with_told_since(&self, since_ms: u64, with: impl FnOnce(&FpmPool)) {
        if let Some(answer) = &*lock(&self.answer)
            && answer.asked_ms >= since_ms
            && let Ok(pool) = &answer.result
        {
            with(pool);
        }
    }

    /// The task of this watch. It ends when the watch is dropped.
    fn task(self: &Arc<Self>) -> CheckerTask {
        let (watch, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        Box::new(move || -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(follow(watch, wake)) })
    }

    fn is_wanted(&self, now_ms: u64) -> bool {
        let backends = lock(&self.backends);
        let mut living = backends.iter().filter_map(Weak::upgrade);
        now_ms < self.wanted_until_ms.load(Ordering::Relaxed)
            || living.any(|backend| backend.waiting() > 0)
    }

    fn waited(&self) -> WaitCounts {
        let mut sum = WaitCounts::default();
        for backend in lock(&self.backends).iter().filter_map(Weak::upgrade) {
            sum.add(backend.waited());
        }
        sum
    }

    fn note_waits(&self, now_ms: u64) {
        let counts = self.waited();
        lock(&self.waits).note(now_ms, counts);
    }

    /// Asks once, and keeps the answer. Returns why there is none.
    async fn ask(&self) -> Option<FpmFailure> {
        let asked_ms = now_ms();
        let asked = time::timeout(limits::FPM_ANSWER_TIME_MAX, self.fetch()).await;
        let (result, failure) = match asked.unwrap_or(Err(FpmFailure::Silent)) {
            Ok(pool) => (Ok(pool), None),
            Err(failure) => (Err(failure.to_string()), Some(failure)),
        };
        let meminfo = || std::fs::read_to_string("/proc/meminfo").ok();
        let available = self.is_local.then(meminfo).flatten();
        *lock(&self.answer) = Some(FpmAnswer {
            asked_ms,
            available_bytes: available.as_deref().and_then(available_bytes),
            result,
        });
        failure
    }

    /// Reads the slow log. Tells the log when that begins to fail. `was_readable`: it did not fail before.
    async fn read_slow_log(&self, was_readable: bool) -> bool {
        let Some(slow_log) = &self.slow_log else {
            return true;
        };
        let read = time::timeout(limits::FPM_ANSWER_TIME_MAX, slow_log.look(now_ms()));
        let result = read.await.unwrap_or_else(|late| Err(late.into()));
        if let (Err(error), true) = (&result, was_readable) {
            let path = slow_log.path.display();
            self.log.error(format_args!(
                "php-fpm's slow log {path} cannot be read: {error}; notes about slow requests do without it"
            ));
        }
        result.is_ok()
    }

    async fn fetch(&self) -> Result<FpmPool, FpmFailure> {
        let Some(address) = self.address.current() else {
            let why = "the address of its host is not known";
            return Err(FpmFailure::Unreachable(why.to_owned()));
        };
        let pool = self.route.ask(&address).await?;
        let before = std::mem::replace(&mut *lock(&self.pool), pool.name.clone());
        // Two pools that answer in turn would give numbers that mean nothing. A new name that stays is one.
        if !before.is_empty() && before != pool.name {
            let why = format!(
                "it is the status of pool {:?}, and before it was that of {before:?}",
                pool.name
            );
            return Err(FpmFailure::OtherReply(why));
        }
        Ok(pool)
    }

    /// Tells the log when the answers begin to fail, and when they come again. A single failure may be a
    /// restart of php-fpm. `failures`: how many there were in a row before.
    fn tell(&self, failures: u32, failure: Option<&FpmFailure>) {
        let path = String::from_utf8_lossy(&self.route.status_path);
        let name = &self.name;
        match failure {
            Some(failure) if failures + 1 == FAILURES_MAX => self.log.error(format_args!(
                "the status {path} of backend {name} cannot be read: {failure}; {}",
                failure.hint(&path)
            )),
            None if failures >= FAILURES_MAX => self.log.error(format_args!(
                "the status {path} of backend {name} can be read again"
            )),
            _ => {}
        }
    }
}

impl Drop for FpmWatch {
    fn drop(&mut self) {
        // Wakes the task, which ends.
        self.wake.notify_one();
    }
}

async fn follow(watch: Weak<FpmWatch>, wake: Arc<Notify>) {
    let (mut failures, mut is_readable) = (0u32, true);
    loop {
        let Some(watched) = watch.upgrade() else {
            return;
        };
        watched.note_waits(now_ms());
        let is_wanted = watched.is_wanted(now_ms());
        drop(watched);
        if !is_wanted {
            wake.notified().await;
        }
        let Some(watched) = watch.upgrade() else {
            return;
        };
        is_readable = watched.read_slow_log(is_readable).await;
        let failure = watched.ask().await;
        watched.tell(failures, failure.as_ref());
        failures = match failure {
            Some(_) => failures.saturating_add(1),
            None => 0,
        };
        drop(watched);
        time::sleep(PAUSE).await;
    }
}

impl FpmFailure {
    fn hint(&self, path: &str) -> String {
        match self {
            FpmFailure::Unreachable(_) => {
                "does php-fpm listen there (listen or pm.status_listen of the pool)?".to_owned()
            }
            FpmFailure::Silent => {
                "pm.status_listen with status-address answers also when all children are busy"
                    .to_owned()
            }
            FpmFailure::OtherReply(_) => {
                format!("the configuration of its pool needs pm.status_path = {path}")
            }
        }
    }
}

impl fmt::Display for FpmFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FpmFailure::Unreachable(why) | FpmFailure::OtherReply(why) => f.write_str(why),
            FpmFailure::Silent => {
                let limit = limits::FPM_ANSWER_TIME_MAX.as_secs();
                write!(f, "it did not answer within {limit} s")
            }
        }
    }
}

/// For how long after a reader has come the status is kept up to date. Status page and `petrel top` come once a
/// second.
const WANTED_MS: u64 = 3000;

/// How old an answer may be that a note about a wait is made from. While requests wait, there is one each second.
const TOLD_MS: u64 = 2000;

/// The time between two questions.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
