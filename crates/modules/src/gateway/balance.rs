//! Chooses one of several backends for a request.
//!
//! A [`Balancer`] belongs to one route in one worker. It sees backends as [`Candidate`]s (whose load and
//! health are those of all workers) and a request as a [`RequestKey`]. It does no I/O and reads no clock, and
//! allocates only when the number of backends changes. A request calls it before it connects, and with
//! [`Tried`] again after an attempt failed.
//!
//! The order of preference is the same for every policy. Backends that were tried for this request and
//! backends that are down are left out. Backends that work are preferred to strained ones (`health`), and
//! among those the smallest priority (of SRV records) wins. Only then the policy decides.

use std::cell::RefCell;
use std::net::IpAddr;

use super::health::{Health, Usability};
use super::limits::TRIES_MAX;
use super::options::Balance;

mod hash;

pub(crate) use hash::stable_hash;

/// A backend that may be chosen.
pub trait Candidate {
    /// Identifies the backend within its route; the same on every machine and after every restart:
    /// [`stable_hash`] of its label and address.
    fn key(&self) -> u64;

    /// Its share of the requests, 1 to 65535.
    fn weight(&self) -> u32;

    /// Its requests under way, of all workers.
    fn load(&self) -> u32;

    /// Whether it works.
    fn health(&self) -> &Health;

    /// Backends with a greater number get requests only if backends with smaller numbers cannot take them.
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

/// The parts of a request that a policy may depend on.
#[derive(Clone, Copy, Debug)]
pub struct RequestKey<'a> {
    /// The Host field, in lower case.
    pub host: &'a [u8],
    /// The path of the URL without its query, so that all variants of a page meet in the cache of one
    /// backend.
    pub path: &'a [u8],
    /// The client's address.
    pub client: IpAddr,
    /// The value of the Cookie field; empty without one.
    pub cookies: &'a [u8],
}

/// Backends that one request was sent to in vain. Holds keys and not positions, because the list of backends
/// may change while the request is under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    keys: [u64; TRIES_MAX],
    count: usize,
}

/// The chosen backend, which has already admitted the request ([`Health::admit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its place among the candidates.
    pub index: usize,
    /// The answer should set the cookie ([`Balancer::write_set_cookie`]), because the request had none, or
    /// one whose backend cannot be used.
    pub set_cookie: bool,
}

/// Why there is no backend for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBackend {
    /// All backends are down, or there is none: 503, as in lighttpd.
    Down,
    /// All usable backends were tried, or [`TRIES_MAX`] of them: the status of the last failure.
    Tried,
    /// The request must go to a certain backend, which is not among them: 502.
    Unknown,
}

/// Chooses backends for one route in one worker.
#[derive(Debug)]
pub struct Balancer {
    policy: Balance,
    /// The hash of the route's id, part of the cookie's name.
    route: u32,
    turns: RefCell<RoundRobinTurns>,
    /// Used only during a choice; kept so that its memory is reused.
    contenders: RefCell<Vec<Contender>>,
}

impl Balancer {
    /// A balancer for the route with that id ([`super::options::Route::id`]). Each `worker` begins with a
    /// different backend.
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

    /// Chooses a backend that was not tried yet, and takes the single turn of one that is probed after being
    /// down.
    ///
    /// # Errors
    /// No backend is left.
    pub fn choose<'r, C: Candidate>(
        &self,
        candidates: &[C],
        request: impl FnOnce() -> RequestKey<'r>,
        tried: &Tried,
        now_ms: u64,
    ) -> Result<Choice, NoBackend> {
        if tried.count >= TRIES_MAX {
            return Err(NoBackend::Tried);
        }
        if let [only] = candidates {
            return take_only(only, tried, now_ms);
        }
        let request = request();
        let mut contenders = self.contenders.borrow_mut();
        // Another worker may take the single turn of a backend between the choice and `admit`. That backend
        // is not usable any more then, so each round has one candidate less.
        for _ in 0..=candidates.len() {
            gather(candidates, tried, now_ms, &mut contenders)?;
            let choice = self.choose_by_policy(&contenders, candidates.len(), &request);
            let admitted = |chosen: &C| chosen.health().admit(now_ms);
            if candidates.get(choice.index).is_some_and(admitted) {
                return Ok(choice);
            }
        }
        Err(NoBackend::Down)
    }

    /// Whether a request that has to wait may go to whichever of the backends is free first. Otherwise the policy
    /// says which backend a request belongs to.
    pub(crate) fn spreads(&self) -> bool {
        matches!(self.policy, Balance::ShortestQueue | Balance::RoundRobin)
    }

    /// The name of the cookie. It differs from route to route, because one client may use several routes.
    pub(crate) fn cookie_name(&self) -> String {
        format!("{COOKIE_PREFIX}{:08x}", self.route)
    }

    /// Appends the value of a Set-Cookie field that brings the client back to `chosen`.
    ///
    /// The cookie holds 32 bits of a hash and no part of the address. The address cannot be read from it, but
    /// an attacker who hashes every possible address can find it.
    pub(crate) fn write_set_cookie(&self, chosen: &impl Candidate, out: &mut Vec<u8>) {
        let name = self.cookie_name();
        let id = self.cookie_id(chosen.key());
        let text = format!("{name}={id:08x}; Path=/; HttpOnly; SameSite=Lax");
        out.extend_from_slice(text.as_bytes());
    }

    /// Chooses among `contenders`, which is not empty. `count` is the number of candidates, unusable ones
    /// included.
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
                // With a single backend a cookie is of no use.
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
    /// No backend was tried yet.
    pub fn new() -> Tried {
        Tried::default()
    }

    /// Notes that `candidate` was tried. After [`TRIES_MAX`] of them no backend is chosen any more.
    pub fn add(&mut self, candidate: &impl Candidate) {
        if let Some(place) = self.keys.get_mut(self.count) {
            *place = candidate.key();
            self.count += 1;
        }
    }

    /// How many backends were tried.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the candidate with this key was tried.
    pub fn contains(&self, key: u64) -> bool {
        self.keys.iter().take(self.count).any(|tried| *tried == key)
    }
}

