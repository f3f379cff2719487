//! The status of a server, as its JSON has it (docs/status-json.md). The server fills it (`json.rs`) and makes
//! the page or the JSON of it; `petrel top` reads it from the JSON.
//!
//! Fields that are missing have their default value, and unknown ones are ignored, so that `petrel top` can
//! show a server of a neighbouring version.

use std::collections::BTreeMap;
use std::fmt;

use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::metrics::StatusClass;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::text::{Age, Bytes};

/// The whole object.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Status {
    /// Rises when a field changes its meaning or goes.
    pub format: u64,
    /// Which server process has answered.
    pub server: ServerInfo,
    /// Counts since the start.
    pub totals: Totals,
    /// The stages, in the order in which they happen.
    pub stages: Vec<StageInfo>,
    /// The upper bounds of the buckets of histograms, in microseconds.
    pub latency_bounds_us: Vec<u64>,
    /// The last five minutes.
    pub seconds: Seconds,
    /// How long requests of late took.
    pub latency: RecentLatency,
    /// What answered the requests, the most time first.
    pub routes: Vec<RouteStatus>,
    /// The hosts with the most requests.
    pub hosts: Vec<Top>,
    /// The paths with the most requests.
    pub paths: Vec<Top>,
    /// The backends of the gateways.
    pub backends: Vec<BackendStatus>,
    /// What is kept in memory.
    pub caches: Caches,
    /// Work that waits for disks.
    pub disk: DiskStatus,
    /// The workers.
    pub workers: Vec<WorkerStatus>,
    /// The slowest requests of the last hour, the slowest first.
    pub slowest: Vec<RequestStatus>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// Which server process has answered.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ServerInfo {
    /// Petrel's version.
    pub version: String,
    /// The process id.
    pub pid: u32,
    /// How often the configuration was loaded.
    pub generation: u64,
    /// When it was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// The wall-clock time, in milliseconds since 1970.
    pub now_ms: u64,
    /// How long the server process has been running.
    pub uptime_s: u64,
    /// A newer server process has taken over.
    pub is_draining: bool,
}

/// Counts since the start.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Totals {
    /// Requests that were answered or given up.
    pub requests: u64,
    /// Bytes of responses with their heads.
    pub sent_bytes: u64,
    /// Bytes of request bodies.
    pub received_bytes: u64,
    /// Requests by the class of their status.
    pub status: StatusClasses<u64>,
    /// The time of all requests.
    pub time_us: u64,
    /// Requests that are being received or answered.
    pub open_requests: u64,
    /// Open connections of clients.
    pub connections: u64,
    /// `server.max-connections`.
    pub connections_max: u64,
}

/// A stage of requests.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct StageInfo {
    /// Its name.
    pub name: String,
    /// `work` or `wait`.
    pub kind: String,
    /// What happens in it, in a sentence.
    pub meaning: String,
}

/// Requests by the class of their status.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct StatusClasses<T: Default> {
    /// 1xx.
    #[serde(rename = "1xx")]
    pub informational: T,
    /// 2xx.
    #[serde(rename = "2xx")]
    pub successful: T,
    /// 3xx.
    #[serde(rename = "3xx")]
    pub redirections: T,
    /// 4xx.
    #[serde(rename = "4xx")]
    pub client_errors: T,
    /// 5xx.
    #[serde(rename = "5xx")]
    pub server_errors: T,
    /// The response could not be completed.
    pub aborted: T,
}

impl<T: Default> StatusClasses<T> {
    /// The values of all classes.
    pub fn of(value: impl Fn(StatusClass) -> T) -> StatusClasses<T> {
        StatusClasses {
            informational: value(StatusClass::Informational),
            successful: value(StatusClass::Successful),
            redirections: value(StatusClass::Redirection),
            client_errors: value(StatusClass::ClientError),
            server_errors: value(StatusClass::ServerError),
            aborted: value(StatusClass::Aborted),
        }
    }
}

