//! A client and a server that do what they may in any order: each byte of each stream arrives once and in its place, no
//! window is exceeded, and all that is not reset comes to its end. A failure names its seed.

use std::collections::BTreeMap;

use super::*;

const SEEDS: u64 = 150;
const REQUESTS: u32 = 60;
const STREAMS: usize = 8;

/// It takes so long because 9000 requests on 150 connections come and go in small steps.
#[test]
fn every_byte_arrives_once_and_in_order() {
    let mut completed = 0;
    for seed in 0..SEEDS {
        let mut pair = Pair::new(seed);
        let mut steps = 0;
        while !pair.is_over() {
            pair.step();
            steps += 1;
            assert!(steps < 200_000, "seed {seed}: it comes to no end");
        }
        pair.check();
        completed += pair.completed;
    }
    let all = u32::try_from(SEEDS).expect("few") * REQUESTS;
    assert!(completed > all / 4 * 3, "{completed} of {all}");
}

/// Pseudo-random numbers that a seed decides (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(end.max(1))) as u32
    }

    fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 0
    }

    /// Mostly small, sometimes large.
    fn size(&mut self) -> u32 {
        let bits = self.below(18);
        self.below(1 << bits)
    }
}

/// The byte that stands at `position` of what stream `id` carries.
fn byte(id: u32, position: u32) -> u8 {
    (id * 37 + position * 7 + position / 256) as u8
}

fn bytes(id: u32, position: u32, length: u32) -> Vec<u8> {
    (position..position + length)
        .map(|position| byte(id, position))
        .collect()
}

/// A request, as the client knows it.
#[derive(Default)]
struct Asked {
    /// Bytes of its body.
    length: u32,
    sent: u32,
    is_sent: bool,
    /// What the server's window has for it.
    send_window: i64,
    /// Bytes that it asks for.
    wanted: u32,
    received: u32,
    receive_window: i64,
    has_head: bool,
    is_over: bool,
    is_reset: bool,
}

/// An exchange, as the owner of the server's side knows it.
#[derive(Default)]
struct Exchange {
    received: u32,
    unconsumed: u32,
    is_received: bool,
    wanted: u32,
    sent: u32,
    has_begun: bool,
    is_answered: bool,
    is_dead: bool,
}

struct Pair {
    seed: u64,
    /// Without resets, a stream that stands still is seen.
    has_resets: bool,
    random: Random,
    server: Server,
    exchanges: BTreeMap<u32, Exchange>,
    /// On their way to the server, and to the client.
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    decoder: HpackDecoder,
    asked: BTreeMap<u32, Asked>,
    next_id: u32,
    send_window: i64,
    initial_send_window: i64,
    receive_window: i64,
    initial_receive_window: i64,
    /// Windows in SETTINGS that the server has not acknowledged.
    told_windows: Vec<i64>,
    /// The window in SETTINGS of the server that the client has not taken up, and how soon it does.
    server_window: Option<i64>,
    acknowledges_once_in: u32,
    completed: u32,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut random = Random(seed);
        let limits = Http2Limits {
            streams_max: 18,
            resets_max: u32::MAX,
            settings_max: u32::MAX,
            idle_frames_max: u32::MAX,
            window_updates_max: u32::MAX,
            empty_frames_max: u32::MAX,
            ..Http2Limits::default()
        };
        let most = [20_000, 100_000][random.below(2) as usize];
        let stream_window = 1000 + random.below(most);
        let server = Server::new(Http2Options {
            stream_window,
            connection_window: random.below(300_000),
            limits,
            ..Http2Options::default()
        });
        let acknowledges_once_in = 1 + random.below(2000);
        let to_server = [&PREFACE[..], &frame(SETTINGS, 0, 0, b"")].concat();
        Pair {
            seed,
            has_resets: !seed.is_multiple_of(3),
            random,
            server,
            exchanges: BTreeMap::new(),
            to_server,
            to_client: Vec::new(),
            decoder: HpackDecoder::new(4096),
            asked: BTreeMap::new(),
            next_id: 1,
            send_window: 65_535,
            initial_send_window: 65_535,
            receive_window: 65_535,
            initial_receive_window: 65_535,
            told_windows: vec![65_535],
            server_window: None,
            acknowledges_once_in,
            completed: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.next_id / 2 >= REQUESTS
            && self
                .asked
                .values()
                .all(|asked| asked.is_over || asked.is_reset)
            && self.exchanges.is_empty()
            && self.to_server.is_empty()
    }

