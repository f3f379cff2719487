use std::fs::File;
use std::os::unix::fs::MetadataExt;

use super::*;

const MODULES: [&str; 2] = ["mod_a", "mod_b"];

/// A worker's counts, and those of all workers.
fn worker(metrics: &Metrics) -> Arc<WorkerMetrics> {
    metrics.name_hosts(["a.example", "b.example"].into_iter());
    metrics.of_next_worker(MODULES.into_iter())
}

/// A ledger with these stages.
fn ledger(stages: &[(Stage, Nanos)]) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.start(1_000);
    let mut now = 1_000;
    for (stage, nanos) in stages {
        now += nanos;
        ledger.stamp(*stage, now);
    }
    ledger
}

fn end(own: &WorkerMetrics, route: Route, class: StatusClass, ledger: &Ledger) {
    let ended = EndedRequest {
        id: RequestId::from_bits(ledger.total()),
        route,
        host: Host::named(1),
        class,
        ledger,
        sent_bytes: 100,
        received_bytes: 7,
    };
    if own.count(&ended) {
        own.count_top(b"h", b"/p", 100, ledger.total());
    }
}

#[test]
fn what_workers_count_is_added_up_by_route_class_and_stage() {
    let metrics = Metrics::new(SharedMemory::private());
    let (one, other) = (worker(&metrics), worker(&metrics));
    let b = Route::of_module(1);
    let fast = ledger(&[(Stage::Parse, 1_000), (Stage::Send, 9_000)]);
    let slow = ledger(&[(Stage::Parse, 1_000), (Stage::Lua, 3_000_000_000)]);
    end(&one, b, StatusClass::Successful, &fast);
    end(&other, b, StatusClass::Successful, &slow);
    end(&other, b, StatusClass::Aborted, &fast);
    end(&one, Route::CORE, StatusClass::ClientError, &fast);
    let snapshot = metrics.snapshot(0);
    let names: Vec<&str> = snapshot.routes.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["mod_b", CORE], "mod_a has answered nothing");
    let totals = &snapshot.routes[0].1;
    assert_eq!(totals.classes, [0, 2, 0, 0, 0, 1]);
    assert_eq!(totals.latency.requests(), 3);
    assert_eq!(totals.latency.sum, 3_000_021_000);
    assert_eq!(totals.latency.max, 3_000_001_000);
    assert_eq!(totals.latency.percentile(99), Some(3_000_001_000));
    assert_eq!(snapshot.routes[1].1.latency.max, 10_000, "of its own");
    assert_eq!((totals.sent_bytes, totals.received_bytes), (300, 21));
    assert_eq!(totals.stages[Stage::Parse as usize], 3_000);
    assert_eq!(snapshot.top_paths[0].requests, 4);

    let histograms = metrics.histograms();
    let names: Vec<&str> = histograms.routes.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["mod_b", CORE], "mod_a has answered nothing");
    let counts = &histograms.routes[0].1;
    let classes: Vec<StatusClass> = counts.classes.iter().map(|counts| counts.class).collect();
    assert_eq!(classes, [StatusClass::Successful, StatusClass::Aborted]);
    let good = &counts.classes[0];
    assert_eq!(
        (good.latency.requests(), good.latency.sum),
        (2, 3_000_011_000)
    );
    assert_eq!((good.sent_bytes, good.received_bytes), (200, 14));
    assert_eq!(counts.stages[Stage::Parse as usize], 3_000);
    let of_all = |stage: Stage| {
        let counts = &histograms.stages[stage as usize];
        (counts.requests(), counts.sum)
    };
    assert_eq!(of_all(Stage::Parse), (4, 4_000));
    assert_eq!(of_all(Stage::Lua), (1, 3_000_000_000));
    assert_eq!(of_all(Stage::Cache), (0, 0));
    let mut fine = FineCounts::default();
    snapshot
        .routes
        .iter()
        .for_each(|(_, totals)| fine.add(&totals.latency));
    let mut exported = [0; LATENCY_BUCKETS];
    let classes = histograms
        .routes
        .iter()
        .flat_map(|(_, counts)| &counts.classes);
    for counts in classes {
        let sums = exported.iter_mut().zip(counts.latency.buckets);
        sums.for_each(|(sum, count)| *sum += count);
    }
    assert_eq!(fine.exported().buckets, exported);
    let exemplar = good.exemplar.expect("the slow one");
    assert_eq!(exemplar.id, RequestId::from_bits(3_000_001_000));
    assert_eq!(good.latency.buckets[exemplar.bucket()], 1);
    assert_eq!(histograms.hosts.len(), 1);
    assert_eq!(&*histograms.hosts[0].0, "b.example");
    assert_eq!(histograms.hosts[0].1.sent_bytes, 400);
}

