//! The command line: one definition, from which help, man page and completions are made.
//!
//! The short options and their exit codes are lighttpd's; the commands (`serve` and so on) are Petrel's own.

mod manual;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use engine::request_id::RequestId;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "petrel",
    about = "A web server that takes lighttpd's configuration as it is",
    long_about = "A web server that takes lighttpd's configuration as it is.\n\n\
        Without any argument it serves a small bundled site on http://127.0.0.1:8080/.",
    after_help = "Signals to the process that was started: TERM stops at once, INT stops gracefully, HUP \
        reopens the logs, USR1 reloads the configuration and lets requests in progress finish, USR2 writes the recorded requests to \
        files (recorder.dump). \
        The commands stop, reopen and reload do the same and wait until it is done.",
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Arguments {
    /// Read the configuration from this file
    #[arg(short = 'f', value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Module directory: accepted and ignored, the modules are built in
    #[arg(short = 'm', value_name = "DIR")]
    module_directory: Option<PathBuf>,
    /// Stop gracefully after this many seconds without a connection
    #[arg(short = 'i', value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle_s: Option<u32>,
    /// Serve one request on standard input: not supported
    #[arg(short = '1')]
    pub(crate) one_request: bool,
    /// Print the effective configuration and exit
    #[arg(short = 'p')]
    pub(crate) print: bool,
    /// Check the configuration and exit; twice: also check what start-up would need
    #[arg(short = 't', action = ArgAction::Count)]
    pub(crate) test: u8,
    /// Stay in the foreground
    #[arg(short = 'D')]
    pub(crate) foreground: bool,
    /// Print the version and exit
    #[arg(short = 'v', long = "version")]
    pub(crate) version: bool,
    /// Print the version and the built-in features, and exit
    #[arg(short = 'V')]
    pub(crate) features: bool,
    /// What to do instead of serving a configuration file.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What to do instead of serving a configuration file.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory, without a configuration file
    Serve(Serve),
    /// Have a running server read its configuration again, and wait until it serves the new one
    #[command(
        after_help = "Requests in progress end under the old configuration: see server.drain-timeout. \
        The exit code is 0 when the new configuration is served. Otherwise the old one stays in use, and the command \
        shows what is wrong with the new one."
    )]
    Reload {
        /// Cut requests of older configurations as soon as the new one is served
        #[arg(long)]
        now: bool,
        /// The server.
        #[command(flatten)]
        server: RunningServer,
    },
    /// Stop a running server, and wait until it has ended
    #[command(
        after_help = "Requests in progress have 8 seconds to finish, or as long as server.graceful-shutdown-timeout says."
    )]
    Stop {
        /// Cut requests in progress at once
        #[arg(long)]
        now: bool,
        /// The server.
        #[command(flatten)]
        server: RunningServer,
    },
    /// Have a running server open its logs again, after they were rotated
    Reopen {
        /// The server.
        #[command(flatten)]
        server: RunningServer,
    },
    /// Show the server processes of a running server, with their open connections and requests
    #[command(
        after_help = "One line for the keeper, which is the process that was started, and one for each \
        server process: the number of its configuration (1 is that of the start), its process id, whether it serves or \
        finishes requests from before a reload, its age, when its requests are cut, and its open connections and \
        requests. After an upgrade it also says that the program on disk is newer than the one that runs."
    )]
    Status {
        /// The server.
        #[command(flatten)]
        server: RunningServer,
    },
    /// Show where the time of a request went, from the last requests that a running server has recorded
    #[command(
        after_help = "The id of a request is in the error log (id=), on error pages, and by %{request-id}x in the access log. \
        The server keeps its last requests, its last errors and the slowest requests of each host in memory: see \
        recorder.size. Without an id, the last requests are listed, the newest last. Times are in UTC."
    )]
    Why(Box<Why>),
    /// Show what a running server does: where the time of requests goes, and what holds them up
    #[command(
        after_help = "Keys: q quits, tab and the digits choose the view (overview, backends, slowest, workers), the \
        arrows scroll, p pauses. Without a terminal all views are printed once, as with --once."
    )]
    Top(Top),
    /// Start FastCGI programs, with the options of spawn-fcgi
    Spawn(Box<Spawn>),
    /// Run Lua scripts as a FastCGI program
    FcgiMagnet(Box<FcgiMagnet>),
    /// Read files from disk ahead of a web server, as a FastCGI program
    FcgiStatAccel(Box<FcgiStatAccel>),
    /// Run a script of mod_magnet on a made-up request, and show what it does
    Lua(Box<Lua>),
    /// Say what the server would do with a request, and why
    Explain(Box<Explain>),
    /// Draw the stage times of an access log
    Plot(Box<Plot>),
    /// Show what one request costs: its stages, and the system calls that each made
    Costs(Box<Costs>),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// The command it is about, or petrel.conf; the program itself when there is none
        command: Option<String>,
    },
}

