//! The production code of a crate, found as rustc finds it: from `lib.rs` or `main.rs` along its `mod` lines.
//! Modules and items for tests are left out.

use std::path::{Path, PathBuf};

use syn::{Attribute, ImplItem, Item, Meta};

/// One crate.
pub struct CrateSource {
    /// The name of its folder in `crates/`.
    pub name: String,
    /// Its files, `lib.rs` or `main.rs` first.
    pub files: Vec<SourceFile>,
}

/// One file of a crate.
pub struct SourceFile {
    /// Where it is, from the root of the work tree.
    pub path: String,
    /// The module that it is; empty for the root of the crate.
    pub module: Vec<String>,
    /// Its items, without those that are for tests.
    pub items: Vec<Item>,
}

impl CrateSource {
    /// Reads the crate in `crates/NAME`. `read` gives the text of a file, by its path from the root of the
    /// work tree.
    ///
    /// # Errors
    /// When a file is missing or is not Rust.
    pub fn read(name: &str, read: &dyn Fn(&Path) -> Option<String>) -> Result<CrateSource, String> {
        let folder = Path::new("crates").join(name).join("src");
        let mut known = CrateSource {
            name: name.to_owned(),
            files: Vec::new(),
        };
        for root in ["lib.rs", "main.rs"] {
            if let Some(text) = read(&folder.join(root)) {
                known.add(&folder.join(root), &folder, Vec::new(), &text, read)?;
            }
        }
        match known.files.is_empty() {
            true => Err(format!("{}: no lib.rs and no main.rs", folder.display())),
            false => Ok(known),
        }
    }

    /// Adds a file, then the modules that it declares, which are in `folder`.
    fn add(
        &mut self,
        path: &Path,
        folder: &Path,
        module: Vec<String>,
        text: &str,
        read: &dyn Fn(&Path) -> Option<String>,
    ) -> Result<(), String> {
        let file = syn::parse_file(text).map_err(|error| {
            let line = error.span().start().line;
            format!("{}:{line}: {error}", path.display())
        })?;
        let items = production(file.items);
        let children: Vec<String> = (items.iter())
            .filter_map(|item| match item {
                Item::Mod(child) if child.content.is_none() => Some(child.ident.to_string()),
                _ => None,
            })
            .collect();
        self.files.push(SourceFile {
            path: path.display().to_string(),
            module: module.clone(),
            items,
        });
        for child in children {
            let mut module = module.clone();
            module.push(child.clone());
            let folder = folder.join(&child);
            let paths: [PathBuf; 2] = [folder.with_extension("rs"), folder.join("mod.rs")];
            let found = paths.iter().find_map(|path| Some((path, read(path)?)));
            let Some((path, text)) = found else {
                return Err(format!("{}: no file for `mod {child}`", path.display()));
            };
            self.add(path, &folder, module, &text, read)?;
        }
        Ok(())
    }
}

/// The items that are part of the server, in which nested items for tests are left out.
fn production(items: Vec<Item>) -> Vec<Item> {
    let mut items = items;
    items.retain(|item| !is_for_tests(attributes(item)));
    for item in &mut items {
        match item {
            Item::Mod(inner) => {
                if let Some((_, items)) = &mut inner.content {
                    *items = production(std::mem::take(items));
                }
            }
            Item::Impl(inner) => inner.items.retain(|item| match item {
                ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                _ => true,
            }),
            _ => {}
        }
    }
    items
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// What is compiled for tests alone, or is there for tests of other crates and so hidden in the documentation.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let of = |name: &'static str| {
        let named = attributes
            .iter()
            .filter(move |attribute| attribute.path().is_ident(name));
        named.filter_map(|attribute| attribute.parse_args::<Meta>().ok())
    };
    of("cfg").any(|condition| !is_on(&condition))
        || of("doc").any(|word| word.path().is_ident("hidden"))
}

/// Whether a `cfg` condition may hold in the server: every condition that is not about tests may.
fn is_on(condition: &Meta) -> bool {
    let inner = |list: &syn::MetaList| -> Vec<Meta> {
        let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
        let conditions = list.parse_args_with(parser);
        conditions.map_or(Vec::new(), |all| all.into_iter().collect())
    };
    match condition {
        Meta::Path(path) => !path.is_ident("test") && !path.is_ident("doc"),
        Meta::NameValue(_) => true,
        Meta::List(list) if list.path.is_ident("not") => !inner(list).iter().all(is_on),
        Meta::List(list) if list.path.is_ident("any") => inner(list).iter().any(is_on),
        Meta::List(list) => inner(list).iter().all(is_on),
    }
}
