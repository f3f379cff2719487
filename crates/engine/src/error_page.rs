//! Errors on their way to the client: handlers, error files, and the page of last resort.

use std::rc::Rc;
use std::sync::LazyLock;

use petrel_proto::method::Method;
use petrel_proto::status::Status;

use crate::body::{Body, Piece};
use crate::exchange::{Exchange, HandledError};
use crate::file_cache::FileKind;

/// The handler that should answer instead of this error, if one is configured and none ran yet.
pub(crate) fn handler_for(exchange: &Exchange) -> Option<Rc<[u8]>> {
    let core = &exchange.settings.core;
    let status = exchange.response.status;
    if !status.is_error() || exchange.progress.error.is_some() {
        return None;
    }
    if exchange.response.is_final && !core.error_intercept {
        return None;
    }
    let is_missing = matches!(status, Status::NOT_FOUND | Status::FORBIDDEN);
    // As in lighttpd, the one for all errors counts where both are set.
    match (&core.error_handler, &core.error_handler_404) {
        (Some(handler), _) => Some(Rc::clone(handler)),
        (None, Some(handler)) if is_missing => Some(Rc::clone(handler)),
        _ => None,
    }
}

/// Gives the exchange the handler's path as its URL, with which it goes through the phases again.
///
/// `server.error-handler` tells what happened, so it is asked by GET and without the body, which may be
/// gone. `server.error-handler-404` is what applications have as their front controller: it gets the
/// request as it came.
pub(crate) fn run_handler(exchange: &mut Exchange, handler: &Rc<[u8]>) {
    let status = exchange.response.status;
    let is_for_all = exchange.settings.core.error_handler.is_some();
    exchange.progress.error = Some(HandledError {
        status,
        keeps_status: is_for_all,
    });
    keep_challenges(exchange);
    exchange.response.clear();
    exchange
        .environment
        .set("REDIRECT_STATUS", status.0.to_string().as_bytes());
    let original = exchange.request.original_target.clone();
    exchange.environment.set("REDIRECT_URI", &original);
    if is_for_all {
        // It makes an error page. The other one may be the site's script, which gets the request as
        // it came.
        if exchange.request.method != Method::Head {
            exchange.request.method = Method::Get;
        }
        exchange.request.body.give_up();
    }
    let options = exchange.worker.process().url_options;
    exchange.request.written_target.clear();
    if exchange
        .request
        .url
        .set_path_and_query(handler, &options)
        .is_err()
    {
        exchange.response.answer(status);
    }
}

/// Gives the response the status and body an error should have in the end.
pub(crate) fn finish(exchange: &mut Exchange) {
    exchange.response.status = final_status(exchange);
    if is_intercepted(exchange) {
        forget_words(exchange);
    }
    if wants_page(exchange) && !error_file(exchange) {
        builtin_page(exchange);
    }
    add_challenges(exchange);
}

/// The fields WWW-Authenticate of an error that a handler answers.
struct Challenges(Vec<Vec<u8>>);

/// Without them no client can prove who it is, whatever the handler says (RFC 9110 section 15.5.2).
fn keep_challenges(exchange: &mut Exchange) {
    if exchange.response.status != Status::UNAUTHORIZED {
        return;
    }
    let fields = exchange.response.fields().iter();
    let challenges = fields.filter(|(name, _)| name.eq_ignore_ascii_case(CHALLENGE.as_bytes()));
    let challenges = challenges.map(|(_, value)| value.to_vec()).collect();
    exchange.keep(CHALLENGE, Rc::new(Challenges(challenges)));
}

fn add_challenges(exchange: &mut Exchange) {
    let response = &mut exchange.response;
    if response.status != Status::UNAUTHORIZED || response.get(CHALLENGE).is_some() {
        return;
    }
    if let Some(kept) = exchange.kept::<Challenges>(CHALLENGE) {
        for challenge in &kept.0 {
            exchange.response.append(CHALLENGE, challenge);
        }
    }
}

const CHALLENGE: &str = "WWW-Authenticate";

/// Whether this is an error without a body that somebody has made for it.
fn wants_page(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    response.status.is_error()
        && !response.is_final
        && response.body.is_empty()
        && response.announced_length.is_none()
}

/// The status the client is told in the end: that of the error which a handler ran for, if that counts.
fn final_status(exchange: &Exchange) -> Status {
    match exchange.progress.error {
        Some(error)
            if !is_application_s(exchange) && (error.keeps_status || handler_failed(exchange)) =>
        {
            error.status
        }
        _ => exchange.response.status,
    }
}

impl Exchange {
    /// Puts an error with its error file or page in the place of an answer that was there, for hooks of the
    /// transform phase. Error handlers have had their turn.
    pub fn replace_by_error(&mut self, status: Status) {
        self.response.answer(status);
        if !error_file(self) {
            builtin_page(self);
        }
    }
}

/// Whether an application has answered whose status counts.
fn is_application_s(exchange: &Exchange) -> bool {
    exchange.response.is_final && !exchange.settings.core.error_intercept
}

/// Whether the handler of an error is missing itself, or is a file and the method is none for files.
fn handler_failed(exchange: &Exchange) -> bool {
    matches!(
        exchange.response.status,
        Status::NOT_FOUND | Status::FORBIDDEN | Status::METHOD_NOT_ALLOWED
    )
}

