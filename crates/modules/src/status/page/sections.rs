//! The sections of the page, from the figures at the top to the tables.

use std::fmt::Write;

use petrel_engine::ledger::Stage;

use super::chart;
use super::markup::{
    Text, bar, begin_table, column, end_table, number, stacked, stage_class, track,
};
use crate::status::model::{
    BackendStatus, FpmStatus, Percentiles, RequestStatus, RouteStatus, Status, mean_of_last,
};
use crate::status::text::{Age, Bytes, Micros, Percent, ShownCount, span};

/// Everything in `<body>` after the head line.
pub(super) fn write(out: &mut String, status: &Status, can_sort: bool) {
    header(out, status);
    out.push_str("<main>");
    figures(out, status);
    time(out, status, can_sort);
    latency(out, status);
    slowest(out, status);
    backends(out, status, can_sort);
    workers(out, status, can_sort);
    disks(out, status, can_sort);
    traffic(out, status, can_sort);
    out.push_str("</main>");
    footer(out);
}

/// What follows the head line, which names the host.
fn header(out: &mut String, status: &Status) {
    let server = &status.server;
    let _ = write!(
        out,
        "<p id=\"facts\">{} · up {} · configuration {} · pid {}{}</p>\
         <p id=\"live\" data-own><span id=\"state\" role=\"status\">still</span> \
         <button id=\"pause\" type=\"button\" aria-pressed=\"false\" hidden>Pause</button></p></header>",
        Text(&server.version),
        Age(server.uptime_s),
        server.generation,
        server.pid,
        match server.is_draining {
            true => " · <strong>draining: a newer configuration serves</strong>",
            false => "",
        }
    );
    out.push_str("<nav aria-label=\"Sections\">");
    for (id, title) in SECTIONS {
        let _ = write!(out, "<a href=\"#{id}\">{title}</a>");
    }
    out.push_str("</nav>");
}

fn begin(out: &mut String, id: &str, lead: &str) {
    let title = SECTIONS.iter().find(|(known, _)| *known == id);
    let title = title.map_or(id, |(_, title)| title);
    let _ = write!(
        out,
        "<section id=\"{id}\" data-key=\"{id}\"><h2>{title}</h2><p class=\"lead\">{lead}</p>"
    );
}

fn end(out: &mut String) {
    out.push_str("</section>");
}

/// A number at the top, what it is with the time that it is about, and how it was.
fn figure(
    out: &mut String,
    (title, span): (&str, &str),
    value: &str,
    more: &str,
    over_time: &[u64],
) {
    let _ = write!(
        out,
        "<div class=\"figure\"><dt>{title}, {span}</dt><dd><b>{value}</b> <span>{more}</span></dd>"
    );
    chart::line(out, over_time);
    out.push_str("</div>");
}