/// Which server a command is for.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct RunningServer {
    /// The configuration file that the server was started with
    #[arg(
        short = 'f',
        value_name = "FILE",
        default_value = "/etc/petrel/petrel.conf"
    )]
    pub(crate) file: PathBuf,
    /// The control socket of the server, if the configuration cannot be read: see server.control-socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// Options of `petrel why`.
#[derive(Debug, clap::Args)]
pub(crate) struct Why {
    /// The id of the request: 16 hexadecimal digits
    #[arg(value_name = "ID", conflicts_with_all = ["errors", "slowest", "last", "chrome", "otlp"])]
    pub(crate) id: Option<RequestId>,
    /// The server.
    #[command(flatten)]
    pub(crate) server: RunningServer,
    /// List errors: the last answers with a status of 500 or more, and those of Petrel's own from 400 to 499
    #[arg(long, conflicts_with = "slowest")]
    pub(crate) errors: bool,
    /// List the slowest requests of the last hour, the slowest first; of one host if it is named
    #[arg(long, value_name = "HOST", num_args = 0..=1)]
    pub(crate) slowest: Option<Option<String>>,
    /// List at most this many requests
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write all recorded requests to this file, for ui.perfetto.dev or chrome://tracing; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["errors", "slowest", "last", "json"])]
    pub(crate) chrome: Option<PathBuf>,
    /// Write all recorded requests to this file, as traces of OpenTelemetry (OTLP JSON); - is standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["errors", "slowest", "last", "json"])]
    pub(crate) otlp: Option<PathBuf>,
}

/// Options of `petrel top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Print all views once, as text, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// The server.
    #[command(flatten)]
    pub(crate) server: RunningServer,
}

/// Options of `petrel serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HOW_TO_TRUST)]
pub(crate) struct Serve {
    /// The directory
    pub(crate) directory: PathBuf,
    /// The TCP port; with --tls 8443 unless told
    #[arg(long, default_value_t = 8080, default_value_if("tls", "true", "8443"),
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// The address to listen on; 0.0.0.0 or :: for all
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) bind: IpAddr,
    /// Serve by HTTPS, with a certificate from an authority that Petrel makes for this user
    #[arg(long)]
    pub(crate) tls: bool,
    /// Show listings of directories that have no index file
    #[arg(long)]
    pub(crate) listing: bool,
}

