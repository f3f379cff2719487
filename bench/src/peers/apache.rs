//! Apache httpd with the event MPM.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::passwords::Login;
use crate::workload::scripts::{self, InServer};
use crate::workload::stories::{Htaccess, Lookup, NEWS, Story, Way};
use crate::workload::{Reuse, Service, Urls, rewriting};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises: no per-directory files, no status, few modules.
pub const PEER: Peer = Peer {
    name: "apache",
    program: Program::Packaged {
        program: "apache2",
        package: "apache2",
    },
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Rewriting,
        Service::Passwords,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::Gateway(Route::Lua),
        Service::LargeAnswers,
        Service::Reconnect,
        Service::KeepFastCgi,
        Service::Scripts,
        Service::PerlStories,
        Service::PhpInside,
        Service::PageCache(Route::Http),
        Service::PageCache(Route::Php),
    ],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let inside = inside(site)?;
    if site.upstream.is_some_and(|upstream| upstream.cached) {
        // Apache runs as the user nobody, which must be able to write there.
        std::fs::set_permissions(site.memory, Permissions::from_mode(0o777))?;
    }
    let login = site.login()?;
    if let Some((_, users)) = &login {
        // Apache runs as the user nobody, which must be able to read these.
        for (path, mode) in [(users.as_path(), 0o644), (site.directory, 0o755)] {
            std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        }
    }
    let guard = login.map(|(login, users)| guard(login, &users, site.memory));
    let mut text = configuration(site, inside.as_deref());
    text += &guard.unwrap_or_default();
    let file = site.configure("apache.conf", &text)?;
    let mut command = Command::new(program);
    command.arg("-f").arg(file).arg("-DFOREGROUND");
    Ok(command)
}

/// The configuration of the interpreter that runs in the server, if there is one.
fn inside(site: &Site<'_>) -> io::Result<Option<String>> {
    if site.workload.needs == Service::PhpInside {
        return mod_php().map(Some);
    }
    let (script, lookup) = match site.workload.urls {
        Urls::Story(Story {
            way: Way::Handler(_, lookup),
            ..
        }) => (&scripts::STORY, Some(lookup)),
        _ => match site.script() {
            Some(script) => (script, None),
            None => return Ok(None),
        },
    };
    let Some((package, text)) = script.perl else {
        return Ok(None);
    };
    let file = site.write_script(script, "pm", text)?;
    Ok(Some(match lookup {
        Some(lookup) => story(package, lookup, &file),
        None => mod_perl(script, package, &file),
    }))
}

/// Apache refuses to serve as root; `nobody` can read the document root. With mod_perl or mod_php (`inside`)
/// it uses one process per connection, each with its own interpreter.
fn configuration(site: &Site<'_>, inside: Option<&str>) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let gateway = match inside {
        Some(_) => String::new(),
        None => site
            .upstream
            .map(|upstream| gateway(upstream, site))
            .unwrap_or_default(),
    };
    let overriding = match site.workload.urls {
        Urls::Story(Story {
            way: Way::Handler(Htaccess::Sought, _),
            ..
        }) => "All",
        _ => "None",
    };
    let rules = rewriting::rules(site.workload, |pattern, target| {
        format!("RewriteRule \"{pattern}\" \"{target}\" [L]\n")
    });
    let rules = match rules.as_str() {
        "" => rules,
        _ => {
            format!("LoadModule rewrite_module {MODULES}/mod_rewrite.so\nRewriteEngine On\n{rules}")
        }
    };
    let (processes, script) = match inside {
        Some(inside) => (PREFORK.to_owned(), inside),
        None => (event(site.reading.clients), ""),
    };
    let root_user = rustix::process::geteuid().is_root();
    let user = if root_user {
        "User nobody\nGroup nogroup"
    } else {
        ""
    };
    format!(
        "{user}
ServerRoot {directory}
ServerName 127.0.0.1
PidFile {directory}/apache.pid
ErrorLog {directory}/error.log
LogLevel emerg
Mutex file:{directory}
{processes}LoadModule authz_core_module {MODULES}/mod_authz_core.so
LoadModule mime_module {MODULES}/mod_mime.so
TypesConfig /dev/null
AddType text/html .html
AddType image/jpeg .jpg
Listen 127.0.0.1:{port}
ListenBacklog 4096
MaxConnectionsPerChild 0
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 3600
EnableMMAP On
EnableSendfile On
HostnameLookups Off
DocumentRoot {root}
<Directory />
    AllowOverride {overriding}
    Options FollowSymLinks
    Require all granted
</Directory>
{gateway}{script}{rules}"
    )
}