/// Whether this is the error of a gateway that `server.error-intercept` replaces. What an error handler
/// has made is not.
fn is_intercepted(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    exchange.settings.core.error_intercept
        && response.is_final
        && response.status.is_error()
        && exchange.progress.error.is_none()
}

/// Leaves of an error nothing but its status and what a client needs to act on it. As in lighttpd, fields
/// about the body go with the body, and so do the application's own.
fn forget_words(exchange: &mut Exchange) {
    let response = &mut exchange.response;
    let kept = KEPT.map(|name| (name, response.get(name).map(<[u8]>::to_vec)));
    let close = response.close;
    response.answer(response.status);
    response.close = close;
    for (name, value) in kept {
        if let Some(value) = value {
            response.set(name, &value);
        }
    }
}

/// Fields of an intercepted error that stay.
const KEPT: [&str; 4] = ["WWW-Authenticate", "Retry-After", "Allow", "Content-Range"];

/// Whether the file of this error has to be fetched from the disk first. It is waited for then; but not if
/// the file system was too slow for this request before, and not if nobody will send it.
pub(crate) fn is_on_disk(exchange: &Exchange) -> bool {
    let is_wanted = exchange.response.status.is_error()
        && !exchange.gave_up_on_files()
        && handler_for(exchange).is_none()
        && (is_intercepted(exchange) || wants_page(exchange));
    is_wanted
        && path_of_error_file(exchange, final_status(exchange)).is_some_and(|path| {
            exchange
                .look_up(&path, exchange.settings.core.symlinks)
                .is_none()
        })
}

/// `server.errorfile-prefix` + status + `.html`.
fn path_of_error_file(exchange: &Exchange, status: Status) -> Option<Vec<u8>> {
    let mut path = exchange.settings.core.errorfile_prefix.as_ref()?.to_vec();
    path.extend_from_slice(status.0.to_string().as_bytes());
    path.extend_from_slice(b".html");
    Some(path)
}

/// Puts the error file in place. One that has to be fetched from the disk first is left out: where that can
/// be waited for, it was.
fn error_file(exchange: &mut Exchange) -> bool {
    let core = &exchange.settings.core;
    let Some(path) = path_of_error_file(exchange, exchange.response.status) else {
        return false;
    };
    let Some(file) = exchange.look_up_now(&path, core.symlinks) else {
        return false;
    };
    if file.kind() != FileKind::Regular {
        return false;
    }
    let content_type = core
        .mime_types
        .content_type_of(&path)
        .unwrap_or(b"text/html")
        .to_vec();
    let range = 0..file.stat().size;
    exchange.response.set("Content-Type", &content_type);
    exchange.response.body = Body::Piece(Piece::File { file, range });
    true
}

/// The page of last resort. Those of the registered codes are made once and lent to every answer.
fn builtin_page(exchange: &mut Exchange) {
    let status = exchange.response.status;
    exchange
        .response
        .set("Content-Type", b"text/html; charset=utf-8");
    exchange.response.body = match PAGES.of(status) {
        Some(page) => Body::from_static(page.as_bytes()),
        None => Body::from(page(status).into_bytes()),
    };
}

fn page(status: Status) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{code} {reason}</title></head>\n\
         <body><h1>{code} {reason}</h1></body>\n</html>\n",
        code = status.0,
        reason = status.reason(),
    )
}

static PAGES: LazyLock<Pages> = LazyLock::new(Pages::new);

/// The pages of all registered error codes, by code.
struct Pages {
    by_code: Vec<Option<String>>,
}

/// The lowest code that is an error.
const FIRST_CODE: u16 = 400;
/// One more than the highest.
const END_CODE: u16 = 600;

impl Pages {
    fn new() -> Pages {
        let registered = |code: u16| !Status(code).reason().is_empty();
        let page_of = |code: u16| registered(code).then(|| page(Status(code)));
        Pages {
            by_code: (FIRST_CODE..END_CODE).map(page_of).collect(),
        }
    }

    fn of(&self, status: Status) -> Option<&str> {
        let index = status.0.checked_sub(FIRST_CODE)?;
        self.by_code.get(usize::from(index))?.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_registered_error_has_a_page_at_hand() {
        for status in Status::ALL.iter().filter(|status| status.is_error()) {
            let page = PAGES.of(*status).expect("it was made");
            assert!(page.contains(&format!("<h1>{} {}</h1>", status.0, status.reason())));
        }
    }

    #[test]
    fn other_codes_have_none() {
        for code in [0, 200, 399, 418, 599, 600, u16::MAX] {
            assert_eq!(PAGES.of(Status(code)), None, "{code}");
        }
        assert!(page(Status(599)).contains("<h1>599 </h1>"));
    }

    #[test]
    fn equal_errors_send_the_same_bytes() {
        let site = crate::testing::Site::new("server.document-root = \"/nonexistent\"", &[]);
        let (one, two) = (site.get("/"), site.get("/other"));
        assert_eq!(one.status(), 404);
        assert_eq!(one.body(), page(Status::NOT_FOUND).as_bytes());
        assert_eq!(one.body(), two.body());
    }
}
