//! nginx.

use super::{ARTICLE_SERVICES, Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::Reuse;
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it.
pub const PEER: Peer = Peer {
    name: "nginx",
    program: Program::Packaged {
        program: "nginx",
        package: "nginx",
    },
    version: &["-v"],
    serves: ARTICLE_SERVICES,
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare: |program, site| prepare(program, site, "on"),
};

/// Reads files into memory: better for the smallest, worse for large ones.
pub const WITHOUT_SENDFILE: Peer = Peer {
    name: "nginx-nosendfile",
    choice: Choice::OnRequest,
    prepare: |program, site| prepare(program, site, "off"),
    ..PEER
};

fn prepare(program: &Path, site: &Site<'_>, sendfile: &str) -> io::Result<Command> {
    let file = site.configure("nginx.conf", &configuration(site, sendfile))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(site.directory).arg("-c").arg(file);
    Ok(command)
}

/// `tcp_nopush off`: corking costs two calls and gains nothing where head and body are small.
/// `reuseport`: a queue for each worker, or one of them gets most of the connections.
/// `open_file_cache_errors on`: its negative cache, for the 404s.
fn configuration(site: &Site<'_>, sendfile: &str) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let (upstream, locations) = site.upstream.map(gateway).unwrap_or_default();
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    format!(
        "daemon off;
{user}
worker_processes {WORKERS};
worker_rlimit_nofile 65536;
pid {directory}/nginx.pid;
error_log {directory}/error.log crit;
events {{
    worker_connections 8192;
}}
http {{
    types {{ text/html html; image/jpeg jpg; }}
    client_body_temp_path {directory};
    proxy_temp_path {directory};
    fastcgi_temp_path {directory};
    uwsgi_temp_path {directory};
    scgi_temp_path {directory};
    access_log off;
    log_not_found off;
    sendfile {sendfile};
    tcp_nopush off;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    open_file_cache max=20000 inactive=60s;
    open_file_cache_valid 60s;
    open_file_cache_min_uses 1;
    open_file_cache_errors on;
{upstream}    server {{
        listen 127.0.0.1:{port} reuseport backlog=4096;
        root {root};
{locations}    }}
}}
"
    )
}

/// What has to be told: backend connections are kept, by each worker as many as there are clients.
/// The parameters are Debian's.
fn gateway(upstream: Upstream<'_>) -> (String, String) {
    let Upstream {
        route,
        address,
        keep,
        ..
    } = upstream;
    let server = match address {
        Address::Unix(path) => format!("unix:{}", path.display()),
        Address::Tcp(_) => address.to_string(),
    };
    let (kept, keep_conn) = match keep {
        Reuse::Keep => (KEPT, "fastcgi_keep_conn on;"),
        Reuse::Close => ("", ""),
    };
    let group = format!("    upstream backend {{\n        server {server};\n{kept}    }}\n");
    let place = match route {
        Route::FastCgi => "/fcgi",
        Route::Php => "~ \\.php$",
        Route::Http => "/http",
    };
    let pass = match route {
        Route::FastCgi | Route::Php => format!("fastcgi_pass backend; {keep_conn}{PARAMS}"),
        Route::Http => "proxy_pass http://backend; proxy_http_version 1.1; \
                       proxy_set_header Connection \"\";"
            .to_owned(),
    };
    (group, format!("        location {place} {{ {pass} }}\n"))
}

const KEPT: &str = "        keepalive 128;
        keepalive_requests 1000000000;
        keepalive_timeout 3600s;
";
const PARAMS: &str = "
            fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
            fastcgi_param QUERY_STRING $query_string;
            fastcgi_param REQUEST_METHOD $request_method;
            fastcgi_param CONTENT_TYPE $content_type;
            fastcgi_param CONTENT_LENGTH $content_length;
            fastcgi_param SCRIPT_NAME $fastcgi_script_name;
            fastcgi_param REQUEST_URI $request_uri;
            fastcgi_param DOCUMENT_URI $document_uri;
            fastcgi_param DOCUMENT_ROOT $document_root;
            fastcgi_param SERVER_PROTOCOL $server_protocol;
            fastcgi_param REQUEST_SCHEME $scheme;
            fastcgi_param GATEWAY_INTERFACE CGI/1.1;
            fastcgi_param SERVER_SOFTWARE nginx/$nginx_version;
            fastcgi_param REMOTE_ADDR $remote_addr;
            fastcgi_param REMOTE_PORT $remote_port;
            fastcgi_param SERVER_ADDR $server_addr;
            fastcgi_param SERVER_PORT $server_port;
            fastcgi_param SERVER_NAME $server_name;
            fastcgi_param REDIRECT_STATUS 200;
";
