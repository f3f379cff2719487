//! mod_accesslog: a line for every request, when its last byte is sent or its client has left.
//!
//! The format is compiled once for each set of settings. Writing a line usually allocates nothing, and reads
//! no clock: its times are the stamps of the exchange. The line goes into the log's queue, whose writer is a
//! thread of its own ([`petrel_engine::log`]): if the disk is slow, lines are dropped and counted, but no
//! request waits.
//!
//! [`mod@format`] compiles the directive, [`record`] provides the values, [`mod@line`] and [`json`] write the
//! line.

mod format;
mod json;
mod line;
mod record;
mod time;

use std::cell::RefCell;

use petrel_engine::config::{Diagnostic, DirectiveSpec, Effect, Span};
use petrel_engine::log::{LogHandle, LogTarget, SyslogLevel};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::{Exchange, limits};

use format::{FormatError, LineFormat};
use json::JsonLine;
use line::Escaping;
use record::Record;

/// mod_accesslog.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_accesslog",
    doc: "Writes a line for every request, in a configurable format or as JSON.",
    loaded: Loaded::Listed,
    directives: DIRECTIVES,
    configure,
};

static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "accesslog.filename", String, Request, "unset", Effect::Works,
        "The file to write to, opened for appending, and again on SIGHUP or when it was rotated, or \"|command\": a \
         command that gets the lines on its standard input and is started again if it dies. \
         Unset, there is no access log.";
    "accesslog.format", String, Request, r#""%h %V %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"""#, Effect::Works,
        "What a line says: text with codes as Apache and lighttpd have them (%h %V %u %t \
         \"%r\" %>s %b \"%{Referer}i\" and so on; %% is a percent sign; a backslash before a, b, f, n, \
         r, t or v is that character, before any other it is dropped). %D and %T take a unit: %{ms}T, \
         %{us}D. Beyond lighttpd: %{stage:NAME}x is the time a request spent in a stage of the \
         ledger, in microseconds, or as %{stage:NAME:UNIT}x in s, ms, us or ns; NAME is a stage, \
         \"total\" or \"unattributed\"; %{stages}x is all of them that are not 0. \
         %{waits}x says what held the request up, if a wait took 10 ms or more. %{in-kernel}x is for how long at \
         most the request lay in the kernel before its worker looked, in microseconds, or with a unit as \
         %{in-kernel:ms}x. \
         %{request-id}x is the id of the request, which lines of the error log end with; %{cause}x is why \
         the request failed, a code of docs/causes.md, or a dash. The format \"json\" writes one \
         JSON object a line with everything in it.";
    "accesslog.use-syslog", Bool, Request, "disable", Effect::Works,
        "Send the lines to syslog instead of accesslog.filename, under server.syslog-facility.";
    "accesslog.syslog-level", Short, Request, "6", Effect::Works,
        "The severity of those lines: 0 (emergency) to 7 (debug); 6 is informational.";
    "accesslog.escaping", String, Request, "\"default\"", Effect::Works,
        "How values from the client are made safe: \"default\" writes quotes and backslashes \
         with a backslash and all that is not printable ASCII as \\xHH; \"json\" as inside a JSON string.";
};

const DEFAULT_FORMAT: &str = r#"%h %V %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#;

/// The format that selects JSON.
const JSON: &str = "json";

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let layout = layout(configure)?;
    let level = syslog_level(configure)?;
    let log = if values.bool("accesslog.use-syslog").unwrap_or(false) {
        configure.logs.get(&LogTarget::Syslog).with_level(level)
    } else if let Some(name) = values.string("accesslog.filename") {
        configure.logs.get(&LogTarget::parse(name))
    } else {
        return Ok(());
    };
    if matches!(&layout, Layout::Format(format, _) if format.tells_local_address()) {
        configure.want_local_address();
    }
    let server_port = values.config().global().entry("server.port");
    let server_port = server_port
        .and_then(|entry| entry.value.as_integer())
        .unwrap_or(80);
    configure.add(
        Phase::Log,
        AccessLog {
            log,
            layout,
            server_port: u16::try_from(server_port).unwrap_or(0),
            line: RefCell::default(),
        },
    );
    Ok(())
}

