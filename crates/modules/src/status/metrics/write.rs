//! The text formats of Prometheus (0.0.4) and OpenMetrics (1.0.0), which differ little.
//!
//! Written here and not by a crate: prometheus-client, the one that its makers keep, wants to own the
//! counters, and those of Petrel belong to the workers. What is left is escaping and numbers.

use std::time::Duration;

use petrel_engine::ledger::Nanos;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The one that every version of Prometheus reads.
    Prometheus,
    /// The standard that came from it. It has units and exemplars.
    OpenMetrics,
}

/// What a family of metrics counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only rises.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl MetricKind {
    /// The name in both formats.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// A number of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Count(u64),
    /// Shown in seconds.
    Time(Nanos),
}

/// A request that stands for others in its bucket.
pub(super) struct ShownExemplar {
    pub(super) bucket: usize,
    pub(super) request_id: String,
    pub(super) time: Nanos,
    /// When it ended, since 1970.
    pub(super) ended: Duration,
}

/// Text that is being written.
pub(super) struct Writer {
    out: Vec<u8>,
    format: Format,
    name: &'static str,
    kind: MetricKind,
    /// The beginning of the lines of one histogram's buckets: `name_bucket{a="b",`.
    prefix: Vec<u8>,
}

impl Writer {
    pub(super) fn new(format: Format, capacity: usize) -> Writer {
        Writer {
            out: Vec::with_capacity(capacity),
            format,
            name: "",
            kind: MetricKind::Gauge,
            prefix: Vec::new(),
        }
    }

    /// Begins a family: the lines that say what it is. `name` has no suffix.
    pub(super) fn begin(&mut self, name: &'static str, kind: MetricKind, unit: &str, help: &str) {
        self.name = name;
        self.kind = kind;
        // In the older format the name of the family is that of its samples.
        let suffix = match (self.format, kind) {
            (Format::Prometheus, MetricKind::Counter) => "_total",
            _ => "",
        };
        let mut line = |parts: &[&str]| {
            parts
                .iter()
                .for_each(|part| self.out.extend_from_slice(part.as_bytes()));
            self.out.push(b'\n');
        };
        line(&["# HELP ", name, suffix, " ", help]);
        line(&["# TYPE ", name, suffix, " ", kind.name()]);
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            line(&["# UNIT ", name, " ", unit]);
        }
    }

    /// A sample of a counter or a gauge.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: Number) {
        self.out.extend_from_slice(self.name.as_bytes());
        if self.kind == MetricKind::Counter {
            self.out.extend_from_slice(b"_total");
        }
        if !labels.is_empty() {
            self.out.push(b'{');
            write_labels(&mut self.out, labels);
            // The last comma.
            self.out.pop();
            self.out.push(b'}');
        }
        self.end_sample(value);
    }

    /// The samples of a histogram: `counts` has one count for each of `bounds`, and one for larger values.
    pub(super) fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        bounds: &Bounds,
        counts: &[u64],
        sum: Nanos,
        exemplar: Option<&ShownExemplar>,
    ) {
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.clear();
        prefix.extend_from_slice(self.name.as_bytes());
        prefix.extend_from_slice(b"_bucket{");
        let before_labels = prefix.len();
        write_labels(&mut prefix, labels);
        let mut below = 0;
        for (bucket, (bound, count)) in bounds.0.iter().zip(counts).enumerate() {
            below += count;
            self.out.extend_from_slice(&prefix);
            self.out.extend_from_slice(bound);
            self.out
                .extend_from_slice(itoa::Buffer::new().format(below).as_bytes());
            if let Some(exemplar) = exemplar
                && exemplar.bucket == bucket
                && self.format == Format::OpenMetrics
            {
                self.exemplar(exemplar);
            }
            self.out.push(b'\n');
        }
        // Without the last comma.
        let labels = prefix[before_labels..].strip_suffix(b",");
        for (suffix, value) in [
            ("_sum", Number::Time(sum)),
            ("_count", Number::Count(below)),
        ] {
            self.out.extend_from_slice(self.name.as_bytes());
            self.out.extend_from_slice(suffix.as_bytes());
            if let Some(labels) = labels {
                self.out.push(b'{');
                self.out.extend_from_slice(labels);
                self.out.push(b'}');
            }
            self.end_sample(value);
        }
        self.prefix = prefix;
    }

    fn exemplar(&mut self, exemplar: &ShownExemplar) {
        self.out.extend_from_slice(b" # {");
        write_labels(&mut self.out, &[("request_id", &exemplar.request_id)]);
        self.out.pop();
        self.out.extend_from_slice(b"} ");
        write_seconds(&mut self.out, exemplar.time);
        self.out.push(b' ');
        let ended = u64::try_from(exemplar.ended.as_nanos()).unwrap_or(u64::MAX);
        write_seconds(&mut self.out, ended);
    }

    fn end_sample(&mut self, value: Number) {
        self.out.push(b' ');
        match value {
            Number::Count(count) => {
                self.out
                    .extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
            }
            Number::Time(nanos) => write_seconds(&mut self.out, nanos),
        }
        self.out.push(b'\n');
    }

    /// The whole text.
    pub(super) fn end(mut self) -> Vec<u8> {
        if self.format == Format::OpenMetrics {
            self.out.extend_from_slice(b"# EOF\n");
        }
        self.out
    }
}

