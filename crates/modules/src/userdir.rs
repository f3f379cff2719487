//! mod_userdir: `/~user/` leads to a directory of that user.
//!
//! Homes are below `userdir.basepath`, or are looked up in the system's list of users. That may block, for
//! example on a directory service. So a disk thread does it, and the worker remembers the answer for a
//! minute. If a user has no such directory or may not have one, the URL belongs to the document root like any
//! other.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use hashbrown::HashMap;
use nix::errno::Errno as LookupError;
use nix::unistd::User;
use petrel_engine::Exchange;
use petrel_engine::blocking::{FileDeadline, JobWaiter, NotDone, Origin, SharedJobs};
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::file_cache::Symlinks;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use petrel_engine::settings::core::absolute_root;
use petrel_engine::waits::HolderText;

use crate::vhost::{failed, is_directory};

/// mod_userdir.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_userdir",
    doc: "Serves /~user/ from a directory of that user.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "userdir.path", String, Request, "unset", Effect::Works,
            "The directory below the home directory, such as public_html; if empty, the home directory itself. If it is not set, /~user/ is not served.";
        "userdir.exclude-user", List, Request, "()", Effect::Works,
            "Users whose directories are not served.";
        "userdir.include-user", List, Request, "()", Effect::Works,
            "The only users whose directories are served.";
        "userdir.basepath", String, Request, "unset", Effect::Works,
            "The directory that contains the home directories; names of users may then have letters, digits, hyphens, underscores and dots. Without it home directories are looked up in the system's list of users.";
        "userdir.letterhomes", Bool, Request, "disable", Effect::Works,
            "With userdir.basepath: home directories are inside directories named after their first letter.";
        "userdir.active", Bool, Request, "enable", Effect::Works,
            "Serve /~user/.";
    },
    configure,
};

/// For how many seconds a looked-up home is used.
const HOME_KEPT_S: u32 = 60;

/// Users whose homes a worker remembers, and looks up at the same time. While that many are being looked up,
/// a request for another user gets 503.
const USERS_MAX: usize = 1024;

/// The longest name that is looked up.
const NAME_BYTES_MAX: usize = 255;

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let path = values.value("userdir.path").and_then(|path| path.as_str());
    let (Some(path), true) = (path, values.bool("userdir.active").unwrap_or(true)) else {
        return Ok(());
    };
    let users = |name| -> Vec<Box<[u8]>> {
        let names = values.strings(name).into_iter();
        names.map(|name| name.as_bytes().into()).collect()
    };
    let base = values.string("userdir.basepath");
    let hook = UserDirectories {
        path: path.trim_matches('/').as_bytes().into(),
        excluded: users("userdir.exclude-user"),
        included: users("userdir.include-user"),
        base: base.map(|base| absolute_root(base).as_ref().into()),
        has_letters: values.bool("userdir.letterhomes").unwrap_or(false),
        ignores_case: values
            .bool("server.force-lowercase-filenames")
            .unwrap_or(false),
    };
    configure.add(Phase::Map, UserDirectoryHook(Rc::new(hook)));
    Ok(())
}

struct UserDirectoryHook(Rc<UserDirectories>);

struct UserDirectories {
    /// Without slashes at either end.
    path: Box<[u8]>,
    excluded: Vec<Box<[u8]>>,
    /// If empty, all users.
    included: Vec<Box<[u8]>>,
    /// `None`: the system knows the homes.
    base: Option<Box<[u8]>>,
    has_letters: bool,
    ignores_case: bool,
}

/// The system's answer.
type Home = Result<Option<Vec<u8>>, LookupError>;

/// The homes that a worker knows or looks up.
#[derive(Default)]
struct Homes {
    known: RefCell<HashMap<Vec<u8>, KnownHome>>,
    asked: SharedJobs<Vec<u8>, Home>,
}

struct KnownHome {
    /// `None`: there is no such user.
    path: Option<Rc<[u8]>>,
    /// In seconds of the worker's clock.
    until_s: u32,
}

/// A request that waits for a user's home.
struct HomeLookup {
    directories: Rc<UserDirectories>,
    user: Vec<u8>,
    waiter: JobWaiter<Result<Home, NotDone>>,
    deadline: FileDeadline,
}

impl Hook for UserDirectoryHook {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.physical.is_virtual {
            return Outcome::Next;
        }
        let Some(behind) = exchange.request.url.path().strip_prefix(b"/~") else {
            return Outcome::Next;
        };
        if behind.is_empty() {
            return Outcome::Next;
        }
        let Some(length) = memchr::memchr(b'/', behind) else {
            return exchange.redirect_to_directory();
        };
        let user = behind.get(..length).unwrap_or_default();
        if user.is_empty() || !self.0.has(user) {
            return Outcome::Next;
        }
        let user = user.to_vec();
        match &self.0.base {
            Some(base) => {
                if let Some(home) = self.0.home_below(base, user) {
                    map(exchange, &self.0.below(&home));
                }
                Outcome::Next
            }
            None => self.0.look_up(exchange, user),
        }
    }
}

