//! The order of a comparison, and the measurement of one cell.
//!
//! Repeats are interleaved: in every round each workload is run with all servers one after the other. So
//! neighbours in a table were measured within seconds of each other, and changes of the machine's speed
//! affect all alike. A server is started afresh for each workload, and only one runs at a time.

use crate::ab::{self, Ab};
use crate::backend::{Backend, Counts as BackendCounts};
use crate::calibrate::{Calibrator, Distances, Sample};
use crate::certificate::Certificate;
use crate::cli::Options;
use crate::load::{self, Client, Outcome, SessionClient, SessionTarget, Target, Until};
use crate::measure::{self, Cpu, Memory, Snapshot};
use crate::peers::{Bodies, Chosen, Logging, STAGES_LOG, petrel};
use crate::report::connections_title;
use crate::stage::{Place, Stage};
use crate::syscalls::{Counting, Counts, Tracer};
use crate::workload::{Aim, Protocol, Service, Suite, Workload, files};
use crate::{interrupt, measure::own_cpu};
use petrel_plot::chart::{self, Panel};
use petrel_plot::format::Format;
use petrel_plot::line::Lines;
use petrel_plot::summary::Summary;
use std::fs::File;
use std::io::BufReader;
use std::time::Duration;

/// One run of one cell: what was measured, or why nothing was.
pub struct Run {
    /// The server's name.
    pub server: &'static str,
    /// The workload's name.
    pub workload: &'static str,
    /// Client connections.
    pub connections: u16,
    /// The figures, or what went wrong.
    pub result: Result<Figures, String>,
}

/// What one run measured.
pub struct Figures {
    /// What the client measured.
    pub outcome: Outcome,
    /// The server's CPU time.
    pub cpu: Cpu,
    /// The client's CPU time.
    pub client_cpu: Duration,
    /// Share of the machine that other programs used meanwhile.
    pub foreign_share: f64,
    /// The cost of the backend.
    pub backend: Option<Behind>,
    /// The server's memory at the end.
    pub memory: Memory,
    /// The server's memory per idle connection, if that is measured.
    pub connection_bytes: Option<f64>,
    /// The fixed work, timed before and after.
    pub samples: [Sample; 2],
    /// Length of a reply's head.
    pub head_bytes: usize,
    /// System calls, counted in the first round, in a separate run.
    pub calls: Option<Result<Calls, String>>,
    /// The figures of `ab`, once, for the article's table.
    pub ab: Option<Result<Ab, String>>,
}

/// What a run cost the backend.
pub struct Behind {
    /// Its CPU time.
    pub cpu: Cpu,
    /// Connections it accepted and requests it received meanwhile, if it counts them.
    pub counts: Option<BackendCounts>,
    /// How long requests occupied its workers, if it records that.
    pub occupied: Option<Duration>,
}

/// System calls of a run.
pub struct Calls {
    /// The program that counted them.
    pub tracer: Tracer,
    /// Calls by name.
    pub counts: Counts,
    /// Replies meanwhile.
    pub requests: u64,
}

impl Figures {
    /// Server CPU per request, µs.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.total.as_secs_f64() * 1e6 / self.outcome.requests as f64
    }

    /// Backend CPU per request, µs.
    pub fn backend_cpu_us(&self) -> f64 {
        let cpu = self.backend.as_ref().map(|backend| backend.cpu.total);
        cpu.unwrap_or_default().as_secs_f64() * 1e6 / self.outcome.requests as f64
    }

    /// How many times slower than `usual` the machine was.
    pub fn slowness(&self, usual: Sample) -> f64 {
        let [before, after] = self.samples;
        before.mean(after).slowness(usual)
    }

    /// Whether the cores were at the usual distance. Other runs count only if there are no better ones.
    pub fn is_sound(&self, distances: &Distances) -> bool {
        self.samples
            .iter()
            .all(|sample| distances.is_usual(sample.distance_ns))
    }

    /// Whether other programs used a good part of the machine. The CPU figures are still valid, but requests
    /// per second and latencies are not.
    pub fn is_disturbed(&self) -> bool {
        self.foreign_share > FOREIGN_SHARE_MAX
    }
}