fn figures(out: &mut String, status: &Status) {
    let (seconds, totals) = (&status.seconds, &status.totals);
    let recent = |values: &[u64]| mean_of_last(values, RECENT_S);
    let minute = |values: &[u64]| values.iter().rev().take(60).sum::<u64>();
    out.push_str("<dl class=\"figures\">");
    figure(
        out,
        ("Requests ended/s", span::SECONDS),
        &ShownCount(recent(&seconds.requests)).to_string(),
        &format!(
            "{} begun/s; {} ended {}",
            ShownCount(recent(&seconds.begun)),
            ShownCount(totals.requests as f64),
            span::START
        ),
        &seconds.requests,
    );
    figure(
        out,
        ("Sent/s", span::SECONDS),
        &Bytes(recent(&seconds.sent_bytes)).to_string(),
        &format!("{} {}", Bytes(totals.sent_bytes as f64), span::START),
        &seconds.sent_bytes,
    );
    let minute_times = status.latency.minute;
    let time = |of: fn(Percentiles) -> u64| {
        minute_times.map_or("–".to_owned(), |times| Micros(of(times)).to_string())
    };
    figure(
        out,
        ("99 % within", span::MINUTE),
        &time(|times| times.p99_us),
        &format!("half within {}", time(|times| times.p50_us)),
        &seconds.p99_us,
    );
    let classes = &seconds.status;
    figure(
        out,
        ("Failed", span::MINUTE),
        &ShownCount(minute(&classes.server_errors) as f64).to_string(),
        &format!(
            "{} aborted, {} 4xx",
            ShownCount(minute(&classes.aborted) as f64),
            ShownCount(minute(&classes.client_errors) as f64)
        ),
        &classes.server_errors,
    );
    figure(
        out,
        ("Open requests", span::NOW),
        &ShownCount(totals.open_requests as f64).to_string(),
        &format!(
            "{} of {} connections",
            ShownCount(totals.connections as f64),
            ShownCount(totals.connections_max as f64)
        ),
        &seconds.open_requests,
    );
    let lag = seconds.lag_max_us.iter().rev().take(RECENT_S).max();
    figure(
        out,
        ("Worst lag", span::SECONDS),
        &Micros(lag.copied().unwrap_or(0)).to_string(),
        &format!(
            "{} last 5 min",
            Micros(seconds.lag_max_us.iter().copied().max().unwrap_or(0))
        ),
        &seconds.lag_max_us,
    );
    out.push_str("</dl>");
}

fn time(out: &mut String, status: &Status, can_sort: bool) {
    begin(
        out,
        "time",
        "How many requests were in each stage at once, on the average of a second.",
    );
    chart::stages(out, status);
    out.push_str("<p class=\"readout\" data-own aria-live=\"polite\"></p>");
    chart::legend(out, status);
    routes(out, status, can_sort);
    end(out);
}

fn routes(out: &mut String, status: &Status, can_sort: bool) {
    let columns = [
        column("Route, and the stages of its time", "name bars"),
        column("Ended/s", "n rate").over(span::TEN_SECONDS),
        column("Ended", "n").over(span::START),
        column("Half", "n wide").over(span::START),
        column("99 %", "n").over(span::START),
        column("Failed", "n wide").over(span::START),
        column("Aborted", "n wide").over(span::START),
        column("Sent", "n wide").over(span::START),
        column("Time", "n").over(span::START),
    ];
    begin_table(out, "routes", "What answered", &columns, can_sort);
    let all: u64 = status.routes.iter().map(|route| route.time_us).sum();
    let shown = status.routes.len().min(ROUTES_SHOWN);
    let (first, others) = status.routes.split_at(shown);
    for route in first {
        route_row(out, route, all);
    }
    if !others.is_empty() {
        route_row(out, &sum_of(others), all);
    }
    end_table(out);
}

fn route_row(out: &mut String, route: &RouteStatus, all: u64) {
    let name = Text(&route.route);
    let (parts, rest) = stacked(&route.stage_us, route.time_us);
    let _ = write!(
        out,
        "<tr data-key=\"{name}\"><th scope=\"row\" class=\"name bars\"><bdi>{name}</bdi>"
    );
    let mut pieces: Vec<(String, u64)> = parts
        .iter()
        .map(|(stage, time)| (stage_class(stage.name()), *time))
        .collect();
    pieces.push(("s-none".to_owned(), rest));
    let whole = pieces.iter().map(|(_, time)| time).sum();
    bar(out, &pieces, whole);
    let mut largest = parts;
    largest.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    out.push_str("<span class=\"quiet\">");
    for (index, (stage, time)) in largest.iter().take(3).enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let part = Percent(*time, route.time_us).to_string();
        let part = part.replace(' ', "\u{a0}");
        let _ = write!(out, "{separator}{} {part}", stage.name());
    }
    let _ = write!(
        out,
        "</span></th><td class=\"n rate\" data-count=\"{}\">–</td>",
        route.requests
    );
    number(out, "n", ShownCount(route.requests as f64), route.requests);
    let times = route.percentiles;
    time_cell(out, "n wide", times.map(|times| times.p50_us));
    time_cell(out, "n", times.map(|times| times.p99_us));
    for count in [route.status.server_errors, route.status.aborted] {
        number(out, "n wide", ShownCount(count as f64), count);
    }
    number(
        out,
        "n wide",
        Bytes(route.sent_bytes as f64),
        route.sent_bytes,
    );
    number(out, "n", Percent(route.time_us, all), route.time_us);
    out.push_str("</tr>");
}