/// The last five minutes; lists have an entry for each second, the oldest first.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Seconds {
    /// The wall-clock second of the first entries, since 1970.
    pub first_s: u64,
    /// Requests that ended.
    pub requests: Vec<u64>,
    /// Requests that began.
    pub begun: Vec<u64>,
    /// Bytes that were sent.
    pub sent_bytes: Vec<u64>,
    /// Bytes that were received.
    pub received_bytes: Vec<u64>,
    /// Requests by the class of their status.
    pub status: StatusClasses<Vec<u64>>,
    /// The time of all requests in each stage.
    pub stage_us: BTreeMap<String, Vec<u64>>,
    /// Histograms of the times of requests.
    pub latency: Vec<Vec<u64>>,
    /// The time within which 99 % of the requests ended; 0 without requests.
    pub p99_us: Vec<u64>,
    /// The longest time of a request.
    pub max_us: Vec<u64>,
    /// The lag of all requests.
    pub lag_us: Vec<u64>,
    /// The most that one request lagged.
    pub lag_max_us: Vec<u64>,
    /// The longest time that a worker ran without asking for new events.
    pub turn_max_us: Vec<u64>,
    /// Connections that were open at the end of the second.
    pub connections: Vec<u64>,
    /// Requests that were open at the end of the second.
    pub open_requests: Vec<u64>,
}

/// How long requests of late took.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RecentLatency {
    /// In the last minute. `None`: there were no requests.
    pub minute: Option<Percentiles>,
    /// In each [`COLUMN_S`] seconds of the last five minutes, the oldest first. The last ends with the newest
    /// second.
    pub columns: Vec<Option<Percentiles>>,
}

/// Seconds of a column of [`RecentLatency`].
pub const COLUMN_S: usize = 5;

/// Times in short, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Percentiles {
    /// Half were no longer.
    pub p50_us: u64,
    /// 99 % were no longer.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// What answered requests.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteStatus {
    /// The name.
    pub route: String,
    /// The module alone.
    pub module: String,
    /// The rest of the name.
    pub detail: Option<String>,
    /// Requests.
    pub requests: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes that were received.
    pub received_bytes: u64,
    /// Requests by the class of their status.
    pub status: StatusClasses<u64>,
    /// The time of all requests.
    pub time_us: u64,
    /// Their times, as a histogram.
    pub latency: Vec<u64>,
    /// Their times in short.
    pub percentiles: Option<Percentiles>,
    /// The time in each stage.
    pub stage_us: StageTimes,
}

/// A host or path with many requests.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Top {
    /// The host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its requests, estimated.
    pub requests: u64,
    /// How much too high `requests` may be.
    pub error_requests: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// The time of its requests.
    pub time_us: u64,
}

/// A backend.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct BackendStatus {
    /// Its name in the configuration.
    pub label: String,
    /// Its address.
    pub address: String,
    /// The directive and key that lead to it.
    pub route: String,
    /// Its protocol.
    pub protocol: String,
    /// `up`, `strained` or `down`.
    pub state: String,
    /// Open connections.
    pub connections: u64,
    /// How many there may be, if that is configured.
    pub limit: Option<u64>,
    /// Requests under way, those that wait for a connection included.
    pub load: u64,
    /// Requests that wait for a connection.
    pub waiting: u64,
    /// Requests that had to wait.
    pub backlogged: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Connections that were made.
    pub connected: u64,
    /// How often it failed.
    pub died: u64,
    /// How often it was too busy.
    pub overloaded: u64,
    /// The times until the first byte of its replies, as a histogram.
    pub first_byte: Vec<u64>,
    /// These times in short.
    pub first_byte_percentiles: Option<Percentiles>,
    /// The sum of these times.
    pub first_byte_us: u64,
    /// The requests that have its connections, the longest first.
    pub holders: Vec<Holder>,
    /// What php-fpm says of itself, if it is asked.
    pub fpm: Option<FpmStatus>,
}

/// What php-fpm says of itself.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FpmStatus {
    /// The path of its page.
    pub path: String,
    /// When it was asked last, before now; `None`: not lately.
    pub age_ms: Option<u64>,
    /// Why it has not answered.
    pub error: Option<String>,
    /// Its answer.
    pub pool: Option<FpmPoolStatus>,
    /// What to think about, in a sentence.
    pub advice: Option<String>,
}