/// Runs everything. Wrong responses are recorded in the runs; errors are those of this program or machine, or
/// an interruption.
pub fn run(
    options: &Options,
    servers: &[Chosen],
    workloads: &[&'static Workload],
) -> Result<Vec<Run>, String> {
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    files::make(&place.root, workloads).map_err(|error| format!("cannot make files: {error}"))?;
    let calibrator = Calibrator::new(place.server_cores);
    let calibrator = calibrator.map_err(|error| format!("cannot calibrate: {error}"))?;
    let mut conditions = Conditions {
        calibrator,
        distances: Distances::default(),
    };
    let mut runs = Vec::new();
    for round in 0..options.rounds() {
        for workload in workloads {
            eprintln!(
                "round {} of {}: {}",
                round + 1,
                options.rounds(),
                workload.title
            );
            let able = servers
                .iter()
                .filter(|chosen| chosen.peer.serves.contains(&workload.needs));
            for chosen in able {
                let round = Round {
                    options,
                    place: &place,
                    number: round,
                };
                round.visit(chosen, workload, &mut conditions, &mut runs);
                let draws = options.stages && round.number == 0;
                if draws && chosen.peer.name == petrel::PEER.name {
                    let drawn = round.draw_stages(chosen, workload);
                    drawn.map_err(|error| format!("stage times of {}: {error}", workload.name))?;
                }
                if interrupt::asked() {
                    return Err("interrupted".to_owned());
                }
            }
        }
    }
    Ok(runs)
}

/// The state of the machine.
struct Conditions {
    calibrator: Calibrator,
    distances: Distances,
}

impl Conditions {
    fn sample(&mut self) -> Result<Sample, String> {
        let sample = self
            .calibrator
            .sample()
            .map_err(|error| error.to_string())?;
        self.distances.add(sample.distance_ns);
        Ok(sample)
    }
}

/// One round of all servers and workloads.
struct Round<'a> {
    options: &'a Options,
    place: &'a Place,
    number: u32,
}

impl Round<'_> {
    /// Starts a server and runs a workload with each number of connections.
    fn visit(
        &self,
        chosen: &Chosen,
        workload: &'static Workload,
        conditions: &mut Conditions,
        runs: &mut Vec<Run>,
    ) {
        let mut add = |connections, result| {
            let (server, workload) = (chosen.peer.name, workload.name);
            if let Err(error) = &result {
                eprintln!(
                    "  {server}, {workload}, {}: {error}",
                    connections_title(connections)
                );
            }
            runs.push(Run {
                server,
                workload,
                connections,
                result,
            });
        };
        match Visit::new(self, chosen, workload, Logging::Off) {
            Ok(visit) => {
                for connections in self.options.connections(workload) {
                    add(*connections, visit.cell(*connections, conditions));
                }
            }
            Err(error) => {
                for connections in self.options.connections(workload) {
                    add(*connections, Err(error.clone()));
                }
            }
        }
    }
}

impl Round<'_> {
    /// Runs a workload once more on a server with an access log, and draws the stage times of its requests.
    /// Not a part of the comparison: writing the log takes time.
    fn draw_stages(&self, chosen: &Chosen, workload: &'static Workload) -> Result<(), String> {
        let told = |error: std::io::Error| error.to_string();
        let out = self.options.out.join(workload.suite.directory());
        for connections in self.options.connections(workload) {
            let visit = Visit::new(self, chosen, workload, Logging::Stages)?;
            let mut client = visit.target.connect(*connections)?;
            visit.run(&mut client, visit.length())?;
            std::thread::sleep(LOG_TIME);
            let log = visit.stage.served.directory.path().join(STAGES_LOG);
            let mut log = BufReader::new(File::open(log).map_err(told)?);
            let lines = Lines::Format(Format::parse(petrel::STAGES_FORMAT)?);
            let mut summary = Summary::new(&[]);
            let read = summary.read(&mut log, &lines, &mut |_, _| Ok(()));
            read.map_err(told)?;
            let title = format!("{}, {}", workload.title, connections_title(*connections));
            let svg = chart::draw(&summary, &[Panel::Time, Panel::Stage], &title);
            let file = out.join(format!("stages-{}-{connections}.svg", workload.name));
            std::fs::write(file, svg).map_err(told)?;
        }
        Ok(())
    }
}

/// A running server that was verified to send the right bytes.
struct Visit<'a> {
    round: &'a Round<'a>,
    workload: &'static Workload,
    target: Load,
    stage: Stage,
    head_bytes: usize,
}

