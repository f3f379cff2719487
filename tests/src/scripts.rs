//! Servers that run Lua scripts.

use crate::{Builder, Server};

/// A server with mod_magnet and `modules`, in which `/NAME` runs the script of that name in `scripts`.
/// Scripts may use a second of processor time: the default of ten milliseconds is too short for large values
/// on a slow machine.
pub fn site(modules: &[&str], scripts: &[(&str, &str)]) -> Builder {
    site_with_budgets(modules, scripts).config("lua.max-run-time = 1000")
}

/// As [`site`], with the default budgets of scripts, for tests of budgets.
pub fn site_with_budgets(modules: &[&str], scripts: &[(&str, &str)]) -> Builder {
    let modules = [&["mod_magnet", "mod_status"], modules].concat();
    let modules: Vec<String> = modules.iter().map(|name| format!("\"{name}\"")).collect();
    let mut builder = Server::build()
        .file("www/index.html", "hello")
        .config(&format!("server.modules = ({})", modules.join(", ")))
        .config("status.statistics-url = \"/counters\"");
    for (name, source) in scripts {
        builder = builder
            .file(&format!("lua/{name}.lua"), source)
            .config(&format!(
                "$HTTP[\"url\"] == \"/{name}\" {{ magnet.attract-raw-url-to = (var.dir + \"/lua/{name}.lua\") }}"
            ));
    }
    builder
}

/// A script that answers with what `body`, the statements of a function, returns.
pub fn says(body: &str) -> String {
    format!(
        "local function value()\n{body}\nend\n\
         local parts = {{ value() }}\n\
         for i = 1, #parts do parts[i] = tostring(parts[i]) end\n\
         lighty.content = {{ table.concat(parts, \" \") }}\nreturn 200\n"
    )
}

/// Sends a request, expects 200, and returns the body.
///
/// # Panics
/// The status is another one.
#[track_caller]
pub fn ask(server: &Server, target: &str) -> String {
    let response = server.get(target);
    assert_eq!(
        response.status,
        200,
        "{target}: {response}\n{}",
        server.log()
    );
    response.text()
}
