//! Sends the same requests to Petrel and to lighttpd, each with its own copy of the same tree.

use crate::client::{Client, ClientError};
use crate::command::is_installed;
use crate::response::Response;
use crate::server::{Builder, Server};
use crate::skip;
use crate::tree::Tree;

/// Both servers, running.
#[derive(Debug)]
pub struct Differential {
    petrel: Server,
    lighttpd: Server,
    differences: Vec<String>,
}

/// What a comparison leaves out, because Petrel differs there on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Nothing.
    None,
    /// The content of an error or a redirect: the text of the page; Content-Range, which RFC 9110 section
    /// 15.5.17 requires with 416 and lighttpd leaves out; Allow, which section 15.5.6 requires with 405.
    Page,
    /// The same if the response is an error or a redirect; else nothing.
    PageOfErrors,
    /// The same if lighttpd answers with a built-in page; else nothing.
    BuiltInPage,
}

/// Fields that are compared. Not compared are Date and Server, which always differ; ETag, whose form is each
/// server's own; Connection, where only the words differ; and Accept-Ranges, which lighttpd sends only if
/// this very request could have had a range.
const FIELDS: [&str; 9] = [
    "Content-Type",
    "Content-Length",
    "Content-Range",
    "Content-Encoding",
    "Last-Modified",
    "Location",
    "Allow",
    "Transfer-Encoding",
    "WWW-Authenticate",
];

/// The fields of an error page that may differ.
const PAGE_FIELDS: [&str; 5] = [
    "Content-Length",
    "Content-Type",
    "Transfer-Encoding",
    "Content-Range",
    "Allow",
];

impl Differential {
    /// Starts both with `config`, on trees made by `make`. Returns `None` and prints a message if lighttpd is
    /// not installed.
    pub fn start(config: &str, make: impl Fn(&Tree)) -> Option<Differential> {
        if !is_installed("lighttpd") {
            skip("a comparison with lighttpd", "lighttpd is not installed");
            return None;
        }
        let builder = || -> Builder { Server::build().tree(&make).config(config) };
        Some(Differential {
            petrel: builder().start(),
            lighttpd: builder().start_lighttpd(),
            differences: Vec::new(),
        })
    }

    /// Petrel.
    pub fn petrel(&self) -> &Server {
        &self.petrel
    }

    /// Both servers, Petrel first.
    pub fn servers(&self) -> [&Server; 2] {
        [&self.petrel, &self.lighttpd]
    }

    /// Sends a GET for `target` to both and records where they differ, apart from `except`.
    pub fn get(&mut self, target: &str, except: Difference) -> &mut Differential {
        self.request("GET", target, &[], except)
    }

    /// Sends a request without a body to both and records where they differ, apart from `except`.
    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        except: Difference,
    ) -> &mut Differential {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: petrel.test\r\n");
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.send(&format!("{head}\r\n"), except)
    }

    /// Sends `bytes` to both and records where the responses differ, apart from `except`.
    pub fn send(&mut self, bytes: &str, except: Difference) -> &mut Differential {
        let ask = |server: &Server| -> Result<Response, ClientError> {
            let mut client = Client::connect(server.address());
            client.send(bytes);
            match bytes.starts_with("HEAD ") {
                true => Ok(client.response_to_head()),
                false => client.try_response(),
            }
        };
        let ours = ask(&self.petrel).unwrap_or_else(|error| panic!("no response: {error}"));
        let Ok(theirs) = ask(&self.lighttpd) else {
            // lighttpd 1.4.69 closes the connection if a module fails; later versions answer 500.
            if ours.status != 500 {
                let note = format!("{bytes:?}: status {} for none", ours.status);
                self.differences.push(note);
            }
            return self;
        };
        let except = match except {
            Difference::PageOfErrors if theirs.status >= 300 => Difference::Page,
            Difference::BuiltInPage if theirs.has_page_of_lighttpd() => Difference::Page,
            Difference::PageOfErrors | Difference::BuiltInPage => Difference::None,
            except => except,
        };
        let mut notes = Vec::new();
        if ours.status != theirs.status {
            notes.push(format!("status {} for {}", ours.status, theirs.status));
        }
        for name in FIELDS {
            if except == Difference::Page && PAGE_FIELDS.contains(&name) {
                continue;
            }
            if ours.all(name) != theirs.all(name) {
                notes.push(format!(
                    "{name} {:?} for {:?}",
                    ours.all(name),
                    theirs.all(name)
                ));
            }
        }
        if except == Difference::None && ours.body != theirs.body {
            notes.push(format!("body {:?} for {:?}", ours.text(), theirs.text()));
        }
        if !notes.is_empty() {
            self.differences
                .push(format!("{bytes:?}: {}", notes.join("; ")));
        }
        self
    }

    /// Fails if they differed anywhere.
    ///
    /// # Panics
    /// They differed; the message lists how, with Petrel's response first.
    #[track_caller]
    pub fn expect_no_difference(&self) {
        assert!(
            self.differences.is_empty(),
            "unlike lighttpd:\n{}",
            self.differences.join("\n")
        );
    }
}