/// The ends of the lines of a histogram's buckets: `le="0.001"} `.
pub(super) struct Bounds(Vec<Vec<u8>>);

impl Bounds {
    /// The bounds in nanoseconds, and the one above which there is none.
    pub(super) fn new(nanos: &[Nanos]) -> Bounds {
        let end = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut text = b"le=\"".to_vec();
            write(&mut text);
            text.extend_from_slice(b"\"} ");
            text
        };
        let finite = nanos
            .iter()
            .map(|bound| end(&|text| write_seconds(text, *bound)));
        let infinite = end(&|text| text.extend_from_slice(b"+Inf"));
        Bounds(finite.chain(std::iter::once(infinite)).collect())
    }
}

/// Appends `name="value",` for each label.
fn write_labels(out: &mut Vec<u8>, labels: &[(&str, &str)]) {
    for (name, value) in labels {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"=\"");
        write_label_value(out, value);
        out.extend_from_slice(b"\",");
    }
}

/// Appends a label's value. The formats have escapes for three characters only. Other control characters
/// would end a line for some readers, so they are replaced.
fn write_label_value(out: &mut Vec<u8>, value: &str) {
    let is_plain = |byte: u8| (byte >= b' ') & (byte != b'"') & (byte != b'\\') & (byte < 0x7f);
    // Looking at all bytes without a way out is faster, because the compiler then looks at many at once.
    if value
        .bytes()
        .fold(true, |so_far, byte| so_far & is_plain(byte))
    {
        return out.extend_from_slice(value.as_bytes());
    }
    for c in value.chars() {
        match c {
            '\\' => out.extend_from_slice(b"\\\\"),
            '"' => out.extend_from_slice(b"\\\""),
            '\n' => out.extend_from_slice(b"\\n"),
            c => {
                let is_break = c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
                let shown = if is_break {
                    char::REPLACEMENT_CHARACTER
                } else {
                    c
                };
                out.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

/// Appends a time in seconds, with all nanoseconds that are not zeros at the end.
fn write_seconds(out: &mut Vec<u8>, nanos: Nanos) {
    let (seconds, mut rest) = (nanos / SECOND, nanos % SECOND);
    out.extend_from_slice(itoa::Buffer::new().format(seconds).as_bytes());
    if rest == 0 {
        return out.extend_from_slice(b".0");
    }
    let mut digits = *b".000000000";
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let zeros = digits
        .iter()
        .rev()
        .take_while(|digit| **digit == b'0')
        .count();
    out.extend_from_slice(&digits[..digits.len() - zeros]);
}

const SECOND: Nanos = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Writer), format: Format) -> String {
        let mut writer = Writer::new(format, 0);
        write(&mut writer);
        String::from_utf8(writer.end()).expect("it is UTF-8")
    }

    #[test]
    fn counters_have_their_suffix_where_each_format_wants_it() {
        let write = |writer: &mut Writer| {
            writer.begin("a_seconds", MetricKind::Counter, "seconds", "Help.");
            writer.sample(&[("b", "c"), ("d", "e")], Number::Time(1_500_000_000));
            writer.begin("g", MetricKind::Gauge, "", "Help.");
            writer.sample(&[], Number::Count(7));
        };
        assert_eq!(
            text(write, Format::Prometheus),
            "# HELP a_seconds_total Help.\n# TYPE a_seconds_total counter\n\
             a_seconds_total{b=\"c\",d=\"e\"} 1.5\n\
             # HELP g Help.\n# TYPE g gauge\ng 7\n"
        );
        assert_eq!(
            text(write, Format::OpenMetrics),
            "# HELP a_seconds Help.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
             a_seconds_total{b=\"c\",d=\"e\"} 1.5\n\
             # HELP g Help.\n# TYPE g gauge\ng 7\n# EOF\n"
        );
    }

    #[test]
    fn a_histogram_adds_up_and_names_one_request() {
        let exemplar = ShownExemplar {
            bucket: 1,
            request_id: "00ff".to_owned(),
            time: 250_000_000,
            ended: Duration::from_millis(1_700_000_000_125),
        };
        let bounds = Bounds::new(&[1_000_000, 1_000_000_000]);
        let write = |writer: &mut Writer| {
            writer.begin("h", MetricKind::Histogram, "", "Help.");
            writer.histogram(
                &[("a", "b")],
                &bounds,
                &[1, 2, 4],
                3_000_000_001,
                Some(&exemplar),
            );
        };
        assert_eq!(
            text(write, Format::OpenMetrics),
            "# HELP h Help.\n# TYPE h histogram\n\
             h_bucket{a=\"b\",le=\"0.001\"} 1\n\
             h_bucket{a=\"b\",le=\"1.0\"} 3 # {request_id=\"00ff\"} 0.25 1700000000.125\n\
             h_bucket{a=\"b\",le=\"+Inf\"} 7\n\
             h_sum{a=\"b\"} 3.000000001\nh_count{a=\"b\"} 7\n# EOF\n"
        );
        assert!(!text(write, Format::Prometheus).contains("00ff"));
        let write = |writer: &mut Writer| {
            writer.begin("h", MetricKind::Histogram, "", "Help.");
            writer.histogram(&[], &bounds, &[0, 0, 1], 5, None);
        };
        assert_eq!(
            text(write, Format::Prometheus),
            "# HELP h Help.\n# TYPE h histogram\nh_bucket{le=\"0.001\"} 0\nh_bucket{le=\"1.0\"} 0\n\
             h_bucket{le=\"+Inf\"} 1\nh_sum 0.000000005\nh_count 1\n"
        );
    }

    #[test]
    fn no_label_ends_its_line_or_its_quotes() {
        let mut out = Vec::new();
        write_label_value(&mut out, "a\"b\\c\nd\re\u{0}f\u{1b}g\u{2028}h\u{e4}\u{7f}");
        let text = String::from_utf8(out).expect("it is UTF-8");
        let gone = char::REPLACEMENT_CHARACTER;
        let expected = format!("a\\\"b\\\\c\\nd{gone}e{gone}f{gone}g{gone}h\u{e4}{gone}");
        assert_eq!(text, expected);
    }

    #[test]
    fn times_are_decimal_numbers() {
        for (nanos, shown) in [
            (0, "0.0"),
            (1, "0.000000001"),
            (8_192, "0.000008192"),
            (1_000_000_000, "1.0"),
            (60_500_000_000, "60.5"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            let mut out = Vec::new();
            write_seconds(&mut out, nanos);
            assert_eq!(String::from_utf8_lossy(&out), shown);
        }
    }
}
