//! A dry run: a request that goes through the phases without acting on anything outside of the process, and
//! the record of what happened to it.
//!
//! `petrel explain` makes dry runs. The settings, the rules and the phase loop are those of every request.
//! The loop calls [`Hook::dry_run`] instead of `run`, and records what each
//! hook has changed. A hook that would reach a backend, run a script or count a client records by
//! [`Exchange::note`] what it would do, and does nothing.

use std::cell::RefCell;
use std::mem;
use std::task::{Context, Poll};

use petrel_config::{BlockId, Entry, Span};
use petrel_proto::status::Status;

use crate::exchange::Exchange;
use crate::file_cache::{FileEntry, FileKind};
use crate::module::{Hook, Outcome, Pending, Phase};
use crate::mounts::Storage;

/// Kept by an exchange that is a dry run.
#[derive(Default)]
pub struct DryRun {
    /// Scripts run, although they can do anything.
    runs_scripts: bool,
    record: RefCell<DryRunRecord>,
}

/// What has happened to the request.
#[derive(Debug, Default)]
pub struct DryRunRecord {
    /// What hooks, and the core between them, have changed or decided, in this order.
    pub steps: Vec<DryRunStep>,
    /// How the conditions were decided, each time with another result.
    pub decisions: Vec<Vec<Decision>>,
    /// The files that were looked up, each once.
    pub look_ups: Vec<LookUp>,
    /// The lines that the error log would get.
    pub log: Vec<String>,
    /// What makes the answer, and was not asked for it: a backend, a program, a script. The status of the
    /// exchange then means nothing.
    pub asked: Option<&'static str>,
    /// Those of the hook that runs.
    notes: Vec<Note>,
}

/// What one hook, or the core after the hooks of a phase, has done.
#[derive(Debug)]
pub struct DryRunStep {
    /// The phase.
    pub phase: Phase,
    /// The module of the hook. `None`: the core.
    pub module: Option<&'static str>,
    /// What the hook says about it.
    pub notes: Vec<Note>,
    /// The request before.
    pub before: RequestView,
    /// The request after.
    pub after: RequestView,
    /// What follows.
    pub end: StepEnd,
    /// The field Location of the answer.
    pub location: Option<Vec<u8>>,
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// The next hook runs.
    Next,
    /// There is an answer.
    Answer(Status),
    /// The phases begin again at this one.
    Again(Phase),
}

/// The parts of a request that decide where it leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestView {
    /// Path and query.
    pub target: Vec<u8>,
    /// The path alone, decoded. A script or an index file may have changed it without the target.
    pub url_path: Vec<u8>,
    /// The client's address.
    pub client: String,
    /// The document root; empty until it is known.
    pub document_root: Vec<u8>,
    /// The physical path; empty until it is known.
    pub path: Vec<u8>,
    /// The part of the URL path after the name of a file.
    pub path_info: Vec<u8>,
    /// The file was found to be this.
    pub found: Option<FileKind>,
    /// No file is looked up, because a backend answers.
    pub is_virtual: bool,
}

/// What a hook says about its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// This rule has matched, and decides.
    Rule(Span),
    /// The request would go to one of these backends.
    Backends(BackendRoute),
    /// This script would run. Whatever follows depends on it.
    Script(String),
    /// A sentence without a subject and a full stop.
    Text(String),
}

/// A route to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRoute {
    /// The directive that names them.
    pub directive: &'static str,
    /// The key of the route there.
    pub key: String,
    /// The protocol.
    pub protocol: &'static str,
    /// How one of several is chosen, in words.
    pub choice: &'static str,
    /// Their addresses, with their options that matter for the choice.
    pub backends: Vec<String>,
}

/// How a condition was decided for the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its block.
    pub block: BlockId,
    /// The result.
    pub verdict: Verdict,
    /// The value that was compared. `None`: none was, or this is a plain `else`.
    pub value: Option<Vec<u8>>,
}

/// The result of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The block applies.
    Holds,
    /// The values differ.
    Fails,
    /// Not looked at: the block around it does not apply.
    OuterFails,
    /// Not looked at: an earlier branch of the same chain applies.
    EarlierBranchHolds,
}

/// A look-up of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookUp {
    /// The path.
    pub path: Vec<u8>,
    /// What answered.
    pub source: LookUpSource,
    /// What is there.
    pub kind: FileKind,
    /// The size of a regular file.
    pub size: u64,
    /// The worker has the content of the file in memory.
    pub has_content: bool,
    /// The kind of file system.
    pub storage: Storage,
}

