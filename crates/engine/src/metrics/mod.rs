//! Counts of requests: how many, how long, in which stages, by the route that answered them.
//!
//! Each worker counts for itself ([`WorkerMetrics`]): a counter has one writer, which loads, adds and stores.
//! Other threads read the counters while they change. So a sum may lack the request that just ends, and that
//! is all. Memory for a route is used when its first request ends.
//!
//! Once a second a worker adds what it has counted to the [`Seconds`] that all workers share. Names of routes
//! and hosts come from the configuration, so there is a bounded number of them; paths that clients choose are
//! only in [`Top`], which has a fixed size.
//!
//! This module knows ledgers and names. It knows no exchange and no HTTP; [`phase`](crate::phase) calls it
//! when a request ends, and the status module reads it.

mod arena;
mod cells;
mod histogram;
mod latency;
mod names;
mod seconds;
mod top;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ledger::{Ledger, Nanos, Stage};
use crate::limits;
use crate::recorder::{SharedMemory, Words};
use crate::request_id::RequestId;

pub use arena::ARENA_BYTES;
use arena::{Arena, ArenaTable, EntryWords};
pub use cells::{ClassCounts, Exemplar, HostCounts, RouteCounts, StageCounts};
use cells::{HostCells, RouteCells, Slots};
use histogram::fine_bucket;
pub use histogram::{LATENCY_BOUNDS, LATENCY_BUCKETS, STAGE_BOUNDS, STAGE_BUCKETS};
use latency::{FineCells, raise};
pub use latency::{FineCounts, LatencyCells, LatencyCounts};
use names::Names;
pub use names::{Host, Route};
use seconds::Seconds;
pub use seconds::{Second, Totals};
use top::Top;
pub use top::TopEntry;

/// What the response to a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StatusClass {
    /// 1xx: the connection became a tunnel.
    Informational,
    /// 2xx.
    Successful,
    /// 3xx.
    Redirection,
    /// 4xx.
    ClientError,
    /// 5xx.
    ServerError,
    /// The response could not be completed.
    Aborted,
}

impl StatusClass {
    /// All classes.
    pub const ALL: [StatusClass; 6] = [
        StatusClass::Informational,
        StatusClass::Successful,
        StatusClass::Redirection,
        StatusClass::ClientError,
        StatusClass::ServerError,
        StatusClass::Aborted,
    ];

    /// The name in metrics and on the status page: `2xx`, `aborted`.
    pub const fn name(self) -> &'static str {
        match self {
            StatusClass::Informational => "1xx",
            StatusClass::Successful => "2xx",
            StatusClass::Redirection => "3xx",
            StatusClass::ClientError => "4xx",
            StatusClass::ServerError => "5xx",
            StatusClass::Aborted => "aborted",
        }
    }

    /// The class of a response with `status` that was sent as a whole.
    #[inline]
    pub(crate) fn of(status: u16) -> StatusClass {
        match status {
            200..300 => StatusClass::Successful,
            300..400 => StatusClass::Redirection,
            400..500 => StatusClass::ClientError,
            500.. => StatusClass::ServerError,
            _ => StatusClass::Informational,
        }
    }
}

/// A request that has ended.
pub(crate) struct EndedRequest<'e> {
    pub(crate) id: RequestId,
    pub(crate) route: Route,
    pub(crate) host: Host,
    pub(crate) class: StatusClass,
    pub(crate) ledger: &'e Ledger,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

/// The counts of all workers.
pub struct Metrics {
    memory: SharedMemory,
    routes: Arc<Names>,
    hosts: Arc<Names>,
    /// All arenas, also those of workers of other server processes.
    arenas: Mutex<Vec<Arena>>,
    workers: Mutex<Vec<Arc<WorkerMetrics>>>,
    seconds: Mutex<Seconds>,
    generation: AtomicU64,
}

/// The counts of one worker. Only this worker changes them.
pub struct WorkerMetrics {
    routes: Slots<RouteCells>,
    hosts: Slots<HostCells>,
    /// Requests of all routes by their times in stages.
    stages: Words,
    /// The times of the requests since the worker last published its counts.
    latency: FineCells,
    place: Place,
    /// The most that a request lagged since the worker last published its counts.
    lag_max: AtomicU64,
    /// How many requests end before the next one is counted in [`Top`], and how many each of those stands
    /// for.
    until_sample: AtomicU32,
    sample_weight: AtomicU32,
    tops: Mutex<Tops>,
    /// What the worker last told the others.
    published: Mutex<WorkerState>,
}

