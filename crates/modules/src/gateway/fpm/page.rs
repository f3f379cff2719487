//! Reads the page on which php-fpm tells its state (`pm.status_path`), in its form `json&full`.
//!
//! Children are counted from the list of processes. php-fpm's own counters of active processes are not used:
//! they also count requests that are no scripts, such as FCGI_GET_VALUES.

use serde::Deserialize;

use crate::gateway::limits;

/// The state of a php-fpm pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FpmPool {
    /// Its name in php-fpm's configuration.
    pub(crate) name: String,
    /// How php-fpm starts children (`pm`): `static`, `dynamic` or `ondemand`.
    pub(crate) manager: String,
    /// Children that wait for a connection. The one that answers with the page is among them.
    pub(crate) idle: u64,
    /// Children that wait for the next request on a persistent connection.
    pub(crate) reading: u64,
    /// Children that work on a request.
    pub(crate) working: u64,
    /// Connections that no child has accepted yet. Linux tells it for TCP only.
    pub(crate) listen_queue: u64,
    /// The most there have been.
    pub(crate) listen_queue_max: u64,
    /// How often `pm.max_children` kept php-fpm from starting another child.
    pub(crate) max_children_reached: u64,
    /// The memory of the children's last requests, where php-fpm has told it.
    pub(crate) memory: Option<ChildMemory>,
    /// The scripts that have been running for longest, the oldest first: at most
    /// [`limits::FPM_SCRIPTS_SHOWN`].
    pub(crate) scripts: Vec<RunningScript>,
}

/// Bytes that the last finished requests of the children have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildMemory {
    /// The most.
    pub(crate) max_bytes: u64,
    /// The mean, at least 1.
    pub(crate) mean_bytes: u64,
}

/// What a child works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningScript {
    /// The child.
    pub(crate) pid: u64,
    /// The beginning of the URI, without its query.
    pub(crate) uri: String,
    /// The beginning of the script's path.
    pub(crate) script: String,
    /// For how long at most, in microseconds: on a persistent connection php-fpm may count the time before
    /// the request, too.
    pub(crate) age_us: u64,
}

impl FpmPool {
    /// Reads the body of the page that was asked for at `status_path`.
    ///
    /// # Errors
    /// It is no such page, or too large; a sentence that says why.
    pub(crate) fn read(body: &[u8], status_path: &[u8]) -> Result<FpmPool, String> {
        // Older versions of php-fpm do not make sure that URIs are UTF-8.
        let text = String::from_utf8_lossy(body);
        let page: PageJson = serde_json::from_str(&text).map_err(|error| {
            let why = shortened(&error.to_string(), limits::FPM_ERROR_BYTES_MAX);
            format!("its reply is not the status of php-fpm as JSON: {why}")
        })?;
        let processes = page.processes;
        if processes.len() > limits::FPM_PROCESSES_MAX {
            return Err(format!(
                "its reply lists {} processes, more than {}",
                processes.len(),
                limits::FPM_PROCESSES_MAX
            ));
        }
        let mut pool = FpmPool {
            name: shown(&page.pool),
            manager: shown(&page.manager),
            listen_queue: page.listen_queue,
            listen_queue_max: page.listen_queue_max,
            max_children_reached: page.max_children_reached,
            memory: memory(&processes, status_path),
            ..FpmPool::default()
        };
        let mut working = Vec::new();
        for process in &processes {
            match &*process.state {
                "Idle" => pool.idle += 1,
                "Reading headers" => pool.reading += 1,
                _ if process.tells_status(status_path) => pool.idle += 1,
                _ => working.push(process),
            }
        }
        pool.working = working.len() as u64;
        working.sort_by_key(|process| std::cmp::Reverse(process.duration_us));
        working.truncate(limits::FPM_SCRIPTS_SHOWN);
        pool.scripts = working.into_iter().map(ProcessJson::running).collect();
        Ok(pool)
    }

    /// All children.
    pub(crate) fn children(&self) -> u64 {
        self.idle + self.reading + self.working
    }
}

#[derive(Deserialize)]
struct PageJson {
    pool: String,
    #[serde(rename = "process manager")]
    manager: String,
    #[serde(rename = "listen queue")]
    listen_queue: u64,
    #[serde(rename = "max listen queue")]
    listen_queue_max: u64,
    #[serde(rename = "max children reached")]
    max_children_reached: u64,
    processes: Vec<ProcessJson>,
}

#[derive(Deserialize)]
struct ProcessJson {
    pid: u64,
    state: String,
    #[serde(rename = "request duration")]
    duration_us: u64,
    #[serde(rename = "request uri")]
    uri: String,
    script: String,
    #[serde(rename = "last request memory")]
    memory_bytes: u64,
}

impl ProcessJson {
    /// The URI without its query, which may hold secrets.
    fn path(&self) -> &str {
        self.uri.split('?').next().unwrap_or_default()
    }

