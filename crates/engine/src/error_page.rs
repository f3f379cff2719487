//! Error responses: error handlers, error files, and the built-in page.

use std::rc::Rc;
use std::sync::LazyLock;

use petrel_proto::method::Method;
use petrel_proto::status::Status;

use crate::body::{Body, Piece};
use crate::cause::ErrorCause;
use crate::exchange::{Exchange, HandledError};
use crate::file_cache::FileKind;

/// The error handler that has to answer in place of this error. `None`: none is configured, or one ran
/// already.
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
    // As in lighttpd, `server.error-handler` counts if both are set.
    match (&core.error_handler, &core.error_handler_404) {
        (Some(handler), _) => Some(Rc::clone(handler)),
        (None, Some(handler)) if is_missing => Some(Rc::clone(handler)),
        _ => None,
    }
}

/// Sets the URL to the handler's path, so that the request goes through the phases again.
///
/// `server.error-handler` makes an error page, so it gets a GET without the request body, which may be gone.
/// `server.error-handler-404` is used by applications as their front controller, so it gets the request as
/// the client sent it.
pub(crate) fn run_handler(exchange: &mut Exchange, handler: &Rc<[u8]>) {
    let (status, origin) = (exchange.response.status, exchange.response.status_origin());
    let is_for_all = exchange.settings.core.error_handler.is_some();
    exchange.progress.error = Some(HandledError {
        status,
        keeps_status: is_for_all,
        origin,
    });
    keep_challenges(exchange);
    exchange.response.clear();
    exchange
        .environment
        .set("REDIRECT_STATUS", status.0.to_string().as_bytes());
    let original = exchange.request.original_target().to_vec();
    exchange.environment.set("REDIRECT_URI", &original);
    if is_for_all {
        // This handler makes an error page; `server.error-handler-404` may be the site's main script, which
        // needs the request unchanged.
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
        // The error stands; its handler is no URL.
        exchange.response.answer(status);
        exchange.response.origin = origin;
    }
}

/// Gives an error response its final status and body.
pub(crate) fn finish(exchange: &mut Exchange) {
    if let Some(error) = standing_error(exchange) {
        exchange.response.status = error.status;
        exchange.response.origin = error.origin;
    }
    if is_intercepted(exchange) {
        forget_words(exchange);
    }
    if wants_page(exchange) {
        put_page(exchange);
    }
    add_challenges(exchange);
}

/// The WWW-Authenticate fields of an error that a handler answers.
struct Challenges(Vec<Vec<u8>>);

/// Keeps them in the handler's response, because without them no client can authenticate (RFC 9110 section
/// 15.5.2).
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

/// Whether this is an error that no hook has made a body for.
fn wants_page(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    response.status.is_error()
        && !response.is_final
        && response.body.is_empty()
        && response.announced_length.is_none()
}

/// The error for which a handler ran, if the client gets its status and not that of the handler.
fn standing_error(exchange: &Exchange) -> Option<HandledError> {
    let error = exchange.progress.error?;
    let stands = error.keeps_status || handler_failed(exchange);
    (stands && !is_application_s(exchange)).then_some(error)
}

impl Exchange {
    /// Replaces a response with an error and its error file or page. For hooks of the transform phase, when
    /// error handlers can no longer run.
    pub fn replace_by_error(&mut self, cause: impl Into<ErrorCause>) {
        self.response.fail(cause);
        put_page(self);
    }
}

/// Makes the error file of the response's status, or the built-in page, its body.
pub(crate) fn put_page(exchange: &mut Exchange) {
    if exchange.settings.core.errorfile_prefix.is_none() || !error_file(exchange) {
        builtin_page(exchange);
    }
}

/// Whether an application has answered and its status counts.
fn is_application_s(exchange: &Exchange) -> bool {
    exchange.response.is_final && !exchange.settings.core.error_intercept
}

/// Whether the error handler itself is missing, or is a file that this method is not allowed for.
fn handler_failed(exchange: &Exchange) -> bool {
    matches!(
        exchange.response.status,
        Status::NOT_FOUND | Status::FORBIDDEN | Status::METHOD_NOT_ALLOWED
    )
}

/// Whether this is an error of a backend that `server.error-intercept` replaces. The response of an error
/// handler is not.
fn is_intercepted(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    exchange.settings.core.error_intercept
        && response.is_final
        && response.status.is_error()
        && exchange.progress.error.is_none()
}

/// Removes from an error all but its status and the fields that a client needs to react. As in lighttpd,
/// fields about the body are removed with the body, and so are the application's own fields.
fn forget_words(exchange: &mut Exchange) {
    let response = &mut exchange.response;
    let kept = KEPT.map(|name| (name, response.get(name).map(<[u8]>::to_vec)));
    let (close, origin) = (response.close, response.status_origin());
    response.answer(response.status);
    response.close = close;
    response.origin = origin;
    for (name, value) in kept {
        if let Some(value) = value {
            response.set(name, &value);
        }
    }
}

