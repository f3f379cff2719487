//! The CGI/1.1 variables (RFC 3875) that describe a request to a program: one builder for CGI, FastCGI, SCGI
//! and uwsgi.
//!
//! Names, values and order are those of lighttpd 1.4. A request field becomes an `HTTP_` variable only if its
//! name consists of letters, digits and hyphens. A field `X_Foo` is left out, because its variable would be
//! that of `X-Foo`; so is `Proxy`, because HTTP clients take its variable for the address of their proxy. The
//! builder knows no protocol: it hands each name and value to a [`Variables`]. It allocates nothing for requests
//! such as browsers send.

mod fields;
mod text;

use std::net::SocketAddr;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::exchange::ListenerFacts;
use petrel_engine::exchange::{Peer, Scheme};
use petrel_engine::proto::request_head::Version;

use super::header_map::Rewriting;
use super::options::{BackendHost, Mode};
use super::protocol::BodyLength;
pub(super) use text::ip_text;
use text::{Decimal, Joined};

/// What takes the variables of a request: a closure with name and value, or an encoder.
pub(crate) trait Variables {
    /// Takes a variable.
    fn add(&mut self, name: &[u8], value: &[u8]);

    /// Takes a variable whose value is in two parts.
    #[inline]
    fn add_joined(&mut self, name: &[u8], first: &[u8], second: &[u8]) {
        self.add(name, Joined::new(first, second).as_bytes());
    }
}

impl<F: FnMut(&[u8], &[u8])> Variables for F {
    #[inline]
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self(name, value);
    }
}

/// Calls `add` with every variable of `exchange` for a program at `host`. CONTENT_LENGTH comes first, as SCGI
/// demands; it is missing for authorizers and for a body of unknown length.
pub fn build(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    add: &mut impl FnMut(&[u8], &[u8]),
) {
    build_rewritten(exchange, host, body, &Rewriting::default(), add);
}

/// As [`build`], with the rules of proxy-core.rewrite-request applied.
pub(crate) fn build_rewritten(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    rules: &Rewriting,
    add: &mut impl FnMut(&[u8], &[u8]),
) {
    build_some(exchange, host, body, rules, Extent::All, add);
}

/// As [`build_rewritten`], without the variables of [`constants`]. The caller has to add those first: of two
/// variables with the same name programs take the last one.
pub(crate) fn build_varying(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    rules: &Rewriting,
    add: &mut impl Variables,
) {
    build_some(exchange, host, body, rules, Extent::Varying, add);
}

/// The variables that [`of_client`] leaves out: those of the request itself. They come behind those of
/// [`of_client`]. Only for a request without rules of proxy-core.rewrite-request.
pub(crate) fn build_of_request(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    add: &mut impl Variables,
) {
    let script = Script::new(exchange, host);
    let uri = origin_form(exchange.request.original_target());
    build_with(exchange, host, body, &script, uri, Extent::OfRequest, add);
}

/// The variables that depend on the client, its connection, the fields and the method only.
pub(crate) fn of_client(exchange: &Exchange, out: &mut impl Variables) {
    server(exchange, Extent::All, out);
    client(exchange, out);
    fields::build(&exchange.request.head, out);
}

/// Which of the variables to build.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    Varying,
    OfRequest,
}

fn build_some(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    rules: &Rewriting,
    extent: Extent,
    add: &mut impl Variables,
) {
    if rules.is_empty() {
        let script = Script::new(exchange, host);
        let original = origin_form(exchange.request.original_target());
        return build_with(exchange, host, body, &script, original, extent, add);
    }
    let original = origin_form(exchange.request.original_target());
    let uri = rules.uri(exchange, original);
    let uri = uri.as_deref().unwrap_or(original);
    let mut script = Script::new(exchange, host);
    let path = exchange.request.url.path();
    let name = rules.script_name(exchange, path);
    let info = rules.path_info(exchange, path);
    let root = rules.document_root(exchange, script.root);
    if name.is_some() || root.is_some() {
        script.name = name.as_deref().unwrap_or(script.name);
        script.root = root.as_deref().unwrap_or(script.root);
        script.root_slash = exchange.physical.slash_behind(script.root);
        script.file = below(script.root, script.name);
    }
    script.info = info.as_deref().unwrap_or(script.info);
    let with_fields = &mut |variable: &[u8], value: &[u8]| {
        let field = field_of(variable);
        let changed = field.and_then(|field| rules.field(exchange, &field, value));
        add.add(variable, changed.as_deref().unwrap_or(value));
    };
    build_with(exchange, host, body, &script, uri, extent, with_fields);
}

fn build_with(
    exchange: &Exchange,
    host: &BackendHost,
    body: BodyLength,
    script: &Script<'_>,
    uri: &[u8],
    extent: Extent,
    out: &mut impl Variables,
) {
    let is_authorizer = host.mode == Mode::Authorizer;
    if !is_authorizer {
        match body {
            BodyLength::None => out.add(b"CONTENT_LENGTH", b"0"),
            BodyLength::Known(length) => out.add(b"CONTENT_LENGTH", Decimal::new(length).text()),
            BodyLength::Unknown => {}
        }
    }
    url(exchange, host, uri, out);
    script.add_to(is_authorizer, out);
    if extent != Extent::OfRequest {
        server(exchange, extent, out);
        client(exchange, out);
        fields::build(&exchange.request.head, out);
    }
    if let Some(protocol) = host.upgrade.offered(exchange) {
        out.add(b"HTTP_UPGRADE", protocol);
    }
    own(exchange, out);
}