/// It caches log-ins in a shared segment.
fn guard(login: Login, users: &Path, memory: &Path) -> String {
    let (users, memory) = (users.display(), memory.display());
    let (cache, provider) = match login {
        Login::Remembered => (
            format!(
                "LoadModule authn_socache_module {MODULES}/mod_authn_socache.so
LoadModule socache_shmcb_module {MODULES}/mod_socache_shmcb.so
AuthnCacheEnable
AuthnCacheSOCache shmcb:{memory}/logins(1048576)
"
            ),
            "socache file",
        ),
        Login::First => (String::new(), "file"),
    };
    let remembers = match login {
        Login::Remembered => "    AuthnCacheProvideFor file\n    AuthnCacheTimeout 600\n",
        Login::First => "",
    };
    format!(
        "LoadModule auth_basic_module {MODULES}/mod_auth_basic.so
LoadModule authn_core_module {MODULES}/mod_authn_core.so
LoadModule authn_file_module {MODULES}/mod_authn_file.so
LoadModule authz_user_module {MODULES}/mod_authz_user.so
{cache}<Location />
    AuthType Basic
    AuthName R
    AuthBasicProvider {provider}
    AuthUserFile {users}
{remembers}    Require valid-user
</Location>
"
    )
}

/// Two processes of 64 threads: with fewer threads than connections Apache passes more connections between
/// them. Twice as many if more than a hundred clients wait for a disk, since each needs a thread.
fn event(clients: u16) -> String {
    let each = if clients > 100 { 128 } else { 64 };
    let threads = each * WORKERS;
    format!(
        "LoadModule mpm_event_module {MODULES}/mod_mpm_event.so
StartServers {WORKERS}
ServerLimit {WORKERS}
ThreadLimit {each}
ThreadsPerChild {each}
MaxRequestWorkers {threads}
MinSpareThreads 1
MaxSpareThreads {threads}
AsyncRequestWorkerFactor 64
"
    )
}

/// The module is loaded and compiled before the processes are forked. The script's URL is not a file, and
/// Apache is told not to look for one.
fn mod_perl(script: &InServer, package: &str, file: &Path) -> String {
    let (place, file) = (script.only_path().unwrap_or("/"), file.display());
    format!(
        "LoadModule perl_module {MODULES}/mod_perl.so
PerlRequire {file}
PerlTransHandler Apache2::Const::OK
PerlMapToStorageHandler Apache2::Const::OK
<Location {place}>
    SetHandler modperl
    PerlResponseHandler {package}
</Location>
"
    )
}

/// The article's configuration, with mod_perl 2's names.
fn story(package: &str, lookup: Lookup, file: &Path) -> String {
    let shortcut = match lookup {
        Lookup::DocumentRoot => String::new(),
        Lookup::Alias => {
            format!("LoadModule alias_module {MODULES}/mod_alias.so\nAlias {NEWS} /\n")
        }
        Lookup::Trans => "PerlTransHandler Book::Trans\n".to_owned(),
    };
    format!(
        "LoadModule perl_module {MODULES}/mod_perl.so
PerlRequire {}
{shortcut}<Location {NEWS}>
    SetHandler perl-script
    PerlResponseHandler {package}
</Location>
",
        file.display()
    )
}

