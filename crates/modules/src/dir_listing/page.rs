//! The listing as HTML, which is complete without script and without style.
//!
//! Element classes are lighttpd's (`list`, `n`, `m`, `s`, `t`, `d`, `header`, `readme`, `foot`), so that
//! style sheets written for it work. Everything that comes from file names or the URL is escaped here.
//! Header, readme and footer come from the operator, and may be HTML if the configuration says so.

use std::borrow::Cow;
use std::io::Write as _;

use petrel_engine::Exchange;
use petrel_engine::file_cache::FileKind;
use petrel_engine::proto::escape;
use petrel_engine::settings::mime::{self, MimeTypes};

use super::columns::{write_size, write_time};
use super::entries::ListingEntry;
use super::options::{Around, ListingOptions};
use super::read::{AroundFile, DirectoryContents};
use super::view::{Column, Order, Sort, View};

/// What a page needs besides the entries.
pub(super) struct ListingPage {
    url_path: Vec<u8>,
    tag: Vec<u8>,
    sort: Option<Sort>,
    is_utf8: bool,
}

impl ListingPage {
    pub(crate) fn new(exchange: &Exchange, options: &ListingOptions, view: View) -> ListingPage {
        let line = &exchange.settings.core.server_line;
        let tag = line
            .strip_prefix(b"Server: ")
            .unwrap_or_default()
            .trim_ascii();
        ListingPage {
            url_path: exchange.request.url.path().to_vec(),
            tag: tag.to_vec(),
            sort: view.sort,
            is_utf8: options.is_utf8,
        }
    }

    /// Writes everything above the entries.
    pub(crate) fn write_begin(
        &self,
        out: &mut Vec<u8>,
        options: &ListingOptions,
        found: &DirectoryContents,
    ) {
        if options.has_layout {
            self.write_head(out, options);
        }
        write_around(out, options.header.as_ref(), &found.header, "header");
        out.extend_from_slice(b"<h1>Index of ");
        self.write_way(out);
        out.extend_from_slice(b"</h1>\n<div class=\"list\">\n<table>\n<thead><tr>");
        for (class, column, title) in COLUMNS {
            self.write_column(out, class, column, title);
        }
        out.extend_from_slice(b"</tr></thead>\n<tbody>\n");
        if self.url_path != b"/" {
            out.extend_from_slice(PARENT);
        }
    }

    /// Writes one row.
    pub(crate) fn write_entry(
        &self,
        out: &mut Vec<u8>,
        entry: &ListingEntry<'_>,
        types: &MimeTypes,
    ) {
        let slash: &[u8] = if entry.is_directory { b"/" } else { b"" };
        out.extend_from_slice(match entry.is_directory {
            true => b"<tr class=\"d\"><td class=\"n\"><a href=\"",
            false => b"<tr><td class=\"n\"><a href=\"",
        });
        escape::percent_encode_path(out, entry.name);
        out.extend_from_slice(slash);
        out.extend_from_slice(b"\">");
        self.write_text(out, entry.name);
        out.extend_from_slice(b"</a>");
        out.extend_from_slice(slash);
        let _ = write!(out, "</td><td class=\"m\" data-v=\"{}\">", entry.modified_s);
        write_time(out, entry.modified_s);
        if entry.is_directory {
            out.extend_from_slice(b"</td><td class=\"s\" data-v=\"-1\">-</td><td class=\"t\">");
        } else {
            let _ = write!(out, "</td><td class=\"s\" data-v=\"{}\">", entry.size);
            write_size(out, entry.size);
            out.extend_from_slice(b"</td><td class=\"t\">");
        }
        escape::html(out, type_of(entry, types));
        out.extend_from_slice(b"</td></tr>\n");
    }