/// Where the counters of a worker are.
struct Place {
    arena: Arena,
    route_names: Arc<Names>,
    host_names: Arc<Names>,
    /// Where counters are that have found no room in the arena. They end with the process.
    beside: Mutex<Vec<Arena>>,
}

impl Place {
    /// The counters of the route or host with the number `slot`.
    #[cold]
    fn counters(&self, table: ArenaTable, slot: u16) -> EntryWords {
        let names = match table {
            ArenaTable::Routes => &self.route_names,
            ArenaTable::Hosts => &self.host_names,
        };
        let name = names.name(slot);
        if let Some(words) = self.arena.counters(table, &name) {
            return words;
        }
        let mut beside = lock(&self.beside);
        loop {
            let last = beside.last();
            if let Some(words) = last.and_then(|arena| arena.counters(table, &name)) {
                return words;
            }
            beside.push(Arena::private());
        }
    }
}

/// The hosts and paths with the most requests.
#[derive(Default)]
struct Tops {
    hosts: Top,
    paths: Top,
    /// How often the worker has published its counts.
    ticks: u32,
}

/// A worker as it was at the end of the last second.
#[derive(Clone, Debug, Default)]
pub struct WorkerState {
    /// Requests since the process was started.
    pub requests: u64,
    /// Requests that ended in the last second.
    pub requests_per_s: u64,
    /// The lag of all requests of the last second.
    pub lag: Nanos,
    /// The most that one request lagged.
    pub lag_max: Nanos,
    /// What the worker told about itself.
    pub gauges: WorkerGauges,
}

/// What only the worker knows.
#[derive(Clone, Debug, Default)]
pub struct WorkerGauges {
    /// Open connections of clients.
    pub connections: u64,
    /// Requests that began in the last second.
    pub begun_per_s: u64,
    /// Requests that are being received or answered, or whose connection is being closed.
    pub open_requests: u64,
    /// The longest time of the last second that the worker ran without asking for events.
    pub turn_max: Nanos,
    /// Whether it accepts no more connections.
    pub is_draining: bool,
    /// The request that last kept it busy for long.
    pub hog: Option<Arc<HogShown>>,
}

/// A request that has kept its worker busy.
#[derive(Clone, Debug)]
pub struct HogShown {
    /// The script, or method and path.
    pub what: String,
    /// In which stage. `None`: it was no request.
    pub stage: Option<Stage>,
    /// For how long.
    pub ran: Nanos,
    /// When that ended, on the monotonic clock.
    pub ended: Nanos,
}

/// The counts of all workers at one time, for the status page.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By route.
    pub routes: Vec<(String, Totals)>,
    /// The last seconds, the oldest first, and the monotonic second of the first.
    pub seconds: Vec<Second>,
    /// The monotonic second of the first of `seconds`.
    pub first_second: u32,
    /// Hosts that clients asked for, the most frequent first.
    pub top_hosts: Vec<TopEntry>,
    /// Paths that clients asked for, the most frequent first.
    pub top_paths: Vec<TopEntry>,
}

/// The counts of all workers at one time, for metrics.
#[derive(Clone, Debug, Default)]
pub struct Histograms {
    /// By route; only routes that have answered.
    pub routes: Vec<(String, RouteCounts)>,
    /// By [`Stage`], in its order, for all routes together.
    pub stages: [StageCounts; Stage::ALL.len()],
    /// By host of the configuration; only hosts that were asked for.
    pub hosts: Vec<(String, HostCounts)>,
}

