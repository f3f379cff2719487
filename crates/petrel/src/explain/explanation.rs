//! Reads the record of the dry runs of one request, and gives everything the words for people. Nothing is
//! decided here.

use config::{Block, Config, DirectiveSpec, Effect, Entry, Schema, Scope, Span, Subject, Value};
use engine::body::Body;
use engine::exchange::dry_run::{
    BackendRoute, Decision, DryRunRecord, DryRunStep, LookUp, LookUpSource, Note, RequestView,
    StepEnd, Verdict,
};
use engine::exchange::{Exchange, Scheme};
use engine::file_cache::FileKind;
use engine::module::Phase;
use engine::mounts::Storage;
use engine::offline::DryRunAnswer;
use engine::settings::directives::DIRECTIVES;
use serde::Serialize;

use super::request::MadeUpRequest;
use super::secrets::{without_passwords, without_secrets};
use crate::load::Loaded;

/// What the server would do with a request, and why.
#[derive(Debug, Serialize)]
pub(super) struct Explanation {
    pub(super) method: String,
    pub(super) url: String,
    pub(super) client: String,
    pub(super) listener: String,
    /// What the reader should know before.
    pub(super) remarks: Vec<String>,
    pub(super) answer: AnswerInWords,
    pub(super) file: FileInWords,
    pub(super) conditions: Vec<ConditionInWords>,
    pub(super) steps: Vec<StepInWords>,
    pub(super) backends: Option<BackendsInWords>,
    pub(super) directives: Vec<DirectiveInWords>,
    pub(super) look_ups: Vec<LookUpInWords>,
    pub(super) log: Vec<String>,
}

/// A place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct AnswerInWords {
    /// `None`: what makes the answer decides it, and was not asked.
    pub(super) status: Option<u16>,
    /// The module, or `core`.
    pub(super) module: String,
    /// `None`: the request was refused before its phases.
    pub(super) phase: Option<&'static str>,
    /// The kind of thing that makes the answer, if it was not asked: backend, program or script.
    pub(super) made_by: Option<&'static str>,
    /// The length of the body. `None`: not known before it is sent.
    pub(super) length: Option<u64>,
    /// How the body is sent; empty without one.
    pub(super) body: String,
    pub(super) fields: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
