//! TLS as configured in articles, manuals and packages: each configuration starts, answers by https, and
//! redirects there from http.
//!
//! The texts are as published, except for paths, names and ports: `DIR` is the directory with certificates,
//! `:80` and `:443` are the ports of the test.

use petrel_tests::{Authority, Server, curl, free_port};

/// A configuration as published.
struct Published {
    name: &'static str,
    text: &'static str,
    /// The host that the client requests.
    host: &'static str,
    /// A word in the head of the response.
    in_head: &'static str,
}

const ALL: [Published; 10] = [
    Published {
        name: "certbot's files, and two hosts",
        host: "www.example.net",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect" )
            $SERVER["socket"] == ":443" {
                ssl.engine  = "enable"
                ssl.pemfile = "DIR/live/example.org/fullchain.pem"
                ssl.privkey = "DIR/live/example.org/privkey.pem"
                $HTTP["host"] =~ "^(www\.)?example\.net$" {
                    ssl.pemfile = "DIR/live/example.net/fullchain.pem"
                    ssl.privkey = "DIR/live/example.net/privkey.pem"
                }
            }
            $HTTP["scheme"] == "http" {
                $HTTP["url"] !~ "^/\.well-known/acme-challenge/" {
                    url.redirect = ( "" => "https://${url.authority}${url.path}${qsa}" )
                    url.redirect-code = 308
                }
            }
        "#,
    },
    Published {
        name: "lighttpd's wiki, one file for both",
        host: "example.org",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect" )
            ssl.pemfile = "DIR/server.pem"
            $SERVER["socket"] == ":443" { ssl.engine = "enable" }
            $SERVER["socket"] == "[::]:443" { ssl.engine = "enable" }
            $HTTP["scheme"] == "http" {
                $HTTP["host"] =~ ".*" { url.redirect = ( ".*" => "https://%0$0" ) }
            }
        "#,
    },
    Published {
        name: "Mozilla's generator, intermediate",
        host: "example.org",
        in_head: "max-age=63072000",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect", "mod_setenv" )
            $SERVER["socket"] == ":443" {
                ssl.engine  = "enable"
                ssl.pemfile = "DIR/live/example.org/fullchain.pem"
                ssl.privkey = "DIR/live/example.org/privkey.pem"
            }
            ssl.openssl.ssl-conf-cmd = (
                "MinProtocol" => "TLSv1.2",
                "CipherString" => "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305",
                "Curves" => "X25519:prime256v1:secp384r1",
                "Options" => "-ServerPreference"
            )
            $HTTP["scheme"] == "http" {
                url.redirect = ( "" => "https://${url.authority}${url.path}${qsa}" )
            }
            $HTTP["scheme"] == "https" {
                setenv.add-response-header = ( "Strict-Transport-Security" => "max-age=63072000" )
            }
        "#,
    },
    Published {
        name: "Mozilla's generator of 2019, modern",
        host: "example.org",
        in_head: "max-age=63072000",
        text: r#"
            $SERVER["socket"] == ":80" {
                $HTTP["host"] =~ ".*" { url.redirect = ( ".*" => "https://%0$0" ) }
            }
            $SERVER["socket"] == ":443" {
                ssl.engine  = "enable"
                ssl.pemfile = "DIR/live/example.org/fullchain.pem"
                ssl.privkey = "DIR/live/example.org/privkey.pem"
                # modern configuration
                ssl.openssl.ssl-conf-cmd = ("Protocol" => "-ALL, TLSv1.3")
                ssl.cipher-list = ""
                ssl.honor-cipher-order = "disable"
                # HTTP Strict Transport Security (63072000 seconds)
                setenv.add-response-header = ( "Strict-Transport-Security" => "max-age=63072000" )
            }
            server.modules += ( "mod_redirect", "mod_setenv", "mod_openssl" )
        "#,
    },
    Published {
        name: "strong ciphers of 2014",
        host: "example.org",
        in_head: "x-frame-options: DENY",
        text: r#"
            server.modules += ( "mod_redirect", "mod_setenv" )
            $SERVER["socket"] == ":443" {
                ssl.engine = "enable"
                ssl.pemfile = "DIR/server.pem"
                ssl.ca-file = "DIR/ca.pem"
                ssl.use-sslv2 = "disable"
                ssl.use-sslv3 = "disable"
                ssl.use-compression = "disable"
                ssl.honor-cipher-order = "enable"
                ssl.disable-client-renegotiation = "enable"
                ssl.cipher-list = "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH"
                ssl.dh-file = "DIR/dhparam.pem"
                ssl.ec-curve = "secp384r1"
                setenv.add-response-header = (
                    "Strict-Transport-Security" => "max-age=63072000; includeSubdomains; preload",
                    "X-Frame-Options" => "DENY",
                    "X-Content-Type-Options" => "nosniff"
                )
            }
            $HTTP["scheme"] == "http" {
                $HTTP["host"] =~ ".*" { url.redirect = ( ".*" => "https://%0$0" ) }
            }
        "#,
    },
    Published {
        name: "against BEAST, 2012",
        host: "example.org",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules = ( "mod_access", "mod_redirect", "mod_accesslog" )
            $SERVER["socket"] == "0.0.0.0:443" {
                ssl.engine  = "enable"
                ssl.pemfile = "DIR/server.pem"
                ssl.ca-file = "DIR/ca.pem"
                ssl.cipher-list = "ECDHE-RSA-AES256-SHA384:AES256-SHA256:RC4-SHA:RC4:HIGH:!MD5:!aNULL:!EDH"
                ssl.honor-cipher-order = "enable"
                server.name = "example.org"
            }
            $HTTP["scheme"] == "http" {
                $HTTP["host"] =~ "^(.*)$" { url.redirect = ( "^/(.*)" => "https://%1/$1" ) }
            }
        "#,
    },
    Published {
        // The socket condition is inside the condition on the host.
        name: "Pi-hole's external.conf",
        host: "example.org",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect", "mod_setenv" )
            $HTTP["host"] == "example.org" {
              setenv.add-environment = ("fqdn" => "true")
              $SERVER["socket"] == ":443" {
                ssl.engine = "enable"
                ssl.pemfile = "DIR/live/example.org/combined.pem"
                ssl.ca-file =  "DIR/live/example.org/fullchain.pem"
                ssl.honor-cipher-order = "enable"
                ssl.cipher-list = "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH"
                ssl.use-sslv2 = "disable"
                ssl.use-sslv3 = "disable"
              }
              $HTTP["scheme"] == "http" {
                $HTTP["host"] =~ ".*" {
                  url.redirect = (".*" => "https://%0$0")
                }
              }
            }
        "#,
    },
    Published {
        name: "OpenWrt's 30-openssl.conf",
        host: "example.org",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules += ( "mod_redirect" )
            server.modules += ( "mod_openssl" )
            ssl.openssl.ssl-conf-cmd += ("MinProtocol" => "TLSv1.2", "Options" => "-SessionTicket")
            ssl.pemfile = "DIR/server.pem"
            $SERVER["socket"] == ":443" { ssl.engine = "enable" }
            $SERVER["socket"] == "[::]:443" { ssl.engine = "enable" }
            $HTTP["scheme"] == "http" {
                $HTTP["host"] !~ "^localhost" {
                    url.redirect = ( "" => "https://${url.authority}${url.path}${qsa}" )
                }
            }
        "#,
    },
    Published {
        name: "in front of Proxmox, with HSTS for 180 days",
        host: "example.org",
        in_head: "max-age=15552000",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect", "mod_proxy", "mod_setenv" )
            ssl.privkey = "DIR/live/example.org/privkey.pem"
            ssl.pemfile = "DIR/live/example.org/fullchain.pem"
            ssl.openssl.ssl-conf-cmd = ("Protocol" => "-ALL, TLSv1.2, TLSv1.3")
            $SERVER["socket"] == ":443" {
                ssl.engine = "enable"
                setenv.add-response-header = ( "Strict-Transport-Security" => "max-age=15552000; includeSubDomains" )
                $HTTP["url"] =~ "^/(api2|novnc|pve2)" {
                    proxy.server = ( "" => ( ( "host" => "127.0.0.1", "port" => 8006 ) ) )
                    proxy.header = ( "upgrade" => "enable", "https-remap" => "enable" )
                }
            }
            else $HTTP["scheme"] == "http" {
                url.redirect = ( "^/(.*)" => "https://example.org/$1" )
            }
        "#,
    },
    Published {
        name: "stapling, and a file that a script is still to write",
        host: "example.org",
        in_head: "HTTP/2 200",
        text: r#"
            server.modules += ( "mod_openssl", "mod_redirect" )
            $SERVER["socket"] == ":443" {
                ssl.engine = "enable"
                ssl.privkey = "DIR/live/example.org/privkey.pem"
                ssl.pemfile = "DIR/live/example.org/fullchain.pem"
                ssl.stapling-file = "DIR/live/example.org/ocsp.der"
                ssl.stek-file = "DIR/stek.dat"
            }
            $HTTP["scheme"] == "http" {
                $HTTP["host"] =~ "(.*)" { url.redirect = ( "^/(.*)" => "https://%1/$1" ) }
            }
        "#,
    },
];

