//! nginx.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::scripts::InServer;
use crate::workload::{Reuse, Service, rewriting};
use std::io;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises.
pub const PEER: Peer = Peer {
    name: "nginx",
    program: Program::Packaged {
        program: "nginx",
        package: "nginx",
    },
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Rewriting,
        Service::Passwords,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::PhpInside,
        Service::Gateway(Route::Lua),
        Service::LargeAnswers,
        Service::Reconnect,
        Service::KeepFastCgi,
        Service::Scripts,
        Service::WaitingScripts,
        Service::PageCache(Route::Http),
        Service::PageCache(Route::Php),
        Service::Tls,
        Service::Http2,
        Service::ClearHttp2,
        Service::Http2Gateway(Route::FastCgi),
        Service::Http2Gateway(Route::Http),
    ],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare: |program, site| prepare(program, site, SENDFILE),
};

/// Reads files into memory: faster for the smallest, slower for large ones.
pub const WITHOUT_SENDFILE: Peer = Peer {
    name: "nginx-nosendfile",
    choice: Choice::OnRequest,
    prepare: |program, site| prepare(program, site, "sendfile off;"),
    ..PEER
};

/// Leaves work that may wait for a disk to its pool of 32 threads: sendfile(2), or reads if a chunk size is
/// set.
pub const WITH_THREADS: Peer = Peer {
    name: "nginx-aio",
    choice: Choice::OnRequest,
    prepare: |program, site| {
        let sendfile = match site.reading.chunk_kib {
            Some(_) => "sendfile off;",
            None => SENDFILE,
        };
        prepare(program, site, &format!("aio threads; {sendfile}"))
    },
    ..PEER
};

/// `sending`: the directives about sending files.
fn prepare(program: &Path, site: &Site<'_>, sending: &str) -> io::Result<Command> {
    let script = site.script().map(|script| script_location(site, script));
    let rules = rewriting::rules(site.workload, |pattern, target| {
        format!("        rewrite {pattern} {target} last;\n")
    });
    let sending = match site.reading.chunk_kib {
        Some(kib) => format!("{sending} sendfile_max_chunk {kib}k; output_buffers 2 {kib}k;"),
        None => sending.to_owned(),
    };
    let script = script.transpose()?.unwrap_or_default();
    let guard = match site.login()? {
        Some((_, users)) => format!(
            "        auth_basic R; auth_basic_user_file {};\n",
            users.display()
        ),
        None => String::new(),
    };
    let text = configuration(site, &sending, &script, &(rules + &guard));
    let file = site.configure("nginx.conf", &text)?;
    let mut command = Command::new(program);
    command.arg("-p").arg(site.directory).arg("-c").arg(file);
    Ok(command)
}

/// `tcp_nopush off`: corking costs two calls and gains nothing if head and body are small. `reuseport`: one
/// queue per worker; without it one worker gets most of the connections. `open_file_cache_errors on`: its
/// negative cache, for the 404s.
fn configuration(site: &Site<'_>, sending: &str, script: &str, rules: &str) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let (protocols, certificate) = encryption(site);
    let (upstream, locations) = site
        .upstream
        .map(|upstream| gateway(upstream, site.memory))
        .unwrap_or_default();
    let (modules, lua_path) = match script {
        "" => ("", String::new()),
        _ => (
            LUA,
            format!("    lua_package_path \"{}\";\n", site.lua_path()),
        ),
    };
    let threads = match site.reading.threads {
        Some(threads) => format!("thread_pool default threads={threads};\n"),
        None => String::new(),
    };
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    format!(
        "daemon off;
{modules}{user}
{threads}worker_processes {WORKERS};
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
    {sending}
    tcp_nopush off;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    open_file_cache max=20000 inactive=60s;
    open_file_cache_valid 60s;
    open_file_cache_min_uses 1;
    open_file_cache_errors on;
{lua_path}{upstream}    server {{
        listen 127.0.0.1:{port}{protocols} reuseport backlog=4096;
{certificate}        root {root};
{rules}{locations}{script}    }}
}}
"
    )
}

/// `ssl_protocols`: Debian's nginx 1.22 disables TLS 1.3 by default. Its workers share the keys of tickets.
fn encryption(site: &Site<'_>) -> (String, String) {
    let http2 = if site.is_http2() { " http2" } else { "" };
    match site.pem {
        None => (http2.to_owned(), String::new()),
        Some(pem) => {
            let pem = pem.display();
            let directives = format!(
                "        ssl_certificate {pem};
        ssl_certificate_key {pem};
        ssl_protocols TLSv1.2 TLSv1.3;
"
            );
            (" ssl".to_owned() + http2, directives)
        }
    }
}

/// Lua with LuaJIT. The code cache is on by default; it is written out nevertheless.
fn script_location(site: &Site<'_>, script: &InServer) -> io::Result<String> {
    let file = site.write_script(script, "nginx.lua", script.nginx)?;
    let place = match script.only_path() {
        Some(path) => format!("= {path}"),
        None => "/".to_owned(),
    };
    let file = file.display();
    Ok(format!(
        "        location {place} {{ lua_code_cache on; content_by_lua_file {file}; }}\n"
    ))
}

/// What must be configured: persistent backend connections, in each worker as many as there are clients. The
/// parameters are Debian's.
fn gateway(upstream: Upstream<'_>, memory: &Path) -> (String, String) {
    let Upstream {
        route,
        address,
        keep,
        cached,
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
        Route::Lua => "~ \\.lua$",
        Route::Http => "/http",
    };
    let pass = match route {
        Route::FastCgi | Route::Php | Route::Lua => {
            format!("fastcgi_pass backend; {keep_conn}{PARAMS}")
        }
        Route::Http => "proxy_pass http://backend; proxy_http_version 1.1; \
                       proxy_set_header Connection \"\";"
            .to_owned(),
    };
    let protocol = if route == Route::Http {
        "proxy"
    } else {
        "fastcgi"
    };
    let (path, cache) = if cached {
        cache(protocol, memory)
    } else {
        Default::default()
    };
    let location = format!("        location {place} {{ {pass}{cache} }}\n");
    (path + &group, location)
}

/// The directory of the cache, and its use. Its files are in memory, and are kept open like others.
fn cache(protocol: &str, memory: &Path) -> (String, String) {
    let memory = memory.display();
    (
        format!(
            "    {protocol}_cache_path {memory} levels=1:2 keys_zone=pages:10m max_size=64m \
             inactive=1h use_temp_path=off;\n"
        ),
        format!(" {protocol}_cache pages; {protocol}_cache_key $request_uri;"),
    )
}

const SENDFILE: &str = "sendfile on;";
/// Debian's directory of modules.
const LUA: &str = "load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
";
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
