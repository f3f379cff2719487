//! The status page as HTML, complete without a script: tables, and charts as SVG.
//!
//! The script gets the same page once a second and changes what is different (script.js), so there is one
//! place that draws. The page has no inline style and no inline script, because its Content-Security-Policy
//! allows none: sizes are attributes of SVG, colours are classes of style.css.

mod chart;
mod markup;
mod sections;

use super::model::Status;
pub(super) use markup::Text;

/// What the beginning of the page depends on.
pub(super) struct PageOptions<'a> {
    /// The host that the client asked for.
    pub(super) host: &'a str,
    /// After how many seconds the page is fetched again.
    pub(super) every_s: u32,
    /// What the URLs of style and script end with, so that browsers can keep them.
    pub(super) version: &'a str,
}

/// The beginning of the page, which is the client's own.
pub(super) fn head(options: &PageOptions<'_>) -> String {
    let PageOptions {
        every_s, version, ..
    } = options;
    let host = Text(options.host);
    // Without a script the whole page is loaded again, which a reader notices.
    let still_s = every_s.max(&STILL_S);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{host} – Petrel</title>\n\
         <link rel=\"icon\" href=\"?icon={version}\">\n<link rel=\"stylesheet\" href=\"?style={version}\">\n\
         <script src=\"?script={version}\" defer></script>\n\
         <noscript><meta http-equiv=\"refresh\" content=\"{still_s}\"></noscript>\n</head>\n\
         <body data-every=\"{every_s}\">\n\
         <header><h1><span class=\"mark\">petrel</span> <bdi>{host}</bdi></h1>"
    )
}

/// The rest of the page, which is the same for all clients. `can_sort` is `status.enable-sort`.
pub(super) fn rest(status: &Status, can_sort: bool) -> String {
    let mut out = String::with_capacity(PAGE_BYTES);
    sections::write(&mut out, status, can_sort);
    out.push_str("</body>\n</html>\n");
    out
}

/// Room for a usual page.
const PAGE_BYTES: usize = 128 * 1024;
/// After how many seconds the page without a script loads itself again, at least.
const STILL_S: u32 = 5;

#[cfg(test)]
mod tests {
    use super::super::model::Percentiles;
    use super::*;

    fn page(status: &Status) -> String {
        let options = PageOptions {
            host: "www.example.org\"><script>alert(1)</script>",
            every_s: 1,
            version: "1",
        };
        head(&options) + &rest(status, true)
    }

    fn example() -> Status {
        let json = include_str!("../../../../../tests/fixtures/status.json");
        Status::parse(json).expect("the example is a status")
    }

    #[test]
    fn the_page_without_a_script_names_who_holds_requests_up() {
        let page = page(&example());
        for text in [
            "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>",
            "8 of 8",
            "8× <bdi>/report.php</bdi> <span class=\"quiet\">oldest 31.0 s, 192.0.2.7</span>",
            "pool &quot;www&quot; full (8 of 8)",
            "<bdi>php-fpm www (dynamic): 8 of 8 children busy, listen queue 2, ",
            "<bdi>/report.php</bdi> <span class=\"quiet\">31.0 s, process 4107</span>",
            "<bdi>/cron (/srv/www/cron.php)</bdi> <span class=\"quiet\">12.5 s, process 4111</span>",
            "in the last minute for 8 children; memory would allow 14</li>",
            " · gw-reply-timeout · ",
            "<bdi>/report.php</bdi> <span class=\"quiet\">for 31.0 s, ",
            "<bdi>/srv/lua/slow.lua</bdi> <span class=\"quiet\">41 ms in lua, ",
            "<bdi>/mnt/nfs</bdi>",
            "class=\"area s-backend-first-byte\"",
            "<dt>Requests ended/s, last 5 s</dt>",
            " begun/s; 3.6M ended since start</span>",
            "<dt>Failed, last minute</dt>",
            ">Ended/s<br><small>last 10 s</small></th>",
            ">Failed<br><small>since start</small></th>",
            ">Aborted<br><small>since start</small></th>",
            "<span>200, aborted</span>",
        ] {
            assert!(page.contains(text), "{text}\n{page}");
        }
    }

