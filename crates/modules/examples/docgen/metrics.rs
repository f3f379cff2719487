//! Makes the page about metrics from their table; `cargo xtask docs` writes it to `docs/metrics.md`.

use std::fmt::Write;

use petrel_engine::ledger::Stage;
use petrel_modules::status::metrics::{FAMILIES, MetricFamily, MetricKind};

pub(crate) fn page() -> String {
    let mut text = String::from(INTRODUCTION);
    for family in FAMILIES {
        let labels: Vec<String> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let (name, kind) = (shown(family), family.kind.name());
        let (labels, help) = (labels.join(", "), family.help.replace('|', "\\|"));
        writeln!(text, "| `{name}` | {kind} | {labels} | {help} |").expect("writing to a string");
    }
    text.push_str(STAGES);
    for stage in Stage::ALL {
        let (name, meaning) = (stage.name(), stage.meaning());
        writeln!(text, "| `{name}` | {meaning} |").expect("writing to a string");
    }
    text
}

/// The name of the samples.
fn shown(family: &MetricFamily) -> String {
    match family.kind {
        MetricKind::Counter => format!("{}_total", family.name),
        _ => family.name.to_owned(),
    }
}

const INTRODUCTION: &str = r#"# Metrics

Petrel counts requests, their times and stages, its backends, caches, disks and workers, and shows the
counts at a URL in the text format of [Prometheus](https://prometheus.io). Nothing else has to be installed
beside it.

```lighttpd
server.modules += ( "mod_status" )
status.metrics-url = "/metrics"
```

```sh
curl http://127.0.0.1/metrics
```

A client that asks for it (`Accept: application/openmetrics-text`, as Prometheus does) gets OpenMetrics 1.0,
which also has units, and for each route and status class the id of the slowest request of the last half
minute as an exemplar. That id is in the access log and the error log.

A thread for computing makes the text, at most once a second, however many clients ask. No worker's time
goes into it.

## Who may see it

Clients of this machine: those that connect from a loopback address and ask for an address, `localhost`, the name
that `server.name` sets, or a host that a condition names. All others get 403.
So does every request that a proxy has forwarded (`X-Forwarded-For`, `Forwarded`, `X-Real-IP` or `Via` is
there, or the PROXY protocol or mod_extforward names another client), even if the proxy runs on this
machine.

A list of addresses opens the page:

```lighttpd
server.modules += ( "mod_status" )
status.metrics-url = "/metrics"
status.allow = ( "192.0.2.17", "10.1.0.0/16" )
```

For a request that comes through a proxy, the client counts that mod_extforward or the PROXY protocol names;
it has to be in the list. Without these modules it is not known who the client is, and the request gets 403.
Access rules (`url.access-deny`, `auth.require`) apply as well.

## Prometheus

```yaml
scrape_configs:
  - job_name: petrel
    static_configs:
      - targets: ["127.0.0.1:80"]
```

Some questions, and the query that answers each:

| question | query |
|---|---|
| requests a second, by what answers | `sum by (route) (rate(petrel_request_duration_seconds_count[5m]))` |
| how many fail | `sum(rate(petrel_request_duration_seconds_count{code="5xx"}[5m]))` |
| how many answers are cut short, by what answers | `sum by (route) (rate(petrel_request_duration_seconds_count{code="aborted"}[5m]))` |
| the time within which 99 of 100 requests end | `histogram_quantile(0.99, sum by (le) (rate(petrel_request_duration_seconds_bucket[5m])))` |
| where the time goes | `sum by (stage) (rate(petrel_stage_duration_seconds_sum[5m]))` |
| whether `max-connections` is reached | `petrel_pool_connections >= petrel_pool_connections_max` |
| how many children of php-fpm are busy | `sum by (backend) (petrel_fpm_children{state="working"}) / sum by (backend) (petrel_fpm_children)` |
| for how long requests wait for a process of a backend | `sum by (route) (rate(petrel_route_stage_seconds_total{stage="backend-accept"}[5m]))` |
| whether a script blocks a worker | `petrel_worker_turn_max_seconds > 0.02` |
| how much the page cache saves | `rate(petrel_page_cache_saved_seconds_total[5m])` |

## Labels

`route` is what made the response: a module, and where that helps the part of its configuration or the
script: `mod_staticfile`, `mod_fastcgi .php`, `mod_proxy /api`, `mod_magnet /srv/lua/front.lua`. Backends that
stand in a condition have it in their name: `mod_fastcgi .php $HTTP["host"] == "a.example"`. `no-module` are
responses that no module has made. `code` is the status class, `2xx`, or `aborted` if the response could not
be completed, because the client left or the source of the response failed: a download that the client breaks off
counts as `aborted`, and not as `2xx`. `host` is there for hosts that a
condition of the configuration names (`$HTTP["host"] == "www.example.org"`).

No label holds what a client has sent. There are at most 12,000 routes; requests of further ones count for
their module.

Gauges such as `petrel_worker_lag_max_seconds` are about the last second, so a scrape each 15 seconds sees
one second of 15. The [status as JSON](status-json.md) has every second of the last five minutes.

## All metrics

A histogram has the samples `_bucket`, `_sum` and `_count`. The buckets of whole requests and of backends
begin at 8 us and double up to 69 s; those of stages begin at 16 us and go up to 4.3 s by factors of four.
Percentiles from them are as rough as that. The [status page](status-page.md) has better ones, from finer buckets.

| name | type | labels | meaning |
|---|---|---|---|
"#;

const STAGES: &str = r#"
## Stages

| stage | meaning |
|---|---|
"#;
