//! A server in the test's own process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use config::LoadOptions;
use engine::log::LogRegistry;
use engine::server::{BoundListener, Server, ServerPlan};
use engine::settings::{ProcessSettings, SettingsTable, loaded_modules};

/// The server with all its modules, listening on a free port. Nobody is served yet.
pub fn start(text: &str) -> (Server, SocketAddr) {
    let schema = modules::schema();
    let config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
        .unwrap_or_else(|errors| panic!("{}", errors.render(config::Style::Line)));
    let modules = loaded_modules(&config, modules::MODULES);
    SettingsTable::check(&config, &schema, &modules).expect("settings");
    let process = ProcessSettings::new(&config).expect("settings of the process");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    let plan = ServerPlan {
        config: Arc::new(config),
        schema: Arc::new(schema),
        modules,
        process: Arc::new(process),
        logs: Arc::new(LogRegistry::discarding()),
    };
    let listeners = vec![BoundListener {
        address: address.to_string(),
        port: address.port(),
        sockets: vec![listener.into()],
    }];
    (Server::start(plan, listeners).expect("it starts"), address)
}
