//! The backends of one route, as one worker sees them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::log::LogHandle;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::worker::Worker;

use super::backend::{Backend, SharedBackends};
use super::balance::{Balancer, Candidate, Choice, NoBackend, RequestKey, Tried};
use super::connection::Workbench;
use super::health::Usability;
use super::options::{BackendHost, Balance, HostAddress, Mode, Route};
use super::resolve::{self, FollowedNames, Resolved};
use super::stream::{InTurn, SocketAddress};
use super::trust::LoadedTrusts;

/// All upstreams of a worker, by the id of their route.
pub(crate) struct Upstreams {
    shared: Arc<SharedBackends>,
    trusts: Arc<LoadedTrusts>,
    names: Arc<FollowedNames>,
    workbench: Rc<Workbench>,
    known: RefCell<HashMap<String, Rc<Upstream>>>,
    log: LogHandle,
    /// The number of this worker.
    worker: usize,
}

/// The backends of one route.
pub(super) struct Upstream {
    id: String,
    members: Vec<Member>,
    shared: Arc<SharedBackends>,
    trusts: Arc<LoadedTrusts>,
    names: Arc<FollowedNames>,
    workbench: Rc<Workbench>,
    backends: RefCell<Rc<[Rc<Backend>]>>,
    balancer: Balancer,
    log: LogHandle,
}

/// One host of a route, and the addresses that its name resolves to.
struct Member {
    host: Rc<BackendHost>,
    place: MemberAddress,
    /// The generation of the endpoints that the present backends were made from.
    seen: Cell<u64>,
}

enum MemberAddress {
    Fixed(SocketAddress),
    Named(Arc<Resolved>),
}

impl Upstreams {
    /// The upstreams of `worker`.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<Upstreams> {
        worker.belonging(|| Upstreams::new(worker))
    }

    fn new(worker: &Rc<Worker>) -> Upstreams {
        let shared = worker.shared().belonging(SharedBackends::default);
        worker.each_second(|worker| Upstreams::of(worker).tidy(worker));
        Upstreams {
            worker: shared.next_worker(),
            shared,
            trusts: LoadedTrusts::of(worker),
            names: FollowedNames::of(worker.shared()),
            workbench: Workbench::of(worker),
            known: RefCell::default(),
            log: worker.base_settings().core.error_log.clone(),
        }
    }

    /// Makes `worker` use the same backends as `other`, as workers of one process do.
    #[cfg(test)]
    pub(super) fn share(worker: &Rc<Worker>, other: &Rc<Worker>) {
        let shared = Arc::clone(&Upstreams::of(other).shared);
        worker.belonging(|| Upstreams {
            shared,
            ..Upstreams::new(worker)
        });
    }

    /// This worker's backends that requests were sent to.
    #[cfg(test)]
    pub(super) fn backends(&self) -> Vec<Rc<Backend>> {
        let known = self.known.borrow();
        let all = known.values();
        all.flat_map(|upstream| upstream.backends.borrow().to_vec())
            .collect()
    }

    /// The upstream of `route`, created by the first request for it.
    pub(crate) fn get(&self, route: &Route, balance: Balance) -> Rc<Upstream> {
        if let Some(known) = self.known.borrow().get(&route.id) {
            return Rc::clone(known);
        }
        let members = route
            .hosts
            .iter()
            .filter_map(|host| Member::new(host, &self.names, &self.log));
        let made = Rc::new(Upstream {
            id: route.id.clone(),
            members: members.collect(),
            shared: Arc::clone(&self.shared),
            trusts: Arc::clone(&self.trusts),
            names: Arc::clone(&self.names),
            workbench: Rc::clone(&self.workbench),
            backends: RefCell::new(Rc::from([])),
            balancer: Balancer::new(balance, &route.id, self.worker),
            log: self.log.clone(),
        });
        made.look_up();
        self.known
            .borrow_mut()
            .insert(route.id.clone(), Rc::clone(&made));
        made
    }

    fn tidy(&self, worker: &Worker) {
        let now_ms = worker.clock().now_ms();
        for upstream in self.known.borrow().values() {
            for backend in upstream.backends.borrow().iter() {
                backend.tidy(now_ms);
            }
        }
    }
}