/// What a choice sees of a candidate. It is read once, because other workers change it meanwhile.
#[derive(Clone, Copy, Debug)]
struct Contender {
    /// Its place among the candidates.
    index: usize,
    key: u64,
    /// In thousandths, so that slow start can reduce it. At most 26 bits, at least 100.
    weight: u64,
    /// At most 32 bits.
    load: u64,
}

impl Contender {
    /// Compares load / weight without a division.
    fn is_shorter_than(&self, other: &Contender) -> bool {
        self.load * other.weight < other.load * self.weight
    }
}

/// How preferable a candidate is; smaller is better. Only candidates of the best tier compete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateTier {
    is_strained: bool,
    priority: u16,
}

/// Replaces `contenders` by the candidates of the best tier, of which there is at least one.
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

/// The choice where there is a single candidate: whatever the policy is, it gets the request.
fn take_only(only: &impl Candidate, tried: &Tried, now_ms: u64) -> Result<Choice, NoBackend> {
    if tried.contains(only.key()) {
        return Err(NoBackend::Tried);
    }
    let is_usable = only.health().usability(now_ms) != Usability::Down;
    match is_usable && only.health().admit(now_ms) {
        true => Ok(Choice {
            index: 0,
            set_cookie: false,
        }),
        false => Err(NoBackend::Down),
    }
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

/// The contender with the fewest requests for its weight, and all that are as good.
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

/// Which contenders take part in a turn of round robin.
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

/// Smooth weighted round robin: in each turn every contender earns its weight as credit; the one with the
/// most credit gets the request and pays the sum of what all have earned. Weights 5, 1, 1 give a a b a c a a
/// instead of a a a a a b c, which would send five requests in a row to the first.
#[derive(Debug)]
struct RoundRobinTurns {
    /// Credit by position among the candidates.
    credits: Vec<i64>,
    /// The position where the search begins, so that not every worker sends its first request to the same
    /// backend.
    first: usize,
}

impl RoundRobinTurns {
    /// The position of the contender whose turn it is.
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
            // A backend that was left out for long neither saves up nor owes more than a few rounds.
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

/// Rendezvous hashing (CARP): for each contender a number is drawn from the request's key and the contender's
/// own; the highest number wins. When a backend disappears, only its own requests move. With unequal weights
/// the numbers are scaled as in "Weighted Distributed Hash Tables" (Schindelhauer, Schomaker 2005): -weight /
/// ln(u).
fn highest_score(contenders: &[Contender], key: u64) -> Option<usize> {
    let draw = |contender: &Contender| hash::mix(contender.key, key);
    let score =
        |contender: &Contender| -(contender.weight as f64) / hash::unit(draw(contender)).ln();
    let is_even = contenders.windows(2).all(|pair| match pair {
        [one, next] => one.weight == next.weight,
        _ => true,
    });
    let winner = if is_even {
        // The score grows with the drawn number, so with equal weights the winner is the same without
        // logarithms.
        contenders.iter().max_by_key(|contender| draw(contender))
    } else {
        contenders
            .iter()
            .max_by(|a, b| score(a).total_cmp(&score(b)))
    };
    winner.map(|winner| winner.index)
}

/// An IPv4 client hashes the same when it comes over an IPv6 socket.
fn address_hash(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(address) => stable_hash(&[&address.octets()]),
        IpAddr::V6(address) => stable_hash(&[&address.octets()]),
    }
}

/// The number in this route's cookie, if it has the form that this server writes (RFC 6265 section 5.4).
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

/// Eight hexadecimal digits in lower case.
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

/// The beginning of the cookie's name; the hash of the route follows.
const COOKIE_PREFIX: &str = "petrel-backend-";

/// The largest weight of an SRV record. The directives allow at most 100.
const WEIGHT_MAX: u32 = 65_535;

/// What the heaviest contender earns in four rounds.
const CREDIT_MAX: i64 = 4 * WEIGHT_MAX as i64 * 1000;

#[cfg(test)]
mod tests;
