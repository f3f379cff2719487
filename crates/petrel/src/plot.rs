//! `petrel plot`: draws the stage times of an access log.
//!
//! The drawing itself is in the crate petrel-plot. This file finds out how the lines are written: by
//! `--format`, by the configuration, or by the first line.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::Path;

use config::Config;
use engine::ledger::Stage;
use petrel_plot::chart::{self, Panel};
use petrel_plot::format::Format;
use petrel_plot::gnuplot;
use petrel_plot::line::{Entry, Lines, StageNames};
use petrel_plot::summary::Summary;

use crate::cli::{Plot, PlotBy};
use crate::load::{self, Origin};
use crate::terminal::{complain, fail, print};

/// Draws as `options` say. Returns the exit code.
pub(crate) fn run(options: &Plot) -> u8 {
    match draw(options) {
        Ok(code) => code,
        Err(message) => fail(&message),
    }
}

/// # Errors
/// What went wrong.
fn draw(options: &Plot) -> Result<u8, String> {
    let output = options.output.as_deref();
    if output.is_some_and(|path| path.extension() == Some(OsStr::new("png"))) {
        return Err(
            "petrel plot draws SVG. For PNG, give --gnuplot DIR and run gnuplot there on plot.gp"
                .to_owned(),
        );
    }
    if output.is_none() && options.gnuplot.is_none() && io::stdout().is_terminal() {
        return Err(
            "the drawing is SVG: give -o FILE.svg, or send standard output to a file".to_owned(),
        );
    }
    let mut log = open(&options.log)?;
    let lines = lines(options, &mut *log)?;
    let names: Vec<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
    let mut summary = Summary::new(&names);
    let result = match &options.gnuplot {
        None => summary.read(&mut *log, &lines, &mut |_, _| Ok(())),
        Some(directory) => for_gnuplot(directory, &mut summary, &mut *log, &lines),
    };
    result.map_err(|error| format!("{}: {error}", options.log.display()))?;
    tell(&summary);
    if summary.requests == 0 {
        return Err(format!(
            "{}: no line tells stage times",
            options.log.display()
        ));
    }
    if output.is_none() && options.gnuplot.is_some() {
        return Ok(0);
    }
    let panels = match options.by {
        None => &Panel::ALL[..],
        Some(PlotBy::Time) => &[Panel::Time],
        Some(PlotBy::Stage) => &[Panel::Stage],
        Some(PlotBy::Route) => &[Panel::Route],
    };
    let title = format!("Stage times: {}", options.log.display());
    let svg = chart::draw(&summary, panels, &title);
    match output {
        Some(path) => fs::write(path, svg)
            .map(|()| 0)
            .map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(print(svg.as_bytes())),
    }
}

/// Reads the log and writes data and script for gnuplot into `directory`.
fn for_gnuplot(
    directory: &Path,
    summary: &mut Summary,
    log: &mut dyn BufRead,
    lines: &Lines,
) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let create = |name| File::create(directory.join(name)).map(BufWriter::new);
    let mut requests = gnuplot::Requests::new(create(gnuplot::REQUESTS)?)?;
    summary.read(log, lines, &mut |entry: &Entry, names: &StageNames| {
        requests.add(entry, names)
    })?;
    requests.finish()?;
    let mut stages = create(gnuplot::STAGES)?;
    gnuplot::stages(&mut stages, summary)?;
    stages.flush()?;
    fs::write(directory.join(gnuplot::SCRIPT), gnuplot::script(summary))
}

/// What was read, on standard error: the drawing may go to standard output.
fn tell(summary: &Summary) {
    let mut text = format!(
        "{} lines, {} requests",
        chart::grouped(summary.lines),
        chart::grouped(summary.requests)
    );
    if let Some(first) = summary.first_bad {
        text += &format!(
            ", {} lines not understood, the first is line {first}",
            chart::grouped(summary.bad)
        );
    }
    complain(format_args!("{text}"));
}

/// The log, or standard input for `-`.
fn open(path: &Path) -> Result<Box<dyn BufRead>, String> {
    let mut log: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin()))
    } else {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
    };
    let begin = log
        .fill_buf()
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if begin.starts_with(&[0x1f, 0x8b]) {
        return Err(format!(
            "{} is compressed: zcat {0} | petrel plot -",
            path.display()
        ));
    }
    Ok(log)
}

