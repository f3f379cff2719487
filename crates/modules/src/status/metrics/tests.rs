use petrel_engine::ledger::Stage;
use petrel_engine::metrics::{ClassCounts, LatencyCounts, RouteCounts, StageCounts, StatusClass};
use std::collections::{HashMap, HashSet};

use super::super::MODULE;
use super::*;
use crate::static_file;
use crate::testing::Tree;

/// A report about `count` routes that have answered requests, with `name` in each of their names.
fn report(name: &str, count: usize) -> MetricsReport {
    let mut report = super::report(&Shared::new(1, 1));
    let latency = LatencyCounts {
        buckets: std::array::from_fn(|bucket| bucket as u64),
        sum: 123_456_789_012,
    };
    let class = ClassCounts {
        class: StatusClass::Successful,
        latency,
        sent_bytes: 1_234_567,
        received_bytes: 0,
        exemplar: None,
    };
    for number in 0..count {
        let mut counts = RouteCounts {
            classes: vec![class],
            ..RouteCounts::default()
        };
        for stage in [
            Stage::Parse,
            Stage::Map,
            Stage::Content,
            Stage::Transform,
            Stage::Send,
        ] {
            counts.stages[stage as usize] = 7_000_000_123;
            report.requests.stages[stage as usize] = StageCounts {
                buckets: std::array::from_fn(|bucket| 1000 + bucket as u64),
                sum: 7_000_000_123,
            };
        }
        let route = format!("{name} {number}");
        report.requests.routes.push((route, counts));
    }
    report
}

/// A sample: its name, its labels and the rest of its line.
type Sample = (String, Vec<(String, String)>, String);

/// Reads a line by the grammar of the format.
fn sample(line: &str) -> Sample {
    let name_end = line.find(['{', ' ']).expect("a name");
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label");
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("the end of the value") {
                    (_, '\\') => value.push(match chars.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, c @ ('"' | '\\'))) => c,
                        other => panic!("no escape: {other:?} in {line}"),
                    }),
                    (end, '"') => break end,
                    (_, c) => {
                        assert!(!c.is_control(), "{line:?}");
                        value.push(c);
                    }
                }
            };
            labels.push((label.to_owned(), value));
            let after = &after[end + 1..];
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').expect("a comma between labels");
        }
    }
    let value = rest.strip_prefix(' ').expect("a space before the value");
    (name.to_owned(), labels, value.to_owned())
}

/// All samples of a text, after the checks that hold for every text.
fn samples(text: &[u8]) -> Vec<Sample> {
    let text = std::str::from_utf8(text).expect("it is UTF-8");
    assert!(text.ends_with('\n'));
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    for line in text.split_terminator('\n') {
        if line.starts_with('#') {
            continue;
        }
        let sample = sample(line);
        let number = sample.2.split(' ').next().unwrap_or_default();
        assert!(number.parse::<f64>().is_ok(), "{line:?}");
        assert!(
            seen.insert((sample.0.clone(), sample.1.clone())),
            "twice: {line:?}"
        );
        let known = FAMILIES.iter().find(|family| {
            let suffix = sample.0.strip_prefix(family.name);
            matches!(
                (family.kind, suffix),
                (MetricKind::Counter, Some("_total"))
                    | (MetricKind::Gauge, Some(""))
                    | (MetricKind::Histogram, Some("_bucket" | "_sum" | "_count"))
            )
        });
        let family = known.unwrap_or_else(|| panic!("of no family: {line:?}"));
        let labels = sample.1.iter().map(|(name, _)| &**name);
        let labels: Vec<&str> = labels.filter(|name| *name != "le").collect();
        assert_eq!(labels, family.labels, "{line:?}");
        all.push(sample);
    }
    all
}

#[test]
fn names_are_unique_and_end_with_their_units() {
    let mut names = HashSet::new();
    for MetricFamily {
        name,
        kind,
        unit,
        help,
        labels,
        ..
    } in FAMILIES
    {
        assert!(names.insert(name), "{name}");
        assert!(
            name.starts_with("petrel_") && !name.ends_with("_total"),
            "{name}"
        );
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte == b'2')
        );
        assert!(
            unit.is_empty() || name.ends_with(&format!("_{unit}")),
            "{name}"
        );
        assert!(
            help.ends_with('.') && !help.contains(['\n', '\\']),
            "{name}"
        );
        assert!(
            labels.iter().collect::<HashSet<_>>().len() == labels.len(),
            "{name}"
        );
        assert!(
            *kind != MetricKind::Histogram || *unit == "seconds",
            "{name}"
        );
    }
}

