//! What holds a request up that waits for its content or its body, in words for [`crate::waits`].

use crate::cold_files::holder_of_file;
use crate::exchange::Exchange;
use crate::ledger::Stage;

/// What held up a response whose content was not there when the client could have taken it.
pub(crate) fn of_content(exchange: &Exchange) -> String {
    match &exchange.physical.file {
        Some(_) if exchange.response.body.stage() == Stage::ReadFile => {
            holder_of_file(&exchange.physical.path)
        }
        _ => "the source of the response had no more bytes".to_owned(),
    }
}

/// What holds up a request whose body has not come.
pub(crate) fn of_request_body(exchange: &Exchange) -> String {
    let bytes = exchange.request.body_bytes;
    format!("the client had sent {bytes} bytes of the body")
}
