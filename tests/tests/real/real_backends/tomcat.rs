//! Tomcat over AJP 1.3.

use std::process::Command;

use petrel_tests::{Component, Listens, Server, Tree, can_run, free_port};

use crate::real_backends::{numbers, post};

/// The directory of Tomcat's programs. Its configuration is elsewhere in each version of the package, so the
/// test brings its own.
const HOME: &str = "/usr/share/tomcat10";

/// What a site needs from the file that Tomcat reads before each application's own.
const WEB_XML: &str = r#"<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="6.0">
<servlet><servlet-name>default</servlet-name>
<servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class></servlet>
<servlet><servlet-name>jsp</servlet-name>
<servlet-class>org.apache.jasper.servlet.JspServlet</servlet-class></servlet>
<servlet-mapping><servlet-name>default</servlet-name><url-pattern>/</url-pattern></servlet-mapping>
<servlet-mapping><servlet-name>jsp</servlet-name><url-pattern>*.jsp</url-pattern></servlet-mapping>
</web-app>"#;

const PAGE: &str = r#"<%@ page contentType="text/plain" %><%
out.print(request.getMethod() + " " + request.getRequestURI() + " " + request.getQueryString()
  + " " + request.getHeader("X-Custom") + " " + request.getRemoteAddr()
  + " " + request.getServerName() + " " + session.isNew()); %>"#;

const ECHO: &str = r#"<%@ page contentType="text/plain" %><%
java.io.InputStream in = request.getInputStream();
java.security.MessageDigest digest = java.security.MessageDigest.getInstance("MD5");
byte[] buffer = new byte[8192]; long total = 0; int count;
while ((count = in.read(buffer)) > 0) { digest.update(buffer, 0, count); total += count; }
out.print(total + " " + new java.math.BigInteger(1, digest.digest()).toString(16)); %>"#;

const BIG: &str = r#"<%@ page contentType="text/plain" %><%
String piece = "0123456789abcdef".repeat(64); for (int i = 0; i < 2048; i++) out.print(piece); %>"#;

fn start(port: u16) -> Component {
    let tree = Tree::new();
    let connector = format!(
        "<Server port=\"-1\"><Service name=\"Catalina\">\
         <Connector protocol=\"AJP/1.3\" address=\"127.0.0.1\" port=\"{port}\" \
         secretRequired=\"false\" />\
         <Engine name=\"Catalina\" defaultHost=\"localhost\">\
         <Host name=\"localhost\" appBase=\"webapps\" unpackWARs=\"false\" autoDeploy=\"false\" />\
         </Engine></Service></Server>"
    );
    tree.write("conf/server.xml", connector)
        .write("conf/web.xml", WEB_XML)
        .write("webapps/ROOT/page.jsp", PAGE)
        .write("webapps/ROOT/echo.jsp", ECHO)
        .write("webapps/ROOT/big.jsp", BIG)
        .directory("temp")
        .directory("work")
        .directory("logs");
    let mut command = Command::new("java");
    command
        .args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg(format!(
            "{HOME}/bin/bootstrap.jar:{HOME}/bin/tomcat-juli.jar"
        ))
        .arg(format!("-Dcatalina.home={HOME}"))
        .arg(format!("-Dcatalina.base={}", tree.root().display()))
        .arg(format!("-Djava.io.tmpdir={}", tree.path("temp").display()))
        .args(["org.apache.catalina.startup.Bootstrap", "start"]);
    Component::start(tree, &mut command, &Listens::Port(port))
}

/// It takes so long because a Java machine starts, and Tomcat compiles each page when it is first asked for.
#[test]
fn tomcat_over_ajp13() {
    let jar = format!("{HOME}/bin/bootstrap.jar");
    if !can_run("tomcat_over_ajp13", &["java", &jar]) {
        return;
    }
    let port = free_port();
    let _tomcat = start(port);
    let server = Server::build()
        .config("server.modules += ( \"mod_ajp13\" )")
        .config(&format!(
            "ajp13.server = ( \"\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port}, \
             \"check-local\" => \"disable\" )) )"
        ))
        .start();
    let mut client = server.client();
    for number in 0..20 {
        let target = format!("/page.jsp?n={number}");
        let response = client.request("GET", &target, &[("X-Custom", "v")]);
        let expected = format!("GET /page.jsp n={number} v 127.0.0.1 petrel.test true");
        assert_eq!(response.text(), expected, "{response}");
    }
    let fresh = client.get("/page.jsp");
    let cookie = fresh.field("Set-Cookie").expect("a session").to_owned();
    let cookie = cookie.split(';').next().unwrap_or_default();
    let known = client.request("GET", "/page.jsp", &[("Cookie", cookie)]);
    assert!(known.text().ends_with(" false"), "{known}");

    // Lengths around those of AJP's packets.
    for length in [0, 1, 8185, 8186, 8187, 16_372, 16_373, 1_000_000] {
        let body = &numbers(200_000)[..length];
        let answer = post(&server, "/echo.jsp", body).text();
        assert!(answer.starts_with(&format!("{length} ")), "{answer}");
        assert_eq!(answer, format!("{length} {}", md5(body)));
    }
    let big = client.get("/big.jsp");
    assert_eq!(big.body.len(), 2 << 20);
    assert!(
        big.body
            .chunks(16)
            .all(|chunk| chunk == b"0123456789abcdef")
    );
    assert_eq!(client.request("HEAD", "/page.jsp", &[]).status, 200);
    assert_eq!(client.get("/missing.jsp").status, 404);
    assert_eq!(client.get("/page.jsp").status, 200);
}

/// Computed by the program md5sum, without leading zeros.
fn md5(text: &str) -> String {
    let tree = Tree::new();
    tree.write("text", text);
    let mut command = Command::new("md5sum");
    command.arg(tree.path("text"));
    let finished = petrel_tests::run(&mut command, petrel_tests::PATIENCE);
    let sum = finished.text();
    sum.split(' ')
        .next()
        .unwrap_or_default()
        .trim_start_matches('0')
        .to_owned()
}