/// Whether `path` is SCRIPT_FILENAME of `exchange`.
pub(super) fn is_script_file(exchange: &Exchange, host: &BackendHost, path: &str) -> bool {
    let [file, info] = Script::new(exchange, host).file;
    path.as_bytes().strip_prefix(file) == Some(info)
}

/// The part of the URL path that names the program, and what follows it.
pub(crate) fn script_name_and_path_info(exchange: &Exchange) -> (&[u8], &[u8]) {
    let path = exchange.request.url.path();
    let info = exchange.physical.path_info.as_slice();
    let split = path.len().checked_sub(info.len());
    match split.and_then(|split| path.split_at_checked(split)) {
        _ if exchange.physical.info_is_whole => (path, info),
        // The file system may have compared the path in lower case. The program gets it as the client wrote
        // it. Mostly both are the same bytes, which is seen sooner.
        Some((name, rest)) if rest == info || rest.eq_ignore_ascii_case(info) => (name, rest),
        _ => (path, info),
    }
}

/// QUERY_STRING, and the request target as it was sent (`uri`) and as it is after rewriting.
fn url(exchange: &Exchange, host: &BackendHost, uri: &[u8], out: &mut impl Variables) {
    let url = &exchange.request.url;
    out.add(b"QUERY_STRING", url.query());
    let stripped = host.strip_request_uri.as_deref();
    let stripped = stripped.map_or(uri, |prefix| without_prefix(uri, prefix));
    out.add(b"REQUEST_URI", stripped);
    let target = exchange.request.target();
    if target != uri {
        out.add(b"REDIRECT_URI", target);
    }
    // PHP built with --enable-force-cgi-redirect refuses to work without this variable. An error handler gets
    // the status that it answers for from the exchange's environment instead.
    if !exchange.handles_error() {
        out.add(b"REDIRECT_STATUS", b"200");
    }
}

/// The script, and where its files are.
struct Script<'e> {
    name: &'e [u8],
    info: &'e [u8],
    root: &'e [u8],
    /// A slash that is appended to DOCUMENT_ROOT, or nothing.
    root_slash: &'static [u8],
    /// The path of its file, in two parts.
    file: [&'e [u8]; 2],
}

impl<'e> Script<'e> {
    fn new(exchange: &'e Exchange, host: &'e BackendHost) -> Script<'e> {
        let physical = &exchange.physical;
        let (name, info) = script_name_and_path_info(exchange);
        let root = match (&host.docroot, physical.base.as_slice()) {
            (Some(docroot), _) => docroot,
            (None, b"") => configured_root(exchange),
            (None, base) => base,
        };
        let file = match (&host.docroot, physical.path.as_slice()) {
            (Some(_), _) | (None, b"") => below(root, name),
            (None, path) if host.broken_scriptfilename => [path, info],
            (None, path) => [path, b""],
        };
        Script {
            name,
            info,
            root,
            root_slash: physical.slash_behind(root),
            file,
        }
    }

    fn add_to(&self, is_authorizer: bool, out: &mut impl Variables) {
        if !is_authorizer {
            out.add(b"SCRIPT_NAME", self.name);
            if !self.info.is_empty() {
                out.add(b"PATH_INFO", self.info);
                let [root, info] = below(self.root, self.info);
                out.add_joined(b"PATH_TRANSLATED", root, info);
            }
        }
        let [path, info] = self.file;
        out.add_joined(b"SCRIPT_FILENAME", path, info);
        out.add_joined(b"DOCUMENT_ROOT", self.root, self.root_slash);
    }
}

/// The two parts of `path` below `root`, with exactly one slash between them.
fn below<'t>(root: &'t [u8], path: &'t [u8]) -> [&'t [u8]; 2] {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    match path {
        b"" => [root, b"/"],
        _ => [root, path],
    }
}

/// Everything that [`constants`] depends on: requests with equal keys have equal constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConstantsKey {
    profile: u32,
    listener: *const ListenerFacts,
    local_address: Option<SocketAddr>,
    version: Version,
    scheme: Scheme,
}

impl ConstantsKey {
    /// The key for `exchange`. Keys of different workers must not be compared.
    pub(crate) fn of(exchange: &Exchange) -> ConstantsKey {
        ConstantsKey {
            profile: exchange.settings.profile,
            listener: Rc::as_ptr(&exchange.connection.listener),
            local_address: exchange.local_address(),
            version: exchange.request.head.version(),
            scheme: exchange.scheme(),
        }
    }
}