/// A class that one worker has and another has not gets its place, and a request without time is one.
#[test]
fn classes_of_several_workers_are_merged_in_order() {
    let metrics = Metrics::new(SharedMemory::private());
    let (one, other) = (worker(&metrics), worker(&metrics));
    let (fast, none) = (ledger(&[(Stage::Parse, 1_000)]), ledger(&[]));
    end(&one, Route::CORE, StatusClass::Successful, &fast);
    end(&one, Route::CORE, StatusClass::Aborted, &none);
    end(&other, Route::CORE, StatusClass::ClientError, &fast);
    end(&other, Route::CORE, StatusClass::Successful, &fast);
    let histograms = metrics.histograms();
    let classes = histograms.routes[0].1.classes.iter();
    let classes: Vec<_> = classes
        .map(|counts| (counts.class.name(), counts.latency.requests()))
        .collect();
    assert_eq!(classes, [("2xx", 2), ("4xx", 1), ("aborted", 1)]);
    assert_eq!(metrics.routes()[0].1.classes, [0, 2, 0, 1, 0, 1]);
}

#[test]
fn each_second_has_what_was_counted_since_the_one_before() {
    let metrics = Metrics::new(SharedMemory::private());
    let own = worker(&metrics);
    let lagged = ledger(&[(Stage::Lag, 5_000), (Stage::Parse, 1_000)]);
    end(&own, Route::CORE, StatusClass::Successful, &lagged);
    own.publish(&metrics, 11, WorkerGauges::default());
    let longest = |second: &Second| second.totals.latency.max;
    end(
        &own,
        Route::CORE,
        StatusClass::ServerError,
        &ledger(&[(Stage::Parse, 2_000)]),
    );
    end(
        &own,
        Route::CORE,
        StatusClass::ServerError,
        &ledger(&[(Stage::Parse, 2_000)]),
    );
    let gauges = WorkerGauges {
        begun_per_s: 4,
        ..WorkerGauges::default()
    };
    own.publish(&metrics, 12, gauges);
    let snapshot = metrics.snapshot(13_000_000_000);
    assert_eq!(snapshot.first_second, 10);
    let seconds = &snapshot.seconds;
    let requests: Vec<u64> = seconds
        .iter()
        .map(|second| second.totals.requests())
        .collect();
    assert_eq!(requests, [1, 2]);
    assert_eq!((seconds[0].begun, seconds[1].begun), (0, 4));
    assert_eq!((seconds[0].lag_max, seconds[1].lag_max), (5_000, 0));
    assert_eq!(seconds[1].totals.stages[Stage::Parse as usize], 4_000);
    assert_eq!(
        seconds[1].totals.classes[StatusClass::ServerError as usize],
        2
    );
    assert_eq!(seconds[1].totals.latency.requests(), 2);
    assert_eq!((longest(&seconds[0]), longest(&seconds[1])), (6_000, 2_000));
    assert_eq!(seconds[1].totals.latency.percentile(50), Some(2_000));
    assert_eq!(seconds[1].totals.latency.sum, 4_000);
    assert_eq!(snapshot.routes[0].1.latency.max, 6_000, "since the start");
    let state = &metrics.workers()[0];
    assert_eq!((state.requests, state.requests_per_s), (3, 2));
}

#[test]
fn a_busy_worker_looks_at_a_part_of_its_requests_for_the_most_frequent_names() {
    let metrics = Metrics::new(SharedMemory::private());
    let own = worker(&metrics);
    let ended = ledger(&[(Stage::Parse, 1_000)]);
    let end_many = |count: u32| {
        for _ in 0..count {
            end(&own, Route::CORE, StatusClass::Successful, &ended);
        }
        own.publish(&metrics, 1, WorkerGauges::default());
        metrics.snapshot(0).top_paths[0].requests
    };
    let busy = 100 * limits::TOP_SAMPLES_PER_S;
    assert_eq!(end_many(busy), u64::from(busy), "not yet known to be busy");
    let both = end_many(busy);
    let expected = u64::from(2 * busy);
    assert!(both.abs_diff(expected) <= 101, "{both} {expected}");
    let looked_at = own.sample_weight.load(Relaxed);
    assert_eq!(looked_at, 101);
}