/// Options of `petrel spawn`: those of spawn-fcgi 1.6.
#[derive(Debug, clap::Args)]
#[command(
    disable_version_flag = true,
    after_help = "-c, -S, -u, -g, -U and -G have an effect only for root. A program that ends is not \
        started again; programs of the configuration (bin-path) are."
)]
pub(crate) struct Spawn {
    /// Command line of the FastCGI application, for /bin/sh; ignored when APP is given
    #[arg(short = 'f', value_name = "COMMAND")]
    pub(crate) file: Option<OsString>,
    /// Change to this directory before starting the application
    #[arg(short = 'd', value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// IPv4 or IPv6 address to bind to, with -p; 0.0.0.0 unless told
    #[arg(short = 'a', value_name = "ADDR")]
    pub(crate) address: Option<IpAddr>,
    /// TCP port to bind to
    #[arg(short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Unix domain socket to bind to
    #[arg(short = 's', value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Mode of the unix socket, octal; 0660 as far as the umask allows it unless told
    #[arg(short = 'M', value_name = "MODE", value_parser = octal_mode)]
    pub(crate) mode: Option<u32>,
    /// PHP only: children of each process, by PHP_FCGI_CHILDREN
    #[arg(short = 'C', value_name = "CHILDREN")]
    pub(crate) children: Option<u32>,
    /// Processes to start
    #[arg(short = 'F', value_name = "FORKS", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) forks: u32,
    /// Length of the queue of connections that are not accepted yet
    #[arg(short = 'b', value_name = "BACKLOG", default_value_t = 1024)]
    pub(crate) backlog: u32,
    /// File that the process ids are written to, one a line; not with -n
    #[arg(short = 'P', value_name = "PATH")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Become the application instead of starting a process, for supervisors
    #[arg(short = 'n')]
    pub(crate) no_fork: bool,
    /// Print the version and exit
    #[arg(short = 'v')]
    pub(crate) version: bool,
    /// Print help
    #[arg(short = '?', action = ArgAction::HelpShort)]
    show_help: Option<bool>,
    /// Root directory of the application; a unix socket is made below it
    #[arg(short = 'c', value_name = "DIR")]
    pub(crate) chroot: Option<PathBuf>,
    /// Make the unix socket outside of the root directory that -c names
    #[arg(short = 'S')]
    pub(crate) socket_before_chroot: bool,
    /// User of the application, name or number; never root
    #[arg(short = 'u', value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Group of the application; that of the user unless told
    #[arg(short = 'g', value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// User that the unix socket belongs to; that of -u unless told
    #[arg(short = 'U', value_name = "USER")]
    pub(crate) socket_user: Option<String>,
    /// Group that the unix socket belongs to; that of -U, else of -g, unless told
    #[arg(short = 'G', value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// The FastCGI application and its arguments; a path, not looked up in PATH
    #[arg(value_name = "APP", trailing_var_arg = true)]
    pub(crate) application: Vec<OsString>,
}

/// Options of `petrel fcgi-magnet`.
#[derive(Debug, clap::Args)]
#[command(long_about = "Run Lua scripts as a FastCGI program.\n\n\
        It listens on the socket that is its standard input, as spawn-fcgi, `petrel spawn` or a web server \
        (bin-path) start it, or on one of its own. SCRIPT_FILENAME names the script.")]
pub(crate) struct FcgiMagnet {
    /// Listen on this unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// Mode of the unix socket, octal; what the umask leaves of 0777 unless told
    #[arg(long, value_name = "MODE", value_parser = octal_mode, requires = "socket",
        conflicts_with = "listen")]
    pub(crate) mode: Option<u32>,
    /// Listen on this TCP address. Every client that can connect can run any script: see --root
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Threads that run scripts
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// Run only scripts below this directory, after symbolic links are resolved
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Processor time, in milliseconds, that a script may take between two waits
    #[arg(long = "max-run-time", value_name = "MS", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub(crate) max_run_time_ms: u32,
    /// Memory, in MiB, that a script may take between two waits
    #[arg(long = "max-run-memory", value_name = "MIB", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) max_run_memory_mib: u32,
    /// Seconds that a request may take, waiting included
    #[arg(long = "max-request-time", value_name = "SECS", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) max_request_time_s: u32,
    /// The longest body of a request, in MiB
    #[arg(long = "max-body", value_name = "MIB", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) max_body_mib: u32,
    /// Libraries that scripts may use although these can break the program; a list with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) allow: Vec<Allowed>,
}

/// Parts of Lua's libraries that scripts do not get unless told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Allowed {
    /// `ffi` and `string.buffer`.
    Ffi,
    /// `jit`.
    Jit,
    /// All of `debug`.
    Debug,
    /// `os.exit`.
    #[value(name = "os.exit")]
    OsExit,
    /// `io.popen` and `os.execute`.
    #[value(name = "io.popen")]
    IoPopen,
}

