//! A worker without listeners, and dry runs of requests on it.
//!
//! A dry run uses the parser, the settings and the phase loop of every request
//! ([`crate::exchange::dry_run`]). Only what a connection adds to an answer is missing (Date, Server,
//! framing). `petrel explain` calls this, and the tests of modules send their requests to such a worker.

use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use petrel_proto::http1::Parsed;
use tokio::runtime::{Builder, LocalOptions};

use crate::cause::CauseCode;
use crate::deadlines::Alarm;
use crate::exchange::dry_run::{DryRun, DryRunRecord};
use crate::exchange::{ConnectionFacts, Exchange};
use crate::ledger::Stage;
use crate::log::LogRegistry;
use crate::phase::Walked;
use crate::recorder::SharedMemory;
use crate::run::ExchangeRun;
use crate::settings::{ProcessSettings, SettingsTable};
use crate::shared::Shared;
use crate::worker::{self, Drain, Worker};

/// A worker without listeners.
pub struct OfflineWorker(Rc<Worker>);

impl OfflineWorker {
    /// A worker with these settings, whose counters and records are in `memory`.
    pub fn new(
        settings: SettingsTable,
        process: Arc<ProcessSettings>,
        logs: Arc<LogRegistry>,
        memory: SharedMemory,
    ) -> OfflineWorker {
        let shared = Shared::new(1, OPEN_FILES_MAX).with_memory(memory);
        OfflineWorker(Worker::new(settings, process, Arc::new(shared), logs))
    }

    /// Sends `request`, a head without a body, through the phases as a dry run on a connection with these
    /// `facts`.
    ///
    /// # Errors
    /// The runtime cannot be made, because the process has no descriptor left.
    pub fn dry_run(
        &self,
        facts: &ConnectionFacts,
        request: &[u8],
        dry_run: DryRun,
    ) -> io::Result<DryRunAnswer> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        let mut run = ExchangeRun::new(&self.0, facts.clone());
        run.ledger.start(self.0.clock().now());
        self.begin(&mut run, facts, request, dry_run);
        let mut alarm = Alarm::new(&self.0.deadlines);
        runtime.block_on(async {
            tokio::select! {
                () = poll_fn(|context| poll(&mut run, &mut alarm, context)) => {}
                () = worker::tick(Rc::clone(&self.0)) => unreachable!("the clock never stops"),
            }
        });
        let record = run
            .dry_run()
            .map_or_else(DryRunRecord::default, DryRun::take_record);
        Ok(DryRunAnswer { run, record })
    }

    /// Parses the head and chooses the settings. A wrong head or URL is refused, as by a connection.
    fn begin(
        &self,
        run: &mut ExchangeRun,
        facts: &ConnectionFacts,
        request: &[u8],
        dry_run: DryRun,
    ) {
        let options = run.head_options();
        let refused = match run.request.head.parse(request, &options) {
            Ok(Parsed::Complete { .. }) => None,
            Ok(Parsed::Partial) => Some((
                CauseCode::HeadMalformed,
                "the head is incomplete".to_owned(),
            )),
            Err(error) => Some((CauseCode::of_head(error), error.to_string())),
        };
        if let Some((cause, what)) = refused {
            run.set_dry_run(dry_run);
            run.request.keep_refused_line(request);
            run.settings = run.worker.base_settings();
            return run.refuse_head(Stage::Parse, cause, format_args!("{what}"));
        }
        let parsed = run.begin(&facts.scope(self.0.settings_table()));
        run.set_dry_run(dry_run);
        if let Err(error) = parsed {
            let what = format_args!("the URL is refused: {error}");
            run.refuse_head(Stage::Parse, CauseCode::UrlMalformed, what);
        }
        run.complete_body();
    }
}

fn poll(run: &mut ExchangeRun, alarm: &mut Alarm, context: &mut Context<'_>) -> Poll<()> {
    loop {
        match run.poll_answer(context) {
            Poll::Ready(Walked::Answered) => return Poll::Ready(()),
            Poll::Ready(Walked::NeedBody) => run.complete_body(),
            Poll::Pending => {
                alarm.set(run.due_s(), context);
                return Poll::Pending;
            }
        }
    }
}

impl Deref for OfflineWorker {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.0
    }
}

/// The pooled exchanges hold references to the worker. Draining drops them, so that the worker and its
/// inotify watches end.
impl Drop for OfflineWorker {
    fn drop(&mut self) {
        self.0.drain(Drain::Stop);
    }
}

/// The answer of a dry run.
pub struct DryRunAnswer {
    run: ExchangeRun,
    /// What has happened to the request.
    pub record: DryRunRecord,
}

impl DryRunAnswer {
    /// The request and its response.
    pub fn exchange(&self) -> &Exchange {
        &self.run
    }
}

/// How many files the worker keeps open.
const OPEN_FILES_MAX: usize = 64;
