//! The explanation as text for a terminal: sections with aligned columns.

use proto::status::Status;

use super::explanation::{
    ConditionInWords, DirectiveInWords, Explanation, Place, StepInWords, byte_count, quoted,
};

/// The text. With `shows_all` conditions that were not looked at are listed, too.
pub(super) fn render(explanation: &Explanation, shows_all: bool) -> String {
    let mut out = format!(
        "{} {}\nfrom {} by the listener {}\n",
        explanation.method, explanation.url, explanation.client, explanation.listener
    );
    for remark in &explanation.remarks {
        out += &format!("({remark})\n");
    }
    out.push('\n');
    let files = Names::of(explanation);
    out += &summary(explanation, &files);
    out += &conditions(explanation, &files, shows_all);
    out += &section("Steps", &steps(explanation, &files));
    out += &section("Directives", &directives(explanation, &files));
    out += &section("Files", &look_ups(explanation));
    let log: Vec<Vec<String>> = explanation
        .log
        .iter()
        .map(|line| vec![line.clone()])
        .collect();
    out += &section("Error log", &log);
    out
}

/// The shortest names of files that tell them apart: without the directory that all of them are in.
struct Names {
    directory: String,
}

impl Names {
    fn of(explanation: &Explanation) -> Names {
        let conditions = explanation
            .conditions
            .iter()
            .map(|condition| &condition.place);
        let directives = explanation.directives.iter();
        let directives = directives.filter_map(|directive| directive.place.as_ref());
        let steps = explanation.steps.iter().flat_map(|step| &step.because);
        let steps = steps.map(|reason| &reason.place);
        let mut files = conditions
            .chain(directives)
            .chain(steps)
            .map(|place| &*place.file);
        let directory_of = |file: &str| file.rfind('/').map_or(0, |slash| slash + 1);
        let Some(first) = files.next() else {
            return Names {
                directory: String::new(),
            };
        };
        let mut directory = &first[..directory_of(first)];
        for file in files {
            while !file.starts_with(directory) {
                let outer = directory.strip_suffix('/').unwrap_or_default();
                directory = &outer[..directory_of(outer)];
            }
        }
        Names {
            directory: directory.to_owned(),
        }
    }

    fn shown(&self, place: &Place) -> String {
        let file = place.file.strip_prefix(&self.directory);
        format!("{}:{}", file.unwrap_or(&place.file), place.line)
    }
}

fn summary(explanation: &Explanation, files: &Names) -> String {
    let (answer, file) = (&explanation.answer, &explanation.file);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    row(
        "Answer",
        match (answer.made_by, answer.status) {
            (Some(what), _) => format!("what the {what} says"),
            (None, status) => status.map_or_else(String::new, |status| {
                format!("{status} {}", Status(status).reason())
            }),
        },
    );
    row(
        "Made by",
        match answer.phase {
            Some(phase) => format!("{}, in the phase {phase}", answer.module),
            None => "the parser of requests, which refuses this one".to_owned(),
        },
    );
    if let Some(backends) = &explanation.backends {
        let place = backends.place.as_ref().map(|place| files.shown(place));
        row(
            "Route",
            format!(
                "{} {}  {}",
                backends.directive,
                quoted(&backends.key),
                place.unwrap_or_default()
            ),
        );
        for (index, backend) in backends.backends.iter().enumerate() {
            let name = if index == 0 { "Backend" } else { "or" };
            row(name, format!("{backend} ({})", backends.protocol));
        }
        if backends.backends.len() > 1 {
            row("Choice", backends.choice.to_owned());
        }
    }
    if !file.path.is_empty() {
        let is = file.is.map(|is| format!(", {is}")).unwrap_or_default();
        row("Path", format!("{}{is}", file.path));
    }
    if !file.path_info.is_empty() {
        row("Path-info", file.path_info.clone());
    }
    if !file.document_root.is_empty() {
        row("Document root", file.document_root.clone());
    }
    if !answer.body.is_empty() {
        let length = answer.length.map(|length| byte_count(length) + " ");
        row(
            "Body",
            format!("{}{}", length.unwrap_or_default(), answer.body),
        );
    }
    let fields = answer.fields.iter();
    let fields = fields.map(|(name, value)| vec![format!("{name}:"), value.clone()]);
    let fields: Vec<_> = fields.collect();
    aligned(&rows, "") + &section("Fields of the answer", &fields)
}

