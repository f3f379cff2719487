//! What holds a request up that waits for its content or its body, in words for [`crate::waits`].

use std::os::unix::ffi::OsStrExt;

use crate::cold_files::{tell_holder_of_file, tell_holder_of_own_file};
use crate::exchange::Exchange;
use crate::ledger::Stage;
use crate::waits::HolderText;

/// What held up a response whose content was not there when the client could have taken it.
pub(crate) fn of_content(exchange: &Exchange, text: &mut HolderText<'_>) {
    match &exchange.physical.file {
        Some(_) if exchange.response.body.stage() == Stage::ReadFile => {
            tell_holder_of_own_file(exchange, text);
        }
        _ => exchange.response.body.tell_wait(text),
    }
}

/// What holds up a request whose body has to be in a file.
pub(crate) fn of_upload(exchange: &Exchange, text: &mut HolderText<'_>) {
    text.write_str("a temporary file in ");
    match &*exchange.worker.process().upload_directories {
        [only] => tell_holder_of_file(only.as_os_str().as_bytes(), None, text),
        _ => text.write_str("one of server.upload-dirs"),
    }
}

/// What holds up a request whose body has not come.
pub(crate) fn of_request_body(exchange: &Exchange, text: &mut HolderText<'_>) {
    let bytes = exchange.request.body_bytes;
    write!(text, "the client had sent {bytes} bytes of the body");
}
