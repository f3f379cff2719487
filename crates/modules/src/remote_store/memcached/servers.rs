//! Which server has a key: pure, by the servers' names and their order.
//!
//! Each way gives the same server as libmemcached does, so that a site may change its client, or have
//! both, and find its keys.

use super::hashing::{HashName, md5, md5_word};

/// How keys are spread over servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Distribution {
    /// The hash modulo the number of servers: another number of servers, and nearly every key is
    /// elsewhere.
    #[default]
    Modula,
    /// Ketama: 160 points of each server on a circle, by MD5, as libmemcached has it with
    /// `KETAMA_WEIGHTED` and other clients have it by default. Keys are hashed by MD5 unless told
    /// otherwise.
    Ketama,
    /// libmemcached's plain `KETAMA` or `consistent`: 100 points of each server, by the hash that keys are
    /// hashed by.
    Consistent,
}

impl Distribution {
    /// `modula`, `ketama` (also `ketama_weighted`) or `consistent`, in any case.
    pub(crate) fn from_name(name: &str) -> Option<Distribution> {
        Some(match &name.to_ascii_lowercase()[..] {
            "modula" => Distribution::Modula,
            "ketama" | "ketama_weighted" => Distribution::Ketama,
            "consistent" => Distribution::Consistent,
            _ => return None,
        })
    }

    /// The hash of keys that goes with it unless another one is chosen.
    pub(crate) fn hash_default(self) -> HashName {
        match self {
            Distribution::Ketama => HashName::Md5,
            Distribution::Modula | Distribution::Consistent => HashName::OneAtATime,
        }
    }
}

/// Where keys go.
#[derive(Debug)]
pub(super) struct Ring {
    hash: HashName,
    servers: usize,
    /// Points and the server each belongs to, sorted; none with [`Distribution::Modula`].
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// Over servers of these names, each with its port; a unix socket has 0.
    pub(crate) fn new(distribution: Distribution, hash: HashName, servers: &[(&str, u16)]) -> Ring {
        let points_of = |name: &str| match distribution {
            Distribution::Modula => Vec::new(),
            Distribution::Ketama => ketama_points(name, servers.len()),
            Distribution::Consistent => consistent_points(name, hash),
        };
        let mut points = Vec::new();
        for (index, (host, port)) in servers.iter().enumerate() {
            // The usual port is left out, in all clients.
            let name = match *port {
                super::MemcachedOptions::PORT_DEFAULT => (*host).to_owned(),
                port => format!("{host}:{port}"),
            };
            let own = points_of(&name);
            points.extend(own.into_iter().map(|point| (point, index)));
        }
        points.sort_by_key(|(point, _)| *point);
        Ring {
            hash,
            servers: servers.len(),
            points,
        }
    }

    /// The index of the server that has `key`.
    pub(crate) fn server_of(&self, key: &[u8]) -> usize {
        if self.servers <= 1 {
            return 0;
        }
        let hash = self.hash.hash(key);
        if self.points.is_empty() {
            return hash as usize % self.servers;
        }
        let next = self.points.partition_point(|(point, _)| *point < hash);
        let found = self.points.get(next).or(self.points.first());
        found.map_or(0, |(_, server)| *server)
    }
}

fn ketama_points(name: &str, servers: usize) -> Vec<u32> {
    let digests =
        (0..digests_of_each(servers)).map(|number| md5(format!("{name}-{number}").as_bytes()));
    let words = |digest| (0..4).map(move |index| md5_word(&digest, index));
    digests.flat_map(words).collect()
}

/// 40, or 39 where single precision makes it so: libmemcached computes the share of each server that way,
/// and its keys are where that puts them.
fn digests_of_each(servers: usize) -> u32 {
    let share = 1.0 / servers as f32;
    (share * KETAMA_POINTS / 4.0 * servers as f32).floor() as u32
}

fn consistent_points(name: &str, hash: HashName) -> Vec<u32> {
    let point = |number| hash.hash(format!("{name}-{number}").as_bytes());
    (0..CONSISTENT_POINTS).map(point).collect()
}

const KETAMA_POINTS: f32 = 160.0;
const CONSISTENT_POINTS: u32 = 100;