/// Options of `petrel fcgi-stat-accel`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Read files from disk ahead of a web server, as a FastCGI program.\n\n\
        It opens the file that SCRIPT_FILENAME names, reads its beginning and answers with its name in \
        X-LIGHTTPD-send-file and X-Sendfile. The web server, to which it has to be allowed (x-sendfile), then \
        finds the file in memory.\n\n\
        It listens on the socket that is its standard input, as spawn-fcgi, `petrel spawn` or a web server \
        (bin-path) start it, or on one of its own."
)]
pub(crate) struct FcgiStatAccel {
    /// Listen on this TCP port. Every client that can connect learns which files exist: see --document-root
    #[arg(long, value_name = "PORT", conflicts_with = "socket",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// The address to listen on, with --port
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "127.0.0.1",
        requires = "port"
    )]
    pub(crate) address: IpAddr,
    /// Listen on this unix socket
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Mode of the unix socket, octal; what the umask leaves of 0777 unless told
    #[arg(long, value_name = "MODE", value_parser = octal_mode, requires = "socket",
        conflicts_with = "port")]
    pub(crate) mode: Option<u32>,
    /// Threads that wait for disks
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Bytes at the beginning of a file that are read
    #[arg(long, value_name = "BYTES", default_value_t = 131_072,
        value_parser = clap::value_parser!(u64).range(..=67_108_864))]
    pub(crate) read_ahead: u64,
    /// Name only files below this directory, after symbolic links are resolved; may be given again. Unless told, below
    /// the DOCUMENT_ROOT of the request
    #[arg(long, value_name = "DIR")]
    pub(crate) document_root: Vec<PathBuf>,
    /// Seconds that a request may take
    #[arg(long = "timeout", value_name = "SECS", default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) timeout_s: u32,
}

/// Options of `petrel lua`.
#[derive(Debug, clap::Args)]
pub(crate) struct Lua {
    /// The script
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The URL of the request: a path, with a query
    #[arg(long, value_name = "URL", default_value = "/")]
    pub(crate) url: String,
    /// The request method
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,
    /// A field of the request, such as 'Accept: text/html'; may be given again
    #[arg(long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,
    /// A file with the body of the request
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,
    /// When the script runs
    #[arg(long, value_name = "WHEN", default_value = "raw-url")]
    pub(crate) hook: LuaHook,
    /// The document root
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) root: PathBuf,
}

/// Options of `petrel costs`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Show what one request costs: its stages, and the system calls that each made.\n\n\
        A private instance of the configuration answers the request, and is traced meanwhile. It has listeners, \
        sockets, backend programs (bin-path) and caches on disk of its own, writes no log, and the server that runs \
        by the configuration notices nothing of it. Backends that the configuration only names (host, port, socket) \
        are those of that server, and they do get the requests.\n\n\
        The request is made once cold, when the instance has just started, and then warm. Methods other than GET, \
        HEAD and OPTIONS are used three times in all, these fifteen times."
)]
pub(crate) struct Costs {
    /// The configuration file
    #[arg(
        short = 'f',
        value_name = "FILE",
        default_value = "/etc/petrel/petrel.conf"
    )]
    pub(crate) file: PathBuf,
    /// The URL: http://HOST/PATH, or a path for the host localhost
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Another URL to compare with
    #[arg(long, value_name = "URL2")]
    pub(crate) compare: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a picture to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// The request method
    #[arg(short = 'X', value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,
    /// A field of the request, such as 'Accept: text/html'; may be given again
    #[arg(short = 'H', value_name = "FIELD")]
    pub(crate) field: Vec<String>,
}

