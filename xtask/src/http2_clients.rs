//! `cargo xtask http2-clients`: real HTTP/2 clients, each with the smallest windows and buffers that it allows,
//! download from Petrel and upload to it. None may lose its connection.
//!
//! What they send is replayed in virtual time by the tests of petrel-proto. This chore shows that the clients still
//! do that; it is no part of `cargo xtask test`, because it needs compilers of four languages.

use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::limit::{self, Reads};
use crate::workspace::{Workspace, output_of};

/// A client, and the Debian packages that it comes with.
struct Client {
    name: &'static str,
    packages: &'static str,
    run: Run,
}

/// How a client runs. Programs get the origin (`https://127.0.0.1:4433`) and the length of `/large.bin`, and say
/// what failed.
enum Run {
    /// A Go program, with the module that it needs besides Go's own.
    Go(&'static str, Option<&'static str>),
    /// A Java program, with jars of /usr/share/java.
    Java(&'static str, &'static [&'static str]),
    /// An interpreter and its program.
    Script(&'static str, &'static str),
    /// A program that prints what it downloads, which has to be the file. `URL` stands for its address, `SMALL` for
    /// that of the first part of it.
    Prints(&'static [&'static str]),
    /// A program that loads a page, which has to say that it received the file. `PAGE` stands for its address.
    Browser(&'static [&'static str]),
}

const JETTY: &[&str] = &[
    "jetty9-alpn-client",
    "jetty9-alpn-java-client",
    "jetty9-http",
    "jetty9-http2-client",
    "jetty9-http2-common",
    "jetty9-http2-hpack",
    "jetty9-io",
    "jetty9-util",
];

const CLIENTS: &[Client] = &[
    client(
        "curl",
        "curl",
        Run::Prints(&["curl", "-sk", "--http2", "URL"]),
    ),
    client(
        "curl, slowly",
        "curl",
        Run::Prints(&["curl", "-sk", "--http2", "--limit-rate", "8M", "URL"]),
    ),
    client(
        "nghttp, windows of 1 kB",
        "nghttp2-client",
        Run::Prints(&["nghttp", "--no-verify-peer", "-w10", "-W10", "SMALL"]),
    ),
    client("Go", "golang-go", Run::Go("go", None)),
    client(
        "grpc-go",
        "golang-go",
        Run::Go("grpc", Some("google.golang.org/grpc v1.56.3")),
    ),
    client("Node", "nodejs", Run::Script("node", "node.mjs")),
    client(
        "Python's httpx",
        "python3-httpx python3-h2",
        Run::Script("/usr/bin/python3", "python.py"),
    ),
    client(
        "Java's HttpClient",
        "default-jdk-headless",
        Run::Java("JdkClient.java", &[]),
    ),
    client(
        "Jetty",
        "default-jdk-headless libjetty9-java",
        Run::Java("Jetty.java", JETTY),
    ),
    client(
        "OkHttp",
        "default-jdk-headless libokhttp-java",
        Run::Java("OkHttp.java", &["okhttp", "okio"]),
    ),
    client(
        "Chromium",
        "chromium",
        Run::Browser(&[
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--ignore-certificate-errors",
            "--dump-dom",
            "PAGE",
        ]),
    ),
];

const fn client(name: &'static str, packages: &'static str, run: Run) -> Client {
    Client {
        name,
        packages,
        run,
    }
}

/// The length of `/large.bin` in bytes.
const LENGTH: usize = 20_000_000;

/// The length of `/small.bin`, for clients that take a kilobyte at a time.
const SMALL_LENGTH: usize = 1_000_000;

/// Messages in the file for gRPC, and the length of each without the five bytes in front.
const MESSAGES: (usize, u8) = (200_000, 100);

/// How long a client may take.
const MINUTES: u64 = 4;

