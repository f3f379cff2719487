//! `petrel explain URL`: says what the server would do with a request, and why.
//!
//! There is no second implementation of any rule. The request goes through the phases of a worker of this
//! process as a dry run ([`engine::exchange::dry_run`]), twice: the file cache is empty at first, and has
//! what the request needs afterwards. [`request`] makes the request, [`explanation`] reads the record of the
//! dry runs without [`secrets`], [`text`] prints it.

mod explanation;
mod request;
mod secrets;
mod text;

use std::sync::Arc;

use engine::exchange::dry_run::DryRun;
use engine::handed::Handed;
use engine::log::LogRegistry;
use engine::offline::OfflineWorker;
use engine::recorder::SharedMemory;
use engine::settings::SettingsTable;
use modules::openssl::InTheClear;
use nix::unistd::{geteuid, getuid};

use crate::cli;
use crate::load::{self, Loaded, Origin};
use crate::server;
use crate::terminal::{EXIT_FAILURE, fail, print};
use crate::user::Identity;
use explanation::Explanation;
use request::MadeUpRequest;

/// Explains the requests. Returns the exit code.
pub(crate) fn run(options: &cli::Explain) -> u8 {
    let file = match std::path::absolute(&options.file) {
        Ok(file) => file,
        Err(error) => return fail(&format!("{}: {error}", options.file.display())),
    };
    let loaded = match load::load(&Origin::File(file)) {
        Ok(loaded) => loaded,
        Err(errors) => {
            load::print_errors(&errors);
            return EXIT_FAILURE;
        }
    };
    match explain(options, &loaded) {
        Ok(text) => print(text.as_bytes()),
        Err(message) => fail(&format!("explain: {message}")),
    }
}

fn explain(options: &cli::Explain, loaded: &Loaded) -> Result<String, String> {
    let requests = options
        .urls
        .iter()
        .map(|url| MadeUpRequest::new(url, options, &loaded.process));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    become_the_server(loaded)?;
    let mut all = String::new();
    for (index, request) in requests.iter().enumerate() {
        let explanation = explain_one(request, options, loaded)?;
        if options.json {
            all += &serde_json::to_string(&explanation).map_err(|error| error.to_string())?;
            all.push('\n');
            continue;
        }
        if index > 0 {
            all.push('\n');
        }
        all += &text::render(&explanation, options.all);
    }
    Ok(all)
}

/// Takes the user and the root directory that the server has, so that files are as it sees them. Only root
/// can.
fn become_the_server(loaded: &Loaded) -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let identity = Identity::find(&loaded.process)?;
    if let Some(root) = &loaded.process.chroot {
        server::enter(root).map_err(|error| error.to_string())?;
    }
    identity
        .assume()
        .map_err(|error| format!("changing the user: {error}"))
}

fn explain_one(
    request: &MadeUpRequest,
    options: &cli::Explain,
    loaded: &Loaded,
) -> Result<Explanation, String> {
    let logs = Arc::new(LogRegistry::discarding());
    let table = SettingsTable::new(
        Arc::clone(&loaded.config),
        Arc::clone(&loaded.schema),
        loaded.modules.clone(),
        Arc::clone(&logs),
    );
    let handed = Handed::default()
        .with(Arc::clone(&loaded.trusts))
        .with(Arc::new(InTheClear));
    let table = table.with_handed(handed).for_dry_runs();
    let worker = OfflineWorker::new(
        table,
        Arc::clone(&loaded.process),
        logs,
        SharedMemory::private(),
    );
    let facts = request.connection();
    let run = || {
        let dry_run = DryRun::new(options.run_scripts);
        let answer = worker.dry_run(&facts, &request.head, dry_run);
        answer.map_err(|error| error.to_string())
    };
    let (cold, warm) = (run()?, run()?);
    let mut explanation = Explanation::new(request, &cold, &warm, loaded, options.all);
    explanation.remarks.extend(remark_on_user(loaded));
    Ok(explanation)
}

/// Tells that another user than the server's has looked at the files.
fn remark_on_user(loaded: &Loaded) -> Option<String> {
    let user = loaded.process.username.as_ref()?;
    let is_other = match nix::unistd::User::from_name(user) {
        Ok(Some(user)) => user.uid != getuid(),
        _ => false,
    };
    is_other.then(|| {
        format!("files were looked up by you; the server is {user}, who may have other rights")
    })
}
