//! `petrel.subrequest`: a request of the server to itself, to which the same rules apply as to the client's.

use std::rc::Rc;

use petrel_engine::subrequest::{CollectError, Inherit, Subrequest, SubrequestHead};
use petrel_lua::mlua::{self, Table};

use super::asked::WantedRequest;
use super::reply::Reply;
use crate::lua::State;

/// Adds `petrel.subrequest`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let lent = Rc::clone(state.lent());
    let subrequest = state.machine().waiting(move |_, asked: WantedRequest| {
        let made = lent.with(|exchange| Subrequest::new(exchange, head(&asked)));
        let made = made.ok_or_else(super::no_request)?;
        let subrequest = made.map_err(|refused| {
            mlua::Error::runtime(format_args!(
                "{}: {refused}",
                String::from_utf8_lossy(&asked.url)
            ))
        })?;
        Ok(run(subrequest, asked))
    })?;
    petrel.set("subrequest", subrequest)
}

fn head(asked: &WantedRequest) -> SubrequestHead {
    SubrequestHead {
        method: asked.method,
        target: asked.url.clone(),
        host: asked.host.clone(),
        fields: asked.fields.clone(),
        inherit: match &asked.inherit {
            None => Inherit::All,
            Some(names) if names.is_empty() => Inherit::Nothing,
            Some(names) => Inherit::Only(names.clone()),
        },
        body: asked.body.clone(),
    }
}

async fn run(mut subrequest: Subrequest, asked: WantedRequest) -> mlua::Result<Reply> {
    let url = || String::from_utf8_lossy(&asked.url).into_owned();
    let answer = async {
        let status = subrequest.head().await;
        let body = subrequest.collect(asked.bytes_max).await;
        let body = body.map_err(|error| match error {
            CollectError::TooLong => mlua::Error::runtime(format_args!(
                "{}: the answer is longer than {} bytes",
                url(),
                asked.bytes_max
            )),
            CollectError::Broken(error) => mlua::Error::runtime(format_args!("{}: {error}", url())),
        })?;
        let fields = subrequest.response().fields().iter();
        Ok(Reply {
            status: status.0,
            fields: fields
                .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()))
                .collect(),
            body,
        })
    };
    match tokio::time::timeout(asked.timeout, answer).await {
        Ok(reply) => reply,
        Err(_) => Err(mlua::Error::runtime(format_args!(
            "{}: no answer after {} s",
            String::from_utf8_lossy(&asked.url),
            asked.timeout.as_secs_f64()
        ))),
    }
}
