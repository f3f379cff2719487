//! `petrel lua FILE`: runs a script of mod_magnet on a made-up request, and prints what the script did.
//!
//! Nothing is simulated. This process runs a server with one worker and a configuration of a few lines,
//! listens on a port of 127.0.0.1, and sends itself one request. The configuration names `trace.lua`, which
//! runs the script with a `lighty` and a `petrel` that record each use.
//!
//! Knows nothing of Lua, and only the directives of mod_magnet.

mod ask;
mod report;
mod workspace;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::handed::Handed;
use engine::log::{LogRegistry, LogTarget};
use engine::recorder::SharedMemory;
use engine::server::{BoundListener, Server, ServerPlan};
use engine::worker::Cut;
use modules::openssl;

use crate::cli;
use crate::load::{self, Origin};
use crate::server::configure_logs;
use ask::ReceivedReply;
use workspace::Workspace;

/// Runs the script and prints the report. Returns the exit code: 1 if the script failed.
pub(crate) fn run(options: &cli::Lua) -> u8 {
    match trial(options) {
        Ok(trial) => {
            let has_failed = trial.has_failed();
            match crate::terminal::print(&report::text(options, &trial)) {
                0 if has_failed => SCRIPT_FAILED,
                code => code,
            }
        }
        Err(message) => crate::terminal::fail(&format!("lua: {message}")),
    }
}

/// The result of the request.
struct RequestResult {
    /// What the script did, one line per step.
    trace: String,
    /// The lines of the error log.
    log: String,
    answer: ReceivedReply,
    /// The script's absolute path.
    script: String,
}

impl RequestResult {
    /// Whether the script raised an error, was stopped, or could not be read.
    fn has_failed(&self) -> bool {
        let told = self.trace.lines().any(|line| line.starts_with("error "));
        told || !self.trace.lines().any(|line| line.starts_with("return "))
    }
}

fn trial(options: &cli::Lua) -> Result<RequestResult, String> {
    let script = std::fs::canonicalize(&options.file)
        .map_err(|error| format!("{}: {error}", options.file.display()))?;
    let script = text_of(&script)?;
    let request = ask::request(options)?;
    let workspace = Workspace::new(&script).map_err(|error| format!("temporary files: {error}"))?;
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
    let port = listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port();
    let text = configuration(options, &workspace, port)?;
    let answer = serve_once(text, listener, port, &workspace, &request)?;
    let tracer = text_of(&workspace.script_path())?;
    Ok(RequestResult {
        trace: workspace.trace(),
        log: report::log_of_script(&workspace.log(), &tracer, &script),
        answer,
        script,
    })
}

fn configuration(options: &cli::Lua, workspace: &Workspace, port: u16) -> Result<String, String> {
    let root = std::fs::canonicalize(&options.root)
        .map_err(|error| format!("{}: {error}", options.root.display()))?;
    let directive = match options.hook {
        cli::LuaHook::RawUrl => "magnet.attract-raw-url-to",
        cli::LuaHook::PhysicalPath => "magnet.attract-physical-path-to",
        cli::LuaHook::ResponseStart => "magnet.attract-response-start-to",
    };
    Ok(format!(
        "server.modules = ( \"mod_magnet\" )\n\
         server.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.max-worker = 1\n\
         server.document-root = {}\nserver.errorlog = {}\n\
         lua.max-run-time = {RUN_TIME_MS}\n{directive} = ( {} )\n",
        quoted(&text_of(&root)?),
        quoted(&text_of(&workspace.log_path())?),
        quoted(&text_of(&workspace.script_path())?),
    ))
}

/// Serves one request and shuts down.
fn serve_once(
    text: String,
    listener: TcpListener,
    port: u16,
    workspace: &Workspace,
    request: &[u8],
) -> Result<ReceivedReply, String> {
    let origin = Origin::Text {
        name: "petrel lua",
        text,
    };
    let loaded = load::load(&origin).map_err(|errors| errors.to_string())?;
    let log = LogTarget::File(workspace.log_path());
    let begin = || -> io::Result<(Server, LogRegistry)> {
        let logs = LogRegistry::open([log])?;
        configure_logs(&logs, &loaded);
        logs.start()?;
        listener.set_nonblocking(true)?;
        let bound = BoundListener {
            address: format!("127.0.0.1:{port}"),
            port,
            sockets: vec![listener.into()],
        };
        let plan = ServerPlan {
            memory: SharedMemory::private(),
            config: Arc::clone(&loaded.config),
            schema: Arc::clone(&loaded.schema),
            modules: loaded.modules.clone(),
            process: Arc::clone(&loaded.process),
            logs: Arc::new(logs.clone()),
            handed: Handed::default().with(Arc::new(openssl::InTheClear)),
        };
        Ok((Server::start(plan, vec![bound])?, logs))
    };
    let (server, logs) = begin().map_err(|error| error.to_string())?;
    server.serve();
    let answer = ask::ask(port, request);
    server.cut_off(Cut::StopNow);
    server.join();
    logs.shut_down(Duration::from_secs(1));
    answer.map_err(|error| format!("the answer: {error}"))
}

fn text_of(path: &Path) -> Result<String, String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let text = text.ok_or("a path with bytes that a configuration cannot hold")?;
    Ok(text.to_owned())
}

/// A quoted string of the configuration language, in which a backslash escapes only a quote.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

/// Milliseconds that a script may run. It is generous because tracing takes longer than the script alone.
const RUN_TIME_MS: u32 = 1000;

/// The exit code when the script failed.
const SCRIPT_FAILED: u8 = 1;