    #[test]
    fn times_are_those_of_their_own_requests() {
        let mut status = example();
        let times = |max_us| Percentiles {
            p50_us: 7_100,
            p99_us: max_us,
            max_us,
        };
        status.latency.minute = Some(times(2_300_000));
        *status.latency.columns.last_mut().expect("a column") = Some(times(1_900_000));
        status.routes[0].percentiles = Some(times(3_100_000));
        status.backends[0].first_byte_percentiles = Some(times(2_900_000));
        let page = page(&status);
        for text in [
            "<b>2.3 s</b> <span>half within 7.1 ms</span>",
            "half within 7.1 ms, 99 % within 1.9 s, all within 1.9 s</title></rect></svg>",
            ">3.1 s</td>",
            ">2.9 s</td>",
        ] {
            assert!(page.contains(text), "{text}\n{page}");
        }
    }

    /// The tags of a page, with their attributes.
    fn tags(page: &str) -> impl Iterator<Item = &str> {
        let tags = page.split('<').skip(1);
        tags.map(|tag| tag.split_once('>').expect("a tag ends").0)
    }

    #[test]
    fn text_of_clients_makes_no_tags_and_hides_nothing() {
        let mut status = example();
        let usual: Vec<String> = tags(&page(&status)).map(kind_of).collect();
        let hostile = "/\"' onload=alert(1)><script>alert(1)</script>\u{202e}\u{0}&amp;";
        status.routes[0].route = hostile.to_owned();
        status.hosts[0].host = Some(hostile.to_owned());
        status.paths[0].path = Some(format!("{hostile}{}", "x".repeat(1 << 20)));
        status.backends[0].label = hostile.to_owned();
        status.backends[0].state = hostile.to_owned();
        status.backends[0].holders[0].path = hostile.to_owned();
        let fpm = status.backends[0].fpm.as_mut().expect("the example has it");
        fpm.advice = Some(hostile.to_owned());
        let pool = fpm.pool.as_mut().expect("the example has it");
        pool.name = hostile.to_owned();
        pool.scripts[0].uri = hostile.to_owned();
        pool.scripts[0].script = hostile.to_owned();
        let slow = &mut status.slowest[0];
        for text in [
            &mut slow.id,
            &mut slow.path,
            &mut slow.method,
            &mut slow.host,
        ] {
            *text = hostile.to_owned();
        }
        slow.cause = Some(hostile.to_owned());
        let current = status.workers[0].works_for.get_or_insert_default();
        current.path = hostile.to_owned();
        current.id = hostile.to_owned();
        status.slowest[0].waits[0].holder = hostile.to_owned();
        status.slowest[0].waits[0].stage = hostile.to_owned();
        let page = page(&status);
        for tag in tags(&page).map(kind_of) {
            assert!(usual.contains(&tag), "<{tag}> in {page}");
        }
        assert!(!page.contains('\u{202e}') && !page.contains('\u{0}'));
        assert!(page.contains("\\u{202e}"));
        assert!(page.len() < 400_000, "{}", page.len());
    }

    /// The name of a tag and those of its attributes.
    fn kind_of(tag: &str) -> String {
        // Every second piece is the value of an attribute.
        let outside: Vec<&str> = tag.split('"').step_by(2).collect();
        outside.concat()
    }

    #[test]
    fn nothing_is_inline() {
        let page = page(&example());
        for tag in tags(&page).map(kind_of) {
            let words: Vec<&str> = tag.split(' ').collect();
            assert!(!words.contains(&"style="), "{tag}");
            assert!(!words.iter().any(|word| word.starts_with("on")), "{tag}");
        }
        assert!(!page.contains("<style"));
        assert!(page.contains("<script src=\"?script=1\" defer></script>"));
    }

    #[test]
    fn a_server_that_has_just_started_has_a_page() {
        assert!(page(&Status::default()).contains("None yet."));
    }

    #[test]
    fn the_page_of_a_large_server_is_short() {
        let mut status = example();
        for number in 0..1_000 {
            status.routes.push(super::super::model::RouteStatus {
                route: format!("mod_proxy /{number}"),
                time_us: 1,
                requests: 1,
                ..Default::default()
            });
        }
        let page = page(&status);
        assert!(page.contains("<bdi>(986 others)</bdi>"), "{page}");
        assert!(page.len() < 200_000, "{}", page.len());
    }
}
