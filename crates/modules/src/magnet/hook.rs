//! Runs the scripts of one stage one after the other, and acts on what they return.

use std::cell::{OnceCell, RefCell};
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::cold_files::ColdWait;
use petrel_engine::exchange::dry_run::{DryRun, Note};
use petrel_engine::file_cache::FileEntry;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::metrics::Route;
use petrel_engine::module::{Hook, Outcome, Pending, Phase};
use petrel_engine::waits::HolderText;
use petrel_lua::{Cause, Progress, Results, Run, Script, ScriptError};

use super::answer::{self, Texts, Verdict};
use super::content;
use super::environment::{Environment, Finished};
use super::others::Others;
use crate::cml::trigger;
use crate::lua::{LoadFailure, LuaHost, LuaOptions, State};
use crate::lua_api;

/// When a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptStage {
    /// When the URL is known.
    Url,
    /// When the physical path is known, before the file is looked up.
    Path,
    /// When there is an answer.
    Answer,
}

/// The hook that runs the scripts of a stage, for one set of settings.
pub(super) struct Magnet {
    scripts: Rc<StageScripts>,
}

struct StageScripts {
    stage: ScriptStage,
    /// The absolute paths of the scripts.
    paths: Vec<Rc<[u8]>>,
    options: LuaOptions,
    /// For each script what its responses count for in the metrics, once it has run.
    routes: Vec<OnceCell<Route>>,
    /// For each script what its last run was made of.
    known: Vec<RefCell<Option<KnownScript>>>,
    /// Objects of the worker, fetched when they are first needed.
    found: OnceCell<(Rc<LuaHost>, Rc<Others>, Rc<Texts>)>,
}

/// What a script is run with, as long as neither the state nor the file is another one. Weak, so that a state
/// that is worn out can go.
struct KnownScript {
    state: Weak<State>,
    file: Rc<FileEntry>,
    environment: Weak<Environment>,
    script: Weak<Script>,
}

impl Magnet {
    /// A hook for the scripts at `paths`.
    pub(crate) fn new(stage: ScriptStage, paths: Vec<Box<[u8]>>, options: &LuaOptions) -> Magnet {
        let options = options.clone();
        Magnet {
            scripts: Rc::new(StageScripts {
                stage,
                routes: vec![OnceCell::new(); paths.len()],
                known: paths.iter().map(|_| RefCell::default()).collect(),
                paths: paths.into_iter().map(Rc::from).collect(),
                options,
                found: OnceCell::new(),
            }),
        }
    }
}

impl Hook for Magnet {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if self.scripts.stage == ScriptStage::Url && trigger::has_led_here(exchange) {
            return Outcome::Next;
        }
        // Fields that scripts have set before a restart or in an earlier stage.
        if self.scripts.stage != ScriptStage::Answer {
            exchange.response.take_carried();
        }
        self.scripts.found(exchange).1.note(exchange);
        exchange.count_as(Stage::Lua);
        self.scripts.run_from(0, exchange)
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.dry_run().is_some_and(DryRun::runs_scripts) {
            return self.run(exchange);
        }
        for path in &self.scripts.paths {
            exchange.note(|| Note::Script(String::from_utf8_lossy(path).into_owned()));
        }
        Outcome::Next
    }
}

impl StageScripts {
    /// Runs the scripts from number `first` on.
    fn run_from(self: &Rc<StageScripts>, first: usize, exchange: &mut Exchange) -> Outcome {
        let (host, _, _) = self.found(exchange);
        for (number, path) in self.paths.iter().enumerate().skip(first) {
            exchange.script = Some(Rc::clone(path));
            if self.stage != ScriptStage::Answer
                && let Some(route) = self.routes.get(number)
            {
                let of_script = || exchange.detailed_route(&String::from_utf8_lossy(path));
                let route = *route.get_or_init(of_script);
                exchange.set_route(route);
            }
            let state = match host.state(&exchange.worker) {
                Ok(state) => state,
                Err(error) => return self.refuse(exchange, path, CauseCode::LuaError, &error),
            };
            let found = match self.known(number, exchange, &state) {
                Some(known) => Ok(known),
                None => self.find(number, exchange, &state),
            };
            let (environment, script) = match found {
                Ok(found) => found,
                Err(LoadFailure::Unusable(error)) => {
                    return self.refuse(exchange, path, CauseCode::LuaError, &error);
                }
                Err(LoadFailure::Cold) => {
                    return Outcome::Later(Box::new(ScriptOnDisk {
                        scripts: Rc::clone(self),
                        number,
                        wait: ColdWait::new(exchange),
                    }));
                }
                Err(failure) => {
                    return self.refuse(exchange, path, CauseCode::LuaUnloadable, &failure);
                }
            };
            let run = match state.start(exchange, &script, environment.maker()) {
                Ok(Progress::Ended(results)) => match self.conclude(exchange, number, results) {
                    None => continue,
                    Some(outcome) => return outcome,
                },
                Ok(Progress::Waits(run)) => run,
                Err(error) => return self.fail(exchange, &error),
            };
            return Outcome::Later(Box::new(WaitingRun {
                scripts: Rc::clone(self),
                number,
                state,
                run,
            }));
        }
        self.over(exchange);
        Outcome::Next
    }

