//! Errors and warnings with their place in the configuration, and how they are displayed.

use std::fmt;

use crate::source::{FileId, Sources, Span};

/// Whether start-up can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Start-up continues.
    Warning,
    /// Start-up stops.
    Error,
}

impl Severity {
    /// The word in a message.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// What a warning means for its directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// Requests in its scope get 503.
    Answers503,
    /// The directive counts as not set.
    NoEffect,
}

/// A message about a place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether start-up can continue.
    pub severity: Severity,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// The place. `None`: the message is about the configuration as a whole.
    pub span: Option<Span>,
    /// A note at the marked text.
    pub label: Option<String>,
    /// What the user can do.
    pub hint: Option<String>,
    /// What happens to the directive, if it does not have its normal effect.
    pub consequence: Option<Consequence>,
}

impl Diagnostic {
    /// An error at `span`.
    #[must_use]
    pub fn error(message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic::new(Severity::Error, message.into(), Some(span))
    }

    /// A warning at `span`.
    #[must_use]
    pub fn warning(message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic::new(Severity::Warning, message.into(), Some(span))
    }

    /// An error that has no place of its own, such as a missing directive.
    #[must_use]
    pub fn error_anywhere(message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Error, message.into(), None)
    }

    fn new(severity: Severity, message: String, span: Option<Span>) -> Diagnostic {
        Diagnostic {
            severity,
            message,
            span,
            label: None,
            hint: None,
            consequence: None,
        }
    }

    /// Adds a note at the marked place.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = Some(label.into());
        self
    }

    /// Adds the consequence, which the summary of the configuration counts.
    #[must_use]
    pub fn with_consequence(mut self, consequence: Consequence) -> Diagnostic {
        self.consequence = Some(consequence);
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }
}

/// How a diagnostic is displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One line: `file:line:column: error: message (hint)`. For logs.
    Line,
    /// The lines with the error, and the place marked; without colour.
    Report,
    /// Like `Report`, with colour for a terminal.
    ColourReport,
}

/// Formats `diagnostic` in `style`, without a line end after the last line.
#[must_use]
pub fn render(diagnostic: &Diagnostic, sources: &Sources, style: Style) -> String {
    match (style, diagnostic.span) {
        (Style::Report, Some(span)) if fits_report(sources, span) => {
            report(diagnostic, span, sources, false)
        }
        (Style::ColourReport, Some(span)) if fits_report(sources, span) => {
            report(diagnostic, span, sources, true)
        }
        _ => line(diagnostic, sources),
    }
}

fn line(diagnostic: &Diagnostic, sources: &Sources) -> String {
    let mut text = String::new();
    if let Some(span) = diagnostic.span {
        text += &format!("{}: ", sources.location(span));
    }
    text += &format!("{}: {}", diagnostic.severity.name(), diagnostic.message);
    if let Some(hint) = &diagnostic.hint {
        text += &format!(" ({hint})");
    }
    for include in include_chain(diagnostic, sources) {
        text += &format!(", included from {include}");
    }
    // A message is one line whatever the file contains, so that no file can forge log lines.
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn report(diagnostic: &Diagnostic, span: Span, sources: &Sources, colour: bool) -> String {
    let kind = match diagnostic.severity {
        Severity::Warning => ariadne::ReportKind::Warning,
        Severity::Error => ariadne::ReportKind::Error,
    };
    let mark = match diagnostic.severity {
        Severity::Warning => ariadne::Color::Yellow,
        Severity::Error => ariadne::Color::Red,
    };
    let place = (span.file, span.range());
    let config = ariadne::Config::default()
        .with_color(colour)
        .with_index_type(ariadne::IndexType::Byte);
    let label = ariadne::Label::new(place.clone()).with_color(mark);
    let label = label.with_message(diagnostic.label.as_deref().unwrap_or("here"));
    let mut report = ariadne::Report::build(kind, place)
        .with_config(config)
        .with_message(&diagnostic.message)
        .with_label(label);
    if let Some(hint) = &diagnostic.hint {
        report = report.with_help(hint);
    }
    for include in include_chain(diagnostic, sources) {
        report = report.with_note(format!("included from {include}"));
    }
    let mut bytes = Vec::new();
    match report.finish().write(Texts::of(sources, span), &mut bytes) {
        Ok(()) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        Err(_) => line(diagnostic, sources),
    }
}

fn include_chain(diagnostic: &Diagnostic, sources: &Sources) -> Vec<String> {
    let chain = diagnostic
        .span
        .map_or_else(Vec::new, |span| sources.include_chain(span));
    chain
        .into_iter()
        .map(|include| sources.location(include).to_string())
        .collect()
}

/// Whether the lines that a report would show are short enough.
fn fits_report(sources: &Sources, span: Span) -> bool {
    let Some(source) = sources.source(span.file) else {
        return false;
    };
    let text = source.text();
    let start = text
        .get(..span.start as usize)
        .map_or(0, |before| before.rfind('\n').map_or(0, |at| at + 1));
    let end = text.get(span.end as usize..).map_or(text.len(), |after| {
        after
            .find('\n')
            .map_or(text.len(), |at| span.end as usize + at)
    });
    end.saturating_sub(start) <= REPORT_BYTES_MAX
}

/// The text for a report, in the format that ariadne needs.
struct Texts {
    name: String,
    text: ariadne::Source<String>,
}

impl Texts {
    fn of(sources: &Sources, span: Span) -> Texts {
        let source = sources.source(span.file);
        let name = source.map_or("?", |source| source.name()).to_owned();
        Texts {
            name,
            text: ariadne::Source::from(source.map_or("", |source| source.text()).to_owned()),
        }
    }
}

impl ariadne::Cache<FileId> for Texts {
    type Storage = String;

    fn fetch(&mut self, _: &FileId) -> Result<&ariadne::Source<String>, impl fmt::Debug> {
        Ok::<_, std::convert::Infallible>(&self.text)
    }

    fn display<'a>(&self, _: &'a FileId) -> Option<impl fmt::Display + 'a> {
        Some(self.name.clone())
    }
}

/// Why a configuration was refused: all errors and warnings.
#[derive(Debug)]
pub struct Diagnostics {
    /// The messages in the order of the text.
    pub list: Vec<Diagnostic>,
    /// The texts, for rendering.
    pub sources: Sources,
}

impl Diagnostics {
    /// All messages, formatted one after the other; each ends with a line end.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        self.list
            .iter()
            .map(|diagnostic| render(diagnostic, &self.sources, style) + "\n")
            .collect()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(Style::Line).trim_end())
    }
}

impl std::error::Error for Diagnostics {}

/// A report shows whole lines. If the lines are longer than this, the message is shown as one line instead.
const REPORT_BYTES_MAX: usize = 2_000;
