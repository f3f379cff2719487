//! Local time for log lines: `strftime` formats in the time zone of the machine.
//!
//! Uses `jiff`: it reads TZ and /etc/localtime without unsafe code and without the lock of libc's
//! `localtime_r`; it reports a wrong format, where `chrono` panics at the first use; and it works in a
//! process with threads, where `time` refuses local time.
//!
//! The zone is read once, so that it is known after a chroot. A change of TZ needs a restart.

use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;

/// A `strftime` format that has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeFormat(Box<str>);

impl TimeFormat {
    /// Checks `format` by using it once.
    ///
    /// # Errors
    /// A description of what is wrong with the format.
    pub fn new(format: &str) -> Result<TimeFormat, String> {
        let mut out = String::new();
        match broken_down(0).format_with_config(
            &Config::new().custom(PosixCustom::new()),
            format,
            &mut out,
        ) {
            Ok(()) => Ok(TimeFormat(format.into())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Appends the local time of `seconds` after the epoch.
    pub fn write(&self, seconds: u64, out: &mut Vec<u8>) {
        let config = Config::new().custom(PosixCustom::new());
        // The format was checked before, and every part of a time is known.
        let _ = broken_down(seconds).format_with_config(&config, &*self.0, out);
    }
}

/// Reads the time zone now, for a process that will not see /etc or /usr/share later.
pub(crate) fn load_zone() {
    zone();
}

fn broken_down(seconds: u64) -> BrokenDownTime {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    BrokenDownTime::from(&time.to_zoned(zone().clone()))
}

fn zone() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(|| TimeZone::try_system().unwrap_or(TimeZone::UTC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libc_knows_is_known() {
        for conversion in "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%".chars() {
            let format = TimeFormat::new(&format!("%{conversion}"));
            assert!(format.is_ok(), "%{conversion}: {format:?}");
        }
    }

    #[test]
    fn an_unknown_conversion_is_refused() {
        assert!(TimeFormat::new("%Y %!").is_err());
        assert!(TimeFormat::new("%").is_err());
    }

    #[test]
    fn the_time_is_written() {
        let mut out = Vec::new();
        TimeFormat::new("%s")
            .expect("known")
            .write(1_795_295_290, &mut out);
        assert_eq!(out, b"1795295290");
        out.clear();
        TimeFormat::new("%Y")
            .expect("known")
            .write(u64::MAX, &mut out);
        assert_eq!(out, b"9999");
    }
}