impl UserDirectories {
    /// Whether `user` may have a directory.
    fn has(&self, user: &[u8]) -> bool {
        let is_in = |names: &[Box<[u8]>]| {
            names.iter().any(|name| match self.ignores_case {
                true => name.eq_ignore_ascii_case(user),
                false => **name == *user,
            })
        };
        !is_in(&self.excluded) && (self.included.is_empty() || is_in(&self.included))
    }

    /// The home of `user` below `base`, if a directory can have that name.
    fn home_below(&self, base: &[u8], mut user: Vec<u8>) -> Option<Vec<u8>> {
        let is_plain =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !user.iter().all(is_plain) || matches!(user.as_slice(), b"." | b"..") {
            return None;
        }
        if self.ignores_case {
            user.make_ascii_lowercase();
        }
        let mut home = base.to_vec();
        if self.has_letters {
            let letter = *user.first().filter(|letter| **letter != b'.')?;
            home.extend_from_slice(&[b'/', letter]);
        }
        home.push(b'/');
        home.extend_from_slice(&user);
        Some(home)
    }

    /// The directory in `home` that is served.
    fn below(&self, home: &[u8]) -> Vec<u8> {
        let home = home.strip_suffix(b"/").unwrap_or(home);
        match self.path.is_empty() {
            true => home.to_vec(),
            false => [home, b"/", &self.path].concat(),
        }
    }

    /// Maps the URL if the system knows `user` and the directory exists.
    fn look_up(self: &Rc<Self>, exchange: &mut Exchange, user: Vec<u8>) -> Outcome {
        let homes = exchange.worker.belonging(Homes::default);
        if let Some(known) = homes.get(&user, exchange.worker.clock().seconds()) {
            return match known {
                Some(home) => self.map_existing(exchange, &home),
                None => Outcome::Next,
            };
        }
        let Some(name) = name_to_ask_for(&user) else {
            return Outcome::Next;
        };
        let origin = Origin::USERS.for_client(exchange.connection.client_key());
        let ask = move || ask(&name);
        match homes.asked.join_next(user.clone(), USERS_MAX, origin, ask) {
            Some(waiter) => Outcome::Later(Box::new(HomeLookup {
                directories: Rc::clone(self),
                user,
                waiter,
                deadline: exchange.file_deadline(),
            })),
            None => refuse(exchange, &user, "too many users are being looked up"),
        }
    }

    fn map_existing(&self, exchange: &mut Exchange, home: &[u8]) -> Outcome {
        let directory = self.below(home);
        let Some(there) = exchange.look_up(&directory, Symlinks::Follow) else {
            return Outcome::Cold;
        };
        match is_directory(there.kind()) {
            Ok(true) => map(exchange, &directory),
            Ok(false) => {}
            Err(errno) => return failed(exchange, &directory, errno),
        }
        Outcome::Next
    }
}

impl Homes {
    /// The home of `user`, if it was looked up a short time ago.
    fn get(&self, user: &[u8], now_s: u32) -> Option<Option<Rc<[u8]>>> {
        let known = self.known.borrow();
        let home = known.get(user).filter(|home| home.until_s > now_s)?;
        Some(home.path.clone())
    }

    /// Remembers the home of `user`. A name that no user has never displaces an existing user, so that
    /// clients with made-up names do no harm.
    fn keep(&self, user: Vec<u8>, path: Option<Rc<[u8]>>, now_s: u32) {
        let mut known = self.known.borrow_mut();
        let until_s = now_s.saturating_add(HOME_KEPT_S);
        let is_user = path.is_some();
        if known.len() >= USERS_MAX {
            known.retain(|_, home| home.path.is_some() && home.until_s > now_s);
        }
        if known.len() >= USERS_MAX && is_user {
            known.clear();
        }
        if known.len() < USERS_MAX {
            known.insert(user, KnownHome { path, until_s });
        }
    }
}

impl Pending for HomeLookup {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Map)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("the name service looked for the user");
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let polled = self.waiter.poll_unpin(context);
        let told: Result<Home, String> = match ready!(self.deadline.limit(polled, context)) {
            Ok(Ok(home)) => Ok(home),
            Ok(Err(not_done)) => Err(not_done.to_string()),
            Err(late) => Err(late.to_string()),
        };
        Poll::Ready(match told {
            Ok(Ok(home)) => {
                let home: Option<Rc<[u8]>> = home.map(Rc::from);
                let homes = exchange.worker.belonging(Homes::default);
                let now_s = exchange.worker.clock().seconds();
                homes.keep(std::mem::take(&mut self.user), home.clone(), now_s);
                match home {
                    Some(home) => self.directories.map_existing(exchange, &home),
                    None => Outcome::Next,
                }
            }
            Ok(Err(errno)) => refuse(exchange, &self.user, &errno.to_string()),
            Err(cause) => refuse(exchange, &self.user, &cause),
        })
    }
}

