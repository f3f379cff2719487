//! The backends of one route, as one worker sees them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use petrel_engine::Exchange;
use petrel_engine::proto::http1::KnownField;
use petrel_engine::worker::Worker;

use super::backend::{Backend, SharedBackends, now_ms};
use super::balance::{Balancer, Choice, NoBackend, RequestKey, Tried};
use super::options::{Balance, Host, HostAddress, Route};
use super::stream::SocketAddress;

/// All upstreams of a worker, by the id of their route.
pub struct Upstreams {
    shared: Arc<SharedBackends>,
    known: RefCell<HashMap<String, Rc<Upstream>>>,
    workers: Cell<usize>,
}

/// The backends of one route.
pub struct Upstream {
    id: String,
    hosts: Vec<Rc<Host>>,
    shared: Arc<SharedBackends>,
    backends: RefCell<Rc<[Rc<Backend>]>>,
    balancer: Balancer,
}

impl Upstreams {
    /// Those of `worker`.
    pub fn of(worker: &Rc<Worker>) -> Rc<Upstreams> {
        worker.belonging(|| {
            let shared = worker.shared().belonging(SharedBackends::default);
            Upstreams::new(shared, worker)
        })
    }

    fn new(shared: Arc<SharedBackends>, worker: &Rc<Worker>) -> Upstreams {
        let weak = Rc::downgrade(worker);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(TIDY_EVERY).await;
                let Some(worker) = weak.upgrade() else { return };
                Upstreams::of(&worker).tidy();
            }
        });
        Upstreams {
            shared,
            known: RefCell::default(),
            workers: Cell::new(0),
        }
    }

    /// The upstream of `route`, made when the first request asks for it.
    pub fn get(&self, route: &Route, balance: Balance) -> Rc<Upstream> {
        if let Some(known) = self.known.borrow().get(&route.id) {
            return Rc::clone(known);
        }
        let made = Rc::new(Upstream {
            id: route.id.clone(),
            hosts: route.hosts.clone(),
            shared: Arc::clone(&self.shared),
            backends: RefCell::new(Rc::from([])),
            balancer: Balancer::new(balance, &route.id, self.workers.get()),
        });
        made.look_up();
        self.known
            .borrow_mut()
            .insert(route.id.clone(), Rc::clone(&made));
        made
    }

    fn tidy(&self) {
        let now_ms = now_ms();
        for upstream in self.known.borrow().values() {
            for backend in upstream.backends.borrow().iter() {
                backend.tidy(now_ms);
            }
        }
    }
}

impl Upstream {
    /// The backend for `exchange`, of those that were not tried.
    ///
    /// # Errors
    /// There is none left.
    pub fn choose(
        &self,
        exchange: &Exchange,
        tried: &Tried,
    ) -> Result<(Rc<Backend>, Choice), NoBackend> {
        let backends = Rc::clone(&self.backends.borrow());
        let head = &exchange.request.head;
        let key = RequestKey {
            host: head.host(),
            path: exchange.request.url.path(),
            client: exchange
                .connection
                .peer
                .ip()
                .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            cookies: head.field(KnownField::Cookie).unwrap_or_default(),
        };
        let choice = self.balancer.choose(&backends, &key, tried, now_ms())?;
        let backend = backends.get(choice.index).ok_or(NoBackend::Down)?;
        Ok((Rc::clone(backend), choice))
    }

    /// What decides.
    pub fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// Makes a backend of every address.
    fn look_up(&self) {
        let mut backends = Vec::new();
        for host in &self.hosts {
            for address in addresses(host) {
                let id = format!("{} {} {address}", self.id, host.label);
                let shared = self.shared.get(&id, host, &address);
                backends.push(Backend::new(
                    Rc::clone(host),
                    address,
                    shared,
                    host.weight,
                    0,
                ));
            }
        }
        *self.backends.borrow_mut() = backends.into();
    }
}

fn addresses(host: &Host) -> Vec<SocketAddress> {
    match &host.address {
        HostAddress::Unix(path) => {
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(path));
            vec![SocketAddress::Unix(path)]
        }
        HostAddress::Tcp(name, port) => {
            let name = name.trim_start_matches('[').trim_end_matches(']');
            let ip = name.parse::<IpAddr>().ok();
            ip.map(|ip| SocketAddress::Ip((ip, *port).into()))
                .into_iter()
                .collect()
        }
        HostAddress::Srv(_) => Vec::new(),
    }
}

/// Between two looks at idle connections.
const TIDY_EVERY: Duration = Duration::from_secs(1);