/// What answered a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpSource {
    /// The file cache of the worker.
    Memory,
    /// The kernel, from its caches.
    Kernel,
    /// A disk thread.
    Disk,
}

impl DryRun {
    /// A dry run. Scripts run only if `runs_scripts`.
    pub fn new(runs_scripts: bool) -> DryRun {
        DryRun {
            runs_scripts,
            record: RefCell::default(),
        }
    }

    /// One for a subrequest of this run, with a record of its own.
    pub(crate) fn for_subrequest(&self) -> DryRun {
        DryRun::new(self.runs_scripts)
    }

    /// Whether scripts run.
    pub fn runs_scripts(&self) -> bool {
        self.runs_scripts
    }

    /// The record so far; nothing is left of it here.
    pub fn take_record(&self) -> DryRunRecord {
        self.record.take()
    }

    pub(crate) fn log(&self, line: String) {
        self.record.borrow_mut().log.push(line);
    }

    pub(crate) fn decided(&self, decisions: Vec<Decision>) {
        let all = &mut self.record.borrow_mut().decisions;
        if all.last() != Some(&decisions) {
            all.push(decisions);
        }
    }

    pub(crate) fn looked_up(&self, path: &[u8], source: LookUpSource, file: &FileEntry) {
        let look_ups = &mut self.record.borrow_mut().look_ups;
        if look_ups.iter().any(|known| known.path == path) {
            return;
        }
        look_ups.push(LookUp {
            path: path.to_vec(),
            source,
            kind: file.kind(),
            size: match file.kind() {
                FileKind::Regular => file.stat().size,
                _ => 0,
            },
            has_content: file.content().is_some(),
            storage: file.storage(),
        });
    }
}

impl Exchange {
    /// Whether this is a dry run: the request must not reach anything outside of the process.
    #[inline]
    pub fn dry_run(&self) -> Option<&DryRun> {
        self.dry_run.as_deref()
    }

    /// Makes this a dry run, before its phases begin.
    pub fn set_dry_run(&mut self, dry_run: DryRun) {
        self.dry_run = Some(Box::new(dry_run));
        self.record_decisions();
    }

    /// In a dry run: records why the hook that runs decides as it does. Otherwise it does nothing.
    #[inline]
    pub fn note(&self, make: impl FnOnce() -> Note) {
        if let Some(dry_run) = &self.dry_run {
            let note = make();
            dry_run.record.borrow_mut().notes.push(note);
        }
    }

    /// For [`Hook::dry_run`]: ends the run with an answer that `what` would
    /// make.
    pub fn answer_is_made_by(&mut self, what: &'static str) -> Outcome {
        if let Some(dry_run) = &self.dry_run {
            dry_run.record.borrow_mut().asked = Some(what);
        }
        self.response.answer(Status::OK);
        self.response.is_final = true;
        Outcome::Answer
    }

    /// The values that are set for this request, in the order of their directives' names, each with its
    /// block. `record` is that of its dry run: the settings are those that were chosen last. Later changes of
    /// the request did not change them.
    pub fn entries_in_force(&self, record: &DryRunRecord) -> Vec<(&str, BlockId, &Entry)> {
        let decisions = record.decisions.last().into_iter().flatten();
        let holds = decisions.filter(|decision| decision.verdict == Verdict::Holds);
        let blocks = std::iter::once(BlockId::GLOBAL).chain(holds.map(|decision| decision.block));
        let mut entries = self.worker.settings_table().entries_of(blocks);
        entries.sort_unstable_by_key(|(name, _, _)| *name);
        entries
    }

    /// In a dry run: records how the conditions are decided for the request as it is now.
    #[inline]
    pub(crate) fn record_decisions(&self) {
        if let Some(dry_run) = &self.dry_run {
            self.add_decisions(dry_run);
        }
    }

    #[cold]
    fn add_decisions(&self, dry_run: &DryRun) {
        if let Some(scope) = &self.scope {
            dry_run.decided(self.worker.settings_table().decisions(scope, self));
        }
    }

    fn view(&self) -> RequestView {
        let physical = &self.physical;
        RequestView {
            target: self.request.url.target().to_vec(),
            url_path: self.request.url.path().to_vec(),
            client: self.connection.peer.address_text(),
            document_root: physical.document_root.clone(),
            path: physical.path.clone(),
            path_info: physical.path_info.clone(),
            found: physical.file.as_ref().map(|file| file.kind()),
            is_virtual: physical.is_virtual,
        }
    }
}