impl Metrics {
    /// The counts in `memory`.
    pub(crate) fn new(memory: SharedMemory) -> Metrics {
        Metrics {
            arenas: Mutex::new(Arena::all(&memory)),
            memory,
            routes: Arc::default(),
            hosts: Arc::default(),
            workers: Mutex::default(),
            seconds: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// The counts of one more worker, whose modules are `modules`.
    pub(crate) fn of_next_worker<'m>(
        &self,
        modules: impl Iterator<Item = &'m str>,
    ) -> Arc<WorkerMetrics> {
        self.routes.begin_with(std::iter::once(CORE).chain(modules));
        let arena = Arena::claim(&self.memory, &mut lock(&self.arenas));
        let stages = arena.stages().unwrap_or_else(|| Words::private(0));
        let place = Place {
            arena,
            route_names: Arc::clone(&self.routes),
            host_names: Arc::clone(&self.hosts),
            beside: Mutex::default(),
        };
        let made = Arc::new(WorkerMetrics {
            routes: Slots::default(),
            hosts: Slots::default(),
            stages,
            latency: FineCells::default(),
            place,
            lag_max: AtomicU64::new(0),
            until_sample: AtomicU32::new(0),
            sample_weight: AtomicU32::new(1),
            tops: Mutex::default(),
            published: Mutex::default(),
        });
        lock(&self.workers).push(Arc::clone(&made));
        made
    }

    /// How often the configuration was loaded: 1 at the start, one more with each reload. 0: it is not known.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Sets what [`Metrics::generation`] tells.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Relaxed);
    }

    /// The hosts that the configuration names, in the order of their numbers.
    pub(crate) fn name_hosts<'h>(&self, hosts: impl Iterator<Item = &'h str>) {
        self.hosts.begin_with(std::iter::once("").chain(hosts));
    }

    /// The route `detail` of the module of `route`: `mod_fastcgi .php`. Takes a lock, so use it once and keep
    /// the result. If there are [`limits::ROUTES_MAX`] routes, it is the one of the module.
    pub fn detailed_route(&self, route: Route, detail: &str) -> Route {
        self.routes.detailed(route, detail)
    }

    /// What the status page shows, for `now` on the monotonic clock.
    pub fn snapshot(&self, now: Nanos) -> Snapshot {
        let (mut hosts, mut paths) = (Top::default(), Top::default());
        for worker in &*lock(&self.workers) {
            let tops = lock(&worker.tops);
            hosts.merge(&tops.hosts);
            paths.merge(&tops.paths);
        }
        let second = (now / 1_000_000_000) as u32;
        let (first_second, seconds) = lock(&self.seconds).complete(second);
        Snapshot {
            routes: self.routes(),
            seconds,
            first_second,
            top_hosts: hosts.entries(),
            top_paths: paths.entries(),
        }
    }

    /// What was counted for each route that has answered, sorted by name.
    pub fn routes(&self) -> Vec<(String, Totals)> {
        let mut routes = self.by_name(ArenaTable::Routes, Totals::add_cells);
        routes.retain(|(_, totals)| totals.requests() > 0);
        routes
    }

    /// The workers in the order in which they were started.
    pub fn workers(&self) -> Vec<WorkerState> {
        let workers = lock(&self.workers);
        let states = workers.iter().map(|worker| lock(&worker.published).clone());
        states.collect()
    }

    /// What the metrics show.
    pub fn histograms(&self) -> Histograms {
        let mut stages = [StageCounts::default(); Stage::ALL.len()];
        for arena in &*lock(&self.arenas) {
            if let Some(words) = arena.stages() {
                StageCounts::add_cells(&mut stages, &words);
            }
        }
        let add = |counts: &mut RouteCounts, words: &EntryWords| counts.add_cells(&words.counters);
        let mut routes = self.by_name(ArenaTable::Routes, add);
        routes.retain(|(_, counts)| !counts.classes.is_empty());
        for (_, counts) in &routes {
            let times = stages.iter_mut().zip(counts.stages);
            times.for_each(|(stage, nanos)| stage.sum += nanos);
        }
        let names = self.routes.all();
        let workers = lock(&self.workers);
        for (slot, cells) in workers.iter().flat_map(|worker| worker.routes.all()) {
            let name = names.get(slot).map_or("", |name| name);
            if let Ok(index) = routes.binary_search_by(|(route, _)| (**route).cmp(name)) {
                cells.show_slowest(&mut routes[index].1);
            }
        }
        drop(workers);
        Histograms {
            routes,
            stages,
            hosts: self.by_name(ArenaTable::Hosts, |counts: &mut HostCounts, words| {
                counts.add_cells(&words.counters);
            }),
        }
    }

    /// The sums of the counters that have the same name, sorted by name. `add` adds those of one worker.
    fn by_name<T: Default>(
        &self,
        table: ArenaTable,
        add: impl Fn(&mut T, &EntryWords),
    ) -> Vec<(String, T)> {
        let mut arenas = lock(&self.arenas).clone();
        for worker in &*lock(&self.workers) {
            arenas.extend_from_slice(&lock(&worker.place.beside));
        }
        let mut counters: Vec<(String, EntryWords)> = arenas
            .iter()
            .flat_map(|arena| arena.entries(table))
            .collect();
        counters.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut sums: Vec<(String, T)> = Vec::with_capacity(counters.len());
        for (name, words) in counters {
            match sums.last_mut() {
                Some((last, sum)) if *last == name => add(sum, &words),
                _ => {
                    let mut sum = T::default();
                    add(&mut sum, &words);
                    sums.push((name, sum));
                }
            }
        }
        sums
    }
}

