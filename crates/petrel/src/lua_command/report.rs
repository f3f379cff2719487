//! The report that `petrel lua` prints.

use crate::cli;

use super::RequestResult;

/// The report: request, trace, source lines, log, response.
pub(crate) fn text(options: &cli::Lua, trial: &RequestResult) -> Vec<u8> {
    let mut text = format!(
        "request {} {}\n{}",
        options.method, options.url, trial.trace
    );
    let told = format!("{}{}", trial.trace, trial.log);
    for place in places(&told, &trial.script) {
        text += &place;
    }
    for line in trial
        .log
        .lines()
        .filter(|line| !line.contains("server started"))
    {
        text += &format!("log     {line}\n");
    }
    text += "\n";
    text += &trial.answer.head.replace("\r\n", "\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(&trial.answer.body);
    if !bytes.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    bytes
}

/// The error log as it would be if the server had run `script` itself: without the name of `tracer`, which
/// ran it, and without the tracer's part of stacks.
pub(crate) fn log_of_script(log: &str, tracer: &str, script: &str) -> String {
    let mut text = String::new();
    for line in log.lines() {
        text += &without_frames_of(tracer, line).replace(tracer, script);
        text.push('\n');
    }
    text
}

/// A log line whose `stack`, the innermost frame first, ends before the frames of `tracer` and of the C
/// function by which it called the script.
fn without_frames_of(tracer: &str, line: &str) -> String {
    let parts = line
        .split_once(" stack=\"")
        .and_then(|(before, rest)| Some((before, rest.split_once('"')?)));
    let Some((before, (stack, behind))) = parts else {
        return line.to_owned();
    };
    let mut frames: Vec<&str> = stack
        .split(" < ")
        .take_while(|frame| !frame.contains(tracer))
        .collect();
    while frames
        .last()
        .is_some_and(|frame| frame.starts_with("[C]: "))
    {
        frames.pop();
    }
    match frames.is_empty() {
        true => format!("{before}{behind}"),
        false => format!("{before} stack=\"{}\"{behind}", frames.join(" < ")),
    }
}

/// The source lines of the script that errors and stack traces refer to, in order of appearance.
fn places(told: &str, script: &str) -> Vec<String> {
    let source = std::fs::read(script).unwrap_or_default();
    let source = String::from_utf8_lossy(&source);
    let mut numbers: Vec<usize> = Vec::new();
    for (_, behind) in told
        .match_indices(script)
        .map(|(at, name)| told.split_at(at + name.len()))
    {
        let number = behind.strip_prefix(':').unwrap_or_default();
        let number = number.split(|c: char| !c.is_ascii_digit()).next();
        if let Some(number) = number.and_then(|number| number.parse().ok())
            && !numbers.contains(&number)
        {
            numbers.push(number);
        }
    }
    let shown = numbers.into_iter().filter_map(|number| {
        let line = source.lines().nth(number.checked_sub(1)?)?;
        Some(format!("{number:7} | {line}\n"))
    });
    shown.take(PLACES_MAX).collect()
}

/// The most source lines to show.
const PLACES_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_script_and_not_its_tracer() {
        let log = "(lua) /t/trace.lua: stopped stack=\"[C]: in function 'gsub' < /a.lua:1: in main chunk \
                   < [C]: in function 'native_xpcall' < /t/trace.lua:9: in function 'run'\" client=::1\n\
                   (lua) /a.lua:2: oh stack=\"[C]: in function 'error' < /t/trace.lua:8: in function 'run'\" b=c\n";
        assert_eq!(
            log_of_script(log, "/t/trace.lua", "/a.lua"),
            "(lua) /a.lua: stopped stack=\"[C]: in function 'gsub' < /a.lua:1: in main chunk\" client=::1\n\
             (lua) /a.lua:2: oh b=c\n"
        );
    }

    #[test]
    fn lines_that_are_named_are_shown_once() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("a.lua");
        std::fs::write(&path, "one\ntwo\nthree").expect("written");
        let script = path.display().to_string();
        let told = format!(
            "{script}:3: oh\n{script}:1: in f\n{script}:3: again {script}:9: {script}:x {script}"
        );
        assert_eq!(
            places(&told, &script),
            ["      3 | three\n", "      1 | one\n"]
        );
    }
}
