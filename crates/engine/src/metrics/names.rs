//! Numbers for the names of routes and hosts. A name gets its number once, and counting needs only the
//! number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::cells::SLOTS_MAX;
use super::lock;
use crate::limits;

/// What made a response: a module, and where that helps the part of its configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route(u16);

impl Route {
    /// The requests that no module has answered.
    pub const CORE: Route = Route(0);

    /// The route of the module that stands at `index` in the list of loaded modules.
    pub(crate) fn of_module(index: usize) -> Route {
        Route(u16::try_from(index + 1).unwrap_or(0))
    }

    /// The index that [`Route::of_module`] got.
    #[inline]
    pub(crate) fn module_index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    #[inline]
    pub(super) fn slot(self) -> u16 {
        self.0
    }
}

/// A host that the configuration names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Host(u16);

impl Host {
    /// A host that the configuration does not name.
    pub const OTHER: Host = Host(0);

    /// The host at `index` in the list of the hosts that the configuration names.
    pub(crate) fn named(index: usize) -> Host {
        match index + 1 < SLOTS_MAX {
            true => Host((index + 1) as u16),
            false => Host::OTHER,
        }
    }

    #[inline]
    pub(super) fn slot(self) -> u16 {
        self.0
    }
}

/// Names and their numbers.
#[derive(Default)]
pub(super) struct Names(Mutex<NameTable>);

#[derive(Default)]
struct NameTable {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u16>,
}

impl Names {
    /// The first names; later calls do nothing.
    pub(super) fn begin_with<'n>(&self, names: impl Iterator<Item = &'n str>) {
        let mut table = lock(&self.0);
        if table.names.is_empty() {
            names.take(SLOTS_MAX).for_each(|name| {
                table.push(name);
            });
        }
    }

    /// The route whose name is that of `route`'s module and `detail`.
    pub(super) fn detailed(&self, route: Route, detail: &str) -> Route {
        let mut table = lock(&self.0);
        let whole = table.names.get(usize::from(route.0)).map(Arc::clone);
        let whole = whole.unwrap_or_default();
        let module = whole.split(' ').next().unwrap_or_default();
        let cut = detail.floor_char_boundary(limits::ROUTE_DETAIL_BYTES_MAX);
        let name = format!("{module} {}", &detail[..cut]);
        if let Some(number) = table.numbers.get(name.as_str()) {
            return Route(*number);
        }
        match table.names.len() < limits::ROUTES_MAX {
            true => Route(table.push(&name)),
            false => Route(table.numbers.get(module).copied().unwrap_or(0)),
        }
    }

    /// The name with the number `number`.
    pub(super) fn name(&self, number: u16) -> Arc<str> {
        let table = lock(&self.0);
        let name = table.names.get(usize::from(number)).map(Arc::clone);
        name.unwrap_or_default()
    }

    /// All names by their numbers.
    pub(super) fn all(&self) -> Vec<Arc<str>> {
        lock(&self.0).names.clone()
    }
}

impl NameTable {
    fn push(&mut self, name: &str) -> u16 {
        let number = u16::try_from(self.names.len()).unwrap_or(0);
        let name = Arc::<str>::from(name);
        self.names.push(Arc::clone(&name));
        self.numbers.entry(name).or_insert(number);
        number
    }
}

const _: () = assert!(limits::ROUTES_MAX <= SLOTS_MAX && SLOTS_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number_and_their_number_is_bounded() {
        let names = Names::default();
        names.begin_with(["no-module", "mod_a", "mod_b"].into_iter());
        names.begin_with(["other"].into_iter());
        let b = Route::of_module(1);
        let php = names.detailed(b, ".php");
        assert_eq!(names.detailed(b, ".php"), php);
        assert_eq!(names.detailed(php, ".php"), php, "of the same module");
        assert_ne!(names.detailed(Route::of_module(0), ".php"), php);
        for number in 0..2 * limits::ROUTES_MAX {
            names.detailed(b, &format!("/{number}"));
        }
        assert_eq!(names.all().len(), limits::ROUTES_MAX);
        assert_eq!(names.detailed(b, "/beyond"), b, "the module itself");
        assert_eq!(&*names.all()[usize::from(php.slot())], "mod_b .php");
    }

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        let names = Names::default();
        names.begin_with(["no-module", "mod_a"].into_iter());
        let long = "\u{e4}".repeat(1 << 20);
        let route = names.detailed(Route::of_module(0), &long);
        let name = &names.all()[usize::from(route.slot())];
        assert!(name.len() <= "mod_a ".len() + limits::ROUTE_DETAIL_BYTES_MAX);
        assert!(name.ends_with('\u{e4}'));
    }
}