#[test]
fn histograms_add_up_in_both_formats() {
    for format in [Format::Prometheus, Format::OpenMetrics] {
        let mut text = text(&report("mod_a", 3), format);
        if format == Format::OpenMetrics {
            assert!(text.ends_with(b"\n# EOF\n"));
            text.truncate(text.len() - b"# EOF\n".len());
        }
        let mut last: HashMap<(String, Vec<(String, String)>), f64> = HashMap::new();
        for (name, mut labels, value) in samples(&text) {
            let value: f64 = value.parse().expect("no exemplar here");
            if let Some(name) = name.strip_suffix("_bucket") {
                let (label, _) = labels.pop().expect("a bound");
                assert_eq!(label, "le");
                let before = last.insert((name.to_owned(), labels), value);
                assert!(before.is_none_or(|before| before <= value));
            } else if let Some(name) = name.strip_suffix("_count") {
                assert_eq!(last[&(name.to_owned(), labels)], value);
            }
        }
        let durations = last
            .keys()
            .filter(|(name, _)| name == "petrel_request_duration_seconds");
        assert_eq!(durations.count(), 3);
    }
}

#[test]
fn hostile_names_stay_in_their_labels() {
    let name = "a\"} 7\nevil_total{b=\"\\\r\u{0}\u{1b}\u{85}\u{2028}\u{e4}";
    let text = text(&report(name, 2), Format::Prometheus);
    let routes: HashSet<String> = samples(&text)
        .into_iter()
        .filter_map(|(_, labels, _)| labels.into_iter().find(|(label, _)| label == "route"))
        .map(|(_, route)| route)
        .collect();
    assert_eq!(routes.len(), 2);
    let gone = char::REPLACEMENT_CHARACTER;
    let shown = format!("a\"}} 7\nevil_total{{b=\"\\{gone}{gone}{gone}{gone}{gone}\u{e4} 0");
    assert!(routes.contains(&shown), "{routes:?}");
}

#[test]
fn a_client_gets_open_metrics_if_it_prefers_that() {
    for (accept, format) in [
        ("", Format::Prometheus),
        ("*/*", Format::Prometheus),
        ("text/plain", Format::Prometheus),
        ("application/openmetrics-text", Format::OpenMetrics),
        (
            "Application/OpenMetrics-Text; version=1.0.0",
            Format::OpenMetrics,
        ),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::OpenMetrics,
        ),
        (
            "text/plain;q=0.9, application/openmetrics-text;q=0.8",
            Format::Prometheus,
        ),
        ("application/openmetrics-text;q=0", Format::Prometheus),
        ("application/openmetrics-text;q=no", Format::Prometheus),
    ] {
        assert_eq!(format_for(accept.as_bytes()), format, "{accept}");
    }
}

#[tokio::test(flavor = "local")]
async fn requests_are_counted_by_what_answered_them() {
    let tree = Tree::new(&[("a.txt", "a file")]);
    let config = "status.metrics-url = \"/metrics\"\n\
        $HTTP[\"host\"] == \"a.example\" { server.tag = \"a\" }";
    let site = tree.site(config, &[&static_file::MODULE, &MODULE]);
    for target in ["/a.txt", "/a.txt", "/none"] {
        site.get_async(target).await;
    }
    let request =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";
    let answer = site.request_async(request).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.field("Content-Type").as_deref(),
        Some(OPEN_METRICS_TYPE)
    );
    assert_eq!(answer.field("Vary").as_deref(), Some("Accept"));
    let text = String::from_utf8(answer.body().to_vec()).expect("it is UTF-8");
    for line in [
        "petrel_request_duration_seconds_count{route=\"mod_staticfile\",code=\"2xx\"} 2\n",
        "petrel_stage_duration_seconds_count{stage=\"content\"} ",
        "petrel_route_stage_seconds_total{route=\"mod_staticfile\",stage=\"content\"} 0.",
        "petrel_host_requests_total{host=\"a.example\",code=\"2xx\"} 2\n",
        "petrel_host_requests_total{host=\"a.example\",code=\"4xx\"} 1\n",
        "# TYPE petrel_tls_handshakes counter\n",
        "petrel_tls_handshakes_total{result=\"resumed\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(text.contains(" # {request_id=\""), "{text}");
    assert!(text.ends_with("\n# EOF\n"));
    let again = site.get_async("/metrics").await;
    assert_eq!(
        again.field("Content-Type").as_deref(),
        Some(PROMETHEUS_TYPE)
    );
    samples(again.body());
}
