//! Globals: statics that change, and `thread_local!`s. Both are state that no signature shows.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{GenericArgument, Ident, ItemStatic, Macro, PathArguments, Type};

use super::source::CrateSource;

/// A global, and where it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// The file that declares it.
    pub path: String,
    /// The line.
    pub line: usize,
}

/// The globals of a crate.
pub fn globals(source: &CrateSource) -> Vec<Global> {
    let mut finder = GlobalFinder {
        path: String::new(),
        globals: Vec::new(),
    };
    for file in &source.files {
        finder.path.clone_from(&file.path);
        for item in &file.items {
            finder.visit_item(item);
        }
    }
    finder.globals
}

struct GlobalFinder {
    path: String,
    globals: Vec<Global>,
}

impl GlobalFinder {
    fn add(&mut self, name: &Ident) {
        self.globals.push(Global {
            name: name.to_string(),
            path: self.path.clone(),
            line: name.span().start().line,
        });
    }

    fn add_from_tokens(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            if let (TokenTree::Ident(word), Some(TokenTree::Ident(name))) = (&token, tokens.peek())
                && word == "static"
            {
                self.add(name);
            }
        }
    }
}

impl<'ast> Visit<'ast> for GlobalFinder {
    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        if !is_constant(&item.ty) {
            self.add(&item.ident);
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        if (call.path.segments.last()).is_some_and(|part| part.ident == "thread_local") {
            self.add_from_tokens(call.tokens.clone());
        }
        visit::visit_macro(self, call);
    }
}

/// Whether a static of this type never changes. A type that is not in [`CONSTANT_TYPES`] is assumed to
/// change, because its name does not tell.
fn is_constant(of: &Type) -> bool {
    match of {
        Type::Reference(reference) => reference.mutability.is_none(),
        Type::Array(array) => is_constant(&array.elem),
        Type::Tuple(tuple) => tuple.elems.iter().all(is_constant),
        Type::Path(path) => {
            let part = path.path.segments.last().expect("a path has a part");
            let inner = match &part.arguments {
                PathArguments::AngleBracketed(inner) if part.ident == "Option" => {
                    inner.args.first()
                }
                _ => None,
            };
            match inner {
                Some(GenericArgument::Type(inner)) => is_constant(inner),
                _ => CONSTANT_TYPES.iter().any(|known| part.ident == known),
            }
        }
        _ => false,
    }
}

/// Types whose values never change.
const CONSTANT_TYPES: [&str; 6] = [
    "u8",
    "usize",
    "bool",
    "KnownField",
    "ModuleSpec",
    "ScriptFields",
];

#[cfg(test)]
mod tests {
    use super::super::testing::crate_of;
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let found = globals(&crate_of(&[("lib.rs", text)]));
        found.into_iter().map(|global| global.name).collect()
    }

    #[test]
    fn statics_that_change_are_found() {
        for text in [
            "static A: Mutex<u8> = Mutex::new(0);",
            "static A: [std::sync::atomic::AtomicU8; 3] = [];",
            "fn f() { static A: OnceLock<u8> = OnceLock::new(); }",
            "static A: (u8, AtomicU8) = new();",
            "mod inner { static A: Unknown = Unknown; }",
            "thread_local! {\n    /// Text.\n    pub static A: Cell<u8> = const { Cell::new(0) };\n}",
            "fn f() { std::thread_local! { static A: Cell<u8> = Cell::new(0); } }",
        ] {
            assert_eq!(names(text), ["A"], "{text}");
        }
    }

    #[test]
    fn tables_are_no_globals() {
        for text in [
            "pub static A: &[(&str, u8)] = &[];",
            "static A: [bool; 256] = table();",
            "static A: [(u8, usize); 256] = table();",
            "static A: [Option<KnownField>; 64] = table();",
            "pub static A: ModuleSpec = ModuleSpec {};",
            "const A: u8 = 1;",
            "#[cfg(test)] static A: Mutex<u8> = Mutex::new(0);",
            "fn f(a: &'static str) {}",
        ] {
            assert!(names(text).is_empty(), "{text}");
        }
    }
}
