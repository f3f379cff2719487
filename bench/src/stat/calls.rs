//! The calls with which a server looks at paths for one request.

use crate::article::listing;
use crate::cli::Options;
use crate::interrupt;
use crate::peers::Chosen;
use crate::report::aligned;
use crate::stage::Place;
use crate::workload::{Suite, choose, files};
use std::fmt::Write as _;

/// How many of each kind, and then the calls themselves.
pub fn text(options: &Options, servers: &[Chosen]) -> Result<String, String> {
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    let workloads = choose(Suite::Stat, &options.workloads)?;
    files::make(&place.root, &workloads).map_err(|error| format!("cannot make files: {error}"))?;
    let mut rows = vec![["", "stat()", "open()"].map(str::to_owned).to_vec()];
    let mut listings = String::new();
    for workload in workloads {
        let able = |server: &&Chosen| server.peer.serves.contains(&workload.needs);
        for server in servers.iter().filter(able) {
            if interrupt::asked() {
                return Err("interrupted".to_owned());
            }
            let name = format!("{}: {}", server.peer.name, workload.title);
            let calls = match listing::calls(&place, server, workload) {
                Ok(calls) => calls,
                Err(error) => {
                    rows.push(vec![name, error, String::new()]);
                    continue;
                }
            };
            let of = |kind| calls.iter().filter(move |call| kind_of(call) == Some(kind));
            let number = |kind| of(kind).count().to_string();
            rows.push(vec![name.clone(), number(Kind::Stat), number(Kind::Open)]);
            let paths = calls.iter().filter(|call| kind_of(call).is_some());
            let paths: String = paths.map(|call| format!("  {call}\n")).collect();
            if !paths.is_empty() {
                let _infallible = write!(listings, "\n{name}\n{paths}");
            }
        }
    }
    Ok(format!(
        "\nThe calls of one warm request that name a path, traced\n{}{listings}",
        aligned(&rows)
    ))
}

/// What a call does with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It looks.
    Stat,
    /// It opens.
    Open,
}

/// `None` if the call names no path. With an empty path it is about an open file.
fn kind_of(call: &str) -> Option<Kind> {
    let (name, arguments) = call.split_once('(')?;
    if !arguments.contains('"') || arguments.contains("\"\"") {
        return None;
    }
    match name {
        "stat" | "lstat" | "newfstatat" | "statx" | "access" | "faccessat" | "faccessat2"
        | "readlink" | "readlinkat" => Some(Kind::Stat),
        "open" | "openat" | "openat2" => Some(Kind::Open),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_name_a_path_are_told_from_those_of_open_files() {
        let kind = |call| kind_of(call);
        assert_eq!(
            kind("newfstatat(AT_FDCWD, \"/home/docs/news\", 0x7ffd, 0) = -1 ENOENT (No such...)"),
            Some(Kind::Stat)
        );
        assert_eq!(
            kind("openat(AT_FDCWD, \"/home/.htaccess\", O_RDONLY|O_CLOEXEC) = -1 ENOENT"),
            Some(Kind::Open)
        );
        assert_eq!(kind("newfstatat(9, \"\", {...}, AT_EMPTY_PATH) = 0"), None);
        assert_eq!(kind("fstat(9, {st_mode=S_IFREG|0644}) = 0"), None);
        assert_eq!(kind("read(9, \"stat(\", 4096) = 5"), None);
    }
}