/// Runs them all, or those whose names contain a word of the command line.
///
/// # Errors
/// A client lost a connection or got other bytes, or is not installed.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let petrel = workspace.petrel()?;
    let directory = workspace.target.join("http2-clients");
    // The log is that of this run.
    let _ = fs::remove_dir_all(&directory);
    let port = free_port()?;
    write_site(workspace, &directory, port).map_err(|error| error.to_string())?;
    let mut server = Server::start(&petrel, &directory, port)?;
    let chosen = |client: &&Client| {
        let is_meant = |word: &&str| client.name.to_lowercase().contains(&word.to_lowercase());
        arguments.is_empty() || arguments.iter().any(is_meant)
    };
    let mut failed = Vec::new();
    for client in CLIENTS.iter().filter(chosen) {
        let begun = Instant::now();
        let outcome = client.run(workspace, &directory, port);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("{:<24} ok    {seconds:5.1} s", client.name),
            Err(why) => {
                println!("{:<24} LOST  {seconds:5.1} s  {why}", client.name);
                failed.push(client.name);
            }
        }
    }
    let is_running = server.0.try_wait().is_ok_and(|status| status.is_none());
    drop(server);
    let log = fs::read_to_string(directory.join("error.log")).unwrap_or_default();
    match (failed.is_empty(), is_running) {
        (true, true) => Ok(()),
        (_, false) => Err(format!("petrel has ended:\n{log}")),
        (false, true) => Err(format!("lost: {}\n{log}", failed.join(", "))),
    }
}

impl Client {
    fn run(&self, workspace: &Workspace, directory: &Path, port: u16) -> Result<(), String> {
        let sources = workspace.root.join("tests/http2_clients");
        let origin = format!("https://127.0.0.1:{port}");
        let mut command = match &self.run {
            Run::Go(package, module) => {
                Command::new(build_go(&sources.join(package), directory, *module)?)
            }
            Run::Java(source, jars) => {
                let jars: Vec<String> = jars
                    .iter()
                    .map(|jar| format!("/usr/share/java/{jar}.jar"))
                    .collect();
                let mut command = Command::new("java");
                command.args(["--class-path", &jars.join(":")]);
                command.arg(sources.join(source));
                command
            }
            Run::Script(interpreter, source) => {
                let mut command = Command::new(interpreter);
                command.arg(sources.join(source));
                command
            }
            Run::Prints(words) => {
                let printed = printed_by(words, &origin)?;
                let length = match words.contains(&"SMALL") {
                    true => SMALL_LENGTH,
                    false => LENGTH,
                };
                return match printed == content()[..length] {
                    true => Ok(()),
                    false => Err(format!("{} of {length} bytes, or others", printed.len())),
                };
            }
            Run::Browser(words) => {
                let page = printed_by(words, &origin)?;
                let page = String::from_utf8_lossy(&page);
                return match page.contains(&format!("received {LENGTH} over h2")) {
                    true => Ok(()),
                    false => Err(page.into_owned()),
                };
            }
        };
        command.arg(origin).arg(LENGTH.to_string());
        command.stdin(Stdio::null());
        let mut said = Vec::new();
        let limit = Duration::from_secs(MINUTES * 60);
        let ended = limit::run(self.name, &mut command, Reads::Output, limit, |line| {
            said.push(line.to_owned());
        });
        ended.map_err(|why| {
            let packages = self.packages;
            format!("{} ({why}; it needs {packages})", said.join("; "))
        })
    }
}

/// What a program prints, whatever it says about its machine.
fn printed_by(words: &[&str], origin: &str) -> Result<Vec<u8>, String> {
    let words = words.iter().map(|word| match *word {
        "PAGE" => format!("{origin}/page.html"),
        "URL" => format!("{origin}/large.bin"),
        "SMALL" => format!("{origin}/small.bin"),
        word => word.to_owned(),
    });
    let mut command = Command::new("timeout");
    command.arg((MINUTES * 60).to_string()).args(words);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    Ok(output.stdout)
}