/// PHP in the server, with OPcache, which Debian enables for it.
fn mod_php() -> io::Result<String> {
    let names = std::fs::read_dir(MODULES)?.flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_php = |name: &String| name.starts_with("libphp") && name.ends_with(".so");
    let library = names.find(is_php).ok_or_else(|| {
        io::Error::other("mod_php is not installed (Debian package libapache2-mod-php)")
    })?;
    Ok(format!(
        "LoadModule php_module {MODULES}/{library}
<FilesMatch \"\\.php$\">
    SetHandler application/x-httpd-php
</FilesMatch>
"
    ))
}

/// Backend connections are persistent if configured so; each process keeps as many as it has threads.
fn gateway(upstream: Upstream<'_>, site: &Site<'_>) -> String {
    let Upstream {
        route,
        address,
        keep,
        cached,
        ..
    } = upstream;
    let scheme = if route == Route::Http { "http" } else { "fcgi" };
    // A worker is found by its URL, which for a unix socket has a name of our own.
    let (url, worker) = match address {
        Address::Unix(path) => {
            let worker = format!("{scheme}://backend");
            (format!("unix:{}|{worker}", path.display()), worker)
        }
        Address::Tcp(_) => (
            format!("{scheme}://{address}"),
            format!("{scheme}://{address}"),
        ),
    };
    let reuse = match keep {
        Reuse::Keep => "enablereuse=on max=64 ttl=3600",
        Reuse::Close => "disablereuse=on",
    };
    let cache = match cached {
        true => cache(site.memory, route, site.workload.body_bytes()),
        false => String::new(),
    };
    let pass = match route {
        Route::FastCgi => format!("ProxyPass /fcgi {url}/fcgi {reuse}"),
        Route::Http => format!("ProxyPass /http {url}/http {reuse}"),
        Route::Php | Route::Lua => format!(
            "<FilesMatch \"\\.(php|lua)$\">
    SetHandler \"proxy:{url}/\"
</FilesMatch>
<Proxy \"{worker}/\" {reuse}>
</Proxy>"
        ),
    };
    format!(
        "LoadModule proxy_module {MODULES}/mod_proxy.so
LoadModule proxy_fcgi_module {MODULES}/mod_proxy_fcgi.so
LoadModule proxy_http_module {MODULES}/mod_proxy_http.so
ProxyFCGIBackendType GENERIC
{pass}
{cache}"
    )
}

/// The faster one of its two stores: a shared segment for small responses (100 B: 15 µs instead of 20), files
/// in memory for larger ones (100 KiB: 22 instead of 30). Both together cost more than either, and the
/// segment stores no response without a length, such as PHP's.
fn cache(memory: &Path, route: Route, bytes: Option<u64>) -> String {
    let memory = memory.display();
    let store = match (route, bytes) {
        (Route::Http, Some(..=SEGMENT_BYTES_MAX)) => format!(
            "LoadModule cache_socache_module {MODULES}/mod_cache_socache.so
LoadModule socache_shmcb_module {MODULES}/mod_socache_shmcb.so
CacheSocache shmcb:{memory}/cache(67108864)
CacheEnable socache /"
        ),
        _ => format!(
            "LoadModule cache_disk_module {MODULES}/mod_cache_disk.so
CacheRoot {memory}
CacheEnable disk /"
        ),
    };
    format!("LoadModule cache_module {MODULES}/mod_cache.so\n{store}\nCacheQuickHandler on\n")
}

/// Larger responses are stored in files.
const SEGMENT_BYTES_MAX: u64 = 2048;
/// More processes than there are client connections.
const PREFORK: &str = "LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
StartServers 96
ServerLimit 96
MaxRequestWorkers 96
MinSpareServers 1
MaxSpareServers 96
";
/// Debian's directory of modules.
const MODULES: &str = "/usr/lib/apache2/modules";
