//! The page of `status.config-url`: what lighttpd's has, features and loaded modules, and the listeners.

use std::fmt::{Display, Write};

use petrel_engine::worker::Worker;

use super::page::Text;

/// The page. It needs no style of its own.
pub(super) fn write(worker: &Worker) -> String {
    let process = worker.process();
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>petrel/{version}</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n</head>\n<body>\n<h1>petrel/{version}</h1>\n<table>\n"
    );
    heading(&mut out, "Server-Features");
    row(&mut out, "RegEx Conditionals", "enabled");
    row(&mut out, "TLS", "rustls");
    row(&mut out, "Lua", "LuaJIT");
    heading(&mut out, "Network Engine");
    row(&mut out, "fd-Event-Handler", "linux-sysepoll");
    row(&mut out, "Workers", process.workers);
    let listeners = process
        .listeners
        .iter()
        .map(|known| known.address.to_string());
    list(&mut out, "Listeners", listeners);
    heading(&mut out, "Config-File-Settings");
    let names = worker.settings_table().module_names();
    let names = names.map(|name| name.trim_start_matches("mod_").to_owned());
    list(&mut out, "Loaded Modules", names);
    out.push_str("</table>\n</body>\n</html>\n");
    out
}

fn heading(out: &mut String, title: &str) {
    let _ = writeln!(
        out,
        "<tr><th colspan=\"2\" scope=\"rowgroup\">{title}</th></tr>"
    );
}

fn row(out: &mut String, name: &str, value: impl Display) {
    let _ = writeln!(
        out,
        "<tr><td><b>{name}</b></td><td>{}</td></tr>",
        Text(&value.to_string())
    );
}

fn list(out: &mut String, name: &str, values: impl Iterator<Item = String>) {
    let values: Vec<String> = values.map(|value| Text(&value).to_string()).collect();
    let values = values.join("<br>");
    let _ = writeln!(out, "<tr><td><b>{name}</b></td><td>{values}</td></tr>");
}
