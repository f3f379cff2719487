//! Data and a script for gnuplot.
//!
//! The first picture is that of lighttpd 1.5's developers: each request is a point for each of its three
//! times, one above the other, at the time of its line. The second one has the mean times of all stages.

use std::io::{self, Write};

use crate::line::{Entry, StageNames};
use crate::summary::Summary;

/// The file with a line for each request.
pub const REQUESTS: &str = "requests.dat";

/// The file with a line for each part of the time.
pub const STAGES: &str = "stages.dat";

/// The script.
pub const SCRIPT: &str = "plot.gp";

/// Writes a line for each request.
#[derive(Debug)]
pub struct Requests<W> {
    out: W,
    first: Option<i64>,
    count: i64,
}

impl<W: Write> Requests<W> {
    /// Begins the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut out: W) -> io::Result<Requests<W>> {
        writeln!(
            out,
            "# seconds since the first line, then milliseconds: read-queue-wait read-time write-time total"
        )?;
        Ok(Requests {
            out,
            first: None,
            count: 0,
        })
    }

    /// Adds a request.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, entry: &Entry, names: &StageNames) -> io::Result<()> {
        let at = entry.at.unwrap_or(self.count);
        self.count += 1;
        let first = *self.first.get_or_insert(at);
        let mut times = [0; 3];
        for (stage, nanos) in &entry.stages {
            if let Some(time) = lighttpd_time(names.name(*stage)).and_then(|n| times.get_mut(n)) {
                *time = nanos.saturating_add(*time);
            }
        }
        write!(self.out, "{:.6}", at.saturating_sub(first) as f64 / 1e6)?;
        for nanos in times.into_iter().chain([entry.total]) {
            write!(self.out, " {:.6}", nanos as f64 / 1e6)?;
        }
        writeln!(self.out)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Which of lighttpd 1.5's three times `stage` belongs to: waiting for a disk thread, reading, sending.
fn lighttpd_time(stage: &str) -> Option<usize> {
    match stage {
        "disk-queue" => Some(0),
        "open" | "stat" | "read-file" => Some(1),
        "send" | "throttle" | "client-drain" => Some(2),
        _ => None,
    }
}

/// Writes the mean times of all stages by time, in milliseconds, with a head that names the columns.
///
/// # Errors
/// It cannot be written.
pub fn stages(out: &mut dyn Write, summary: &Summary) -> io::Result<()> {
    let stages = summary.stages_by_time();
    write!(out, "seconds requests")?;
    for stage in &stages {
        write!(out, " {}", summary.names.name(*stage))?;
    }
    writeln!(out)?;
    for (n, part) in summary.timeline.parts.iter().enumerate() {
        let seconds = n as f64 * summary.timeline.width as f64 / 1e6;
        write!(out, "{seconds} {}", part.requests)?;
        for stage in &stages {
            let nanos = part.stages.get(*stage).copied().unwrap_or(0);
            write!(
                out,
                " {:.6}",
                nanos as f64 / 1e6 / part.requests.max(1) as f64
            )?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The script. It makes `requests.png` and `stages.png` beside itself, wherever it is called from.
pub fn script(summary: &Summary) -> String {
    let last = summary.stages_by_time().len() + 2;
    let mut script = HEAD.to_owned();
    script += "\nset output \"stages.png\"\nset title \"mean stage times\"\n\
               set ylabel \"ms a request\"\nset style data filledcurves x1\n";
    if last > 2 {
        // Those above are drawn first: each curve is the sum of its column and of those after it.
        script += &format!(
            "plot for [i=3:{last}] \"{STAGES}\" using 1:(sum [j=i:{last}] column(j)) title columnheader(i)\n"
        );
    }
    script
}

const HEAD: &str = "\
# gnuplot plot.gp
set terminal png size 1200,700
set autoscale
set key outside
set xlabel \"seconds\"
set ylabel \"ms per request\"

set output \"requests.png\"
set title \"each request, as in lighttpd 1.5\"
plot \\
  \"requests.dat\" using 1:2 title \"read-queue-wait\" with points pointsize 0.2, \\
  \"requests.dat\" using 1:($2 + $3) title \"read-time\" with points pointsize 0.2, \\
  \"requests.dat\" using 1:($2 + $3 + $4) title \"write-time\" with points pointsize 0.2
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::line::Lines;

    #[test]
    fn the_columns_are_those_of_lighttpd_and_of_all_stages() {
        let log = "5 disk-queue=680000,open=1000,read-file=5000,send=9000,client-drain=1000,total=700000\n\
                   6 parse=1000,total=1000\n";
        let lines = Lines::Format(Format::parse("%{sec}t %{stages}x").expect("sound"));
        let mut summary = Summary::new(&[]);
        let mut requests = Requests::new(Vec::new()).expect("in memory");
        summary
            .read(&mut log.as_bytes(), &lines, &mut |entry, names| {
                requests.add(entry, names)
            })
            .expect("in memory");
        let text = String::from_utf8(requests.out).expect("ASCII");
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "0.000000 680.000000 6.000000 10.000000 700.000000",
                "1.000000 0.000000 0.000000 0.000000 1.000000"
            ]
        );
        let mut out = Vec::new();
        stages(&mut out, &summary).expect("in memory");
        let text = String::from_utf8(out).expect("ASCII");
        assert!(
            text.starts_with("seconds requests disk-queue send read-file "),
            "{text}"
        );
        assert!(
            text.contains("\n0 1 680.000000 9.000000 5.000000 "),
            "{text}"
        );
        assert!(script(&summary).contains("for [i=3:8]"));
    }
}