/// Runs a hook of `phase`.
#[cold]
pub(crate) fn run_hook(
    hook: &dyn Hook,
    module: &'static str,
    phase: Phase,
    exchange: &mut Exchange,
) -> Outcome {
    watch(Some(module), phase, exchange, |exchange| {
        hook.dry_run(exchange)
    })
}

/// Does what the core does in `phase`.
#[inline]
pub(crate) fn run_core(
    phase: Phase,
    exchange: &mut Exchange,
    act: impl FnOnce(&mut Exchange) -> Outcome,
) -> Outcome {
    match exchange.dry_run.is_some() {
        true => watch(None, phase, exchange, act),
        false => act(exchange),
    }
}

fn watch(
    module: Option<&'static str>,
    phase: Phase,
    exchange: &mut Exchange,
    act: impl FnOnce(&mut Exchange) -> Outcome,
) -> Outcome {
    let begun = BegunStep {
        phase,
        module,
        before: exchange.view(),
    };
    match act(exchange) {
        Outcome::Later(pending) => Outcome::Later(Box::new(WatchedPending {
            pending,
            begun: Some(begun),
        })),
        outcome => {
            begun.end(exchange, &outcome);
            outcome
        }
    }
}

struct BegunStep {
    phase: Phase,
    module: Option<&'static str>,
    before: RequestView,
}

impl BegunStep {
    fn end(self, exchange: &Exchange, outcome: &Outcome) {
        let Some(dry_run) = &exchange.dry_run else {
            return;
        };
        let record = &mut *dry_run.record.borrow_mut();
        let notes = mem::take(&mut record.notes);
        let end = match outcome {
            Outcome::Next => StepEnd::Next,
            // The transform phase and those after it have no answer to give.
            Outcome::Answer if self.phase >= Phase::Store => StepEnd::Next,
            Outcome::Answer => StepEnd::Answer(exchange.response.status),
            Outcome::Again(phase) => StepEnd::Again(*phase),
            Outcome::Rewritten => StepEnd::Again(Phase::Translate),
            // The same hook is called again.
            Outcome::NeedBody | Outcome::Cold | Outcome::Later(_) => return,
        };
        let after = exchange.view();
        if end == StepEnd::Next && notes.is_empty() && after == self.before {
            return;
        }
        record.steps.push(DryRunStep {
            phase: self.phase,
            module: self.module,
            notes,
            before: self.before,
            after,
            end,
            location: match end {
                StepEnd::Answer(_) => exchange.response.get("Location").map(<[u8]>::to_vec),
                _ => None,
            },
        });
    }
}

/// A pending hook whose end is recorded.
struct WatchedPending {
    pending: Box<dyn Pending>,
    begun: Option<BegunStep>,
}

impl Pending for WatchedPending {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let polled = self.pending.poll(exchange, context);
        if let Poll::Ready(outcome) = &polled
            && let Some(begun) = self.begun.take()
        {
            begun.end(exchange, outcome);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{Configure, Hook, Loaded, ModuleSpec};
    use crate::testing::Site;
    use petrel_config::Diagnostic;

    static MODULE: ModuleSpec = ModuleSpec {
        name: "mod_test",
        doc: "For these tests.",
        loaded: Loaded::Always,
        directives: &[],
        configure: add_hooks,
    };

    fn add_hooks(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
        configure.add(Phase::Translate, Rewrites);
        configure.add(Phase::Authorize, Acts);
        Ok(())
    }

    /// Makes `/new` of `/old`, after a wait.
    struct Rewrites;

    impl Hook for Rewrites {
        fn run(&self, exchange: &mut Exchange) -> Outcome {
            match exchange.request.url.path() {
                b"/old" => Outcome::Later(Box::new(Turn(false))),
                _ => Outcome::Next,
            }
        }
    }

    struct Turn(bool);

    impl Pending for Turn {
        fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
            if !std::mem::replace(&mut self.0, true) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            exchange.set_target(b"/new").expect("a target");
            Poll::Ready(Outcome::Rewritten)
        }
    }

    /// Must not run in a dry run.
    struct Acts;

    impl Hook for Acts {
        fn run(&self, _: &mut Exchange) -> Outcome {
            panic!("a dry run acts");
        }

        fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
            exchange.note(|| Note::Text("would act".to_owned()));
            Outcome::Next
        }
    }

    fn get(site: &Site, target: &str) -> DryRunRecord {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
        site.dry_run(&request, DryRun::default()).record
    }

    #[test]
    fn steps_tell_what_each_hook_has_changed_or_would_do() {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[&MODULE]);
        let record = get(&site, "/old");
        let steps: Vec<_> = record.steps.iter().collect();
        let [rewritten, noted, mapped, missing] = steps[..] else {
            panic!("{steps:?}");
        };
        assert_eq!(
            (rewritten.module, rewritten.phase),
            (Some("mod_test"), Phase::Translate)
        );
        assert_eq!(rewritten.end, StepEnd::Again(Phase::Translate));
        assert_eq!(rewritten.before.target, b"/old");
        assert_eq!(rewritten.after.target, b"/new");
        assert_eq!(noted.notes, [Note::Text("would act".to_owned())]);
        assert_eq!((mapped.module, mapped.phase), (None, Phase::DocumentRoot));
        assert_eq!(mapped.after.path, b"/nonexistent/new");
        assert_eq!(missing.end, StepEnd::Answer(Status::NOT_FOUND));
        assert_eq!(missing.after.found, Some(FileKind::Missing));
    }

    #[test]
    fn conditions_come_with_the_values_that_were_compared() {
        let config = "server.document-root = \"/nonexistent\"
            $HTTP[\"url\"] == \"/old\" {
                $HTTP[\"host\"] == \"a.example\" { server.tag = \"old\" }
            }
            else $HTTP[\"url\"] == \"/new\" { server.tag = \"new\" }
            else { server.tag = \"other\" }";
        let record = get(&Site::new(config, &[&MODULE]), "/old");
        let words = |decisions: &[Decision]| -> Vec<(Verdict, Option<String>)> {
            let value = |decision: &Decision| {
                let value = decision.value.as_deref();
                value.map(|value| String::from_utf8_lossy(value).into_owned())
            };
            decisions
                .iter()
                .map(|decision| (decision.verdict, value(decision)))
                .collect()
        };
        let [before, after] = &record.decisions[..] else {
            panic!("{:?}", record.decisions);
        };
        let text = |value: &str| Some(value.to_owned());
        let expected = [
            (Verdict::Holds, text("/old")),
            (Verdict::Holds, text("a.example")),
            (Verdict::EarlierBranchHolds, None),
            (Verdict::EarlierBranchHolds, None),
        ];
        assert_eq!(words(before), expected);
        let expected = [
            (Verdict::Fails, text("/new")),
            (Verdict::OuterFails, None),
            (Verdict::Holds, text("/new")),
            (Verdict::EarlierBranchHolds, None),
        ];
        assert_eq!(words(after), expected);
    }

    #[test]
    fn entries_are_those_of_the_settings_that_were_chosen_last() {
        let config = "server.document-root = \"/nonexistent\"\nserver.tag = \"outside\"
            $HTTP[\"url\"] == \"/new\" { server.tag = \"new\" }";
        let site = Site::new(config, &[&MODULE]);
        for (target, tag) in [("/old", "new"), ("/x", "outside")] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n");
            let answer = site.dry_run(&request, DryRun::default());
            let entries = answer.exchange().entries_in_force(&answer.record);
            let value = entries.iter().find(|(name, _, _)| *name == "server.tag");
            let value = value.and_then(|(_, _, entry)| entry.value.as_str());
            assert_eq!(value, Some(tag), "{target}");
        }
    }

    #[test]
    fn the_file_cache_answers_the_second_run() {
        let site = Site::new("server.document-root = \"/usr\"", &[&MODULE]);
        let sources = |record: DryRunRecord| -> Vec<LookUpSource> {
            let look_ups = record.look_ups.iter();
            look_ups.map(|look_up| look_up.source).collect()
        };
        let first = sources(get(&site, "/bin/env"));
        assert!(
            !first.is_empty() && !first.contains(&LookUpSource::Memory),
            "{first:?}"
        );
        assert_eq!(sources(get(&site, "/bin/env")), [LookUpSource::Memory]);
    }

    #[test]
    fn wrong_requests_are_refused_as_by_a_connection() {
        let site = Site::new("server.document-root = \"/usr\"", &[&MODULE]);
        for request in [
            "GET /%00 HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\n",
        ] {
            let answer = site.dry_run(request, DryRun::default());
            assert_eq!(answer.exchange().response.status, Status::BAD_REQUEST);
            assert_eq!(answer.record.log.len(), 1, "{:?}", answer.record.log);
        }
    }
}
