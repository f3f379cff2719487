//! The settings of the process: listeners, user, limits, strictness.
//!
//! Read once at start-up and at each reload, from the global block and the blocks on `$SERVER["socket"]`.
//! Nothing here can differ between requests. This code checks only what needs no system call. The keeper,
//! start-up and the listeners check users, directories and addresses when they use them.

mod chunks;
mod features;
mod listeners;
mod parse_options;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use petrel_config::schema::nearest;
use petrel_config::{BlockId, Config, Diagnostic, Schema};
use petrel_proto::request_head::HeadOptions;
use petrel_proto::url::UrlOptions;

use super::Values;
use crate::blocking::{THREADS, Threads};
use crate::file_cache::StatCache;
use crate::limits;
use crate::log::{LogTarget, SyslogFacility};
use crate::recorder::RecorderSize;
pub(crate) use features::{Features, Http2Offer};
pub use listeners::ListenerSettings;

/// The settings of the process.
#[derive(Debug)]
pub struct ProcessSettings {
    /// The address of `server.bind` and `server.port` first, then every other address of `$SERVER["socket"]
    /// ==`, in the order of the text.
    pub listeners: Vec<ListenerSettings>,
    /// `server.systemd-socket-activation`: takes the listeners from LISTEN_FDS if that is set.
    pub socket_activation: bool,
    /// `server.max-worker`; if it is unset or 0, one worker for each core that this process may use.
    pub workers: NonZeroUsize,
    /// `server.username`. The code that drops privileges checks that the user exists and is not root.
    pub username: Option<String>,
    /// `server.groupname`.
    pub groupname: Option<String>,
    /// `server.chroot`.
    pub chroot: Option<PathBuf>,
    /// `server.pid-file`.
    pub pid_file: Option<PathBuf>,
    /// `server.control-socket`.
    pub control_socket: Option<PathBuf>,
    /// `server.core-files`.
    pub core_files: bool,
    /// `recorder.size`, `recorder.slowest`.
    pub recorder: RecorderSize,
    /// `recorder.dump`, or the directory of the error log if that is a file.
    pub recorder_dump: Option<PathBuf>,
    /// `server.max-fds`; see [`ProcessSettings::fds_to_ask_for`].
    pub max_fds: Option<u64>,
    /// `server.max-connections`; see [`ProcessSettings::connections_max`].
    pub max_connections: Option<usize>,
    /// `server.errorlog` of the global block, or syslog if `server.errorlog-use-syslog` is on.
    pub error_log: LogTarget,
    /// `server.syslog-facility`.
    pub syslog_facility: SyslogFacility,
    /// `server.io-chunk-size` in bytes; 0: it follows the pace of the client.
    pub io_chunk_bytes: usize,
    /// `server.max-stat-threads`, `server.max-read-threads` and `server.max-write-threads`, with the defaults
    /// filled in.
    pub threads: Threads,
    /// `server.stat-cache-engine`.
    pub stat_cache: StatCache,
    /// `server.upload-dirs`, or else $TMPDIR, or else /var/tmp; never empty. For the temporary files of
    /// request bodies.
    pub upload_directories: Vec<PathBuf>,
    /// `server.max-request-field-size`, and the header options of `server.http-parseopts`.
    pub head_options: HeadOptions,
    /// The URL options of `server.http-parseopts`.
    pub url_options: UrlOptions,
    /// `server.feature-flags`.
    pub features: Features,
    /// How long requests may continue once their server process has to end.
    pub drain: DrainLimits,
    /// Warnings for start-up to show.
    pub warnings: Vec<Diagnostic>,
}

/// How long requests may continue once their server process has to end. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainLimits {
    /// Seconds after a graceful stop: `server.graceful-shutdown-timeout`.
    pub stop_s: Option<u32>,
    /// Seconds after a reload: `server.drain-timeout`, or else `server.graceful-shutdown-timeout`.
    pub reload_s: Option<u32>,
    /// How many replaced server processes may exist at the same time: `server.drain-generations`.
    pub generations: Option<u16>,
}