/// Several routes as one.
fn sum_of(routes: &[RouteStatus]) -> RouteStatus {
    let mut sum = RouteStatus {
        route: format!("({} others)", routes.len()),
        ..RouteStatus::default()
    };
    for route in routes {
        sum.requests += route.requests;
        sum.sent_bytes += route.sent_bytes;
        sum.time_us += route.time_us;
        sum.status.server_errors += route.status.server_errors;
        sum.status.aborted += route.status.aborted;
        sum.stage_us.add(&route.stage_us);
    }
    sum
}

fn time_cell(out: &mut String, class: &str, time: Option<u64>) {
    match time {
        Some(time) => number(out, class, Micros(time), time),
        None => number(out, class, "–", 0),
    }
}

fn latency(out: &mut String, status: &Status) {
    begin(
        out,
        "latency",
        "Each column is five seconds. The stronger the colour of a field, the more requests took that long.",
    );
    chart::latency(out, status);
    out.push_str("<p class=\"readout\" data-own aria-live=\"polite\"></p>");
    end(out);
}

fn slowest(out: &mut String, status: &Status) {
    begin(
        out,
        "slowest",
        "The slowest requests of each host in the last hour, with their stages and what held them up. \
         <code>petrel why ID</code> tells more of one.",
    );
    if status.slowest.is_empty() {
        out.push_str("<p class=\"none\">None yet.</p>");
    }
    let (first, others) = status
        .slowest
        .split_at(status.slowest.len().min(SLOWEST_SHOWN));
    out.push_str("<ol class=\"slow\" data-key=\"slow\">");
    for request in first {
        slow_request(out, status, request);
    }
    out.push_str("</ol>");
    if !others.is_empty() {
        let _ = write!(
            out,
            "<details data-key=\"slower\"><summary>{} more</summary><ol class=\"slow\">",
            others.len()
        );
        for request in others {
            slow_request(out, status, request);
        }
        out.push_str("</ol></details>");
    }
    end(out);
}

fn slow_request(out: &mut String, status: &Status, request: &RequestStatus) {
    let total = request.time_us;
    let age_s = status.server.now_ms.saturating_sub(request.ended_ms) / 1_000;
    let cause = request.cause.as_ref();
    let cause = cause.map_or(String::new(), |cause| format!("{cause} · "));
    let code_class = if request.status >= 500 {
        " class=\"bad\""
    } else {
        ""
    };
    let _ = write!(
        out,
        "<li data-key=\"{id}\"><h3><b>{time}</b> <span{code_class}>{status}{aborted}</span> {method} <bdi>{path}</bdi></h3>\
         <p class=\"quiet\"><bdi>{host}</bdi> · from {client} · {route} · {cause}{age} ago · <code>{id}</code></p>",
        id = Text(&request.id),
        time = Micros(total),
        status = request.status,
        aborted = if request.is_aborted { ", aborted" } else { "" },
        method = Text(&request.method),
        path = Text(&request.path),
        host = Text(&request.host),
        client = Text(&request.client),
        route = Text(&request.route),
        cause = Text(&cause),
        age = Age(age_s),
    );
    out.push_str("<dl class=\"fall\">");
    let (mut at, mut small, mut small_count) = (0, 0, 0);
    for stage in Stage::ALL {
        let name = stage.name();
        let time = request.stage_us.of(*stage);
        if time == 0 {
            continue;
        }
        match time * 100 < total {
            true => {
                small += time;
                small_count += 1;
            }
            false => fall(out, name, &stage_class(name), (at, at + time), total),
        }
        at += time;
    }
    if request.unattributed_us * 100 >= total.max(1) {
        let to = at + request.unattributed_us;
        fall(out, "no stage", "s-none", (at, to), total);
    }
    if small_count > 0 {
        let _ = write!(
            out,
            "<div><dt>{small_count} short ones</dt><dd></dd><dd class=\"n\">{}</dd></div>",
            Micros(small)
        );
    }
    out.push_str("</dl>");
    if !request.waits.is_empty() {
        out.push_str("<ul class=\"waits\">");
        for wait in &request.waits {
            let _ = write!(
                out,
                "<li><span class=\"key {}\"></span>{} {}: <bdi>{}</bdi></li>",
                stage_class(&wait.stage),
                Text(&wait.stage),
                Micros(wait.time_us),
                Text(&wait.holder)
            );
        }
        out.push_str("</ul>");
    }
    out.push_str("</li>");
}