impl Upstream {
    /// Chooses the backend for `exchange` among those that were not tried.
    ///
    /// # Errors
    /// No backend is left.
    pub(super) fn choose(
        &self,
        exchange: &Exchange,
        tried: &Tried,
    ) -> Result<(Rc<Backend>, Choice), NoBackend> {
        if self.members.iter().any(Member::has_moved) {
            self.look_up();
        }
        let key = || {
            let head = &exchange.request.head;
            let client = exchange.connection.peer.ip();
            RequestKey {
                host: head.host(),
                path: exchange.request.url.path(),
                client: client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                cookies: head.field(KnownField::Cookie).unwrap_or_default(),
            }
        };
        let backends = self.backends.borrow();
        let now_ms = exchange.worker.clock().latest_ms();
        let choice = self.balancer.choose(&backends, key, tried, now_ms)?;
        let backend = backends.get(choice.index).ok_or(NoBackend::Down)?;
        Ok((Rc::clone(backend), choice))
    }

    /// The backends that work and may answer instead of `chosen`, which has no connection free.
    pub(super) fn others(
        &self,
        chosen: &Rc<Backend>,
        tried: &Tried,
        exchange: &Exchange,
    ) -> Vec<Rc<Backend>> {
        if !self.balancer.spreads() {
            return Vec::new();
        }
        let now_ms = exchange.worker.clock().latest_ms();
        let backends = self.backends.borrow();
        let others = backends.iter().filter(|other| {
            !Rc::ptr_eq(other, chosen)
                && other.priority() == chosen.priority()
                && !tried.contains(other.key())
                && other.shared.health.usability(now_ms) == Usability::Ready
        });
        others.cloned().collect()
    }

    /// A backend that is probably being restarted.
    pub(super) fn restarting(&self) -> Option<Rc<Backend>> {
        let backends = self.backends.borrow();
        let mut all = backends.iter();
        all.find(|backend| backend.is_restarting()).cloned()
    }

    /// Whether these backends answer requests; authorizers do not.
    pub(super) fn answers(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.host.mode == Mode::Responder)
    }

    /// The backend with this address or label.
    pub(super) fn named(&self, name: &[u8]) -> Option<Rc<Backend>> {
        if self.members.iter().any(Member::has_moved) {
            self.look_up();
        }
        let backends = self.backends.borrow();
        let is_it = |backend: &&Rc<Backend>| {
            [&backend.shared.name, &backend.shared.label]
                .iter()
                .any(|known| known.as_bytes() == name)
        };
        backends.iter().find(is_it).cloned()
    }

    /// The balancer, which chooses among the backends.
    pub(super) fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// Ready when every host name has been looked up once. Before that nothing is known about the backends.
    pub(crate) fn poll_known(&self, context: &mut Context<'_>) -> Poll<()> {
        for member in &self.members {
            if let MemberAddress::Named(resolved) = &member.place {
                ready!(resolved.poll_answered(context));
            }
        }
        Poll::Ready(())
    }

    /// The names of hosts that a name server was asked for, for a note about the wait.
    pub(crate) fn looked_up_names(&self) -> String {
        let is_named = |member: &&Member| matches!(member.place, MemberAddress::Named(_));
        let named = self.members.iter().filter(is_named);
        let names: Vec<&str> = named
            .filter_map(|member| match &member.host.address {
                HostAddress::Tcp(name, _) | HostAddress::Srv(name) => Some(&**name),
                HostAddress::Unix(_) => None,
            })
            .collect();
        names.join(", ")
    }

    /// Makes a backend of each address. A backend that was there before stays, with its connections; a
    /// backend whose address has gone ends with the last request that uses it.
    fn look_up(&self) {
        let before = Rc::clone(&self.backends.borrow());
        let mut backends = Vec::new();
        for member in &self.members {
            for (address, weight, priority) in member.endpoints() {
                let is_same = |backend: &&Rc<Backend>| {
                    Rc::ptr_eq(&backend.host, &member.host) && backend.address == address
                };
                backends.push(match before.iter().find(is_same) {
                    Some(backend) => Rc::clone(backend),
                    None => self.backend(&member.host, address, weight, priority),
                });
            }
        }
        *self.backends.borrow_mut() = backends.into();
    }

    fn backend(
        &self,
        host: &Rc<BackendHost>,
        address: SocketAddress,
        weight: u32,
        priority: u16,
    ) -> Rc<Backend> {
        let id = format!("{} {} {address}", self.id, host.label);
        let (trusts, names) = (&self.trusts, &self.names);
        let shared = self
            .shared
            .get(&id, host, &address, trusts, names, &self.log);
        let workbench = Rc::clone(&self.workbench);
        Backend::new(
            Rc::clone(host),
            address,
            shared,
            workbench,
            weight,
            priority,
        )
    }
}

