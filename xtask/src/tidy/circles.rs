//! Circles of imports. A *room* is a file or folder directly below `src/`; what is in `lib.rs` or `main.rs`
//! itself is the room [`ROOT`]. Rooms that import each other are one thing in several places: none of them
//! can be read, tested or changed alone.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

use super::source::{CrateSource, SourceFile};

/// What is in the root of a crate itself.
pub const ROOT: &str = "(root)";

/// One room imports from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Which room imports.
    pub from: String,
    /// From which one.
    pub to: String,
    /// In which file and line first.
    pub at: String,
}

/// Rooms that all import from each other, directly or through other rooms of the circle.
#[derive(Debug)]
pub struct Circle {
    /// The rooms, by name.
    pub rooms: Vec<String>,
    /// The imports between them.
    pub imports: Vec<Import>,
}

/// The circles of a crate.
pub fn circles(source: &CrateSource) -> Vec<Circle> {
    let imports = imports(source);
    let mut reaches: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in &imports {
        reaches.entry(&import.from).or_default().insert(&import.to);
    }
    // Crates have a few dozen rooms, so a simple fixed point is fast enough: add pairs until none is new.
    loop {
        let before: usize = reaches.values().map(BTreeSet::len).sum();
        for room in reaches.keys().copied().collect::<Vec<_>>() {
            let direct = reaches[room].clone();
            let further = direct.iter().filter_map(|next| reaches.get(next));
            let further: BTreeSet<&str> = further.flatten().copied().collect();
            reaches.entry(room).or_default().extend(further);
        }
        if before == reaches.values().map(BTreeSet::len).sum() {
            break;
        }
    }
    let reach = |from: &str, to: &str| reaches.get(from).is_some_and(|set| set.contains(to));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for room in reaches.keys().copied().filter(|room| reach(room, room)) {
        let rooms: BTreeSet<&str> = (reaches[room].iter().copied())
            .filter(|other| reach(other, room))
            .collect();
        if seen.insert(rooms.clone()) {
            let inside = |room: &String| rooms.contains(room.as_str());
            let between = |import: &&Import| inside(&import.from) && inside(&import.to);
            found.push(Circle {
                rooms: rooms.iter().map(|room| (*room).to_owned()).collect(),
                imports: imports.iter().filter(between).cloned().collect(),
            });
        }
    }
    found
}

/// Which rooms import from which others.
fn imports(source: &CrateSource) -> Vec<Import> {
    let roots = || source.files.iter().filter(|file| file.module.is_empty());
    let items = || roots().flat_map(|file| &file.items);
    let rooms = (items()).filter_map(|item| match item {
        Item::Mod(room) => Some(room.ident.to_string()),
        _ => None,
    });
    let mut crate_names = CrateNames {
        rooms: rooms.collect(),
        exports: BTreeMap::new(),
    };
    for item in items() {
        if let Item::Use(item) = item {
            for (path, name) in used_paths(&item.tree) {
                if let Some(room) = crate_names.room_of(&[], &path) {
                    crate_names.exports.insert(name, room);
                }
            }
        }
    }
    let mut imports: BTreeMap<(String, String), String> = BTreeMap::new();
    for file in &source.files {
        let from = file.module.first().map_or(ROOT, String::as_str);
        for (to, line) in references(file, &crate_names) {
            if to != from {
                let at = || format!("{}:{line}", file.path);
                (imports.entry((from.to_owned(), to))).or_insert_with(at);
            }
        }
    }
    let import = |((from, to), at)| Import { from, to, at };
    imports.into_iter().map(import).collect()
}

/// The names that a path inside a crate can begin with.
struct CrateNames {
    rooms: BTreeSet<String>,
    /// Names that the root re-exports, and the room of each.
    exports: BTreeMap<String, String>,
}

impl CrateNames {
    /// The room that a path leads to, if it stays in the crate, when it is used in `module`.
    fn room_of(&self, module: &[String], path: &[String]) -> Option<String> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            // Any other path begins with another crate, or with a name that the module has imported already.
            first if !module.is_empty() || !self.rooms.contains(first) => return None,
            _ => {}
        }
        at.extend(rest.iter().cloned());
        let first = at.first().map_or("", String::as_str);
        match self.exports.get(first) {
            _ if self.rooms.contains(first) => Some(first.to_owned()),
            Some(room) => Some(room.clone()),
            None => Some(ROOT.to_owned()),
        }
    }
}

/// The rooms that a file names, and the lines where it does.
fn references(file: &SourceFile, crate_names: &CrateNames) -> Vec<(String, usize)> {
    let mut references = References {
        crate_names,
        module: file.module.clone(),
        found: Vec::new(),
    };
    for item in &file.items {
        references.visit_item(item);
    }
    references.found
}

struct References<'a> {
    crate_names: &'a CrateNames,
    module: Vec<String>,
    found: Vec<(String, usize)>,
}