/// Options of `petrel explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The request goes through the configuration in this process: conditions, rewriting, access \
        rules, files. Nothing is sent to a backend, no script or program runs, no password is checked, and no \
        running server is needed. Started by root, it looks at files as the user of the configuration \
        (server.username)."
)]
pub(crate) struct Explain {
    /// The URL, or a path such as /a?b on localhost; may be given again
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<String>,
    /// The configuration
    #[arg(
        short = 'f',
        value_name = "FILE",
        default_value = "/etc/petrel/petrel.conf"
    )]
    pub(crate) file: PathBuf,
    /// The request method
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,
    /// A field of the request, such as 'Accept: text/html'; may be given again
    #[arg(short = 'H', long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,
    /// The IP address of the client
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) client: IpAddr,
    /// Show all conditions, and all directives with their defaults
    #[arg(long)]
    pub(crate) all: bool,
    /// Print a JSON object for each URL, one on a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Run the Lua scripts of the configuration, which can do anything
    #[arg(long)]
    pub(crate) run_scripts: bool,
}

/// Options of `petrel plot`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The lines need %{stages}x in accesslog.format, or the format \"json\". An error log with lines of \
        debug.log-timing can be drawn as well. JSON and those lines are recognised without --format and -f. Compressed logs: zcat \
        access.log.*.gz | petrel plot - -o FILE. For PNG: --gnuplot DIR, then gnuplot plot.gp there."
)]
pub(crate) struct Plot {
    /// The log; - is standard input
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// Write the drawing, which is SVG, to this file; to standard output unless told
    #[arg(short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Draw only this: stage times over time, percentiles of each stage, or the routes; all of them and the slowest
    /// requests unless told
    #[arg(long, value_name = "WHAT")]
    pub(crate) by: Option<PlotBy>,
    /// The value of accesslog.format; or json, or timing for lines of debug.log-timing
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    /// Take the format from this configuration
    #[arg(short = 'f', value_name = "CONFIG", conflicts_with = "format")]
    pub(crate) file: Option<PathBuf>,
    /// Write data and a script for gnuplot to this directory, in the manner of lighttpd 1.5
    #[arg(long, value_name = "DIR")]
    pub(crate) gnuplot: Option<PathBuf>,
}

/// What `petrel plot` draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlotBy {
    /// Percentiles of each stage.
    Stage,
    /// The mean stage times of each route.
    Route,
    /// The mean stage times over time.
    Time,
}

/// The places where mod_magnet runs scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LuaHook {
    /// `magnet.attract-raw-url-to`.
    RawUrl,
    /// `magnet.attract-physical-path-to`.
    PhysicalPath,
    /// `magnet.attract-response-start-to`.
    ResponseStart,
}

/// The command line when the program is started under the name of spawn-fcgi.
#[derive(Debug, Parser)]
#[command(
    name = "spawn-fcgi",
    about = "Starts FastCGI programs",
    arg_required_else_help = true
)]
pub(crate) struct SpawnFcgi {
    /// The options.
    #[command(flatten)]
    pub(crate) spawn: Spawn,
}

/// How to trust the authority of `petrel serve --tls`, for the help. When Petrel makes the authority, it prints
/// the same with the real paths and name.
const HOW_TO_TRUST: &str = "The first start with --tls makes a certificate authority and keeps it in \
$XDG_DATA_HOME/petrel, or else ~/.local/share/petrel, with its key readable by the user alone. Each start has it \
sign a certificate for localhost, 127.0.0.1, ::1, the name of the machine and the addresses that are listened on, \
which lasts a year. Programs trust the server once they trust the authority (FILE is authority.pem there, NAME \
what the first start told):\n\n  \
  curl               curl --cacert FILE https://localhost:8443/\n  \
  Debian, Ubuntu     sudo cp FILE /usr/local/share/ca-certificates/petrel-local.crt && sudo update-ca-certificates\n  \
  Chromium, Chrome   certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n NAME -i FILE\n  \
  Firefox            the same with -d sql:PROFILE (about:profiles names it), or Settings, Certificates, Import\n\n\
To take it back:\n\n  \
  sudo rm /usr/local/share/ca-certificates/petrel-local.crt && sudo update-ca-certificates --fresh\n  \
  certutil -d sql:$HOME/.pki/nssdb -D -n NAME\n  \
  rm -r ~/.local/share/petrel\n\n\
certutil is in Debian's package libnss3-tools.";

