//! Compressed copies next to a file, which were made beforehand: FILE.br, FILE.zst, FILE.gz.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::Diagnostic;
use petrel_engine::file_cache::{FileEntry, FileKind, NextNames, Role};
use petrel_engine::proto::accept::{Coding, choose_coding};
use petrel_engine::proto::request_head::KnownField;
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

    /// The names that will be looked up if the physical path leads to a file.
    pub(super) fn next_names(&self, exchange: &Exchange) -> Option<NextNames> {
        let paths: Vec<Vec<u8>> = self
            .codings
            .iter()
            .filter_map(|coding| path_of_sibling(exchange, *coding))
            .collect();
        (!paths.is_empty()).then_some(NextNames {
            paths,
            role: Role::Siblings,
        })
    }

    /// The copy to send instead of `file`, or `file` itself. Its fields are made for the name without the
    /// suffix, so that the type is that of the content. `None`: a disk has to be waited for.
    pub(super) fn choose(
        &self,
        exchange: &mut Exchange,
        file: Rc<FileEntry>,
    ) -> Option<(Rc<FileEntry>, Option<Coding>)> {
        if self.codings.is_empty() {
            return Some((file, None));
        }
        let mut there: Vec<(Coding, Rc<FileEntry>)> = Vec::new();
        for coding in &self.codings {
            let Some(path) = path_of_sibling(exchange, *coding) else {
                continue;
            };
            let sibling = exchange.look_up(&path, exchange.settings.core.symlinks)?;
            if is_in_place_of(&sibling, &file) {
                there.push((*coding, sibling));
            }
        }
        if there.is_empty() {
            return Some((file, None));
        }
        exchange.response.append("Vary", b"Accept-Encoding");
        let mut offered: Vec<Coding> = there.iter().map(|(coding, _)| *coding).collect();
        offered.push(Coding::Identity);
        let accepted = exchange.request.head.field(KnownField::AcceptEncoding);
        let chosen = choose_coding(accepted, &offered);
        Some(
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
            },
        )
    }
}

fn path_of_sibling(exchange: &Exchange, coding: Coding) -> Option<Vec<u8>> {
    let mut path = exchange.physical.path.clone();
    path.extend_from_slice(suffix(coding)?);
    Some(path)
}

/// Whether `sibling` exists and is not older than `file`.
fn is_in_place_of(sibling: &FileEntry, file: &FileEntry) -> bool {
    let modified = |file: &FileEntry| (file.stat().modified_s, file.stat().modified_ns);
    sibling.kind() == FileKind::Regular && modified(sibling) >= modified(file)
}

fn suffix(coding: Coding) -> Option<&'static [u8]> {
    match coding {
        Coding::Brotli => Some(b".br"),
        Coding::Zstd => Some(b".zst"),
        Coding::Gzip => Some(b".gz"),
        Coding::Deflate | Coding::Identity => None,
    }
}
