//! Which of several backends gets a request.
//!
//! A [`Balancer`] belongs to one route in one worker. It looks at the backends through [`Candidate`]
//! (load and health are those of all workers) and at the few parts of the request in [`RequestKey`].
//! It does no I/O, reads no clock and allocates nothing, but when the number of backends changes.
//! The request calls it before it connects, and again with [`Tried`] when that failed.
//!
//! The order of preference is the same for every policy: a backend that was tried for this request
//! is not tried again, one that is down gets nothing; of the others those that work come before
//! those that are strained (`health`), and among these the smallest priority (SRV records) counts.
//! Only then the policy decides.

use std::cell::RefCell;
use std::net::IpAddr;

use super::health::{Health, Usability};
use super::limits::TRIES_MAX;
use super::options::Balance;

mod hash;

pub(crate) use hash::stable_hash;

/// What a backend looks like when one is to be chosen.
pub trait Candidate {
    /// Distinguishes the backend from the others of its route, today and after a restart, on this
    /// machine and on the next: [`stable_hash`] of its label and address.
    fn key(&self) -> u64;

    /// Its share, 1 to 65535.
    fn weight(&self) -> u32;

    /// Requests under way, those of all workers.
    fn load(&self) -> u32;

    /// Whether it works.
    fn health(&self) -> &Health;

    /// Backends with a greater number get requests only if those with smaller ones cannot.
    fn priority(&self) -> u16 {
        0
    }
}

impl<T: Candidate + ?Sized> Candidate for std::sync::Arc<T> {
    fn key(&self) -> u64 {
        (**self).key()
    }

    fn weight(&self) -> u32 {
        (**self).weight()
    }

    fn load(&self) -> u32 {
        (**self).load()
    }

    fn health(&self) -> &Health {
        (**self).health()
    }

    fn priority(&self) -> u16 {
        (**self).priority()
    }
}

/// The parts of a request that a choice can hang on.
#[derive(Clone, Copy, Debug)]
pub struct RequestKey<'a> {
    /// The Host, in small letters.
    pub host: &'a [u8],
    /// The URL's path without its query, so that all of a page's variants meet in one cache.
    pub path: &'a [u8],
    /// The client's address.
    pub client: IpAddr,
    /// The value of the Cookie field; empty without one.
    pub cookies: &'a [u8],
}

/// Backends that one request was sent to in vain. Holds keys, not positions: the list of backends may
/// change while the request is under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    keys: [u64; TRIES_MAX],
    count: usize,
}

/// The backend of a request. It has been admitted ([`Health::admit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its place among the candidates.
    pub index: usize,
    /// The answer should bring a cookie ([`Balancer::write_set_cookie`]), because the request had
    /// none or one that cannot be followed.
    pub set_cookie: bool,
}

/// Why a request can go nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBackend {
    /// All are down, or there is none: 503, as in lighttpd.
    Down,
    /// All that could be used were tried, or [`TRIES_MAX`]: the status of the last failure.
    Tried,
    /// A certain one is wanted and is not among them: 502.
    Unknown,
}

/// Chooses for one route of one worker.
#[derive(Debug)]
pub struct Balancer {
    policy: Balance,
    /// Of the route's id; part of the cookie's name.
    route: u32,
    turns: RefCell<RoundRobinTurns>,
    /// Empty but during a choice; kept for its memory.
    contenders: RefCell<Vec<Contender>>,
}

impl Balancer {
    /// A balancer for the route with that id ([`super::options::Route::id`]). `worker` makes
    /// workers begin with different backends.
    pub fn new(policy: Balance, route_id: &str, worker: usize) -> Balancer {
        Balancer {
            policy,
            route: stable_hash(&[route_id.as_bytes()]) as u32,
            turns: RefCell::new(RoundRobinTurns {
                credits: Vec::new(),
                first: worker,
            }),
            contenders: RefCell::default(),
        }
    }

    /// Chooses a backend that was not tried, and takes the turn of one that is to be probed.
    ///
    /// # Errors
    /// There is nothing left.
    pub fn choose<C: Candidate>(
        &self,
        candidates: &[C],
        request: &RequestKey<'_>,
        tried: &Tried,
        now_ms: u64,
    ) -> Result<Choice, NoBackend> {
        if tried.count >= TRIES_MAX {
            return Err(NoBackend::Tried);
        }
        let mut contenders = self.contenders.borrow_mut();
        // Another worker may take the only turn of a backend between the choice and `admit`. It is
        // not usable any more then: each round there is one less.
        for _ in 0..=candidates.len() {
            gather(candidates, tried, now_ms, &mut contenders)?;
            let choice = self.choose_by_policy(&contenders, candidates.len(), request);
            let admitted = |chosen: &C| chosen.health().admit(now_ms);
            if candidates.get(choice.index).is_some_and(admitted) {
                return Ok(choice);
            }
        }
        Err(NoBackend::Down)
    }

