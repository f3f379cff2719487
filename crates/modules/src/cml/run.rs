//! Runs a script for a request, and does what the script has decided.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::cold_files::ColdWait;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::method::Method;
use petrel_engine::settings::mime;
use petrel_engine::waits::HolderText;
use petrel_lua::mlua::{Table, Value};
use petrel_lua::{Progress, Results, Run, Script, ScriptError};

use super::environment::Globals;
use super::options::CmlOptions;
use super::parts::{self, FoundPart, Lack};
use super::verdict::{CmlVerdict, PagePart, Says};
use super::{KEPT, page, trigger};
use crate::fragments::fetch_all;
use crate::lua::{LoadFailure, State};
use crate::lua_api;

/// The role of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The request leads to it: it answers, or names the application that does.
    Script,
    /// It runs for every request; most go on unchanged.
    PowerMagnet,
}

/// Runs the script at `path` for the request.
pub(super) fn run(
    exchange: &mut Exchange,
    options: &Rc<CmlOptions>,
    path: &[u8],
    role: Role,
) -> Outcome {
    match begin(exchange, options, path, role) {
        Ok(outcome) => outcome,
        Err(sentence) => failed(exchange, &sentence, path),
    }
}

/// A script that runs for a request.
#[derive(Clone)]
struct Case {
    state: Rc<State>,
    options: Rc<CmlOptions>,
    role: Role,
    script: Rc<Script>,
}

/// A script that is waiting.
struct WaitingScript {
    case: Case,
    run: Run,
    globals: Table,
}

impl Pending for WaitingScript {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Lua)
    }

    fn holder(&self, exchange: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        lua_api::tell_holder_of_wait(exchange, since, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let ended = ready!(self.case.state.poll(exchange, &mut self.run, context));
        let outcome = ended
            .map_err(|error| shown(&error))
            .and_then(|results| conclude(exchange, &self.case, &first(&results)?, &self.globals));
        Poll::Ready(self.case.outcome(exchange, outcome))
    }
}

/// A page that is waiting for fragments.
struct WaitingPage {
    case: Case,
    verdict: CmlVerdict,
    fetch: Pin<Box<dyn Future<Output = Result<Vec<Bytes>, String>>>>,
}

impl Pending for WaitingPage {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Lua)
    }

    fn holder(&self, exchange: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        lua_api::tell_holder_of_wait(exchange, since, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let lent = Rc::clone(self.case.state.lent());
        let fetched = ready!(lent.lend(exchange, || self.fetch.as_mut().poll(context)));
        let outcome = match fetched {
            Ok(fragments) => {
                let mut verdict = std::mem::take(&mut self.verdict);
                verdict.fill(fragments);
                answer(exchange, &self.case, verdict)
            }
            Err(sentence) => {
                let missing = Some(sentence.as_str());
                if self.verdict.trigger.is_some() {
                    exchange.log_error("content", format_args!("{sentence}"));
                }
                make(exchange, &self.case, &self.verdict, missing)
            }
        };
        Poll::Ready(self.case.outcome(exchange, outcome))
    }
}

/// A page whose files are being looked up.
struct PartsOnDisk {
    case: Case,
    verdict: CmlVerdict,
    /// The parts that were found so far, in order.
    found: Vec<FoundPart>,
    wait: ColdWait,
}

impl Pending for PartsOnDisk {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            if let Err(outcome) = ready!(self.wait.poll(exchange, context)) {
                return Poll::Ready(outcome);
            }
            let answered = try_answer(exchange, &self.case, &self.verdict, &mut self.found);
            if let Some(outcome) = answered {
                return Poll::Ready(self.case.outcome(exchange, outcome));
            }
        }
    }
}

impl Case {
    /// The outcome; an error becomes 500.
    fn outcome(&self, exchange: &mut Exchange, result: Result<Outcome, String>) -> Outcome {
        result.unwrap_or_else(|sentence| failed(exchange, &sentence, self.script.name().as_bytes()))
    }
}

/// Starts the script. Returns its outcome, or a sentence about what is wrong.
fn begin(
    exchange: &mut Exchange,
    options: &Rc<CmlOptions>,
    path: &[u8],
    role: Role,
) -> Result<Outcome, String> {
    let worker = Rc::clone(&exchange.worker);
    let host = lua_api::host(&worker, &options.lua);
    let no_state = |error: petrel_lua::mlua::Error| format!("there is no Lua state: {error}");
    let state = host.state(&worker).map_err(no_state)?;
    let globals = Globals::of(&state).map_err(no_state)?;
    let script = match state.script(exchange, path) {
        Ok(script) => script,
        Err(LoadFailure::Cold) => return Ok(Outcome::Cold),
        Err(failure) => return Err(failure.to_string()),
    };
    exchange.keep(KEPT, Rc::clone(options) as Rc<dyn std::any::Any>);
    let started = state.start(exchange, &script, globals.make());
    let progress = started.map_err(|error| shown(&error))?;
    let globals = globals.take().map_err(no_state)?;
    let case = Case {
        state,
        options: Rc::clone(options),
        role,
        script,
    };
    match progress {
        Progress::Ended(results) => conclude(exchange, &case, &first(&results)?, &globals),
        Progress::Waits(run) => Ok(Outcome::Later(Box::new(WaitingScript {
            case,
            run,
            globals,
        }))),
    }
}

