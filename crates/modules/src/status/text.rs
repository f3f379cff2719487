//! Numbers for readers, and text of clients made harmless: for the status page and `petrel top`.

use std::fmt;

/// The time that a figure is about, in the words of the status page and of `petrel top`.
pub mod span {
    /// At this moment.
    pub const NOW: &str = "now";
    /// The last second.
    pub const SECOND: &str = "last second";
    /// The last five seconds, of which rates are the mean, as in lighttpd.
    pub const SECONDS: &str = "last 5 s";
    /// The last ten seconds, of which the rates of routes are the mean.
    pub const TEN_SECONDS: &str = "last 10 s";
    /// The last minute.
    pub const MINUTE: &str = "last minute";
    /// The last minutes, older ones counting less.
    pub const MINUTES: &str = "last minutes";
    /// The start of the server.
    pub const START: &str = "since start";
}

/// A count or a rate: `0.3`, `412`, `12.4k`, `1.2M`.
#[derive(Clone, Copy, Debug)]
pub struct ShownCount(pub f64);

impl fmt::Display for ShownCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, ["", "k", "M", "G", "T"])
    }
}

/// A number of bytes, in powers of 1000: `412 B`, `12.4 kB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, [" B", " kB", " MB", " GB", " TB"])
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, mut value: f64, units: [&str; 5]) -> fmt::Result {
    let mut unit = 0;
    // What would be rounded to 1000 belongs to the next unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match unit {
        0 => usize::from(value < 9.95 && value.fract() >= 0.05),
        _ => usize::from(value < 99.95),
    };
    write!(f, "{value:.digits$}{}", units[unit])
}

/// A time in microseconds: `87 µs`, `4.2 ms`, `412 ms`, `2.1 s`, `4 min 10 s`.
#[derive(Clone, Copy, Debug)]
pub struct Micros(pub u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Micros(micros) = *self;
        match micros {
            0..1_000 => write!(f, "{micros} µs"),
            1_000..10_000 => write!(f, "{:.1} ms", micros as f64 / 1e3),
            10_000..1_000_000 => write!(f, "{} ms", micros / 1_000),
            1_000_000..100_000_000 => write!(f, "{:.1} s", micros as f64 / 1e6),
            _ => Age(micros / 1_000_000).fmt(f),
        }
    }
}

/// A time in seconds, in its two largest units: `41 s`, `3 min 5 s`, `2 h 10 min`, `8 d 3 h`.
#[derive(Clone, Copy, Debug)]
pub struct Age(pub u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Age(seconds) = *self;
        let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3_600 => write!(f, "{minutes} min {} s", seconds % 60),
            3_600..86_400 => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{days} d {} h", hours % 24),
        }
    }
}

/// A part of a whole in percent: `0 %`, `0.4 %`, `12 %`. What is not nothing is not shown as nothing.
#[derive(Clone, Copy, Debug)]
pub struct Percent(pub u64, pub u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percent(part, whole) = *self;
        match (u128::from(part) * 1_000).checked_div(whole.into()) {
            Some(0) if part > 0 => f.write_str("0.1 %"),
            Some(tenths @ 1..10) => write!(f, "0.{tenths} %"),
            Some(tenths) => write!(f, "{} %", tenths / 10),
            None => f.write_str("0 %"),
        }
    }
}

/// Text that a client may have chosen, cut to `chars_max` characters. Characters that do not show, or that
/// change the order in which others are shown, become `\u{…}`.
#[derive(Clone, Copy, Debug)]
pub struct Foreign<'a> {
    /// The text.
    pub text: &'a str,
    /// How many characters of it are shown.
    pub chars_max: usize,
}

impl fmt::Display for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let is_plain = |byte| matches!(byte, b' '..=b'~');
        if self.text.len() <= self.chars_max && self.text.bytes().all(is_plain) {
            return f.write_str(self.text);
        }
        for (index, c) in self.text.chars().enumerate() {
            if index == self.chars_max {
                return f.write_char('…');
            }
            match is_invisible(c) {
                true => write!(f, "{}", c.escape_unicode())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Controls, and format characters of Unicode that have no shape: marks and overrides of the direction,
/// joiners, variation selectors, tags, and line and paragraph separators.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_at_most() {
        let counts = [
            0.0,
            0.26,
            3.0,
            3.12,
            42.4,
            999.4,
            999.6,
            12_430.0,
            999_600.0,
            16_078_535.0,
        ];
        let shown: Vec<String> = counts
            .iter()
            .map(|count| ShownCount(*count).to_string())
            .collect();
        assert_eq!(
            shown,
            [
                "0", "0.3", "3", "3.1", "42", "999", "1.0k", "12.4k", "1.0M", "16.1M"
            ]
        );
        assert_eq!(Bytes(412.0).to_string(), "412 B");
        assert_eq!(Bytes(278_387_786_140.0).to_string(), "278 GB");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let shown =
            [0, 87, 4_200, 412_345, 2_100_000, 250_000_000].map(|us| Micros(us).to_string());
        assert_eq!(
            shown,
            ["0 µs", "87 µs", "4.2 ms", "412 ms", "2.1 s", "4 min 10 s"]
        );
        assert_eq!(Age(8 * 86_400 + 3 * 3_600 + 9).to_string(), "8 d 3 h");
        let shown = [(0, 9), (1, 1 << 20), (4, 1_000), (999, 1_000)];
        let shown = shown.map(|(part, whole)| Percent(part, whole).to_string());
        assert_eq!(shown, ["0 %", "0.1 %", "0.4 %", "99 %"]);
        assert_eq!(Percent(u64::MAX, u64::MAX).to_string(), "100 %");
        assert_eq!(Percent(5, 0).to_string(), "0 %");
    }

    #[test]
    fn text_of_clients_shows_what_it_hides() {
        let shown = |text| {
            Foreign {
                text,
                chars_max: 12,
            }
            .to_string()
        };
        assert_eq!(shown("/gpj\u{202e}exe"), "/gpj\\u{202e}exe");
        assert_eq!(shown("a\u{1b}[31m\n"), "a\\u{1b}[31m\\u{a}");
        assert_eq!(shown("0123456789abcdef"), "0123456789ab…");
        assert_eq!(shown("0123456789a~"), "0123456789a~");
        assert_eq!(shown("a\u{7f}"), "a\\u{7f}");
        assert_eq!(shown("grüße"), "grüße");
    }
}
