//! mod_evasive: limits how many connections of one address have requests under way.
//!
//! The count is that of all workers together. A connection counts from its first request that gets here until
//! none of its requests is under way; an idle connection does not count, and neither does one whose requests
//! were all refused. An HTTP/2 connection counts once, however many requests it has. Behind a trusted proxy
//! the address is the client's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::shared::lock;

const NAME: &str = "mod_evasive";

/// mod_evasive.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: NAME,
    doc: "Limits how many connections of one address have requests under way at the same time.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "evasive.max-conns-per-ip", Short, Request, "0", Effect::Works,
            "How many connections of one address may have requests under way. Requests on further connections get 403. 0: no limit.";
        "evasive.silent", Bool, Request, "disable", Effect::Works,
            "Do not log refused requests.";
        "evasive.location", String, Request, "unset", Effect::Works,
            "A URL to redirect to (302), instead of answering 403.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let connections_max = values.unsigned("evasive.max-conns-per-ip", 0) as usize;
    if connections_max > 0 {
        let location = values.string("evasive.location").unwrap_or_default();
        let limit = AddressLimit {
            connections_max,
            is_silent: values.bool("evasive.silent").unwrap_or(false),
            location: location.as_bytes().into(),
        };
        configure.add(Phase::Authorize, limit);
    }
    Ok(())
}

struct AddressLimit {
    connections_max: usize,
    is_silent: bool,
    /// The URL to redirect to; if empty, the answer is 403.
    location: Box<[u8]>,
}

impl Hook for AddressLimit {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.is_subrequest() {
            return Outcome::Next;
        }
        let worker = &exchange.worker;
        let shared = || worker.shared().belonging(BusyConnections::default);
        let busy = worker.belonging(shared);
        let (address, id) = (exchange.connection.peer.ip(), exchange.connection.id);
        let counted = BusyConnections::count(&busy, address, id, self.connections_max);
        let Some(counted) = counted else {
            return self.turn_away(exchange);
        };
        // Replaces what an earlier run of this hook has kept, so that a request that begins again is counted
        // once.
        exchange.keep(NAME, Rc::new(counted));
        Outcome::Next
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        exchange.note(|| {
            let most = self.connections_max;
            Note::Text(format!(
                "would count the connections of the client ({most} at most)"
            ))
        });
        Outcome::Next
    }
}

impl AddressLimit {
    fn turn_away(&self, exchange: &mut Exchange) -> Outcome {
        let outcome = exchange.fail(CauseCode::AddressLimited);
        if !self.is_silent {
            let most = self.connections_max;
            exchange.log_common_error(
                "authorize",
                format_args!("refused: evasive.max-conns-per-ip allows {most} connections"),
            );
        }
        if self.location.is_empty() {
            return outcome;
        }
        exchange.response.answer(Status::FOUND);
        exchange.response.set("Location", &self.location);
        Outcome::Answer
    }
}

/// The connections of all workers that have requests under way.
#[derive(Default)]
struct BusyConnections {
    /// By the client's address. As in lighttpd, all clients on unix sockets are one (`None`).
    of_address: Mutex<HashMap<Option<IpAddr>, Vec<RequestsUnderWay>>>,
}

struct RequestsUnderWay {
    connection: u64,
    /// Never 0.
    count: usize,
}

impl BusyConnections {
    /// Counts a request of `connection` until the returned value is dropped. `None`: `address` has `most`
    /// other connections already.
    fn count(
        this: &Arc<Self>,
        address: Option<IpAddr>,
        connection: u64,
        most: usize,
    ) -> Option<BusyConnection> {
        let mut of_address = lock(&this.of_address);
        let busy = of_address.entry(address).or_default();
        let others = busy.iter().filter(|busy| busy.connection != connection);
        if others.count() >= most {
            return None;
        }
        match busy.iter_mut().find(|busy| busy.connection == connection) {
            Some(busy) => busy.count += 1,
            None => busy.push(RequestsUnderWay {
                connection,
                count: 1,
            }),
        }
        Some(BusyConnection {
            all: Arc::clone(this),
            address,
            connection,
        })
    }
}

/// A request that is counted.
struct BusyConnection {
    all: Arc<BusyConnections>,
    address: Option<IpAddr>,
    connection: u64,
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        let mut of_address = lock(&self.all.of_address);
        let Some(busy) = of_address.get_mut(&self.address) else {
            return;
        };
        if let Some(own) = busy
            .iter_mut()
            .find(|busy| busy.connection == self.connection)
        {
            own.count -= 1;
        }
        busy.retain(|busy| busy.count > 0);
        if busy.is_empty() {
            of_address.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use petrel_engine::exchange::Peer;
    use petrel_engine::testing::{Answer, Site};

    use super::*;

    /// A request on the connection `id`. It is under way as long as the answer exists.
    fn ask(site: &mut Site, peer: Peer, id: u64, fields: &str) -> Answer {
        let mut connection = site.connection();
        (connection.peer, connection.id) = (peer, id);
        site.set_connection(connection);
        site.request(&format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
        ))
    }

