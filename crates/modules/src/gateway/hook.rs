//! The hooks of a gateway: which requests it takes, and in which phase.
//!
//! A route whose hosts all have `check-local = "disable"` takes a request as soon as access to it is granted;
//! no file is looked up for it. Other routes take a request when its file is known, also one that an index
//! file leads to.

use std::cell::RefCell;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::body::ReadAhead;
use petrel_engine::exchange::dry_run::{BackendRoute, Note};
use petrel_engine::metrics;
use petrel_engine::module::{Configure, Hook, Outcome, Phase};
use petrel_engine::proto::request_head::BodyFraming;

use super::options::{BackendHost, Gateway, Mode, Protocol, Route, RouteKey, shown};
use super::request::GatewayRequest;
use super::route;
use super::upgrade;
use super::upstream::{Upstream, Upstreams};

/// Adds the hooks of `gateway` to the settings that are being built.
pub(super) fn install(configure: &mut Configure<'_>, gateway: Gateway) {
    if gateway.routes.is_empty() {
        return;
    }
    // For the variable SERVER_ADDR.
    configure.want_local_address();
    let shared = Rc::new(GatewayRoutes::new(gateway));
    if shared.gateway.routes.iter().any(is_virtual) {
        configure.add(Phase::Authorize, Claim(Rc::clone(&shared)));
    }
    // These hooks come last in their phase, so that they see the result of index files and the other modules.
    let mut authorizers = shared
        .gateway
        .routes
        .iter()
        .filter(|route| is_authorizer(route));
    if authorizers.clone().any(is_virtual) {
        configure.add(Phase::Authorize, EarlyAuthorizer(Rc::clone(&shared)));
    }
    if authorizers.any(|route| !is_virtual(route)) {
        configure.add_last(Phase::Resolved, Authorizer(Rc::clone(&shared)));
    }
    let gate = Rc::clone(&shared);
    // Scripts may belong to a user whose files this server cannot read; they go to the backend all the same.
    configure.take_unread(Rc::new(move |url, file| {
        route::find(&gate.gateway, Mode::Responder, url, file).is_some()
    }));
    configure.add(Phase::Content, PassToBackend(shared));
}

/// The routes of one gateway directive, with what this worker has made of them.
struct GatewayRoutes {
    gateway: Rc<Gateway>,
    /// For each route its upstream, once it was used.
    upstreams: RefCell<Vec<Option<UsedUpstream>>>,
    /// Marks that exchanges keep when a route has claimed them, one for each route.
    claims: Vec<Rc<Claimed>>,
}

/// The upstream of a route, and what its responses count for in the metrics.
type UsedUpstream = (Rc<Upstream>, metrics::Route);

/// Kept with an exchange: the route that has claimed it, before its file was looked up.
struct Claimed {
    /// The gateway's directive, because a configuration may have several gateways.
    directive: &'static str,
    route: usize,
}

/// Claims requests for which no file has to be looked up.
struct Claim(Rc<GatewayRoutes>);

/// Asks authorizers that have `check-local` off.
struct EarlyAuthorizer(Rc<GatewayRoutes>);

/// Asks the other authorizers, once the file is known.
struct Authorizer(Rc<GatewayRoutes>);

/// Sends requests to backends.
struct PassToBackend(Rc<GatewayRoutes>);

impl GatewayRoutes {
    fn new(gateway: Gateway) -> GatewayRoutes {
        let count = gateway.routes.len();
        let claims = (0..count).map(|route| {
            Rc::new(Claimed {
                directive: gateway.directive,
                route,
            })
        });
        GatewayRoutes {
            claims: claims.collect(),
            upstreams: RefCell::new(vec![None; count]),
            gateway: Rc::new(gateway),
        }
    }

    fn upstream(&self, exchange: &mut Exchange, index: usize) -> Option<Rc<Upstream>> {
        let mut upstreams = self.upstreams.borrow_mut();
        let place = upstreams.get_mut(index)?;
        if place.is_none() {
            let route = self.gateway.routes.get(index)?;
            let known = Upstreams::of(&exchange.worker).get(route, self.gateway.balance);
            let counts_for = match &*route.name {
                "" => exchange.route(),
                name => exchange.detailed_route(name),
            };
            *place = Some((known, counts_for));
        }
        let (upstream, counts_for) = place.as_ref()?;
        exchange.set_route(*counts_for);
        Some(Rc::clone(upstream))
    }