pub(super) struct FileInWords {
    pub(super) document_root: String,
    pub(super) path: String,
    pub(super) path_info: String,
    /// What is at the path, if it was looked up.
    pub(super) is: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub(super) struct ConditionInWords {
    #[serde(flatten)]
    pub(super) place: Place,
    /// `else` belongs to it.
    pub(super) text: String,
    /// How many blocks are around it.
    pub(super) depth: usize,
    pub(super) verdict: &'static str,
    pub(super) value: Option<String>,
    /// Before the request was changed, it was decided so, with this value.
    pub(super) at_first: Option<(&'static str, Option<String>)>,
}

#[derive(Debug, Serialize)]
pub(super) struct StepInWords {
    pub(super) phase: &'static str,
    /// The module, or `core`.
    pub(super) module: String,
    /// What was done; one phrase for each thing.
    pub(super) did: Vec<String>,
    /// The URL before and after, if it was changed.
    pub(super) url: Option<(String, String)>,
    /// The rule or the directives that say so.
    pub(super) because: Vec<Reason>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    pub(super) text: String,
    #[serde(flatten)]
    pub(super) place: Place,
}

#[derive(Debug, Serialize)]
pub(super) struct BackendsInWords {
    pub(super) directive: &'static str,
    pub(super) key: String,
    pub(super) place: Option<Place>,
    pub(super) protocol: &'static str,
    pub(super) choice: &'static str,
    pub(super) backends: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DirectiveInWords {
    pub(super) name: String,
    pub(super) value: String,
    /// `None`: the default.
    pub(super) place: Option<Place>,
}

#[derive(Debug, Serialize)]
pub(super) struct LookUpInWords {
    pub(super) path: String,
    pub(super) is: String,
    pub(super) cold: String,
    pub(super) warm: String,
}

impl Explanation {
    /// Reads the answers: the first was given with an empty file cache, the second after it.
    pub(super) fn new(
        request: &MadeUpRequest,
        cold: &DryRunAnswer,
        warm: &DryRunAnswer,
        loaded: &Loaded,
        shows_defaults: bool,
    ) -> Explanation {
        let words = Words {
            loaded,
            exchange: cold.exchange(),
            record: &cold.record,
        };
        let mut remarks = Vec::new();
        if request.is_listener_assumed {
            let listener = &request.listener;
            remarks.push(format!(
                "no listener has the port of the URL: {listener} was taken"
            ));
        }
        let mut notes = cold.record.steps.iter().flat_map(|step| &step.notes);
        if notes.any(|note| matches!(note, Note::Script(_))) {
            let remark =
                "scripts were not run, and may change everything (--run-scripts runs them)";
            remarks.push(remark.to_owned());
        }
        if words.is_enabled("ssl.engine") && words.exchange.scheme() == Scheme::Http {
            remarks.push("the listener speaks TLS: its URLs begin with https://".to_owned());
        }
        if words.is_enabled("ssl.verifyclient.activate") {
            remarks
                .push("certificates of clients (ssl.verifyclient.*) were not looked at".to_owned());
        }
        Explanation {
            method: request.method.clone(),
            url: request.url.clone(),
            client: request.client.to_string(),
            listener: request.listener.clone(),
            remarks,
            answer: words.answer(),
            file: words.file(),
            conditions: words.conditions(),
            steps: words.steps(),
            backends: words.backends(),
            directives: words.directives(shows_defaults),
            look_ups: look_ups(&cold.record.look_ups, &warm.record.look_ups),
            log: cold.record.log.clone(),
        }
    }
}

struct Words<'a> {
    loaded: &'a Loaded,
    exchange: &'a Exchange,
    record: &'a DryRunRecord,
}

impl Words<'_> {
    fn config(&self) -> &Config {
        &self.loaded.config
    }

    fn is_enabled(&self, directive: &str) -> bool {
        let entries = self.exchange.entries_in_force(self.record);
        let mut entries = entries.iter();
        entries.any(|(name, _, entry)| *name == directive && entry.value.is_enabling())
    }

    fn place(&self, span: Span) -> Place {
        let location = self.config().sources.location(span);
        Place {
            file: location.file.to_owned(),
            line: location.line,
        }
    }

    fn answer(&self) -> AnswerInWords {
        let response = &self.exchange.response;
        let answered = |step: &&DryRunStep| matches!(step.end, StepEnd::Answer(_));
        let last = self.record.steps.iter().rev().find(answered);
        let made_by = self.record.asked;
        let fields = response.fields().iter();
        AnswerInWords {
            status: match made_by {
                Some(_) => None,
                None => Some(response.status.0),
            },
            module: module_of(last).to_owned(),
            phase: last.map(|step| phase_name(step.phase)),
            made_by,
            length: response.body.length().filter(|_| made_by.is_none()),
            body: self.body(),
            fields: fields
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
        }
    }

    fn body(&self) -> String {
        match &self.exchange.response.body {
            Body::Empty => String::new(),
            Body::Piece(piece) if piece.in_memory().is_some() => "from memory".to_owned(),
            Body::Piece(_) | Body::Pieces(_) => {
                let backend = self.exchange.settings.core.network_backend.name();
                format!("from the file, by the network backend {backend}")
            }
            Body::Source(_) => "made while it is sent".to_owned(),
        }
    }

    fn file(&self) -> FileInWords {
        let physical = &self.exchange.physical;
        FileInWords {
            document_root: text(&physical.document_root),
            path: text(&physical.path),
            path_info: text(&physical.path_info),
            is: physical.file.as_ref().map(|file| kind_name(file.kind())),
        }
    }

    fn conditions(&self) -> Vec<ConditionInWords> {
        let (Some(last), Some(first)) =
            (self.record.decisions.last(), self.record.decisions.first())
        else {
            return Vec::new();
        };
        let pairs = last.iter().zip(first);
        let words = |(last, first): (&Decision, &Decision)| {
            let block = self.config().block(last.block)?;
            Some(ConditionInWords {
                place: self.place(block.span),
                text: head_of(block),
                depth: self.depth(block),
                verdict: verdict_name(last.verdict),
                value: last.value.as_deref().map(text),
                at_first: (is_told_at_first(block) && last != first).then(|| {
                    (
                        verdict_name(first.verdict),
                        first.value.as_deref().map(text),
                    )
                }),
            })
        };
        pairs.filter_map(words).collect()
    }

    fn depth(&self, block: &Block) -> usize {
        let around = |block: &&Block| self.config().block(block.parent?);
        std::iter::successors(Some(block), around).count() - 2
    }

    fn steps(&self) -> Vec<StepInWords> {
        let mut steps: Vec<StepInWords> = Vec::new();
        for step in &self.record.steps {
            let words = StepInWords {
                phase: phase_name(step.phase),
                module: module_of(Some(step)).to_owned(),
                did: did(step),
                url: (step.before.target != step.after.target)
                    .then(|| (text(&step.before.target), text(&step.after.target))),
                because: self.because(step),
            };
            // Some hooks run in several phases, and say the same in each.
            let is_news = |known: &StepInWords| {
                (&known.module, &known.did, &known.because)
                    != (&words.module, &words.did, &words.because)
            };
            if words.did.is_empty() && words.because.is_empty() {
                continue;
            }
            if step.end != StepEnd::Next || steps.iter().all(is_news) {
                steps.push(words);
            }
        }
        steps
    }

    /// The rule that has matched; without one, what is set of the module's directives.
    fn because(&self, step: &DryRunStep) -> Vec<Reason> {
        let rules = step.notes.iter().filter_map(|note| match note {
            Note::Rule(span) => Some(Reason {
                text: without_passwords(self.config().sources.text(*span)),
                place: self.place(*span),
            }),
            _ => None,
        });
        let mut reasons: Vec<Reason> = rules.collect();
        let is_routed = step
            .notes
            .iter()
            .any(|note| matches!(note, Note::Backends(_)));
        if !reasons.is_empty() || step.before == step.after && !is_routed {
            return reasons;
        }
        let names = directives_of(step, self.loaded);
        for (name, _, entry) in self.exchange.entries_in_force(self.record) {
            if names.contains(&name) && entry.value.is_enabling() {
                reasons.push(Reason {
                    text: name.to_owned(),
                    place: self.place(entry.span),
                });
            }
        }
        reasons
    }

    fn backends(&self) -> Option<BackendsInWords> {
        let notes = self.record.steps.iter().flat_map(|step| &step.notes).rev();
        let mut routes = notes.filter_map(|note| match note {
            Note::Backends(route) => Some(route),
            _ => None,
        });
        let BackendRoute {
            directive,
            key,
            protocol,
            choice,
            backends,
        } = routes.next()?.clone();
        let entries = self.exchange.entries_in_force(self.record);
        let mut entries = entries.iter().filter(|(name, _, _)| *name == directive);
        Some(BackendsInWords {
            place: entries
                .next()
                .map(|(_, _, entry)| self.place(place_of_key(entry, &key))),
            directive,
            key,
            protocol,
            choice,
            backends,
        })
    }

    fn directives(&self, shows_all: bool) -> Vec<DirectiveInWords> {
        let entries = self.exchange.entries_in_force(self.record);
        let schema: &Schema = &self.loaded.schema;
        let is_shown = |name: &str| {
            let scope = schema.get(name).map(|spec| spec.scope);
            shows_all || scope == Some(Scope::Request)
        };
        let tables = self.loaded.modules.iter().map(|module| module.directives);
        let known = || std::iter::once(DIRECTIVES).chain(tables.clone()).flatten();
        // Those of modules that are not loaded have no effect.
        let set = entries
            .iter()
            .filter(|(name, _, _)| is_shown(name) && known().any(|spec| spec.name == *name));
        let mut directives: Vec<_> = set
            .map(|(name, _, entry)| DirectiveInWords {
                name: (*name).to_owned(),
                value: value_in_words(&without_secrets(name, &entry.value)),
                place: Some(self.place(entry.span)),
            })
            .collect();
        if shows_all {
            let is_default = |spec: &&DirectiveSpec| {
                let is_set = entries.iter().any(|(name, _, _)| *name == spec.name);
                spec.effect == Effect::Works && !is_set
            };
            directives.extend(known().filter(is_default).map(|spec| DirectiveInWords {
                name: spec.name.to_owned(),
                value: spec.default.to_owned(),
                place: None,
            }));
            directives.sort_by(|one, other| one.name.cmp(&other.name));
        }
        directives
    }
}

fn did(step: &DryRunStep) -> Vec<String> {
    let (before, after) = (&step.before, &step.after);
    let mut did = Vec::new();
    let mut changed = |name: &str, part: fn(&RequestView) -> &[u8]| {
        let (before, after) = (part(before), part(after));
        if before == after {
            return;
        }
        did.push(match (before, after) {
            (b"", after) => format!("{name} {}", text(after)),
            (before, b"") => format!("no {name} instead of {}", text(before)),
            (before, after) => format!("{name} {} -> {}", text(before), text(after)),
        });
    };
    changed("URL", |view| &view.target);
    changed("client", |view| view.client.as_bytes());
    changed("document root", |view| &view.document_root);
    changed("path", |view| &view.path);
    changed("path-info", |view| &view.path_info);
    // An index file changes both paths, and one is enough to tell.
    if (&before.target, &before.path) == (&after.target, &after.path)
        && before.url_path != after.url_path
    {
        did.push(format!(
            "URL path {} -> {}",
            text(&before.url_path),
            text(&after.url_path)
        ));
    }
    if after.found != before.found
        && let Some(found) = after.found
    {
        did.push(format!("finds {}", kind_name(found)));
    }
    if after.is_virtual && !before.is_virtual {
        did.push("looks up no file, because a backend answers".to_owned());
    }
    for note in &step.notes {
        match note {
            Note::Rule(_) => {}
            Note::Backends(route) => {
                did.push(format!("would ask a backend of {}", quoted(&route.key)))
            }
            Note::Script(path) => did.push(format!("would run {path}")),
            Note::Text(text) => did.push(text.clone()),
        }
    }
    match (step.end, &step.location) {
        (StepEnd::Next, _) => {}
        // The word URL says so.
        (StepEnd::Again(Phase::Translate), _) if before.target != after.target => {}
        (StepEnd::Again(phase), _) => did.push(format!("goes back to {}", phase_name(phase))),
        (StepEnd::Answer(status), Some(location)) => {
            did.push(format!(
                "answers {} with Location {}",
                status.0,
                text(location)
            ));
        }
        (StepEnd::Answer(_), None)
            if step
                .notes
                .iter()
                .any(|note| matches!(note, Note::Backends(_))) => {}
        (StepEnd::Answer(status), None) => did.push(format!("answers {}", status.0)),
    }
    did
}

/// The directives that say what the step does.
fn directives_of(step: &DryRunStep, loaded: &Loaded) -> Vec<&'static str> {
    let Some(name) = step.module else {
        let is_mapped = step.before.document_root != step.after.document_root;
        return match (is_mapped, step.end) {
            (true, _) => vec!["server.document-root"],
            (_, StepEnd::Again(_)) => vec!["server.error-handler", "server.error-handler-404"],
            _ => Vec::new(),
        };
    };
    let module = loaded.modules.iter().find(|module| module.name == name);
    let directives = module.map_or(&[][..], |module| module.directives);
    directives.iter().map(|spec| spec.name).collect()
}