/// The script's first return value.
fn first(results: &Results) -> Result<Value, String> {
    let value = results.value(1);
    value.map_err(|error| format!("what the script returned: {error}"))
}

/// Does what a script has decided.
fn conclude(
    exchange: &mut Exchange,
    case: &Case,
    returned: &Value,
    globals: &Table,
) -> Result<Outcome, String> {
    let verdict = CmlVerdict::read(returned, globals)?;
    let sources = verdict.sources();
    if sources.is_empty() {
        return answer(exchange, case, verdict);
    }
    Ok(Outcome::Later(Box::new(WaitingPage {
        fetch: Box::pin(fetch_all(Rc::clone(case.state.lent()), sources)),
        case: case.clone(),
        verdict,
    })))
}

/// Answers with the page, or passes the request to the application.
fn answer(exchange: &mut Exchange, case: &Case, verdict: CmlVerdict) -> Result<Outcome, String> {
    let mut found = Vec::new();
    try_answer(exchange, case, &verdict, &mut found).unwrap_or_else(|| {
        Ok(Outcome::Later(Box::new(PartsOnDisk {
            case: case.clone(),
            verdict,
            found,
            wait: ColdWait::new(exchange),
        })))
    })
}

/// As [`answer`], as far as files are known. `None`: a disk has to be waited for.
fn try_answer(
    exchange: &mut Exchange,
    case: &Case,
    verdict: &CmlVerdict,
    found: &mut Vec<FoundPart>,
) -> Option<Result<Outcome, String>> {
    let Says::Hit(parts) = &verdict.says else {
        return Some(make(exchange, case, verdict, None));
    };
    Some(match hit(exchange, &case.options, verdict, parts, found) {
        Ok(outcome) => Ok(outcome),
        Err(Lack::Cold) => return None,
        Err(Lack::Refused(sentence)) => Err(sentence),
        Err(Lack::Missing(path)) => {
            let sentence = format!("output_include: there is no such file path={path:?}");
            make(exchange, case, verdict, Some(&sentence))
        }
    })
}

/// Passes the request to the application. `missing`: what an existing page lacks.
fn make(
    exchange: &mut Exchange,
    case: &Case,
    verdict: &CmlVerdict,
    missing: Option<&str>,
) -> Result<Outcome, String> {
    match (&verdict.trigger, missing, case.role) {
        (Some(handler), _, _) => trigger::go_on(exchange, handler),
        (None, Some(missing), _) => Err(format!("{missing}, and no trigger_handler")),
        (None, None, Role::PowerMagnet) => Ok(Outcome::Next),
        (None, None, Role::Script) => Err("CACHE_MISS without a trigger_handler".to_owned()),
    }
}

fn hit(
    exchange: &mut Exchange,
    options: &CmlOptions,
    verdict: &CmlVerdict,
    parts: &[PagePart],
    found: &mut Vec<FoundPart>,
) -> Result<Outcome, Lack> {
    for part in parts.iter().skip(found.len()) {
        found.push(parts::find(exchange, options, part)?);
    }
    let method = exchange.request.method;
    if !method.is_get_or_head() && method != Method::Post {
        // Other methods are handled as for a file: the core answers them.
        return Ok(Outcome::Next);
    }
    let settings = Rc::clone(&exchange.settings);
    let content_type = verdict
        .content_type
        .as_deref()
        .or_else(|| type_of_first(parts, &settings.core.mime_types))
        .unwrap_or(HTML);
    Ok(page::answer(exchange, found, content_type))
}

/// The content type of a page that sets none: that of the first file whose name tells one.
fn type_of_first<'t>(parts: &[PagePart], types: &'t mime::MimeTypes) -> Option<&'t [u8]> {
    parts.iter().find_map(|part| match part {
        PagePart::File(path) => types.content_type_of(path),
        PagePart::Text(_) | PagePart::Fragment(_) => None,
    })
}

const HTML: &[u8] = b"text/html";

/// Logs the error and answers with 500, or with the status of a file error.
fn failed(exchange: &mut Exchange, sentence: &str, script: &[u8]) -> Outcome {
    let script = String::from_utf8_lossy(script);
    let of_files = exchange.file_failure();
    let outcome = exchange.fail(of_files.unwrap_or(CauseCode::CmlError.into()));
    exchange.log_error("content", format_args!("{sentence} script={script:?}"));
    outcome
}

/// The error as one line.
fn shown(error: &ScriptError) -> String {
    match error.stack.is_empty() {
        true => error.message.clone(),
        false => format!("{} [{}]", error.message, error.stack.replace('\n', " < ")),
    }
}