impl<'a> Visit<'a> {
    fn new(
        round: &'a Round<'a>,
        chosen: &Chosen,
        workload: &'static Workload,
        logging: Logging,
    ) -> Result<Self, String> {
        files::renew(&round.place.root, workload)
            .map_err(|error| format!("cannot renew files: {error}"))?;
        let stage = Stage::logging(round.place, chosen, workload, logging)?;
        let port = stage.served.port;
        let certificate = &round.place.certificate;
        let (target, head_bytes) = Load::new(workload, chosen.peer.bodies, port, certificate)?;
        Ok(Self {
            round,
            workload,
            target,
            stage,
            head_bytes,
        })
    }

    /// Warms up, measures, and in the first round counts system calls. A run that is not sound is repeated a
    /// few times.
    fn cell(&self, connections: u16, conditions: &mut Conditions) -> Result<Figures, String> {
        let memory = || measure::memory(&self.stage.served.server).proportional;
        let before = memory();
        let mut client = self.target.connect(connections)?;
        let connection_bytes = (self.workload.aim == Aim::IdleConnections).then(|| {
            std::thread::sleep(SETTLE_TIME);
            memory().saturating_sub(before) as f64 / f64::from(connections)
        });
        self.run(&mut client, self.warm_up())?;
        let mut run = self.measure(&mut client, conditions)?;
        for _ in 1..ATTEMPTS_MAX {
            if run.is_sound(&conditions.distances) {
                break;
            }
            run = self.measure(&mut client, conditions)?;
        }
        run.connection_bytes = connection_bytes;
        if self.round.number == 0 {
            run.calls = Some(self.count_calls(&mut client));
            if matches!(self.workload.suite, Suite::Article | Suite::Stat) {
                let path = &self.workload.paths()[0];
                let port = self.stage.served.port;
                run.ab = Some(ab::run(port, path, connections, self.workload.reuse));
            }
        }
        Ok(run)
    }

    fn measure(
        &self,
        client: &mut Connected<'_>,
        conditions: &mut Conditions,
    ) -> Result<Figures, String> {
        client.prepare()?;
        let before = conditions.sample()?;
        let cpu_before = self.idle_snapshot();
        let behind_before = self.stage.backend.as_ref().map(Side::take);
        let (own_before, busy_before) = (own_cpu(), measure::busy_ticks());
        let outcome = self.run(client, self.length())?;
        let (client_cpu, busy) = (own_cpu() - own_before, measure::busy_ticks() - busy_before);
        let cpu = cpu_before.used_until(&self.idle_snapshot());
        let backend = self
            .stage
            .backend
            .as_ref()
            .zip(behind_before)
            .map(|(backend, before)| before.until(&Side::take(backend)));
        let behind_cpu = backend.as_ref().map(|behind| behind.cpu.total);
        let ours = cpu.total + client_cpu + behind_cpu.unwrap_or_default();
        let cores = self.round.place.all_cores;
        let foreign_share = measure::foreign_share(busy, ours, outcome.elapsed, cores);
        let memory = measure::memory(&self.stage.served.server);
        if let (Service::PageCache(_), Some(cpu)) = (self.workload.needs, behind_cpu) {
            let each_us = cpu.as_secs_f64() * 1e6 / outcome.requests as f64;
            if each_us > CACHED_BACKEND_US_MAX {
                return Err(format!(
                    "not from the cache: the backend worked {each_us:.1} µs a request"
                ));
            }
        }
        let after = conditions.sample()?;
        let (samples, head_bytes) = ([before, after], self.head_bytes);
        let (calls, ab, connection_bytes) = (None, None, None);
        Ok(Figures {
            outcome,
            cpu,
            client_cpu,
            foreign_share,
            backend,
            memory,
            connection_bytes,
            samples,
            head_bytes,
            calls,
            ab,
        })
    }

    fn run(&self, client: &mut Connected<'_>, until: Until) -> Result<Outcome, String> {
        let ran = match client {
            Connected::Plain(client) => client.run(until),
            Connected::Sessions(client) => client.run(until),
        };
        ran.map_err(|error| error.to_string())
    }

    /// Waits until the server sleeps, because only then its clocks are exact.
    fn idle_snapshot(&self) -> Snapshot {
        std::thread::sleep(SETTLE_TIME);
        Snapshot::take(&self.stage.served.server)
    }

