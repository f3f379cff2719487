//! The hooks that look a page up and that answer with it.

use std::any::Any;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::file_cache::FileKind;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Hook, Outcome, Pending};
use petrel_engine::waits::HolderText;

use super::options::Debug;
use super::page::{self, MemcachedPage};
use super::servers::Servers;
use super::{key, value};

/// The hook that looks the page up.
pub(super) struct PageLookup(pub(crate) Rc<Servers>);

/// The hook that answers with the page that was found.
pub(super) struct SendPage(pub(crate) Rc<Servers>);

/// The result of the lookup, kept with the request.
pub(super) struct Found {
    /// The URL, which is the key.
    pub(crate) url: Vec<u8>,
    /// The page, if there is one.
    pub(crate) page: Option<MemcachedPage>,
}

const KEPT: &str = "mod_mcpage";

impl Found {
    /// The result, if the request still has the same URL.
    pub(crate) fn of(exchange: &Exchange) -> Option<Rc<Found>> {
        exchange.kept::<Found>(KEPT)
    }
}

impl Hook for PageLookup {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let is_usual = || match key::is_led_elsewhere(exchange) {
            true => Err("a script has led it elsewhere"),
            false => Ok(()),
        };
        let url = match is_usual().and_then(|()| key::of(exchange)) {
            Ok(url) => url,
            Err(why) => {
                self.0
                    .trace(exchange, Debug::Verbose, why, exchange.request.url.target());
                return Outcome::Next;
            }
        };
        if let Some(found) = Found::of(exchange).filter(|found| found.url == url) {
            // The request began again, after a later hook. The result of the first lookup is used.
            return match needs_no_file(exchange, &found) {
                Some(()) => Outcome::Next,
                None => Outcome::Cold,
            };
        }
        let clients = self.0.clients(exchange);
        let asked = url.clone();
        Outcome::Later(Box::new(Wait {
            servers: Rc::clone(&self.0),
            get: Box::pin(async move { clients.get(&asked).await }),
            url,
        }))
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if !key::is_led_elsewhere(exchange) && key::of(exchange).is_ok() {
            exchange.note(|| Note::Text("would ask memcached for the page first".to_owned()));
        }
        Outcome::Next
    }
}

/// A request that waits for memcached.
struct Wait {
    servers: Rc<Servers>,
    url: Vec<u8>,
    get: Pin<Box<dyn Future<Output = Option<Bytes>>>>,
}

impl Pending for Wait {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Cache)
    }

    fn holder(&self, _: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        crate::remote_store::tell_slow_server(since, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let stored = ready!(self.get.as_mut().poll(context));
        let url = std::mem::take(&mut self.url);
        let page = stored
            .and_then(|stored| value::read(&url, &stored))
            .and_then(|value| MemcachedPage::new(exchange, value));
        let what = if page.is_some() { "found" } else { "not there" };
        self.servers.trace(exchange, Debug::On, what, &url);
        let found = Rc::new(Found { url, page });
        exchange.keep(KEPT, Rc::clone(&found) as Rc<dyn Any>);
        Poll::Ready(match needs_no_file(exchange, &found) {
            Some(()) => Outcome::Next,
            // The hook runs again when the disk thread has answered, and finds the kept result.
            None => Outcome::Cold,
        })
    }
}

/// A page that was found needs no file. If there is a file all the same, the rules about it apply. `None`: a
/// disk has to be waited for.
fn needs_no_file(exchange: &mut Exchange, found: &Found) -> Option<()> {
    if found.page.is_none() || exchange.physical.is_virtual {
        return Some(());
    }
    let symlinks = exchange.settings.core.symlinks;
    let file = exchange.look_up(&exchange.physical.path, symlinks)?;
    if matches!(file.kind(), FileKind::Missing | FileKind::NotADirectory) {
        exchange.physical.is_virtual = true;
    }
    Some(())
}

impl Hook for SendPage {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(found) = Found::of(exchange) else {
            return Outcome::Next;
        };
        // A later rule or script may have changed where the request leads.
        match &found.page {
            Some(page) if key::of(exchange).is_ok_and(|url| url == found.url) => {
                page::answer(exchange, page, self.0.options.announces)
            }
            _ => Outcome::Next,
        }
    }
}
