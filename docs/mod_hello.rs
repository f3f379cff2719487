//! mod_hello: answers the URL that `hello.url` names with a greeting.
use petrel_engine::Exchange;
use petrel_engine::body::Body;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;

/// mod_hello.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_hello",
    doc: "Answers one URL with a greeting.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "hello.url", String, Request, "unset", Effect::Works, "The URL path that is greeted.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    if let Some(url) = configure.values.string("hello.url") {
        // Behind all access rules, and before a file is looked for: this URL has none.
        configure.add_last(Phase::Authorize, Hello { url: url.into() });
    }
    Ok(())
}

struct Hello {
    url: Box<str>,
}

impl Hook for Hello {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.request.url.path() != self.url.as_bytes() {
            return Outcome::Next;
        }
        exchange.response.answer(Status::OK);
        exchange.response.set("Content-Type", b"text/plain");
        exchange.response.body = Body::from_static(b"Hello.\n");
        Outcome::Answer
    }
}
