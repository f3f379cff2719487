//! The phase loop, and what the core itself does between the hooks.
//!
//! The phases are translate, authorize, document root, map, resolved, content, then store and transform. In
//! each phase the hooks of the request's settings run in order. The loop stamps the ledger after a phase that
//! had hooks. A hook stamps only waits that have a stage of their own: for a backend or for the disk.

use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_proto::method::Method;
use petrel_proto::status::Status;

use crate::cause::{CauseCode, ErrorCause};
use crate::cold_files::Cold;
use crate::deadlines::Deadlines;
use crate::error_page;
use crate::exchange::dry_run::{self, Note};
use crate::exchange::{Exchange, HandledError};
use crate::file_cache::{FileKind, Role};
use crate::ledger::Ledger;
use crate::limits;
use crate::map;
use crate::metrics::{EndedRequest, Host, Route, StatusClass};
use crate::module::{Outcome, Phase};
use crate::ranges;
use crate::trace;

/// The result of the phase loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// The response is complete and transformed.
    Answered,
    /// A hook needs the whole request body. Afterwards the hook is called again, or polled again if it is
    /// pending.
    NeedBody,
}

/// Runs hooks until there is a response or a hook has to wait.
pub(crate) fn walk(exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Walked> {
    if let Some(recorder) = exchange.worker.recorder() {
        let path = exchange.request.url.path_raw();
        recorder.works_for(exchange.id, exchange.ledger.started(), path);
    }
    loop {
        let outcome = match exchange.progress.pending.take() {
            Some(mut pending) => {
                exchange.wake_at_s = Deadlines::NEVER;
                let waited_in = exchange.progress.waits_in.take();
                let noted = waited_in.and_then(|stage| exchange.stamp_pending(stage));
                let polled = pending.poll(exchange, context);
                if let Some(noted) = noted {
                    exchange.note_wait(noted.stage, noted.nanos, |exchange, text| {
                        pending.holder(exchange, noted.since, text);
                    });
                }
                match polled {
                    Poll::Ready(Outcome::Cold) => {
                        exchange.progress.hook -= 1;
                        Outcome::Cold
                    }
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => {
                        if let Some(stage) = pending.waits_in() {
                            exchange.stamp(exchange.progress.stage());
                            exchange.progress.waits_in = Some(stage);
                        }
                        exchange.progress.pending = Some(pending);
                        if exchange.request.body.is_held_incomplete() {
                            return Poll::Ready(Walked::NeedBody);
                        }
                        return Poll::Pending;
                    }
                }
            }
            None if exchange.dry_run().is_some() => step_of_dry_run(exchange),
            None => step::<false>(exchange),
        };
        match outcome {
            Outcome::Next => {}
            Outcome::Answer if exchange.progress.phase() < Phase::Store => {
                match error_page::is_on_disk(exchange) {
                    true => wait_for_disk(exchange, Outcome::Answer),
                    false => leave_with_answer(exchange),
                }
            }
            Outcome::Answer => {}
            Outcome::Again(phase) => restart(exchange, phase),
            Outcome::Rewritten => begin_again(exchange, Phase::Translate),
            Outcome::NeedBody => {
                exchange.progress.hook = exchange.progress.hook.saturating_sub(1);
                exchange.request.body.want();
                return Poll::Ready(Walked::NeedBody);
            }
            Outcome::Cold => wait_for_disk(exchange, Outcome::Next),
            Outcome::Later(pending) => exchange.progress.pending = Some(pending),
        }
        if exchange.progress.is_over() {
            debug_assert!(
                !exchange.response.lacks_cause(),
                "{} has no cause",
                exchange.response.status.0
            );
            return Poll::Ready(Walked::Answered);
        }
    }
}

/// Waits for the disk; afterwards the outcome is `then`.
fn wait_for_disk(exchange: &mut Exchange, then: Outcome) {
    let has_answer = matches!(then, Outcome::Answer) || exchange.progress.phase() >= Phase::Store;
    let wait = Cold::until(exchange, then, has_answer);
    exchange.progress.pending = Some(Box::new(wait));
}

/// Answers with an error because the request itself is wrong. Only the phases store and transform run.
pub(crate) fn refuse(exchange: &mut Exchange, cause: ErrorCause) {
    exchange.progress.pending = None;
    exchange.progress.waits_in = None;
    exchange.run_state.is_refused = true;
    exchange.run_state.is_tunnel = false;
    // Hooks that change the response get no more of the request body, and do not wait for it.
    exchange.request.body.clear();
    exchange.request.body.complete();
    exchange.response.fail(cause);
    exchange.response.close = true;
    exchange.progress.error = Some(HandledError::standing(&exchange.response));
    leave_with_answer(exchange);
}

/// Runs the hooks for a request that was refused because of its head.
pub(crate) fn refused(exchange: &mut Exchange) {
    if exchange.dry_run().is_some() {
        return;
    }
    let settings = Rc::clone(&exchange.settings);
    for installed in settings.hooks(Phase::Refused) {
        installed.hook.run(exchange);
    }
    // A hook may have replaced the answer. Where the next request would begin is not known.
    exchange.response.close = true;
}

/// Runs the hooks of the log phase, after the response was sent. They cannot wait or change anything.
pub(crate) fn log(exchange: &mut Exchange) {
    count(exchange);
    trace::over(exchange);
    exchange.record();
    if let Some(cause) = exchange.response.cause() {
        exchange.worker.shared().causes().count(cause.code);
    }
    if !exchange.settings.hooks(Phase::Log).is_empty() {
        let settings = Rc::clone(&exchange.settings);
        for installed in settings.hooks(Phase::Log) {
            installed.hook.run(exchange);
        }
    }
}

/// Counts the request for the metrics.
#[inline]
fn count(exchange: &Exchange) {
    let sent = &exchange.sent;
    let class = match sent.is_complete {
        true => StatusClass::of(exchange.response.status.0),
        false => StatusClass::Aborted,
    };
    // The time of a tunnel is that of the conversation, which may last for hours: it is in no stage.
    let ledger = match exchange.is_tunnel() {
        true => &Ledger::EMPTY,
        false => &exchange.ledger,
    };
    let ended = EndedRequest {
        id: exchange.id,
        route: exchange.progress.route(),
        host: exchange
            .scope
            .as_ref()
            .map_or(Host::OTHER, |scope| scope.name),
        class,
        ledger,
        sent_bytes: sent.bytes,
        received_bytes: exchange.request.body_bytes,
    };
    // A head that was refused.
    if !exchange.request.has_begun {
        exchange.worker.count_begun();
    }
    let metrics = exchange.worker.metrics();
    if metrics.count(&ended) {
        let (host, path) = (exchange.request.head.host(), exchange.asked_path());
        metrics.count_top(host, path, sent.bytes, exchange.ledger.total());
    }
}

#[cold]
#[inline(never)]
fn step_of_dry_run(exchange: &mut Exchange) -> Outcome {
    step::<true>(exchange)
}

/// Returns the next outcome that is not [`Outcome::Next`], from a hook or from what the core does at the end
/// of a phase. Most phases of most requests have no hook. Whether this is a dry run is asked once, and not in
/// each phase.
#[inline(always)]
fn step<const IS_DRY_RUN: bool>(exchange: &mut Exchange) -> Outcome {
    loop {
        let phase = exchange.progress.phase();
        let hooks = exchange.settings.hooks(phase);
        if let Some(hook) = hooks.get(exchange.progress.hook) {
            let run = Rc::clone(&hook.hook);
            let (module, route) = (hook.module, hook.route);
            if exchange.progress.passed != 0 && exchange.progress.is_passed(route) {
                exchange.progress.hook += 1;
                continue;
            }
            if phase < Phase::Store {
                exchange.progress.module = route;
            }
            if exchange.progress.counts_as.is_some() {
                stamp_if_worked(exchange);
            }
            exchange.progress.hook += 1;
            exchange.progress.worked = true;
            let outcome = match IS_DRY_RUN {
                true => dry_run::run_hook(&*run, module, phase, exchange),
                false => run.run(exchange),
            };
            match outcome {
                Outcome::Next => continue,
                Outcome::Cold => {
                    exchange.progress.hook = exchange.progress.hook.saturating_sub(1);
                    return Outcome::Cold;
                }
                outcome => return outcome,
            }
        }
        let outcome = match IS_DRY_RUN {
            true => dry_run::run_core(phase, exchange, |exchange| end_of(phase, exchange)),
            false => end_of(phase, exchange),
        };
        match outcome {
            Outcome::Next => advance::<IS_DRY_RUN>(exchange, phase),
            outcome => {
                exchange.progress.module = Route::CORE;
                return outcome;
            }
        }
        if exchange.progress.is_over() {
            return Outcome::Next;
        }
    }
}

/// Goes on to the next phase. Leaves out the phases in which the core acts only where exposed URLs have to be
/// closed, if they have no hooks; a dry run tells of them, too.
#[inline(always)]
fn advance<const IS_DRY_RUN: bool>(exchange: &mut Exchange, phase: Phase) {
    stamp_if_worked(exchange);
    let settings = &*exchange.settings;
    let is_open = !IS_DRY_RUN && settings.exposure.is_empty();
    let is_left_out = |phase| is_open && settings.hooks(phase).is_empty();
    let next = match phase {
        Phase::Translate if is_left_out(Phase::Authorize) => Phase::DocumentRoot,
        Phase::Translate => Phase::Authorize,
        Phase::Authorize => Phase::DocumentRoot,
        Phase::DocumentRoot => Phase::Map,
        Phase::Map if is_left_out(Phase::Resolved) => Phase::Content,
        Phase::Map => Phase::Resolved,
        Phase::Resolved => Phase::Content,
        Phase::Content => Phase::Store,
        Phase::Store => Phase::Transform,
        Phase::Transform | Phase::Log | Phase::Refused => Phase::Log,
    };
    exchange.progress.phase = Some(next);
    exchange.progress.hook = 0;
    exchange.progress.passed = 0;
    if next == Phase::Transform {
        exchange.settle_for_answer();
    }
}

/// What the core does after all hooks of `phase` have returned [`Outcome::Next`].
#[inline(always)]
fn end_of(phase: Phase, exchange: &mut Exchange) -> Outcome {
    let is_open = exchange.settings.exposure.is_empty();
    match phase {
        Phase::Translate => {
            trace::url(exchange);
            Outcome::Next
        }
        Phase::Authorize | Phase::Resolved if is_open => Outcome::Next,
        Phase::Authorize => closed_by_exposure(exchange, ClosedAnswer::Url),
        Phase::DocumentRoot if is_about_the_server(exchange) => allow(exchange),
        Phase::DocumentRoot => map::map(exchange),
        Phase::Map => {
            let outcome = map::resolve(exchange);
            if !matches!(outcome, Outcome::Cold) {
                settle_physical(exchange);
                trace::physical(exchange);
            }
            outcome
        }
        Phase::Resolved => closed_by_exposure(exchange, ClosedAnswer::Physical),
        Phase::Content => answer_of_the_core(exchange),
        Phase::Store => {
            // These are fields that scripts of earlier phases gave to this response. A stored response must
            // not have them.
            exchange.response.take_carried();
            Outcome::Next
        }
        Phase::Transform => {
            ranges::cut(exchange);
            Outcome::Next
        }
        Phase::Log | Phase::Refused => Outcome::Next,
    }
}

/// Whether the request is `OPTIONS *`, which asks what the server as a whole supports.
#[inline]
fn is_about_the_server(exchange: &Exchange) -> bool {
    exchange.request.method == Method::Options && exchange.request.url.path() == b"*"
}

/// Evaluates conditions on `$PHYSICAL`, which are known now.
fn settle_physical(exchange: &mut Exchange) {
    if exchange
        .scope
        .as_ref()
        .is_some_and(|scope| scope.uses_physical())
    {
        exchange.resettle();
    }
}

enum ClosedAnswer {
    Url,
    Physical,
}

fn closed_by_exposure(exchange: &mut Exchange, what: ClosedAnswer) -> Outcome {
    let exposure = &exchange.settings.exposure;
    let url = &exchange.request.url;
    let of_url = exposure.closes(url.path());
    // An index file has changed both paths. The physical path begins with the document root, so only keys
    // that are suffixes apply to it.
    let closes = match what {
        ClosedAnswer::Url => of_url,
        ClosedAnswer::Physical => {
            of_url.or_else(|| exposure.closes_suffix(&exchange.physical.path))
        }
    };
    match closes.map(str::to_owned) {
        Some(directive) => answer_closed(exchange, &directive),
        None => Outcome::Next,
    }
}

/// Answers 503 instead of sending a file if the module is not loaded that would have handled the request.
pub fn closed_file(exchange: &mut Exchange) -> Option<Outcome> {
    let exposure = &exchange.settings.exposure;
    let url = &exchange.request.url;
    let physical = &exchange.physical.path;
    let directive = exposure.closes_file(url.path(), physical)?;
    let directive = directive.to_owned();
    Some(answer_closed(exchange, &directive))
}

fn answer_closed(exchange: &mut Exchange, directive: &str) -> Outcome {
    let outcome = exchange.fail(CauseCode::ModuleMissing);
    // Every request may get this, so one is logged and the others are counted.
    exchange.log_common_error(
        "authorize",
        format_args!("{directive} has no effect, so requests that it is about get 503"),
    );
    outcome
}

/// Logs why a directory gets 403 if the settings have no index names: that is mostly a mistake. With names it
/// is not logged, because crawlers and users ask for directories without an index file all the time.
fn tell_of_directory(exchange: &Exchange) {
    let has_names = || {
        let mut names = exchange.settings.next_names.iter();
        names.any(|names| names(exchange).is_some_and(|names| names.role == Role::Indexes))
    };
    if !has_names() {
        exchange.log_common_error_of(
            "content",
            format_args!(
                "403 for a directory: index-file.names is not set, and dir-listing.activate is off"
            ),
            format_args!(
                " path={:?}",
                String::from_utf8_lossy(&exchange.physical.path)
            ),
        );
    }
}

/// The response if no hook has answered.
fn answer_of_the_core(exchange: &mut Exchange) -> Outcome {
    match exchange.request.method {
        Method::Options => allow(exchange),
        Method::Get | Method::Head | Method::Post => {
            let file = exchange.physical.file.as_ref();
            if file.is_none_or(|file| file.kind() != FileKind::Directory) {
                return exchange.fail(CauseCode::NothingAnswers);
            }
            let outcome = exchange.fail(CauseCode::DirectoryDenied);
            if exchange.request.method != Method::Post {
                tell_of_directory(exchange);
            }
            outcome
        }
        _ => {
            let outcome = exchange.fail(CauseCode::MethodNotAllowed);
            exchange.response.set("Allow", ALLOWED);
            outcome
        }
    }
}

fn allow(exchange: &mut Exchange) -> Outcome {
    exchange.response.answer(Status::OK);
    exchange.response.set("Allow", ALLOWED);
    exchange.response.is_final = true;
    Outcome::Answer
}

const ALLOWED: &[u8] = b"OPTIONS, GET, HEAD, POST";

fn restart(exchange: &mut Exchange, phase: Phase) {
    exchange.progress.restarts += 1;
    if exchange.progress.restarts > limits::RESTARTS_MAX {
        exchange.response.fail(CauseCode::TooManyRestarts);
        exchange.log_error(
            "translate",
            format_args!("more than {} restarts", limits::RESTARTS_MAX),
        );
        exchange.progress.error = Some(HandledError::standing(&exchange.response));
        leave_with_answer(exchange);
        return;
    }
    begin_again(exchange, phase);
}

fn begin_again(exchange: &mut Exchange, phase: Phase) {
    stamp_if_worked(exchange);
    if phase <= Phase::Map {
        exchange.physical.clear();
    }
    // A script that has run meanwhile may have created the missing file.
    exchange.forget_look_ups();
    exchange.backend = None;
    exchange.resettle();
    trace::restarted(exchange, phase);
    exchange.progress.phase = Some(phase);
    exchange.progress.hook = 0;
    exchange.progress.passed = 0;
}

/// Continues with a response. An error gets its handler or page first.
fn leave_with_answer(exchange: &mut Exchange) {
    stamp_if_worked(exchange);
    trace::answered(exchange, exchange.progress.phase());
    if let Some(handler) = error_page::handler_for(exchange) {
        let run_handler = |exchange: &mut Exchange| {
            let status = exchange.response.status;
            error_page::run_handler(exchange, &handler);
            exchange.note(|| {
                Note::Text(format!(
                    "the error handler answers in place of {}",
                    status.0
                ))
            });
            Outcome::Again(Phase::Translate)
        };
        dry_run::run_core(exchange.progress.phase(), exchange, run_handler);
        return restart(exchange, Phase::Translate);
    }
    exchange.response.take_handed_on();
    if exchange.handles_error() {
        // No cache stores this response. Which fields count depends on the status of the handler, and the
        // status of the error replaces that now.
        exchange.response.take_carried();
    }
    error_page::finish(exchange);
    exchange.progress.phase = Some(Phase::Store);
    exchange.progress.hook = 0;
    exchange.progress.passed = 0;
}

#[inline(always)]
fn stamp_if_worked(exchange: &mut Exchange) {
    // Storing belongs to the stage of the next phase, to save a reading of the clock.
    if exchange.progress.worked && exchange.progress.phase() != Phase::Store {
        stamp_work(exchange);
    }
}

#[inline(never)]
fn stamp_work(exchange: &mut Exchange) {
    exchange.progress.worked = false;
    exchange.stamp(exchange.progress.stage());
    exchange.progress.counts_as = None;
}
