//! `status.metrics-url`: the metrics for Prometheus and other programs that read its format.
//!
//! [`FAMILIES`] is the table of all metrics: name, what it counts, labels, and where the numbers come from.
//! docs/metrics.md is made of it.

mod families;
mod write;

use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::module::Outcome;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::shared::Shared;

use super::report::Report;
use super::shared_page::{self, MakePage};
use families::MetricsReport;
pub use families::{FAMILIES, MetricFamily};
pub use write::MetricKind;
use write::{Format, Writer};

/// Answers with the metrics, in the format that the client prefers.
pub(super) fn answer(exchange: &mut Exchange) -> Outcome {
    let accept = exchange.request.head.field(KnownField::Accept);
    let format = format_for(accept.unwrap_or_default());
    let (make, content_type): (MakePage, _) = match format {
        Format::Prometheus => (prometheus, PROMETHEUS_TYPE),
        Format::OpenMetrics => (open_metrics, OPEN_METRICS_TYPE),
    };
    shared_page::answer(exchange, make, content_type, String::new())
}

fn prometheus(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    Ok(text(&report(shared), Format::Prometheus))
}

fn open_metrics(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    Ok(text(&report(shared), Format::OpenMetrics))
}

fn report(shared: &Shared) -> MetricsReport {
    Report::new(shared, |metrics, _| metrics.histograms())
}

/// All families that have samples.
fn text(report: &MetricsReport, format: Format) -> Vec<u8> {
    let mut writer = Writer::new(format, report.requests.routes.len() * BYTES_OF_ROUTE);
    for family in FAMILIES {
        (family.write)(report, family, &mut writer);
    }
    writer.end()
}

/// The format for a client that sends this Accept field (RFC 9110 12.5.1): OpenMetrics if it names that, and
/// nothing with a higher weight.
fn format_for(accept: &[u8]) -> Format {
    let text = String::from_utf8_lossy(accept);
    let (mut plain, mut open) = (0, 0);
    for range in text.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        let weight = weight.map_or(1000, per_mille);
        match &*kind {
            "application/openmetrics-text" => open = open.max(weight),
            "text/plain" => plain = plain.max(weight),
            _ => {}
        }
    }
    match open > 0 && open >= plain {
        true => Format::OpenMetrics,
        false => Format::Prometheus,
    }
}

/// A weight of Accept in thousandths. What is no number counts as 0.
fn per_mille(weight: &str) -> u32 {
    let weight: f64 = weight.parse().unwrap_or(0.0);
    (weight.clamp(0.0, 1.0) * 1000.0) as u32
}

const PROMETHEUS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// About as many bytes as the samples of one route take.
const BYTES_OF_ROUTE: usize = 12_000;

#[cfg(test)]
mod tests;
