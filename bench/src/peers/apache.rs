//! Apache httpd with the event MPM.

use super::{ALL_SERVICES, Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it: no per-directory files, no status of anything, few modules.
pub const PEER: Peer = Peer {
    name: "apache",
    program: Program::Packaged {
        program: "apache2",
        package: "apache2",
    },
    version: &["-v"],
    serves: ALL_SERVICES,
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure("apache.conf", &configuration(site))?;
    let mut command = Command::new(program);
    command.arg("-f").arg(file).arg("-DFOREGROUND");
    Ok(command)
}

/// Two processes of 64 threads: with fewer threads than connections it hands more of them over.
/// It refuses to serve as root; `nobody` can read the document root.
fn configuration(site: &Site<'_>) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let gateway = site.upstream.map(gateway).unwrap_or_default();
    let root_user = rustix::process::geteuid().is_root();
    let user = if root_user {
        "User nobody\nGroup nogroup"
    } else {
        ""
    };
    let threads = 64 * WORKERS;
    format!(
        "{user}
ServerRoot {directory}
ServerName 127.0.0.1
PidFile {directory}/apache.pid
ErrorLog {directory}/error.log
LogLevel emerg
Mutex file:{directory}
LoadModule mpm_event_module {MODULES}/mod_mpm_event.so
LoadModule authz_core_module {MODULES}/mod_authz_core.so
LoadModule mime_module {MODULES}/mod_mime.so
TypesConfig /dev/null
AddType text/html .html
AddType image/jpeg .jpg
Listen 127.0.0.1:{port}
ListenBacklog 4096
StartServers {WORKERS}
ServerLimit {WORKERS}
ThreadLimit 64
ThreadsPerChild 64
MaxRequestWorkers {threads}
MinSpareThreads 1
MaxSpareThreads {threads}
MaxConnectionsPerChild 0
AsyncRequestWorkerFactor 64
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 3600
EnableMMAP On
EnableSendfile On
HostnameLookups Off
DocumentRoot {root}
<Directory />
    AllowOverride None
    Options FollowSymLinks
    Require all granted
</Directory>
{gateway}"
    )
}

/// Backend connections are kept when told so, by each process as many as it has threads.
fn gateway(upstream: Upstream<'_>) -> String {
    let Upstream { route, address, .. } = upstream;
    let scheme = if route == Route::Http { "http" } else { "fcgi" };
    let url = match address {
        Address::Unix(path) => format!("unix:{}|{scheme}://backend", path.display()),
        Address::Tcp(_) => format!("{scheme}://{address}"),
    };
    let reuse = "enablereuse=on max=64 ttl=3600";
    let pass = match route {
        Route::FastCgi => format!("ProxyPass /fcgi {url}/fcgi {reuse}"),
        Route::Http => format!("ProxyPass /http {url}/http {reuse}"),
        Route::Php => format!(
            "<FilesMatch \"\\.php$\">
    SetHandler \"proxy:{url}/\"
</FilesMatch>
<Proxy \"fcgi://backend/\" {reuse}>
</Proxy>"
        ),
    };
    format!(
        "LoadModule proxy_module {MODULES}/mod_proxy.so
LoadModule proxy_fcgi_module {MODULES}/mod_proxy_fcgi.so
LoadModule proxy_http_module {MODULES}/mod_proxy_http.so
{pass}
"
    )
}

/// Where Debian keeps them.
const MODULES: &str = "/usr/lib/apache2/modules";
