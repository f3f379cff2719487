//! The hooks that look a page up and answer with it.

use std::any::Any;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Hook, Outcome, Pending};

use super::options::Debug;
use super::page::{self, MemcachedPage};
use super::servers::Servers;
use super::{key, value};

/// Looks the page up.
pub(super) struct PageLookup(pub(crate) Rc<Servers>);

/// Answers with what was found.
pub(super) struct SendPage(pub(crate) Rc<Servers>);

/// What was found for a request; kept with it.
pub(super) struct Found {
    /// The URL, which is the key.
    pub(crate) url: Vec<u8>,
    /// The page, if there is one.
    pub(crate) page: Option<MemcachedPage>,
}

const KEPT: &str = "mod_mcpage";

impl Found {
    /// What was found for the request as it is now.
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
            // It was begun anew by somebody behind the first time.
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
}

/// A request that waits for memcached.
struct Wait {
    servers: Rc<Servers>,
    url: Vec<u8>,
    get: Pin<Box<dyn Future<Output = Option<Bytes>>>>,
}

impl Pending for Wait {
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
            // The hook begins anew when the disk has answered, and finds what is kept.
            None => Outcome::Cold,
        })
    }
}

/// A page that is there needs no file. Where there is one, rules about it are asked, too. `None`: the disk
/// has to be asked first.
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
        // Somebody may have led the request elsewhere since.
        match &found.page {
            Some(page) if key::of(exchange).is_ok_and(|url| url == found.url) => {
                page::answer(exchange, page, self.0.options.announces)
            }
            _ => Outcome::Next,
        }
    }
}
