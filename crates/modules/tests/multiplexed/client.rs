//! The client's side of the simulated connection: what each stream requests, and whether it gets that.

use petrel_engine::testing::AnswerHead;

use crate::content::{Content, Random, lines};

/// A request, and the expected answer.
pub struct Ask {
    pub id: u32,
    pub method: &'static str,
    pub path: String,
    /// The body of the request, which is sent in pieces.
    pub upload: Vec<u8>,
    /// Whether the request has a Content-Length.
    pub tells_length: bool,
    pub status: u16,
    pub content: Content,
    /// The client never reads the answer.
    pub is_never_read: bool,
}

impl Ask {
    fn new(id: u32, method: &'static str, path: String, content: Content) -> Ask {
        Ask {
            id,
            method,
            path,
            upload: Vec::new(),
            tells_length: false,
            status: 200,
            content,
            is_never_read: false,
        }
    }

    /// A request for lines: from a file, a backend, a script, or a page that may be cached.
    pub fn lines(id: u32, room: &str, length: usize) -> Ask {
        let path = match room {
            "files" => format!("/files/{id}/{length}.txt"),
            room => format!("/{room}/{id}/{length}"),
        };
        Ask::new(id, "GET", path, Content::Lines { id, length })
    }

    /// A request of a random kind. Files have the lengths in [`FILES`].
    pub fn any(id: u32, random: &mut Random) -> Ask {
        let length = random.one_of(&[0, 1, 100, 5000, 40_000, 300_000]);
        match random.below(9) {
            0 | 1 => Ask::lines(id % 10, "files", random.one_of(FILES)),
            2 => Ask::lines(id, random.one_of(&["proxy", "fastcgi"]), length),
            3 => Ask::lines(id, "lua", length.min(40_000)),
            4 => Ask::lines(1000 + id % 5, "cached", 50_000),
            5 => {
                let length = random.one_of(FILES);
                let mut head = Ask::lines(id % 10, "files", length);
                head.method = "HEAD";
                head.content = Content::Bytes(Vec::new().into());
                head
            }
            6 => {
                let mut missing = Ask::lines(id, "nothing", 0);
                (missing.status, missing.content) = (404, Content::Bytes(Vec::new().into()));
                missing
            }
            kind => {
                // The body for a script is sent at once.
                let upload = lines(
                    id,
                    if kind == 8 {
                        length.min(40_000)
                    } else {
                        length
                    },
                );
                let room = match kind {
                    7 => random.one_of(&["echo", "stream", "fastcgi"]),
                    _ => "lua",
                };
                let content = Content::Bytes(upload.clone().into());
                let mut echo = Ask::new(id, "POST", format!("/{room}/{id}"), content);
                echo.tells_length = random.is_once_in(2);
                echo.upload = upload;
                echo
            }
        }
    }
}

/// The lengths of the files: sent from memory, read at once, read ahead.
pub const FILES: &[usize] = &[0, 10, 4000, 100_000, 1_500_000];

/// The part of an answer that has arrived. Panics at the first wrong byte.
pub struct Reader {
    name: String,
    status: u16,
    content: Content,
    announced: Option<u64>,
    is_begun: bool,
    received: usize,
    /// How many bytes may arrive in total.
    window: usize,
    pub is_over: bool,
}

impl Reader {
    pub fn new(ask: &Ask, seed: u64) -> Reader {
        Reader {
            name: format!("seed {seed}: {} {} ({})", ask.method, ask.path, ask.id),
            status: ask.status,
            content: ask.content.clone(),
            announced: None,
            is_begun: false,
            received: 0,
            window: 0,
            is_over: false,
        }
    }

    /// Lets so many more bytes arrive.
    pub fn widen(&mut self, bytes: usize) {
        self.window += bytes;
    }

    pub fn head(&mut self, head: &AnswerHead) {
        assert!(!self.is_begun, "{}: a second head", self.name);
        assert_eq!(head.status.0, self.status, "{}", self.name);
        self.is_begun = true;
        self.announced = head.length.filter(|_| head.has_body);
    }

    pub fn data(&mut self, bytes: &[u8]) {
        assert!(
            self.is_begun && !self.is_over,
            "{}: data outside",
            self.name
        );
        // Error pages are tested elsewhere.
        let is_right = self.status != 200 || self.content.has_at(self.received, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert!(is_right, "{}: at {}: {shown:?}", self.name, self.received);
        self.received += bytes.len();
        assert!(
            self.received <= self.window,
            "{}: more than its window",
            self.name
        );
    }

    pub fn end(&mut self) {
        assert!(self.is_begun && !self.is_over, "{}: no head", self.name);
        self.is_over = true;
        if self.status == 200 {
            assert_eq!(self.received, self.content.len(), "{}", self.name);
        }
        if let Some(announced) = self.announced {
            assert_eq!(self.received as u64, announced, "{}", self.name);
        }
    }

    pub fn broken(&self, why: &dyn std::fmt::Display) {
        panic!("{}: broken off at {}: {why}", self.name, self.received);
    }
}
