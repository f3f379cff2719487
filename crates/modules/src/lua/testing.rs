//! A module for tests that runs a script for each request and answers with what the script returns.

use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use petrel_engine::proto::status::Status;
use petrel_lua::mlua::{Function, Value};
use petrel_lua::{GlobalsMaker, Progress, Results, Run};

use super::{LuaOptions, State};
use crate::lua_api;

/// Runs /script.lua below the document root and answers with its return value. Ignores other files.
pub(crate) static RUNS: ModuleSpec = ModuleSpec {
    name: "mod_runs",
    doc: "Runs a script.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        let options = LuaOptions::read(configure.values)?;
        configure.add(Phase::Content, Runs(options));
        Ok(())
    },
};

struct Runs(LuaOptions);

struct Waits(Rc<State>, Run);

impl Hook for Runs {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.request.url.path() != b"/script.lua" {
            return Outcome::Next;
        }
        let worker = Rc::clone(&exchange.worker);
        let state = lua_api::host(&worker, &self.0)
            .state(&worker)
            .expect("a state");
        let path = [&exchange.physical.document_root, &b"/script.lua"[..]].concat();
        let environment = state.extension(|state| {
            let lua = state.machine().lua();
            let source = "local globals = ... return function() return setmetatable({}, { __index = globals }) end";
            let maker = lua.load(source).call::<Function>(lua.globals())?;
            Ok(GlobalsMaker::from(maker))
        });
        let environment = environment.expect("sound");
        let script = match state.script(exchange, &path) {
            Ok(script) => script,
            Err(failure) => return show(exchange, 500, &failure.to_string()),
        };
        match state.start(exchange, &script, &environment) {
            Ok(Progress::Ended(value)) => show(exchange, 200, &text(&value)),
            Ok(Progress::Waits(run)) => Outcome::Later(Box::new(Waits(state, run))),
            Err(error) => show(exchange, 500, &error.to_string()),
        }
    }
}

impl Pending for Waits {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        self.0
            .poll(exchange, &mut self.1, context)
            .map(|result| match result {
                Ok(value) => show(exchange, 200, &text(&value)),
                Err(error) => show(exchange, 500, &error.to_string()),
            })
    }
}

fn text(results: &Results) -> String {
    let value = results.value(1).unwrap_or(Value::Nil);
    value.to_string().unwrap_or_default()
}

fn show(exchange: &mut Exchange, status: u16, text: &str) -> Outcome {
    exchange.response.answer(Status(status));
    exchange.response.is_final = true;
    let streamed = lua_api::take_body(exchange);
    exchange.response.body = streamed.unwrap_or_else(|| text.as_bytes().to_vec().into());
    Outcome::Answer
}
