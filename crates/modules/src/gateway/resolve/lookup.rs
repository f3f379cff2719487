//! One look-up: from a host name, or the name of SRV records, to endpoints and how long they are valid.
//!
//! This is the only file that uses the DNS library.
#![expect(
    clippy::disallowed_methods,
    reason = "the thread that looks names up has no worker"
)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use petrel_engine::socket::is_own_shortage;
use tokio::task::JoinSet;

use super::Endpoint;
use crate::gateway::limits::{ENDPOINTS_MAX, SRV_TARGETS_MAX};
use crate::gateway::options::HostAddress;

/// Where names are looked up: name servers, search domains, and the entries of a hosts file.
#[derive(Clone)]
pub struct NameServers {
    config: ResolverConfig,
    options: ResolverOpts,
    hosts: Arc<Hosts>,
}

/// Sends queries to the name servers. Clones share sockets. It belongs to the runtime in which it is first
/// used.
#[derive(Clone)]
pub(super) struct NameClient {
    resolver: TokioResolver,
}

/// The result of a look-up.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    /// Sorted, without duplicates, at least one.
    pub(crate) endpoints: Vec<Endpoint>,
    /// The shortest time to live of the records, less what has passed of it.
    pub(crate) ttl: Duration,
}

impl NameServers {
    /// The name servers of /etc/resolv.conf and the entries of /etc/hosts. Without /etc/resolv.conf, a name
    /// server on this machine, as in the C library.
    pub fn of_system() -> NameServers {
        let (config, options) = system_conf::read_system_conf().unwrap_or_else(|_| {
            let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let servers = vec![NameServerConfig::udp_and_tcp(here)];
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            (config, ResolverOpts::default())
        });
        NameServers {
            config,
            options,
            hosts: Arc::new(Hosts::from_system().unwrap_or_default()),
        }
    }

    pub(super) fn client(&self) -> NameClient {
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(self.config.clone(), provider);
        let mut options = self.options.clone();
        // The task that follows the name keeps its answers itself, for as long as they are valid.
        options.cache_size = 0;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never;
        *builder.options_mut() = options;
        let resolver = builder.build();
        let mut resolver = resolver.expect("only TLS to name servers has something that can fail");
        resolver.set_hosts(Arc::clone(&self.hosts));
        NameClient { resolver }
    }
}

impl fmt::Debug for NameServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.config.name_servers().iter();
        f.debug_list()
            .entries(servers.map(|server| server.ip))
            .finish()
    }
}

impl NameClient {
    /// The endpoints of `address`. An error is a sentence about what went wrong.
    pub(super) async fn look_up(&self, address: &HostAddress) -> Result<LookupAnswer, String> {
        let found = match address {
            HostAddress::Tcp(name, port) => self.host(name, *port).await,
            HostAddress::Srv(name) => self.services(name).await,
            HostAddress::Unix(_) => return Err("a unix socket is no name".to_owned()),
        };
        let found = found.map_err(|error| sentence(&error))?;
        let endpoints = in_order(found.endpoints);
        if endpoints.is_empty() {
            return Err("it has no address".to_owned());
        }
        let ttl = found.valid_until.saturating_duration_since(Instant::now());
        Ok(LookupAnswer { endpoints, ttl })
    }

    /// Looks up A and AAAA records, or the entry of the hosts file.
    async fn host(&self, name: &str, port: u16) -> Result<FoundEndpoints, NetError> {
        let lookup = self.resolver.lookup_ip(name).await?;
        let endpoint = |ip| Endpoint {
            address: SocketAddr::new(ip, port),
            priority: 0,
            weight: 1,
        };
        Ok(FoundEndpoints {
            endpoints: lookup.iter().map(endpoint).collect(),
            valid_until: lookup.valid_until(),
        })
    }

    /// Looks up SRV records and the addresses of their targets. A target that cannot be resolved is left out
    /// and looked up again soon.
    async fn services(&self, name: &str) -> Result<FoundEndpoints, NetError> {
        let lookup = self.resolver.srv_lookup(name).await?;
        let mut found = FoundEndpoints {
            endpoints: Vec::new(),
            valid_until: lookup.valid_until(),
        };
        let mut records: Vec<SRV> = lookup
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // A target of "." says that the service is not available (RFC 2782).
                RData::SRV(srv) if !srv.target.is_root() => Some(srv.clone()),
                _ => None,
            })
            .collect();
        records.sort_by_key(|srv| srv.priority);
        records.truncate(SRV_TARGETS_MAX);

        let mut targets = JoinSet::new();
        for srv in records {
            let client = self.clone();
            targets.spawn(async move {
                let found = client.host(&srv.target.to_utf8(), srv.port).await;
                (srv, found)
            });
        }
        let mut last_error = None;
        while let Some(Ok((srv, target))) = targets.join_next().await {
            match target {
                Ok(target) => found.add(&srv, target),
                Err(error) => last_error = Some(error),
            }
        }
        match last_error {
            Some(error) if found.endpoints.is_empty() => Err(error),
            Some(_) => {
                let soon = Instant::now() + INCOMPLETE_VALID;
                found.valid_until = found.valid_until.min(soon);
                Ok(found)
            }
            None => Ok(found),
        }
    }
}

