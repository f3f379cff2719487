//! Decides from the head of an answer whether it is compressed, and in which coding.

use std::fmt;

use petrel_engine::Exchange;
use petrel_engine::proto::accept::{Coding, choose_coding};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;
use petrel_engine::response::Response;

use super::options::DeflateOptions;

/// The decision about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send it in this coding.
    Compress(Coding),
    /// It has no content, but stands for content that would be sent in this coding: a 304 after
    /// If-Modified-Since. Only its entity tag changes.
    Retag(Coding),
    /// Leave it for this client; it would be compressed for others.
    NotForThisClient,
    /// Never compress it, for this reason.
    Leave(&'static str),
}

impl Decision {
    /// Whether a cache has to compare Accept-Encoding before it uses the answer for another client.
    pub(crate) fn depends_on_the_client(self) -> bool {
        !matches!(self, Decision::Leave(_))
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Compress(coding) => write!(f, "compressed as {};", coding.name()),
            Decision::Retag(coding) => write!(f, "the client has it as {};", coding.name()),
            Decision::NotForThisClient => f.write_str("the client accepts no coding;"),
            Decision::Leave(reason) => write!(f, "not compressed: {reason};"),
        }
    }
}

pub(super) fn decide(exchange: &Exchange, options: &DeflateOptions) -> Decision {
    let response = &exchange.response;
    if let Err(reason) = suits(response, options) {
        return Decision::Leave(reason);
    }
    let accepted = exchange.request.head.field(KnownField::AcceptEncoding);
    let coding = match choose_coding(accepted, &options.offered) {
        None | Some(Coding::Identity) => None,
        Some(coding) => Some(coding),
    };
    match (response.status, coding) {
        (Status::PARTIAL_CONTENT, _) | (_, None) => Decision::NotForThisClient,
        // With If-None-Match the client has named the entity tag that it has; that one stays.
        (Status::NOT_MODIFIED, Some(coding)) => {
            match exchange.request.head.field(KnownField::IfNoneMatch) {
                None if would_fit(exchange, options) => Decision::Retag(coding),
                _ => Decision::NotForThisClient,
            }
        }
        (_, Some(coding)) => Decision::Compress(coding),
    }
}

/// Checks everything that does not depend on the client.
fn suits(response: &Response, options: &DeflateOptions) -> Result<(), &'static str> {
    let content_type = response
        .get("Content-Type")
        .ok_or("it has no content type")?;
    if !options
        .mimetypes
        .iter()
        .any(|start| starts_with(content_type, start))
    {
        return Err("its content type is not in deflate.mimetypes");
    }
    if is_compressed_in_itself(content_type) {
        return Err("its content type is compressed already");
    }
    match response.status {
        Status::NOT_MODIFIED | Status::PARTIAL_CONTENT => {}
        Status::NO_CONTENT | Status::RESET_CONTENT => return Err("it has no content"),
        status if status.is_interim() => return Err("it has no content"),
        _ if response.fields().contains("Content-Range") => return Err("it is a range"),
        _ => fits(length(response), options)?,
    }
    if response.fields().contains("Content-Encoding") {
        return Err("it has a Content-Encoding");
    }
    if has_no_transform(response) {
        return Err("Cache-Control says no-transform");
    }
    Ok(())
}

fn length(response: &Response) -> Option<u64> {
    response.announced_length.or_else(|| response.body.length())
}

fn fits(length: Option<u64>, options: &DeflateOptions) -> Result<(), &'static str> {
    match length {
        Some(length) if length <= options.bytes_min => Err("it is too short"),
        Some(length) if options.bytes_max.is_some_and(|max| length > max) => Err("it is too long"),
        _ => Ok(()),
    }
}

/// Whether the file that a 304 is about would have been compressed.
fn would_fit(exchange: &Exchange, options: &DeflateOptions) -> bool {
    let file = exchange.physical.file.as_ref();
    file.is_some_and(|file| fits(Some(file.stat().size), options).is_ok())
}

fn has_no_transform(response: &Response) -> bool {
    let mut fields = response.fields().iter();
    fields.any(|(name, value)| {
        name.eq_ignore_ascii_case(b"cache-control")
            && value
                .split(|byte| *byte == b',')
                .any(|directive| directive.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
    })
}

fn is_compressed_in_itself(content_type: &[u8]) -> bool {
    let essence = content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let is_image = starts_with(essence, b"image/");
    if is_image {
        return !IMAGES_WORTH_IT
            .iter()
            .any(|known| essence.eq_ignore_ascii_case(known));
    }
    COMPRESSED.iter().any(|start| starts_with(essence, start))
}

fn starts_with(content_type: &[u8], start: &[u8]) -> bool {
    content_type
        .get(..start.len())
        .is_some_and(|head| head.eq_ignore_ascii_case(start))
}

const IMAGES_WORTH_IT: &[&[u8]] = &[
    b"image/svg+xml",
    b"image/bmp",
    b"image/x-ms-bmp",
    b"image/x-icon",
    b"image/vnd.microsoft.icon",
    b"image/x-portable-bitmap",
    b"image/x-portable-graymap",
    b"image/x-portable-pixmap",
];

const COMPRESSED: &[&[u8]] = &[
    b"audio/",
    b"video/",
    b"font/woff",
    b"application/font-woff",
    b"application/zip",
    b"application/gzip",
    b"application/x-gzip",
    b"application/x-bzip",
    b"application/x-xz",
    b"application/x-7z-compressed",
    b"application/x-rar",
    b"application/vnd.rar",
    b"application/zstd",
    b"application/java-archive",
    b"application/epub+zip",
    b"application/vnd.openxmlformats-officedocument",
    b"application/vnd.oasis.opendocument",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_are_compressed_are_known() {
        for kind in [
            "image/png",
            "IMAGE/JPEG; x=y",
            "video/mp4",
            "application/zip",
            "font/woff2",
        ] {
            assert!(is_compressed_in_itself(kind.as_bytes()), "{kind}");
        }
        for kind in [
            "image/svg+xml; charset=utf-8",
            "text/html",
            "font/ttf",
            "application/json",
        ] {
            assert!(!is_compressed_in_itself(kind.as_bytes()), "{kind}");
        }
    }
}
