//! What the private instance tells of each request: a module of its own, which has the ledger keep every stamp
//! and writes them into a pipe when the request has ended.
//!
//! A request that does not show the token of the instance is not reported and gets 403, before any rule looks at
//! it: the port is open to every user of the machine, and sites that need a client's certificate are behind it.
//!
//! It knows nothing of tracing. The clock of the stamps, CLOCK_MONOTONIC, is that of the tracer as well.

use std::io::{PipeWriter, Write};
use std::rc::Rc;
use std::sync::Arc;

use config::Diagnostic;
use engine::Exchange;
use engine::exchange::Scheme;
use engine::ledger::{Nanos, Stage};
use engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use proto::status::Status;

/// The module; it is in no table, and only the private instance has it.
pub(super) static MODULE: ModuleSpec = ModuleSpec {
    name: "petrel costs",
    doc: "Reports the stages of each request.",
    loaded: Loaded::Always,
    directives: &[],
    configure,
};

/// The end of the pipe that the private instance writes to, and whose requests it tells of.
pub(super) struct ReportPipe {
    pub(super) pipe: PipeWriter,
    /// The value of [`TOKEN_FIELD`] in the requests of `petrel costs`.
    pub(super) token: String,
}

impl ReportPipe {
    /// Writes a line.
    pub(super) fn say(&self, line: &str) {
        // The parent process has gone if this fails, and this one is about to be killed.
        let _ = (&self.pipe).write_all(format!("{line}\n").as_bytes());
    }
}

/// One request, as the ledger saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestReport {
    /// The status of the response.
    pub(super) status: u16,
    /// Bytes of the response's body.
    pub(super) body_bytes: u64,
    /// When the first byte of the request arrived.
    pub(super) started: Nanos,
    /// What was found out about how the request was answered.
    pub(super) facts: Facts,
    /// The stages in the order in which they ended, each with that time. A stage may occur several times.
    pub(super) stamps: Vec<(String, Nanos)>,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The URL leads to a file.
    pub(super) has_file: bool,
    /// No file was looked up, because a backend answers anyway.
    pub(super) is_virtual: bool,
    /// The page cache had the response.
    pub(super) is_cached: bool,
    /// A backend answered.
    pub(super) asked_backend: bool,
}

impl RequestReport {
    /// When the last stamp was made.
    pub(super) fn ended(&self) -> Nanos {
        self.stamps.last().map_or(self.started, |(_, at)| *at)
    }

    /// Whether the request spent time in this stage.
    pub(super) fn has_stage(&self, name: &str) -> bool {
        self.stamps.iter().any(|(stage, _)| stage == name)
    }

    fn of(exchange: &Exchange) -> RequestReport {
        let cache_status = exchange.response.get("Cache-Status").unwrap_or_default();
        let trail = exchange.ledger.trail().cloned().unwrap_or_default();
        let name = |stage: Option<Stage>| stage.map_or(UNATTRIBUTED, Stage::name).to_owned();
        RequestReport {
            status: exchange.response.status.0,
            body_bytes: exchange.sent.body_bytes,
            started: exchange.ledger.started(),
            facts: Facts {
                has_file: exchange.physical.file.is_some(),
                is_virtual: exchange.physical.is_virtual,
                is_cached: cache_status.windows(5).any(|part| part == b"; hit"),
                asked_backend: exchange.ledger.stage(Stage::BackendFirstByte) > 0,
            },
            stamps: trail
                .0
                .iter()
                .map(|(stage, at)| (name(*stage), *at))
                .collect(),
        }
    }

    fn line(&self) -> String {
        let Facts {
            has_file,
            is_virtual,
            is_cached,
            asked_backend,
        } = self.facts;
        let mut line = format!(
            "{} {} {} {} {} {} {}",
            self.status,
            self.body_bytes,
            u8::from(has_file),
            u8::from(is_virtual),
            u8::from(is_cached),
            u8::from(asked_backend),
            self.started
        );
        for (stage, at) in &self.stamps {
            line += &format!(" {stage}={at}");
        }
        line
    }

