use petrel_engine::metrics::ClassCounts;
use petrel_engine::testing::Site;
use serde_json::Value;

use super::super::MODULE;
use super::*;
use crate::static_file;
use crate::testing::Tree;

const CONFIG: &str = "status.metrics-url = \"/metrics\"";

async fn status(site: &Site) -> Value {
    let answer = site.get_async("/metrics?json").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.field("Content-Type").as_deref(),
        Some("application/json")
    );
    serde_json::from_slice(answer.body()).expect("it is JSON")
}

#[tokio::test(flavor = "local")]
async fn it_has_what_was_counted() {
    let tree = Tree::new(&[("a.txt", "a file")]);
    let site = tree.site(CONFIG, &[&static_file::MODULE, &MODULE]);
    for target in ["/a.txt", "/a.txt", "/none", "/%ff%22%5c"] {
        site.get_async(target).await;
    }
    let status = status(&site).await;
    assert_eq!(status["format"], FORMAT);
    assert_eq!(status["totals"]["requests"], 4);
    assert_eq!(status["totals"]["status"]["2xx"], 2);
    let routes = status["routes"].as_array().expect("a list");
    let of_files = routes
        .iter()
        .find(|route| route["route"] == "mod_staticfile");
    let of_files = of_files.expect("it has answered");
    assert_eq!(of_files["requests"], 2);
    assert_eq!(of_files["detail"], Value::Null);
    assert!(of_files["stage_us"]["content"].is_u64(), "{of_files}");
    let latency = of_files["latency"].as_array().expect("a list");
    assert_eq!(latency.iter().filter_map(Value::as_u64).sum::<u64>(), 2);
    assert_ne!(latency.last(), Some(&Value::from(0)));
    let paths = status["paths"].as_array().expect("a list");
    let names: Vec<&str> = paths
        .iter()
        .filter_map(|path| path["path"].as_str())
        .collect();
    assert_eq!(names[0], "/a.txt", "the most frequent one");
    assert!(names.contains(&"/none"), "{names:?}");
    assert_eq!(
        status["stages"].as_array().map(Vec::len),
        Some(Stage::ALL.len())
    );
    assert_eq!(status["counters"]["tls.handshakes-full"], 0);
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(1));
}

#[test]
fn routes_beyond_a_number_are_added_up() {
    let mut report = Report::new(&Shared::new(1, 1));
    for number in 0..ROUTES_SHOWN + 5 {
        let mut counts = RouteCounts::default();
        counts.classes[StatusClass::Successful as usize] = ClassCounts {
            latency: LatencyCounts {
                sum: 1_000_000 * (number as u64 + 1),
                buckets: [1; LATENCY_BOUNDS.len() + 1],
            },
            ..ClassCounts::default()
        };
        let name = format!("mod_\"hostile\\\r\n {number}");
        report.requests.routes.push((name.into(), Box::new(counts)));
    }
    let status: Value = serde_json::from_slice(&text(&report)).expect("it is JSON");
    let routes = status["routes"].as_array().expect("a list");
    assert_eq!(routes.len(), ROUTES_SHOWN + 1);
    assert_eq!(routes[0]["detail"], (ROUTES_SHOWN + 4).to_string());
    assert_eq!(routes[0]["module"], "mod_\"hostile\\\r\n");
    let others = &routes[ROUTES_SHOWN];
    assert_eq!(others["route"], OTHERS);
    assert_eq!(others["requests"], 5 * 25);
    assert_eq!(others["time_us"], 15_000);
    let whole = (ROUTES_SHOWN + 5) as u64 * 25;
    assert_eq!(status["totals"]["requests"], whole);
}
