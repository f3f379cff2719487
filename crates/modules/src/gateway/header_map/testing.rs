//! What the tests of header maps and of conversations share.

use petrel_engine::config::{BlockId, Config, Diagnostic, LoadOptions, Shell, parse_str};
use petrel_engine::settings::Values;

use super::{HeaderMap, Rewriting};
use crate::gateway::options::Extras;

/// The options for header fields in the configuration `text`.
pub(in crate::gateway) fn extras(text: &str) -> Extras {
    try_extras(text).unwrap_or_else(|error| panic!("{}", error.message))
}

pub(super) fn try_extras(text: &str) -> Result<Extras, Diagnostic> {
    let (config, schema) = (config(text), crate::schema());
    let values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
    Ok(Extras {
        header_map: HeaderMap::parse(&values)?,
        rewriting: Rewriting::parse(&values)?,
        ..Extras::default()
    })
}

pub(in crate::gateway) fn config(text: &str) -> Config {
    let options = LoadOptions {
        variables: Vec::new(),
        environment: &|_| None,
        shell: Shell::Refuse,
        directory: "/".into(),
    };
    parse_str("test.conf", text, &crate::schema(), &options)
        .unwrap_or_else(|errors| panic!("{errors}"))
}