impl DrainLimits {
    fn read(values: &Values<'_>, features: &Features) -> DrainLimits {
        let graceful_s = features.graceful_timeout_s;
        let stop_s = graceful_s.unwrap_or(limits::STOP_S_DEFAULT);
        let reload_s = graceful_s.unwrap_or(limits::DRAIN_S_DEFAULT);
        let reload_s = values.unsigned("server.drain-timeout", reload_s);
        let generations = values.unsigned(
            "server.drain-generations",
            limits::DRAIN_GENERATIONS_DEFAULT.into(),
        );
        let generations = u16::try_from(generations).unwrap_or(u16::MAX);
        DrainLimits {
            stop_s: Some(stop_s).filter(|limit| *limit > 0),
            reload_s: Some(reload_s).filter(|limit| *limit > 0),
            generations: Some(generations).filter(|limit| *limit > 0),
        }
    }
}

impl ProcessSettings {
    /// Reads the settings from `config`.
    ///
    /// # Errors
    /// The first value that its directive does not allow.
    pub fn new(config: &Config) -> Result<ProcessSettings, Diagnostic> {
        let schema = Schema::default();
        let values = &Values::merge(config, &schema, std::iter::once(BlockId::GLOBAL));
        let mut warnings = Vec::new();
        let switch = |name: &str| values.bool(name).unwrap_or(false);
        let text = |name: &str| values.string(name).map(str::to_owned);
        let parse_options = parse_options::read(values)?;
        let features = features::read(values, &mut warnings)?;
        Ok(ProcessSettings {
            listeners: listeners::read(config, values)?,
            socket_activation: switch("server.systemd-socket-activation"),
            workers: workers(values),
            username: text("server.username"),
            groupname: text("server.groupname"),
            chroot: values.string("server.chroot").map(PathBuf::from),
            pid_file: values.string("server.pid-file").map(PathBuf::from),
            control_socket: values.string("server.control-socket").map(PathBuf::from),
            core_files: switch("server.core-files"),
            recorder: recorder(values),
            recorder_dump: recorder_dump(values),
            max_fds: positive(values, "server.max-fds").map(u64::from),
            max_connections: positive(values, "server.max-connections").map(|most| most as usize),
            error_log: error_log(values),
            syslog_facility: syslog_facility(values)?,
            io_chunk_bytes: chunks::read(config, values, &mut warnings),
            threads: threads(values),
            stat_cache: stat_cache(values)?,
            upload_directories: upload_directories(values),
            head_options: parse_options.head,
            url_options: parse_options.url,
            drain: DrainLimits::read(values, &features),
            features,
            warnings,
        })
    }

    /// The limit on open files to request from the kernel: `server.max-fds`. If that is unset, `hard_limit`,
    /// which the kernel allows without privileges, but at most 65536, because tables are sized by it and
    /// "unlimited" would be too much.
    pub fn fds_to_ask_for(&self, hard_limit: u64) -> u64 {
        self.max_fds.unwrap_or(hard_limit.min(FDS_MAX_UNSET)).max(1)
    }

    /// How many connections may be open if the process may open `fds` files: `server.max-connections`, but at
    /// most half of `fds`, since a connection that serves a file needs two. If it is unset, a third of `fds`,
    /// which leaves one for a backend as well. At least 1.
    pub fn connections_max(&self, fds: u64) -> usize {
        let fds = usize::try_from(fds).unwrap_or(usize::MAX);
        let most = self
            .max_connections
            .map_or(fds / 3, |wanted| wanted.min(fds / 2));
        most.max(1)
    }
}

/// A number above 0. `None`: it is 0 or unset, and the default counts.
fn positive(values: &Values<'_>, name: &str) -> Option<u32> {
    Some(values.unsigned(name, 0)).filter(|number| *number > 0)
}