    /// Whether its request, or its last one, is a question for the status and no script.
    fn tells_status(&self, status_path: &[u8]) -> bool {
        self.path().as_bytes() == status_path
    }

    fn running(&self) -> RunningScript {
        RunningScript {
            pid: self.pid,
            uri: shown(self.path()),
            script: shown(&self.script),
            age_us: self.duration_us,
        }
    }
}

fn memory(processes: &[ProcessJson], status_path: &[u8]) -> Option<ChildMemory> {
    let of_scripts = processes
        .iter()
        .filter(|process| !process.tells_status(status_path))
        .map(|process| process.memory_bytes)
        .filter(|bytes| *bytes > 0);
    let (count, max_bytes, sum) = of_scripts.fold((0, 0, 0u64), |(count, max, sum), bytes| {
        (count + 1, bytes.max(max), sum.saturating_add(bytes))
    });
    Some(ChildMemory {
        max_bytes,
        mean_bytes: sum.checked_div(count)?.max(1),
    })
}

fn shown(text: &str) -> String {
    shortened(text, limits::FPM_TEXT_BYTES_MAX)
}

/// The beginning of `text` without control characters: whole characters, and at most `bytes_max` bytes.
pub(super) fn shortened(text: &str, bytes_max: usize) -> String {
    let mut short = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if short.len() + c.len_utf8() > bytes_max {
            break;
        }
        short.push(c);
    }
    short
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const STATUS: &[u8] = b"/fpm-status";

    /// A page of PHP 8.2: a script of 0.9 s, one behind fastcgi_finish_request(), a child on a persistent
    /// connection, an idle one, and the question itself.
    pub(in crate::gateway::fpm) const PAGE: &str = r#"{"pool":"www","process manager":"dynamic","start time":1795869391,"start since":2,"accepted conn":3,"listen queue":2,"max listen queue":7,"listen queue len":511,"idle processes":1,"active processes":9,"total processes":5,"max active processes":9,"max children reached":4,"slow requests":0, "processes":[{"pid":11,"state":"Running","start time":1795869391,"start since":2,"requests":1,"request duration":881328,"request method":"GET","request uri":"\/slow.php?token=secret","content length":0,"user":"-","script":"\/srv\/www\/slow.php","last request cpu":0.00,"last request memory":4000000},{"pid":12,"state":"Finishing","start time":1795869391,"start since":2,"requests":1,"request duration":991275,"request method":"GET","request uri":"\/mail.php","content length":0,"user":"-","script":"\/srv\/www\/mail.php","last request cpu":0.00,"last request memory":0},{"pid":13,"state":"Reading headers","start time":1795869393,"start since":0,"requests":1,"request duration":59000584,"request method":"GET","request uri":"\/a.php","content length":0,"user":"-","script":"-","last request cpu":99.50,"last request memory":2000000},{"pid":14,"state":"Idle","start time":1795869393,"start since":0,"requests":1,"request duration":584,"request method":"GET","request uri":"\/fpm-status?json&full","content length":0,"user":"-","script":"-","last request cpu":0.00,"last request memory":9000000},{"pid":15,"state":"Running","start time":1795869393,"start since":0,"requests":1,"request duration":584,"request method":"GET","request uri":"\/fpm-status?json&full","content length":0,"user":"-","script":"-","last request cpu":0.00,"last request memory":9000000}]}"#;

    fn read(page: &str) -> Result<FpmPool, String> {
        FpmPool::read(page.as_bytes(), STATUS)
    }

    #[test]
    fn children_are_counted_by_what_they_do() {
        let pool = read(PAGE).expect("it is a page");
        assert_eq!((&*pool.name, &*pool.manager), ("www", "dynamic"));
        assert_eq!((pool.working, pool.reading, pool.idle), (2, 1, 2));
        assert_eq!(pool.children(), 5);
        assert_eq!((pool.listen_queue, pool.listen_queue_max), (2, 7));
        assert_eq!(pool.max_children_reached, 4);
        let memory = ChildMemory {
            max_bytes: 4_000_000,
            mean_bytes: 3_000_000,
        };
        assert_eq!(
            pool.memory,
            Some(memory),
            "scripts' only, where it is known"
        );
        let script = |pid, name: &str, age_us| RunningScript {
            pid,
            uri: format!("/{name}"),
            script: format!("/srv/www/{name}"),
            age_us,
        };
        let scripts = [
            script(12, "mail.php", 991_275),
            script(11, "slow.php", 881_328),
        ];
        assert_eq!(pool.scripts, scripts, "no query");
    }

    #[test]
    fn memory_is_unknown_until_a_script_has_ended() {
        let page = PAGE.replace("4000000", "0").replace("2000000", "0");
        assert_eq!(read(&page).expect("it is a page").memory, None);
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let html = "<!DOCTYPE html><html><body>File not found.</body></html>";
        let without = |field: &str| PAGE.replace(field, "\"other\"");
        for (page, why) in [
            (html.to_owned(), "expected value"),
            (String::new(), "EOF"),
            ("[]".to_owned(), "invalid length"),
            ("null".to_owned(), "invalid type"),
            (
                PAGE.replacen('{', &format!("{{\"x\":{}", "[".repeat(500_000)), 1),
                "expected `,`",
            ),
            (without("\"pool\""), "missing field `pool`"),
            (without("\"listen queue\""), "missing field `listen queue`"),
            (
                without("\"request duration\""),
                "missing field `request duration`",
            ),
            (without("\"processes\""), "missing field `processes`"),
            (PAGE.replace("\"www\"", "7"), "expected a string"),
            (
                PAGE.replace("\"listen queue\":2", "\"listen queue\":-1"),
                "u64",
            ),
            (
                PAGE.replace("\"listen queue\":2", "\"listen queue\":2.5"),
                "u64",
            ),
            (
                PAGE.replace("\"listen queue\":2", "\"listen queue\":\"2\""),
                "u64",
            ),
            (
                PAGE.replace("\"pid\":11", "\"pid\":99999999999999999999"),
                "u64",
            ),
            (format!("{PAGE}x"), "trailing characters"),
        ] {
            let error = read(&page).expect_err(&page[..page.len().min(80)]);
            assert!(error.contains(why), "{why}: {error}");
            assert!(error.len() < 300, "{error}");
        }
    }

    #[test]
    fn an_error_has_no_text_of_the_page_without_end() {
        let evil = format!("\"\\u001b]0;{}\"", "é".repeat(100_000));
        let error = read(&PAGE.replace("4000000", &evil)).expect_err("it is no number");
        assert!(error.len() < 300 && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_page_that_lies_is_counted_as_it_stands() {
        let most = u64::MAX.to_string();
        let page = PAGE.replace("4000000", &most).replace("2000000", &most);
        let page = page
            .replace("881328", &most)
            .replace("\"listen queue\":2", &format!("\"listen queue\":{most}"));
        let pool = read(&page).expect("it is a page");
        assert_eq!(pool.listen_queue, u64::MAX);
        assert_eq!(pool.scripts[0].age_us, u64::MAX);
        assert_eq!(pool.memory.expect("it is known").max_bytes, u64::MAX);
    }

    #[test]
    fn the_number_of_processes_and_of_shown_scripts_is_limited() {
        let (head, rest) = PAGE.split_once('[').expect("a list");
        let process = rest.split_once('}').expect("an object").0;
        let page = |count| {
            format!(
                "{head}[{}]}}",
                vec![format!("{process}}}"); count].join(",")
            )
        };
        let pool = read(&page(limits::FPM_PROCESSES_MAX)).expect("so many there may be");
        assert_eq!(pool.working, limits::FPM_PROCESSES_MAX as u64);
        assert_eq!(pool.scripts.len(), limits::FPM_SCRIPTS_SHOWN);
        let error = read(&page(limits::FPM_PROCESSES_MAX + 1)).expect_err("one too many");
        assert!(error.contains("4097 processes"), "{error}");
    }

    #[test]
    fn texts_are_short_and_have_no_control_characters() {
        let uri = format!("\\u001b\\r\\n/{}", "ü".repeat(40));
        let pool = read(&PAGE.replace("\\/slow.php", &uri)).expect("it is a page");
        assert_eq!(
            pool.scripts[1].uri,
            format!("/{}", "ü".repeat(27)),
            "55 bytes of 56"
        );
        let body = PAGE.replace("\\/slow.php", "BYTE").into_bytes();
        let place = body.windows(4).position(|four| four == b"BYTE");
        let mut invalid = body;
        invalid[place.expect("it is there")] = 0xff;
        let pool = FpmPool::read(&invalid, STATUS).expect("it is a page");
        assert_eq!(pool.scripts[1].uri, "\u{fffd}YTE");
    }

    /// A page with any one byte changed, or that ends anywhere, is a page or an error.
    #[test]
    fn no_byte_of_a_page_can_end_the_server() {
        for end in 0..PAGE.len() {
            assert!(read(&PAGE[..end]).is_err(), "{end}");
        }
        for place in 0..PAGE.len() {
            for byte in [0, b'"', b'\\', b'{', b']', b'-', b'9', b'e', 0x80, 0xff] {
                let mut page = PAGE.as_bytes().to_vec();
                page[place] = byte;
                if let Ok(pool) = FpmPool::read(&page, STATUS) {
                    assert!(pool.children() == 5, "{place} {byte}");
                    let texts = pool
                        .scripts
                        .iter()
                        .flat_map(|script| [&script.uri, &script.script]);
                    for text in texts {
                        assert!(text.len() <= limits::FPM_TEXT_BYTES_MAX, "{place} {byte}");
                    }
                }
            }
        }
    }
}