/// A pool of php-fpm.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FpmPoolStatus {
    /// Its name.
    pub name: String,
    /// How children are started (`pm`).
    pub manager: String,
    /// All children.
    pub children: u64,
    /// Those that work on a request.
    pub working: u64,
    /// Those that wait for the next request on a persistent connection.
    pub reading: u64,
    /// Those that wait for a connection.
    pub idle: u64,
    /// Connections that no child has accepted yet.
    pub listen_queue: u64,
    /// The most there have been.
    pub listen_queue_max: u64,
    /// How often there was no further child because of `pm.max_children`.
    pub max_children_reached: u64,
    /// The most memory that the last request of a child has used.
    pub memory_max_bytes: Option<u64>,
    /// The mean of this memory.
    pub memory_mean_bytes: Option<u64>,
    /// What has been running for longest.
    pub scripts: Vec<FpmScript>,
}

/// A script that a child of php-fpm runs.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FpmScript {
    /// The child.
    pub pid: u64,
    /// The beginning of the path of its URL.
    pub uri: String,
    /// The beginning of its own path.
    pub script: String,
    /// For how long at most.
    pub age_us: u64,
}

/// A request that has a connection of a backend.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Holder {
    /// The beginning of its path.
    pub path: String,
    /// Its client.
    pub client: String,
    /// How long it has had the connection.
    pub age_ms: u64,
}

/// What is kept in memory.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Caches {
    /// Files.
    pub files: FileCacheStatus,
    /// The counters of the page cache, by name.
    pub pages: Option<BTreeMap<String, u64>>,
}

/// Files in memory.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FileCacheStatus {
    /// Memory for contents.
    pub memory_bytes: u64,
    /// Look-ups that the kernel's caches could answer.
    pub cached: u64,
    /// Look-ups for which a disk was asked.
    pub disk: u64,
}

/// Work that waits for disks.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct DiskStatus {
    /// By kind of work.
    pub classes: Vec<DiskClass>,
    /// By file system; those that have work now.
    pub devices: Vec<DiskDevice>,
}

/// A kind of disk work.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct DiskClass {
    /// Its name.
    pub name: String,
    /// Threads.
    pub threads: u64,
    /// Jobs that run.
    pub running: u64,
    /// Jobs that wait.
    pub queued: u64,
    /// Jobs that have run for long.
    pub stuck: u64,
    /// Jobs since the start.
    pub jobs: u64,
    /// Jobs that were refused because too many waited.
    pub refused: u64,
    /// How long jobs have waited.
    pub wait_us: u64,
    /// The longest time that a job waited.
    pub wait_max_us: u64,
    /// How long jobs have run.
    pub run_us: u64,
    /// The longest time that a job ran.
    pub run_max_us: u64,
}

/// A file system that has work.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct DiskDevice {
    /// Its number.
    pub device: String,
    /// Where it is mounted.
    pub mount: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Whether it is on another machine.
    pub is_remote: bool,
    /// Jobs that run.
    pub running: u64,
    /// Jobs that wait.
    pub queued: u64,
    /// The age of the oldest job.
    pub oldest_ms: Option<u64>,
}

/// A worker.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u64,
    /// Requests since the start of its process.
    pub requests: u64,
    /// Requests that ended in the last second.
    pub requests_per_s: u64,
    /// Requests that began in the last second.
    pub begun_per_s: u64,
    /// Open connections.
    pub connections: u64,
    /// Open requests.
    pub open_requests: u64,
    /// The lag of all requests in the last second.
    pub lag_us: u64,
    /// The most that one of them lagged.
    pub lag_max_us: u64,
    /// The longest time without asking for new events.
    pub turn_max_us: u64,
    /// What last kept it busy for long.
    pub hog: Option<Hog>,
    /// The request for which it worked last, if that has not ended.
    pub works_for: Option<CurrentRequest>,
}

/// The request for which a worker works.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct CurrentRequest {
    /// Its id, as in the logs.
    pub id: String,
    /// The beginning of its path.
    pub path: String,
    /// How long it has taken until now.
    pub time_us: u64,
}

/// A request that kept a worker busy.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Hog {
    /// The script, or method and path.
    pub what: String,
    /// The stage.
    pub stage: String,
    /// For how long.
    pub ran_us: u64,
    /// When that was.
    pub ago_ms: u64,
}