    /// What script number `number` was last run with, if a look-up would find the same.
    fn known(
        &self,
        number: usize,
        exchange: &Exchange,
        state: &Rc<State>,
    ) -> Option<(Rc<Environment>, Rc<Script>)> {
        let known = self.known.get(number)?.borrow();
        let known = known.as_ref()?;
        let is_same = Weak::as_ptr(&known.state) == Rc::as_ptr(state)
            && exchange.is_sure_of(&known.file)
            && exchange.dry_run().is_none();
        let parts = is_same.then(|| (known.environment.upgrade(), known.script.upgrade()));
        let (environment, script) = parts?;
        Some((environment?, script?))
    }

    /// Looks up script number `number`, and what makes its globals.
    fn find(
        &self,
        number: usize,
        exchange: &Exchange,
        state: &Rc<State>,
    ) -> Result<(Rc<Environment>, Rc<Script>), LoadFailure> {
        let path = self.paths.get(number).map_or(&b""[..], |path| path);
        let environment = state
            .extension(Environment::new)
            .map_err(|error| LoadFailure::Unusable(error.to_string()))?;
        let (file, script) = state.script_and_file(exchange, path)?;
        if let Some(known) = self.known.get(number) {
            known.replace(Some(KnownScript {
                state: Rc::downgrade(state),
                file,
                environment: Rc::downgrade(&environment),
                script: Rc::downgrade(&script),
            }));
        }
        Ok((environment, script))
    }

    /// The worker's Lua host, the requests that it has noted, and memory for answers.
    fn found(&self, exchange: &Exchange) -> &(Rc<LuaHost>, Rc<Others>, Rc<Texts>) {
        self.found.get_or_init(|| {
            let worker = &exchange.worker;
            let host = lua_api::host(worker, &self.options);
            (host, Others::of(worker), Texts::of(worker))
        })
    }

    /// All scripts have said to go on. The fields that they have set are kept for the answer.
    fn over(&self, exchange: &mut Exchange) {
        if self.stage != ScriptStage::Answer {
            answer::carry(&mut exchange.response);
        }
    }

    /// Acts on the result of script number `number`, or waits for files that it wants to be sent. `None`: the
    /// next script runs.
    fn conclude(
        self: &Rc<StageScripts>,
        exchange: &mut Exchange,
        number: usize,
        results: Results,
    ) -> Option<Outcome> {
        let path = self.paths.get(number).map_or(&b""[..], |path| path);
        let concluded = Finished::new(&results).and_then(|finished| {
            let verdict = answer::verdict(exchange, path, &finished.value);
            let files = match verdict {
                Verdict::Answer(_) => answer::files(&finished.content)?,
                _ => Vec::new(),
            };
            if content::are_known(exchange, &files) {
                return Ok(ControlFlow::Break(
                    self.act(exchange, path, verdict, &finished),
                ));
            }
            Ok(ControlFlow::Continue((verdict, files)))
        });
        match concluded {
            Err(error) => Some(self.refuse(exchange, path, CauseCode::LuaError, &error)),
            Ok(ControlFlow::Break(acted)) => acted,
            Ok(ControlFlow::Continue((verdict, files))) => {
                Some(Outcome::Later(Box::new(FilesOnDisk {
                    scripts: Rc::clone(self),
                    number,
                    files,
                    verdict,
                    results,
                    wait: ColdWait::new(exchange),
                })))
            }
        }
    }

    fn act(
        &self,
        exchange: &mut Exchange,
        path: &[u8],
        verdict: Verdict,
        finished: &Finished<'_>,
    ) -> Option<Outcome> {
        let (_, _, texts) = self.found(exchange);
        let applied = answer::apply(exchange, self.stage, path, verdict, finished, texts);
        let applied = applied.map(|()| verdict);
        match applied {
            Err(error) => Some(self.refuse(exchange, path, CauseCode::LuaError, &error)),
            Ok(Verdict::GoOn | Verdict::Interim(_)) => None,
            Ok(Verdict::Restart) if self.stage == ScriptStage::Answer => Some(self.refuse(
                exchange,
                path,
                CauseCode::LuaError,
                &"an answer cannot be restarted, lighty.RESTART_REQUEST belongs to other stages",
            )),
            Ok(Verdict::Restart) => {
                let target = std::mem::take(&mut exchange.request.written_target);
                if !target.is_empty() && exchange.set_target(&target).is_err() {
                    let outcome = exchange.fail(CauseCode::LuaBadUrl);
                    let cause = "r.req_attr[\"request.uri\"] is no target";
                    exchange.log_error("lua", format_args!("{cause}"));
                    return Some(outcome);
                }
                answer::carry(&mut exchange.response);
                Some(Outcome::Again(Phase::Translate))
            }
            // The answer is in place. The following scripts of this stage see it as well.
            Ok(Verdict::Answer(_)) if self.stage == ScriptStage::Answer => None,
            Ok(Verdict::Answer(_)) => Some(Outcome::Answer),
            Ok(Verdict::Impossible(code)) => {
                let cause = format!("a status of {code} cannot be sent");
                Some(self.refuse(exchange, path, CauseCode::LuaError, &cause))
            }
        }
    }

