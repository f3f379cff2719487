//! Every plot's data and a script for gnuplot, for drawings in a style of one's own: `gnuplot NAME.gp` makes
//! `NAME.png` of `NAME.dat`.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// A table with names of rows and columns.
pub struct Data {
    title: String,
    columns: usize,
    /// Whether all rows are numbers with a unit: then it is a curve for each column.
    is_curve: bool,
    /// Whether each column is drawn by itself, because it has its own unit.
    is_apart: bool,
    text: String,
}

impl Data {
    /// An empty table.
    pub fn new<'a>(title: &str, columns: impl Iterator<Item = &'a str>) -> Self {
        let mut text = "row".to_owned();
        let mut count = 0;
        for column in columns {
            let _infallible = write!(text, " {}", quoted(column));
            count += 1;
        }
        text.push('\n');
        Self {
            title: title.to_owned(),
            columns: count,
            is_curve: true,
            is_apart: false,
            text,
        }
    }

    /// Draws each column by itself.
    pub fn apart(mut self) -> Self {
        self.is_apart = true;
        self
    }

    /// Adds a row; `None`: there is no figure.
    pub fn row(&mut self, name: &str, values: impl Iterator<Item = Option<f64>>) {
        self.is_curve &= leading_number(name).is_some();
        self.text += &quoted(name);
        for value in values {
            let _infallible = match value {
                Some(value) => write!(self.text, " {value}"),
                None => write!(self.text, " NaN"),
            };
        }
        self.text.push('\n');
    }

    /// Writes `NAME.dat` and `NAME.gp`.
    pub fn write(&self, directory: &Path, name: &str) -> io::Result<()> {
        fs::write(directory.join(format!("{name}.dat")), &self.text)?;
        fs::write(directory.join(format!("{name}.gp")), self.script(name))
    }

    /// gnuplot reads the number before a unit.
    fn script(&self, name: &str) -> String {
        let (last, title) = (self.columns + 1, quoted(&self.title));
        let (settings, each) = match self.is_curve {
            true => (
                "set logscale x 2",
                "using (real(strcol(1))):i with linespoints title columnheader(i)",
            ),
            false => (
                "set style data histogram\nset style fill solid\nset xtics rotate by -30",
                "using i:xtic(1) title columnheader(i)",
            ),
        };
        let drawing = match self.is_apart {
            true => format!(
                "set multiplot layout 1,{} title {title}\n\
                 do for [i=2:{last}] {{ plot \"{name}.dat\" {each} }}\nunset multiplot\n",
                self.columns.max(1)
            ),
            false => {
                format!("set title {title}\nplot for [i=2:{last}] \"{name}.dat\" {each}\n")
            }
        };
        format!(
            "# gnuplot {name}.gp\nset terminal png size 1200,700\nset output \"{name}.png\"\n\
             set key outside below\nset yrange [0:*]\n{settings}\n{drawing}"
        )
    }
}

/// The number at the beginning of `64 threads`.
fn leading_number(name: &str) -> Option<f64> {
    name.split(' ').next()?.parse().ok()
}

/// As gnuplot quotes text.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace(['"', '\\'], "'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn table(rows: [&str; 2]) -> Data {
        let mut data = Data::new("A \"title\"", ["petrel: MB/s", "other"].into_iter());
        data.row(rows[0], [Some(1.5), None].into_iter());
        data.row(rows[1], [Some(2.0), Some(4.0)].into_iter());
        data
    }

    #[test]
    fn a_missing_figure_is_no_zero() {
        let data = table(["write", "auto"]);
        let lines: Vec<_> = data.text.lines().collect();
        assert_eq!(
            lines,
            [
                "row \"petrel: MB/s\" \"other\"",
                "\"write\" 1.5 NaN",
                "\"auto\" 2 4"
            ]
        );
    }

    #[test]
    fn rows_that_are_numbers_make_a_curve() {
        let is_curve = |rows| table(rows).script("x").contains("linespoints");
        assert!(is_curve(["1 thread", "64 threads"]));
        assert!(!is_curve(["1 thread", "auto"]));
    }

    /// Where gnuplot is not installed, there is nothing to see.
    #[test]
    fn gnuplot_draws_each() {
        let (numbers, names) = (["1 thread", "64 threads"], ["write", "auto"]);
        for table in [table(numbers), table(names), table(names).apart()] {
            let directory = tempfile::tempdir().unwrap();
            table.write(directory.path(), "x").unwrap();
            let mut gnuplot = Command::new("gnuplot");
            let Ok(done) = gnuplot.arg("x.gp").current_dir(&directory).output() else {
                return;
            };
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success() && said.is_empty(), "{said}");
            let png = std::fs::read(directory.path().join("x.png")).unwrap();
            assert!(png.starts_with(b"\x89PNG") && png.len() > 1000);
        }
    }
}