    /// Reads a line of the pipe.
    pub(super) fn parse(line: &str) -> Option<RequestReport> {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (status, body_bytes) = (number()?, number()?);
        let facts = Facts {
            has_file: number()? == 1,
            is_virtual: number()? == 1,
            is_cached: number()? == 1,
            asked_backend: number()? == 1,
        };
        let started = number()?;
        let stamp = |word: &str| {
            let (stage, at) = word.split_once('=')?;
            Some((stage.to_owned(), at.parse().ok()?))
        };
        Some(RequestReport {
            status: u16::try_from(status).ok()?,
            body_bytes,
            started,
            facts,
            stamps: words.map(stamp).collect::<Option<_>>()?,
        })
    }
}

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    if let Some(pipe) = configure.handed::<ReportPipe>() {
        let gate = Gate {
            pipe: Arc::clone(&pipe),
        };
        configure.add_first(Phase::Translate, gate);
        configure.add_last(Phase::Log, RequestReporter { pipe });
    }
    Ok(())
}

/// Lets in the requests of `petrel costs`, and has the ledger keep their stamps.
struct Gate {
    pipe: Arc<ReportPipe>,
}

impl Hook for Gate {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // A request that begins again has no token any more.
        let mut begins_again = false;
        if !exchange.is_subrequest() && exchange.kept::<LetIn>(MODULE.name).is_none() {
            let Some(scheme) = scheme_behind(exchange, &self.pipe.token) else {
                exchange.response.status = Status::FORBIDDEN;
                exchange.response.body = REFUSAL.to_vec().into();
                exchange.response.is_final = true;
                exchange.response.close = true;
                return Outcome::Answer;
            };
            exchange.keep(MODULE.name, Rc::new(LetIn));
            // Backends and scripts see the request as it was wanted.
            exchange.request.head.remove_field(TOKEN_FIELD);
            if scheme != exchange.scheme() {
                let settings = Rc::clone(&exchange.settings);
                exchange.set_scheme(scheme);
                begins_again = !Rc::ptr_eq(&settings, &exchange.settings);
            }
        }
        exchange.ledger.keep_trail();
        // Otherwise this hook would make a stage that the live server does not have.
        exchange.took_no_time();
        match begins_again {
            true => Outcome::Again(Phase::Translate),
            false => Outcome::Next,
        }
    }
}

/// Stored for a request that has shown the token.
struct LetIn;

/// The scheme of the URL, which stands behind the token. `None`: the request does not show the token.
fn scheme_behind(exchange: &Exchange, token: &str) -> Option<Scheme> {
    let value = exchange.request.head.value_of(TOKEN_FIELD)?;
    let behind = value.strip_prefix(token.as_bytes())?;
    match behind == HTTPS.as_bytes() {
        true => Some(Scheme::Https),
        false if behind.is_empty() => Some(Scheme::Http),
        false => None,
    }
}

struct RequestReporter {
    pipe: Arc<ReportPipe>,
}

impl Hook for RequestReporter {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // A hook before the gate may have answered.
        let is_ours = exchange.kept::<LetIn>(MODULE.name).is_some()
            || scheme_behind(exchange, &self.pipe.token).is_some();
        if is_ours && !exchange.is_subrequest() {
            self.pipe.say(&RequestReport::of(exchange).line());
        }
        Outcome::Next
    }
}

/// The field of a request that shows the token.
pub(super) const TOKEN_FIELD: &str = "Petrel-Costs";

/// What is behind the token in requests for `https://` URLs.
pub(super) const HTTPS: &str = " https";
/// What other clients get.
const REFUSAL: &[u8] = b"This is a private instance of petrel costs.\n";
/// The name of time that belongs to no stage.
const UNATTRIBUTED: &str = "unattributed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_through_the_pipe_as_it_was() {
        let report = RequestReport {
            status: 200,
            body_bytes: 5,
            started: 1000,
            facts: Facts {
                has_file: true,
                is_virtual: false,
                is_cached: true,
                asked_backend: true,
            },
            stamps: vec![("parse".into(), 1500), (UNATTRIBUTED.into(), 1600)],
        };
        assert_eq!(RequestReport::parse(&report.line()), Some(report.clone()));
        assert_eq!(report.ended(), 1600);
        assert!(report.has_stage("parse") && !report.has_stage("map"));
        assert_eq!(RequestReport::default().ended(), 0);
        for wrong in [
            "",
            "200",
            "ready",
            "200 1 1 0 0 0 5 parse",
            "99999 1 1 0 0 0 5",
        ] {
            assert_eq!(RequestReport::parse(wrong), None, "{wrong}");
        }
    }
}
