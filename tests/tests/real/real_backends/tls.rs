//! TLS to nginx and to openssl.

use std::process::Command;

use petrel_tests::{Authority, Component, Identity, Listens, Server, Tree, can_run, free_port};

use crate::real_backends::{numbers, post};

const HOST: &str = "app.example.org";

fn server_in_front(port: u16, authority: &Authority, more: &str) -> Server {
    Server::build()
        .config("server.max-worker = 1\nserver.modules += ( \"mod_proxy\" )")
        .config(&format!(
            "proxy.server = ( \"/\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port}, \"tls\" => \"enable\", \
             \"tls-name\" => \"{HOST}\", \"tls-ca-file\" => \"{}\" {more} )) )",
            authority.file().display()
        ))
        .start()
}

fn nginx(port: u16, identity: &Identity, authority: &Authority) -> Component {
    let tree = Tree::new();
    tree.directory("logs").directory("temp").directory("www");
    tree.write("www/big", numbers(600_000));
    tree.write(
        "nginx.conf",
        format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\n\
             events {{ }}\n\
             http {{ access_log off; client_body_temp_path temp/a; proxy_temp_path temp/b; fastcgi_temp_path temp/c;\n\
             uwsgi_temp_path temp/d; scgi_temp_path temp/e; client_max_body_size 10m;\n\
             server {{ listen 127.0.0.1:{port} ssl; root www; ssl_protocols TLSv1.2 TLSv1.3;\n\
             ssl_certificate {}; ssl_certificate_key {};\n\
             ssl_client_certificate {}; ssl_verify_client optional;\n\
             location /which {{ return 200 \"$connection $connection_requests $ssl_protocol $ssl_server_name $ssl_client_verify\"; }}\n\
             location /echo {{ proxy_pass https://127.0.0.1:{port}/sink; proxy_set_header X-Body $request_body; }}\n\
             location /sink {{ return 200 $content_length; }}\n\
             }} }}\n",
            identity.certificate.display(),
            identity.key.display(),
            authority.file().display(),
        ),
    );
    let mut command = Command::new("/usr/sbin/nginx");
    command
        .arg("-p")
        .arg(tree.root())
        .args(["-c", "nginx.conf", "-e", "error.log"]);
    Component::start(tree, &mut command, &Listens::Port(port))
}

#[test]
fn nginx_is_spoken_to_by_tls() {
    if !can_run("nginx_is_spoken_to_by_tls", &["/usr/sbin/nginx"]) {
        return;
    }
    let authority = Authority::new();
    let identity = authority.identity(HOST);
    let port = free_port();
    let _nginx = nginx(port, &identity, &authority);
    let server = server_in_front(port, &authority, "");
    let mut client = server.client();
    let first = client.get("/which").text();
    let words: Vec<_> = first.split(' ').map(str::to_owned).collect();
    assert_eq!(words[2..], ["TLSv1.3", HOST, "NONE"], "{first}");
    for count in 1..30 {
        let text = client.get("/which").text();
        let expected = format!("{} {} ", words[0], count + 1);
        assert!(text.starts_with(&expected), "{text}: one connection");
    }
    assert!(client.get("/big").text() == numbers(600_000));
    let body = numbers(100_000);
    assert_eq!(post(&server, "/echo", &body).text(), body.len().to_string());
    let client = authority.identity("client.example");
    let more = format!(
        ", \"tls-cert\" => \"{}\", \"tls-key\" => \"{}\"",
        client.certificate.display(),
        client.key.display()
    );
    let server = server_in_front(port, &authority, &more);
    assert!(server.get("/which").text().ends_with(" SUCCESS"));
}

#[test]
fn openssl_is_spoken_to_by_tls() {
    if !can_run("openssl_is_spoken_to_by_tls", &["openssl"]) {
        return;
    }
    let authority = Authority::new();
    let identity = authority.identity(HOST);
    for (version, shown) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let port = free_port();
        let mut command = Command::new("openssl");
        command
            .args([
                "s_server",
                "-www",
                "-quiet",
                version,
                "-accept",
                &format!("127.0.0.1:{port}"),
            ])
            .arg("-cert")
            .arg(&identity.certificate)
            .arg("-key")
            .arg(&identity.key);
        let _openssl = Component::start(Tree::new(), &mut command, &Listens::Port(port));
        let server = server_in_front(port, &authority, "");
        // Each reply ends with its connection.
        for _ in 0..3 {
            let response = server.get("/");
            assert_eq!(response.status, 200, "{response}");
            assert!(response.text().contains(shown), "{response}");
        }
    }
}