    /// The script has failed: logs the error.
    fn fail(&self, exchange: &mut Exchange, error: &ScriptError) -> Outcome {
        let stack = error.stack.lines().collect::<Vec<_>>().join(" < ");
        let (message, hint) = (&error.message, hint(&error.message));
        let outcome = self.answer_error(exchange, code_of(error));
        match stack.is_empty() {
            true => exchange.log_error("lua", format_args!("{message}{hint}")),
            false => exchange.log_error("lua", format_args!("{message}{hint} stack={stack:?}")),
        }
        outcome
    }

    /// Logs an error with the script at `path`.
    fn refuse(
        &self,
        exchange: &mut Exchange,
        path: &[u8],
        code: CauseCode,
        why: &dyn std::fmt::Display,
    ) -> Outcome {
        let path = String::from_utf8_lossy(path);
        let outcome = self.answer_error(exchange, code);
        exchange.log_error("lua", format_args!("{path}: {why}"));
        outcome
    }

    /// Answers with an error: that of a file, if a file system has failed, else `code`.
    fn answer_error(&self, exchange: &mut Exchange, code: CauseCode) -> Outcome {
        let cause = exchange.file_failure().unwrap_or(code.into());
        if self.stage == ScriptStage::Answer {
            exchange.replace_by_error(cause);
            return Outcome::Next;
        }
        exchange.fail(cause)
    }
}

fn code_of(error: &ScriptError) -> CauseCode {
    match error.cause {
        Cause::Syntax => CauseCode::LuaUnloadable,
        Cause::Error => CauseCode::LuaError,
        Cause::Time => CauseCode::LuaTime,
        Cause::Memory => CauseCode::LuaMemory,
    }
}

/// A hint to the setting that provides what the script has missed.
fn hint(message: &str) -> &'static str {
    let is_missing = |name: &str| {
        let called = format!("field '{name}' (a nil value)");
        message.contains(&called)
    };
    match () {
        () if is_missing("execute") => " (lua.allow = ( \"os.execute\" ) allows it)",
        () if is_missing("popen") => " (lua.allow = ( \"io.popen\" ) allows it)",
        () if is_missing("exit") => " (lua.allow = ( \"os.exit\" ) allows it)",
        () => "",
    }
}

/// A script whose file is being read.
struct ScriptOnDisk {
    scripts: Rc<StageScripts>,
    number: usize,
    wait: ColdWait,
}

impl Pending for ScriptOnDisk {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(match ready!(self.wait.poll_in_time(exchange, context)) {
            Ok(()) => self.scripts.run_from(self.number, exchange),
            Err(_) => self.scripts.answer_error(exchange, CauseCode::DiskTimeout),
        })
    }
}

/// A script that has ended, and whose files are being looked up.
struct FilesOnDisk {
    scripts: Rc<StageScripts>,
    number: usize,
    /// The files that are not looked up yet.
    files: Vec<Vec<u8>>,
    verdict: Verdict,
    results: Results,
    wait: ColdWait,
}

impl Pending for FilesOnDisk {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let scripts = &self.scripts;
        while !content::are_known(exchange, &self.files) {
            if ready!(self.wait.poll_in_time(exchange, context)).is_err() {
                return Poll::Ready(scripts.answer_error(exchange, CauseCode::DiskTimeout));
            }
        }
        let path = scripts.paths.get(self.number).map_or(&b""[..], |path| path);
        let acted = match Finished::new(&self.results) {
            Ok(finished) => scripts.act(exchange, path, self.verdict, &finished),
            Err(error) => Some(scripts.refuse(exchange, path, CauseCode::LuaError, &error)),
        };
        Poll::Ready(acted.unwrap_or_else(|| scripts.run_from(self.number + 1, exchange)))
    }
}

/// A script that is waiting for something.
struct WaitingRun {
    scripts: Rc<StageScripts>,
    number: usize,
    state: Rc<State>,
    run: Run,
}

impl Pending for WaitingRun {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Lua)
    }

    fn holder(&self, exchange: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        lua_api::tell_holder_of_wait(exchange, since, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let Poll::Ready(result) = self.state.poll(exchange, &mut self.run, context) else {
            return Poll::Pending;
        };
        let scripts = &self.scripts;
        Poll::Ready(match result {
            Err(error) => scripts.fail(exchange, &error),
            Ok(results) => scripts
                .conclude(exchange, self.number, results)
                .unwrap_or_else(|| scripts.run_from(self.number + 1, exchange)),
        })
    }
}
