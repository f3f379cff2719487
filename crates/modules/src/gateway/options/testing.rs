//! What the tests of options share: configurations and their gateways.

use petrel_engine::config::{BlockId, Config, Diagnostic, LoadOptions, Schema, Shell, parse_str};
use petrel_engine::settings::Values;

use super::map::OptionMap;
use super::{BackendHost, FAMILIES, Gateway, gateway, host, server};

/// The configuration `text`, which has no type errors.
pub(super) fn config(text: &str) -> Config {
    let options = LoadOptions {
        variables: Vec::new(),
        environment: &|_| None,
        shell: Shell::Refuse,
        directory: "/".into(),
    };
    parse_str("test.conf", text, &schema(), &options).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The gateway that `module` makes of `text` in the block with this number and the blocks around it.
pub(super) fn gateway_in(
    module: &str,
    text: &str,
    block: u32,
) -> Result<Option<Gateway>, Diagnostic> {
    let config = config(text);
    let mut true_blocks = Vec::new();
    let mut next = Some(BlockId(block));
    while let Some(id) = next {
        true_blocks.insert(0, id);
        next = config.block(id).expect("the block is there").parent;
    }
    if block != 0 {
        assert_eq!(true_blocks.first(), Some(&BlockId::GLOBAL));
    }
    gateway(
        module,
        &Values::merge(&config, &schema(), true_blocks.into_iter()),
    )
}

/// The gateway that `module` makes of `text` outside all conditions. It must name a backend.
pub(in crate::gateway) fn gateway_of(module: &str, text: &str) -> Gateway {
    match gateway_in(module, text, 0) {
        Ok(gateway) => gateway.expect("it has a backend"),
        Err(error) => panic!("{}", error.message),
    }
}

/// The error message with which `module` refuses `text`.
pub(super) fn refusal(module: &str, text: &str) -> String {
    match gateway_in(module, text, 0) {
        Ok(_) => panic!("it is accepted: {text}"),
        Err(error) => error.message,
    }
}

/// The first backend of fastcgi.server.
pub(super) fn first_host(config: &Config) -> Result<BackendHost, Diagnostic> {
    let entry = config.global().entry("fastcgi.server").expect("it is set");
    let route = entry
        .value
        .as_array()
        .and_then(|array| array.at(0))
        .expect("it has a key");
    let maps = server::option_maps("fastcgi.server", route)?;
    let (label, map): (Option<&str>, OptionMap<'_>) = maps.into_iter().next().expect("one map");
    host::read(config, &FAMILIES[0], label, &map)
}

/// The backend with these options.
pub(in crate::gateway) fn host(options: &str) -> BackendHost {
    first_host(&config(&with(options))).unwrap_or_else(|error| panic!("{}", error.message))
}

/// The error message with which these options are refused.
pub(super) fn refused(options: &str) -> String {
    match first_host(&config(&with(options))) {
        Ok(_) => panic!("it is accepted: {options}"),
        Err(error) => error.message,
    }
}

fn with(options: &str) -> String {
    format!("fastcgi.server = ( \"/\" => (( {options} )) )")
}

fn schema() -> Schema {
    crate::schema()
}