/// The key of a map, or else the whole directive.
fn place_of_key(entry: &Entry, key: &str) -> Span {
    let elements = entry.value.as_array().into_iter().flatten();
    let keys = elements.filter_map(|element| element.key.as_ref());
    let mut keys = keys.filter(|known| known.text == key);
    keys.next().map_or(entry.span, |known| known.span)
}

fn head_of(block: &Block) -> String {
    match (block.previous_branch, &block.condition) {
        (None, Some(condition)) => condition.to_string(),
        (Some(_), Some(condition)) => format!("else {condition}"),
        (_, None) => "else".to_owned(),
    }
}

/// Before the path is known, conditions on it are compared with an empty one. That is of no interest.
fn is_told_at_first(block: &Block) -> bool {
    let condition = block.condition.as_ref();
    condition.is_some_and(|condition| {
        !matches!(
            condition.subject,
            Subject::PhysicalPath | Subject::PhysicalExistingPath
        )
    })
}

/// Each path of the run with an empty cache, and what the run after it did for that path.
fn look_ups(cold: &[LookUp], warm: &[LookUp]) -> Vec<LookUpInWords> {
    let words = |look_up: &LookUp| {
        let again = warm.iter().find(|again| again.path == look_up.path);
        LookUpInWords {
            path: text(&look_up.path),
            is: match look_up.kind {
                FileKind::Regular => format!("regular file, {}", byte_count(look_up.size)),
                kind => kind_name(kind).to_owned(),
            },
            cold: operations(look_up),
            warm: again.map_or_else(|| "not looked up".to_owned(), operations),
        }
    };
    cold.iter().map(words).collect()
}