/// Endpoints in the order in which they were found.
struct FoundEndpoints {
    endpoints: Vec<Endpoint>,
    valid_until: Instant,
}

impl FoundEndpoints {
    /// Adds the addresses of an SRV record's target.
    fn add(&mut self, srv: &SRV, target: FoundEndpoints) {
        self.valid_until = self.valid_until.min(target.valid_until);
        let endpoints = target.endpoints.into_iter().map(|endpoint| Endpoint {
            priority: srv.priority,
            // A weight of 0 says that a target should get hardly any requests. If all have 0 they are equal.
            weight: srv.weight.max(1),
            ..endpoint
        });
        self.endpoints.extend(endpoints);
    }
}

/// Sorts by priority and address; keeps each address once, and at most [`ENDPOINTS_MAX`]. Name servers change
/// the order of their answers all the time, and equal answers must compare equal.
fn in_order(mut endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    endpoints.sort_by_key(|endpoint| (endpoint.address, endpoint.priority, endpoint.weight));
    endpoints.dedup_by_key(|endpoint| endpoint.address);
    endpoints.sort_by_key(|endpoint| (endpoint.priority, endpoint.address));
    endpoints.truncate(ENDPOINTS_MAX);
    endpoints
}

fn sentence(error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NXDomain => "there is no such name".to_owned(),
            ResponseCode::NoError => format!("it has no {} record", none.query.query_type()),
            code => format!("the name server says: {code}"),
        },
        NetError::Io(error) if is_own_shortage(error) => {
            format!(
                "this server, not the name server, has no descriptors, memory or ports left: {error}"
            )
        }
        NetError::Timeout => "no name server answered in time".to_owned(),
        other => other.to_string(),
    }
}

/// The longest validity of a list of SRV targets of which one could not be resolved.
const INCOMPLETE_VALID: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    impl NameServers {
        /// A single name server over UDP, without search domains or a hosts file.
        pub(in crate::gateway::resolve) fn only(server: SocketAddr) -> NameServers {
            let mut connection = hickory_resolver::config::ConnectionConfig::udp();
            connection.port = server.port();
            let server = NameServerConfig::new(server.ip(), true, vec![connection]);
            NameServers {
                config: ResolverConfig::from_parts(None, Vec::new(), vec![server]),
                options: ResolverOpts::default(),
                hosts: Arc::default(),
            }
        }
    }

    fn endpoint(address: &str, priority: u16, weight: u16) -> Endpoint {
        Endpoint {
            address: address.parse().expect("an address"),
            priority,
            weight,
        }
    }

    #[test]
    fn endpoints_come_in_the_same_order_for_all_answers() {
        let expected = [
            endpoint("192.0.2.1:80", 1, 7),
            endpoint("192.0.2.2:80", 1, 1),
            endpoint("[2001:db8::1]:80", 1, 1),
            endpoint("192.0.2.0:80", 2, 1),
        ];
        let mut found = expected.to_vec();
        found.push(endpoint("192.0.2.1:80", 3, 1));
        for _ in 0..found.len() {
            found.rotate_left(1);
            assert_eq!(in_order(found.clone()), expected);
        }
    }

    #[test]
    fn there_is_an_end_to_the_endpoints_of_a_name() {
        let many = (0..200).map(|number| endpoint(&format!("192.0.2.{number}:80"), 0, 1));
        let kept = in_order(many.rev().collect());
        assert_eq!(kept.len(), ENDPOINTS_MAX);
        assert_eq!(kept.first(), Some(&endpoint("192.0.2.0:80", 0, 1)));
    }

    #[test]
    fn a_shortage_of_our_own_is_not_the_name_server_s() {
        let shortage: std::io::Error = rustix::io::Errno::MFILE.into();
        let told = sentence(&NetError::from(shortage));
        assert!(
            told.starts_with(
                "this server, not the name server, has no descriptors, memory or ports left: Too many open files"
            ),
            "{told}"
        );
        let refused: std::io::Error = rustix::io::Errno::CONNREFUSED.into();
        assert!(!sentence(&NetError::from(refused)).contains("descriptors"));
    }

    #[test]
    fn the_hosts_file_comes_before_name_servers() {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut servers = NameServers::only(nobody);
        let mut hosts = Hosts::default();
        let text = b"192.0.2.7 app.test app # the application\n2001:db8::7 app.test\n";
        hosts.read_hosts_conf(&text[..]).expect("it is read");
        servers.hosts = Arc::new(hosts);
        let address = HostAddress::Tcp("APP.test".to_owned(), 80);
        let runtime = crate::gateway::resolve::follow::runtime().expect("a runtime");
        let answer = runtime.block_on(servers.client().look_up(&address));
        let answer = answer.expect("it is there");
        let expected = [
            endpoint("192.0.2.7:80", 0, 1),
            endpoint("[2001:db8::7]:80", 0, 1),
        ];
        assert_eq!(answer.endpoints, expected);
    }
}
