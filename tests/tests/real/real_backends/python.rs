//! Python: uWSGI in its three protocols, gunicorn over HTTP, flup over FastCGI.

use std::process::Command;

use petrel_tests::{Component, Listens, Server, Speaks, Tree, can_run, is_installed, skip};

use crate::real_backends::{numbers, post};

const APPLICATION: &str = r#"
def application(environ, start_response):
    path = environ.get('PATH_INFO', '')
    if path.endswith('/environ'):
        keys = ('REQUEST_METHOD', 'SCRIPT_NAME', 'PATH_INFO', 'QUERY_STRING', 'REQUEST_URI')
        body = '\n'.join(k + '=' + environ.get(k, '-') for k in keys).encode()
    elif path.endswith('/echo'):
        body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
    elif path.endswith('/big'):
        body = b'y' * 3000000
    else:
        start_response('404 Not Found', [('Content-Type', 'text/plain')])
        return [b'nothing here']
    start_response('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', str(len(body)))])
    return [body]
"#;

/// Checks that any WSGI server must pass.
fn python_works(server: &Server, what: &str) {
    let mut client = server.client();
    for _ in 0..30 {
        let response = client.get("/py/environ?a=1");
        assert_eq!(response.status, 200, "{what}: {response}");
        for line in ["REQUEST_METHOD=GET", "QUERY_STRING=a=1"] {
            assert!(
                response.text().lines().any(|own| own == line),
                "{what}: {response}"
            );
        }
    }
    for count in [1, 20_000, 150_000] {
        let body = numbers(count);
        assert!(
            post(server, "/py/echo", &body).text() == body,
            "{what}: {}",
            body.len()
        );
    }
    assert_eq!(client.get("/py/big").body.len(), 3_000_000, "{what}");
    let missing = client.get("/py/missing");
    assert_eq!(
        (missing.status, missing.text().as_str()),
        (404, "nothing here"),
        "{what}"
    );
    assert_eq!(
        client.request("HEAD", "/py/environ", &[]).status,
        200,
        "{what}"
    );
    assert_eq!(client.get("/py/environ").status, 200, "{what}");
}

fn in_front(speaks: Speaks, socket: &str) -> Server {
    let (module, directive) = match speaks {
        Speaks::FastCgi => ("mod_fastcgi", "fastcgi.server"),
        Speaks::Http => ("mod_proxy", "proxy.server"),
        _ => ("mod_scgi", "scgi.server"),
    };
    let protocol = match speaks {
        Speaks::Uwsgi => "scgi.protocol = \"uwsgi\"\n",
        _ => "",
    };
    Server::build()
        .config(&format!(
            "server.modules += ( \"{module}\" )\n{protocol}\
             {directive} = ( \"/py\" => (( \"socket\" => \"{socket}\", \
             \"check-local\" => \"disable\" )) )"
        ))
        .start()
}

#[test]
fn uwsgi_as_fastcgi_scgi_and_itself() {
    let test = "uwsgi_as_fastcgi_scgi_and_itself";
    if !can_run(test, &["uwsgi_python3"]) {
        return;
    }
    let tree = Tree::new();
    tree.write("app.py", APPLICATION);
    let mut command = Command::new("uwsgi_python3");
    command
        .args([
            "--fastcgi-socket",
            "fastcgi.sock",
            "--scgi-socket",
            "scgi.sock",
        ])
        .args(["--uwsgi-socket", "uwsgi.sock", "--wsgi-file", "app.py"])
        .args([
            "--master",
            "--processes",
            "2",
            "--need-app",
            "--die-on-term",
        ])
        .args(["--disable-logging", "--buffer-size", "32768"]);
    let uwsgi = Component::start(tree, &mut command, &Listens::Unix("uwsgi.sock"));
    for (speaks, socket) in [
        (Speaks::FastCgi, "fastcgi.sock"),
        (Speaks::Scgi, "scgi.sock"),
        (Speaks::Uwsgi, "uwsgi.sock"),
    ] {
        let server = in_front(speaks, &uwsgi.path(socket));
        python_works(&server, &format!("{speaks:?}"));
    }
}

/// It takes so long because gunicorn starts, and the test pauses twice until it closes idle connections.
#[test]
fn gunicorn() {
    if !can_run("gunicorn", &["/usr/bin/gunicorn"]) {
        return;
    }
    let tree = Tree::new();
    tree.write("app.py", APPLICATION);
    let mut command = Command::new("/usr/bin/gunicorn");
    command
        .args([
            "--bind",
            "unix:gunicorn.sock",
            "--worker-class",
            "gthread",
            "--threads",
            "4",
        ])
        .args(["--keep-alive", "1", "app:application"]);
    let gunicorn = Component::start(tree, &mut command, &Listens::Unix("gunicorn.sock"));
    let server = in_front(Speaks::Http, &gunicorn.path("gunicorn.sock"));
    python_works(&server, "gunicorn");
    // It closes idle connections after a second.
    for _ in 0..2 {
        std::thread::sleep(std::time::Duration::from_millis(1300));
        assert!(post(&server, "/py/echo", "after a pause").text() == "after a pause");
    }
}

/// It takes so long because pip installs flup.
#[test]
fn flup() {
    let test = "flup";
    if !can_run(test, &["python3"]) {
        return;
    }
    let tree = Tree::new();
    let Some(packages) = install_flup(&tree) else {
        return skip(test, "pip cannot install flup");
    };
    let script = format!(
        "import sys\nsys.path.insert(0, '{packages}')\nfrom flup.server.fcgi import WSGIServer\n\
         {APPLICATION}\nWSGIServer(application, bindAddress='flup.sock').run()\n"
    );
    tree.write("flup_server.py", script);
    let mut command = Command::new("python3");
    command.arg("flup_server.py");
    let flup = Component::start(tree, &mut command, &Listens::Unix("flup.sock"));
    let server = in_front(Speaks::FastCgi, &flup.path("flup.sock"));
    python_works(&server, "flup");
}

/// The directory of the tree that contains flup.
fn install_flup(tree: &Tree) -> Option<String> {
    let target = tree.path("packages").display().to_string();
    let pip = ["pip3", "pip"].into_iter().find(|pip| is_installed(pip))?;
    let mut command = Command::new(pip);
    command
        .args([
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ])
        .args(["--no-deps", "--target", &target, "flup==1.0.3"]);
    let finished = petrel_tests::run(&mut command, std::time::Duration::from_secs(60));
    finished.status.success().then_some(target)
}