/// One stage of a waterfall.
fn fall(out: &mut String, name: &str, class: &str, (from, to): (u64, u64), total: u64) {
    let _ = write!(out, "<div><dt>{name}</dt><dd>");
    track(out, class, from, to, total);
    let _ = write!(out, "</dd><dd class=\"n\">{}</dd></div>", Micros(to - from));
}

fn backends(out: &mut String, status: &Status, can_sort: bool) {
    begin(
        out,
        "backends",
        "Connections to applications, and the requests that have them.",
    );
    if status.backends.is_empty() {
        out.push_str("<p class=\"none\">No backends are configured, or none was needed yet.</p>");
        return end(out);
    }
    let (troubled, calm): (Vec<_>, Vec<_>) = status
        .backends
        .iter()
        .partition(|backend| backend.is_troubled());
    let mut sorted = troubled;
    sorted.sort_by_key(|backend| std::cmp::Reverse((backend.waiting, backend.connections)));
    sorted.extend(calm);
    let shown = sorted.len().min(BACKENDS_SHOWN);
    let (first, others) = sorted.split_at(shown);
    backend_table(out, "backends", first, can_sort);
    if !others.is_empty() {
        let _ = write!(
            out,
            "<details data-key=\"more-backends\"><summary>{} more</summary>",
            others.len()
        );
        backend_table(out, "more-backends", others, can_sort);
        out.push_str("</details>");
    }
    end(out);
}

fn backend_table(out: &mut String, name: &str, backends: &[&BackendStatus], can_sort: bool) {
    let columns = [
        column("Backend", "name"),
        column("State", ""),
        column("Connections", "meter").over(span::NOW),
        column("Waiting", "n").over(span::NOW),
        column("Requests", "n wide").over(span::START),
        column("First byte, half", "n wide").over(span::START),
        column("99 %", "n wide").over(span::START),
        column("Failed", "n wide").over(span::START),
    ];
    begin_table(out, name, "Backends", &columns, can_sort);
    for backend in backends {
        backend_row(out, backend);
    }
    end_table(out);
}

