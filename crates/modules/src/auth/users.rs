//! Where users are looked up: `auth.backend` and its files, read by the worker's file cache and kept parsed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cold_files::status_of_error;
use petrel_engine::config::Diagnostic;
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;
use petrel_engine::settings::core::absolute_root;

use super::accounts::{Accounts, Groups, LeftOut};

/// What one set of settings says.
#[derive(Debug)]
pub(super) enum Users {
    /// In files.
    Files(UserFiles),
    /// They cannot be looked up, for this reason.
    Nowhere(String),
}

/// Files with users.
#[derive(Debug)]
pub(super) struct UserFiles {
    pub(super) form: FileForm,
    users: Rc<[u8]>,
    groups: Option<Rc<[u8]>>,
}

/// What stands in a file behind a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileForm {
    /// The password.
    Plain,
    /// Its hash, of one of many forms.
    Htpasswd,
    /// A realm, and the hash of all three.
    Htdigest,
}

/// Why a file says nothing now.
pub(super) enum NoFile {
    /// It is on the disk: the hook says [`Outcome::Cold`](petrel_engine::module::Outcome::Cold).
    Cold,
    /// It cannot be used. The log has been told.
    Failed(Status),
}

impl Users {
    /// What `values` say.
    ///
    /// # Errors
    /// There is no such backend.
    pub(super) fn read(values: &Values<'_>) -> Result<Users, Diagnostic> {
        let Some(name) = values.string(BACKEND) else {
            return Ok(Users::Nowhere(format!("{BACKEND} is not set")));
        };
        if is_not_built(name) {
            return Ok(Users::Nowhere(format!(
                "{BACKEND} = \"{name}\" is not built"
            )));
        }
        let Some((form, directive)) = form(name) else {
            return Err(values.error(BACKEND, format!("there is no {BACKEND} {name:?}")));
        };
        let Some(users) = values.string(directive) else {
            return Ok(Users::Nowhere(format!("{directive} is not set")));
        };
        Ok(Users::Files(UserFiles {
            form,
            users: absolute_root(users),
            groups: values.string(GROUPFILE).map(absolute_root),
        }))
    }
}

/// Whether `name` is a backend of lighttpd that is not built.
pub(super) fn is_not_built(name: &str) -> bool {
    ["ldap", "pam", "gssapi", "sasl", "dbi", "mysql"].contains(&name)
}

fn form(name: &str) -> Option<(FileForm, &'static str)> {
    Some(match name {
        "plain" => (FileForm::Plain, "auth.backend.plain.userfile"),
        "htpasswd" => (FileForm::Htpasswd, "auth.backend.htpasswd.userfile"),
        "htdigest" => (FileForm::Htdigest, "auth.backend.htdigest.userfile"),
        _ => return None,
    })
}

pub(super) const BACKEND: &str = "auth.backend";
pub(super) const GROUPFILE: &str = "auth.backend.plain.groupfile";

impl UserFiles {
    /// The users there are now.
    pub(super) fn accounts(&self, exchange: &Exchange) -> Result<Rc<Accounts>, NoFile> {
        let parts = match self.form {
            FileForm::Plain | FileForm::Htpasswd => 1,
            FileForm::Htdigest => 2,
        };
        let known = exchange.worker.belonging(Parsed::<Accounts>::default);
        known.read(exchange, &self.users, parts, |content| {
            Accounts::parse(content, parts)
        })
    }

    /// Who is in which group now.
    pub(super) fn groups(&self, exchange: &Exchange) -> Result<Rc<Groups>, NoFile> {
        let Some(path) = &self.groups else {
            return Ok(Rc::default());
        };
        let known = exchange.worker.belonging(Parsed::<Groups>::default);
        known.read(exchange, path, 0, Groups::parse)
    }
}

/// Files of a worker, each parsed once for as long as it stays the same.
struct Parsed<T>(RefCell<HashMap<ParsedAs, ParsedFile<T>>>);

/// A path, and how many parts a name there has.
type ParsedAs = (Rc<[u8]>, usize);

struct ParsedFile<T> {
    file: Rc<FileEntry>,
    /// The last line was left out.
    is_half_written: bool,
    content: Rc<T>,
}

impl<T> Default for Parsed<T> {
    fn default() -> Parsed<T> {
        Parsed(RefCell::default())
    }
}

impl<T> Parsed<T> {
    fn read(
        &self,
        exchange: &Exchange,
        path: &Rc<[u8]>,
        form: usize,
        parse: impl FnOnce(&[u8]) -> (T, Option<LeftOut>),
    ) -> Result<Rc<T>, NoFile> {
        let file = exchange.look_up(path, SYMLINKS).ok_or(NoFile::Cold)?;
        let key = (Rc::clone(path), form);
        if let Some(known) = self.0.borrow().get(&key)
            && Rc::ptr_eq(&known.file, &file)
            && (!known.is_half_written || was_just_written(exchange, &file))
        {
            return Ok(Rc::clone(&known.content));
        }
        let bytes = match file.kind() {
            FileKind::Regular => exchange.read_whole(path, SYMLINKS, &file, FILE_BYTES_MAX),
            FileKind::Denied => Err(ErrorKind::PermissionDenied.into()),
            FileKind::Missing | FileKind::NotADirectory => Err(ErrorKind::NotFound.into()),
            FileKind::Directory | FileKind::Special => Err(ErrorKind::InvalidInput.into()),
            FileKind::Failed(errno) => Err(errno.into()),
        };
        let shown = String::from_utf8_lossy(path);
        let bytes = bytes.map_err(|error| {
            let what = format_args!("users cannot be looked up: {shown:?}: {error}");
            exchange.log_common_error("authorize", what);
            let status = match error.kind() {
                ErrorKind::TimedOut => status_of_error(&error),
                _ => Status::SERVICE_UNAVAILABLE,
            };
            NoFile::Failed(status)
        })?;
        let bytes = bytes.ok_or(NoFile::Cold)?;
        let mut lines = &*bytes;
        let is_half_written = was_just_written(exchange, &file) && !bytes.ends_with(b"\n");
        if is_half_written {
            // A program may be at that line: a part of it could let a client in that the whole does not.
            let end = memchr::memrchr(b'\n', lines).map_or(0, |newline| newline + 1);
            lines = lines.get(..end).unwrap_or_default();
        }
        let (content, left_out) = parse(lines);
        if let Some(left_out) = left_out {
            exchange.log_common_error("authorize", format_args!("{shown:?}: {left_out}"));
        }
        let content = Rc::new(content);
        let parsed = ParsedFile {
            file,
            is_half_written,
            content: Rc::clone(&content),
        };
        self.0.borrow_mut().insert(key, parsed);
        Ok(content)
    }
}

fn was_just_written(exchange: &Exchange, file: &FileEntry) -> bool {
    let now_s = exchange.worker.clock().wall_seconds();
    now_s.abs_diff(file.stat().modified_s) < WRITTEN_S
}

/// A program that writes a file has written all of it so many seconds later.
const WRITTEN_S: u64 = 2;

/// The files are the administrator's choice: rules about symlinks are about what URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;

/// A hundred thousand users. The worker parses it.
const FILE_BYTES_MAX: usize = 16 << 20;