/// Variables that are the same from request to request: versions, and the server's own address.
pub(crate) fn constants(exchange: &Exchange, out: &mut impl Variables) {
    let request = &exchange.request;
    out.add(
        b"SERVER_PROTOCOL",
        request.head.version().as_str().as_bytes(),
    );
    let line = &*exchange.settings.core.server_line;
    let software = line.strip_prefix(b"Server: ").unwrap_or_default();
    out.add(b"SERVER_SOFTWARE", software.trim_ascii_end());
    out.add(b"GATEWAY_INTERFACE", b"CGI/1.1");
    let scheme = exchange.scheme().as_str();
    out.add(b"REQUEST_SCHEME", scheme.as_bytes());
    if scheme == "https" {
        out.add(b"HTTPS", b"on");
    }
    let port = exchange.connection.listener.port;
    out.add(b"SERVER_PORT", Decimal::new(port.into()).text());
    with_address(exchange, |address| out.add(b"SERVER_ADDR", address));
}

/// The method, and the server name that the client asked for.
fn server(exchange: &Exchange, extent: Extent, out: &mut impl Variables) {
    let request = &exchange.request;
    let method = request.method_for_rules();
    out.add(b"REQUEST_METHOD", method.as_str().as_bytes());
    if extent == Extent::All {
        constants(exchange, out);
    }
    match (
        &exchange.settings.core.name,
        request.head.host_without_port(),
    ) {
        _ if !exchange.physical.server_name.is_empty() => {
            out.add(b"SERVER_NAME", &exchange.physical.server_name);
        }
        (Some(name), _) => out.add(b"SERVER_NAME", name),
        // RFC 3875 4.1.14 demands a value, so this is the address; lighttpd sends an empty value.
        (None, b"") => with_address(exchange, |address| out.add(b"SERVER_NAME", address)),
        (None, host) => out.add(b"SERVER_NAME", host),
    }
}

/// Calls `take` with the local address of the client's connection as text; empty for a unix socket.
fn with_address(exchange: &Exchange, mut take: impl FnMut(&[u8])) {
    let address = exchange.local_address();
    let text = address.map(|address| ip_text(address.ip()));
    take(text.as_ref().map_or(&b""[..], |text| text.as_bytes()));
}

/// The client's address. A client of a unix socket has the path of that socket, as in lighttpd.
fn client(exchange: &Exchange, out: &mut impl Variables) {
    match exchange.connection.peer {
        Peer::Ip(peer) => {
            out.add(b"REMOTE_ADDR", ip_text(peer.ip()).as_bytes());
            out.add(b"REMOTE_PORT", Decimal::new(peer.port().into()).text());
        }
        Peer::Unix => {
            out.add(
                b"REMOTE_ADDR",
                exchange.connection.listener.address.as_bytes(),
            );
            out.add(b"REMOTE_PORT", b"0");
        }
    }
}

/// Variables that modules set: setenv.add-environment, REMOTE_USER and AUTH_TYPE, the status of an error.
fn own(exchange: &Exchange, out: &mut impl Variables) {
    let mut converted = Vec::new();
    for (name, value) in exchange.environment.iter() {
        // For an error handler the exchange's variable is the URL that failed, which is REQUEST_URI here.
        if name == "REDIRECT_URI" && exchange.handles_error() {
            continue;
        }
        let is_plain =
            |byte: u8| byte == b'_' || byte.is_ascii_uppercase() || byte.is_ascii_digit();
        if name.bytes().all(is_plain) {
            out.add(name.as_bytes(), value);
            continue;
        }
        converted.clear();
        converted.extend(name.bytes().map(|byte| match byte.to_ascii_uppercase() {
            byte if is_plain(byte) => byte,
            _ => b'_',
        }));
        out.add(&converted, value);
    }
}

fn configured_root(exchange: &Exchange) -> &[u8] {
    match (
        &exchange.physical.document_root[..],
        &exchange.settings.core.document_root,
    ) {
        (b"", Some(root)) => root,
        (root, _) => root,
    }
}

/// The request field that `variable` stands for.
fn field_of(variable: &[u8]) -> Option<String> {
    let name = match variable {
        b"CONTENT_TYPE" => variable,
        _ => variable.strip_prefix(b"HTTP_")?,
    };
    let name = String::from_utf8_lossy(name);
    Some(name.replace('_', "-"))
}

/// Path and query of a target in absolute form. Any other target is returned unchanged.
fn origin_form(target: &[u8]) -> &[u8] {
    if matches!(target.first(), Some(b'/' | b'*') | None) {
        return target;
    }
    let colon = memchr::memmem::find(target, b"://");
    let authority = colon.and_then(|colon| target.get(colon + 3..));
    let authority = authority.unwrap_or_default();
    let path = memchr::memchr2(b'/', b'?', authority);
    match path.and_then(|path| authority.get(path..)) {
        Some(path) if path.starts_with(b"/") => path,
        _ => b"/",
    }
}

/// `target` without `prefix`, which must end at a segment boundary. A slash at the end of `prefix` is
/// ignored.
fn without_prefix<'t>(target: &'t [u8], prefix: &[u8]) -> &'t [u8] {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    match target.strip_prefix(prefix) {
        Some(rest) if rest.starts_with(b"/") => rest,
        _ => target,
    }
}

#[cfg(test)]
mod tests;