fn backend_row(out: &mut String, backend: &BackendStatus) {
    let (label, address) = (Text(&backend.label), Text(&backend.address));
    let class = match backend.state.as_str() {
        "up" => "good",
        "down" => "bad",
        _ => "fair",
    };
    let _ = write!(
        out,
        "<tr data-key=\"{label} {address}\"><th scope=\"row\" class=\"name\"><bdi>{label}</bdi>\
         <span class=\"quiet\"><bdi>{address}</bdi> · {}</span></th>\
         <td><span class=\"state {class}\">{}</span></td>",
        Text(&backend.route),
        Text(&backend.state),
    );
    let open = backend.connections;
    let _ = write!(out, "<td class=\"meter\" data-v=\"{open}\">");
    match backend.limit {
        Some(limit) => {
            let _ = write!(out, "<span>{open} of {limit}</span>");
            let class = if open >= limit {
                "s-lag"
            } else {
                "s-backend-first-byte"
            };
            let rest = limit.saturating_sub(open);
            bar(
                out,
                &[(class.to_owned(), open), ("s-empty".to_owned(), rest)],
                open + rest,
            );
        }
        None => {
            let _ = write!(out, "<span>{open}</span>");
        }
    }
    let held_by = backend.held_by();
    if !held_by.is_empty() {
        out.push_str("<ul class=\"holders\">");
        for (path, count, oldest) in held_by.iter().take(HOLDERS_SHOWN) {
            let _ = write!(
                out,
                "<li>{count}× <bdi>{}</bdi> <span class=\"quiet\">oldest {}, {}</span></li>",
                Text(path),
                Micros(oldest.age_ms.saturating_mul(1_000)),
                Text(&oldest.client)
            );
        }
        if held_by.len() > HOLDERS_SHOWN {
            let _ = write!(
                out,
                "<li class=\"quiet\">{} other paths</li>",
                held_by.len() - HOLDERS_SHOWN
            );
        }
        out.push_str("</ul>");
    }
    if let Some(fpm) = &backend.fpm {
        fpm_list(out, fpm);
    }
    out.push_str("</td>");
    let class = if backend.waiting > 0 { "n bad" } else { "n" };
    number(out, class, backend.waiting, backend.waiting);
    number(
        out,
        "n wide",
        ShownCount(backend.requests as f64),
        backend.requests,
    );
    let times = backend.first_byte_percentiles;
    time_cell(out, "n wide", times.map(|times| times.p50_us));
    time_cell(out, "n wide", times.map(|times| times.p99_us));
    let failed = backend.died + backend.overloaded;
    number(out, "n wide", ShownCount(failed as f64), failed);
    out.push_str("</tr>");
}

/// The children of php-fpm, and the scripts that have been running for longest.
fn fpm_list(out: &mut String, fpm: &FpmStatus) {
    let line = fpm.to_string();
    let _ = write!(
        out,
        "<ul class=\"holders\"><li><bdi>{}</bdi></li>",
        Text(&line)
    );
    for script in fpm.pool.iter().flat_map(|pool| &pool.scripts) {
        let _ = write!(
            out,
            "<li><bdi>{}</bdi> <span class=\"quiet\">{}, process {}</span></li>",
            Text(&script.name()),
            Micros(script.age_us),
            script.pid
        );
    }
    if let Some(advice) = &fpm.advice {
        let _ = write!(out, "<li>{}</li>", Text(advice));
    }
    out.push_str("</ul>");
}