/// The fields that an intercepted error keeps.
const KEPT: [&str; 4] = ["WWW-Authenticate", "Retry-After", "Allow", "Content-Range"];

/// Whether the error file has to be read from the disk first, so that the request waits for it. It does not
/// wait if a file system was too slow for this request already, or if the file will not be sent.
#[inline]
pub(crate) fn is_on_disk(exchange: &Exchange) -> bool {
    exchange.settings.core.errorfile_prefix.is_some() && is_file_on_disk(exchange)
}

#[inline(never)]
fn is_file_on_disk(exchange: &Exchange) -> bool {
    let is_wanted = exchange.response.status.is_error()
        && !exchange.gave_up_on_files()
        && handler_for(exchange).is_none()
        && (is_intercepted(exchange) || wants_page(exchange));
    let status = || standing_error(exchange).map_or(exchange.response.status, |error| error.status);
    is_wanted
        && path_of_error_file(exchange, status()).is_some_and(|path| {
            exchange
                .look_up(&path, exchange.settings.core.symlinks)
                .is_none()
        })
}

/// The path of the error file: `server.errorfile-prefix`, the status, and `.html`.
fn path_of_error_file(exchange: &Exchange, status: Status) -> Option<Vec<u8>> {
    let mut path = exchange.settings.core.errorfile_prefix.as_ref()?.to_vec();
    path.extend_from_slice(status.0.to_string().as_bytes());
    path.extend_from_slice(b".html");
    Some(path)
}

/// Makes the error file the body. Leaves out a file that would have to be read from the disk: if the request
/// could wait for it, it has waited already.
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

/// Makes the built-in page the body, with the id of the request in it. The rest of the page is built once for
/// each registered status.
fn builtin_page(exchange: &mut Exchange) {
    let status = exchange.response.status;
    exchange.response.remove("Content-Type");
    exchange.response.extend_from_wire(PAGE_TYPE);
    let (id, worker) = (exchange.id.digits(), &exchange.worker);
    exchange.response.body = Body::Piece(Piece::Bytes(match PAGES.of(status) {
        Some(page) => worker.join_bytes([page.as_bytes(), &id, PAGE_END]),
        None => worker.join_bytes([page(status).as_bytes(), &id, PAGE_END]),
    }));
}

/// The page up to the id of the request.
fn page(status: Status) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{code} {reason}</title></head>\n\
         <body><h1>{code} {reason}</h1>\n<p>Request id: <code>",
        code = status.0,
        reason = status.reason(),
    )
}

const PAGE_TYPE: &[u8] = b"Content-Type: text/html; charset=utf-8\r\n";
const PAGE_END: &[u8] = b"</code></p></body>\n</html>\n";

static PAGES: LazyLock<Pages> = LazyLock::new(Pages::new);

/// The pages of all registered error status codes, up to the id of the request.
struct Pages {
    by_code: Vec<Option<String>>,
}

/// The lowest error status.
const FIRST_CODE: u16 = 400;
/// One more than the highest error status.
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
    use crate::cause::CauseCode;

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
    fn a_page_names_its_request_and_nothing_else_of_it() {
        let site = crate::testing::Site::new("server.document-root = \"/nonexistent\"", &[]);
        let answers = [site.get("/"), site.get("/other")];
        for answer in &answers {
            assert_eq!(answer.status(), 404);
            let id = answer.exchange().id.digits();
            let whole = [page(Status::NOT_FOUND).as_bytes(), &id, PAGE_END].concat();
            assert_eq!(answer.body(), whole);
        }
        assert_ne!(answers[0].body(), answers[1].body());
    }

    #[test]
    fn an_error_keeps_its_cause_behind_its_handler() {
        for directive in ["server.error-handler", "server.error-handler-404"] {
            let config = format!("server.document-root = \"/nonexistent\"\n{directive} = \"/h\"");
            let answer = crate::testing::Site::new(&config, &[]).get("/");
            assert_eq!(answer.status(), 404);
            let told = answer.exchange().response.cause();
            assert_eq!(told, Some(CauseCode::FileMissing.into()), "{directive}");
        }
    }

    #[test]
    fn the_cause_is_sent_only_if_the_configuration_says_so() {
        let root = "server.document-root = \"/nonexistent\"";
        for (more, sent) in [
            ("", None),
            ("server.error-cause-header = \"disable\"", None),
            (
                "server.error-cause-header = \"enable\"",
                Some("file-missing"),
            ),
        ] {
            let site = crate::testing::Site::new(&format!("{root}\n{more}"), &[]);
            let mut answer = site.get("/");
            answer.head();
            assert_eq!(answer.field("Petrel-Cause").as_deref(), sent, "{more}");
        }
    }
}
