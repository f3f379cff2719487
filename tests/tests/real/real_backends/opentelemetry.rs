//! The messages of OpenTelemetry's own definition read the traces.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Backend, Server, Speaks, Tree, eventually, is_installed, run, skip};

/// It takes so long because pip installs a package and those that it needs.
#[test]
fn opentelemetry_proto_reads_the_traces() {
    let test = "opentelemetry-proto";
    if !is_installed("python3") {
        return skip(test, "python3 is not installed");
    }
    let tree = Tree::new();
    let Some(packages) = install(&tree) else {
        return skip(test, "pip cannot install opentelemetry-proto");
    };
    let collector = Backend::start_on_tcp(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.answer(200, &[], "");
    });
    let backend = Backend::start(Speaks::Http, |exchange| {
        // The server may have no processor for a part of it.
        exchange.pause(Duration::from_millis(300));
        exchange.answer(500, &[], "x");
    });
    let server = Server::build()
        .config(&format!(
            "server.modules += (\"mod_opentelemetry\")\notel.endpoint = \"http://{}\"\n{}",
            collector.name(),
            backend.directive("/app", "\"check-local\" => \"disable\"")
        ))
        .start();
    assert_eq!(server.get("/app/%22%C3%A9").status, 500);
    assert!(eventually(|| !collector.requests().is_empty()), "no spans");
    let trace = tree.path("trace.json");
    std::fs::write(&trace, &collector.last().body).expect("written");
    let mut command = Command::new("python3");
    command.args(["-c", READ]).arg(&packages).arg(&trace);
    let finished = run(&mut command, Duration::from_secs(300));
    assert!(finished.status.success(), "{}", finished.errors);
    let text = finished.text();
    let told: Vec<_> = text.lines().collect();
    assert_eq!(told[0], "petrel petrel 2");
    assert_eq!(told[1], "GET SPAN_KIND_SERVER STATUS_CODE_ERROR 16 8 0 500");
    assert_eq!(
        told[2],
        "GET SPAN_KIND_CLIENT STATUS_CODE_UNSET 16 8 8 None"
    );
    assert_eq!(
        told[3],
        "ends are not before begins, children have their parent"
    );
}

/// Reads the file strictly: an unknown field or a wrong type is an error. JSON of OTLP has ids in
/// hexadecimal, where protobuf's own JSON has base64.
const READ: &str = r#"
import base64, json, sys
sys.path.insert(0, sys.argv[1])
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
tree = json.load(open(sys.argv[2]))
for span in tree["resourceSpans"][0]["scopeSpans"][0]["spans"]:
    for name in ("traceId", "spanId", "parentSpanId"):
        if name in span:
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
request = json_format.Parse(json.dumps(tree), ExportTraceServiceRequest())
request = ExportTraceServiceRequest.FromString(request.SerializeToString())
spans = request.resource_spans[0].scope_spans[0].spans
service = request.resource_spans[0].resource.attributes[0].value.string_value
print(service, request.resource_spans[0].scope_spans[0].scope.name, len(spans))
for span in spans:
    values = {one.key: one.value for one in span.attributes}
    status = values.get("http.response.status_code")
    print(span.name, Span.SpanKind.Name(span.kind), Status.StatusCode.Name(span.status.code), len(span.trace_id),
        len(span.span_id), len(span.parent_span_id), status and status.int_value)
server, client = spans
assert values["petrel.backend"].string_value
assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
assert client.parent_span_id == server.span_id and client.trace_id == server.trace_id
assert server.start_time_unix_nano <= client.start_time_unix_nano
stages = {one.key: one.value.int_value for one in server.attributes if one.key.startswith("petrel.stage_ns.")}
# On a slow machine the wait for the process may be seen to last for one look too long.
assert stages["petrel.stage_ns.backend-first-byte"] + stages.get("petrel.stage_ns.backend-accept", 0) > 20_000_000, stages
waits = [one.value.array_value.values for one in server.attributes if one.key == "petrel.waits"]
waits = [wait.string_value for wait in waits[0]]
assert any("worked on the request" in wait for wait in waits), waits
print("ends are not before begins, children have their parent")
"#;

/// The directory of the tree that contains the packages.
fn install(tree: &Tree) -> Option<String> {
    let target = tree.path("packages").display().to_string();
    let pip = ["pip3", "pip"].into_iter().find(|pip| is_installed(pip))?;
    let mut command = Command::new(pip);
    command
        .args([
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(["--target", &target, "opentelemetry-proto==1.29.0"]);
    let finished = run(&mut command, Duration::from_secs(300));
    finished.status.success().then_some(target)
}
