//! Petrel and lighttpd side by side: the same configuration, tree and requests, and what they answer.
//!
//! A difference is either in the list of `known.rs`, with its reason, or a failure. An entry of the list
//! that no longer occurs is a failure, too.

mod compare;
mod configuration;
mod known;
mod orders;
mod requests;
mod site;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use petrel_tests::{Backend, Differential, Speaks};

use compare::notes;
use configuration::Configuration;
use requests::requests;

/// Configurations that run at the same time.
const THREADS: usize = 2;

/// What the backend tells of a request.
const VARIABLES: [&str; 16] = [
    "REQUEST_METHOD",
    "REQUEST_URI",
    "SCRIPT_NAME",
    "PATH_INFO",
    "QUERY_STRING",
    "SCRIPT_FILENAME",
    "PATH_TRANSLATED",
    "DOCUMENT_ROOT",
    "REDIRECT_URI",
    "REDIRECT_STATUS",
    "SERVER_NAME",
    "REMOTE_ADDR",
    "HTTP_HOST",
    "HTTPS",
    "ADDED",
    "HTTP_X_FORWARDED_FOR",
];

/// What one request showed.
struct Finding {
    configuration: String,
    request: String,
    note: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            configuration,
            request,
            note,
        } = self;
        write!(formatter, "{configuration}: {request}: {note}")
    }
}

/// It takes so long because both servers start with each of some thirty configurations, and answer many requests.
#[test]
fn generated_requests_are_answered_alike_but_for_the_list() {
    let configurations = Configuration::all();
    assert!(configurations.len() >= 30, "{}", configurations.len());
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let told = VARIABLES.map(|name| {
            format!(
                "{name}={}\n",
                exchange.request().param(name).unwrap_or("unset")
            )
        });
        exchange.say(&told.concat());
    });
    let findings = at_the_same_time(&configurations, |one| differences(one, &backend));
    if petrel_tests::is_installed("lighttpd") {
        let complaints = known::complaints(&findings);
        let text = complaints.join("\n");
        assert!(
            complaints.is_empty(),
            "{} complaints:\n{text}",
            complaints.len()
        );
    }
}

/// What `find` finds in each of `items`, [`THREADS`] of which it has at the same time.
fn at_the_same_time<T: Sync, F: Send>(items: &[T], find: impl Fn(&T) -> Vec<F> + Sync) -> Vec<F> {
    let (next, findings) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(one) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = find(one);
                    findings
                        .lock()
                        .expect("no thread panics with it")
                        .extend(found);
                }
            });
        }
    });
    findings.into_inner().expect("no thread panics with it")
}

/// Asks both servers everything under one configuration. `backend` is the one of both.
fn differences(configuration: &Configuration, backend: &Backend) -> Vec<Finding> {
    let text = configuration
        .text
        .replace("\"socket\" => \"FASTCGI\"", &backend.host());
    let Some(both) = Differential::start(&text, site::make) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for request in requests(configuration) {
        let [ours, theirs] = both.servers().map(|server| request.send_to(server));
        for note in notes(&ours, &theirs) {
            findings.push(Finding {
                configuration: configuration.name.clone(),
                request: request.to_string(),
                note,
            });
        }
    }
    findings
}
