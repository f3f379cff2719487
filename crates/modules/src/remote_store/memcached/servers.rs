//! Which server has a key: computed from the names of the servers and their order.
//!
//! Each method gives the same result as libmemcached, so that a site can change its client, or use both, and
//! still find its keys.

use super::hashing::{HashName, md5, md5_word};

/// How keys are distributed among servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Distribution {
    /// The hash modulo the number of servers. If that number changes, nearly every key moves.
    #[default]
    Modula,
    /// Ketama: each server has 160 points on a circle, by MD5, as in libmemcached with `KETAMA_WEIGHTED` and
    /// by default in other clients. Keys are hashed with MD5 unless another hash is chosen.
    Ketama,
    /// libmemcached's plain `KETAMA` or `consistent`: each server has 100 points, computed with the hash of
    /// the keys.
    Consistent,
}

impl Distribution {
    /// `modula`, `ketama` (or `ketama_weighted`) or `consistent`, in any letter case.
    pub(crate) fn from_name(name: &str) -> Option<Distribution> {
        Some(match &name.to_ascii_lowercase()[..] {
            "modula" => Distribution::Modula,
            "ketama" | "ketama_weighted" => Distribution::Ketama,
            "consistent" => Distribution::Consistent,
            _ => return None,
        })
    }

    /// The default hash for keys with this distribution.
    pub(crate) fn hash_default(self) -> HashName {
        match self {
            Distribution::Ketama => HashName::Md5,
            Distribution::Modula | Distribution::Consistent => HashName::OneAtATime,
        }
    }
}

/// Finds the server for a key.
#[derive(Debug)]
pub(super) struct Ring {
    hash: HashName,
    servers: usize,
    /// The points with their servers, sorted; empty with [`Distribution::Modula`].
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// A ring of servers with these names and ports; the port of a unix socket is 0.
    pub(crate) fn new(distribution: Distribution, hash: HashName, servers: &[(&str, u16)]) -> Ring {
        let points_of = |name: &str| match distribution {
            Distribution::Modula => Vec::new(),
            Distribution::Ketama => ketama_points(name, servers.len()),
            Distribution::Consistent => consistent_points(name, hash),
        };
        let mut points = Vec::new();
        for (index, (host, port)) in servers.iter().enumerate() {
            // All clients leave the default port out of the name.
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

/// 40, or 39 where single precision makes it so: libmemcached computes the share of each server this way, and
/// its keys are placed accordingly.
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