    /// The position of `route` in the gateway.
    fn index(&self, route: &Route) -> Option<usize> {
        let mut routes = self.gateway.routes.iter();
        routes.position(|known| std::ptr::eq(known, route))
    }

    /// Sends the request to the backends of the route at position `index`.
    fn pass(&self, exchange: &mut Exchange, index: usize) -> Outcome {
        let is_asked = self.gateway.routes.get(index).is_some_and(is_authorizer);
        let host = self
            .gateway
            .routes
            .get(index)
            .and_then(|route| route.hosts.first());
        if !is_asked && let Some(outcome) = upgrade::prepare_connect(exchange, host.map(Rc::as_ref))
        {
            return outcome;
        }
        if !is_asked && !prepare_body(exchange, self.gateway.protocol) {
            return Outcome::NeedBody;
        }
        let (Some(upstream), Some(route)) = (
            self.upstream(exchange, index),
            self.gateway.routes.get(index),
        ) else {
            return Outcome::Next;
        };
        split_if_virtual(route, exchange);
        // Written where it stays: most of it is room for a conversation, which need not be copied.
        let place = Box::<GatewayRequest>::new_uninit();
        let request = GatewayRequest::new(Rc::clone(&self.gateway), upstream);
        let request = Box::write(place, request);
        Outcome::Later(request)
    }
}

/// The program and path-info of a URL whose file is not looked up.
fn split_if_virtual(route: &Route, exchange: &mut Exchange) {
    if let Some(host) = route.hosts.first()
        && host.mode == Mode::Responder
        && exchange.physical.is_virtual
    {
        route::split(route, host, exchange);
    }
}

/// What a dry run says about the route at position `index`.
impl GatewayRoutes {
    fn note(&self, exchange: &Exchange, index: usize) {
        let Some(route) = self.gateway.routes.get(index) else {
            return;
        };
        exchange.note(|| {
            let key = match &route.key {
                RouteKey::All => String::new(),
                RouteKey::Prefix(key) | RouteKey::Suffix(key) => {
                    String::from_utf8_lossy(key).into_owned()
                }
            };
            Note::Backends(BackendRoute {
                directive: self.gateway.directive,
                key,
                protocol: self.gateway.protocol.name(),
                choice: self.gateway.balance.in_words(),
                backends: route.hosts.iter().map(|host| in_words(host)).collect(),
            })
        });
    }

    /// An authorizer is taken to let the request in.
    fn note_authorizer(&self, exchange: &Exchange, index: usize) {
        self.note(exchange, index);
        let sentence = "does not ask this authorizer here, and takes it to let the request in";
        exchange.note(|| Note::Text(sentence.to_owned()));
    }
}

/// A backend: its address, and what matters when one is chosen.
fn in_words(host: &BackendHost) -> String {
    let mut words = shown(&host.address);
    if host.label != words && !words.ends_with(&host.label) {
        words = format!("{words} {:?}", host.label);
    }
    if host.weight != 1 {
        words += &format!(", weight {}", host.weight);
    }
    if host.tls.is_some() {
        words += ", by TLS";
    }
    if let Some(spawn) = &host.spawn {
        words += &format!(", runs {}", spawn.command.join(" "));
    }
    words
}

impl Hook for Claim {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.physical.is_virtual {
            // A gateway that is listed before this one has claimed the request.
            return Outcome::Next;
        }
        let gate = &self.0;
        let path = exchange.request.url.path();
        let route = route::find_unchecked(&gate.gateway, Mode::Responder, path);
        let Some(index) = route.and_then(|route| gate.index(route)) else {
            return Outcome::Next;
        };
        exchange.physical.is_virtual = true;
        if let Some(claim) = gate.claims.get(index) {
            exchange.keep(KEPT, Rc::clone(claim) as Rc<dyn std::any::Any>);
        }
        Outcome::Next
    }
}

