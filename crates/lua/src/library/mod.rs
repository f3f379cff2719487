//! What every script finds, whoever runs it: Lua's own libraries with limits on their work, functions
//! of later Lua versions, and codecs.

/// What is offered.
#[derive(Clone, Debug, Default)]
pub struct Options {}

/// Opens.
pub fn open(_lua: &mlua::Lua, _options: &Options) -> mlua::Result<()> {
    Ok(())
}
