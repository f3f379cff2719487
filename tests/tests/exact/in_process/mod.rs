//! A server in the test's own process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use config::LoadOptions;
use engine::handed::Handed;
use engine::log::LogRegistry;
use engine::recorder::SharedMemory;
use engine::server::{BoundListener, Server, ServerPlan};
use engine::settings::{ProcessSettings, SettingsTable, loaded_modules};

/// A server with all its modules, listening on a free port. It accepts no connections yet.
pub fn start(text: &str) -> (Server, SocketAddr) {
    let schema = modules::schema();
    let config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
        .unwrap_or_else(|errors| panic!("{}", errors.render(config::Style::Line)));
    let modules = loaded_modules(&config, modules::MODULES);
    SettingsTable::check(&config, &schema, &modules).expect("settings");
    let process = ProcessSettings::new(&config).expect("settings of the process");
    let mut handed = Handed::default();
    if let Some(opened) = modules::openssl::load(&config, now_s()).expect("certificates and keys") {
        modules::openssl::begin_tickets(&opened.store, None).expect("random numbers");
        handed = handed.with(Arc::new(opened.store));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    let plan = ServerPlan {
        config: Arc::new(config),
        schema: Arc::new(schema),
        modules,
        process: Arc::new(process),
        logs: Arc::new(LogRegistry::discarding()),
        handed,
        memory: SharedMemory::private(),
    };
    let listeners = vec![BoundListener {
        address: address.to_string(),
        port: address.port(),
        sockets: vec![listener.into()],
    }];
    (Server::start(plan, listeners).expect("it starts"), address)
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("it is later than 1970").as_secs()
}