impl EarlyAuthorizer {
    fn route_for(&self, exchange: &Exchange) -> Option<usize> {
        let gate = &self.0;
        let url = exchange.request.url.path();
        let route = route::find_unchecked(&gate.gateway, Mode::Authorizer, url);
        route.and_then(|route| gate.index(route))
    }
}

impl Hook for EarlyAuthorizer {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match self.route_for(exchange) {
            Some(index) => self.0.pass(exchange, index),
            None => Outcome::Next,
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if let Some(index) = self.route_for(exchange) {
            self.0.note_authorizer(exchange, index);
        }
        Outcome::Next
    }
}

impl Authorizer {
    fn route_for(&self, exchange: &Exchange) -> Option<usize> {
        let gate = &self.0;
        let (url, file) = (exchange.request.url.path(), &exchange.physical.path);
        let route = route::find(&gate.gateway, Mode::Authorizer, url, file);
        // Such an authorizer was asked before, by `EarlyAuthorizer`.
        let route = route.filter(|route| !is_virtual(route));
        route.and_then(|route| gate.index(route))
    }
}

impl Hook for Authorizer {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match self.route_for(exchange) {
            Some(index) => self.0.pass(exchange, index),
            None => Outcome::Next,
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if let Some(index) = self.route_for(exchange) {
            self.0.note_authorizer(exchange, index);
        }
        Outcome::Next
    }
}

impl PassToBackend {
    fn route_for(&self, exchange: &Exchange) -> Option<usize> {
        let gate = &self.0;
        if exchange.physical.is_virtual {
            let claimed = exchange.kept::<Claimed>(KEPT);
            claimed
                .filter(|claimed| claimed.directive == gate.gateway.directive)
                .map(|claimed| claimed.route)
        } else {
            let (url, file) = (exchange.request.url.path(), &exchange.physical.path);
            let route = route::find(&gate.gateway, Mode::Responder, url, file);
            route.and_then(|route| gate.index(route))
        }
    }
}

impl Hook for PassToBackend {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match self.route_for(exchange) {
            Some(index) => self.0.pass(exchange, index),
            None => Outcome::Next,
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(index) = self.route_for(exchange) else {
            return Outcome::Next;
        };
        if let Some(route) = self.0.gateway.routes.get(index) {
            split_if_virtual(route, exchange);
        }
        self.0.note(exchange, index);
        exchange.answer_is_made_by("backend")
    }
}

/// Decides how the request body is received. False: it has to be complete before the backend is asked.
pub(super) fn prepare_body(exchange: &mut Exchange, protocol: Protocol) -> bool {
    let body = &mut exchange.request.body;
    if body.is_complete() || body.is_streamed() {
        return true;
    }
    // Of the protocols only HTTP/1.1 can send a body whose length is not known.
    let has_length = matches!(exchange.request.head.framing(), BodyFraming::Length(_));
    let can_stream = has_length || protocol == Protocol::Http;
    match exchange.settings.core.stream_request_body {
        1 if can_stream => exchange.request.body.stream(ReadAhead::Unbounded),
        2 if can_stream => exchange.request.body.stream(ReadAhead::Bounded),
        _ => return false,
    }
    true
}

fn is_virtual(route: &Route) -> bool {
    route.hosts.first().is_some_and(|host| !host.check_local)
}

fn is_authorizer(route: &Route) -> bool {
    route
        .hosts
        .first()
        .is_some_and(|host| host.mode == Mode::Authorizer)
}