/// Makes `directory`, with what follows the user's name, the path that the URL leads to.
fn map(exchange: &mut Exchange, directory: &[u8]) {
    let physical = &mut exchange.physical;
    let behind = physical.relative.get(1..).unwrap_or_default();
    let slash = memchr::memchr(b'/', behind).unwrap_or(behind.len());
    let rest = behind.get(slash..).unwrap_or_default();
    physical.base.clear();
    physical.base.extend_from_slice(directory);
    physical.base_shows_slash = false;
    physical.path.clear();
    physical.path.extend_from_slice(directory);
    physical.path.extend_from_slice(rest);
}

/// The name as it is passed to the system; `None` if no user can have it.
fn name_to_ask_for(user: &[u8]) -> Option<String> {
    let is_short = user.len() <= NAME_BYTES_MAX;
    let name = std::str::from_utf8(user).ok().filter(|_| is_short)?;
    (!name.contains('\0')).then(|| name.to_owned())
}

fn ask(name: &str) -> Home {
    match User::from_name(name) {
        Ok(user) => Ok(home_of(user, name)),
        // The errors that systems return if there is no such user, see getpwnam_r(3).
        Err(LookupError::ENOENT | LookupError::ESRCH | LookupError::EBADF | LookupError::EPERM) => {
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

/// The home of `user` if its name is exactly `name`. Directory services such as LDAP find users by other
/// spellings, too, but excluded names are compared by spelling.
fn home_of(user: Option<User>, name: &str) -> Option<Vec<u8>> {
    let user = user.filter(|user| user.name == name)?;
    Some(user.dir.into_os_string().into_encoded_bytes())
}

/// Answers that the user cannot be looked up now.
fn refuse(exchange: &mut Exchange, user: &[u8], cause: &str) -> Outcome {
    let user = user.escape_ascii();
    let outcome = exchange.fail(CauseCode::UserLookup);
    exchange.log_error(
        "map",
        format_args!("the home directory of \"{user}\" cannot be looked up: {cause}"),
    );
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use petrel_engine::testing::{Answer, Site};

    #[test]
    fn a_user_has_one_spelling() {
        let root = || User::from_name("root").expect("the system knows its users");
        assert!(root().is_some());
        assert!(home_of(root(), "root").is_some());
        assert_eq!(home_of(root(), "Root"), None);
        assert_eq!(home_of(None, "root"), None);
    }

    #[test]
    fn names_that_are_made_up_take_no_user_s_place() {
        let homes = Homes::default();
        let home = |number: usize| Some(Rc::from(format!("/home/{number}").into_bytes()));
        let name = |kind: &str, number: usize| format!("{kind}{number}").into_bytes();
        for number in 0..100 {
            homes.keep(name("user", number), home(number), 1);
        }
        for number in 0..5 * USERS_MAX {
            homes.keep(name("none", number), None, 1);
        }
        for number in 0..100 {
            assert_eq!(homes.get(&name("user", number), 2), Some(home(number)));
        }
        assert!(homes.known.borrow().len() <= USERS_MAX);
        // A table full of users does not keep further users out; expired entries are dropped first.
        for number in 0..2 * USERS_MAX {
            homes.keep(name("many", number), home(number), 30);
        }
        assert!(homes.known.borrow().len() <= USERS_MAX);
        assert!(homes.get(&name("many", 2 * USERS_MAX - 1), 31).is_some());
        for number in 0..USERS_MAX {
            homes.keep(name("full", number), home(number), 30);
        }
        homes.keep(name("none", 0), None, 30 + HOME_KEPT_S);
        assert!(homes.get(&name("none", 0), 31 + HOME_KEPT_S).is_some());
    }

    fn site(tree: &Tree, config: &str) -> Site {
        let modules = [
            &MODULE,
            &crate::index_file::MODULE,
            &crate::static_file::MODULE,
        ];
        tree.site(
            &format!("index-file.names = (\"index.html\")\n{config}"),
            &modules,
        )
    }

    fn text(answer: &Answer) -> (u16, String) {
        let body = String::from_utf8_lossy(answer.body()).into_owned();
        match answer.status() {
            200 => (200, body),
            status => (status, String::new()),
        }
    }

    #[track_caller]
    fn expect(site: &Site, rows: &[(&str, u16, &str)]) {
        for (target, status, body) in rows {
            assert_eq!(
                text(&site.get(target)),
                (*status, (*body).to_owned()),
                "{target}"
            );
        }
    }

    const FILES: &[(&str, &str)] = &[
        ("homes/jan/www/index.html", "jan"),
        ("homes/jan/www/a.txt", "a"),
        ("homes/jan/secret", "secret"),
        ("homes/www/index.html", "no user"),
        ("homes/eve/www/a.txt", "eve"),
        ("homes/j/jan/www/a.txt", "letter"),
        ("~odd/a.txt", "of the root"),
    ];

    #[test]
    fn homes_below_a_directory() {
        let tree = Tree::new(FILES);
        let config = "userdir.path = \"www\"\nuserdir.basepath = \"ROOT/homes/\"";
        let rows = [
            ("/~jan/", 200, "jan"),
            ("/~jan/a.txt", 200, "a"),
            ("/%7Ejan/a.txt", 200, "a"),
            ("/~jan/../a.txt", 404, ""),
            ("/~jan/%2e%2e/secret", 404, ""),
            ("/~../jan/secret", 404, ""),
            ("/~..%2fjan/secret", 404, ""),
            ("/~./www/index.html", 404, ""),
            ("/~nosuch/", 404, ""),
            ("/~jan", 301, ""),
            ("/~", 404, ""),
            ("/~/", 404, ""),
            ("/~ja!n/a.txt", 404, ""),
        ];
        expect(&site(&tree, config), &rows);
        let answer = site(&tree, config).get("/~jan?q");
        assert_eq!(answer.field("Location").as_deref(), Some("/~jan/?q"));
    }

    #[test]
    fn some_users_have_none() {
        let tree = Tree::new(FILES);
        let base = "userdir.path = \"www\"\nuserdir.basepath = \"ROOT/homes\"\n";
        let excluded = format!("{base}userdir.exclude-user = (\"jan\", \"root\")");
        expect(
            &site(&tree, &excluded),
            &[("/~jan/a.txt", 404, ""), ("/~eve/a.txt", 200, "eve")],
        );
        let included = format!("{base}userdir.include-user = (\"jan\")");
        expect(
            &site(&tree, &included),
            &[("/~jan/a.txt", 200, "a"), ("/~eve/a.txt", 404, "")],
        );
        let off = format!("{base}userdir.active = \"disable\"");
        expect(
            &site(&tree, &off),
            &[
                ("/~jan/a.txt", 404, ""),
                ("/~odd/a.txt", 200, "of the root"),
            ],
        );
        let unset = "userdir.basepath = \"ROOT/homes\"";
        expect(&site(&tree, unset), &[("/~jan/a.txt", 404, "")]);
    }

    #[test]
    fn an_excluded_user_is_so_in_any_letter_case_where_case_does_not_count() {
        let tree = Tree::new(FILES);
        let config = "userdir.path = \"www\"\nuserdir.basepath = \"ROOT/homes\"\n\
            userdir.exclude-user = (\"jan\")\nserver.force-lowercase-filenames = \"enable\"";
        expect(
            &site(&tree, config),
            &[("/~JAN/a.txt", 404, ""), ("/~EVE/A.TXT", 200, "eve")],
        );
    }

    #[test]
    fn homes_sorted_by_letters_and_an_empty_path() {
        let tree = Tree::new(FILES);
        let config = "userdir.path = \"www\"\nuserdir.basepath = \"ROOT/homes\"\n\
            userdir.letterhomes = \"enable\"";
        expect(
            &site(&tree, config),
            &[("/~jan/a.txt", 200, "letter"), ("/~.jan/a.txt", 404, "")],
        );
        let config = "userdir.path = \"\"\nuserdir.basepath = \"ROOT/homes\"";
        expect(&site(&tree, config), &[("/~jan/secret", 200, "secret")]);
    }

    #[test]
    fn homes_that_the_system_knows() {
        let tree = Tree::new(FILES);
        let site = site(&tree, "userdir.path = \"no-such-directory\"");
        let rows = [
            ("/~root/a.txt", 404, ""),
            ("/~no-such-user/a.txt", 404, ""),
            ("/~odd/a.txt", 200, "of the root"),
        ];
        expect(&site, &rows);
        // The answer is remembered.
        expect(&site, &rows);
        let home = User::from_name("root").expect("asked").expect("there").dir;
        let below = home.file_name().expect("a home has a name");
        let path = format!("../{}", below.to_string_lossy());
        let site = self::site(&tree, &format!("userdir.path = \"{path}\""));
        let answer = site.get("/~root/no-such-file");
        let physical = &answer.exchange().physical;
        assert!(
            physical.base.ends_with(path.as_bytes()),
            "{}",
            physical.base.escape_ascii()
        );
    }
}