/// Builds the package in a directory of its own, where Go may write its list of modules.
fn build_go(source: &Path, directory: &Path, module: Option<&str>) -> Result<PathBuf, String> {
    let name = source.file_name().unwrap_or_default();
    let package = directory.join("build").join(name);
    let required = module.map_or(String::new(), |module| format!("require {module}\n"));
    let text = format!("module petrel.test/client\n\ngo 1.22\n\n{required}");
    let copied = fs::create_dir_all(&package)
        .and_then(|()| fs::copy(source.join("main.go"), package.join("main.go")))
        .and_then(|_| fs::write(package.join("go.mod"), text));
    copied.map_err(|error| error.to_string())?;
    let mut go = Command::new("go");
    go.args(["build", "-mod=mod", "-buildvcs=false", "-o", "client", "."]);
    output_of(go.current_dir(&package))?;
    Ok(package.join("client"))
}

/// The bytes of `/large.bin`: each four tell their position.
fn content() -> Vec<u8> {
    let words = 0..u32::try_from(LENGTH / 4).expect("it is small");
    words.flat_map(u32::to_be_bytes).collect()
}

fn write_site(workspace: &Workspace, directory: &Path, port: u16) -> std::io::Result<()> {
    let www = directory.join("www");
    fs::create_dir_all(www.join("grpc"))?;
    fs::write(www.join("large.bin"), content())?;
    fs::write(www.join("small.bin"), &content()[..SMALL_LENGTH])?;
    fs::copy(
        workspace.root.join("tests/http2_clients/page.html"),
        www.join("page.html"),
    )?;
    let mut messages = File::create(www.join("grpc/messages"))?;
    let message = [
        &[0, 0, 0, 0, MESSAGES.1][..],
        &vec![b'x'; MESSAGES.1.into()],
    ]
    .concat();
    messages.write_all(&message.repeat(MESSAGES.0))?;
    fs::write(
        directory.join("upload.lua"),
        "local body = lighty.r.req_body.get\n\
         local length = tostring(#body)\n\
         lighty.r.resp_header['X-Length'] = length\n\
         if lighty.r.req_attr['uri.path'] == '/grpc/upload' then\n\
             lighty.r.resp_header['Content-Type'] = 'application/grpc'\n\
             lighty.r.resp_header['Grpc-Status'] = '0'\n\
         else\n\
             lighty.r.resp_body.set({ length })\n\
         end\n\
         return 200\n",
    )?;
    let path = directory.display();
    fs::write(
        directory.join("petrel.conf"),
        format!(
            "server.document-root = \"{path}/www\"\n\
             server.bind = \"127.0.0.1\"\n\
             server.port = {port}\n\
             server.errorlog = \"{path}/error.log\"\n\
             server.modules = ( \"mod_openssl\", \"mod_magnet\", \"mod_setenv\" )\n\
             ssl.engine = \"enable\"\n\
             ssl.pemfile = \"{path}/server.pem\"\n\
             mimetype.assign = ( \".html\" => \"text/html\", \"\" => \"application/octet-stream\" )\n\
             $HTTP[\"url\"] =~ \"/upload$\" {{ magnet.attract-raw-url-to = ( \"{path}/upload.lua\" ) }}\n\
             $HTTP[\"url\"] =^ \"/grpc/\" {{ setenv.set-response-header = ( \"Content-Type\" => \"application/grpc\" ) }}\n"
        ),
    )
}

fn free_port() -> Result<u16, String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    address
        .map(|address| address.port())
        .map_err(|error| error.to_string())
}

/// A server that ends with this value.
struct Server(Child);

impl Server {
    fn start(petrel: &Path, directory: &Path, port: u16) -> Result<Server, String> {
        let pem = directory.join("server.pem");
        let mut openssl = Command::new("openssl");
        openssl
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes"])
            .args(["-days", "30", "-subj", "/CN=localhost"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-keyout", "-"]);
        let made = openssl.output().map_err(|error| error.to_string())?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        fs::write(&pem, made.stdout).map_err(|error| format!("{}: {error}", pem.display()))?;
        let mut command = Command::new(petrel);
        command
            .args(["-D", "-f"])
            .arg(directory.join("petrel.conf"))
            .stdin(Stdio::null());
        let child = command.spawn();
        let server = child.map(Server).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err("petrel does not start".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself if it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
