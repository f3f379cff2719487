//! The end of an exchange: what the recorder keeps of it, and the line about a slow one.

use petrel_proto::recording::RecordFlag;
use petrel_proto::recording::record::{HOST_BYTES_MAX, PATH_BYTES_MAX};

use crate::exchange::{Exchange, Scheme};
use crate::metrics::Route;
use crate::recorder::{self, Finished, Recorder, where_time_went};

impl Exchange {
    /// Records the exchange, which is over.
    #[inline]
    pub(crate) fn record(&self) {
        let total = self.ledger.total();
        if total >= self.settings.core.log_slower_nanos {
            self.log_slow();
        }
        let Some(recorder) = self.worker.recorder() else {
            return;
        };
        if !recorder.leaves_out(total, self.response.status.0) {
            self.add_to(recorder);
        }
        recorder.ended(self.id);
    }

    #[inline(never)]
    fn add_to(&self, recorder: &Recorder) {
        let host = self.request.head.host();
        let path = self.recorded_path();
        let is_cut = host.len() > HOST_BYTES_MAX || path.len() > PATH_BYTES_MAX;
        let flag = |flag: RecordFlag, is_true: bool| if is_true { flag as u8 } else { 0 };
        let finished = Finished {
            id: self.id,
            ledger: &self.ledger,
            method: self.request.head.method(),
            status: self.response.status.0,
            cause: self.recorded_cause(),
            flags: flag(RecordFlag::Complete, self.sent.is_complete)
                | flag(RecordFlag::Tls, self.connection.scheme == Scheme::Https)
                | flag(RecordFlag::Subrequest, self.is_subrequest())
                | flag(RecordFlag::Own, self.response.cause().is_some())
                | flag(RecordFlag::Tunnel, self.is_tunnel())
                | flag(RecordFlag::Cut, is_cut),
            client: self.connection.client_key(),
            sent_bytes: self.sent.bytes,
            host: recorder::cut(host, HOST_BYTES_MAX),
            path: recorder::cut(path, PATH_BYTES_MAX),
            answered_by: self.answered_by(),
        };
        let waits = self.waits().iter();
        let waits = waits.map(|wait| (wait.stage, wait.nanos, &*wait.holder));
        recorder.add(&finished, waits);
    }

    /// The code of the cause of an error that Petrel itself made; 0: none.
    #[inline]
    fn recorded_cause(&self) -> u16 {
        self.response.cause().map_or(0, |cause| cause.code.number())
    }

    /// The backend or module that answered.
    #[inline]
    fn answered_by(&self) -> &[u8] {
        let module = self.progress.module;
        match &self.backend {
            Some(backend) => backend.as_bytes(),
            None if module == Route::CORE => b"",
            None => self.worker.settings_table().module_of(module).as_bytes(),
        }
    }

    /// The path that the client asked for, without its query, as it sent it.
    #[inline]
    fn recorded_path(&self) -> &[u8] {
        let changed = self.path_before_change();
        changed.unwrap_or_else(|| self.request.url.path_raw())
    }

    /// The path that the client asked for, also if a rewrite or a script has changed it, so that an operator finds it
    /// again: on many sites all pages become one script.
    #[inline]
    pub fn asked_path(&self) -> &[u8] {
        let changed = self.path_before_change();
        changed.unwrap_or_else(|| self.request.url.path())
    }

    /// The path that the client sent, if that of the URL is no longer the same.
    #[inline]
    fn path_before_change(&self) -> Option<&[u8]> {
        let target = self.request.original_target();
        // In the absolute form the path is not at the beginning.
        if self.request.url.target() == target || target.first() != Some(&b'/') {
            return None;
        }
        match memchr::memchr(b'?', target) {
            Some(query) => Some(&target[..query]),
            None => Some(target),
        }
    }

    /// Writes the line that `ledger.log-slower-than` asks for.
    #[cold]
    fn log_slow(&self) {
        // The time of a tunnel is that of the conversation, and a subrequest delays the request that made it.
        if self.is_tunnel() || self.is_subrequest() {
            return;
        }
        let stages = self.ledger.touched();
        let stages = stages.map(|stage| (stage, self.ledger.stage(stage)));
        let waits = self.waits().iter();
        let waits = waits.map(|wait| (wait.stage, wait.nanos, &*wait.holder));
        let text = where_time_went(self.ledger.total(), stages, waits);
        self.log_error("slow", format_args!("{text};"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::testing::Site;

    #[test]
    fn a_query_is_not_recorded() {
        let site = Site::new("", &[]);
        for (target, path) in [
            ("/a/b?token=secret", "/a/b"),
            ("/a%20b", "/a%20b"),
            ("/?", "/"),
            ("http://a.example/p?q", "/p"),
        ] {
            let answer = site.get(target);
            let recorded = String::from_utf8_lossy(answer.exchange().recorded_path()).into_owned();
            assert_eq!(recorded, path, "{target}");
        }
    }

    #[test]
    fn the_threshold_of_slow_requests_is_read_in_milliseconds() {
        let site = Site::new("ledger.log-slower-than = 100", &[]);
        let answer = site.get("/");
        let core = &answer.exchange().settings.core;
        assert_eq!(
            core.log_slower_nanos,
            Duration::from_millis(100).as_nanos() as u64
        );
        let site = Site::new("", &[]);
        assert_eq!(
            site.get("/").exchange().settings.core.log_slower_nanos,
            u64::MAX
        );
    }
}