fn workers(values: &Values<'_>) -> NonZeroUsize {
    let asked = positive(values, "server.max-worker").and_then(|n| NonZeroUsize::new(n as usize));
    asked
        .or_else(|| std::thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN)
}

fn recorder(values: &Values<'_>) -> RecorderSize {
    RecorderSize {
        bytes: (values.unsigned("recorder.size", 1 << 20) as usize).min(RECORDER_BYTES_MAX),
        slowest: values.unsigned("recorder.slowest", 8) as usize,
    }
}

fn recorder_dump(values: &Values<'_>) -> Option<PathBuf> {
    if let Some(directory) = values.string("recorder.dump") {
        return Some(PathBuf::from(directory));
    }
    match error_log(values) {
        LogTarget::File(path) => Some(path.parent()?.to_owned()),
        _ => None,
    }
}

fn error_log(values: &Values<'_>) -> LogTarget {
    if values.bool("server.errorlog-use-syslog").unwrap_or(false) {
        return LogTarget::Syslog;
    }
    values
        .string("server.errorlog")
        .map_or(LogTarget::Stderr, LogTarget::parse)
}

fn syslog_facility(values: &Values<'_>) -> Result<SyslogFacility, Diagnostic> {
    const NAME: &str = "server.syslog-facility";
    let Some(name) = values.string(NAME) else {
        return Ok(SyslogFacility::default());
    };
    let known = SyslogFacility::NAMES.iter().copied();
    SyslogFacility::from_name(name).ok_or_else(|| unknown(values, NAME, name, known))
}

fn threads(values: &Values<'_>) -> Threads {
    let number = |name: &str, default: usize| {
        positive(values, name).map_or(default, |number| number as usize)
    };
    Threads {
        stat: number("server.max-stat-threads", THREADS.stat),
        read: number("server.max-read-threads", THREADS.read),
        write: number("server.max-write-threads", THREADS.write),
        compute: std::thread::available_parallelism()
            .map_or(THREADS.compute, |processors| processors.get().div_ceil(2)),
    }
}

fn stat_cache(values: &Values<'_>) -> Result<StatCache, Diagnostic> {
    const NAME: &str = "server.stat-cache-engine";
    match values.string(NAME) {
        None | Some("inotify" | "fam") => Ok(StatCache::Inotify),
        Some("simple") => Ok(StatCache::Simple),
        Some("disable" | "none") => Ok(StatCache::Disabled),
        Some(other) => {
            let known = ["inotify", "fam", "simple", "disable"];
            Err(unknown(values, NAME, other, known.into_iter()))
        }
    }
}

fn upload_directories(values: &Values<'_>) -> Vec<PathBuf> {
    let named = values.strings("server.upload-dirs");
    let named: Vec<_> = named
        .into_iter()
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect();
    if !named.is_empty() {
        return named;
    }
    let temporary = std::env::var_os("TMPDIR").map(PathBuf::from);
    let temporary = temporary.filter(|path| path.is_absolute());
    vec![temporary.unwrap_or_else(|| Path::new("/var/tmp").to_owned())]
}

/// The error for a word that is not in `known`.
pub(super) fn unknown<'a>(
    values: &Values<'_>,
    directive: &str,
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Diagnostic {
    let all: Vec<_> = known.clone().collect();
    let hint = match nearest(word, known).first() {
        Some(near) => format!("did you mean \"{near}\"? Known are: {}", all.join(", ")),
        None => format!("known are: {}", all.join(", ")),
    };
    values
        .error(directive, format!("{directive} does not know \"{word}\""))
        .with_hint(hint)
}

/// The limit on open files if `server.max-fds` is unset and the hard limit is higher.
const FDS_MAX_UNSET: u64 = 65_536;

/// More is never recorded, whatever `recorder.size` says.
const RECORDER_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests;