fn octal_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "it is no octal mode such as 0660".to_owned())
}

impl Arguments {
    /// Whether the command line is empty.
    pub(crate) fn is_empty(&self) -> bool {
        let asked = self.one_request
            || self.print
            || self.test > 0
            || self.foreground
            || self.version
            || self.features;
        let given = self.file.is_some()
            || self.module_directory.is_some()
            || self.idle_s.is_some()
            || self.command.is_some();
        !asked && !given
    }
}

/// The completion script for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "petrel", &mut script);
    script
}

/// The manual page of the program, or of one of its commands; in roff. `None`: there is no such
/// command.
pub(crate) fn manual_page(command: Option<&str>) -> Option<Vec<u8>> {
    let mut program = Arguments::command();
    program.build();
    let about = match command {
        None => program,
        Some("petrel.conf") => return Some(manual::page_of_configuration()),
        Some(name) => program.find_subcommand(name)?.clone(),
    };
    Some(manual::page(about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_may_stand_together_as_with_getopt() {
        let arguments = Arguments::parse_from(["petrel", "-ttf", "x.conf", "-Dm", "/usr/lib"]);
        assert_eq!(arguments.test, 2);
        assert!(arguments.foreground);
        assert_eq!(arguments.file, Some("x.conf".into()));
        assert!(!arguments.is_empty());
        assert!(Arguments::parse_from(["petrel"]).is_empty());
    }

    #[test]
    fn the_manual_names_every_option() {
        let page = String::from_utf8(manual_page(None).expect("ours")).expect("text");
        for argument in Arguments::command().get_arguments() {
            let short = argument.get_short().expect("options are short ones");
            assert!(page.contains(&format!("\\-{short}")), "-{short}");
        }
        let page = manual_page(Some("spawn")).expect("a command");
        let page = String::from_utf8(page).expect("text");
        for short in "fdapsMCFbPnvhcSugUG".chars() {
            assert!(page.contains(&format!("\\-{short}")), "-{short}");
        }
        assert!(manual_page(Some("fly")).is_none());
    }

    #[test]
    fn the_page_of_the_configuration_names_every_directive_that_works() {
        let page =
            String::from_utf8(manual_page(Some("petrel.conf")).expect("ours")).expect("text");
        let tables = modules::MODULES.iter().map(|module| module.directives);
        for spec in tables
            .chain([engine::settings::directives::DIRECTIVES])
            .flatten()
        {
            let tag = format!("\n\\fB{}\\fR (", spec.name.replace('-', "\\-"));
            let works = spec.effect == engine::settings::directives::Effect::Works;
            assert!(!works || page.contains(&tag), "{}", spec.name);
        }
        let known = [".TH ", ".SH ", ".SS ", ".TP", ".PP", ".nf", ".fi"];
        for line in page.lines().filter(|line| line.starts_with(['.', '\''])) {
            assert!(
                known.iter().any(|request| line.starts_with(request)),
                "{line}"
            );
        }
    }

    #[test]
    fn the_examples_of_the_configurations_page_can_be_loaded() {
        let page =
            String::from_utf8(manual_page(Some("petrel.conf")).expect("ours")).expect("text");
        let examples = page.split("\n.nf\n").skip(1);
        let examples = examples.map(|text| text.split_once("\n.fi").expect("its end").0);
        let examples: Vec<_> = examples.collect();
        assert_eq!(examples.len(), 2);
        for example in examples {
            let text = example.replace("\\-", "-").replace("\\e", "\\");
            let name = "the example";
            let loaded = crate::load::load(&crate::load::Origin::Text { name, text });
            let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
            let warnings: Vec<_> = loaded.warnings().map(|warning| &warning.message).collect();
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn every_manual_page_is_complete() {
        let mut program = Arguments::command();
        program.build();
        let commands = program.get_subcommands().map(|command| command.get_name());
        for command in commands.map(Some).chain([None]) {
            let page = manual_page(command).expect("it is a command");
            let page = String::from_utf8(page).expect("text");
            let title = page.lines().find(|line| line.starts_with(".TH"));
            assert!(title.is_some_and(|title| title.contains(env!("CARGO_PKG_VERSION"))));
            for section in ["NAME", "SYNOPSIS", "EXIT STATUS"] {
                let heading = format!(".SH \"{section}\"\n");
                let plain = format!(".SH {section}\n");
                assert!(
                    page.contains(&heading) || page.contains(&plain),
                    "{command:?}: {section}"
                );
            }
            let synopsis = page.split(".SH ").find(|text| text.starts_with("SYNOPSIS"));
            let synopsis = synopsis.expect("it is there");
            assert!(
                !synopsis.contains(" \\fR]"),
                "a value has no name: {synopsis}"
            );
            let is_of_program = page.contains("The server was told to stop");
            assert_eq!(is_of_program, command.is_none(), "{command:?}: {page}");
        }
    }

    #[test]
    fn the_manual_refers_to_the_pages_of_the_package() {
        let page = String::from_utf8(manual_page(None).expect("ours")).expect("text");
        let packaged = include_str!("../../../xtask/src/deb.rs");
        let mut program = Arguments::command();
        program.build();
        for command in program.get_subcommands().map(|command| command.get_name()) {
            let is_packaged = packaged.contains(&format!("man1/petrel-{command}.1\""));
            let escaped = command.replace('-', "\\-");
            let page_of_its_own = page.contains(&format!("petrel\\-{escaped}(1)"));
            let command_alone = page.contains(&format!("\npetrel {escaped}\n"));
            let found = (page_of_its_own, command_alone);
            assert_eq!(found, (is_packaged, !is_packaged), "{command}");
        }
    }

    #[test]
    fn the_synopsis_names_values() {
        let page = String::from_utf8(manual_page(None).expect("ours")).expect("text");
        assert!(page.contains("[\\fB\\-f\\fR \\fIFILE\\fR]"), "{page}");
        assert!(
            page.contains("[\\fB\\-v\\fR|\\fB\\-\\-version\\fR]"),
            "{page}"
        );
        assert!(page.contains("\n.SH \"FILES\"\n"), "{page}");
        let page = manual_page(Some("reload")).expect("a command");
        let page = String::from_utf8(page).expect("text");
        assert!(
            page.contains("[\\fB\\-f\\fR \\fIFILE\\fR] [\\fB\\-\\-socket\\fR \\fIPATH\\fR]"),
            "{page}"
        );
    }

    #[test]
    fn options_of_spawn_fcgi_stand_before_the_application() {
        let line = "spawn-fcgi -p9000 -a ::1 -C4 -F2 -n -M 600 -- /usr/bin/php-cgi -n -p 1";
        let spawn = SpawnFcgi::parse_from(line.split(' ')).spawn;
        assert_eq!(
            (spawn.port, spawn.forks, spawn.children),
            (Some(9000), 2, Some(4))
        );
        assert_eq!(
            (spawn.mode, spawn.no_fork, spawn.backlog),
            (Some(0o600), true, 1024)
        );
        assert_eq!(spawn.application, ["/usr/bin/php-cgi", "-n", "-p", "1"]);
        let line = "spawn-fcgi -s /s /app -x -F 3";
        let spawn = SpawnFcgi::parse_from(line.split(' ')).spawn;
        assert_eq!(spawn.application, ["/app", "-x", "-F", "3"]);
        for wrong in [
            "-p 0",
            "-p x",
            "-p 65536",
            "-F 0",
            "-M 999",
            "-a localhost",
            "-b -1",
        ] {
            let line = format!("spawn-fcgi {wrong} -- /app");
            assert!(
                SpawnFcgi::try_parse_from(line.split(' ')).is_err(),
                "{wrong}"
            );
        }
    }
}