impl WorkerMetrics {
    /// Counts a request that has ended. Returns whether it is one of those that [`WorkerMetrics::count_top`]
    /// counts.
    #[inline]
    pub(crate) fn count(&self, ended: &EndedRequest<'_>) -> bool {
        let slot = ended.route.slot();
        let cells = self.routes.of(slot, || self.route_cells(slot));
        let ledger = ended.ledger;
        let nanos = ledger.total();
        let fine = fine_bucket(nanos);
        cells.count(ended, (nanos, fine), &self.stages);
        self.latency.count(nanos, fine);
        raise(&self.lag_max, ledger.stage(Stage::Lag));
        if ended.host != Host::OTHER {
            let slot = ended.host.slot();
            let make = || HostCells::new(self.place.counters(ArenaTable::Hosts, slot).counters);
            self.hosts.of(slot, make).count(ended);
        }
        let left = self.until_sample.load(Relaxed);
        self.until_sample.store(left.wrapping_sub(1), Relaxed);
        left == 0
    }

    #[cold]
    fn route_cells(&self, slot: u16) -> RouteCells {
        RouteCells::new(self.place.counters(ArenaTable::Routes, slot))
    }

    /// Counts the host and path of a request for the lists of the most frequent ones.
    #[cold]
    pub(crate) fn count_top(&self, host: &[u8], path: &[u8], sent_bytes: u64, time: Nanos) {
        let weight = self.sample_weight.load(Relaxed).max(1);
        self.until_sample.store(weight - 1, Relaxed);
        let mut tops = lock(&self.tops);
        tops.hosts.count(host, weight, sent_bytes, time);
        tops.paths.count(path, weight, sent_bytes, time);
    }

    /// Adds what was counted since the last call to the seconds that all workers share. The worker calls it
    /// once a second; `second` is that of the monotonic clock.
    pub(crate) fn publish(&self, metrics: &Metrics, second: u32, gauges: WorkerGauges) {
        let mut more = Totals::default();
        let changed = self
            .routes
            .all()
            .filter_map(|(_, cells)| cells.take_totals());
        changed.for_each(|totals| more.add(&totals));
        self.latency.move_to(&mut more.latency);
        let requests = more.requests();
        let mut published = lock(&self.published);
        *published = WorkerState {
            requests: published.requests + requests,
            requests_per_s: requests,
            lag: more.stages[Stage::Lag as usize],
            lag_max: self.lag_max.swap(0, Relaxed),
            gauges,
        };
        lock(&metrics.seconds).add(second.saturating_sub(1), &more, &published);
        drop(published);
        self.look_after(requests);
    }

    /// Chooses how many requests are looked at for the lists of the most frequent ones, and lets old counts
    /// fade.
    fn look_after(&self, requests: u64) {
        let weight = requests / u64::from(limits::TOP_SAMPLES_PER_S) + 1;
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        self.sample_weight.store(weight, Relaxed);
        self.until_sample.store(0, Relaxed);
        let mut tops = lock(&self.tops);
        tops.ticks += 1;
        if tops.ticks.is_multiple_of(limits::TOP_HALF_LIFE_S) {
            tops.hosts.halve();
            tops.paths.halve();
        }
        if tops.ticks.is_multiple_of(limits::EXEMPLAR_S) {
            self.routes
                .all()
                .for_each(|(_, cells)| cells.forget_slowest());
        }
    }
}

/// The name of the route of requests that no module has answered.
pub const CORE: &str = "no-module";

/// Like [`shared::lock`](crate::shared::lock), which imports this module.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
