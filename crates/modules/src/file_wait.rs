//! How long a request waits for a file system (`server.max-file-wait`), for modules that wait for jobs of
//! their own. Files that are looked up have the engine's wait.

use petrel_engine::Exchange;
use petrel_engine::module::Outcome;
use petrel_engine::proto::status::Status;

/// A wait with an end.
pub(crate) struct FileWait {
    due_s: u32,
}

impl FileWait {
    /// It begins now.
    pub fn new(exchange: &Exchange) -> FileWait {
        let now_s = exchange.worker.clock().seconds();
        let wait_s = exchange.settings.core.file_wait_s;
        FileWait {
            // The present second has begun a while ago.
            due_s: now_s.saturating_add(wait_s).saturating_add(1),
        }
    }

    /// Whether the time is up. If not, the request is woken when it is.
    pub fn is_over(&self, exchange: &mut Exchange) -> bool {
        let is_over = exchange.worker.clock().seconds() >= self.due_s;
        if !is_over {
            exchange.wake_at(self.due_s);
        }
        is_over
    }

    /// The answer when it is: 504, and a line in the log that names `path`.
    pub fn give_up(exchange: &mut Exchange, stage: &str, path: &[u8]) -> Outcome {
        exchange.give_up_on_file(stage, path);
        exchange.answer(Status::GATEWAY_TIMEOUT)
    }
}
