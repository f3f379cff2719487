//! The view of a directory that a request asks for: format, column and order.

use petrel_engine::exchange::Request;
use petrel_engine::proto::request_head::KnownField;

/// A view of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct View {
    pub(crate) format: ListingFormat,
    /// `None`: in the order of the file system.
    pub(crate) sort: Option<Sort>,
}

/// The format that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ListingFormat {
    Page,
    Json,
}

/// The order of entries. By name and by type directories come first, as in lighttpd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sort {
    pub(crate) column: Column,
    pub(crate) order: Order,
}

/// A column of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Column {
    Name,
    Modified,
    Size,
    Type,
}

/// The direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    Ascending,
    Descending,
}

impl Column {
    /// The letter of `?C=`, as in Apache and lighttpd.
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Column::Name => b'N',
            Column::Modified => b'M',
            Column::Size => b'S',
            Column::Type => b'T',
        }
    }
}

impl View {
    pub(crate) fn of(request: &Request, is_sorted: bool) -> View {
        let query = Query::read(request.url.query());
        let accept = request.head.field(KnownField::Accept).unwrap_or_default();
        let is_json = query.json || wants_json(accept);
        View {
            format: if is_json {
                ListingFormat::Json
            } else {
                ListingFormat::Page
            },
            sort: is_sorted.then_some(Sort {
                column: query.column,
                order: query.order,
            }),
        }
    }
}

struct Query {
    json: bool,
    column: Column,
    order: Order,
}

impl Query {
    /// Reads the query. Old links have the form `?C=M;O=D`. Unknown values are ignored.
    fn read(query: &[u8]) -> Query {
        let mut read = Query {
            json: false,
            column: Column::Name,
            order: Order::Ascending,
        };
        for part in query.split(|byte| matches!(byte, b'&' | b';')) {
            match part {
                b"json" | b"json=" | b"json=1" => read.json = true,
                b"C=M" => read.column = Column::Modified,
                b"C=S" => read.column = Column::Size,
                b"C=T" | b"C=D" => read.column = Column::Type,
                b"O=D" => read.order = Order::Descending,
                _ => {}
            }
        }
        read
    }
}

/// Whether the client prefers JSON. Browsers name `text/html`, and JSON at most after it.
fn wants_json(accept: &[u8]) -> bool {
    let mut json = false;
    for item in accept.split(|byte| *byte == b',') {
        let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is_refused = parts.any(|part| {
            part.strip_prefix(b"q=0")
                .is_some_and(|rest| rest.iter().all(|byte| b".0".contains(byte)))
        });
        if name.eq_ignore_ascii_case(b"text/html") && !is_refused {
            return false;
        }
        json |= name.eq_ignore_ascii_case(b"application/json") && !is_refused;
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_for_those_who_do_not_want_a_page() {
        assert!(wants_json(b"application/json"));
        assert!(wants_json(
            b"text/plain;q=0.5, Application/JSON ; q=0.9, */*"
        ));
        assert!(wants_json(b"text/html;q=0.0, application/json"));
        assert!(!wants_json(b""));
        assert!(!wants_json(b"*/*"));
        assert!(!wants_json(b"application/json;q=0"));
        assert!(!wants_json(b"text/html,application/json;q=0.9"));
    }

    #[test]
    fn the_query_chooses_column_and_order() {
        let read = Query::read(b"C=S;O=D");
        assert_eq!(
            (read.column, read.order, read.json),
            (Column::Size, Order::Descending, false)
        );
        let read = Query::read(b"x=1&json&C=Q");
        assert_eq!(
            (read.column, read.order, read.json),
            (Column::Name, Order::Ascending, true)
        );
    }
}
