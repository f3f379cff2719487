//! Siblings of a file that somebody compressed beforehand: FILE.br, FILE.zst, FILE.gz.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::Diagnostic;
use petrel_engine::file_cache::{FileEntry, FileKind};
use petrel_engine::proto::accept::{Coding, choose_coding};
use petrel_engine::proto::http1::KnownField;
use petrel_engine::settings::Values;

/// The codings to look for.
pub(super) struct Precompressed {
    codings: Vec<Coding>,
}

impl Precompressed {
    pub(super) fn new(values: &Values<'_>) -> Result<Precompressed, Diagnostic> {
        let name = "static-file.precompressed";
        let codings = values.strings(name).into_iter().map(|text| {
            Coding::from_name(text.as_bytes())
                .filter(|coding| suffix(*coding).is_some())
                .ok_or_else(|| {
                    values
                        .error(
                            name,
                            format!("\"{text}\" is no coding of precompressed files"),
                        )
                        .with_hint("known are \"br\", \"zstd\" and \"gzip\"")
                })
        });
        Ok(Precompressed {
            codings: codings.collect::<Result<_, _>>()?,
        })
    }

    /// The sibling to send instead of `file`, or `file`. Its fields are made for the name without
    /// the suffix, so the type is the content's.
    pub(super) fn choose(
        &self,
        exchange: &mut Exchange,
        file: Rc<FileEntry>,
    ) -> (Rc<FileEntry>, Option<Coding>) {
        if self.codings.is_empty() {
            return (file, None);
        }
        let there: Vec<(Coding, Rc<FileEntry>)> = self
            .codings
            .iter()
            .filter_map(|coding| Some((*coding, sibling(exchange, *coding, &file)?)))
            .collect();
        if there.is_empty() {
            return (file, None);
        }
        exchange.response.append("Vary", b"Accept-Encoding");
        let mut offered: Vec<Coding> = there.iter().map(|(coding, _)| *coding).collect();
        offered.push(Coding::Identity);
        let accepted = exchange.request.head.field(KnownField::AcceptEncoding);
        let chosen = choose_coding(accepted, &offered);
        match there
            .into_iter()
            .find(|(coding, _)| Some(*coding) == chosen)
        {
            Some((coding, sibling)) => {
                exchange
                    .response
                    .set("Content-Encoding", coding.name().as_bytes());
                (sibling, Some(coding))
            }
            None => (file, None),
        }
    }
}

fn sibling(exchange: &Exchange, coding: Coding, file: &FileEntry) -> Option<Rc<FileEntry>> {
    let mut path = exchange.physical.path.clone();
    path.extend_from_slice(suffix(coding)?);
    let now_s = exchange.worker.clock().seconds();
    let symlinks = exchange.settings.core.symlinks;
    let sibling = exchange.worker.files().lookup(&path, symlinks, now_s);
    let modified = |file: &FileEntry| (file.stat().modified_s, file.stat().modified_ns);
    (sibling.kind() == FileKind::Regular && modified(&sibling) >= modified(file)).then_some(sibling)
}

fn suffix(coding: Coding) -> Option<&'static [u8]> {
    match coding {
        Coding::Brotli => Some(b".br"),
        Coding::Zstd => Some(b".zst"),
        Coding::Gzip => Some(b".gz"),
        Coding::Deflate | Coding::Identity => None,
    }
}