/// The key under which the claim is kept with an exchange.
const KEPT: &str = "gateway";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use petrel_engine::proto::method::Method;
    use petrel_engine::subrequest::{Subrequest, SubrequestHead};
    use petrel_engine::testing::Site;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::{PROXY, SCGI};
    use crate::testing::Tree;
    use crate::{index_file, static_file};

    const CONFIG: &str = "scgi.server = ( \".php\" => (( \"socket\" => \"ROOT/none\" )) )
        index-file.names = ( \"index.php\" )";

    /// A backend that answers every request on one connection by echoing it, piece by piece.
    async fn echo(listener: tokio::net::TcpListener, bodies: usize) {
        let (mut stream, _) = listener.accept().await.expect("the gateway connects");
        for _ in 0..bodies {
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\nbody") {
                let count = stream.read_buf(&mut received).await.expect("a request");
                assert!(count > 0, "{}", String::from_utf8_lossy(&received));
            }
            let head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nX-B: 1\r\n\r\n";
            stream.write_all(head).await.expect("sent");
            for piece in received.chunks(40) {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                stream.write_all(&chunk).await.expect("sent");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stream.write_all(b"0\r\n\r\n").await.expect("sent");
        }
    }

    #[tokio::test(flavor = "local")]
    async fn subrequests_go_to_backends_and_leave_connections_for_the_next() {
        for stream in [0, 1] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a free port");
            let port = listener.local_addr().expect("bound").port();
            let backend = tokio::task::spawn_local(echo(listener, 2));
            let config = format!(
                "server.document-root = \"/nonexistent\"
                server.stream-response-body = {stream}
                proxy.server = ( \"/b\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port} )) )"
            );
            let site = Site::new(&config, &[&PROXY]);
            let parent = site.unanswered(
                "GET / HTTP/1.1\r\nHost: a.example\r\nCookie: a=b\r\nUpgrade: websocket\r\n\
                 Connection: upgrade\r\nRange: bytes=0-1\r\n\r\n",
            );
            for _ in 0..2 {
                let mut head = SubrequestHead::get(b"/b/x?y");
                head.method = Method::Post;
                head.body = "body".into();
                let mut asked = Subrequest::new(&parent, head).expect("it is sound");
                assert_eq!(asked.head().await.0, 201);
                assert_eq!(asked.response().get("x-b"), Some(&b"1"[..]));
                assert_eq!(asked.response().get("transfer-encoding"), None);
                let told = asked.collect(10_000).await.expect("it is short");
                let told = String::from_utf8_lossy(&told).into_owned();
                assert!(told.starts_with("POST /b/x?y HTTP/1.1\r\n"), "{told}");
                for field in ["Host: a.example", "Content-Length: 4", "Cookie: a=b"] {
                    assert!(told.contains(&format!("\r\n{field}\r\n")), "{told}");
                }
                assert!(
                    !told.contains("Range") && !told.contains("Upgrade"),
                    "{told}"
                );
                // A connection must have stayed open for that long before a POST uses it again.
                let proof = Duration::from_millis(super::super::limits::KEPT_PROOF_MS);
                tokio::time::sleep(proof * 2).await;
            }
            backend.await.expect("both came by one connection");
        }
    }

    /// 503 means that the request was passed on, to a backend that is not there. 403 means that it was not.
    #[tokio::test(flavor = "local")]
    async fn files_that_cannot_be_read_go_to_backends_only() {
        let tree = Tree::new(&[
            ("a.php", "x"),
            ("a.txt", "x"),
            ("d/index.php", "x"),
            ("closed/a.php", "x"),
        ]);
        for name in ["a.php", "a.txt", "d/index.php", "closed"] {
            let mode = std::fs::Permissions::from_mode(0o000);
            std::fs::set_permissions(tree.path(name), mode).expect("it is ours");
        }
        std::fs::create_dir(tree.path("dir.php")).expect("the tree is ours");
        let may_read_everything = std::fs::read(tree.path("a.txt")).is_ok();
        let site = tree.site(CONFIG, &[&index_file::MODULE, &SCGI, &static_file::MODULE]);
        for (target, status) in [
            ("/a.php", 503),
            ("/a.php/info", 503),
            ("/d/", 503),
            ("/a.txt", 403),
            ("/closed/a.php", 403),
            ("/none.php", 404),
            ("/dir.php", 301),
        ] {
            if may_read_everything && status == 403 {
                continue;
            }
            assert_eq!(site.get(target).status(), status, "{target}");
        }
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(tree.path("closed"), mode).expect("it is ours");
    }
}