impl Member {
    /// `None` if the host name cannot be looked up because the thread for that cannot be started.
    fn new(host: &Rc<BackendHost>, names: &FollowedNames, log: &LogHandle) -> Option<Member> {
        let place = match resolve::fixed(&host.address) {
            Some(address) => MemberAddress::Fixed(address),
            None => match names.watch(&host.address, log) {
                Ok(resolved) => MemberAddress::Named(resolved),
                Err(error) => {
                    log.error(format_args!("(backend-connect) no resolver: {error}"));
                    return None;
                }
            },
        };
        Some(Member {
            host: Rc::clone(host),
            place,
            seen: Cell::new(0),
        })
    }

    fn has_moved(&self) -> bool {
        match &self.place {
            MemberAddress::Fixed(_) => false,
            MemberAddress::Named(resolved) => resolved.generation() != self.seen.get(),
        }
    }

    /// The addresses of the host with their weights and priorities.
    fn endpoints(&self) -> Vec<(SocketAddress, u32, u16)> {
        match &self.place {
            MemberAddress::Fixed(address) => vec![(address.clone(), self.host.weight, 0)],
            MemberAddress::Named(resolved) => {
                self.seen.set(resolved.generation());
                let endpoints = resolved.current();
                // The targets of an SRV record are hosts of their own, so each one is a backend.
                let is_one =
                    !self.host.split_hostname && !matches!(self.host.address, HostAddress::Srv(_));
                if is_one && endpoints.len() > 1 {
                    let addresses = endpoints.iter().map(|endpoint| endpoint.address);
                    let name = super::options::shown(&self.host.address);
                    let address = SocketAddress::Several(InTurn::new(name, addresses.collect()));
                    return vec![(address, self.host.weight, 0)];
                }
                let weighted = endpoints.iter().map(|endpoint| {
                    let weight = self.host.weight.saturating_mul(endpoint.weight.into());
                    let address = SocketAddress::Ip(endpoint.address);
                    (address, weight, endpoint.priority)
                });
                weighted.collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::options::testing::host;

    /// Names and weights of the backends that a host with two addresses makes.
    fn backends_of(options: &str) -> Vec<(String, u32)> {
        let addresses =
            ["10.0.0.1:81", "10.0.0.2:81"].map(|text| text.parse().expect("an address"));
        let member = Member {
            host: Rc::new(host(options)),
            place: MemberAddress::Named(Arc::new(Resolved::of(&addresses))),
            seen: Cell::new(0),
        };
        let endpoints = member.endpoints().into_iter();
        endpoints
            .map(|(address, weight, _)| (address.to_string(), weight))
            .collect()
    }

    #[test]
    fn addresses_of_a_name_are_one_backend_unless_they_are_split() {
        let name = "\"host\" => \"app\", \"port\" => 81, \"weight\" => 3";
        assert_eq!(backends_of(name), [("app:81".to_owned(), 3)]);
        let each = [("10.0.0.1:81".to_owned(), 6), ("10.0.0.2:81".to_owned(), 6)];
        let split = format!("{name}, \"split-hostnames\" => \"enable\"");
        assert_eq!(backends_of(&split), each);
        // The targets of an SRV record are hosts of their own.
        assert_eq!(
            backends_of("\"srv\" => \"_a._tcp.b\", \"weight\" => 3"),
            each
        );
    }
}