    /// The name of the cookie: of each route another, as one client may use several.
    pub(crate) fn cookie_name(&self) -> String {
        format!("{COOKIE_PREFIX}{:08x}", self.route)
    }

    /// Appends the value of a Set-Cookie field that brings the client back to `chosen`.
    ///
    /// The cookie holds 32 bits of a hash and nothing of the address. That keeps it from being read,
    /// not from being found by an attacker who computes the hash of every address there might be.
    pub(crate) fn write_set_cookie(&self, chosen: &impl Candidate, out: &mut Vec<u8>) {
        let name = self.cookie_name();
        let id = self.cookie_id(chosen.key());
        let text = format!("{name}={id:08x}; Path=/; HttpOnly; SameSite=Lax");
        out.extend_from_slice(text.as_bytes());
    }

    /// `contenders` is not empty; `count` is how many candidates there are with those that cannot be
    /// used.
    fn choose_by_policy(
        &self,
        contenders: &[Contender],
        count: usize,
        request: &RequestKey<'_>,
    ) -> Choice {
        let in_turn = |wanted| self.turns.borrow_mut().next(contenders, count, wanted);
        let shortest = || in_turn(shortest_queue(contenders));
        let mut set_cookie = false;
        let index = match self.policy {
            Balance::ShortestQueue => shortest(),
            Balance::RoundRobin => in_turn(Contenders::All),
            Balance::Hash => highest_score(contenders, stable_hash(&[request.host, request.path])),
            Balance::Sticky => highest_score(contenders, address_hash(request.client)),
            Balance::First => contenders.first().map(|first| first.index),
            Balance::Cookie => {
                let named = self.named_by_cookie(contenders, request.cookies);
                // With one backend there is nothing to come back to.
                set_cookie = named.is_none() && count > 1;
                named.or_else(shortest)
            }
        };
        Choice {
            index: index.expect("one of the contenders wins, and there is at least one"),
            set_cookie,
        }
    }

    fn named_by_cookie(&self, contenders: &[Contender], cookies: &[u8]) -> Option<usize> {
        let id = cookie_value(cookies, self.route)?;
        let mut contenders = contenders.iter();
        let named = contenders.find(|contender| self.cookie_id(contender.key) == id)?;
        Some(named.index)
    }

    fn cookie_id(&self, key: u64) -> u32 {
        (hash::mix(key, u64::from(self.route)) >> 32) as u32
    }
}

impl Tried {
    /// Nothing was tried.
    pub fn new() -> Tried {
        Tried::default()
    }

    /// `candidate` was tried. Beyond [`TRIES_MAX`] nothing is chosen any more.
    pub fn add(&mut self, candidate: &impl Candidate) {
        if let Some(place) = self.keys.get_mut(self.count) {
            *place = candidate.key();
            self.count += 1;
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a candidate with this key was.
    pub fn contains(&self, key: u64) -> bool {
        self.keys.iter().take(self.count).any(|tried| *tried == key)
    }
}

/// What a choice sees of a candidate: read once, as other workers change it meanwhile.
#[derive(Clone, Copy, Debug)]
struct Contender {
    /// Its place among the candidates.
    index: usize,
    key: u64,
    /// In thousandths: less during slow start. At most 26 bits, at least 100.
    weight: u64,
    /// At most 32 bits.
    load: u64,
}

impl Contender {
    /// Compares load / weight without dividing.
    fn is_shorter_than(&self, other: &Contender) -> bool {
        self.load * other.weight < other.load * self.weight
    }
}

/// Smaller is better. Only candidates of the best tier compete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateTier {
    is_strained: bool,
    priority: u16,
}

/// Replaces `contenders` by the candidates of the best tier; at least one.
fn gather<C: Candidate>(
    candidates: &[C],
    tried: &Tried,
    now_ms: u64,
    contenders: &mut Vec<Contender>,
) -> Result<(), NoBackend> {
    contenders.clear();
    let mut none = NoBackend::Down;
    let mut best: Option<CandidateTier> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        if tried.contains(candidate.key()) {
            none = NoBackend::Tried;
            continue;
        }
        let Some(tier) = tier(candidate, now_ms) else {
            continue;
        };
        if best.is_some_and(|best| best < tier) {
            continue;
        }
        if best.is_some_and(|best| best > tier) {
            contenders.clear();
        }
        best = Some(tier);
        contenders.push(contender(index, candidate, now_ms));
    }
    best.map(|_| ()).ok_or(none)
}

fn tier(candidate: &impl Candidate, now_ms: u64) -> Option<CandidateTier> {
    let is_strained = match candidate.health().usability(now_ms) {
        Usability::Ready | Usability::Probe => false,
        Usability::Strained => true,
        Usability::Down => return None,
    };
    Some(CandidateTier {
        is_strained,
        priority: candidate.priority(),
    })
}

fn contender(index: usize, candidate: &impl Candidate, now_ms: u64) -> Contender {
    let weight = candidate.weight().clamp(1, WEIGHT_MAX);
    let share = candidate.health().share_per_mille(now_ms);
    Contender {
        index,
        key: candidate.key(),
        weight: u64::from(weight) * u64::from(share),
        load: u64::from(candidate.load()),
    }
}