fn conditions(explanation: &Explanation, files: &Names, shows_all: bool) -> String {
    let conditions = &explanation.conditions;
    let (looked_at, other): (Vec<_>, Vec<_>) = conditions
        .iter()
        .partition(|condition| condition.value.is_some() || condition.verdict == "yes");
    let is_shown = |condition: &&ConditionInWords| {
        shows_all
            || looked_at
                .iter()
                .any(|shown| std::ptr::eq(*shown, *condition))
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut failed = 0;
    let mut hidden = 0;
    for condition in conditions.iter().filter(is_shown) {
        failed += usize::from(condition.verdict == "no");
        if condition.verdict == "no" && failed > FAILED_MAX && !shows_all {
            hidden += 1;
            continue;
        }
        rows.push(row_of(condition, files));
    }
    let mut out = section("Conditions", &rows);
    if hidden > 0 {
        out += &format!("  {hidden} more do not hold (--all shows them)\n");
    }
    if !shows_all && !other.is_empty() {
        let heading = if rows.is_empty() {
            "\nConditions\n"
        } else {
            ""
        };
        out += &format!(
            "{heading}  {} in blocks that do not apply were not looked at\n",
            other.len()
        );
    }
    out
}

fn row_of(condition: &ConditionInWords, files: &Names) -> Vec<String> {
    let value = |value: &Option<String>| value.as_deref().map(quoted);
    let mut compared = value(&condition.value).unwrap_or_default();
    if let Some((verdict, first)) = &condition.at_first
        && *verdict != condition.verdict
    {
        let first = value(first).map(|first| format!(" for {first}"));
        compared += &format!("  (at first {verdict}{})", first.unwrap_or_default());
    }
    let indent = "  ".repeat(condition.depth);
    vec![
        condition.verdict.to_owned(),
        format!("{indent}{}", condition.text),
        compared,
        files.shown(&condition.place),
    ]
}

fn steps(explanation: &Explanation, files: &Names) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for StepInWords {
        phase,
        module,
        did,
        because,
        ..
    } in &explanation.steps
    {
        let reasons = because
            .iter()
            .map(|reason| format!("{}  {}", files.shown(&reason.place), reason.text));
        let reasons: Vec<String> = reasons.take(REASONS_MAX).collect();
        for index in 0..did.len().max(reasons.len()) {
            let is_first = index == 0;
            let head = |text: &str| {
                if is_first {
                    text.to_owned()
                } else {
                    String::new()
                }
            };
            rows.push(vec![
                head(phase),
                head(module),
                did.get(index).cloned().unwrap_or_default(),
                reasons.get(index).cloned().unwrap_or_default(),
            ]);
        }
    }
    rows
}

fn directives(explanation: &Explanation, files: &Names) -> Vec<Vec<String>> {
    let directives = explanation.directives.iter();
    let row = |directive: &DirectiveInWords| {
        let place = directive.place.as_ref();
        vec![
            directive.name.clone(),
            directive.value.clone(),
            place.map_or_else(|| "default".to_owned(), |place| files.shown(place)),
        ]
    };
    directives.map(row).collect()
}

fn look_ups(explanation: &Explanation) -> Vec<Vec<String>> {
    if explanation.look_ups.is_empty() {
        return Vec::new();
    }
    let head = ["path", "there is", "with an empty cache", "the next time"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for look_up in &explanation.look_ups {
        rows.push(vec![
            look_up.path.clone(),
            look_up.is.clone(),
            look_up.cold.clone(),
            look_up.warm.clone(),
        ]);
    }
    rows
}

/// A heading with rows; nothing without rows.
fn section(heading: &str, rows: &[Vec<String>]) -> String {
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{heading}\n{}", aligned(rows, "  ")),
    }
}

/// The rows with columns of one width. A cell that is much longer than the others does not widen its column:
/// the rest of its row moves to the right.
fn aligned(rows: &[Vec<String>], indent: &str) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |cell: &String| cell.chars().count();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(width);
            cells
                .filter(|width| *width <= COLUMN_MAX)
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = indent.to_owned();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:width$}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// The widest cell that the others of its column are aligned with.
const COLUMN_MAX: usize = 56;

/// How many conditions that do not hold are listed.
const FAILED_MAX: usize = 20;

/// How many directives are named for one step.
const REASONS_MAX: usize = 3;