    fn peer(address: &str) -> Peer {
        Peer::Ip(SocketAddr::new(address.parse().expect("an address"), 1))
    }

    const ROOT: &str = "server.document-root = \"/nonexistent\"\n";

    fn site(config: &str) -> Site {
        let modules = [&MODULE, &crate::rewrite::MODULE, &crate::extforward::MODULE];
        Site::new(&format!("{ROOT}{config}"), &modules)
    }

    #[test]
    fn connections_of_an_address_are_counted_as_long_as_they_have_requests() {
        let mut site = site("evasive.max-conns-per-ip = 2");
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let first = ask(&mut site, one, 1, "");
        let second = ask(&mut site, one, 2, "");
        assert_eq!((first.status(), second.status()), (404, 404));
        let third = ask(&mut site, one, 3, "");
        assert_eq!(third.status(), 403);
        // More requests on a connection that counts already, as in HTTP/2, and a request of another address.
        let streams = [ask(&mut site, one, 2, ""), ask(&mut site, one, 2, "")];
        assert!(streams.iter().all(|stream| stream.status() == 404));
        assert_eq!(ask(&mut site, other, 4, "").status(), 404);
        let mapped = peer("::ffff:192.0.2.1");
        assert_eq!(ask(&mut site, mapped, 5, "").status(), 403);
        drop(second);
        assert_eq!(ask(&mut site, one, 3, "").status(), 403);
        drop(streams);
        assert_eq!(ask(&mut site, one, 3, "").status(), 404);
        drop(first);
        let all = site.worker().shared().belonging(BusyConnections::default);
        assert!(lock(&all.of_address).is_empty());
    }

    #[test]
    fn behind_a_trusted_proxy_the_clients_are_counted() {
        let trust = "extforward.forwarder = (\"192.0.2.9\" => \"trust\")\n";
        let mut site = site(&format!("{trust}evasive.max-conns-per-ip = 1"));
        let proxy = peer("192.0.2.9");
        let _first = ask(&mut site, proxy, 1, "X-Forwarded-For: 192.0.2.1\r\n");
        let mut status = |fields: &str| ask(&mut site, proxy, 2, fields).status();
        assert_eq!(status("X-Forwarded-For: 192.0.2.1\r\n"), 403);
        assert_eq!(status("X-Forwarded-For: 192.0.2.2\r\n"), 404);
        assert_eq!(status(""), 404);
        assert_eq!(ask(&mut site, peer("192.0.2.1"), 3, "").status(), 403);
    }

    #[test]
    fn the_order_of_modules_counts() {
        let modules = [&MODULE, &crate::redirect::MODULE, &crate::access::MODULE];
        let rules = "evasive.max-conns-per-ip = 1\nevasive.location = \"/busy\"\n\
            $HTTP[\"querystring\"] == \"denied\" { url.access-deny = (\"\") }\n\
            $HTTP[\"querystring\"] == \"moved\" { url.redirect = (\"\" => \"/moved\") }";
        for (list, denied, moved) in [
            (
                "\"mod_evasive\", \"mod_access\", \"mod_redirect\"",
                302,
                "/busy",
            ),
            (
                "\"mod_access\", \"mod_redirect\", \"mod_evasive\"",
                403,
                "/moved",
            ),
        ] {
            let config = format!("{ROOT}server.modules = ({list})\n{rules}");
            let mut site = Site::new(&config, &modules);
            let first = ask(&mut site, Peer::Unix, 1, "");
            assert_eq!(first.status(), 404, "{list}");
            let mut connection = site.connection();
            (connection.peer, connection.id) = (Peer::Unix, 2);
            site.set_connection(connection);
            assert_eq!(site.get("/?denied").status(), denied, "{list}");
            let location = site.get("/?moved").field("Location");
            assert_eq!(location.as_deref(), Some(moved), "{list}");
        }
    }

    #[test]
    fn clients_may_be_sent_elsewhere() {
        let mut site = site("evasive.max-conns-per-ip = 1\nevasive.location = \"/busy.html?a\"");
        let _first = ask(&mut site, Peer::Unix, 1, "");
        let answer = ask(&mut site, Peer::Unix, 2, "");
        let location = answer.field("Location");
        assert_eq!(
            (answer.status(), location.as_deref()),
            (302, Some("/busy.html?a"))
        );
    }

    #[test]
    fn a_rewritten_request_is_counted_once_and_has_the_limit_of_its_new_url() {
        let config = "url.rewrite-once = (\"^/$\" => \"/new\")\nevasive.max-conns-per-ip = 5\n\
            $HTTP[\"url\"] == \"/new\" { evasive.max-conns-per-ip = 1 }";
        let mut site = site(config);
        let client = peer("192.0.2.1");
        let first = ask(&mut site, client, 1, "");
        assert_eq!(ask(&mut site, client, 2, "").status(), 403);
        drop(first);
        assert_eq!(ask(&mut site, client, 2, "").status(), 404);
    }
}