fn layout(configure: &Configure<'_>) -> Result<Layout, Diagnostic> {
    let values = configure.values;
    let escaping = match values.string("accesslog.escaping") {
        None | Some("default") => Escaping::Log,
        Some("json") => Escaping::Json,
        Some(_) => {
            return Err(values
                .error("accesslog.escaping", "there is no such way of escaping")
                .with_hint("it is \"default\" or \"json\""));
        }
    };
    match values.string("accesslog.format").unwrap_or(DEFAULT_FORMAT) {
        JSON => Ok(Layout::Json(JsonLine::new())),
        text => LineFormat::parse(text)
            .map(|format| Layout::Format(format, escaping))
            .map_err(|error| diagnostic(configure, text, error)),
    }
}

fn syslog_level(configure: &Configure<'_>) -> Result<SyslogLevel, Diagnostic> {
    let name = "accesslog.syslog-level";
    match configure.values.integer(name) {
        None => Ok(SyslogLevel::INFO),
        Some(number) => u32::try_from(number)
            .ok()
            .and_then(SyslogLevel::new)
            .ok_or_else(|| {
                configure
                    .values
                    .error(name, "there is no such syslog level")
                    .with_hint("levels are 0 to 7")
            }),
    }
}

/// Points at the wrong part of the format, if the format is a single plain string.
fn diagnostic(configure: &Configure<'_>, format: &str, error: FormatError) -> Diagnostic {
    let mut diagnostic = configure.values.error("accesslog.format", error.message);
    if let Some(span) = diagnostic.span {
        let written = configure.values.config().sources.text(span);
        if let Some(range) = format::locate(written, format, error.range) {
            let offset = |at: usize| span.start + u32::try_from(at).unwrap_or(0);
            diagnostic.span = Some(Span {
                file: span.file,
                start: offset(range.start),
                end: offset(range.end),
            });
        }
    }
    diagnostic.with_hint(error.hint)
}

/// The layout of a line.
enum Layout {
    Format(LineFormat, Escaping),
    Json(JsonLine),
}

/// The hook for one set of settings.
struct AccessLog {
    log: LogHandle,
    layout: Layout,
    server_port: u16,
    /// A buffer that is reused for each line.
    line: RefCell<Vec<u8>>,
}

impl Hook for AccessLog {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let mut line = self.line.borrow_mut();
        line.clear();
        let record = Record::of(exchange, self.server_port);
        match &self.layout {
            Layout::Format(format, escaping) => line::write(format, *escaping, &record, &mut line),
            Layout::Json(json) => json.write(&record, &mut line),
        }
        line.push(b'\n');
        self.log.write(&line);
        if line.capacity() > limits::POOLED_BUFFER_BYTES_MAX {
            *line = Vec::new();
        }
        Outcome::Next
    }
}

#[cfg(test)]
mod tests {
    use petrel_engine::testing::Site;

    use super::MODULE;

    fn refusal(text: &str) -> String {
        Site::try_new(text, &[&MODULE]).err().expect("a refusal")
    }

    #[test]
    fn a_wrong_format_is_pointed_at() {
        let message = refusal("accesslog.format = \"%h \\\"%r\\\" %Z\"");
        assert!(message.starts_with("test.conf:1:31: "), "{message}");
        assert!(message.contains("there is no code %Z"), "{message}");
        // In a sum of strings only the value as a whole has a position.
        let message = refusal("accesslog.format = \"%h\" + \" %Z\"");
        assert!(message.starts_with("test.conf:1:20: "), "{message}");
    }

    #[test]
    fn other_wrong_values_are_refused() {
        for (text, expected) in [
            ("accesslog.escaping = \"xml\"", "default"),
            ("accesslog.syslog-level = 8", "0 to 7"),
            ("accesslog.format = \"%P\"", "process"),
        ] {
            let message = refusal(text);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn what_is_right_serves() {
        for text in [
            "",
            "accesslog.filename = \"/nonexistent/but/only/checked\"",
            "accesslog.format = \"json\"\naccesslog.filename = \"/nonexistent\"",
            "accesslog.use-syslog = \"enable\"\naccesslog.escaping = \"json\"",
        ] {
            assert_eq!(Site::new(text, &[&MODULE]).get("/").status(), 404, "{text}");
        }
    }
}
