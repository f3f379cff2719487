//! Requests for a configuration: each of its targets at each of its hosts, then some at random, always the same ones.

use std::fmt;
use std::net::Ipv4Addr;

use petrel_tests::{Client, ClientError, Response, Server};

use crate::differential::configuration::Configuration;

/// Requests at random with each field of a configuration, beside one for the first target at each host.
const OF_FIELD: usize = 2;

/// Requests at random for one configuration.
const RANDOM: usize = 70;

/// Targets that every configuration is asked.
const COMMON: [&str; 9] = [
    "/",
    "/index.html",
    "/a.txt",
    "/a.txt?q=1",
    "/dir/",
    "/dir",
    "/dir/x.txt",
    "/b%20c.txt",
    "/missing",
];

/// Fields that requests at random may have in every configuration.
const COMMON_FIELDS: [&str; 4] = [
    "Range: bytes=2-5",
    "If-None-Match: ETAG",
    "If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT",
    "X-Other: x",
];

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    from: Ipv4Addr,
    method: String,
    target: String,
    version: &'static str,
    host: String,
    /// A whole line; `ETAG` stands for the one that the server sent for the same target.
    pub(crate) field: Option<String>,
}

/// The requests for `configuration`.
pub(crate) fn requests(configuration: &Configuration) -> Vec<Request> {
    let mut all = Vec::new();
    let targets: Vec<&str> = configuration
        .paths
        .iter()
        .map(String::as_str)
        .chain(COMMON)
        .collect();
    for host in &configuration.hosts {
        for target in &targets {
            all.push(Request::get(configuration.from[0], host, target));
        }
    }
    let mut random = Random(targets.len() as u64);
    for line in &configuration.fields {
        for host in &configuration.hosts {
            let mut request = Request::get(configuration.from[0], host, targets[0]);
            request.field = Some(line.clone());
            all.push(request);
        }
        for _ in 0..OF_FIELD {
            let mut request = random.request(configuration, &targets);
            request.field = Some(line.clone());
            all.push(request);
        }
    }
    for number in 0..RANDOM {
        let mut request = random.request(configuration, &targets);
        if number % 3 == 0 {
            let fields: Vec<&str> = configuration
                .fields
                .iter()
                .map(String::as_str)
                .chain(COMMON_FIELDS)
                .collect();
            request.field = Some((*random.one_of(&fields)).to_owned());
        }
        if number % 2 == 0 {
            request.target = random.changed(&request.target);
        }
        request.method = random.method(configuration);
        if number % 23 == 0 {
            request.version = "HTTP/1.0";
        }
        all.push(request);
    }
    all
}

impl Request {
    pub(crate) fn get(from: Ipv4Addr, host: &str, target: &str) -> Request {
        Request {
            from,
            method: "GET".to_owned(),
            target: target.to_owned(),
            version: "HTTP/1.1",
            host: host.to_owned(),
            field: None,
        }
    }

    /// The server's answer on a connection of its own.
    pub(crate) fn send_to(&self, server: &Server) -> Answer {
        let etag = match &self.field {
            Some(line) if line.contains("ETAG") => {
                let plain = Request {
                    field: None,
                    method: "GET".to_owned(),
                    ..self.clone()
                };
                let answer = plain.exchange(server, "");
                let etag = answer.as_ref().ok().and_then(|answer| answer.field("ETag"));
                etag.unwrap_or("\"none\"").to_owned()
            }
            _ => String::new(),
        };
        Answer {
            response: self.exchange(server, &etag),
            is_to_head: self.method == "HEAD",
            root: server.tree().root().display().to_string(),
            port: server.port().to_string(),
        }
    }

    fn exchange(&self, server: &Server, etag: &str) -> Result<Response, ClientError> {
        let mut client = Client::connect_from(self.from, server.address());
        client.send(self.head().replace("ETAG", etag));
        match self.method.as_str() {
            "HEAD" => client.try_response_to_head(),
            _ => client.try_response(),
        }
    }

