//! Applies operations on one name in the order in which they were started.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use petrel_engine::proto::stored_page::blob::BlobName;
use tokio::sync::oneshot;

/// The names with operations under way or waiting. Shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<TurnTable>);

#[derive(Debug, Default)]
struct TurnTable {
    /// How many turns were given so far.
    count: u64,
    /// For each name the number of the last turn, and a channel that closes when that turn ends.
    last: HashMap<BlobName, (u64, oneshot::Receiver<()>)>,
}

/// The place of an operation behind the earlier ones for the same name. Dropping it ends the turn.
#[derive(Debug)]
pub(crate) struct NameTurn {
    turns: Arc<Turns>,
    name: BlobName,
    number: u64,
    /// Closes when the turn before has ended.
    before: Option<oneshot::Receiver<()>>,
    /// Closed when this is dropped, which tells the next turn.
    _end: oneshot::Sender<()>,
}

impl Turns {
    /// A turn for `name`, after all turns that were asked for earlier.
    pub(crate) fn ask(self: &Arc<Turns>, name: BlobName) -> NameTurn {
        let (end, has_ended) = oneshot::channel();
        let mut table = self.table();
        table.count += 1;
        let number = table.count;
        let before = table.last.insert(name, (number, has_ended));
        NameTurn {
            turns: Arc::clone(self),
            name,
            number,
            before: before.map(|(_, has_ended)| has_ended),
            _end: end,
        }
    }

    fn table(&self) -> MutexGuard<'_, TurnTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameTurn {
    /// Waits until the earlier turns have ended.
    pub(crate) async fn comes(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the other end is dropped.
            let _ = before.await;
            self.before = None;
        }
    }
}

impl Drop for NameTurn {
    fn drop(&mut self) {
        let mut table = self.turns.table();
        let last = table.last.get(&self.name);
        if last.is_some_and(|(number, _)| *number == self.number) {
            table.last.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn has_come(turn: &mut NameTurn) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        std::pin::pin!(turn.comes()).poll(&mut context).is_ready()
    }

    #[test]
    fn turns_for_one_name_come_in_their_order() {
        let turns = Arc::new(Turns::default());
        let name = |byte| [byte; size_of::<BlobName>()];
        let (mut first, mut second) = (turns.ask(name(1)), turns.ask(name(1)));
        let (third, mut other) = (turns.ask(name(1)), turns.ask(name(2)));
        assert!(has_come(&mut first) && has_come(&mut other) && !has_come(&mut second));
        drop(first);
        assert!(has_come(&mut second));
        drop((second, third, other));
        assert!(turns.table().last.is_empty());
    }
}
