//! Where users are looked up: `auth.backend` and its files.

use std::hash::{DefaultHasher, Hasher as _};
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::cause::ErrorCause;
use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Pending};
use petrel_engine::settings::Values;
use petrel_engine::settings::core::absolute_root;

use super::accounts::{Accounts, Groups};
use super::ldap::LdapUsers;
use super::pam::PamUsers;
use super::parsed_files::AccountFile;

/// Where the users of one set of settings are.
pub(super) enum Users {
    /// In files.
    Files(UserFiles),
    /// On an LDAP server.
    Ldap(Rc<LdapUsers>),
    /// The system's PAM modules know them.
    Pam(PamUsers),
    /// Users cannot be looked up, for this reason.
    Nowhere(String),
}

/// Files with users.
pub(super) struct UserFiles {
    pub(super) form: FileForm,
    /// Tells log-ins by one file from those by another (`auth.cache`). It is short, because it is hashed for
    /// each request. If two files had the same, the log-ins of each would push out the other's.
    pub(super) kind: [u8; 8],
    users: AccountFile<Accounts>,
    groups: Option<AccountFile<Groups>>,
    /// For rules that name no group. Kept, because making one allocates.
    pub(super) no_groups: Arc<Groups>,
}

/// What a line of the file has behind the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileForm {
    /// The password.
    Plain,
    /// A hash of the password.
    Htpasswd,
    /// A realm, and the hash of user, realm and password.
    Htdigest,
}

impl FileForm {
    /// The name that is part of the key of a remembered log-in.
    pub(super) fn name(self) -> &'static [u8] {
        match self {
            FileForm::Plain => b"plain",
            FileForm::Htpasswd => b"htpasswd",
            FileForm::Htdigest => b"htdigest",
        }
    }

    /// How many parts between colons name a user.
    fn name_parts(self) -> usize {
        match self {
            FileForm::Plain | FileForm::Htpasswd => 1,
            FileForm::Htdigest => 2,
        }
    }
}

/// Why a file cannot be used now.
pub(super) enum NoFile {
    /// The file is not in memory: the hook answers [`Outcome::Cold`](petrel_engine::module::Outcome::Cold).
    Cold,
    /// A thread parses it. Afterwards the engine calls the hook again.
    Parsing(Box<dyn Pending>),
    /// It cannot be read. The log has a line about it.
    Failed(ErrorCause),
}

impl Users {
    /// Reads `auth.backend` and its directives.
    ///
    /// # Errors
    /// There is no such backend, or a directive is wrong.
    pub(super) fn read(configure: &Configure<'_>) -> Result<Users, Diagnostic> {
        let values = configure.values;
        let Some(name) = values.string(BACKEND) else {
            return Ok(Users::Nowhere(format!("{BACKEND} is not set")));
        };
        if name == "ldap" {
            return LdapUsers::read(values).map(|users| match users {
                Ok(users) => Users::Ldap(Rc::new(users)),
                Err(missing) => Users::Nowhere(format!("{missing} is not set")),
            });
        }
        if name == "pam" {
            return PamUsers::read(configure).map(Users::Pam);
        }
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
        let users = absolute_root(users);
        let mut kind = DefaultHasher::new();
        kind.write(form.name());
        kind.write(&users);
        Ok(Users::Files(UserFiles {
            form,
            kind: kind.finish().to_ne_bytes(),
            users: AccountFile::new(users, form.name_parts()),
            groups: group_file(values),
            no_groups: Arc::default(),
        }))
    }
}

/// The file with the groups, if there is one.
pub(super) fn group_file(values: &Values<'_>) -> Option<AccountFile<Groups>> {
    let path = values.string(GROUPFILE).map(absolute_root)?;
    Some(AccountFile::new(path, 0))
}

/// Whether `name` is a backend of lighttpd that Petrel does not have.
pub(super) fn is_not_built(name: &str) -> bool {
    ["gssapi", "sasl", "dbi", "mysql"].contains(&name)
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
    /// The users in the file.
    pub(super) fn accounts(&self, exchange: &Exchange) -> Result<Arc<Accounts>, NoFile> {
        let parts = self.form.name_parts();
        let parse = move |content: &[u8]| Accounts::parse(content, parts);
        self.users.read(exchange, parse)
    }

    /// The groups in the file.
    pub(super) fn groups(&self, exchange: &Exchange) -> Result<Arc<Groups>, NoFile> {
        match &self.groups {
            Some(file) => file.read(exchange, Groups::parse),
            None => Ok(Arc::clone(&self.no_groups)),
        }
    }
}