    fn head(&self) -> String {
        let Request {
            method,
            target,
            version,
            host,
            ..
        } = self;
        let mut head = format!("{method} {target} {version}\r\nHost: {host}\r\n");
        if let Some(line) = &self.field {
            head.push_str(&format!("{line}\r\n"));
        }
        if matches!(method.as_str(), "POST" | "PUT" | "PROPFIND") {
            head.push_str("Content-Length: 0\r\n");
        }
        head + "\r\n"
    }
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request {
            method,
            target,
            host,
            ..
        } = self;
        write!(formatter, "{method} {host} {target}")?;
        if self.version != "HTTP/1.1" {
            write!(formatter, " {}", self.version)?;
        }
        if let Some(line) = &self.field {
            write!(formatter, " ({line})")?;
        }
        match self.from {
            Ipv4Addr::LOCALHOST => Ok(()),
            from => write!(formatter, " from {from}"),
        }
    }
}

/// What a server made of a request.
pub(crate) struct Answer {
    pub(crate) response: Result<Response, ClientError>,
    pub(crate) is_to_head: bool,
    /// The directory of the server's tree.
    root: String,
    port: String,
}

/// `text` with a name for `port`, where it is not a part of a longer number: the content of a file is one.
fn with_port_named(text: &str, port: &str) -> String {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let (mut named, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(port) {
        let (before, from) = rest.split_at(at);
        let after = &from[port.len()..];
        let follows_digit = is_digit(before.as_bytes().last())
            || (before.is_empty() && is_digit(named.as_bytes().last()));
        named += before;
        named += match follows_digit || is_digit(after.as_bytes().first()) {
            true => port,
            false => "PORT",
        };
        rest = after;
    }
    named + rest
}

impl Answer {
    /// `text` with names in the place of what is different by nature.
    pub(crate) fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.root, "DIR");
        let text = with_port_named(&text, &self.port);
        let types = self
            .response
            .as_ref()
            .map(|response| response.all("Content-Type"));
        let first = types.ok().and_then(|types| types.first().copied());
        match first.and_then(|text| text.split_once("boundary=")) {
            Some((_, boundary)) => text.replace(boundary, "BOUNDARY"),
            None => text,
        }
    }
}

/// Chooses by a sequence of numbers that is the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one_of<'i, T>(&mut self, items: &'i [T]) -> &'i T {
        &items[self.below(items.len())]
    }

    fn request(&mut self, configuration: &Configuration, targets: &[&str]) -> Request {
        let host = self.one_of(&configuration.hosts).clone();
        let from = *self.one_of(&configuration.from);
        let target = *self.one_of(targets);
        Request::get(from, &host, target)
    }

    fn method(&mut self, configuration: &Configuration) -> String {
        let own = &configuration.methods;
        match self.below(10) {
            0 => "HEAD".to_owned(),
            1 => "POST".to_owned(),
            2 | 3 if !own.is_empty() => self.one_of(own).clone(),
            _ => "GET".to_owned(),
        }
    }

    /// `target` written in another way, or gone on with.
    fn changed(&mut self, target: &str) -> String {
        let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
        let letter = path.rfind(|letter: char| letter.is_ascii_lowercase());
        match self.below(10) {
            0 => format!("/.{path}{query}"),
            1 => format!("/x/..{path}{query}"),
            2 => format!("/{path}{query}"),
            3 => format!("{path}/{query}"),
            4 => format!("{path}/info{query}"),
            5 => format!("{target}{}z=%20", if query.is_empty() { '?' } else { '&' }),
            6 => match letter {
                Some(at) => format!(
                    "{}%{:02x}{}{query}",
                    &path[..at],
                    path.as_bytes()[at],
                    &path[at + 1..]
                ),
                None => target.to_owned(),
            },
            7 => match letter {
                Some(at) => format!(
                    "{}{}{}{query}",
                    &path[..at],
                    path[at..=at].to_ascii_uppercase(),
                    &path[at + 1..]
                ),
                None => target.to_owned(),
            },
            8 => format!("{path}.{query}"),
            _ => format!("{path}%2f{query}"),
        }
    }
}

#[test]
fn a_port_within_a_longer_number_is_none() {
    for (text, named) in [
        ("http://a:23456/", "http://a:PORT/"),
        ("0123456789 23456", "0123456789 PORT"),
        ("2345623456,23456", "2345623456,PORT"),
        ("23456", "PORT"),
    ] {
        assert_eq!(with_port_named(text, "23456"), named);
    }
}