/// One of the slowest requests.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RequestStatus {
    /// Its id, as in the logs.
    pub id: String,
    /// The worker that serves it.
    pub worker: u64,
    /// Its method.
    pub method: String,
    /// Its host.
    pub host: String,
    /// Its path.
    pub path: String,
    /// Its client.
    pub client: String,
    /// What answers it.
    pub route: String,
    /// How long it took.
    pub time_us: u64,
    /// When it ended, in milliseconds since 1970.
    pub ended_ms: u64,
    /// The status of its answer.
    pub status: u16,
    /// Whether the answer could not be completed.
    pub is_aborted: bool,
    /// Why it failed, if Petrel itself made the answer.
    pub cause: Option<String>,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// The time in each stage.
    pub stage_us: StageTimes,
    /// The time in no stage.
    pub unattributed_us: u64,
    /// What held it up.
    pub waits: Vec<NotedWait>,
}

/// A long wait, and what the request waited for.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NotedWait {
    /// The stage.
    pub stage: String,
    /// How long.
    pub time_us: u64,
    /// What held it up, in words.
    pub holder: String,
}

/// Times by stage, in microseconds. An array, because there is one for each route.
#[derive(Clone, Debug)]
pub struct StageTimes([u64; Stage::ALL.len()]);

impl StageTimes {
    /// The time in `stage`.
    pub fn of(&self, stage: Stage) -> u64 {
        self.0[stage as usize]
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: &StageTimes) {
        for (sum, time) in self.0.iter_mut().zip(other.0) {
            *sum += time;
        }
    }
}

impl Default for StageTimes {
    fn default() -> StageTimes {
        StageTimes([0; Stage::ALL.len()])
    }
}

impl FromIterator<(Stage, Nanos)> for StageTimes {
    fn from_iter<I: IntoIterator<Item = (Stage, Nanos)>>(times: I) -> StageTimes {
        let mut all = StageTimes::default();
        for (stage, nanos) in times {
            all.0[stage as usize] = nanos / 1_000;
        }
        all
    }
}

/// As an object with the stages that have time.
impl Serialize for StageTimes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let times = Stage::ALL
            .iter()
            .map(|stage| (stage.name(), self.of(*stage)));
        serializer.collect_map(times.filter(|(_, time)| *time > 0))
    }
}

/// From an object with the names of stages. Those of another version are ignored.
impl<'de> Deserialize<'de> for StageTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StageTimes, D::Error> {
        struct ShownTimes;
        impl<'de> Visitor<'de> for ShownTimes {
            type Value = StageTimes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("times by stage")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StageTimes, A::Error> {
                let mut times = StageTimes::default();
                while let Some((StageName(stage), time)) = map.next_entry()? {
                    if let Some(stage) = stage {
                        times.0[stage as usize] = time;
                    }
                }
                Ok(times)
            }
        }
        deserializer.deserialize_map(ShownTimes)
    }
}

/// The stage that a name stands for.
struct StageName(Option<Stage>);

impl<'de> Deserialize<'de> for StageName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StageName, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = StageName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a stage")
            }

            fn visit_str<E>(self, name: &str) -> Result<StageName, E> {
                let mut stages = Stage::ALL.iter().copied();
                Ok(StageName(stages.find(|stage| stage.name() == name)))
            }
        }
        deserializer.deserialize_identifier(Name)
    }
}

/// What stages have in common, for colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StageGroup {
    /// The request could go on, but something else had its turn.
    Waiting,
    /// A backend works.
    BackendStatus,
    /// A disk works.
    DiskStatus,
    /// The worker works.
    Server,
    /// The client sends or receives.
    Client,
}

impl StageGroup {
    /// All groups, in the order in which charts stack them.
    pub const ALL: [StageGroup; 5] = [
        StageGroup::Waiting,
        StageGroup::BackendStatus,
        StageGroup::DiskStatus,
        StageGroup::Server,
        StageGroup::Client,
    ];