fn workers(out: &mut String, status: &Status, can_sort: bool) {
    begin(
        out,
        "workers",
        "A request lags when it is ready and its worker runs another task. A turn is the time from one \
         look for new events to the next. A worker works for one request at a time: the last column has \
         the last one, until it has ended.",
    );
    let columns = [
        column("Worker", "n first"),
        column("Ended/s", "n").over(span::SECOND),
        column("Begun/s", "n wide").over(span::SECOND),
        column("Connections", "n wide").over(span::NOW),
        column("Open requests", "n wide").over(span::NOW),
        column("Lag, worst", "n").over(span::SECOND),
        column("Turn, longest", "n wide").over(span::SECOND),
        column("Last kept busy by", "name"),
        column("Works for", "name wide"),
    ];
    begin_table(out, "workers", "Workers", &columns, can_sort);
    for worker in &status.workers {
        let _ = write!(out, "<tr data-key=\"{}\">", worker.worker);
        number(out, "n first", worker.worker, worker.worker);
        for (class, rate) in [("n", worker.requests_per_s), ("n wide", worker.begun_per_s)] {
            number(out, class, ShownCount(rate as f64), rate);
        }
        number(out, "n wide", worker.connections, worker.connections);
        number(out, "n wide", worker.open_requests, worker.open_requests);
        number(out, "n", Micros(worker.lag_max_us), worker.lag_max_us);
        number(
            out,
            "n wide",
            Micros(worker.turn_max_us),
            worker.turn_max_us,
        );
        match &worker.hog {
            Some(hog) => {
                let _ = write!(
                    out,
                    "<td class=\"name\" data-v=\"{}\"><bdi>{}</bdi> <span class=\"quiet\">{} in {}, {} ago</span></td>",
                    hog.ran_us,
                    Text(&hog.what),
                    Micros(hog.ran_us),
                    Text(&hog.stage),
                    Age(hog.ago_ms / 1_000)
                );
            }
            None => out.push_str("<td class=\"name quiet\" data-v=\"0\">none</td>"),
        }
        match &worker.works_for {
            Some(request) => {
                let _ = write!(
                    out,
                    "<td class=\"name wide\" data-v=\"{}\"><bdi>{}</bdi> <span class=\"quiet\">for {}, \
                     <code>{}</code></span></td>",
                    request.time_us,
                    Text(&request.path),
                    Micros(request.time_us),
                    Text(&request.id)
                );
            }
            None => out.push_str("<td class=\"name wide quiet\" data-v=\"0\">none</td>"),
        }
        out.push_str("</tr>");
    }
    end_table(out);
    end(out);
}

fn disks(out: &mut String, status: &Status, can_sort: bool) {
    begin(
        out,
        "disks",
        "Work that waits for disks, by kind and by file system, and what is kept in memory.",
    );
    let columns = [
        column("Work", "name"),
        column("Threads", "n wide").over(span::NOW),
        column("Running", "n").over(span::NOW),
        column("Queued", "n").over(span::NOW),
        column("Stuck", "n").over(span::NOW),
        column("Jobs", "n wide").over(span::START),
        column("Waited, mean", "n wide").over(span::START),
        column("Ran, mean", "n wide").over(span::START),
        column("Ran, worst", "n").over(span::START),
    ];
    begin_table(out, "disk-work", "Disk threads", &columns, can_sort);
    for class in &status.disk.classes {
        let name = Text(&class.name);
        let _ = write!(
            out,
            "<tr data-key=\"{name}\"><th scope=\"row\" class=\"name\">{name}</th>"
        );
        number(out, "n wide", class.threads, class.threads);
        number(out, "n", class.running, class.running);
        number(out, "n", class.queued, class.queued);
        let stuck_class = if class.stuck > 0 { "n bad" } else { "n" };
        number(out, stuck_class, class.stuck, class.stuck);
        number(out, "n wide", ShownCount(class.jobs as f64), class.jobs);
        let mean = |sum: u64| sum.checked_div(class.jobs).unwrap_or(0);
        number(
            out,
            "n wide",
            Micros(mean(class.wait_us)),
            mean(class.wait_us),
        );
        number(
            out,
            "n wide",
            Micros(mean(class.run_us)),
            mean(class.run_us),
        );
        number(out, "n", Micros(class.run_max_us), class.run_max_us);
        out.push_str("</tr>");
    }
    end_table(out);
    file_systems(out, status, can_sort);
    caches(out, status);
    end(out);
}