const BUFFER_BYTES: usize = 1 << 18;

/// How the lines are written.
fn lines(options: &Plot, log: &mut dyn BufRead) -> Result<Lines, String> {
    let format = match (&options.format, &options.file) {
        (Some(format), _) => Some(format.clone()),
        (None, Some(file)) => {
            let file = std::path::absolute(file).map_err(|error| error.to_string())?;
            let shown = file.display().to_string();
            // The user need not have the right to read certificates, so the configuration is only parsed.
            let config = load::printable(&Origin::File(file))
                .ok_or_else(|| format!("{shown} cannot be read: petrel -t -f {shown} says why"))?;
            let format = configured(&config, &options.log);
            Some(format.ok_or_else(|| format!("{shown} sets no accesslog.format for this log"))?)
        }
        (None, None) => None,
    };
    match format.as_deref() {
        Some("json") => Ok(Lines::Json),
        Some("timing") => Ok(Lines::Timing),
        Some(format) => Format::parse(format).map(Lines::Format),
        None => {
            let begin = log.fill_buf().map_err(|error| error.to_string())?;
            Lines::guess(begin).ok_or_else(|| {
                "the format of the log is not known: give --format with the value of accesslog.format, or -f with the \
                 configuration"
                    .to_owned()
            })
        }
    }
}

/// The format of the log at `path`: that of the block which names this file, or else the first that is set.
fn configured(config: &Config, path: &Path) -> Option<String> {
    let log = fs::canonicalize(path).ok();
    let format_in = |block: &config::Block| {
        let entry = block.entry("accesslog.format")?;
        entry.value.as_str().map(str::to_owned)
    };
    let is_of_log = |block: &&config::Block| {
        let named = block
            .entry("accesslog.filename")
            .and_then(|entry| entry.value.as_str());
        named.is_some_and(|named| log.is_some() && fs::canonicalize(named).ok() == log)
    };
    let of_log = config.blocks.iter().filter(is_of_log).find_map(format_in);
    of_log.or_else(|| config.blocks.iter().find_map(format_in))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "server.document-root = \"/\"\naccesslog.format = \"%U %{stages}x\"\n\
        $HTTP[\"host\"] == \"a\" {\naccesslog.filename = \"LOG\"\naccesslog.format = \"%m %{stages}x\"\n}\n";

    #[test]
    fn the_format_is_that_of_the_block_that_names_the_log() {
        let directory = tempfile::tempdir().expect("a directory");
        let (log, file) = (
            directory.path().join("a.log"),
            directory.path().join("a.conf"),
        );
        fs::write(&log, "").expect("written");
        fs::write(&file, CONFIG.replace("LOG", &log.display().to_string())).expect("written");
        let config = load::printable(&Origin::File(file)).expect("readable");
        assert_eq!(configured(&config, &log).as_deref(), Some("%m %{stages}x"));
        let other = Path::new("/nonexistent.log");
        assert_eq!(configured(&config, other).as_deref(), Some("%U %{stages}x"));
    }

    #[test]
    fn a_log_is_drawn_and_written_for_gnuplot() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::write(path("a.log"), "/a parse=1,total=2\nnonsense\n").expect("written");
        let mut options = Plot {
            log: path("a.log"),
            output: Some(path("a.svg")),
            by: None,
            format: Some("%U %{stages}x".to_owned()),
            file: None,
            gnuplot: Some(path("plots")),
        };
        assert_eq!(draw(&options), Ok(0));
        let svg = fs::read_to_string(path("a.svg")).expect("written");
        assert!(svg.contains("1 lines not understood"), "{svg}");
        for name in [gnuplot::REQUESTS, gnuplot::STAGES, gnuplot::SCRIPT] {
            assert!(path("plots").join(name).exists(), "{name}");
        }
        options.format = None;
        assert!(draw(&options).is_err_and(|message| message.contains("--format")));
        options.output = Some(path("a.png"));
        assert!(draw(&options).is_err_and(|message| message.contains("gnuplot")));
        fs::write(path("a.log"), [0x1f, 0x8b, 8]).expect("written");
        options.output = Some(path("a.svg"));
        assert!(draw(&options).is_err_and(|message| message.contains("zcat")));
    }
}