    /// The group of a stage.
    pub fn of(stage: Stage) -> StageGroup {
        match stage {
            Stage::Lag
            | Stage::DiskQueue
            | Stage::BackendQueue
            | Stage::BackendAccept
            | Stage::Cache
            | Stage::Throttle => StageGroup::Waiting,
            Stage::BackendConnect
            | Stage::BackendSend
            | Stage::BackendFirstByte
            | Stage::BackendBody => StageGroup::BackendStatus,
            Stage::Open | Stage::Stat | Stage::ReadFile => StageGroup::DiskStatus,
            Stage::Parse
            | Stage::Match
            | Stage::Translate
            | Stage::Authorize
            | Stage::Map
            | Stage::Lua
            | Stage::Content
            | Stage::Transform
            | Stage::Send => StageGroup::Server,
            Stage::Tls | Stage::ReadHead | Stage::RequestBody | Stage::ClientDrain => {
                StageGroup::Client
            }
        }
    }

    /// Its name in legends.
    pub const fn name(self) -> &'static str {
        match self {
            StageGroup::Waiting => "waiting",
            StageGroup::BackendStatus => "backend",
            StageGroup::DiskStatus => "disk",
            StageGroup::Server => "server",
            StageGroup::Client => "client",
        }
    }

    /// The stages of the group, in their order.
    pub fn stages(self) -> impl Iterator<Item = Stage> {
        let all = Stage::ALL.iter().copied();
        all.filter(move |stage| StageGroup::of(*stage) == self)
    }
}

impl Top {
    /// The host or path.
    pub fn name(&self) -> &str {
        self.host.as_deref().or(self.path.as_deref()).unwrap_or("")
    }
}

impl Status {
    /// Reads the JSON.
    ///
    /// # Errors
    /// It is not the JSON of a status; the message says where.
    pub fn parse(json: &str) -> Result<Status, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }
}

/// The mean of the last `count` entries, for numbers of a second.
pub fn mean_of_last(values: &[u64], count: usize) -> f64 {
    let last = &values[values.len().saturating_sub(count)..];
    match last.len() {
        0 => 0.0,
        length => last.iter().sum::<u64>() as f64 / length as f64,
    }
}

impl fmt::Display for FpmStatus {
    /// The children, or why they are not known, in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pool) = &self.pool else {
            return match &self.error {
                Some(error) => write!(f, "{} of php-fpm cannot be read: {error}", self.path),
                None => write!(f, "{} of php-fpm was not asked for lately", self.path),
            };
        };
        let FpmPoolStatus {
            name,
            manager,
            children,
            working,
            listen_queue,
            max_children_reached,
            ..
        } = pool;
        write!(
            f,
            "php-fpm {name} ({manager}): {working} of {children} children busy, listen queue {listen_queue}, max \
             children reached {max_children_reached}×"
        )?;
        if let (Some(mean), Some(max)) = (pool.memory_mean_bytes, pool.memory_max_bytes) {
            let (mean, max) = (Bytes(mean as f64), Bytes(max as f64));
            write!(
                f,
                ", memory of the last requests {mean} each, at most {max}"
            )?;
        }
        // A reader that comes once a second sees an answer of the second before.
        match self.age_ms {
            Some(age_ms) if age_ms >= 5_000 => write!(f, ", {} ago", Age(age_ms / 1000)),
            _ => Ok(()),
        }
    }
}

impl FpmScript {
    /// The path of its URL, and its own path if that does not end with it.
    pub fn name(&self) -> String {
        match self.script.ends_with(&self.uri) {
            true => self.uri.clone(),
            false => format!("{} ({})", self.uri, self.script),
        }
    }
}

impl BackendStatus {
    /// The requests that have its connections, by path, the most first: path, how many, the age of the oldest
    /// and its client.
    pub fn held_by(&self) -> Vec<(&str, usize, &Holder)> {
        let mut groups: Vec<(&str, usize, &Holder)> = Vec::new();
        for holder in &self.holders {
            match groups.iter_mut().find(|(path, ..)| *path == holder.path) {
                Some((_, count, oldest)) => {
                    *count += 1;
                    if holder.age_ms > oldest.age_ms {
                        *oldest = holder;
                    }
                }
                None => groups.push((&holder.path, 1, holder)),
            }
        }
        groups.sort_by_key(|(_, count, oldest)| std::cmp::Reverse((*count, oldest.age_ms)));
        groups
    }

    /// Whether it needs a look: it is down, full, or requests wait for it.
    pub fn is_troubled(&self) -> bool {
        self.state != "up"
            || self.waiting > 0
            || self.limit.is_some_and(|limit| self.connections >= limit)
    }
}