#[test]
fn memory_is_allocated_when_a_route_is_first_used() {
    let metrics = Metrics::new(SharedMemory::private());
    let own = worker(&metrics);
    for number in 0..10_000 {
        metrics.detailed_route(Route::of_module(0), &format!("/{number}"));
    }
    assert_eq!(own.routes.all().count(), 0);
    let last = metrics.detailed_route(Route::of_module(0), "/9999");
    end(
        &own,
        last,
        StatusClass::Successful,
        &ledger(&[(Stage::Parse, 1)]),
    );
    assert_eq!(own.routes.all().count(), 1);
    assert_eq!(&*metrics.snapshot(0).routes[0].0, "mod_a /9999");
}

/// Each route has requests in four octaves. Looking at the counts takes no memory.
#[test]
fn a_route_takes_memory_only_for_times_that_it_has_seen() {
    for (count, bytes_max) in [(10, 64 << 10), (1_000, 3 << 20)] {
        let (keeper, descriptor) = SharedMemory::create(4 * ARENA_BYTES).expect("memfd");
        let metrics = Metrics::new(keeper.beside(Vec::new()));
        let own = worker(&metrics);
        for number in 0..count {
            let route = metrics.detailed_route(Route::of_module(0), &format!("/{number}"));
            for nanos in [30_000, 500_000, 3_000_000, 2_300_000_000] {
                let ended = ledger(&[(Stage::Send, nanos)]);
                end(&own, route, StatusClass::Successful, &ended);
            }
        }
        own.publish(&metrics, 9, WorkerGauges::default());
        assert_eq!(metrics.snapshot(0).routes.len(), count);
        assert_eq!(metrics.histograms().routes.len(), count);
        let memory = File::from(descriptor).metadata().expect("it is open");
        let bytes = memory.blocks() * 512;
        assert!(bytes < bytes_max, "{count} routes take {bytes} bytes");
    }
}

#[test]
fn what_has_no_room_in_the_arena_is_counted_beside_it() {
    let metrics = Metrics::new(SharedMemory::private());
    let own = worker(&metrics);
    let ended = ledger(&[(Stage::Parse, 1_000)]);
    let count = limits::KEPT_ROUTES_MAX + 10;
    for number in 0..count {
        let route = metrics.detailed_route(Route::of_module(0), &format!("/{number:05}"));
        end(&own, route, StatusClass::Successful, &ended);
    }
    let snapshot = metrics.snapshot(0);
    assert_eq!(snapshot.routes.len(), count);
    assert!(
        snapshot
            .routes
            .iter()
            .all(|(_, counts)| counts.requests() == 1 && counts.latency.max == 1_000)
    );
    assert_eq!(lock(&own.place.beside).len(), 1);
}

#[test]
fn a_worker_counts_on_where_one_of_an_earlier_process_has_stopped() {
    let (keeper, _descriptor) = SharedMemory::create(4 * ARENA_BYTES).expect("memfd");
    let ended = ledger(&[(Stage::Parse, 1_000)]);
    let before = Metrics::new(keeper.beside(Vec::new()));
    let gone = worker(&before);
    end(&gone, Route::of_module(0), StatusClass::Successful, &ended);
    gone.place.arena.disown();
    let after = Metrics::new(keeper.beside(Vec::new()));
    let own = worker(&after);
    end(&own, Route::of_module(0), StatusClass::ServerError, &ended);
    own.publish(&after, 9, WorkerGauges::default());
    let snapshot = after.snapshot(11_000_000_000);
    assert_eq!(snapshot.routes.len(), 1);
    assert_eq!(snapshot.routes[0].1.requests(), 2);
    let latency = &snapshot.routes[0].1.latency;
    assert_eq!((latency.requests(), latency.max), (2, 1_000));
    let stages = after.histograms().stages;
    assert_eq!(stages[Stage::Parse as usize].requests(), 2);
    assert_eq!(after.workers()[0].requests, 1);
    assert_eq!(
        snapshot.seconds[0].totals.requests(),
        1,
        "the other one is old"
    );
    assert_eq!(lock(&after.arenas).len(), 1);
}

#[test]
fn a_class_is_that_of_its_status() {
    for (status, name) in [
        (101, "1xx"),
        (200, "2xx"),
        (304, "3xx"),
        (404, "4xx"),
        (503, "5xx"),
        (999, "5xx"),
    ] {
        assert_eq!(StatusClass::of(status).name(), name);
    }
}
