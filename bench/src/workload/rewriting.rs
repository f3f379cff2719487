//! Rules as on a site that moved its sections one by one: each begins with its own path, followed by a group.

use super::{Urls, Workload};

/// A page of the section to which rule `number` applies.
pub fn page(number: u32) -> String {
    format!("{}2007/reducing-request-setup-costs", section(number))
}

/// The rules of `workload`. `write` formats each from its regular expression and its target URL, in which
/// `$1` is the page.
pub fn rules(workload: &Workload, write: impl Fn(&str, &str) -> String) -> String {
    let Urls::Rewritten(file, count, _) = workload.urls else {
        return String::new();
    };
    let target = format!("/{}?page=$1", file.name);
    let rules = (0..count).map(|number| write(&format!("^{}(.*)$", section(number)), &target));
    rules.collect()
}

fn section(number: u32) -> String {
    format!("/section-{number}/")
}