    fn step(&mut self) {
        let is_late = !self.random.once_in(self.acknowledges_once_in);
        if !is_late && let Some(window) = self.server_window.take() {
            self.take_settings(window);
        }
        match self.random.below(8) {
            0 => self.begin_request(),
            1 => self.send_body(),
            2 => self.client_acts(),
            3 | 4 => self.deliver_to_server(),
            5 => self.deliver_to_client(),
            _ => self.serve(),
        }
    }

    fn begin_request(&mut self) {
        let open = self
            .asked
            .values()
            .filter(|asked| !(asked.is_over || asked.is_reset));
        if self.next_id / 2 >= REQUESTS || open.count() >= STREAMS {
            return;
        }
        let (length, wanted) = (self.random.size(), self.random.size());
        let path = format!("/{wanted}");
        let priority = ["u=0", "u=3,i", "", "u=7", "i"][self.random.below(5) as usize];
        let told = length.to_string();
        let mut fields = PSEUDO.to_vec();
        fields[3].1 = &path;
        fields.push(("priority", priority));
        if self.random.once_in(2) {
            fields.push(("content-length", &told));
        }
        let id = self.next_id;
        self.next_id += 2;
        let flags = match length {
            0 => flag::ALL,
            _ => flag::END_HEADERS,
        };
        self.to_server
            .extend(frame(HEADERS, flags, id, &block(&fields)));
        let asked = Asked {
            length,
            is_sent: length == 0,
            send_window: self.initial_send_window,
            wanted,
            receive_window: self.initial_receive_window,
            ..Asked::default()
        };
        self.asked.insert(id, asked);
    }

    /// An open stream that chance finds.
    fn any_id(&mut self) -> Option<u32> {
        let is_open = |asked: &Asked| !(asked.is_reset || asked.is_over && asked.is_sent);
        let ids = self.asked.iter().filter(|(_, asked)| is_open(asked));
        let ids: Vec<u32> = ids.map(|(&id, _)| id).collect();
        match ids.len() {
            0 => None,
            count => Some(ids[self.random.below(count as u32) as usize]),
        }
    }

    fn send_body(&mut self) {
        let Some(id) = self.any_id() else { return };
        let padding = self.random.below(250) * u32::from(self.random.once_in(3));
        let wanted = self.random.size().min(16_000);
        let asked = self.asked.get_mut(&id).expect("it is open");
        if asked.is_sent {
            return;
        }
        // The padding has a length byte.
        let framing = i64::from(padding) + 1;
        let room = asked.send_window.min(self.send_window) - framing;
        if room <= 0 {
            return;
        }
        let part = wanted.min(asked.length - asked.sent).min(room as u32);
        let mut payload = vec![padding as u8];
        payload.extend(bytes(id, asked.sent, part));
        payload.extend(vec![0; padding as usize]);
        asked.sent += part;
        asked.is_sent = asked.sent == asked.length;
        asked.send_window -= payload.len() as i64;
        self.send_window -= payload.len() as i64;
        let flags = flag::PADDED | (u8::from(asked.is_sent) * flag::END);
        self.to_server.extend(frame(DATA, flags, id, &payload));
    }

    /// Windows, resets, priorities, settings, PING.
    fn client_acts(&mut self) {
        let Some(id) = self.any_id() else { return };
        let by = 1 + self.random.size();
        match self.random.below(200) {
            0 if self.has_resets => {
                self.to_server.extend(reset(id, ErrorCode::Cancel));
                self.asked.get_mut(&id).expect("it is open").is_reset = true;
            }
            1 => {
                let bytes = self.random.size();
                self.told_windows.push(i64::from(bytes));
                let settings = [setting(4, bytes), setting(1, self.random.below(5000))].concat();
                self.to_server.extend(frame(SETTINGS, 0, 0, &settings));
            }
            2 => {
                let value = ["u=1,i", "u=5", "i=?0"][self.random.below(3) as usize];
                let payload = [&id.to_be_bytes(), value.as_bytes()].concat();
                self.to_server
                    .extend(frame(PRIORITY_UPDATE, 0, 0, &payload));
            }
            3 => self.server.now_s += PERIOD_S,
            4..100 => {
                self.to_server.extend(window(0, by));
                self.receive_window += i64::from(by);
            }
            _ => {
                self.to_server.extend(window(id, by));
                self.asked.get_mut(&id).expect("it is open").receive_window += i64::from(by);
            }
        }
    }