    fn count_calls(&self, client: &mut Connected<'_>) -> Result<Calls, String> {
        client.prepare()?;
        let served = &self.stage.served;
        let counting = Counting::start(&served.server.processes(), served.directory.path())?;
        let until = Until {
            time: COUNT_TIME,
            requests: 100,
            time_max: 20 * COUNT_TIME,
        };
        let requests = self.run(client, until)?.requests;
        std::thread::sleep(SETTLE_TIME);
        let tracer = counting.tracer();
        Ok(Calls {
            tracer,
            counts: counting.finish()?,
            requests,
        })
    }

    fn warm_up(&self) -> Until {
        let warm_up = self.workload.warm_up;
        Until {
            time: warm_up.time,
            requests: warm_up.requests,
            time_max: warm_up.time_max,
        }
    }

    fn length(&self) -> Until {
        let time_max = self.round.options.run_length().max(REQUESTS_TIME_MAX);
        match self.round.options.requests {
            Some(requests) => Until {
                time: Duration::ZERO,
                requests,
                time_max,
            },
            None => Until {
                time: self.round.options.run_length(),
                requests: 0,
                time_max,
            },
        }
    }
}

/// The target for the client that a workload needs.
enum Load {
    /// HTTP/1.1 in the clear.
    Plain(Target),
    /// TLS, HTTP/2 or both.
    Sessions(SessionTarget),
}

/// That client with its connections.
enum Connected<'a> {
    Plain(Client<'a>),
    Sessions(SessionClient<'a>),
}

impl Load {
    /// For a server that was verified to send the right bytes; also returns the length of its replies' heads.
    fn new(
        workload: &Workload,
        bodies: Bodies,
        port: u16,
        certificate: &Certificate,
    ) -> Result<(Self, usize), String> {
        if workload.protocol == Protocol::PLAIN {
            let head_bytes = load::verify(workload, bodies, port)?;
            return Ok((Self::Plain(Target::new(workload, port)), head_bytes));
        }
        let target = SessionTarget::new(workload, port, certificate);
        let target = target.map_err(|error| error.to_string())?;
        let head_bytes = load::verify_session(workload, &target)?;
        Ok((Self::Sessions(target), head_bytes))
    }

    fn connect(&self, connections: u16) -> Result<Connected<'_>, String> {
        let connected = match self {
            Self::Plain(target) => Client::connect(target, connections).map(Connected::Plain),
            Self::Sessions(target) => {
                SessionClient::connect(target, connections).map(Connected::Sessions)
            }
        };
        connected.map_err(|error| error.to_string())
    }
}

impl Connected<'_> {
    fn prepare(&mut self) -> Result<(), String> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Sessions(client) => client.prepare().map_err(|error| error.to_string()),
        }
    }
}

/// A backend's counters at one moment.
struct Side {
    cpu: Snapshot,
    counts: Option<BackendCounts>,
    occupied: Option<Duration>,
}

impl Side {
    fn take(backend: &Backend) -> Self {
        Self {
            cpu: Snapshot::take(&backend.running),
            counts: backend.counts(),
            occupied: backend.occupied(),
        }
    }

    fn until(&self, later: &Self) -> Behind {
        let counts = later.counts.zip(self.counts);
        Behind {
            cpu: self.cpu.used_until(&later.cpu),
            counts: counts.map(|(later, earlier)| BackendCounts {
                accepted: later.accepted - earlier.accepted,
                requests: later.requests - earlier.requests,
            }),
            occupied: later
                .occupied
                .zip(self.occupied)
                .map(|(later, earlier)| later - earlier),
        }
    }
}

/// Above this share a run counts as disturbed. Ticks alone cause an error of two percent in a second.
const FOREIGN_SHARE_MAX: f64 = 0.05;
/// If a backend needs more than this per request, it is being asked although a cache should answer.
const CACHED_BACKEND_US_MAX: f64 = 0.5;
/// The most attempts at a run; the last one is taken as it is.
const ATTEMPTS_MAX: u32 = 5;
/// After the last reply a server still closes, logs or collects garbage for a moment.
const SETTLE_TIME: Duration = Duration::from_millis(10);
/// The server's log writer writes what it has at the latest after this.
const LOG_TIME: Duration = Duration::from_millis(500);
/// Long enough for thousands of requests under a tracer.
const COUNT_TIME: Duration = Duration::from_millis(300);
/// A run of a number of requests ends after this time in any case.
const REQUESTS_TIME_MAX: Duration = Duration::from_secs(60);