fn file_systems(out: &mut String, status: &Status, can_sort: bool) {
    if status.disk.devices.is_empty() {
        out.push_str("<p class=\"none\">No file system has work now.</p>");
        return;
    }
    let columns = [
        column("File system", "name"),
        column("Running", "n").over(span::NOW),
        column("Queued", "n").over(span::NOW),
        column("Oldest", "n").over(span::NOW),
    ];
    begin_table(
        out,
        "file-systems",
        "File systems with work",
        &columns,
        can_sort,
    );
    for device in &status.disk.devices {
        let number_of = Text(&device.device);
        let _ = write!(
            out,
            "<tr data-key=\"{number_of}\"><th scope=\"row\" class=\"name\"><bdi>{}</bdi> \
             <span class=\"quiet\">{} {number_of}</span></th>",
            Text(device.mount.as_deref().unwrap_or("not mounted here")),
            Text(device.kind.as_deref().unwrap_or("")),
        );
        number(out, "n", device.running, device.running);
        number(out, "n", device.queued, device.queued);
        let oldest_us = device.oldest_ms.map(|age| age.saturating_mul(1_000));
        let is_hanging = oldest_us.is_some_and(|age| age >= 1_000_000);
        time_cell(out, if is_hanging { "n bad" } else { "n" }, oldest_us);
        out.push_str("</tr>");
    }
    end_table(out);
}

fn caches(out: &mut String, status: &Status) {
    let caches = &status.caches;
    let files = &caches.files;
    out.push_str("<dl class=\"facts\">");
    let mut fact = |name: &str, value: String| {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    };
    fact(
        "Files in memory",
        Bytes(files.memory_bytes as f64).to_string(),
    );
    fact(
        "Look-ups without a disk",
        Percent(files.cached, files.cached + files.disk).to_string(),
    );
    if let Some(pages) = &caches.pages {
        let count = |name: &str| {
            let name = format!("page-cache.{name}");
            pages.get(&name).copied().unwrap_or(0)
        };
        let hits = count("hits");
        let asked = hits + count("stale") + count("misses");
        fact("Pages from the cache", Percent(hits, asked).to_string());
        fact(
            "Pages kept",
            format!("{}, {}", count("entries"), Bytes(count("bytes") as f64)),
        );
    }
    out.push_str("</dl>");
}

fn traffic(out: &mut String, status: &Status, can_sort: bool) {
    begin(
        out,
        "traffic",
        "Hosts and paths with the most requests, estimated.",
    );
    out.push_str("<div class=\"pair\">");
    for (key, title, list) in [
        ("hosts", "Host", &status.hosts),
        ("paths", "Path", &status.paths),
    ] {
        let columns = [
            column(title, "name"),
            column("Requests", "n").over(span::MINUTES),
            column("Sent", "n").over(span::MINUTES),
            column("Mean", "n").over(span::MINUTES),
        ];
        begin_table(out, key, title, &columns, can_sort);
        for top in list {
            let name = Text(top.name());
            let _ = write!(
                out,
                "<tr data-key=\"{name}\"><th scope=\"row\" class=\"name\"><bdi>{name}</bdi></th>"
            );
            number(out, "n", ShownCount(top.requests as f64), top.requests);
            number(out, "n", Bytes(top.sent_bytes as f64), top.sent_bytes);
            let mean = top.time_us.checked_div(top.requests).unwrap_or(0);
            number(out, "n", Micros(mean), mean);
            out.push_str("</tr>");
        }
        end_table(out);
    }
    out.push_str("</div>");
    end(out);
}

fn footer(out: &mut String) {
    out.push_str(
        "<footer><a href=\"?json\">All of it as JSON</a> <a href=\"?auto\">As text, for scripts</a></footer>",
    );
}

/// The sections, in their order.
const SECTIONS: [(&str, &str); 7] = [
    ("time", "Where the time goes"),
    ("latency", "Latency"),
    ("slowest", "Slowest requests"),
    ("backends", "Backends"),
    ("workers", "Workers"),
    ("disks", "Disks and caches"),
    ("traffic", "Hosts and paths"),
];
/// Seconds of which figures show the mean, as lighttpd.
const RECENT_S: usize = 5;
const ROUTES_SHOWN: usize = 20;
const SLOWEST_SHOWN: usize = 6;
const BACKENDS_SHOWN: usize = 20;
const HOLDERS_SHOWN: usize = 3;