    fn deliver_to_server(&mut self) {
        let length = (1 + self.random.size()).min(self.to_server.len() as u32);
        let part: Vec<u8> = self.to_server.drain(..length as usize).collect();
        if let Err(error) = self.server.receive(&part) {
            panic!("seed {}: {error}", self.seed);
        }
        for (what, content) in std::mem::take(&mut self.server.story) {
            self.told(&what, &content);
        }
    }

    /// What the owner does with an event.
    fn told(&mut self, what: &str, content: &[u8]) {
        let mut words = what.split(' ');
        let kind = words.next().unwrap_or_default();
        let id = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        if kind == "request" {
            let target = words.nth(1).unwrap_or_default();
            let exchange = Exchange {
                wanted: target[1..].parse().expect("a number"),
                is_received: words.next() == Some("end"),
                ..Exchange::default()
            };
            self.exchanges.insert(id, exchange);
            return;
        }
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            let is_of_all = id == 0 || kind == "error" || kind == "priority";
            assert!(is_of_all, "seed {}: {what}", self.seed);
            return;
        };
        match kind {
            "data" => {
                let length = content.len() as u32;
                assert_eq!(content, bytes(id, exchange.received, length));
                exchange.received += length;
                exchange.unconsumed += length;
            }
            "end" => exchange.is_received = true,
            "reset" => exchange.is_dead = true,
            _ => panic!("seed {}: {what}", self.seed),
        }
    }

    /// The owner answers, consumes, resets, releases.
    fn serve(&mut self) {
        let ids: Vec<u32> = self.exchanges.keys().copied().collect();
        let count = ids.len() as u32;
        if count > 0 {
            let id = ids[self.random.below(count) as usize];
            self.serve_one(id);
        }
        for _ in 0..self.random.below(4) {
            self.send_next();
        }
        let connection = &mut self.server.connection;
        if self.random.once_in(2) {
            connection.write_control(&mut self.server.out);
        }
        self.to_client.append(&mut self.server.out);
    }

    fn serve_one(&mut self, id: u32) {
        let key = self.server.key(id);
        let choice = self.random.below(1000);
        let bytes = self.random.size();
        let Some(exchange) = self.exchanges.get_mut(&id) else {
            return;
        };
        let Server {
            connection, out, ..
        } = &mut self.server;
        if exchange.unconsumed > 0 {
            let part = bytes.min(exchange.unconsumed);
            exchange.unconsumed -= part;
            connection.consumed(key, part);
        }
        if choice == 0 && self.has_resets && !exchange.is_dead {
            connection.reset(key, ErrorCode::InternalError);
            exchange.is_dead = true;
        } else if !exchange.has_begun && !exchange.is_dead {
            let length = (choice < 500).then_some(u64::from(exchange.wanted));
            let after = match exchange.wanted {
                0 => AfterFrame::EndOfStream,
                _ => AfterFrame::More,
            };
            let fields = b"Server: petrel\r\nX-A: b\r\n";
            let written = connection.write_head(key, Status::OK, &[fields], length, after, out);
            assert_eq!(written, Written::Yes);
            exchange.has_begun = true;
            exchange.is_answered = exchange.wanted == 0;
            connection.mark_ready(key, u64::from(exchange.wanted - exchange.sent));
        } else if choice < 100 {
            connection.mark_waiting(key);
        } else if exchange.has_begun {
            connection.mark_ready(key, u64::from(exchange.wanted - exchange.sent));
        }
        let is_done = exchange.is_answered && exchange.is_received;
        let is_enough = exchange.is_answered && choice == 1 && self.has_resets;
        if is_done || is_enough || exchange.is_dead && choice < 500 {
            self.exchanges.remove(&id);
            self.server.release(id);
        }
    }

    fn send_next(&mut self) {
        let limit = self.random.size();
        let Server {
            connection, out, ..
        } = &mut self.server;
        let Some(key) = connection.next_to_send() else {
            return;
        };
        let id = key.id();
        let exchange = self.exchanges.get_mut(&id).expect("it is not released");
        assert!(exchange.has_begun && !exchange.is_answered && !exchange.is_dead);
        let room = connection.send_room(key);
        assert!(room > 0, "seed {}: it cannot send", self.seed);
        let left = exchange.wanted - exchange.sent;
        let part = limit.min(room).min(left);
        let ends = part == left && self.random.once_in(2);
        if part == left && !ends && self.random.once_in(2) {
            // The end comes by itself.
            let more = AfterFrame::More;
            assert_eq!(
                connection.write_data_header(key, part, more, out),
                Written::Yes
            );
            out.extend(bytes(id, exchange.sent, part));
            exchange.sent += part;
            assert_eq!(
                connection.write_trailers(key, b"A: b\r\n", out),
                Written::Yes
            );
            exchange.is_answered = true;
            return;
        }
        let after = match ends {
            true => AfterFrame::EndOfStream,
            false => AfterFrame::More,
        };
        assert_eq!(
            connection.write_data_header(key, part, after, out),
            Written::Yes
        );
        out.extend(bytes(id, exchange.sent, part));
        exchange.sent += part;
        exchange.is_answered = ends;
    }

    fn deliver_to_client(&mut self) {
        let mut arrived = std::mem::take(&mut self.to_client);
        for sent in frames(&mut arrived) {
            self.receive(&sent);
        }
        assert!(arrived.is_empty());
    }

    /// The client takes up the server's SETTINGS.
    fn take_settings(&mut self, window: i64) {
        for asked in self.asked.values_mut() {
            asked.send_window += window - self.initial_send_window;
        }
        self.initial_send_window = window;
        self.to_server.extend(frame(SETTINGS, flag::ACK, 0, b""));
    }

    fn receive(&mut self, sent: &Sent) {
        let seed = self.seed;
        let id = sent.stream;
        match sent.kind {
            SETTINGS if sent.flags == flag::ACK => {
                let told = self.told_windows.remove(0);
                for asked in self.asked.values_mut() {
                    asked.receive_window += told - self.initial_receive_window;
                }
                self.initial_receive_window = told;
                return;
            }
            SETTINGS => {
                let told = sent.payload.chunks(6).find(|setting| setting[1] == 4);
                let told = told.expect("it is always sent");
                let told = i64::from(u32::from_be_bytes([told[2], told[3], told[4], told[5]]));
                self.server_window = Some(told);
                return;
            }
            WINDOW if id == 0 => {
                self.send_window += i64::from(sent.number());
                return;
            }
            HEADERS => {
                // Also those of streams that were reset: the table is the same.
                fields(&mut self.decoder, &sent.payload);
            }
            DATA => {
                self.receive_window -= sent.payload.len() as i64;
                assert!(
                    self.receive_window >= 0,
                    "seed {seed}: the connection's window"
                );
                assert!(sent.payload.len() <= 16_384);
            }
            _ => {}
        }
        let asked = self.asked.get_mut(&id).expect("the client began it");
        let ends = sent.flags & flag::END != 0;
        match sent.kind {
            RESET => {
                if !asked.is_over {
                    asked.is_reset = true;
                }
                asked.is_sent = true;
                return;
            }
            WINDOW => {
                asked.send_window += i64::from(sent.number());
                return;
            }
            HEADERS => {
                assert!(!asked.is_over, "seed {seed}: {id}: behind the end");
                assert_eq!(asked.has_head, ends && asked.has_head, "seed {seed}: {id}");
                asked.has_head = true;
            }
            DATA => {
                assert!(asked.has_head && !asked.is_over, "seed {seed}: {id}");
                let length = sent.payload.len() as u32;
                asked.receive_window -= i64::from(length);
                let is_within = asked.receive_window >= 0 || length == 0;
                assert!(is_within, "seed {seed}: {id}: its window");
                assert_eq!(
                    sent.payload,
                    bytes(id, asked.received, length),
                    "seed {seed}: {id}"
                );
                asked.received += length;
            }
            kind => panic!("seed {seed}: a frame of kind {kind}"),
        }
        if ends {
            assert_eq!(asked.received, asked.wanted, "seed {seed}: {id}");
            asked.is_over = true;
            self.completed += u32::from(!asked.is_reset);
        }
    }

    /// At the end, nothing is left behind.
    fn check(&mut self) {
        let connection = &mut self.server.connection;
        assert_eq!(
            (connection.stream_count(), connection.next_to_send()),
            (0, None)
        );
        connection.write_control(&mut self.to_client);
        self.deliver_to_client();
        // Half of the window, or of that which the connection began with, is not worth a frame.
        let size = i64::from(connection_window(&self.server));
        assert!(
            self.send_window > size - 65_536 / 2,
            "seed {}: {} of {size}",
            self.seed,
            self.send_window
        );
    }
}

fn connection_window(server: &Server) -> u32 {
    server.connection.core.options.connection_window
}