    /// Writes everything below the entries. `cut` is the number of entries that were read, if there are more.
    pub(crate) fn write_end(
        &self,
        out: &mut Vec<u8>,
        options: &ListingOptions,
        found: &DirectoryContents,
        cut: Option<usize>,
    ) {
        out.extend_from_slice(b"</tbody>\n</table>\n</div>\n");
        if let Some(seen) = cut {
            let _ = writeln!(
                out,
                "<p class=\"note\">This directory has more entries; only {seen} of them were looked at.</p>"
            );
        } else if found.entries.len() == 0 {
            out.extend_from_slice(b"<p class=\"note\">This directory is empty.</p>\n");
        }
        write_around(out, options.readme.as_ref(), &found.readme, "readme");
        if options.has_layout {
            self.write_foot(out, options);
        }
    }

    fn write_head(&self, out: &mut Vec<u8>, options: &ListingOptions) {
        out.extend_from_slice(b"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"");
        let charset = options.content_type.rsplit('=').next().unwrap_or_default();
        escape::html(out, charset.as_bytes());
        out.extend_from_slice(
            b"\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
              <meta name=\"color-scheme\" content=\"light dark\">\n<title>Index of ",
        );
        self.write_text(out, &self.url_path);
        out.extend_from_slice(b"</title>\n");
        match &options.external_css {
            Some(url) => {
                out.extend_from_slice(b"<link rel=\"stylesheet\" href=\"");
                escape::html(out, url.as_bytes());
                out.extend_from_slice(b"\">\n");
            }
            None => {
                out.extend_from_slice(b"<style>\n");
                out.extend_from_slice(STYLE);
                out.extend_from_slice(b"</style>\n");
            }
        }
        out.extend_from_slice(b"</head>\n<body>\n");
    }

    fn write_foot(&self, out: &mut Vec<u8>, options: &ListingOptions) {
        out.extend_from_slice(b"<div class=\"foot\">");
        match &options.footer {
            Some(html) => out.extend_from_slice(html.as_bytes()),
            None => escape::html(out, &self.tag),
        }
        out.extend_from_slice(b"</div>\n");
        match &options.external_js {
            Some(url) => {
                out.extend_from_slice(b"<script src=\"");
                escape::html(out, url.as_bytes());
                out.extend_from_slice(b"\"></script>\n");
            }
            None if self.sort.is_some() => {
                out.extend_from_slice(b"<script>\n");
                out.extend_from_slice(SCRIPT);
                out.extend_from_slice(b"</script>\n");
            }
            None => {}
        }
        out.extend_from_slice(b"</body>\n</html>\n");
    }

    /// Writes the URL path, with each segment a link to its directory. The links are relative, because a
    /// proxy in front of this server may use another path.
    fn write_way(&self, out: &mut Vec<u8>) {
        let parts: Vec<&[u8]> = self
            .url_path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
            .collect();
        if parts.is_empty() {
            out.push(b'/');
            return;
        }
        self.write_way_part(out, parts.len(), b"");
        for (index, part) in parts.iter().enumerate() {
            match parts.len() - 1 - index {
                0 => {
                    self.write_text(out, part);
                    out.push(b'/');
                }
                up => self.write_way_part(out, up, part),
            }
        }
    }

    fn write_way_part(&self, out: &mut Vec<u8>, up: usize, part: &[u8]) {
        out.extend_from_slice(b"<a href=\"");
        out.extend_from_slice("../".repeat(up).as_bytes());
        out.extend_from_slice(b"\">");
        self.write_text(out, part);
        out.extend_from_slice(b"/</a>");
    }

    /// Writes the head of a column, with a link that sorts by it or reverses the order.
    fn write_column(&self, out: &mut Vec<u8>, class: &str, column: Column, title: &str) {
        let Some(sort) = self.sort else {
            let _ = write!(out, "<th class=\"{class}\">{title}</th>");
            return;
        };
        let (marks, order) = match (sort.column == column, sort.order) {
            (true, Order::Ascending) => (" aria-sort=\"ascending\"", 'D'),
            (true, Order::Descending) => (" aria-sort=\"descending\"", 'A'),
            (false, _) => ("", 'A'),
        };
        let letter = char::from(column.letter());
        let _ = write!(
            out,
            "<th class=\"{class}\"{marks}><a href=\"?C={letter}&amp;O={order}\">{title}</a></th>"
        );
    }

    /// Writes text of unknown origin. Control characters, and in UTF-8 invalid bytes, are replaced.
    fn write_text(&self, out: &mut Vec<u8>, text: &[u8]) {
        let text = match self.is_utf8 {
            true => String::from_utf8_lossy(text)
                .into_owned()
                .into_bytes()
                .into(),
            false => Cow::Borrowed(text),
        };
        for part in text.split_inclusive(|byte| byte.is_ascii_control()) {
            match part.split_last() {
                Some((last, before)) if last.is_ascii_control() => {
                    escape::html(out, before);
                    out.extend_from_slice(b"&#xfffd;");
                }
                _ => escape::html(out, part),
            }
        }
    }
}

/// The text of the type column: the media type without its parameters.
pub(super) fn type_of<'t>(entry: &ListingEntry<'_>, types: &'t MimeTypes) -> &'t [u8] {
    if entry.is_directory {
        return b"Directory";
    }
    let content_type = types.content_type_of(entry.name).unwrap_or(mime::UNKNOWN);
    content_type
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii_end()
}

/// The file to show around the list, if there is one. `None`: a disk has to be waited for.
pub(super) fn around_file(
    exchange: &Exchange,
    around: Option<&Around>,
    class: &str,
) -> Option<AroundFile> {
    let Some(around) = around else {
        return Some(AroundFile::Nothing);
    };
    let path = match around.name.starts_with('/') {
        true => around.name.as_bytes().to_vec(),
        false => [&*exchange.physical.path, around.name.as_bytes()].concat(),
    };
    let file = exchange.look_up(&path, exchange.settings.core.symlinks)?;
    let size = usize::try_from(file.stat().size).unwrap_or(usize::MAX);
    if file.kind() != FileKind::Regular || size == 0 {
        return Some(AroundFile::Nothing);
    }
    if size > AROUND_BYTES_MAX {
        let path = String::from_utf8_lossy(&path);
        exchange.log_error(
            "content",
            format_args!("{path:?} is too long for a listing's {class}"),
        );
        return Some(AroundFile::Nothing);
    }
    if let Some(content) = file.content() {
        return Some(AroundFile::Content(content.to_vec()));
    }
    let open = |descriptor| AroundFile::Open {
        descriptor,
        size,
        device: file.origin(0, 0).device,
    };
    Some(file.share_descriptor().map_or(AroundFile::Nothing, open))
}

fn write_around(out: &mut Vec<u8>, around: Option<&Around>, content: &[u8], class: &str) {
    match around {
        Some(around) if around.is_text && !content.is_empty() => {
            let _ = write!(out, "<pre class=\"{class}\">");
            escape::html(out, content);
            out.extend_from_slice(b"</pre>\n");
        }
        _ => out.extend_from_slice(content),
    }
}

const COLUMNS: [(&str, Column, &str); 4] = [
    ("n", Column::Name, "Name"),
    ("m", Column::Modified, "Last modified (UTC)"),
    ("s", Column::Size, "Size"),
    ("t", Column::Type, "Type"),
];

const PARENT: &[u8] = b"<tr class=\"d up\"><td class=\"n\"><a href=\"../\">..</a>/</td>\
    <td class=\"m\"></td><td class=\"s\">-</td><td class=\"t\">Directory</td></tr>\n";

const STYLE: &[u8] = include_bytes!("list.css");

const SCRIPT: &[u8] = include_bytes!("sort.js");

/// The largest header or readme file. A longer one is left out, and the log says so.
const AROUND_BYTES_MAX: usize = 256 * 1024;
