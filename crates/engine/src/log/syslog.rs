//! A client for the local syslog daemon: RFC 3164 lines as datagrams to /dev/log.
//!
//! Never waits: if the daemon is away or slow, lines are lost and counted.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::local_time::TimeFormat;
use crate::limits::SYSLOG_LINE_BYTES_MAX;

/// The severity of a syslog line (RFC 5424 6.2.1), from 0 (emergency) to 7 (debug).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogLevel(u8);

impl SyslogLevel {
    /// Error, the level of error logs.
    pub(crate) const ERROR: SyslogLevel = SyslogLevel(3);
    /// Informational, the default level of access logs.
    pub const INFO: SyslogLevel = SyslogLevel(6);

    /// The level with this number; `None` above 7.
    pub fn new(number: u32) -> Option<SyslogLevel> {
        u8::try_from(number)
            .ok()
            .filter(|level| *level <= 7)
            .map(SyslogLevel)
    }

    /// The level as one byte, which is neither a control character nor part of a number.
    pub(super) fn mark(self) -> u8 {
        b'0' + self.0
    }
}

macro_rules! facilities {
    ($($name:literal $number:literal,)*) => {
        /// The facility of the syslog lines of this process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct SyslogFacility(u8);

        impl SyslogFacility {
            /// The names that `server.syslog-facility` takes.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The facility with this name.
            pub fn from_name(name: &str) -> Option<SyslogFacility> {
                match name {
                    $($name => Some(SyslogFacility($number)),)*
                    _ => None,
                }
            }
        }
    };
}

facilities! {
    "kern" 0, "user" 1, "mail" 2, "daemon" 3, "auth" 4, "security" 4, "syslog" 5, "lpr" 6,
    "news" 7, "uucp" 8, "cron" 9, "authpriv" 10, "ftp" 11, "local0" 16, "local1" 17, "local2" 18,
    "local3" 19, "local4" 20, "local5" 21, "local6" 22, "local7" 23,
}

impl Default for SyslogFacility {
    fn default() -> Self {
        SyslogFacility(3)
    }
}

/// The connection to the daemon.
pub(super) struct SyslogOutlet {
    path: PathBuf,
    socket: Option<UnixDatagram>,
    /// The time of the next attempt to connect.
    retry_at: Option<Instant>,
    time: TimeFormat,
    datagram: Vec<u8>,
}

/// Where the daemon listens.
pub(super) const SYSLOG_PATH: &str = "/dev/log";

/// The pause between two attempts to connect.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl SyslogOutlet {
    /// Connects at once, so that the socket is open after a chroot. If the daemon is not there (yet), that is
    /// no error; syslog(3) does not report it either.
    pub(super) fn new(path: &Path) -> SyslogOutlet {
        let mut outlet = SyslogOutlet {
            path: path.to_owned(),
            socket: None,
            retry_at: None,
            time: TimeFormat::new("%b %e %H:%M:%S").expect("a format that the tests check"),
            datagram: Vec::new(),
        };
        outlet.connect(Instant::now());
        outlet
    }

    /// Sends every line of `lines`. Each begins with its level and ends with `\n`. Returns how many were
    /// lost.
    pub(super) fn send_lines(&mut self, lines: &[u8], facility: SyslogFacility) -> u64 {
        let now = Instant::now();
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        let lines = lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines
            .map(|line| u64::from(!self.send_line(line, facility, wall, now)))
            .sum()
    }

    fn send_line(
        &mut self,
        line: &[u8],
        facility: SyslogFacility,
        wall: u64,
        now: Instant,
    ) -> bool {
        let Some((mark, text)) = line.split_first() else {
            return true;
        };
        let level = mark.wrapping_sub(b'0') & 7;
        let mut datagram = std::mem::take(&mut self.datagram);
        datagram.clear();
        datagram.extend_from_slice(format!("<{}>", facility.0 * 8 + level).as_bytes());
        self.time.write(wall, &mut datagram);
        datagram.extend_from_slice(format!(" petrel[{}]: ", std::process::id()).as_bytes());
        datagram.extend_from_slice(text);
        datagram.truncate(SYSLOG_LINE_BYTES_MAX);
        let sent = self.send(&datagram, now);
        self.datagram = datagram;
        sent
    }

    fn send(&mut self, datagram: &[u8], now: Instant) -> bool {
        for _ in 0..2 {
            if self.socket.is_none() && self.retry_at.is_none_or(|at| at <= now) {
                self.connect(now);
            }
            let Some(socket) = &self.socket else {
                return false;
            };
            match socket.send(datagram) {
                Ok(_) => return true,
                // The daemon is there, but its queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => self.socket = None,
            }
        }
        false
    }

    fn connect(&mut self, now: Instant) {
        let connected = UnixDatagram::unbound().and_then(|socket| {
            socket.connect(&self.path)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        self.retry_at = connected.is_err().then(|| now + RETRY_AFTER);
        self.socket = connected.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_as_rfc_3164_has_them() {
        let directory = tempdir("syslog");
        let path = directory.join("log");
        let daemon = UnixDatagram::bind(&path).expect("a socket");
        let mut outlet = SyslogOutlet::new(&path);
        let facility = SyslogFacility::from_name("local1").expect("known");
        assert_eq!(outlet.send_lines(b"6one\n3two\n", facility), 0);
        let mut buffer = [0; 256];
        let length = daemon.recv(&mut buffer).expect("a datagram");
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let tail = format!(" petrel[{}]: one", std::process::id());
        assert!(text.starts_with("<142>") && text.ends_with(&tail), "{text}");
        assert_eq!(text.len(), 5 + "Nov 21 20:40:46".len() + tail.len());
        let length = daemon.recv(&mut buffer).expect("another");
        assert!(buffer[..length].starts_with(b"<139>"));
        std::fs::remove_dir_all(directory).expect("our own directory");
    }

    #[test]
    fn a_missing_daemon_costs_lines_and_a_new_one_is_found() {
        let directory = tempdir("syslog-late");
        let path = directory.join("log");
        let mut outlet = SyslogOutlet::new(&path);
        assert_eq!(outlet.send_lines(b"6a\n6b\n", SyslogFacility::default()), 2);
        let daemon = UnixDatagram::bind(&path).expect("a socket");
        outlet.retry_at = None;
        assert_eq!(outlet.send_lines(b"6c\n", SyslogFacility::default()), 0);
        drop(daemon);
        std::fs::remove_file(&path).expect("the socket");
        assert_eq!(outlet.send_lines(b"6d\n", SyslogFacility::default()), 1);
        std::fs::remove_dir_all(directory).expect("our own directory");
    }

    #[test]
    fn levels_and_facilities_have_their_numbers() {
        assert_eq!(SyslogLevel::new(7).map(SyslogLevel::mark), Some(b'7'));
        assert_eq!(SyslogLevel::new(8), None);
        assert_eq!(
            SyslogFacility::from_name("local7"),
            Some(SyslogFacility(23))
        );
        assert_eq!(SyslogFacility::from_name("LOCAL7"), None);
        assert!(
            SyslogFacility::NAMES
                .iter()
                .all(|name| SyslogFacility::from_name(name).is_some())
        );
    }

    fn tempdir(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("petrel-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }
}