fn operations(look_up: &LookUp) -> String {
    let calls = match (look_up.kind, look_up.has_content) {
        (FileKind::Regular, true) => "open, stat, read",
        (FileKind::Regular | FileKind::Directory | FileKind::Special, _) => "open, stat",
        _ => "open (fails)",
    };
    match (look_up.source, look_up.storage) {
        (LookUpSource::Memory, _) => "no system call".to_owned(),
        (LookUpSource::Kernel, _) => calls.to_owned(),
        (LookUpSource::Disk, Storage::Remote) => {
            format!("{calls}; by a disk thread, on a remote file system")
        }
        (LookUpSource::Disk, _) => format!("{calls}; by a disk thread"),
    }
}

fn module_of(step: Option<&DryRunStep>) -> &'static str {
    step.and_then(|step| step.module).unwrap_or("core")
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Translate => "translate",
        Phase::Authorize => "authorize",
        Phase::DocumentRoot => "document root",
        Phase::Map => "map",
        Phase::Resolved => "resolved",
        Phase::Content => "content",
        Phase::Store => "store",
        Phase::Transform => "transform",
        Phase::Log => "log",
        Phase::Refused => "refused",
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "yes",
        Verdict::Fails => "no",
        Verdict::OuterFails => "outer block does not apply",
        Verdict::EarlierBranchHolds => "earlier branch applies",
    }
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "a regular file",
        FileKind::Directory => "a directory",
        FileKind::Missing => "nothing",
        FileKind::Denied => "a file that the server may not open",
        FileKind::NotADirectory => "a path that goes on behind a file",
        FileKind::Special => "a device, socket or pipe",
        FileKind::Failed(_) => "an error of the file system",
    }
}

/// A value on one line. Long lists are counted.
fn value_in_words(value: &Value) -> String {
    let whole = whole_value(value);
    match value {
        Value::Array(array) if whole.chars().count() > VALUE_CHARS_MAX => {
            match array.iter().count() {
                1 => "( 1 entry )".to_owned(),
                count => format!("( {count} entries )"),
            }
        }
        _ => whole,
    }
}

fn whole_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Array(array) if array.is_empty() => "()".to_owned(),
        Value::Array(array) => {
            let elements = array.iter().map(|element| match element.key() {
                Some(key) => format!("{} => {}", quoted(key), whole_value(&element.value)),
                None => whole_value(&element.value),
            });
            format!("( {} )", elements.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A number of bytes.
pub(super) fn byte_count(count: u64) -> String {
    match count {
        1 => "1 byte".to_owned(),
        count => format!("{count} bytes"),
    }
}

/// A string as the configuration language has it, where a backslash escapes only a quote.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

/// Bytes of a request, with control characters escaped.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.contains(char::is_control) {
        true => text.escape_debug().to_string(),
        false => text.into_owned(),
    }
}

/// The longest list that is shown as a whole.
const VALUE_CHARS_MAX: usize = 72;