impl References<'_> {
    fn add(&mut self, path: &[String], line: usize) {
        if let Some(room) = self.crate_names.room_of(&self.module, path) {
            self.found.push((room, line));
        }
    }

    /// The arguments of a macro are tokens and no syntax tree. Tokens that begin with `crate::` are read as a
    /// path.
    fn add_from_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match (token, tokens.get(at + 3)) {
                (TokenTree::Group(group), _) => self.add_from_tokens(group.stream()),
                (TokenTree::Ident(word), Some(TokenTree::Ident(name))) if word == "crate" => {
                    let line = word.span().start().line;
                    self.add(&["crate".to_owned(), name.to_string()], line);
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for References<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // A re-export in the root is for other rooms or crates; the root itself does not depend on it.
        let is_export = !matches!(item.vis, Visibility::Inherited);
        if !(self.module.is_empty() && is_export) {
            for (path, _) in used_paths(&item.tree) {
                self.add(&path, item.use_token.span.start().line);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let parts = path.segments.iter().map(|part| &part.ident);
            let line = path.segments[0].ident.span().start().line;
            let parts: Vec<String> = parts.map(ToString::to_string).collect();
            // A single name is in the module by an import, which was counted already.
            if parts.len() > 1 {
                self.add(&parts, line);
            }
        }
        visit::visit_path(self, path);
    }

    // `pub(crate)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_from_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// The paths of a `use`, and the names they get.
fn used_paths(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), tree)];
    while let Some((path, tree)) = open.pop() {
        let with = |name: &syn::Ident| -> Vec<String> {
            let last = std::iter::once(name.to_string());
            path.iter().cloned().chain(last).collect()
        };
        match tree {
            UseTree::Path(step) => open.push((with(&step.ident), &step.tree)),
            UseTree::Name(name) => found.push((with(&name.ident), name.ident.to_string())),
            UseTree::Rename(name) => found.push((with(&name.ident), name.rename.to_string())),
            UseTree::Glob(_) => found.push((path, "*".to_owned())),
            UseTree::Group(group) => {
                open.extend(group.items.iter().map(|tree| (path.clone(), tree)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::crate_of;
    use super::*;

    fn names(files: &[(&str, &str)]) -> Vec<String> {
        let found = circles(&crate_of(files));
        found.iter().map(|circle| circle.rooms.join(" ")).collect()
    }

    #[test]
    fn a_circle_is_found_with_a_line_for_each_import() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a.rs", "use crate::b;\nuse crate::c;"),
            ("b/mod.rs", "mod inner;"),
            (
                "b/inner.rs",
                "//! Text.\n\nuse super::super::a::{self, Thing};",
            ),
            ("c.rs", "pub struct Free;"),
        ];
        let found = circles(&crate_of(&files));
        assert_eq!(found.len(), 1);
        let lines: Vec<_> = (found[0].imports.iter())
            .map(|import| format!("{} {} {}", import.from, import.to, import.at))
            .collect();
        assert_eq!(
            lines,
            ["a b crates/x/src/a.rs:1", "b a crates/x/src/b/inner.rs:3"]
        );
    }

    #[test]
    fn every_way_to_name_a_room_counts() {
        for import in [
            "use crate::a;",
            "use crate::a::Thing;",
            "use crate::{c, a::Thing};",
            "use crate::{c::{self, Other}, a::{b::{Thing}, Second}};",
            "use super::a::Thing as Other;",
            "pub use crate::a::*;",
            "fn f() { crate::a::call(); }",
            "fn f(thing: &super::a::Thing) {}",
            "fn f() { let x: Vec<crate::a::Thing> = vec![]; }",
            "fn f() { assert_eq!(1, crate::a::number()); }",
            "macro_rules! m { () => { $crate::a::call() } }",
            "impl crate::a::Make for u8 {}",
            "mod inner { use super::super::a; }",
            "use crate::Exported;",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b; mod c; pub use a::Exported;"),
                ("a.rs", "use crate::b;"),
                ("b.rs", import),
                ("c.rs", ""),
            ];
            assert_eq!(names(&files), ["a b"], "{import}");
        }
    }

    #[test]
    fn what_is_no_import_of_production_code_does_not_count() {
        for text in [
            "#[cfg(test)] mod tests { use crate::a; }",
            "#[cfg(test)] use crate::a;",
            "#[doc(hidden)] pub mod testing { use crate::a; }",
            "struct S; impl S { #[cfg(test)] fn f() { crate::a::f() } }",
            "pub(crate) struct S;",
            "/// As [`crate::a`] does.\nstruct S;",
            "use std::a;",
            "use self::a::Thing; mod a { pub struct Thing; }",
        ] {
            let files = [
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b;"),
                ("b.rs", text),
            ];
            assert!(names(&files).is_empty(), "{text}");
        }
    }

    #[test]
    fn the_root_is_a_room_where_it_has_items_of_its_own() {
        let root = "mod a; pub use a::Thing; fn f() { a::call() }";
        let files = [("lib.rs", root), ("a.rs", "use crate::f;")];
        assert_eq!(names(&files), ["(root) a"]);
        let files = [
            ("lib.rs", "mod a; pub use a::Thing;"),
            ("a.rs", "use crate::f;"),
        ];
        assert!(names(&files).is_empty());
    }
}