/// It takes so long because a server starts for each configuration, and curl asks it twice.
#[test]
fn published_configurations_of_tls_serve_and_redirect() {
    let authority = Authority::new();
    for published in &ALL {
        let name = published.name;
        println!("--- {name}");
        let (plain, tls) = (free_port(), free_port());
        let server = start(published, &authority, plain, tls);
        let plain = match published.text.contains(":80\"") {
            true => plain,
            false => server.port(),
        };
        let host = published.host;
        let ca = authority.file().display().to_string();
        let resolve = |port: u16| format!("{host}:{port}:127.0.0.1");
        let url = format!("https://{host}:{tls}/");
        let fetched = curl(&[
            "--cacert",
            &ca,
            "--resolve",
            &resolve(tls),
            "--include",
            &url,
        ]);
        let text = fetched.text();
        assert!(
            text.ends_with("\r\n\r\nhello"),
            "{name}: {text}{}",
            fetched.errors
        );
        let head = published.in_head.to_lowercase();
        assert!(text.to_lowercase().contains(&head), "{name}: {text}");
        let url = format!("http://{host}:{plain}/a/page?x=y");
        let redirect = curl(&[
            "--resolve",
            &resolve(plain),
            "--output",
            "/dev/null",
            "--write-out",
            "%{redirect_url}",
            &url,
        ]);
        let to = redirect.text();
        let is_there = to.starts_with(&format!("https://{host}")) && to.contains("/a/page");
        assert!(is_there, "{name}: {to}");
        drop(server);
    }
}

fn start(published: &Published, authority: &Authority, plain: u16, tls: u16) -> Server {
    let text = published
        .text
        .replace(":443\"", &format!(":{tls}\""))
        .replace(":80\"", &format!(":{plain}\""));
    Server::build()
        .file("www/index.html", "hello")
        .tree(|tree| {
            let mut both = Vec::new();
            for site in ["example.org", "example.net"] {
                let identity = authority.identity(match site {
                    "example.net" => "www.example.net",
                    other => other,
                });
                let read = |path| std::fs::read(path).expect("a file of the test");
                let (certificate, key) = (read(identity.certificate), read(identity.key));
                if site == "example.org" {
                    both = [&key[..], &certificate].concat();
                }
                tree.write(&format!("live/{site}/fullchain.pem"), certificate);
                tree.write(&format!("live/{site}/privkey.pem"), key);
            }
            tree.write("live/example.org/combined.pem", &both);
            tree.write("server.pem", both);
            tree.write("dhparam.pem", "");
            let ca = std::fs::read(authority.file()).expect("its certificate");
            tree.write("ca.pem", ca);
        })
        .config(&text.replace("\"DIR", "var.dir + \""))
        .start()
}
