//! Types of one name in one crate: a reader who knows one of them mistakes the other for it.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Ident, ItemEnum, ItemStruct, ItemTrait, ItemType};

use super::source::CrateSource;

/// The names that several types of a crate have, and where these are.
pub fn shared_names(source: &CrateSource) -> Vec<(String, Vec<String>)> {
    let mut types = Types::default();
    for file in &source.files {
        types.path.clone_from(&file.path);
        for item in &file.items {
            types.visit_item(item);
        }
    }
    types.by_name.retain(|_, declared| declared.len() > 1);
    types.by_name.into_iter().collect()
}

#[derive(Default)]
struct Types {
    path: String,
    by_name: BTreeMap<String, Vec<String>>,
}

impl Types {
    fn add(&mut self, name: &Ident) {
        let at = format!("{}:{}", self.path, name.span().start().line);
        self.by_name.entry(name.to_string()).or_default().push(at);
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.add(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.add(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.add(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.add(&item.ident);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::crate_of;
    use super::*;

    #[test]
    fn types_of_one_name_are_found() {
        let source = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "struct Place;\nstruct Alone;"),
            (
                "b.rs",
                "\nfn f() { enum Place {} }\n#[cfg(test)] mod tests { struct Alone; }",
            ),
        ]);
        let places = ["crates/x/src/a.rs:1", "crates/x/src/b.rs:2"];
        assert_eq!(
            shared_names(&source),
            [("Place".to_owned(), places.map(str::to_owned).to_vec())]
        );
    }
}
