//! Writes what the `debug.log-*` directives ask for to the error log of the request.
//!
//! Every line names the request, as error messages do, and begins with its topic in parentheses. The
//! functions check their switch themselves; a switch that is off costs only that check. A head is one line
//! with escaped line ends, and not one line for each field as in lighttpd. So lines of different requests do
//! not mix, and the log's suppression of repeated lines does not drop parts of a head.

use std::fmt::Write as _;

use crate::exchange::Exchange;
use crate::ledger::{Nanos, Stage};
use crate::module::Phase;

/// `debug.log-request-header`: the head of a request whose settings are known by now.
#[inline]
pub(crate) fn request_header(exchange: &Exchange) {
    if exchange.settings.core.debug.request_header {
        header(
            exchange,
            "request-header",
            exchange.request.head.head_bytes(),
        );
    }
}

/// `debug.log-request-header` and `debug.log-request-header-on-error`: what has arrived of a refused head.
#[cold]
pub(crate) fn refused_header(exchange: &Exchange, bytes: &[u8]) {
    let debug = &exchange.settings.core.debug;
    if debug.request_header || debug.request_header_on_error {
        header(exchange, "request-header", bytes);
    }
}

/// `debug.log-response-header`: the head `bytes` of the response.
#[cold]
pub(crate) fn response_header(exchange: &Exchange, bytes: &[u8]) {
    header(exchange, "response-header", bytes);
}

/// `debug.log-request-handling`: the URL after parsing.
#[inline]
pub(crate) fn url(exchange: &Exchange) {
    if exchange.settings.core.debug.request_handling {
        let url = &exchange.request.url;
        handling(
            exchange,
            format_args!(
                "URL: path=\"{}\" query=\"{}\"",
                shown(url.path()),
                shown(url.query())
            ),
        );
    }
}

/// `debug.log-request-handling`: the physical path, and what is at it.
#[inline]
pub(crate) fn physical(exchange: &Exchange) {
    if exchange.settings.core.debug.request_handling {
        let physical = &exchange.physical;
        let kind = physical.file.as_ref().map(|file| file.kind());
        handling(
            exchange,
            format_args!(
                "file: document-root=\"{}\" base=\"{}\" path=\"{}\" path-info=\"{}\" found={kind:?}",
                shown(&physical.document_root),
                shown(&physical.base),
                shown(&physical.path),
                shown(&physical.path_info)
            ),
        );
    }
}

/// `debug.log-request-handling`: a hook of `phase` has answered.
#[inline]
pub(crate) fn answered(exchange: &Exchange, phase: Phase) {
    if exchange.settings.core.debug.request_handling {
        let status = exchange.response.status.0;
        handling(
            exchange,
            format_args!("answered {status} in the phase {phase:?}"),
        );
    }
}

/// `debug.log-request-handling`: the phases begin again at `phase`.
#[inline]
pub(crate) fn restarted(exchange: &Exchange, phase: Phase) {
    if exchange.settings.core.debug.request_handling {
        handling(exchange, format_args!("goes on at the phase {phase:?}"));
    }
}

/// Traces at the end of an exchange: `debug.log-condition-handling`, `debug.log-timing`,
/// `debug.log-request-header-on-error`.
#[inline]
pub(crate) fn over(exchange: &Exchange) {
    let debug = &exchange.settings.core.debug;
    if debug.condition_handling {
        conditions(exchange);
    }
    if debug.timing {
        timing(exchange);
    }
    let is_error = debug.request_header_on_error && exchange.response.status.is_error();
    if is_error && !debug.request_header && exchange.request.refused_line.is_empty() {
        header(
            exchange,
            "request-header",
            exchange.request.head.head_bytes(),
        );
    }
}

/// The blocks that are true, in the order of the text, each with the location of its condition.
#[cold]
fn conditions(exchange: &Exchange) {
    // For a refused head no conditions were evaluated.
    let Some(scope) = &exchange.scope else { return };
    let table = exchange.worker.settings_table();
    let sources = &table.config().sources;
    let mut text = String::new();
    for block in table.true_blocks(scope, exchange) {
        let location = sources.location(block.span);
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{separator}{} ({}:{})",
            sources.text(block.span),
            location.file,
            location.line
        );
    }
    let text = if text.is_empty() { "none" } else { &text };
    exchange.log_error("conditions", format_args!("true: {text}"));
}

/// One line about where the time went. It begins as the line of lighttpd 1.5 does, so that scripts for that
/// find their words; all stages of the ledger follow, in microseconds.
///
/// lighttpd 1.5 wrote a line for each asynchronous read, in whole milliseconds: how long the read waited for
/// a thread, how long it took, and how long sending what was read took. Here they are those of the whole
/// request.
#[cold]
fn timing(exchange: &Exchange) {
    let ledger = &exchange.ledger;
    let sum = |stages: &[Stage]| {
        stages
            .iter()
            .map(|stage| ledger.stage(*stage))
            .sum::<Nanos>()
    };
    let [queued, read, written] = LIGHTTPD_STAGES.map(sum);
    let ended = ledger.started() + ledger.total();
    let clock = exchange.worker.clock();
    let micros = clock.wall_nanos_at(ended - queued - read - written) / 1000;
    let mut text = format!(
        "write-start: {}.{:06} read-queue-wait: {} ms read-time: {} ms write-time: {} ms ",
        micros / 1_000_000,
        micros % 1_000_000,
        queued / 1_000_000,
        read / 1_000_000,
        written / 1_000_000
    );
    let mut tell = |name: &str, nanos: Nanos| {
        let _ = write!(text, "{name}={}.{:03} ", nanos / 1000, nanos % 1000);
    };
    for stage in Stage::ALL {
        tell(stage.name(), ledger.stage(*stage));
    }
    tell("unattributed", ledger.unattributed());
    tell("total", ledger.total());
    exchange.log_error("timing", format_args!("{text}us"));
}

/// The stages that make up lighttpd's `read-queue-wait`, `read-time` and `write-time`.
const LIGHTTPD_STAGES: [&[Stage]; 3] = [
    &[Stage::DiskQueue],
    &[Stage::Open, Stage::Stat, Stage::ReadFile],
    &[Stage::Send, Stage::Throttle, Stage::ClientDrain],
];

#[cold]
fn handling(exchange: &Exchange, what: std::fmt::Arguments<'_>) {
    exchange.log_error("request-handling", what);
}

#[cold]
fn header(exchange: &Exchange, name: &str, bytes: &[u8]) {
    exchange.log_error(
        name,
        format_args!("{}", bytes.trim_ascii_end().escape_ascii()),
    );
}

fn shown(bytes: &[u8]) -> impl std::fmt::Display + '_ {
    bytes.escape_ascii()
}