/// The one with the fewest requests for its weight, and all that are as good.
fn shortest_queue(contenders: &[Contender]) -> Contenders {
    let shortest = contenders.iter().copied().reduce(|shortest, contender| {
        if contender.is_shorter_than(&shortest) {
            contender
        } else {
            shortest
        }
    });
    shortest.map_or(Contenders::All, Contenders::AsShortAs)
}

/// Who takes part in a turn.
enum Contenders {
    All,
    AsShortAs(Contender),
}

impl Contenders {
    fn has(&self, contender: &Contender) -> bool {
        match self {
            Contenders::All => true,
            Contenders::AsShortAs(shortest) => !shortest.is_shorter_than(contender),
        }
    }
}

/// Smooth weighted round robin: everybody who takes part earns his weight, the richest gets the
/// request and pays what all have earned. With weights 5, 1, 1 that gives a a b a c a a, where
/// a a a a a b c would send five requests at a time to the first.
#[derive(Debug)]
struct RoundRobinTurns {
    /// By the place among the candidates.
    credits: Vec<i64>,
    /// Where to begin to look, so that not every worker sends its first request to the same.
    first: usize,
}

impl RoundRobinTurns {
    /// Whose turn it is among the contenders that are wanted.
    fn next(
        &mut self,
        contenders: &[Contender],
        count: usize,
        wanted: Contenders,
    ) -> Option<usize> {
        if self.credits.len() != count {
            self.credits.clear();
            self.credits.resize(count, 0);
        }
        let first = self.first % count.max(1);
        let mut earned = 0;
        let mut richest: Option<(i64, usize, usize)> = None;
        for contender in contenders.iter().filter(|contender| wanted.has(contender)) {
            let index = contender.index;
            let credit = self.credits.get_mut(index)?;
            let weight = contender.weight as i64;
            earned += weight;
            // Who is left out for long neither gathers nor owes more than a few rounds.
            *credit = (*credit + weight).clamp(-CREDIT_MAX, CREDIT_MAX);
            let distance = (index + count - first) % count;
            let is_richer = |(most, nearest, _): (i64, usize, usize)| {
                *credit > most || *credit == most && distance < nearest
            };
            if richest.is_none_or(is_richer) {
                richest = Some((*credit, distance, index));
            }
        }
        let (_, _, index) = richest?;
        *self.credits.get_mut(index)? -= earned;
        Some(index)
    }
}

/// Rendezvous hashing (CARP): everybody draws a number from the key and his own, the highest one
/// wins. When a backend goes, only what it had moves. With unequal weights the numbers are stretched
/// as by "Weighted Distributed Hash Tables" (Schindelhauer, Schomaker 2005): -weight / ln(u).
fn highest_score(contenders: &[Contender], key: u64) -> Option<usize> {
    let draw = |contender: &Contender| hash::mix(contender.key, key);
    let score =
        |contender: &Contender| -(contender.weight as f64) / hash::unit(draw(contender)).ln();
    let is_even = contenders.windows(2).all(|pair| match pair {
        [one, next] => one.weight == next.weight,
        _ => true,
    });
    let winner = if is_even {
        // The score grows with the drawn number: the winner is the same without logarithms.
        contenders.iter().max_by_key(|contender| draw(contender))
    } else {
        contenders
            .iter()
            .max_by(|a, b| score(a).total_cmp(&score(b)))
    };
    winner.map(|winner| winner.index)
}

/// IPv4 clients are the same on a socket of IPv6.
fn address_hash(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(address) => stable_hash(&[&address.octets()]),
        IpAddr::V6(address) => stable_hash(&[&address.octets()]),
    }
}

/// The number in this route's cookie, if it has the form that we gave it (RFC 6265 section 5.4).
fn cookie_value(cookies: &[u8], route: u32) -> Option<u32> {
    let mut pairs = cookies.split(|byte| *byte == b';');
    pairs.find_map(|pair| {
        let rest = pair.trim_ascii().strip_prefix(COOKIE_PREFIX.as_bytes())?;
        let (name, value) = rest.split_at_checked(8)?;
        let is_ours = hexadecimal(name) == Some(route);
        is_ours
            .then(|| hexadecimal(value.strip_prefix(b"=")?))
            .flatten()
    })
}

/// Eight hexadecimal digits in small letters.
fn hexadecimal(text: &[u8]) -> Option<u32> {
    if text.len() != 8 {
        return None;
    }
    text.iter().try_fold(0u32, |number, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u32::from(digit))
    })
}

/// The route's hash follows.
const COOKIE_PREFIX: &str = "petrel-backend-";

/// What an SRV record can have; the directives stop at 100.
const WEIGHT_MAX: u32 = 65_535;

/// Four rounds of the heaviest.
const CREDIT_MAX: i64 = 4 * WEIGHT_MAX as i64 * 1000;

#[cfg(test)]
mod tests;
